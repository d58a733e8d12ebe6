/* The clock, read without a system call, by the function that the kernel gives the host. That
 * function is in the host's memory. Its address is in the table, since another process has another
 * one; so an image cannot keep it (start.c). Clocks of this program's processor time are in
 * usage.c. */

#define _GNU_SOURCE
#include "calls.h"
#include "usage.h"
#include <sys/time.h>
#include <time.h>

typedef int reads(clockid_t clock, struct timespec *time);

/* Returns 1 if the clock may count processor time, of this program or another. */
static inline int counts_processor(clockid_t clock)
{
    return clock < 0 || clock == CLOCK_PROCESS_CPUTIME_ID || clock == CLOCK_THREAD_CPUTIME_ID;
}

/* Adds what the program's clock is ahead of this kernel's. A clock that counts from the kernel's
 * start goes on when the program moves to another host: the kernel there has its own start. */
static inline void go_on(const uint64_t *table, clockid_t clock, struct timespec *time)
{
    int64_t ahead;
    switch (clock) {
    case CLOCK_MONOTONIC:
    case CLOCK_MONOTONIC_RAW:
        ahead = (int64_t)table[UPVM_TABLE_AHEAD];
        break;
    case CLOCK_BOOTTIME:
    case CLOCK_BOOTTIME_ALARM:
        ahead = (int64_t)table[UPVM_TABLE_BOOT_AHEAD];
        break;
    default:
        return;
    }
    if (!ahead)
        return;
    int64_t seconds = time->tv_sec + ahead / 1000000000, part = time->tv_nsec + ahead % 1000000000;
    if (part >= 1000000000)
        seconds++, part -= 1000000000;
    else if (part < 0)
        seconds--, part += 1000000000;
    *time = (struct timespec){seconds, part};
}

int clock_gettime(clockid_t clock, struct timespec *time)
{
    uint64_t *table = upvm_table();
    long result;
    if (counts_processor(clock) && upvm_is_own_time(clock)) {
        uint64_t used = upvm_used();
        *time = (struct timespec){used / 1000000000, used % 1000000000};
        return 0;
    }
    /* The coarse clock is behind the exact one, by which the program has moved. */
    if (clock == CLOCK_MONOTONIC_COARSE && table && table[UPVM_TABLE_AHEAD])
        clock = CLOCK_MONOTONIC;
    if (table && table[UPVM_TABLE_CLOCK])
        result = ((reads *)table[UPVM_TABLE_CLOCK])(clock, time);
    else
        result = upvm_call(SYS_clock_gettime, clock, (long)time, 0, 0);
    if (result == 0) {
        if (table)
            go_on(table, clock, time);
        return 0;
    }
    errno = -result;
    return -1;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone)
{
    struct timespec now;
    /* The header promises that there is a time, so that gcc would leave out the check. */
    __asm__("" : "+r"(time));
    if (zone)
        *(struct timezone *)zone = (struct timezone){0, 0};
    if (!time)
        return 0;
    if (clock_gettime(CLOCK_REALTIME, &now) < 0)
        return -1;
    *time = (struct timeval){now.tv_sec, now.tv_nsec / 1000};
    return 0;
}

time_t time(time_t *seconds)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME_COARSE, &now);
    if (seconds)
        *seconds = now.tv_sec;
    return now.tv_sec;
}

/* libc has these functions by these names too. */
__attribute__((alias("clock_gettime"))) int __clock_gettime(clockid_t, struct timespec *);
__attribute__((alias("gettimeofday"))) int __gettimeofday(struct timeval *, void *);
