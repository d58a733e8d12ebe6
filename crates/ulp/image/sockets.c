/* Sockets. What can be sent or received at once, is. Otherwise the host waits for the socket, or,
 * if only the call itself can wait for the right thing, the call runs on another thread. */

#define _GNU_SOURCE
#include "calls.h"
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

/* The kernel's name, which libc lacks. */
#ifndef SCM_PIDFD
#define SCM_PIDFD 4
#endif

/* Returns 1 if the socket has a timeout (SO_RCVTIMEO, SO_SNDTIMEO), which the kernel counts. */
static int has_time(int descriptor, int option)
{
    struct timeval time = {0, 0};
    socklen_t length = sizeof time;
    return !upvm_call6(
               SYS_getsockopt, descriptor, SOL_SOCKET, option, (long)&time, (long)&length, 0) &&
           (time.tv_sec || time.tv_usec);
}

/* Makes a call without waiting in it, as long as that is possible. Its flags are in
 * `args[flags_at]`. */
static long without_waiting(long number, int descriptor, long *args, int flags_at, short events)
{
    long flags = args[flags_at];
    for (;;) {
        args[flags_at] = flags | MSG_DONTWAIT;
        long done = upvm_call6(number, descriptor, args[0], args[1], args[2], args[3], args[4]);
        args[flags_at] = flags;
        if (done != -EAGAIN)
            return done;
        if (flags & MSG_DONTWAIT || upvm_never_waits(descriptor)) {
            upvm_pause();
            return done;
        }
        struct pollfd one = {descriptor, events, 0};
        /* Ready, but the call would wait all the same: only the call itself knows for what. */
        if (upvm_poll_now(&one, 1) != 0 ||
            has_time(descriptor, events == POLLIN ? SO_RCVTIMEO : SO_SNDTIMEO))
            return upvm_aside_again(
                number, descriptor, args[0], args[1], args[2], args[3], args[4]);
        long came = upvm_ready(descriptor, events, -1);
        if (came < 0 && !upvm_again(came))
            return came;
    }
}

static long told(long done, int flags)
{
    if (done == -EPIPE && !(flags & MSG_NOSIGNAL))
        upvm_raise(SIGPIPE);
    return upvm_returns(done);
}

ssize_t recvfrom(int descriptor, void *to, size_t count, int flags, struct sockaddr *from,
                 socklen_t *length)
{
    long args[5] = {(long)to, count, flags, (long)from, (long)length};
    int real = upvm_real(descriptor);
    if (!upvm_is_virtual())
        return upvm_returns(
            upvm_call6(SYS_recvfrom, real, args[0], args[1], args[2], args[3], args[4]));
    /* The kernel collects the whole message. */
    if (flags & MSG_WAITALL)
        return upvm_returns(
            upvm_aside_again(SYS_recvfrom, real, args[0], args[1], args[2], args[3], args[4]));
    return upvm_returns(without_waiting(SYS_recvfrom, real, args, 2, POLLIN));
}

ssize_t recv(int descriptor, void *to, size_t count, int flags)
{
    return recvfrom(descriptor, to, count, flags, 0, 0);
}

/* Descriptors that came with a message now belong to this program. For those that it may not have,
 * the list is cut off, as by the kernel. */
static void take_all(struct msghdr *message, struct cmsghdr *part, int inherited)
{
    int *all = (int *)CMSG_DATA(part), error = errno, taken = 0;
    int count = (part->cmsg_len - CMSG_LEN(0)) / sizeof *all;
    for (int one = 0; one < count; one++) {
        int number = upvm_taken(all[one], inherited);
        if (number >= 0)
            all[taken++] = number;
    }
    if (taken < count) {
        part->cmsg_len = CMSG_LEN(taken * sizeof *all);
        message->msg_flags |= MSG_CTRUNC;
    }
    errno = error;
}

static long with_descriptors(long done, struct msghdr *message, int flags)
{
    struct cmsghdr *next;
    for (struct cmsghdr *part = done < 0 ? 0 : CMSG_FIRSTHDR(message); part; part = next) {
        next = CMSG_NXTHDR(message, part);
        if (part->cmsg_level != SOL_SOCKET)
            continue;
        if (part->cmsg_type == SCM_RIGHTS)
            take_all(message, part, !(flags & MSG_CMSG_CLOEXEC));
        else if (part->cmsg_type == SCM_PIDFD)
            take_all(message, part, 0);
    }
    return done;
}

