/* Functions that make descriptors. Each is made with FD_CLOEXEC, and becomes one of the program's
 * (files.c). */

#define _GNU_SOURCE
#include "calls.h"
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <unistd.h>

/* The number in a path below a folder of descriptors. Returns -1 if there is none; else `*rest` is
 * what follows. */
static int number_in(const char *path, const char **rest)
{
    long number = 0;
    if (*path < '0' || *path > '9')
        return -1;
    for (; *path >= '0' && *path <= '9' && number < (long)UPVM_FILES; path++)
        number = number * 10 + *path - '0';
    *rest = path;
    return *path && *path != '/' ? -1 : (int)number;
}

/* As strlen(beginning), if the path begins so; else 0. */
static size_t begins(const char *path, const char *beginning)
{
    size_t length = strlen(beginning);
    return strncmp(path, beginning, length) ? 0 : length;
}

static int number_of(const char *path, const char **rest)
{
    size_t folder = begins(path, "/dev/fd/");
    if (!folder)
        folder = begins(path, "/proc/self/fd/");
    if (!folder)
        folder = begins(path, "/proc/thread-self/fd/");
    if (folder)
        return number_in(path + folder, rest);
    *rest = "";
    return !strcmp(path, "/dev/stdin")    ? 0
           : !strcmp(path, "/dev/stdout") ? 1
           : !strcmp(path, "/dev/stderr") ? 2
                                          : -1;
}

const char *upvm_path(const char *path, char room[4096])
{
    const char *rest;
    int number = upvm_is_virtual() ? number_of(path, &rest) : -1;
    if (number < 0)
        return path;
    int length = snprintf(room, 4096, "/proc/self/fd/%d%s", upvm_real(number), rest);
    return length < 4096 ? room : path;
}

/* Opening a FIFO waits until its other end is opened. */
static int is_fifo(int folder, const char *path, int flags)
{
    struct stat about;
    if (flags & (O_NONBLOCK | O_PATH | O_DIRECTORY) || (flags & O_ACCMODE) == O_RDWR)
        return 0;
    return !upvm_call(SYS_newfstatat, folder, (long)path, (long)&about, 0) &&
           S_ISFIFO(about.st_mode);
}

/* Another task may change the folder during the call. */
static long opened_aside(int folder, const char *path, int flags, mode_t mode)
{
    long here = -1;
    if (folder == AT_FDCWD && path[0] != '/')
        here = upvm_hold(upvm_call(SYS_openat, AT_FDCWD, (long)".", O_PATH | O_CLOEXEC, 0));
    long done = upvm_aside_again(SYS_openat, here >= 0 ? here : folder, (long)path, flags, mode, 0,
                                 0);
    if (here >= 0)
        upvm_let_go(here);
    return done;
}

static int opened(int folder, const char *path, int flags, mode_t mode)
{
    long full = upvm_may_open(1);
    if (full)
        return upvm_returns(full);
    long done = is_fifo(folder, path, flags)
                    ? opened_aside(folder, path, flags | O_CLOEXEC, mode)
                    : upvm_call(SYS_openat, folder, (long)path, flags | O_CLOEXEC, mode);
    return upvm_taken(done, !(flags & O_CLOEXEC));
}

/* Apart, since a path takes a page of the stack. */
static __attribute__((noinline)) int opened_own(const char *path, int flags, mode_t mode)
{
    char room[4096];
    return opened(AT_FDCWD, upvm_path(path, room), flags, mode);
}

int openat64(int folder, const char *path, int flags, ...)
{
    mode_t mode = 0;
    if (flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE) {
        va_list more;
        va_start(more, flags);
        mode = va_arg(more, mode_t);
        va_end(more);
    }
    if (!upvm_is_virtual())
        return upvm_returns(upvm_call(SYS_openat, folder, (long)path, flags, mode));
    const char *rest;
    if (upvm_is_address(path) && path[0] == '/' && number_of(path, &rest) >= 0)
        return opened_own(path, flags, mode);
    return opened(upvm_real(folder), path, flags, mode);
}

int open64(const char *path, int flags, ...)
{
    mode_t mode = 0;
    if (flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE) {
        va_list more;
        va_start(more, flags);
        mode = va_arg(more, mode_t);
        va_end(more);
    }
    return openat64(AT_FDCWD, path, flags, mode);
}

int creat64(const char *path, mode_t mode)
{
    return openat64(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode);
}

static int two(long done, int *descriptors, int inherited)
{
    if (done < 0 || !upvm_is_virtual())
        return upvm_returns(done);
    int first = descriptors[0], second = descriptors[1];
    if ((descriptors[0] = upvm_taken(first, inherited)) < 0) {
        upvm_call(SYS_close, second, 0, 0, 0);
        return -1;
    }
    if ((descriptors[1] = upvm_taken(second, inherited)) < 0) {
        close(descriptors[0]);
        return -1;
    }
    return 0;
}

