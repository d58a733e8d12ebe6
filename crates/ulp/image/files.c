/* The program's descriptors: a table from its numbers to the process's descriptors.
 *
 * Each program sees what it would see in a process of its own. A new descriptor gets the lowest
 * free number. A number that this program has not opened is invalid, even if another program has
 * it. At first a program has the process's 0, 1 and 2.
 *
 * The process's descriptors of programs are all closed in children (FD_CLOEXEC), so that no child
 * gets those of another program. Which ones a child inherits is in the table (inherit.c).
 *
 * The host's record names the owner of each of the process's descriptors, so that the host closes
 * those that a program leaves open (src/descriptors.rs). This code, too, closes only descriptors
 * that belong to the program: not the process's 0, 1 and 2. An entry of the record is deleted
 * before the descriptor is closed, since the kernel may give the same one to the host at once.
 *
 * No handler of a signal runs in this code, so none finds the table half changed. */

#define _GNU_SOURCE
#include "calls.h"
#include <fcntl.h>
#include <limits.h>
#include <linux/close_range.h>
#include <sys/resource.h>
#include <unistd.h>

char upvm_in_child;
int upvm_most_files;

static struct owners {
    uint32_t end;
    uint16_t slots[UPVM_FILES];
} *owners(void)
{
    return (struct owners *)upvm_table()[UPVM_TABLE_OWNERS];
}

static uint16_t own_mark(void)
{
    return ((uintptr_t)upvm_table() - UPVM_FIRST) / UPVM_SLOT + 1;
}

static int is_own(int real)
{
    return real >= 0 && real < (int)UPVM_FILES && owners()->slots[real] == own_mark();
}

/* Programs that run on other threads of the host write the record, too. */
static void note(int real)
{
    uint32_t end = __atomic_load_n(&owners()->end, __ATOMIC_RELAXED);
    while (end <= (uint32_t)real &&
           !__atomic_compare_exchange_n(&owners()->end, &end, real + 1, 0, __ATOMIC_RELEASE,
                                        __ATOMIC_RELAXED))
        ;
    __atomic_store_n(&owners()->slots[real], own_mark(), __ATOMIC_RELEASE);
}

long upvm_hold(long real)
{
    if (upvm_is_virtual() && real > 2 && real < (long)UPVM_FILES)
        note(real);
    return real;
}

long upvm_let_go(int real)
{
    if (upvm_is_virtual()) {
        if (!is_own(real))
            return 0;
        __atomic_store_n(&owners()->slots[real], 0, __ATOMIC_RELEASE);
    }
    return upvm_call(SYS_close, real, 0, 0, 0);
}

int upvm_is_lost(int real)
{
    return upvm_is_virtual() && real > 2 && !is_own(real);
}

/* All numbers below range[0] are open, and none from range[1] on. */
static upvm_entry *range(void)
{
    return (upvm_entry *)&upvm_table()[UPVM_TABLE_FILES_RANGE];
}

static upvm_entry entry(int number)
{
    return number >= 0 && number < range()[1] ? *upvm_entry_of(upvm_table(), number) : 0;
}

static void enter(int number, int real, int inherited)
{
    *upvm_entry_of(upvm_table(), number) = (real + 1) << 1 | (inherited ? 1 : 0);
    if (number >= range()[1])
        range()[1] = number + 1;
    if (number == range()[0])
        range()[0]++;
}

/* The table's size is a limit, too. */
static int most(void)
{
    return upvm_most_files < (int)UPVM_FILES ? upvm_most_files : (int)UPVM_FILES;
}

/* The lowest number from `least` on that is free; -1 if the program may have no more. */
static int unused(int least)
{
    int number = least > range()[0] ? least : range()[0];
    while (number < range()[1] && *upvm_entry_of(upvm_table(), number))
        number++;
    return number < most() ? number : -1;
}

long upvm_may_open(int more)
{
    for (int number = 0; upvm_is_virtual() && more--; number++)
        if ((number = unused(number)) < 0)
            return -EMFILE;
    return 0;
}

void upvm_files_begin(void)
{
    struct rlimit limit = {0, 0};
    upvm_call(SYS_prlimit64, 0, RLIMIT_NOFILE, 0, (long)&limit);
    upvm_most_files = limit.rlim_cur < INT_MAX ? (int)limit.rlim_cur : INT_MAX;
}