static long received(int real, struct msghdr *message, int flags)
{
    long args[5] = {(long)message, flags | MSG_CMSG_CLOEXEC, 0, 0, 0};
    long done = flags & MSG_WAITALL
                    ? upvm_aside_again(SYS_recvmsg, real, args[0], args[1], 0, 0, 0)
                    : without_waiting(SYS_recvmsg, real, args, 1, POLLIN);
    return with_descriptors(done, message, flags);
}

ssize_t recvmsg(int descriptor, struct msghdr *message, int flags)
{
    int real = upvm_real(descriptor);
    return upvm_returns(upvm_is_virtual()
                            ? received(real, message, flags)
                            : upvm_call(SYS_recvmsg, real, (long)message, flags, 0));
}

/* As in the kernel: the time counts only when a message has come, and an error after the first
 * message is one of the next call. */
int recvmmsg(int descriptor, struct mmsghdr *messages, unsigned int count, int flags,
             struct timespec *time)
{
    int real = upvm_real(descriptor), all = 0;
    if (!upvm_is_virtual() || !count || !upvm_is_address(messages))
        return upvm_returns(
            upvm_call6(SYS_recvmmsg, real, (long)messages, count, flags, (long)time, 0));
    long end = time ? upvm_now() + time->tv_sec * 1000000000 + time->tv_nsec : 0;
    while (all < (int)count) {
        int how = flags & ~MSG_WAITFORONE;
        if (all && flags & MSG_WAITFORONE)
            how |= MSG_DONTWAIT;
        long done = received(real, &messages[all].msg_hdr, how);
        if (done < 0)
            return all ? all : upvm_returns(done);
        messages[all++].msg_len = done;
        long left = time ? end - upvm_now() : 1;
        if (time)
            *time = left > 0 ? (struct timespec){left / 1000000000, left % 1000000000}
                             : (struct timespec){0, 0};
        if (left <= 0 || messages[all - 1].msg_hdr.msg_flags & MSG_OOB)
            break;
    }
    return all;
}

/* A stream takes what fits now and the rest later, as a caller that may wait expects. */
ssize_t sendto(int descriptor, const void *bytes, size_t count, int flags,
               const struct sockaddr *to, socklen_t length)
{
    int real = upvm_real(descriptor);
    if (!upvm_is_virtual())
        return upvm_returns(
            upvm_call6(SYS_sendto, real, (long)bytes, count, flags, (long)to, length));
    size_t all = 0;
    for (;;) {
        long args[5] = {(long)bytes + all, count - all, flags, (long)to, length};
        long done = without_waiting(SYS_sendto, real, args, 2, POLLOUT);
        if (done < 0)
            return all ? (ssize_t)all : told(done, flags);
        all += done;
        if (all >= count || flags & MSG_DONTWAIT || upvm_never_waits(real))
            return all;
    }
}

ssize_t send(int descriptor, const void *bytes, size_t count, int flags)
{
    return sendto(descriptor, bytes, count, flags, 0, 0);
}

static int has_descriptors(const struct msghdr *message)
{
    for (struct cmsghdr *part = CMSG_FIRSTHDR(message); part;
         part = CMSG_NXTHDR((struct msghdr *)message, part))
        if (part->cmsg_level == SOL_SOCKET && part->cmsg_type == SCM_RIGHTS)
            return 1;
    return 0;
}

/* Maximum number of bytes that may go along with a message with descriptors, of which the kernel
 * takes 253. */
#define ALONG 4096

