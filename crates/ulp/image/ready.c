/* Waiting for one of several descriptors. What is ready at once is returned at once. Otherwise the
 * host waits for one descriptor that stands for all of them (epoll(7)), and runs others. */

#define _GNU_SOURCE
#include "calls.h"
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <unistd.h>

/* The time left until `end`; -1 if there is no end. */
static long rest(long end)
{
    if (end < 0)
        return -1;
    long left = end - upvm_now();
    return left > 0 ? left : 0;
}

static long after(long nanoseconds)
{
    long end;
    if (nanoseconds < 0 || __builtin_add_overflow(upvm_now(), nanoseconds, &end))
        return -1;
    return end;
}

/* Returns a descriptor that is ready when one of these is, or an error. */
static long one_for(const struct pollfd *all, unsigned long count)
{
    long epoll = upvm_hold(upvm_call(SYS_epoll_create1, EPOLL_CLOEXEC, 0, 0, 0));
    for (unsigned long one = 0; one < count && epoll >= 0; one++) {
        if (all[one].fd < 0)
            continue;
        struct epoll_event event = {.events = (unsigned short)all[one].events};
        long done = upvm_call(SYS_epoll_ctl, epoll, EPOLL_CTL_ADD, all[one].fd, (long)&event);
        if (done == -EEXIST) {
            /* The descriptor is listed twice: both sets of events are wanted. */
            for (unsigned long other = 0; other < one; other++)
                if (all[other].fd == all[one].fd)
                    event.events |= (unsigned short)all[other].events;
            done = upvm_call(SYS_epoll_ctl, epoll, EPOLL_CTL_MOD, all[one].fd, (long)&event);
        }
        if (done < 0) {
            upvm_let_go(epoll);
            return done;
        }
    }
    return epoll;
}

long upvm_poll_real(struct pollfd *all, unsigned long count, long nanoseconds)
{
    long end = after(nanoseconds);
    for (;;) {
        long found = upvm_poll_now(all, count);
        if (found)
            return found;
        long left = rest(end);
        if (!left) {
            /* A program that polls again and again waits for others. */
            if (!nanoseconds)
                upvm_pause();
            return 0;
        }
        long one = count == 1 && all[0].fd >= 0 ? -1 : one_for(all, count);
        if (one < 0 && (count != 1 || all[0].fd < 0))
            return one;
        long came =
            upvm_ready(one < 0 ? all[0].fd : (int)one, one < 0 ? all[0].events : POLLIN, left);
        if (one >= 0)
            upvm_let_go(one);
        /* Never restarted, with handlers or without, as in the kernel. */
        if (came < 0)
            return came == -EBADF ? -EINTR : came;
    }
}

static long polled(struct pollfd *all, unsigned long count, long nanoseconds)
{
    int given[count + 1];
    for (unsigned long one = 0; one < count; one++) {
        given[one] = all[one].fd;
        /* The kernel is to report a descriptor that is not open, and ignores those below 0. */
        if (given[one] >= 0 && (all[one].fd = upvm_real(given[one])) < 0)
            all[one].fd = INT_MAX;
    }
    long found = upvm_poll_real(all, count, nanoseconds);
    for (unsigned long one = 0; one < count; one++)
        all[one].fd = given[one];
    return found;
}

int poll(struct pollfd *all, nfds_t count, int milliseconds)
{
    if (!upvm_table() || count > 65536)
        return upvm_returns(upvm_call(SYS_poll, (long)all, count, milliseconds, 0));
    return upvm_returns(polled(all, count, milliseconds < 0 ? -1 : milliseconds * 1000000L));
}

static long nanoseconds(const struct timespec *time)
{
    long all;
    if (!time)
        return -1;
    if (__builtin_mul_overflow(time->tv_sec, 1000000000L, &all) ||
        __builtin_add_overflow(all, time->tv_nsec, &all))
        return LONG_MAX;
    return all;
}

static int is_time(const struct timespec *time)
{
    return !time || (time->tv_sec >= 0 && time->tv_nsec >= 0 && time->tv_nsec <= 999999999);
}

int ppoll(struct pollfd *all, nfds_t count, const struct timespec *time, const sigset_t *mask)
{
    if (!upvm_table() || count > 65536)
        return upvm_returns(upvm_call6(SYS_ppoll, (long)all, count, (long)time, (long)mask, 8, 0));
    if (!is_time(time))
        return upvm_returns(-EINVAL);
    if (!mask)
        return upvm_returns(polled(all, count, nanoseconds(time)));
    /* A signal that waited for this mask is handled here; it would have ended the wait. */
    sigset_t before;
    int interrupted = upvm_masked(mask, &before);
    long found = polled(all, count, interrupted ? 0 : nanoseconds(time));
    sigprocmask(SIG_SETMASK, &before, 0);
    return upvm_returns(!found && interrupted ? -EINTR : found);
}

/* As in the kernel: which bits of a set are which events. */
#define READS (POLLIN | POLLRDNORM | POLLRDBAND | POLLHUP | POLLERR)
#define WRITES (POLLOUT | POLLWRNORM | POLLWRBAND | POLLERR)