/* As upvm_taken, from this number on. */
static long taken(long real, int least, int inherited)
{
    if (real < 0)
        return real;
    /* A host without a 0, 1 or 2 of its own. */
    if (real < 3) {
        long other = upvm_call(SYS_fcntl, real, F_DUPFD_CLOEXEC, 3, 0);
        upvm_call(SYS_close, real, 0, 0, 0);
        if ((real = other) < 0)
            return other;
    }
    int number = unused(least);
    if (number < 0 || real >= (long)UPVM_FILES) {
        upvm_call(SYS_close, real, 0, 0, 0);
        return -EMFILE;
    }
    note(real);
    enter(number, real, inherited);
    return number;
}

int upvm_taken(long real, int inherited)
{
    return upvm_returns(upvm_is_virtual() ? taken(real, 0, inherited) : real);
}

int upvm_inherits(int number, int now)
{
    if (!entry(number))
        return -1;
    upvm_entry *one = upvm_entry_of(upvm_table(), number);
    if (now >= 0)
        *one = (*one & ~1) | now;
    return *one & 1;
}

int close(int number)
{
    if (!upvm_is_virtual())
        return upvm_returns(upvm_call(SYS_close, number, 0, 0, 0));
    int real = upvm_real(number);
    if (real < 0)
        return upvm_returns(-EBADF);
    *upvm_entry_of(upvm_table(), number) = 0;
    if (number < range()[0])
        range()[0] = number;
    return upvm_returns(upvm_let_go(real));
}

int close_range(unsigned int first, unsigned int last, int flags)
{
    if (!upvm_is_virtual())
        return upvm_returns(upvm_call(SYS_close_range, first, last, flags, 0));
    if (first > last || flags & ~(CLOSE_RANGE_UNSHARE | CLOSE_RANGE_CLOEXEC))
        return upvm_returns(-EINVAL);
    for (unsigned one = first; one <= last && one < (unsigned)range()[1]; one++) {
        if (flags & CLOSE_RANGE_CLOEXEC)
            upvm_inherits(one, 0);
        else if (entry(one))
            close(one);
    }
    return 0;
}

void closefrom(int first)
{
    close_range(first < 0 ? 0 : first, ~0u, 0);
}

/* Has `to` refer to what `from` does. What `to` referred to before is replaced at once, or not at
 * all. */
static long duplicate(int from, int to, int flags)
{
    if (!upvm_is_virtual())
        return upvm_call(SYS_dup3, from, to, flags, 0);
    int real = upvm_real(from);
    if (real < 0 || to < 0 || to >= most())
        return -EBADF;
    int before = upvm_real(to);
    long done = is_own(before) ? upvm_call(SYS_dup3, real, before, O_CLOEXEC, 0)
                               : upvm_hold(upvm_call(SYS_fcntl, real, F_DUPFD_CLOEXEC, 3, 0));
    if (done < 0)
        return done;
    if (done >= (long)UPVM_FILES)
        return upvm_call(SYS_close, done, 0, 0, 0), -EMFILE;
    enter(to, done, !(flags & O_CLOEXEC));
    return to;
}

int dup3(int from, int to, int flags)
{
    return upvm_returns(from == to || flags & ~O_CLOEXEC ? -EINVAL : duplicate(from, to, flags));
}

int dup2(int from, int to)
{
    if (from != to)
        return upvm_returns(duplicate(from, to, 0));
    long flags = upvm_call(SYS_fcntl, upvm_real(from), F_GETFD, 0, 0);
    return flags < 0 ? upvm_returns(flags) : to;
}

long upvm_duplicate(int number, int least, int inherited)
{
    int real = upvm_real(number);
    if (real < 0)
        return -EBADF;
    if (least < 0 || least >= most())
        return -EINVAL;
    if (unused(least) < 0)
        return -EMFILE;
    return taken(upvm_call(SYS_fcntl, real, F_DUPFD_CLOEXEC, 3, 0), least, inherited);
}

int dup(int number)
{
    return upvm_returns(upvm_is_virtual() ? upvm_duplicate(number, 0, 1)
                                          : upvm_call(SYS_dup, number, 0, 0, 0));
}

UPVM_ALSO(close, __close);
UPVM_ALSO(close, __libc_close);
UPVM_ALSO(close, __close_nocancel);
UPVM_ALSO(close_range, __close_range);
UPVM_ALSO(closefrom, __closefrom);
UPVM_ALSO(dup, __dup);
UPVM_ALSO(dup2, __dup2);
UPVM_ALSO(dup3, __dup3);