/* The message goes with the process's descriptors, in a copy of what goes along. */
static __attribute__((noinline)) long sent_with(int real, const struct msghdr *message, int flags)
{
    _Alignas(struct cmsghdr) char along[ALONG];
    struct msghdr copy = *message;
    if (copy.msg_controllen > sizeof along)
        return -EINVAL;
    memcpy(along, message->msg_control, copy.msg_controllen);
    copy.msg_control = along;
    for (struct cmsghdr *part = CMSG_FIRSTHDR(&copy); part; part = CMSG_NXTHDR(&copy, part)) {
        if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS)
            continue;
        /* The kernel refuses a wrong length. */
        size_t room = (size_t)(along + copy.msg_controllen - (char *)CMSG_DATA(part));
        size_t bytes = part->cmsg_len - CMSG_LEN(0);
        int *all = (int *)CMSG_DATA(part);
        for (size_t one = 0; one < (bytes < room ? bytes : room) / sizeof *all; one++)
            all[one] = upvm_real(all[one]);
    }
    long args[5] = {(long)&copy, flags, 0, 0, 0};
    return without_waiting(SYS_sendmsg, real, args, 1, POLLOUT);
}

/* A message in parts: once a few bytes have gone, the rest goes part by part. */
ssize_t sendmsg(int descriptor, const struct msghdr *message, int flags)
{
    long args[5] = {(long)message, flags, 0, 0, 0};
    int real = upvm_real(descriptor);
    if (!upvm_is_virtual() || !upvm_is_address(message))
        return upvm_returns(upvm_call(SYS_sendmsg, real, (long)message, flags, 0));
    long done = has_descriptors(message) ? sent_with(real, message, flags)
                                         : without_waiting(SYS_sendmsg, real, args, 1, POLLOUT);
    size_t all = 0;
    for (size_t part = 0; part < message->msg_iovlen; part++)
        all += message->msg_iov[part].iov_len;
    if (done < 0 || (size_t)done == all || flags & MSG_DONTWAIT || upvm_never_waits(real))
        return told(done, flags);
    size_t skip = done;
    for (size_t part = 0; part < message->msg_iovlen; part++) {
        struct iovec *one = &message->msg_iov[part];
        if (skip >= one->iov_len) {
            skip -= one->iov_len;
            continue;
        }
        ssize_t more = sendto(descriptor, (const char *)one->iov_base + skip, one->iov_len - skip,
                              flags, 0, 0);
        if (more < 0)
            break;
        done += more;
        if ((size_t)more < one->iov_len - skip)
            break;
        skip = 0;
    }
    return done;
}

int sendmmsg(int descriptor, struct mmsghdr *messages, unsigned int count, int flags)
{
    if (!upvm_is_virtual() || !count || !upvm_is_address(messages))
        return upvm_returns(
            upvm_call(SYS_sendmmsg, upvm_real(descriptor), (long)messages, count, flags));
    for (unsigned one = 0; one < count; one++) {
        ssize_t done = sendmsg(descriptor, &messages[one].msg_hdr, flags);
        if (done < 0)
            return one ? (int)one : -1;
        messages[one].msg_len = done;
    }
    return count;
}

/* Never restarted: the kernel goes on connecting by itself. */
int connect(int descriptor, const struct sockaddr *address, socklen_t length)
{
    int real = upvm_real(descriptor);
    if (!upvm_is_virtual() || upvm_never_waits(real))
        return upvm_returns(upvm_call(SYS_connect, real, (long)address, length, 0));
    return upvm_returns(upvm_aside(SYS_connect, real, (long)address, length, 0, 0, 0));
}

UPVM_ALSO(recvfrom, __recvfrom);
UPVM_ALSO(recvfrom, __libc_recvfrom);
UPVM_ALSO(recv, __recv);
UPVM_ALSO(recv, __libc_recv);
UPVM_ALSO(recvmsg, __recvmsg);
UPVM_ALSO(recvmsg, __libc_recvmsg);
UPVM_ALSO(recvmmsg, __recvmmsg);
UPVM_ALSO(sendto, __sendto);
UPVM_ALSO(sendto, __libc_sendto);
UPVM_ALSO(send, __send);
UPVM_ALSO(send, __libc_send);
UPVM_ALSO(sendmsg, __sendmsg);
UPVM_ALSO(sendmsg, __libc_sendmsg);
UPVM_ALSO(sendmmsg, __sendmmsg);
UPVM_ALSO(connect, __connect);
UPVM_ALSO(connect, __libc_connect);
