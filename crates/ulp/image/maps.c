/* Memory that the program maps: in its own slot.
 *
 * The kernel would choose addresses elsewhere in the process. Here it gets a place from the slot's
 * end downwards (ranges.c), so that maps end with the program, and are at the same addresses in any
 * process. What is unmapped is mapped nowhere: an access crashes, as in a process.
 *
 * Only the heap, and what lies between it and the limit, can be mapped, unmapped and moved. The
 * list of ranges changes when the kernel has done its part. */

#define _GNU_SOURCE
#include "ranges.h"
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/vfs.h>

/* Size of huge pages, unless a map names another. */
#define HUGE (2ul << 20)

/* Returns 1 if these addresses are for the heap and for maps. */
static int is_own(uintptr_t start, uintptr_t end)
{
    return start >= upvm_up(upvm_known_table[UPVM_TABLE_HEAP], UPVM_PAGE) && start <= end &&
           end <= upvm_limit();
}

/* The part above the heap of what begins here. */
static uintptr_t above_heap(uintptr_t start)
{
    uintptr_t heap = upvm_heap_end();
    return start > heap ? start : heap;
}

/* Before the kernel changes these addresses: what the heap has mapped above its end goes. */
static long begin(uintptr_t start, uintptr_t end)
{
    uintptr_t above = above_heap(start);
    if (!upvm_has_room())
        return -ENOMEM;
    return above < end ? upvm_heap_leaves(above) : 0;
}

/* After that. */
static void done(uintptr_t start, uintptr_t end, int is_mapped)
{
    uintptr_t above = above_heap(start);
    if (start < above)
        upvm_heap_changed = 1;
    upvm_detach(start, end);
    if (above < end && is_mapped)
        upvm_take(above, end);
    else if (above < end)
        upvm_free(above, end);
}

/* Size of the pages of such a map. */
static uintptr_t page_of(int flags, int descriptor)
{
    struct statfs about;
    if (flags & MAP_ANONYMOUS) {
        int shift = flags >> MAP_HUGE_SHIFT & MAP_HUGE_MASK;
        return !(flags & MAP_HUGETLB) ? UPVM_PAGE : shift ? 1ul << shift : HUGE;
    }
    if (upvm_call(SYS_fstatfs, descriptor, (long)&about, 0, 0) < 0 ||
        about.f_type != HUGETLBFS_MAGIC)
        return UPVM_PAGE;
    return about.f_bsize;
}

/* Where the program wants a map. It must be there if it is fixed. Returns 0 if it is to be
 * anywhere, or an error. */
static long wanted(uintptr_t at, uintptr_t length, int flags, uintptr_t page)
{
    int fixed = flags & (MAP_FIXED | MAP_FIXED_NOREPLACE);
    int may_replace = fixed && !(flags & MAP_FIXED_NOREPLACE);
    if (!fixed)
        at &= -page;
    if (at % UPVM_PAGE)
        return -EINVAL;
    int fits = is_own(at, at + length);
    if (may_replace)
        return fits ? (long)at : -ENOMEM;
    if (fits && at >= upvm_heap_end() && upvm_is_free(at, at + length))
        return at;
    return fixed ? -EEXIST : 0;
}

/* Maps at an address of the program's own. */
static long map_at(uintptr_t at, size_t length, uintptr_t whole, int protection, int flags,
                   int descriptor, off_t offset)
{
    long result = begin(at, at + whole);
    if (result < 0)
        return result;
    result = upvm_call6(SYS_mmap, at, length, protection, flags, descriptor, offset);
    if (result > 0)
        done(at, at + whole, 1);
    return result;
}

