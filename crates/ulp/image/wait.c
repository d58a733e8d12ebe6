/* Reading, writing and sleeping. These would stop the process, and all of its tasks with it. So the
 * host learns what the program waits for, and runs others in the meantime (UPVM; V10 here).
 *
 * What is available at once comes from the kernel at once. Otherwise, if the kernel can report when
 * a call would not wait (a pipe, a terminal), the host waits for that. If not (a file that is not
 * in memory), the call itself runs on another thread. Between the kernel's report that something is
 * ready and the call no other task runs, so only another process can be faster. */

#define _GNU_SOURCE
#include "calls.h"
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

long (*upvm_writes)(int descriptor, const void *bytes, unsigned long count);
int (*upvm_reports)(const char *line, unsigned long length);

long upvm_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000 + now.tv_nsec;
}

void upvm_pause(void)
{
    uint64_t *table = upvm_table();
    if (table)
        UPVM_ASK(table, UPVM_ASK_YIELD, 0, 0, 0, 0);
}

long upvm_aside(long number, long a, long b, long c, long d, long e, long f)
{
    long words[7] = {number, a, b, c, d, e, f};
    uint64_t *table = upvm_table();
    if (!table)
        return upvm_call6(number, a, b, c, d, e, f);
    long result = UPVM_ASK(table, UPVM_ASK_ASIDE, (long)words, 0, 0, 0);
    /* Without a thread for it, all have to wait. */
    if (result == -(long)UPVM_NOT_ASIDE)
        return upvm_call6(number, a, b, c, d, e, f);
    return result;
}

long upvm_pause_for(int real)
{
    upvm_pause();
    return upvm_is_lost(real) ? -EBADF : 0;
}

/* Returns 1 if the first argument of a call that may be made again is a descriptor. */
static int is_of_descriptor(long number)
{
    switch (number) {
    case SYS_preadv2:
    case SYS_write:
    case SYS_fcntl:
    case SYS_flock:
    case SYS_recvfrom:
    case SYS_recvmsg:
    case SYS_sendto:
    case SYS_sendmsg: return 1;
    default: return 0;
    }
}

long upvm_aside_again(long number, long a, long b, long c, long d, long e, long f)
{
    long result;
    do {
        result = upvm_aside(number, a, b, c, d, e, f);
        if (upvm_again(result) && is_of_descriptor(number) && upvm_is_lost(a))
            return -EBADF;
    } while (upvm_again(result));
    return result;
}

int upvm_never_waits(int descriptor)
{
    long flags = upvm_call(SYS_fcntl, descriptor, F_GETFL, 0, 0);
    return flags < 0 || flags & O_NONBLOCK;
}

long upvm_ready(int descriptor, short events, long nanoseconds)
{
    uint64_t *table = upvm_table();
    if (!table) {
        struct pollfd one = {descriptor, events, 0};
        struct timespec time = {nanoseconds / 1000000000, nanoseconds % 1000000000};
        long found =
            upvm_call6(SYS_ppoll, (long)&one, 1, nanoseconds < 0 ? 0 : (long)&time, 0, 8, 0);
        return found > 0 ? 1 : found;
    }
    long came = UPVM_ASK(table, UPVM_ASK_READY, descriptor, events, nanoseconds, 0);
    /* Where a handler without SA_RESTART has run, the call ends. */
    return (came != -EINTR || upvm_restarts) && upvm_is_lost(descriptor) ? -EBADF : came;
}

static int is_ready(int descriptor, short events)
{
    struct pollfd one = {descriptor, events, 0};
    return upvm_poll_now(&one, 1) != 0;
}

static int is_file(int descriptor)
{
    struct stat about;
    return !upvm_call(SYS_fstat, descriptor, (long)&about, 0, 0) && S_ISREG(about.st_mode);
}

/* Reads what is there at once, or as soon as there is something. `offset` -1 stands for the
 * descriptor's position. */
