/* Calls that would stop the process, and all of its tasks with it: the host is told what is waited for, and runs others
 * meanwhile (V10). What is ready goes to the kernel at once. */

#define _GNU_SOURCE
#include "image.h"
#include <errno.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

long (*upvm_writes)(int descriptor, const void *bytes, unsigned long count);

static long call(long number, long a, long b, long c, long d)
{
    long result;
    register long fourth __asm__("r10") = d;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth) : "rcx", "r11", "memory");
    return result;
}

static long done(long result)
{
    if (result >= 0)
        return result;
    errno = -result;
    return -1;
}

/* Until the descriptor is ready, or has an error, which the call itself is to tell. */
static void until_ready(int descriptor, short events)
{
    uint64_t *table = upvm_table();
    struct pollfd one = {descriptor, events, 0};
    if (table && call(SYS_poll, (long)&one, 1, 0, 0) == 0)
        UPVM_ASK(table, UPVM_ASK_READY, descriptor, events, 0, 0);
}

ssize_t read(int descriptor, void *to, size_t count)
{
    until_ready(descriptor, POLLIN);
    return done(call(SYS_read, descriptor, (long)to, count, 0));
}

ssize_t readv(int descriptor, const struct iovec *parts, int count)
{
    until_ready(descriptor, POLLIN);
    return done(call(SYS_readv, descriptor, (long)parts, count, 0));
}

/* Output is often looked at by others than who reads it: files and terminals take it at once, and pipes have room. */
ssize_t write(int descriptor, const void *bytes, size_t count)
{
    if (upvm_writes && (descriptor == STDOUT_FILENO || descriptor == STDERR_FILENO)) {
        long written = upvm_writes(descriptor, bytes, count);
        if (written >= -1)
            return written;
    }
    until_ready(descriptor, POLLOUT);
    return done(call(SYS_write, descriptor, (long)bytes, count, 0));
}

ssize_t writev(int descriptor, const struct iovec *parts, int count)
{
    if (upvm_writes && (descriptor == STDOUT_FILENO || descriptor == STDERR_FILENO)) {
        ssize_t all = 0;
        for (int part = 0; part < count; part++) {
            ssize_t written = write(descriptor, parts[part].iov_base, parts[part].iov_len);
            if (written < 0)
                return all ? all : written;
            all += written;
        }
        return all;
    }
    until_ready(descriptor, POLLOUT);
    return done(call(SYS_writev, descriptor, (long)parts, count, 0));
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *until, struct timespec *left)
{
    uint64_t *table = upvm_table();
    if (!table)
        return -call(SYS_clock_nanosleep, clock, flags, (long)until, (long)left);
    if (!until || until->tv_nsec < 0 || until->tv_nsec > 999999999)
        return EINVAL;
    struct timespec now = {0, 0};
    if (flags & TIMER_ABSTIME)
        clock_gettime(clock, &now);
    long sleep = (until->tv_sec - now.tv_sec) * 1000000000 + until->tv_nsec - now.tv_nsec;
    UPVM_ASK(table, UPVM_ASK_SLEEP, sleep > 0 ? sleep : 0, 0, 0, 0);
    if (left && !(flags & TIMER_ABSTIME))
        *left = (struct timespec){0, 0};
    return 0;
}

int nanosleep(const struct timespec *time, struct timespec *left)
{
    int result = clock_nanosleep(CLOCK_REALTIME, 0, time, left);
    if (!result)
        return 0;
    errno = result;
    return -1;
}

unsigned int sleep(unsigned int seconds)
{
    struct timespec time = {seconds, 0};
    nanosleep(&time, 0);
    return 0;
}

int usleep(useconds_t microseconds)
{
    struct timespec time = {microseconds / 1000000, microseconds % 1000000 * 1000};
    return nanosleep(&time, 0);
}

/* libc has them by these names, too. */
__attribute__((alias("read"))) ssize_t __read(int, void *, size_t);
__attribute__((alias("read"))) ssize_t __libc_read(int, void *, size_t);
__attribute__((alias("readv"))) ssize_t __readv(int, const struct iovec *, int);
__attribute__((alias("write"))) ssize_t __write(int, const void *, size_t);
__attribute__((alias("write"))) ssize_t __libc_write(int, const void *, size_t);
__attribute__((alias("writev"))) ssize_t __writev(int, const struct iovec *, int);
__attribute__((alias("nanosleep"))) int __nanosleep(const struct timespec *, struct timespec *);
__attribute__((alias("clock_nanosleep"))) int __clock_nanosleep(clockid_t, int, const struct timespec *, struct timespec *);
