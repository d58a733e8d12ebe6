/* Its processor time: alone, beside others, and that of its children. Asks the host with the time
 * of a turn, and ends when the host answers 0. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/times.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "calls.h"

#define CHECK(what)                                                \
    do {                                                           \
        if (!(what)) {                                             \
            printf("line %d: %s, errno %d\n", __LINE__, #what, errno); \
            exit(1);                                               \
        }                                                          \
    } while (0)

#define MILLISECOND 1000000l

static volatile double sum;

static void compute(void)
{
    for (int round = 0; round < 1000; round++)
        sum += 1.0 / (round + sum + 1);
}

static long of(clockid_t clock)
{
    struct timespec time;
    CHECK(clock_gettime(clock, &time) == 0);
    return time.tv_sec * 1000000000 + time.tv_nsec;
}

static long used(void)
{
    return of(CLOCK_PROCESS_CPUTIME_ID);
}

/* The kernel's time of the thread. */
static long threads(void)
{
    struct timespec time;
    upvm_call(SYS_clock_gettime, CLOCK_THREAD_CPUTIME_ID, (long)&time, 0, 0);
    return time.tv_sec * 1000000000 + time.tv_nsec;
}

static long of_rusage(int who)
{
    struct rusage used;
    CHECK(getrusage(who, &used) == 0 && used.ru_stime.tv_sec == 0 && used.ru_stime.tv_usec == 0);
    return used.ru_utime.tv_sec * 1000000000 + used.ru_utime.tv_usec * 1000;
}

static long of_times(void)
{
    struct tms all;
    clock_t before = times(0), now = times(&all);
    CHECK(now >= before && all.tms_stime == 0);
    return all.tms_utime * (1000000000 / sysconf(_SC_CLK_TCK));
}

/* All clocks show the same time, as exactly as each can. */
static void agree(void)
{
    clockid_t process, own, thread;
    struct timespec step;
    CHECK(clock_getcpuclockid(0, &process) == 0 && clock_getcpuclockid(getpid(), &own) == 0);
    CHECK(pthread_getcpuclockid(pthread_self(), &thread) == 0);
    CHECK(clock_getres(process, &step) == 0 && step.tv_sec == 0 && step.tv_nsec > 0);
    long all[] = {used(),
                  of(CLOCK_THREAD_CPUTIME_ID),
                  of(process),
                  of(own),
                  of(thread),
                  of((clockid_t)(~0u << 3 | 2)),
                  clock() * 1000 + 999,
                  of_rusage(RUSAGE_SELF) + 999,
                  of_rusage(RUSAGE_THREAD) + 999,
                  of_times() + 10 * MILLISECOND - 1};
    long last = used();
    for (unsigned one = 0; one < sizeof all / sizeof *all; one++) {
        CHECK(all[one] >= all[0] && all[one] < last + 10 * MILLISECOND);
        CHECK(one == 0 || one > 5 || all[one] >= all[one - 1]);
    }
}

/* Without interrupts and questions the time is exact. */
static void exact(void)
{
    long before = threads(), first = used(), after = threads(), last;
    do
        compute(), last = used();
    while (last < first + 20 * MILLISECOND);
    long inner = threads() - after;
    long end = used() - first, outer = threads() - before;
    CHECK(inner <= end && end <= outer);
    agree();
}

/* A program that computes alone sees what the thread uses. What the thread had used since the last
 * interrupt before the first reading may be counted too. */
static void alone(void)
{
    long assigned = *(volatile long __seg_gs *)UPVM_GS_ASSIGNED;
    long before = threads(), first = used(), after = threads(), last = first;
    do {
        compute();
        long now = used();
        CHECK(now >= last);
        last = now;
    } while (last < first + 200 * MILLISECOND);
    long outer = threads() - before;
    CHECK(last - first <= outer + (after - assigned));
    CHECK(last - first >= outer / 2);
    agree();
}

static void children(void)
{
    struct rusage all;
    struct tms ticks;
    CHECK(getrusage(RUSAGE_CHILDREN, &all) == 0 && all.ru_utime.tv_sec == 0);
    CHECK(all.ru_utime.tv_usec == 0 && all.ru_stime.tv_usec == 0 && all.ru_maxrss == 0);
    CHECK(system("i=0; while [ $i -lt 50000 ]; do i=$((i+1)); done") == 0);
    CHECK(getrusage(RUSAGE_CHILDREN, &all) == 0 && all.ru_maxrss > 0);
    long first = all.ru_utime.tv_sec * 1000000 + all.ru_utime.tv_usec + all.ru_stime.tv_usec;
    CHECK(first > 0 && times(&ticks) != -1 && ticks.tms_cutime <= first / 1000);
    CHECK(system("i=0; while [ $i -lt 50000 ]; do i=$((i+1)); done") == 0);
    CHECK(getrusage(RUSAGE_CHILDREN, &all) == 0);
    CHECK(all.ru_utime.tv_sec * 1000000 + all.ru_utime.tv_usec + all.ru_stime.tv_usec > first);
}

/* Computes until an interrupt has found this program, which is then counted for it. */
static void until_interrupted(void)
{
    const volatile long __seg_gs *assigned = (const volatile long __seg_gs *)UPVM_GS_ASSIGNED;
    for (long before = *assigned; *assigned == before;)
        compute();
}

/* Computes for 2 ms, which no interrupt finds if one has just come. */
static void for_a_moment(void)
{
    for (long end = threads() + 2 * MILLISECOND; threads() < end;)
        compute();
}

int main(int argc, char **argv)
{
    uint64_t *table = upvm_table();
    long turn = argc > 2 ? atol(argv[2]) * MILLISECOND : 0, last;
    clockid_t parents;
    if (!strcmp(argv[1], "exact"))
        return exact(), 0;
    if (!strcmp(argv[1], "alone"))
        return alone(), 0;
    if (!strcmp(argv[1], "children"))
        return children(), 0;
    /* Clocks of other processes are the kernel's. */
    CHECK(argc > 3 && clock_getcpuclockid(atoi(argv[3]), &parents) == 0 && of(parents) > 0);
    CHECK(clock_getcpuclockid(getpid() + 1, &parents) == ESRCH);
    CHECK(clock_nanosleep(CLOCK_PROCESS_CPUTIME_ID, 0, &(struct timespec){0, 1}, 0) == EOPNOTSUPP);
    do {
        long first = last = used();
        if (!turn && !strcmp(argv[1], "long"))
            until_interrupted(), last = used();
        if (!turn && !strcmp(argv[1], "short"))
            for_a_moment(), last = used();
        while (last < first + turn) {
            compute();
            long now = used();
            CHECK(now >= last);
            last = now;
        }
    } while (UPVM_ASK(table, UPVM_ASK_OWN, last, 0, 0, 0));
    CHECK(used() >= last);
    return 0;
}