static long map(uintptr_t at, size_t length, int protection, int flags, int descriptor,
                off_t offset)
{
    if (!upvm_is_virtual())
        return upvm_call6(SYS_mmap, at, length, protection, flags, descriptor, offset);
    int fixed = flags & (MAP_FIXED | MAP_FIXED_NOREPLACE);
    if (!(flags & MAP_ANONYMOUS))
        descriptor = upvm_real(descriptor);
    if (!length)
        return -EINVAL;
    if (length > upvm_limit() || (flags & MAP_32BIT && !fixed))
        return -ENOMEM;
    /* A stack that grows would take addresses that are not in the list. */
    flags &= ~MAP_GROWSDOWN;
    uintptr_t page = page_of(flags, descriptor), whole = upvm_up(length, page);
    /* As the heap is mapped: neighbours are one mapping for the kernel. */
    if (flags & MAP_ANONYMOUS && !(flags & MAP_HUGETLB) && (flags & MAP_TYPE) == MAP_PRIVATE)
        flags |= MAP_NORESERVE;
    long place = wanted(at, whole, flags, page);
    if (place < 0 || fixed)
        return place < 0 ? place
                         : map_at(place, length, whole, protection, flags, descriptor, offset);
    for (;;) {
        if (!place)
            place = upvm_place(whole, page, upvm_heap_end());
        if (!place)
            return -ENOMEM;
        long result = map_at(place, length, whole, protection, flags | MAP_FIXED_NOREPLACE,
                             descriptor, offset);
        if (result != -EEXIST)
            return result;
        /* Something is there that was not mapped through this function. */
        done(place, place + whole, 1);
        place = 0;
    }
}

void *mmap(void *at, size_t length, int protection, int flags, int descriptor, off_t offset)
{
    return (void *)upvm_returns(
        map((uintptr_t)at, length, protection, flags, descriptor, offset));
}

static long unmap(uintptr_t at, size_t length)
{
    if (!upvm_is_virtual())
        return upvm_call(SYS_munmap, at, length, 0, 0);
    if (at % UPVM_PAGE || !length || length > upvm_limit())
        return -EINVAL;
    uintptr_t end = at + upvm_up(length, UPVM_PAGE);
    if (!is_own(at, end))
        return -EINVAL;
    long result = begin(at, end);
    if (!result)
        result = upvm_call(SYS_munmap, at, length, 0, 0);
    if (!result)
        done(at, end, 0);
    return result;
}

int munmap(void *at, size_t length)
{
    return upvm_returns(unmap((uintptr_t)at, length));
}

struct move {
    uintptr_t from, length, more, to;
    int flags;
};

/* Moves a map to another place, or copies it there. */
static long move(struct move this)
{
    long result = begin(this.to, this.to + this.more);
    if (result)
        return result;
    result = upvm_call6(SYS_mremap, this.from, this.length, this.more,
                        this.flags | MREMAP_MAYMOVE | MREMAP_FIXED, this.to, 0);
    if (result < 0)
        return result;
    if (this.length && !(this.flags & MREMAP_DONTUNMAP))
        done(this.from, this.from + this.length, 0);
    done(this.to, this.to + this.more, 1);
    return result;
}

static long move_anywhere(struct move this)
{
    static const uintptr_t pages[2] = {UPVM_PAGE, HUGE};
    struct move one = this;
    long result = -ENOMEM;
    /* A map of huge pages refuses the first place; such a one cannot be copied. */
    for (int size = 0; size < (this.flags & MREMAP_DONTUNMAP ? 1 : 2); size++) {
        one.more = upvm_up(this.more, pages[size]);
        one.length = upvm_up(this.length, pages[size]);
        one.to = upvm_place(one.more, pages[size], upvm_heap_end());
        if (!one.to)
            return -ENOMEM;
        result = move(one);
        if (result != -EINVAL)
            break;
    }
    return result;
}

/* Changes the length where the map is. */
static long resize(struct move this)
{
    uintptr_t old = this.from + this.length, new = this.from + this.more;
    int grows = new > old;
    if (grows && (!is_own(old, new) || old < upvm_heap_end() || !upvm_is_free(old, new)))
        return -ENOMEM;
    long result = grows ? begin(old, new) : begin(new, old);
    if (result)
        return result;
    result = upvm_call(SYS_mremap, this.from, this.length, this.more, 0);
    if (result > 0 && grows)
        done(old, new, 1);
    else if (result > 0 && new < old)
        done(new, old, 0);
    return result;
}

static long remap(struct move this)
{
    if (!upvm_is_virtual())
        return upvm_call6(SYS_mremap, this.from, this.length, this.more, this.flags, this.to, 0);
    int is_fixed = this.flags & MREMAP_FIXED, stays = this.flags & MREMAP_DONTUNMAP;
    if (this.flags & ~(MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP) || !this.more ||
        (this.flags & ~MREMAP_MAYMOVE && !(this.flags & MREMAP_MAYMOVE)) ||
        this.from % UPVM_PAGE || (is_fixed && this.to % UPVM_PAGE))
        return -EINVAL;
    if (this.length > upvm_limit() || this.more > upvm_limit())
        return this.length > upvm_limit() ? -EFAULT : -ENOMEM;
    this.length = upvm_up(this.length, UPVM_PAGE);
    this.more = upvm_up(this.more, UPVM_PAGE);
    if (!is_own(this.from, this.from + this.length))
        return -EFAULT;
    long result = begin(this.from, this.from + this.length);
    if (result)
        return result;
    if (is_fixed)
        return is_own(this.to, this.to + this.more) ? move(this) : -EINVAL;
    if (stays || !this.length)
        return this.flags & MREMAP_MAYMOVE ? move_anywhere(this) : -EINVAL;
    result = resize(this);
    if (result < 0 && this.more > this.length && this.flags & MREMAP_MAYMOVE)
        result = move_anywhere(this);
    return result;
}

