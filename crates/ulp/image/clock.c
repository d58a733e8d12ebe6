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

int clock_gettime(clockid_t clock, struct timespec *time)
{
    uint64_t *table = upvm_table();
    long result;
    if (counts_processor(clock) && upvm_is_own_time(clock)) {
        uint64_t used = upvm_used();
        *time = (struct timespec){used / 1000000000, used % 1000000000};
        return 0;
    }
    if (table && table[UPVM_TABLE_CLOCK])
        result = ((reads *)table[UPVM_TABLE_CLOCK])(clock, time);
    else
        result = upvm_call(SYS_clock_gettime, clock, (long)time, 0, 0);
    if (result == 0)
        return 0;
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
