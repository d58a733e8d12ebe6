/* System calls by number, and how an image waits without blocking in one. */
#ifndef UPVM_CALLS_H
#define UPVM_CALLS_H

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include "image.h"

/* Gives a library function another name. libc has it by other names too, and calls from libc by
 * those must come here. */
#define UPVM_ALSO(name, other) extern __typeof(name) other __attribute__((alias(#name)))

/* Makes a system call, by the host's instruction for it (kernel.S). */
long upvm_call6(long number, long a, long b, long c, long d, long e, long f);

static inline long upvm_call(long number, long a, long b, long c, long d)
{
    return upvm_call6(number, a, b, c, d, 0, 0);
}

/* poll(2) without waiting. The host's interrupts may end it too; it is then called again. */
static inline long upvm_poll_now(struct pollfd *all, unsigned long count)
{
    long found;
    do
        found = upvm_call(SYS_poll, (long)all, count, 0, 0);
    while (found == -EINTR);
    return found;
}

/* Returns a result as libc's functions do. */
static inline long upvm_returns(long result)
{
    if (result >= 0)
        return result;
    errno = -result;
    return -1;
}

/* The result of one of libc's functions, as a system call returns it. */
static inline long upvm_result(long result)
{
    return result == -1 ? -errno : result;
}

/* Set while a child of this process runs on this memory, before it becomes another program: what it
 * does affects its own descriptors. */
extern char upvm_in_child;

/* Returns 1 if the program runs as a task, with descriptors, memory and limits of its own. Without
 * a host, and in a child that is not another program yet, it has those of the process. */
static inline int upvm_is_virtual(void)
{
    return upvm_table() && !upvm_in_child;
}

/* The entry of one of the program's descriptors; files.c has the rest. */
typedef int32_t __attribute__((may_alias)) upvm_entry;
static inline upvm_entry *upvm_entry_of(uint64_t *table, int number)
{
    if (number < UPVM_NEAR_FILES)
        return (upvm_entry *)&table[UPVM_TABLE_FILES] + number;
    return (upvm_entry *)table[UPVM_TABLE_HEAP_END] + number;
}

/* The process's descriptor for one of the program's; -1 if that is not open, so that the kernel
 * answers with EBADF. Numbers below 0, as AT_FDCWD, stay as they are. */
static inline int upvm_real(int number)
{
    uint64_t *table = upvm_known_table;
    if (!table || upvm_in_child || number < 0)
        return number;
    if (number >= ((upvm_entry *)&table[UPVM_TABLE_FILES_RANGE])[1])
        return -1;
    return (*upvm_entry_of(table, number) >> 1) - 1;
}

/* One more than the highest number that a descriptor of this program may have (RLIMIT_NOFILE). */
extern int upvm_most_files;

/* Gives a descriptor that the kernel has just made to this program, under the lowest free number.
 * The descriptor has FD_CLOEXEC; `inherited` says whether children get it all the same. It is
 * closed when the program ends. Returns the number, or -1 and sets errno; passes a negative error
 * of the kernel's on in the same way. */
int upvm_taken(long real, int inherited);

/* Returns -EMFILE, as the kernel does before it makes descriptors, if the program may not have so
 * many more, and 0 otherwise. */
long upvm_may_open(int more);

/* Returns 0 for an address that no program has: the kernel is to report it. */
static inline int upvm_is_address(const void *address)
{
    return (intptr_t)address >= (intptr_t)UPVM_PAGE;
}

/* FD_CLOEXEC and its like, for a call that makes a descriptor for the program. */
static inline int upvm_cloexec(int flag)
{
    return upvm_is_virtual() ? flag : 0;
}

/* Records a descriptor of this library's own, which has no number: it is closed when the program
 * ends. Returns it, or passes an error through. */
long upvm_hold(long real);

/* Closes a descriptor of the process's, if it belongs to this program. */
long upvm_let_go(int real);

/* Returns 1 if this descriptor of the process's was closed by a handler of the program's, while the
 * program waited for it: it may be another program's by now. */
int upvm_is_lost(int real);

/* Returns 1 if children get this descriptor, 0 if not, and -1 if it is not open. Sets that first,
 * unless `now` is -1. */
int upvm_inherits(int number, int now);

/* The path by which the process opens what the program has at this one: the same, or one in `room`
 * for the program's own descriptor (/proc/self/fd, /dev/fd, /dev/stdin and the like). */
const char *upvm_path(const char *path, char room[4096]);

/* Makes a further number of one of the program's descriptors, from `least` on. Returns it, or a
 * negative error. */
long upvm_duplicate(int number, int least, int inherited);

/* Makes the list of what a child first does with descriptors: it gets those of the program that it
 * inherits, under their numbers, and then does what is `given`. Returns 0, or an error; either way
 * the caller destroys the list. */
int upvm_give(const posix_spawn_file_actions_t *given, posix_spawn_file_actions_t *made);

/* Returns 1 if a child gets other descriptors than the kernel would give it. */
int upvm_gives(void);

/* Waits until this descriptor is ready for these events or has an error (which the call itself then
 * reports), or until a number of nanoseconds (-1: no limit) has passed. Returns 1, 0, -EINTR, or
 * -EBADF if a handler has closed the descriptor. Takes a real descriptor. */
long upvm_ready(int descriptor, short events, long nanoseconds);

/* Returns 1 if calls for this descriptor must not wait. */
int upvm_never_waits(int descriptor);

/* Runs the call on another thread, while other programs run here. Returns the call's result. */
long upvm_aside(long number, long a, long b, long c, long d, long e, long f);

/* The same, repeated if it was interrupted by handlers that allow it. */
long upvm_aside_again(long number, long a, long b, long c, long d, long e, long f);

/* Returns 1 if an interrupted call is to be made again. */
static inline int upvm_again(long result)
{
    return result == -EINTR && upvm_restarts;
}

/* Lets others run: a program that polls in a loop waits for them. */
void upvm_pause(void);

/* The same, in a call for this descriptor of the process's. Returns 0, or -EBADF if a handler has
 * closed it. */
long upvm_pause_for(int real);

/* Sets this mask and stores the former one. Returns 1 if handlers of signals that were blocked have
 * run. */
int upvm_masked(const sigset_t *mask, sigset_t *before);

/* As raise(3). */
int upvm_raise(int signal);

/* As poll(2) with nanoseconds (-1: no limit), but returns -errno. Takes real descriptors. */
long upvm_poll_real(struct pollfd *all, unsigned long count, long nanoseconds);

/* Returns 1 if this number is the program's own: the one that `getpid` returns, or the kernel's for
 * the host. */
int upvm_is_own(pid_t process);

/* Reports that a call of this name is refused, and why. Returns -ENOSYS. */
long upvm_refuse(const char *name, const char *why);

/* Refuses a call of this name, with a line on standard error. Returns -1 and sets ENOSYS. */
int upvm_refuse_exec(const char *name);
int upvm_refuse_fork(const char *name);

/* Writes a line of the library's own to standard error, whole or not at all. It does not wait, and
 * raises no signal where the other end of a pipe is closed. */
void upvm_report(const char *line, unsigned long length);

/* Nanoseconds of CLOCK_MONOTONIC. */
long upvm_now(void);

#endif
