/* Descriptors: which of the process's belong to this program.
 *
 * All programs of a process have its 0, 1 and 2. If a program closes or replaces one of them, only
 * its own table changes. What a program opens is recorded in the slot's table, so that the host
 * closes it if the program ends without doing so. */

#define _GNU_SOURCE
#include "calls.h"
#include <fcntl.h>
#include <linux/close_range.h>
#include <stdarg.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <unistd.h>

char upvm_in_child;
int upvm_standard[3] = {0, 1, 2};

uint64_t upvm_inherited[UPVM_DESCRIPTORS / 64];

static int is_noted(int descriptor)
{
    return upvm_table() && !upvm_in_child && descriptor > 2 && descriptor < (int)UPVM_DESCRIPTORS;
}

int upvm_opened(int descriptor, int inherited)
{
    if (!is_noted(descriptor)) {
        if (descriptor > 2 && inherited)
            upvm_call(SYS_fcntl, descriptor, F_SETFD, 0, 0);
        return descriptor;
    }
    uint64_t bit = 1ul << descriptor % 64;
    upvm_table()[UPVM_TABLE_DESCRIPTORS + descriptor / 64] |= bit;
    if (inherited)
        upvm_inherited[descriptor / 64] |= bit;
    return descriptor;
}

static void closed(int descriptor)
{
    if (!is_noted(descriptor))
        return;
    uint64_t bit = 1ul << descriptor % 64;
    upvm_table()[UPVM_TABLE_DESCRIPTORS + descriptor / 64] &= ~bit;
    upvm_inherited[descriptor / 64] &= ~bit;
}

static long real_close(int descriptor)
{
    closed(descriptor);
    return upvm_call(SYS_close, descriptor, 0, 0, 0);
}

static int is_own_standard(int descriptor)
{
    return (unsigned)descriptor < 3 && upvm_table() && !upvm_in_child;
}

int close(int descriptor)
{
    if (!is_own_standard(descriptor))
        return upvm_returns(real_close(descriptor));
    int real = upvm_standard[descriptor];
    upvm_standard[descriptor] = -1;
    if (real < 0)
        return upvm_returns(-EBADF);
    return real > 2 ? upvm_returns(real_close(real)) : 0;
}

/* Closes only the program's own descriptors: for a program that closes all there may be, there are
 * no others. */
int close_range(unsigned int first, unsigned int last, int flags)
{
    if (!upvm_table() || upvm_in_child)
        return upvm_returns(upvm_call(SYS_close_range, first, last, flags, 0));
    if (first > last)
        return upvm_returns(-EINVAL);
    for (unsigned one = first; one <= last && one < UPVM_DESCRIPTORS; one++) {
        uint64_t own =
            one < 3 ? 1 : upvm_table()[UPVM_TABLE_DESCRIPTORS + one / 64] >> one % 64 & 1;
        if (own && flags & CLOSE_RANGE_CLOEXEC)
            upvm_inherited[one / 64] &= ~(1ul << one % 64);
        else if (own)
            close(one);
    }
    return 0;
}

void closefrom(int first)
{
    close_range(first < 0 ? 0 : first, ~0u, 0);
}

/* What is opened next gets the lowest of 0, 1 and 2 that is closed, as in any process. */
static int taken(long descriptor, int inherited)
{
    if (descriptor < 0 || upvm_in_child || !upvm_table())
        return upvm_returns(descriptor);
    for (int one = 0; one < 3; one++)
        if (upvm_standard[one] < 0) {
            long moved = upvm_call(SYS_fcntl, descriptor, F_DUPFD_CLOEXEC, 10, 0);
            upvm_call(SYS_close, descriptor, 0, 0, 0);
            upvm_standard[one] = upvm_opened(moved, 0);
            return moved < 0 ? upvm_returns(moved) : one;
        }
    return upvm_opened(descriptor, inherited);
}

int upvm_taken(long real, int inherited)
{
    return taken(real, inherited);
}