int pipe2(int descriptors[2], int flags)
{
    long full = upvm_may_open(2);
    if (full)
        return upvm_returns(full);
    return two(upvm_call(SYS_pipe2, (long)descriptors, flags | upvm_cloexec(O_CLOEXEC), 0, 0),
               descriptors, !(flags & O_CLOEXEC));
}

int pipe(int descriptors[2])
{
    return pipe2(descriptors, 0);
}

int socketpair(int domain, int type, int protocol, int descriptors[2])
{
    long full = upvm_may_open(2);
    if (full)
        return upvm_returns(full);
    return two(upvm_call(SYS_socketpair, domain, type | upvm_cloexec(SOCK_CLOEXEC), protocol,
                         (long)descriptors),
               descriptors, !(type & SOCK_CLOEXEC));
}

int socket(int domain, int type, int protocol)
{
    return upvm_taken(upvm_call(SYS_socket, domain, type | upvm_cloexec(SOCK_CLOEXEC), protocol, 0),
                      !(type & SOCK_CLOEXEC));
}

int eventfd(unsigned int count, int flags)
{
    return upvm_taken(upvm_call(SYS_eventfd2, count, flags | upvm_cloexec(EFD_CLOEXEC), 0, 0),
                      !(flags & EFD_CLOEXEC));
}

int epoll_create1(int flags)
{
    return upvm_taken(upvm_call(SYS_epoll_create1, flags | upvm_cloexec(EPOLL_CLOEXEC), 0, 0, 0),
                      !(flags & EPOLL_CLOEXEC));
}

int epoll_create(int size)
{
    return size > 0 ? epoll_create1(0) : upvm_returns(-EINVAL);
}

int timerfd_create(clockid_t clock, int flags)
{
    return upvm_taken(upvm_call(SYS_timerfd_create, clock, flags | upvm_cloexec(TFD_CLOEXEC), 0, 0),
                      !(flags & TFD_CLOEXEC));
}

int memfd_create(const char *name, unsigned int flags)
{
    return upvm_taken(
        upvm_call(SYS_memfd_create, (long)name, flags | upvm_cloexec(MFD_CLOEXEC), 0, 0),
        !(flags & MFD_CLOEXEC));
}

int inotify_init1(int flags)
{
    return upvm_taken(upvm_call(SYS_inotify_init1, flags | upvm_cloexec(IN_CLOEXEC), 0, 0, 0),
                      !(flags & IN_CLOEXEC));
}

int inotify_init(void)
{
    return inotify_init1(0);
}

static int accepted(int descriptor, struct sockaddr *address, socklen_t *length, int flags)
{
    int real = upvm_real(descriptor);
    long full = upvm_may_open(1);
    if (full)
        return upvm_returns(full);
    struct pollfd one = {real, POLLIN, 0};
    while (upvm_is_virtual() && upvm_poll_now(&one, 1) == 0 && real >= 0) {
        if (upvm_never_waits(real)) {
            long lost = upvm_pause_for(real);
            if (lost)
                return upvm_returns(lost);
            break;
        }
        long came = upvm_ready(real, POLLIN, -1);
        if (came < 0 && !upvm_again(came))
            return upvm_returns(came);
    }
    return upvm_taken(upvm_call(SYS_accept4, real, (long)address, (long)length,
                                flags | upvm_cloexec(SOCK_CLOEXEC)),
                      !(flags & SOCK_CLOEXEC));
}

int accept4(int descriptor, struct sockaddr *address, socklen_t *length, int flags)
{
    return accepted(descriptor, address, length, flags);
}

int accept(int descriptor, struct sockaddr *address, socklen_t *length)
{
    return accepted(descriptor, address, length, 0);
}

UPVM_ALSO(openat64, openat);
UPVM_ALSO(openat64, __openat);
UPVM_ALSO(openat64, __openat64);
UPVM_ALSO(openat64, __libc_openat64);
UPVM_ALSO(openat64, __openat_nocancel);
UPVM_ALSO(openat64, __openat64_nocancel);
UPVM_ALSO(open64, open);
UPVM_ALSO(open64, __open);
UPVM_ALSO(open64, __open64);
UPVM_ALSO(open64, __libc_open);
UPVM_ALSO(open64, __libc_open64);
UPVM_ALSO(open64, __open_nocancel);
UPVM_ALSO(open64, __open64_nocancel);
UPVM_ALSO(creat64, creat);
UPVM_ALSO(creat64, __creat);
UPVM_ALSO(creat64, __creat64);
UPVM_ALSO(pipe, __pipe);
UPVM_ALSO(pipe2, __pipe2);
UPVM_ALSO(socket, __socket);
UPVM_ALSO(socketpair, __socketpair);
UPVM_ALSO(accept, __libc_accept);