static long read_some(int descriptor, const struct iovec *parts, int count, long offset)
{
    for (;;) {
        long done = upvm_call6(SYS_preadv2, descriptor, (long)parts, count, offset, 0, RWF_NOWAIT);
        if (done != -EAGAIN && done != -EOPNOTSUPP)
            return done;
        int ready = is_ready(descriptor, POLLIN);
        if (ready && done == -EAGAIN && is_file(descriptor))
            return upvm_aside_again(SYS_preadv2, descriptor, (long)parts, count, offset, 0, 0);
        if (ready && done == -EOPNOTSUPP)
            return upvm_call6(SYS_preadv2, descriptor, (long)parts, count, offset, 0, 0);
        if (upvm_never_waits(descriptor)) {
            long lost = upvm_pause_for(descriptor);
            return lost ? lost
                        : upvm_call6(SYS_preadv2, descriptor, (long)parts, count, offset, 0, 0);
        }
        /* Ready, though the call found nothing: try again. If the call still finds nothing,
         * readiness would be reported for ever, so the call runs aside. */
        if (ready && is_ready(descriptor, POLLIN)) {
            done = upvm_call6(SYS_preadv2, descriptor, (long)parts, count, offset, 0, RWF_NOWAIT);
            return done == -EAGAIN
                       ? upvm_aside_again(SYS_preadv2, descriptor, (long)parts, count, offset, 0, 0)
                       : done;
        }
        long came = upvm_ready(descriptor, POLLIN, -1);
        if (came < 0 && !upvm_again(came))
            return came;
    }
}

/* Reads all that was asked for from a file, even if the kernel has only some of it in memory. */
static long read_one(int descriptor, void *to, size_t count, long offset)
{
    struct iovec part = {to, count};
    long all = read_some(descriptor, &part, 1, offset);
    if (all <= 0 || (size_t)all == count || !is_file(descriptor))
        return all;
    while ((size_t)all < count) {
        struct iovec rest = {(char *)to + all, count - all};
        long more = read_some(descriptor, &rest, 1, offset < 0 ? offset : offset + all);
        if (more <= 0)
            break;
        all += more;
    }
    return all;
}

ssize_t read(int descriptor, void *to, size_t count)
{
    int real = upvm_real(descriptor);
    if (!upvm_is_virtual())
        return upvm_returns(upvm_call(SYS_read, real, (long)to, count, 0));
    return upvm_returns(read_one(real, to, count, -1));
}

ssize_t pread64(int descriptor, void *to, size_t count, off_t offset)
{
    int real = upvm_real(descriptor);
    if (!upvm_table() || offset < 0)
        return upvm_returns(upvm_call(SYS_pread64, real, (long)to, count, offset));
    return upvm_returns(read_one(real, to, count, offset));
}

/* Reads the parts one after the other. After a part that could not be filled, the rest gets
 * nothing. */
static long read_parts(int descriptor, const struct iovec *parts, int count, long offset)
{
    int real = upvm_real(descriptor);
    if (count < 0 || count > 1024)
        return -EINVAL;
    if (!is_file(real))
        return read_some(real, parts, count, offset);
    long all = 0;
    for (int part = 0; part < count; part++) {
        long some = read_one(real, parts[part].iov_base, parts[part].iov_len,
                             offset < 0 ? offset : offset + all);
        if (some < 0)
            return all ? all : some;
        all += some;
        if ((size_t)some < parts[part].iov_len)
            break;
    }
    return all;
}

ssize_t readv(int descriptor, const struct iovec *parts, int count)
{
    if (!upvm_table())
        return upvm_returns(upvm_call(SYS_readv, descriptor, (long)parts, count, 0));
    return upvm_returns(read_parts(descriptor, parts, count, -1));
}

ssize_t preadv64(int descriptor, const struct iovec *parts, int count, off_t offset)
{
    if (!upvm_table() || offset < 0)
        return upvm_returns(upvm_call6(SYS_preadv, upvm_real(descriptor), (long)parts, count,
                                       offset, 0, 0));
    return upvm_returns(read_parts(descriptor, parts, count, offset));
}

/* Writes everything, as a caller that may wait expects: what fits now, and the rest as soon as
 * there is room. */