void *mremap(void *from, size_t length, size_t more, int flags, ...)
{
    __builtin_va_list all;
    __builtin_va_start(all, flags);
    void *to = flags & MREMAP_FIXED ? __builtin_va_arg(all, void *) : 0;
    __builtin_va_end(all);
    return (void *)upvm_returns(
        remap((struct move){(uintptr_t)from, length, more, (uintptr_t)to, flags}));
}

/* Returns 1 if the program may change how these addresses are accessed. */
static int is_reachable(uintptr_t at, size_t length)
{
    if (!upvm_known_table || upvm_in_child)
        return 1;
    return at >= ((uintptr_t)upvm_known_table & -UPVM_SLOT) && at <= upvm_limit() &&
           length <= upvm_limit() - at;
}

int mprotect(void *at, size_t length, int protection)
{
    uintptr_t start = (uintptr_t)at;
    if (length && !is_reachable(start, length))
        return upvm_returns(-ENOMEM);
    if (upvm_known_table && !upvm_in_child && start < upvm_heap_end() &&
        start + length > upvm_known_table[UPVM_TABLE_HEAP])
        upvm_heap_changed = 1;
    return upvm_returns(upvm_call(SYS_mprotect, start, length, protection, 0));
}

/* Advice on how memory will be used changes nothing in it. */
int madvise(void *at, size_t length, int advice)
{
    if ((advice < MADV_NORMAL || advice > MADV_WILLNEED) && !is_reachable((uintptr_t)at, length))
        return upvm_returns(-ENOMEM);
    return upvm_returns(upvm_call(SYS_madvise, (long)at, length, advice, 0));
}

static long attach(int segment, uintptr_t at, int flags)
{
    if (!upvm_is_virtual())
        return upvm_call(SYS_shmat, segment, at, flags, 0);
    struct shmid_ds about;
    long result = upvm_call(SYS_shmctl, segment, IPC_STAT, (long)&about, 0);
    if (result < 0)
        return result;
    uintptr_t length = upvm_up(about.shm_segsz, UPVM_PAGE);
    int anywhere = !at;
    if (anywhere)
        at = upvm_place(length, UPVM_PAGE, upvm_heap_end());
    else if (flags & SHM_RND)
        at &= -UPVM_PAGE;
    if (!at)
        return -ENOMEM;
    if (at % UPVM_PAGE || !is_own(at, at + length) ||
        (!(flags & SHM_REMAP) && (at < upvm_heap_end() || !upvm_is_free(at, at + length))))
        return -EINVAL;
    result = begin(at, at + length);
    if (result)
        return result;
    result = upvm_call(SYS_shmat, segment, at, flags, 0);
    if (result > 0) {
        done(at, at + length, 1);
        upvm_attach(at, at + length);
    }
    return result;
}

void *shmat(int segment, const void *at, int flags)
{
    return (void *)upvm_returns(attach(segment, (uintptr_t)at, flags));
}

int shmdt(const void *at)
{
    if (upvm_is_virtual() && !is_own((uintptr_t)at, (uintptr_t)at))
        return upvm_returns(-EINVAL);
    long result = upvm_call(SYS_shmdt, (long)at, 0, 0, 0);
    if (!result && upvm_is_virtual()) {
        uintptr_t end = upvm_attached((uintptr_t)at);
        if (end)
            done((uintptr_t)at, end, 0);
    }
    return upvm_returns(result);
}

UPVM_ALSO(mmap, mmap64);
UPVM_ALSO(mmap, __mmap);
UPVM_ALSO(mmap, __mmap64);
UPVM_ALSO(munmap, __munmap);
UPVM_ALSO(mremap, __mremap);
UPVM_ALSO(mprotect, __mprotect);
UPVM_ALSO(madvise, __madvise);
