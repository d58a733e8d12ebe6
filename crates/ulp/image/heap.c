/* The heap of an image: a part of its slot, in place of the process's.
 *
 * libc's own malloc works on it. It grows by sbrk, and is kept from asking the kernel for memory
 * elsewhere while there is room here. What libc allocates for its thread-locals before malloc is
 * available is here too. */

#define _GNU_SOURCE
#include "calls.h"
#include <malloc.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The end of the heap; libc has it by this name. */
void *__curbrk;

int brk(void *address)
{
    uint64_t *table = upvm_table();
    char *to = address;
    if (!table) {
        __curbrk = (void *)upvm_call(SYS_brk, (long)address, 0, 0, 0);
        if ((char *)__curbrk >= to)
            return 0;
        errno = ENOMEM;
        return -1;
    }
    char *start = (char *)table[UPVM_TABLE_HEAP], *end = (char *)table[UPVM_TABLE_HEAP_END];
    if (!__curbrk)
        __curbrk = start;
    if (!to) /* a query of the heap's end */
        return 0;
    if (to < start || to > end) {
        errno = ENOMEM;
        return -1;
    }
    if (to < (char *)__curbrk) {
        /* libc takes memory that comes back later for zeros. */
        uintptr_t whole = ((uintptr_t)to + UPVM_PAGE - 1) & ~(UPVM_PAGE - 1);
        for (char *byte = to; byte < (char *)whole && byte < (char *)__curbrk; byte++)
            *byte = 0;
        if (whole < (uintptr_t)__curbrk)
            upvm_call(SYS_madvise, whole, (uintptr_t)__curbrk - whole, MADV_DONTNEED, 0);
    }
    __curbrk = to;
    return 0;
}

void *sbrk(intptr_t more)
{
    if (!__curbrk && brk(0) < 0)
        return (void *)-1;
    char *was = __curbrk;
    if (more && brk(was + more) < 0)
        return (void *)-1;
    return was;
}

__attribute__((nothrow, leaf, alias("brk"))) int __brk(void *address);
__attribute__((nothrow, leaf, alias("sbrk"))) void *__sbrk(intptr_t more);

/* libc's own version asks the kernel itself. */
void *_dl_early_allocate(size_t size)
{
    void *got = sbrk((intptr_t)size);
    return got == (void *)-1 ? 0 : got;
}

__attribute__((constructor(102))) static void settle(void)
{
    mallopt(M_MMAP_MAX, 0);
    mallopt(M_ARENA_MAX, 1);
}
