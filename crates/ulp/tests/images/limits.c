/* Its limits, priority and name: what it sets is its own, and what it cannot have is refused. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
#include "image.h"

#define CHECK(what)                                                \
    do {                                                           \
        if (!(what)) {                                             \
            printf("line %d: %s, errno %d\n", __LINE__, #what, errno); \
            exit(1);                                               \
        }                                                          \
    } while (0)
#define IS_REFUSED(call, error) CHECK((errno = 0, (call) == -1) && errno == (error))

extern int upvm_most_files;

static volatile int come;

static void count(int number)
{
    (void)number;
    come++;
}

static void spend(rlim_t seconds, rlim_t most)
{
    struct rlimit limit = {seconds, most}, now;
    CHECK(setrlimit(RLIMIT_CPU, &limit) == 0 && getrlimit(RLIMIT_CPU, &now) == 0);
    CHECK(now.rlim_cur == seconds && now.rlim_max == most);
    for (;;)
        ;
}

static void files(int number)
{
    struct rlimit old, limit, now;
    CHECK(getrlimit(RLIMIT_NOFILE, &old) == 0 && old.rlim_cur == old.rlim_max);
    CHECK(old.rlim_cur > 200 && upvm_most_files == (int)old.rlim_cur &&
          getdtablesize() == (int)old.rlim_cur);
    limit = (struct rlimit){100 + number, 200};
    CHECK(prlimit(0, RLIMIT_NOFILE, &limit, &now) == 0 && now.rlim_cur == old.rlim_cur);
    CHECK(prlimit(getpid(), RLIMIT_NOFILE, 0, &now) == 0 && now.rlim_cur == limit.rlim_cur);
    CHECK(now.rlim_max == 200 && upvm_most_files == 100 + number);
    CHECK(sysconf(_SC_OPEN_MAX) == 100 + number);
    limit = (struct rlimit){201, 201};
    IS_REFUSED(setrlimit(RLIMIT_NOFILE, &limit), EPERM);
    limit = (struct rlimit){101, 100};
    IS_REFUSED(setrlimit(RLIMIT_NOFILE, &limit), EINVAL);
    CHECK(getrlimit(RLIMIT_NOFILE, &now) == 0 && now.rlim_cur == (rlim_t)(100 + number));
}

static void others(pid_t parent)
{
    static const int all[] = {RLIMIT_FSIZE,   RLIMIT_DATA,  RLIMIT_STACK,      RLIMIT_NPROC,
                              RLIMIT_MEMLOCK, RLIMIT_AS,    RLIMIT_SIGPENDING, RLIMIT_MSGQUEUE,
                              RLIMIT_NICE,    RLIMIT_RTPRIO};
    struct rlimit limit, now;
    for (unsigned one = 0; one < sizeof all / sizeof *all; one++) {
        CHECK(getrlimit(all[one], &limit) == 0 && setrlimit(all[one], &limit) == 0);
        limit.rlim_cur = limit.rlim_cur ? limit.rlim_cur - 1 : 0;
        limit.rlim_max = limit.rlim_max ? limit.rlim_max - 1 : 1;
        IS_REFUSED(setrlimit(all[one], &limit), EPERM);
    }
    CHECK(getrlimit(RLIMIT_STACK, &limit) == 0 && limit.rlim_cur == limit.rlim_max);
    uint64_t *table = upvm_table(), here = (uint64_t)&limit;
    CHECK(here > (uint64_t)table - limit.rlim_cur && here < (uint64_t)table);
    CHECK((uint64_t)table - limit.rlim_cur == table[UPVM_TABLE_STACK]);
    limit = (struct rlimit){RLIM_INFINITY, RLIM_INFINITY};
    CHECK(setrlimit(RLIMIT_CORE, &limit) == 0 && getrlimit(RLIMIT_CORE, &now) == 0);
    CHECK(now.rlim_cur == 0);
    IS_REFUSED(getrlimit(99, &now), EINVAL);
    /* Limits of another process are the kernel's. */
    CHECK(prlimit(parent, RLIMIT_NOFILE, 0, &now) == 0 && now.rlim_cur > 200);
}

static void priorities(pid_t parent)
{
    int now = (errno = 0, getpriority(PRIO_PROCESS, 0));
    CHECK(errno == 0 && now == getpriority(PRIO_PROCESS, getpid()) && nice(0) == now);
    CHECK(setpriority(PRIO_PROCESS, 0, now) == 0 && setpriority(PRIO_PROCESS, getpid(), now) == 0);
    int more = now > 0 ? -1 : 1;
    IS_REFUSED(setpriority(PRIO_PROCESS, 0, now + more), EPERM);
    IS_REFUSED(setpriority(PRIO_PGRP, 0, now + more), EPERM);
    IS_REFUSED(nice(more), EPERM);
    CHECK(getpriority(PRIO_PROCESS, 0) == now && getpriority(PRIO_PROCESS, parent) <= 19);
}

static void names(int number)
{
    char own[32], text[32];
    CHECK(prctl(PR_GET_NAME, text) == 0 && !strcmp(text, "limits"));
    snprintf(own, sizeof own, "%d is a long name for one", number);
    CHECK(prctl(PR_SET_NAME, own) == 0);
    own[15] = 0;
    UPVM_ASK(upvm_table(), UPVM_ASK_OWN, 0, 0, 0, 0);
    CHECK(prctl(PR_GET_NAME, text) == 0 && !strcmp(text, own));
    CHECK(prctl(PR_GET_DUMPABLE) >= 0 && prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) >= 0);
    CHECK(prctl(PR_CAPBSET_READ, 0, 0, 0, 0) >= 0);
    IS_REFUSED(prctl(PR_SET_DUMPABLE, 0), ENOSYS);
    IS_REFUSED(prctl(PR_SET_PDEATHSIG, SIGKILL), ENOSYS);
}

static void timers(void)
{
    struct itimerval some = {{0, 0}, {1, 0}}, none = {{0, 0}, {0, 0}}, now;
    timer_t timer;
    CHECK(getitimer(ITIMER_PROF, &now) == 0 && now.it_value.tv_sec == 0);
    CHECK(setitimer(ITIMER_VIRTUAL, &none, 0) == 0);
    IS_REFUSED(setitimer(ITIMER_VIRTUAL, &some, 0), ENOSYS);
    IS_REFUSED(setitimer(ITIMER_PROF, &some, 0), ENOSYS);
    IS_REFUSED(timer_create(CLOCK_MONOTONIC, 0, &timer), ENOSYS);
}

int main(int argc, char **argv)
{
    int number = atoi(argv[2]), parent = argc > 3 ? atoi(argv[3]) : 0;
    if (!strcmp(argv[1], "soft"))
        spend(0, RLIM_INFINITY);
    if (!strcmp(argv[1], "hard")) {
        CHECK(signal(SIGXCPU, count) == SIG_DFL);
        struct rlimit limit = {0, 1};
        CHECK(setrlimit(RLIMIT_CPU, &limit) == 0);
        while (!come)
            ;
        UPVM_ASK(upvm_table(), UPVM_ASK_OWN, come, 0, 0, 0);
        for (;;)
            ;
    }
    files(number);
    names(number);
    others(parent);
    priorities(parent);
    timers();
    return 0;
}