static long duplicate(int from, int to, int flags)
{
    long real = upvm_real(from);
    if (!is_own_standard(to)) {
        if (upvm_in_child || !upvm_table())
            return upvm_call(SYS_dup3, real, to, flags, 0);
        long done = upvm_call(SYS_dup3, real, to, O_CLOEXEC, 0);
        if (done >= 0)
            closed(done), upvm_opened(done, !flags);
        return done;
    }
    real = upvm_call(SYS_fcntl, real, F_DUPFD_CLOEXEC, 10, 0);
    if (real < 0)
        return real;
    if (upvm_standard[to] > 2)
        real_close(upvm_standard[to]);
    upvm_standard[to] = upvm_opened(real, 0);
    return to;
}

int dup3(int from, int to, int flags)
{
    return upvm_returns(from == to ? -EINVAL : duplicate(from, to, flags));
}

int dup2(int from, int to)
{
    if (from != to)
        return upvm_returns(duplicate(from, to, 0));
    long flags = upvm_call(SYS_fcntl, upvm_real(from), F_GETFD, 0, 0);
    return flags < 0 ? upvm_returns(flags) : to;
}

int dup(int descriptor)
{
    return taken(upvm_call(SYS_fcntl, upvm_real(descriptor), F_DUPFD_CLOEXEC, 0, 0), 1);
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

int openat64(int folder, const char *path, int flags, ...)
{
    mode_t mode = 0;
    if (flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE) {
        va_list more;
        va_start(more, flags);
        mode = va_arg(more, mode_t);
        va_end(more);
    }
    if (!upvm_table() || upvm_in_child)
        return upvm_returns(upvm_call(SYS_openat, folder, (long)path, flags, mode));
    if (!is_fifo(folder, path, flags))
        return taken(upvm_call(SYS_openat, folder, (long)path, flags | O_CLOEXEC, mode),
                     !(flags & O_CLOEXEC));
    /* Another task may change the folder during the call. */
    int here = -1;
    if (folder == AT_FDCWD && path[0] != '/')
        here = upvm_call(SYS_openat, AT_FDCWD, (long)".", O_PATH | O_CLOEXEC, 0);
    long done = upvm_aside_again(SYS_openat, here >= 0 ? here : folder, (long)path,
                                 flags | O_CLOEXEC, mode, 0, 0);
    if (here >= 0)
        upvm_call(SYS_close, here, 0, 0, 0);
    return taken(done, !(flags & O_CLOEXEC));
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
    if (done < 0)
        return upvm_returns(done);
    descriptors[0] = taken(descriptors[0], inherited);
    descriptors[1] = taken(descriptors[1], inherited);
    return 0;
}

int pipe2(int descriptors[2], int flags)
{
    return two(upvm_call(SYS_pipe2, (long)descriptors, flags | O_CLOEXEC, 0, 0), descriptors,
               !(flags & O_CLOEXEC));
}

int pipe(int descriptors[2])
{
    return pipe2(descriptors, 0);
}

int socketpair(int domain, int type, int protocol, int descriptors[2])
{
    return two(upvm_call(SYS_socketpair, domain, type | SOCK_CLOEXEC, protocol, (long)descriptors),
               descriptors, !(type & SOCK_CLOEXEC));
}

int socket(int domain, int type, int protocol)
{
    return taken(upvm_call(SYS_socket, domain, type | SOCK_CLOEXEC, protocol, 0),
                 !(type & SOCK_CLOEXEC));
}

int eventfd(unsigned int count, int flags)
{
    return taken(upvm_call(SYS_eventfd2, count, flags | EFD_CLOEXEC, 0, 0), !(flags & EFD_CLOEXEC));
}

int epoll_create1(int flags)
{
    return taken(upvm_call(SYS_epoll_create1, flags | EPOLL_CLOEXEC, 0, 0, 0),
                 !(flags & EPOLL_CLOEXEC));
}

int epoll_create(int size)
{
    return size > 0 ? epoll_create1(0) : upvm_returns(-EINVAL);
}

int timerfd_create(clockid_t clock, int flags)
{
    return taken(upvm_call(SYS_timerfd_create, clock, flags | TFD_CLOEXEC, 0, 0),
                 !(flags & TFD_CLOEXEC));
}

int memfd_create(const char *name, unsigned int flags)
{
    return taken(upvm_call(SYS_memfd_create, (long)name, flags | MFD_CLOEXEC, 0, 0),
                 !(flags & MFD_CLOEXEC));
}

static int accepted(int descriptor, struct sockaddr *address, socklen_t *length, int flags)
{
    int real = upvm_real(descriptor);
    struct pollfd one = {real, POLLIN, 0};
    while (upvm_table() && upvm_poll_now(&one, 1) == 0) {
        if (upvm_never_waits(real)) {
            upvm_pause();
            break;
        }
        long came = upvm_ready(real, POLLIN, -1);
        if (came < 0 && !upvm_again(came))
            return upvm_returns(came);
    }
    return taken(upvm_call(SYS_accept4, real, (long)address, (long)length, flags | SOCK_CLOEXEC),
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

/* Locks of files: if the lock has to wait, the call runs aside. Locks of fcntl belong to the
 * process, and so to all its tasks together. */
int fcntl64(int descriptor, int command, ...)
{
    va_list more;
    va_start(more, command);
    long value = va_arg(more, long);
    va_end(more);
    int real = upvm_real(descriptor);
    if (!upvm_table() || upvm_in_child)
        return upvm_returns(upvm_call(SYS_fcntl, real, command, value, 0));
    if (command == F_DUPFD || command == F_DUPFD_CLOEXEC) {
        long done = upvm_call(SYS_fcntl, real, F_DUPFD_CLOEXEC, value > 2 ? value : 3, 0);
        return upvm_returns(done < 0 ? done : upvm_opened(done, command == F_DUPFD));
    }
    if ((command == F_GETFD || command == F_SETFD) && is_noted(descriptor)) {
        uint64_t bit = 1ul << descriptor % 64, *inherited = &upvm_inherited[descriptor / 64];
        if (!(upvm_table()[UPVM_TABLE_DESCRIPTORS + descriptor / 64] & bit))
            return upvm_returns(upvm_call(SYS_fcntl, descriptor, command, value, 0));
        if (command == F_GETFD)
            return *inherited & bit ? 0 : FD_CLOEXEC;
        *inherited = value & FD_CLOEXEC ? *inherited & ~bit : *inherited | bit;
        return 0;
    }
    if (command == F_SETLKW || command == F_OFD_SETLKW) {
        long done =
            upvm_call(SYS_fcntl, real, command == F_SETLKW ? F_SETLK : F_OFD_SETLK, value, 0);
        if (done == -EAGAIN || done == -EACCES)
            done = upvm_aside_again(SYS_fcntl, real, command, value, 0, 0, 0);
        return upvm_returns(done);
    }
    return upvm_returns(upvm_call(SYS_fcntl, real, command, value, 0));
}

int flock(int descriptor, int how)
{
    int real = upvm_real(descriptor);
    long done = upvm_call(SYS_flock, real, upvm_table() ? how | LOCK_NB : how, 0, 0);
    if (done == -EAGAIN && !(how & LOCK_NB) && upvm_table())
        done = upvm_aside_again(SYS_flock, real, how, 0, 0, 0, 0);
    return upvm_returns(done);
}

int fsync(int descriptor)
{
    return upvm_returns(upvm_aside(SYS_fsync, upvm_real(descriptor), 0, 0, 0, 0, 0));
}

int fdatasync(int descriptor)
{
    return upvm_returns(upvm_aside(SYS_fdatasync, upvm_real(descriptor), 0, 0, 0, 0, 0));
}

int syncfs(int descriptor)
{
    return upvm_returns(upvm_aside(SYS_syncfs, upvm_real(descriptor), 0, 0, 0, 0, 0));
}

void sync(void)
{
    upvm_aside(SYS_sync, 0, 0, 0, 0, 0, 0);
}

int msync(void *at, size_t length, int flags)
{
    if (!(flags & MS_SYNC))
        return upvm_returns(upvm_call(SYS_msync, (long)at, length, flags, 0));
    return upvm_returns(upvm_aside(SYS_msync, (long)at, length, flags, 0, 0, 0));
}

/* Other functions that take a descriptor, which may be the program's own 0, 1 or 2. */
int ioctl(int descriptor, unsigned long request, ...)
{
    va_list more;
    va_start(more, request);
    long value = va_arg(more, long);
    va_end(more);
    return upvm_returns(upvm_call(SYS_ioctl, upvm_real(descriptor), request, value, 0));
}

int isatty(int descriptor)
{
    long about[16];
    return ioctl(descriptor, TCGETS, about) == 0;
}

int fstat(int descriptor, struct stat *about)
{
    return upvm_returns(upvm_call(SYS_fstat, upvm_real(descriptor), (long)about, 0, 0));
}

off64_t lseek64(int descriptor, off64_t offset, int whence)
{
    return upvm_returns(upvm_call(SYS_lseek, upvm_real(descriptor), offset, whence, 0));
}

int ftruncate64(int descriptor, off64_t length)
{
    return upvm_returns(upvm_call(SYS_ftruncate, upvm_real(descriptor), length, 0, 0));
}

/* A current folder of its own: the host changes to it whenever this program goes on. */
int fchdir(int descriptor)
{
    uint64_t *table = upvm_table();
    int real = upvm_real(descriptor);
    if (!table || upvm_in_child)
        return upvm_returns(upvm_call(SYS_fchdir, real, 0, 0, 0));
    return upvm_returns(UPVM_ASK(table, UPVM_ASK_FOLDER, real, 0, 0, 0));
}

int chdir(const char *path)
{
    if (!upvm_table() || upvm_in_child)
        return upvm_returns(upvm_call(SYS_chdir, (long)path, 0, 0, 0));
    long folder = upvm_call(SYS_openat, AT_FDCWD, (long)path, O_PATH | O_DIRECTORY | O_CLOEXEC, 0);
    if (folder < 0)
        return upvm_returns(folder);
    long done = UPVM_ASK(upvm_table(), UPVM_ASK_FOLDER, folder, 0, 0, 0);
    upvm_call(SYS_close, folder, 0, 0, 0);
    return upvm_returns(done);
}

UPVM_ALSO(close, __close);
UPVM_ALSO(close, __libc_close);
UPVM_ALSO(close, __close_nocancel);
UPVM_ALSO(close_range, __close_range);
UPVM_ALSO(closefrom, __closefrom);
UPVM_ALSO(dup, __dup);
UPVM_ALSO(dup2, __dup2);
UPVM_ALSO(dup3, __dup3);
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
UPVM_ALSO(fcntl64, fcntl);
UPVM_ALSO(fcntl64, __fcntl);
UPVM_ALSO(fcntl64, __fcntl64);
UPVM_ALSO(fcntl64, __GI___fcntl);
UPVM_ALSO(fcntl64, __libc_fcntl);
UPVM_ALSO(fcntl64, __libc_fcntl64);
UPVM_ALSO(flock, __flock);
UPVM_ALSO(ioctl, __ioctl);
UPVM_ALSO(isatty, __isatty);
UPVM_ALSO(fstat, __fstat);
UPVM_ALSO(fstat, __fstat64);
extern int fstat64(int, struct stat64 *) __attribute__((alias("fstat"))); /* same on x86-64 */
UPVM_ALSO(lseek64, lseek);
UPVM_ALSO(lseek64, __lseek);
UPVM_ALSO(lseek64, __lseek64);
UPVM_ALSO(lseek64, __libc_lseek);
UPVM_ALSO(lseek64, __libc_lseek64);
UPVM_ALSO(ftruncate64, ftruncate);
UPVM_ALSO(ftruncate64, __ftruncate);
UPVM_ALSO(ftruncate64, __ftruncate64);
UPVM_ALSO(chdir, __chdir);
UPVM_ALSO(fchdir, __fchdir);
