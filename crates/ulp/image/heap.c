/* The heap of an image: a part of its slot, in place of the process's.
 *
 * libc's own malloc works on it. It grows by sbrk, and is kept from mapping memory while there is
 * room here. What libc allocates for its thread-locals before malloc is available is here too.
 *
 * The host has mapped the rest of the slot for it. The program's own maps (maps.c) are at the
 * slot's end, and the heap ends below the lowest of them. From the first map on, only a little more
 * than the heap is mapped: what is mapped nowhere cannot be accessed. */

#define _GNU_SOURCE
#include "ranges.h"
#include <malloc.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The end of the heap; libc has it by this name. */
void *__curbrk;

char upvm_heap_changed;

/* End of what is mapped for the heap. 0: as the host has mapped it, up to the limit. */
static uintptr_t mapped;

/* What is mapped for the heap ends at a multiple of this, or at the lowest map. */
#define STEP (2ul << 20)

/* The heap's pages are one mapping for the kernel if they are all made in the same way. */
static long make(uintptr_t start, uintptr_t end, int flags)
{
    return upvm_call6(SYS_mmap, start, end - start, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags, -1, 0);
}

/* Returns 1 if the heap may end at this address. */
static int reaches(uintptr_t to)
{
    uintptr_t limit = upvm_lowest();
    if (to > limit)
        return 0;
    if (!mapped || to <= mapped)
        return 1;
    uintptr_t end = upvm_up(to, STEP);
    if (end > limit)
        end = limit;
    if (make(mapped, end, MAP_FIXED_NOREPLACE) < 0)
        return 0;
    mapped = end;
    return 1;
}

uintptr_t upvm_heap_end(void)
{
    return upvm_up((uintptr_t)sbrk(0), UPVM_PAGE);
}

long upvm_heap_leaves(uintptr_t at)
{
    uintptr_t to = upvm_up((uintptr_t)sbrk(0), STEP), end = mapped ? mapped : upvm_limit();
    if (mapped && at >= mapped)
        return 0;
    if (to > at)
        to = at;
    if (to < end) {
        long done = upvm_call(SYS_munmap, to, end - to, 0, 0);
        if (done < 0)
            return done;
        end = to;
    }
    mapped = end;
    return 0;
}

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
    char *start = (char *)table[UPVM_TABLE_HEAP];
    if (!__curbrk)
        __curbrk = start;
    if (!to) /* a query of the heap's end */
        return 0;
    if (to < start || !reaches((uintptr_t)to)) {
        errno = ENOMEM;
        return -1;
    }
    if (to < (char *)__curbrk) {
        /* libc takes memory that comes back later for zeros. */
        uintptr_t whole = upvm_up((uintptr_t)to, UPVM_PAGE);
        for (char *byte = to; byte < (char *)whole && byte < (char *)__curbrk; byte++)
            *byte = 0;
        if (whole < (uintptr_t)__curbrk && upvm_heap_changed) {
            if (make(whole, upvm_up((uintptr_t)__curbrk, UPVM_PAGE), MAP_FIXED) < 0)
                return upvm_returns(-ENOMEM);
        } else if (whole < (uintptr_t)__curbrk)
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
