/* Functions whose descriptors are translated, and which the kernel does otherwise. libc's own would
 * work, too: the kernel catches their system calls (numbers.c). But that takes a microsecond for
 * each, and not every kernel does it. */

#define _GNU_SOURCE
#include "calls.h"
#include <dirent.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define PASSES(call, ...) return upvm_returns(upvm_call6(call, __VA_ARGS__))

ssize_t getdents64(int descriptor, void *to, size_t count)
{
    PASSES(SYS_getdents64, upvm_real(descriptor), (long)to, count, 0, 0, 0);
}

ssize_t pwrite64(int descriptor, const void *bytes, size_t count, off64_t offset)
{
    PASSES(SYS_pwrite64, upvm_real(descriptor), (long)bytes, count, offset, 0, 0);
}

int fstatat(int folder, const char *path, struct stat *about, int flags)
{
    PASSES(SYS_newfstatat, upvm_real(folder), (long)path, (long)about, flags, 0, 0);
}

int unlinkat(int folder, const char *path, int flags)
{
    PASSES(SYS_unlinkat, upvm_real(folder), (long)path, flags, 0, 0, 0);
}

int fchmod(int descriptor, mode_t mode)
{
    PASSES(SYS_fchmod, upvm_real(descriptor), mode, 0, 0, 0, 0);
}

int bind(int descriptor, const struct sockaddr *address, socklen_t length)
{
    PASSES(SYS_bind, upvm_real(descriptor), (long)address, length, 0, 0, 0);
}

int listen(int descriptor, int count)
{
    PASSES(SYS_listen, upvm_real(descriptor), count, 0, 0, 0, 0);
}

int shutdown(int descriptor, int how)
{
    PASSES(SYS_shutdown, upvm_real(descriptor), how, 0, 0, 0, 0);
}

int getsockname(int descriptor, struct sockaddr *address, socklen_t *length)
{
    PASSES(SYS_getsockname, upvm_real(descriptor), (long)address, (long)length, 0, 0, 0);
}

int getpeername(int descriptor, struct sockaddr *address, socklen_t *length)
{
    PASSES(SYS_getpeername, upvm_real(descriptor), (long)address, (long)length, 0, 0, 0);
}

int setsockopt(int descriptor, int level, int name, const void *value, socklen_t length)
{
    PASSES(SYS_setsockopt, upvm_real(descriptor), level, name, (long)value, length, 0);
}

int getsockopt(int descriptor, int level, int name, void *value, socklen_t *length)
{
    PASSES(SYS_getsockopt, upvm_real(descriptor), level, name, (long)value, (long)length, 0);
}

UPVM_ALSO(getdents64, __getdents64);
UPVM_ALSO(pwrite64, pwrite);
UPVM_ALSO(pwrite64, __pwrite);
UPVM_ALSO(pwrite64, __pwrite64);
UPVM_ALSO(pwrite64, __libc_pwrite);
UPVM_ALSO(pwrite64, __libc_pwrite64);
extern int fstatat64(int, const char *, struct stat64 *, int) __attribute__((alias("fstatat")));
UPVM_ALSO(fstatat64, __fstatat64_time64);
UPVM_ALSO(fchmod, __fchmod);
UPVM_ALSO(bind, __bind);
UPVM_ALSO(listen, __listen);
UPVM_ALSO(getsockname, __getsockname);
UPVM_ALSO(setsockopt, __setsockopt);
UPVM_ALSO(getsockopt, __getsockopt);
