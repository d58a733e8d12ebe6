/* The processor time of this program.
 *
 * All programs of a worker run on one thread, and a switch between them reads no clock. The host
 * adds the thread's time to the word UPVM_TABLE_TIME of the program that it finds running at an
 * interrupt, about every 10 ms (src/interrupts.rs). Between two questions to the host only this
 * program runs, and the thread's clock is its own. So the time is
 *
 *   what it was at the last reading, and exactly what the thread has used since, if this program
 *   has asked the host nothing in between;
 *   otherwise what the interrupts have shown, but never less than before.
 *
 * It is never more than the next interrupt would show if it came now. So no part of the thread's
 * time is counted for two programs, except for at most one interval each.
 *
 * The host need not count questions for this: each question replaces a word in the program's
 * context, which holds a mark since the last reading. */

#define _GNU_SOURCE
#include "calls.h"
#include "usage.h"
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/times.h>
#include <time.h>
#include <unistd.h>

/* The thread's time at the last reading, and the program's. */
static uint64_t marked, shown;
unsigned long upvm_rounds;

static uint64_t nanoseconds(const struct timespec *time)
{
    return time->tv_sec * 1000000000ul + time->tv_nsec;
}

static uint64_t thread_time(void)
{
    struct timespec time = {0, 0};
    upvm_call(SYS_clock_gettime, CLOCK_THREAD_CPUTIME_ID, (long)&time, 0, 0);
    return nanoseconds(&time);
}

/* The word that each question to the host replaces. */
static volatile uint64_t *question(void)
{
    char *context = *(char *volatile __seg_gs *)UPVM_GS_CURRENT;
    return (volatile uint64_t *)(context + UPVM_CONTEXT_WHAT);
}

static uint64_t least(uint64_t one, uint64_t other)
{
    return one < other ? one : other;
}

static uint64_t read_once(const volatile uint64_t *table)
{
    uint64_t now = thread_time(), known = table[UPVM_TABLE_TIME], used = shown;
    if (*question() == UPVM_TIMED) {
        uint64_t assigned = *(volatile uint64_t __seg_gs *)UPVM_GS_ASSIGNED;
        uint64_t exact = least(shown + (now - marked), known + (now - assigned));
        used = used < exact ? exact : used;
    }
    used = used < known ? known : used;
    shown = used, marked = now;
    *question() = UPVM_TIMED;
    return used;
}

uint64_t upvm_used(void)
{
    for (;;) {
        unsigned long round = *(volatile unsigned long *)&upvm_rounds;
        uint64_t used = read_once(upvm_table());
        if (round == *(volatile unsigned long *)&upvm_rounds)
            return used;
        /* An interrupt came in between, and others may have run. */
        *question() = 0;
    }
}

/* At each interrupt: what is known exactly begins anew. */
void upvm_interrupt_time(void)
{
    upvm_rounds++;
    if (marked)
        upvm_used();
}

/* As in the kernel: the number of the process or thread, negated, above three bits. The lowest two
 * say what is counted; with both of them set it is no such clock. */
static int counts_processor(clockid_t clock)
{
    return (clock & 3) != 3;
}

int upvm_is_own_time(clockid_t clock)
{
    if (!upvm_is_virtual())
        return 0;
    if (clock >= 0)
        return clock == CLOCK_PROCESS_CPUTIME_ID || clock == CLOCK_THREAD_CPUTIME_ID;
    pid_t process = ~(clock >> 3);
    return counts_processor(clock) && (process == 0 || upvm_is_own(process));
}

int clock_getres(clockid_t clock, struct timespec *time)
{
    if (!upvm_is_own_time(clock))
        return upvm_returns(upvm_call(SYS_clock_getres, clock, (long)time, 0, 0));
    if (time)
        *time = (struct timespec){0, 1};
    return 0;
}

int clock_getcpuclockid(pid_t process, clockid_t *clock)
{
    if (upvm_is_virtual() && (process == 0 || upvm_is_own(process))) {
        *clock = CLOCK_PROCESS_CPUTIME_ID;
        return 0;
    }
    clockid_t its = (clockid_t)(~(unsigned)process << 3 | 2);
    /* The numbers of tasks may be too large for a clock, and are no processes. */
    long done = ~(its >> 3) == process ? upvm_call(SYS_clock_getres, its, 0, 0, 0) : -EINVAL;
    if (done == -EINVAL)
        return ESRCH;
    *clock = done ? *clock : its;
    return -done;
}

/* There is only one thread. */
int pthread_getcpuclockid(pthread_t thread, clockid_t *clock)
{
    (void)thread;
    *clock = CLOCK_THREAD_CPUTIME_ID;
    return 0;
}

static struct timeval whole(uint64_t time)
{
    return (struct timeval){time / 1000000000, time % 1000000000 / 1000};
}

static struct rusage children;

static void add(struct timeval *to, const struct timeval *more)
{
    to->tv_sec += more->tv_sec, to->tv_usec += more->tv_usec;
    if (to->tv_usec > 999999)
        to->tv_sec++, to->tv_usec -= 1000000;
}

void upvm_child_used(const struct rusage *its)
{
    add(&children.ru_utime, &its->ru_utime);
    add(&children.ru_stime, &its->ru_stime);
    if (children.ru_maxrss < its->ru_maxrss)
        children.ru_maxrss = its->ru_maxrss;
    children.ru_minflt += its->ru_minflt, children.ru_majflt += its->ru_majflt;
    children.ru_inblock += its->ru_inblock, children.ru_oublock += its->ru_oublock;
    children.ru_nvcsw += its->ru_nvcsw, children.ru_nivcsw += its->ru_nivcsw;
}

/* All of the program's own time counts as the user's. Its memory, page faults and waits are not
 * known apart from those of other programs. */
int getrusage(__rusage_who_t who, struct rusage *used)
{
    if (!upvm_is_virtual())
        return upvm_returns(upvm_call(SYS_getrusage, who, (long)used, 0, 0));
    switch ((int)who) {
    case RUSAGE_SELF:
    case RUSAGE_THREAD: *used = (struct rusage){.ru_utime = whole(upvm_used())}; return 0;
    case RUSAGE_CHILDREN: *used = children; return 0;
    default: return upvm_returns(-EINVAL);
    }
}

static clock_t ticks(uint64_t time)
{
    return time / (1000000000 / sysconf(_SC_CLK_TCK));
}

static clock_t ticks_of(const struct timeval *time)
{
    return ticks(time->tv_sec * 1000000000ul + time->tv_usec * 1000ul);
}

/* The result is a time since some moment, which may look like an error of the kernel's. */
clock_t times(struct tms *used)
{
    if (!upvm_is_virtual())
        return upvm_call(SYS_times, (long)used, 0, 0, 0);
    if (used)
        *used = (struct tms){.tms_utime = ticks(upvm_used()),
                             .tms_cutime = ticks_of(&children.ru_utime),
                             .tms_cstime = ticks_of(&children.ru_stime)};
    return upvm_call(SYS_times, 0, 0, 0, 0);
}

UPVM_ALSO(clock_getres, __clock_getres);
UPVM_ALSO(clock_getcpuclockid, __clock_getcpuclockid);
UPVM_ALSO(pthread_getcpuclockid, __pthread_getcpuclockid);
UPVM_ALSO(getrusage, __getrusage);
UPVM_ALSO(times, __times);
