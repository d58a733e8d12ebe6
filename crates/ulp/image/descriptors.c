/* Functions for what a descriptor refers to: locks, writing back, sizes, folders. Other functions
 * that only need a number translated are in passed.c. */

#define _GNU_SOURCE
#include "calls.h"
#include "reasons.h"
#include <fcntl.h>
#include <linux/fs.h>
#include <stdarg.h>
#include <sys/file.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* A lock of the process would be one of all its tasks, and exclude none of them. So it becomes one
 * of the open file. Waiting for it, the call runs aside. */
static long locked(int real, int command, const struct flock *wanted)
{
    int set = command == F_SETLKW ? F_OFD_SETLKW : F_OFD_SETLK;
    struct flock lock = *wanted;
    lock.l_pid = 0;
    long done = upvm_call(SYS_fcntl, real, F_OFD_SETLK, (long)&lock, 0);
    if (set == F_OFD_SETLKW && done == -EAGAIN)
        done = upvm_aside_again(SYS_fcntl, real, set, (long)&lock, 0, 0, 0);
    return done;
}

/* The kernel names no process for a lock of an open file: it answers with -1. */
static long lock_found(int real, struct flock *lock)
{
    lock->l_pid = 0;
    return upvm_call(SYS_fcntl, real, F_OFD_GETLK, (long)lock, 0);
}

/* The kernel's name, which libc lacks: whether two descriptors are one open file. */
#ifndef F_DUPFD_QUERY
#define F_DUPFD_QUERY 1027
#endif

#define REFUSES_COMMAND(command) \
    case command: return upvm_refuse("fcntl(" #command ")", SIGNALS)

static long controlled(int number, int command, long value)
{
    int real = upvm_real(number), inherits;
    if (real < 0)
        return -EBADF;
    switch (command) {
    case F_DUPFD: return upvm_duplicate(number, value, 1);
    case F_DUPFD_CLOEXEC: return upvm_duplicate(number, value, 0);
    case F_GETFD:
        inherits = upvm_inherits(number, -1);
        return inherits < 0 ? -EBADF : inherits ? 0 : FD_CLOEXEC;
    case F_SETFD: return upvm_inherits(number, !(value & FD_CLOEXEC)) < 0 ? -EBADF : 0;
    case F_SETLK:
    case F_SETLKW: return locked(real, command, (const struct flock *)value);
    case F_GETLK: return lock_found(real, (struct flock *)value);
    case F_OFD_SETLKW: {
        long done = upvm_call(SYS_fcntl, real, F_OFD_SETLK, value, 0);
        return done == -EAGAIN ? upvm_aside_again(SYS_fcntl, real, command, value, 0, 0, 0) : done;
    }
    case F_DUPFD_QUERY: value = upvm_real(value); break;
    case F_SETFL:
        if (value & O_ASYNC)
            return upvm_refuse("O_ASYNC", SIGNALS);
        break;
        REFUSES_COMMAND(F_SETOWN);
        REFUSES_COMMAND(F_SETOWN_EX);
        REFUSES_COMMAND(F_SETSIG);
        REFUSES_COMMAND(F_SETLEASE);
        REFUSES_COMMAND(F_NOTIFY);
    }
    return upvm_call(SYS_fcntl, real, command, value, 0);
}

int fcntl64(int number, int command, ...)
{
    va_list more;
    va_start(more, command);
    long value = va_arg(more, long);
    va_end(more);
    return upvm_returns(upvm_is_virtual() ? controlled(number, command, value)
                                          : upvm_call(SYS_fcntl, number, command, value, 0));
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

/* Requests whose argument is another descriptor, or that make one. */
static long asked(int real, unsigned long request, long value)
{
    if (request == FICLONE)
        return upvm_call(SYS_ioctl, real, request, upvm_real(value), 0);
    if (request == FICLONERANGE) {
        struct file_clone_range range = *(const struct file_clone_range *)value;
        range.src_fd = upvm_real(range.src_fd);
        return upvm_call(SYS_ioctl, real, request, (long)&range, 0);
    }
    if (request == TIOCGPTPEER) {
        long made = upvm_call(SYS_ioctl, real, request, value | O_CLOEXEC, 0);
        return upvm_result(upvm_taken(made, !(value & O_CLOEXEC)));
    }
    return upvm_call(SYS_ioctl, real, request, value, 0);
}

int ioctl(int number, unsigned long request, ...)
{
    va_list more;
    va_start(more, request);
    long value = va_arg(more, long);
    va_end(more);
    if (!upvm_is_virtual())
        return upvm_returns(upvm_call(SYS_ioctl, number, request, value, 0));
    switch (request) {
    case FIOCLEX:
    case FIONCLEX:
        return upvm_returns(upvm_inherits(number, request == FIONCLEX) < 0 ? -EBADF : 0);
    case FIOASYNC: return upvm_returns(upvm_refuse("ioctl(FIOASYNC)", SIGNALS));
    case FIOSETOWN:
    case SIOCSPGRP: return upvm_returns(upvm_refuse("ioctl(FIOSETOWN)", SIGNALS));
    }
    return upvm_returns(asked(upvm_real(number), request, value));
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
    int real = upvm_real(descriptor);
    if (!upvm_is_virtual() || real < 0)
        return upvm_returns(upvm_call(SYS_fchdir, real, 0, 0, 0));
    return upvm_returns(UPVM_ASK(upvm_table(), UPVM_ASK_FOLDER, real, 0, 0, 0));
}

int chdir(const char *path)
{
    if (!upvm_is_virtual())
        return upvm_returns(upvm_call(SYS_chdir, (long)path, 0, 0, 0));
    long folder = upvm_hold(
        upvm_call(SYS_openat, AT_FDCWD, (long)path, O_PATH | O_DIRECTORY | O_CLOEXEC, 0));
    if (folder < 0)
        return upvm_returns(folder);
    long done = UPVM_ASK(upvm_table(), UPVM_ASK_FOLDER, folder, 0, 0, 0);
    upvm_let_go(folder);
    return upvm_returns(done);
}

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