static int selected(int count, fd_set *reads, fd_set *writes, fd_set *others,
                    const struct timespec *time, const sigset_t *mask)
{
    if (count < 0 || !is_time(time))
        return upvm_returns(-EINVAL);
    if (count > FD_SETSIZE)
        count = FD_SETSIZE;
    struct pollfd all[FD_SETSIZE];
    int wanted = 0;
    for (int one = 0; one < count; one++) {
        short events = (reads && FD_ISSET(one, reads) ? POLLIN : 0) |
                       (writes && FD_ISSET(one, writes) ? POLLOUT : 0) |
                       (others && FD_ISSET(one, others) ? POLLPRI : 0);
        if (events)
            all[wanted++] = (struct pollfd){one, events, 0};
    }
    int found = ppoll(all, wanted, time, mask);
    if (found < 0)
        return found;
    for (int one = 0; one < wanted; one++)
        if (all[one].revents & POLLNVAL)
            return upvm_returns(-EBADF);
    fd_set *sets[3] = {reads, writes, others};
    short events[3] = {READS, WRITES, POLLPRI};
    int bits = 0;
    for (int set = 0; set < 3; set++) {
        if (!sets[set])
            continue;
        fd_set before = *sets[set];
        for (int one = 0; one < count; one++)
            FD_CLR(one, sets[set]);
        for (int one = 0; one < wanted; one++)
            if (FD_ISSET(all[one].fd, &before) && all[one].revents & events[set]) {
                FD_SET(all[one].fd, sets[set]);
                bits++;
            }
    }
    return bits;
}

int select(int count, fd_set *reads, fd_set *writes, fd_set *others, struct timeval *time)
{
    if (!upvm_table())
        return upvm_returns(
            upvm_call6(SYS_select, count, (long)reads, (long)writes, (long)others, (long)time, 0));
    if (time && (time->tv_sec < 0 || time->tv_usec < 0))
        return upvm_returns(-EINVAL);
    struct timespec whole = {0, 0};
    long end = -1;
    if (time) {
        whole = (struct timespec){time->tv_sec + time->tv_usec / 1000000,
                                  time->tv_usec % 1000000 * 1000};
        end = after(nanoseconds(&whole));
    }
    int found = selected(count, reads, writes, others, time ? &whole : 0, 0);
    if (time && end >= 0) {
        long left = rest(end) / 1000;
        *time = (struct timeval){left / 1000000, left % 1000000};
    }
    return found;
}

int pselect(int count, fd_set *reads, fd_set *writes, fd_set *others, const struct timespec *time,
            const sigset_t *mask)
{
    return selected(count, reads, writes, others, time, mask);
}

static int epolled(int number, struct epoll_event *events, int most, long time,
                   const sigset_t *mask)
{
    int epoll = upvm_real(number);
    if (!upvm_table())
        return upvm_returns(upvm_call6(SYS_epoll_pwait, epoll, (long)events, most,
                                       time < 0 ? -1 : time / 1000000, (long)mask, 8));
    long end = after(time);
    sigset_t before;
    int interrupted = 0;
    if (mask)
        interrupted = upvm_masked(mask, &before);
    for (;;) {
        long found;
        do
            found = upvm_call6(SYS_epoll_pwait, epoll, (long)events, most, 0, 0, 8);
        while (found == -EINTR);
        long left = rest(end);
        if (!found && interrupted)
            found = -EINTR;
        if (!found && !left && !time)
            upvm_pause();
        if (!found && left) {
            found = upvm_ready(epoll, POLLIN, left);
            if (found >= 0)
                continue;
        }
        if (mask)
            sigprocmask(SIG_SETMASK, &before, 0);
        return upvm_returns(found);
    }
}

int epoll_ctl(int epoll, int what, int descriptor, struct epoll_event *event)
{
    return upvm_returns(
        upvm_call(SYS_epoll_ctl, upvm_real(epoll), what, upvm_real(descriptor), (long)event));
}

int epoll_wait(int epoll, struct epoll_event *events, int most, int milliseconds)
{
    return epolled(epoll, events, most, milliseconds < 0 ? -1 : milliseconds * 1000000L, 0);
}

int epoll_pwait(int epoll, struct epoll_event *events, int most, int milliseconds,
                const sigset_t *mask)
{
    return epolled(epoll, events, most, milliseconds < 0 ? -1 : milliseconds * 1000000L, mask);
}

int epoll_pwait2(int epoll, struct epoll_event *events, int most, const struct timespec *time,
                 const sigset_t *mask)
{
    return epolled(epoll, events, most, nanoseconds(time), mask);
}

UPVM_ALSO(poll, __poll);
UPVM_ALSO(poll, __libc_poll);
UPVM_ALSO(ppoll, __ppoll);
UPVM_ALSO(select, __select);
UPVM_ALSO(select, __libc_select);
UPVM_ALSO(pselect, __pselect);