static long write_all(int descriptor, const char *bytes, size_t count)
{
    size_t all = 0;
    do {
        struct iovec part = {(char *)bytes + all, count - all};
        long done = upvm_call6(SYS_pwritev2, descriptor, (long)&part, 1, -1, 0, RWF_NOWAIT);
        if (done == -EAGAIN || done == -EOPNOTSUPP) {
            int ready = is_ready(descriptor, POLLOUT);
            if (!ready && upvm_never_waits(descriptor)) {
                long lost = upvm_pause_for(descriptor);
                if (all || lost)
                    return all ? (long)all : lost;
                return upvm_call(SYS_write, descriptor, (long)part.iov_base, part.iov_len, 0);
            }
            if (!ready) {
                long came = upvm_ready(descriptor, POLLOUT, -1);
                if (came < 0 && !upvm_again(came))
                    return all ? (long)all : came;
                continue;
            }
            /* Files mostly take it at once. Anything else that reports room and takes nothing may
             * take long. */
            if (done == -EOPNOTSUPP || is_file(descriptor))
                done = upvm_call(SYS_write, descriptor, (long)part.iov_base, part.iov_len, 0);
            else if (upvm_never_waits(descriptor))
                done = upvm_call(SYS_write, descriptor, (long)part.iov_base, part.iov_len, 0);
            else
                done = upvm_aside_again(
                    SYS_write, descriptor, (long)part.iov_base, part.iov_len, 0, 0, 0);
        }
        if (done == -EPIPE)
            upvm_raise(SIGPIPE);
        if (done <= 0)
            return all ? (long)all : done;
        all += done;
    } while (all < count && !upvm_never_waits(descriptor));
    return all;
}

static int is_looked_at(int descriptor)
{
    return upvm_writes && (descriptor == STDOUT_FILENO || descriptor == STDERR_FILENO) &&
           upvm_real(descriptor) == descriptor;
}

/* The library above may take what goes to the standard streams. Files and terminals take the rest
 * at once, and pipes have room. */
ssize_t write(int descriptor, const void *bytes, size_t count)
{
    if (!upvm_is_virtual())
        return upvm_returns(upvm_call(SYS_write, descriptor, (long)bytes, count, 0));
    if (is_looked_at(descriptor)) {
        long written = upvm_writes(descriptor, bytes, count);
        if (written >= -1)
            return written;
    }
    return upvm_returns(write_all(upvm_real(descriptor), bytes, count));
}

ssize_t writev(int descriptor, const struct iovec *parts, int count)
{
    if (!upvm_table())
        return upvm_returns(upvm_call(SYS_writev, descriptor, (long)parts, count, 0));
    int real = upvm_real(descriptor);
    if (!is_looked_at(descriptor)) {
        long done = upvm_call6(SYS_pwritev2, real, (long)parts, count, -1, 0, RWF_NOWAIT);
        if (done == -EOPNOTSUPP && is_ready(real, POLLOUT))
            done = upvm_call(SYS_writev, real, (long)parts, count, 0);
        ssize_t whole = 0;
        for (int part = 0; part < count; part++)
            whole += parts[part].iov_len;
        if (done == whole || (done < 0 && done != -EAGAIN && done != -EOPNOTSUPP && done != -EPIPE))
            return upvm_returns(done);
        /* The rest goes part by part. */
        ssize_t all = done > 0 ? done : 0, skip = all;
        for (int part = 0; part < count; part++) {
            if (skip >= (ssize_t)parts[part].iov_len) {
                skip -= parts[part].iov_len;
                continue;
            }
            long length = parts[part].iov_len - skip;
            long written = write_all(real, (const char *)parts[part].iov_base + skip, length);
            skip = 0;
            if (written < 0)
                return all ? all : upvm_returns(written);
            all += written;
            if (written < length)
                break;
        }
        return all;
    }
    ssize_t all = 0;
    for (int part = 0; part < count; part++) {
        ssize_t written = write(descriptor, parts[part].iov_base, parts[part].iov_len);
        if (written < 0)
            return all ? all : written;
        all += written;
    }
    return all;
}

void upvm_report(const char *line, unsigned long length)
{
    if (upvm_is_virtual() && upvm_reports &&
        upvm_real(STDERR_FILENO) == STDERR_FILENO && upvm_reports(line, length) >= 0)
        return;
    int real = upvm_real(STDERR_FILENO);
    struct iovec part = {(char *)line, length};
    /* The host ignores SIGPIPE. */
    long done = upvm_call6(SYS_pwritev2, real, (long)&part, 1, -1, 0, RWF_NOWAIT);
    /* A file mostly takes it at once. */
    if ((done == -EOPNOTSUPP && is_ready(real, POLLOUT)) || (done == -EAGAIN && is_file(real)))
        upvm_call(SYS_write, real, (long)line, length, 0);
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *until, struct timespec *left)
{
    uint64_t *table = upvm_table();
    if (!table)
        return -upvm_call(SYS_clock_nanosleep, clock, flags, (long)until, (long)left);
    if (clock != CLOCK_REALTIME && clock != CLOCK_MONOTONIC && clock != CLOCK_BOOTTIME &&
        clock != CLOCK_TAI)
        return upvm_call(SYS_clock_getres, clock, 0, 0, 0) < 0 ? EINVAL : EOPNOTSUPP;
    if (!until)
        return EFAULT;
    if (until->tv_sec < 0 || until->tv_nsec < 0 || until->tv_nsec > 999999999)
        return EINVAL;
    struct timespec now = {0, 0};
    if (flags & TIMER_ABSTIME)
        clock_gettime(clock, &now);
    long sleep;
    if (__builtin_mul_overflow(until->tv_sec - now.tv_sec, 1000000000L, &sleep) ||
        __builtin_add_overflow(sleep, until->tv_nsec - now.tv_nsec, &sleep))
        sleep = INT64_MAX;
    long end = 0;
    if (left && !(flags & TIMER_ABSTIME) && __builtin_add_overflow(upvm_now(), sleep, &end))
        end = INT64_MAX;
    long done = UPVM_ASK(table, UPVM_ASK_SLEEP, sleep > 0 ? sleep : 0, 0, 0, 0);
    if (left && !(flags & TIMER_ABSTIME)) {
        long rest = done < 0 ? end - upvm_now() : 0;
        rest = rest > 0 ? rest : 0;
        *left = (struct timespec){rest / 1000000000, rest % 1000000000};
    }
    return -done;
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
    struct timespec time = {seconds, 0}, left = {0, 0};
    if (!nanosleep(&time, &left))
        return 0;
    return left.tv_sec + (left.tv_nsec >= 500000000);
}

int usleep(useconds_t microseconds)
{
    struct timespec time = {microseconds / 1000000, microseconds % 1000000 * 1000};
    return nanosleep(&time, 0);
}

int sched_yield(void)
{
    upvm_pause();
    return 0;
}

int pause(void)
{
    uint64_t *table = upvm_table();
    if (!table)
        return upvm_returns(upvm_call(SYS_pause, 0, 0, 0, 0));
    return upvm_returns(UPVM_ASK(table, UPVM_ASK_SLEEP, -1, 0, 0, 0));
}

UPVM_ALSO(read, __read);
UPVM_ALSO(read, __libc_read);
UPVM_ALSO(readv, __readv);
UPVM_ALSO(pread64, pread);
UPVM_ALSO(pread64, __pread);
UPVM_ALSO(pread64, __pread64);
UPVM_ALSO(pread64, __libc_pread);
UPVM_ALSO(pread64, __libc_pread64);
UPVM_ALSO(preadv64, preadv);
UPVM_ALSO(write, __write);
UPVM_ALSO(write, __libc_write);
UPVM_ALSO(writev, __writev);
UPVM_ALSO(nanosleep, __nanosleep);
UPVM_ALSO(clock_nanosleep, __clock_nanosleep);
UPVM_ALSO(sleep, __sleep);
UPVM_ALSO(sched_yield, __sched_yield);
UPVM_ALSO(pause, __libc_pause);
