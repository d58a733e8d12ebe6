/* System calls by number, and how an image waits without blocking in one. */
#ifndef UPVM_CALLS_H
#define UPVM_CALLS_H

#include <errno.h>
#include <poll.h>
#include <signal.h>
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

/* The process's descriptors for this program's 0, 1 and 2: it may have closed its own, which other
 * programs still have. */
extern int upvm_standard[3];
static inline int upvm_real(int descriptor)
{
    return (unsigned)descriptor < 3 && !upvm_in_child ? upvm_standard[descriptor] : descriptor;
}

/* Records a descriptor that this program has opened; passes an error through. The descriptor is
 * closed when the program ends, and its children have it only if it is inherited. */
int upvm_opened(int descriptor, int inherited);

/* Gives a descriptor that the kernel has just made to this program. Returns its number, or -1 and
 * sets errno, as for an error of the kernel's, which it passes through. */
int upvm_taken(long real, int inherited);

extern uint64_t upvm_inherited[UPVM_DESCRIPTORS / 64];

/* Waits until this descriptor is ready for these events or has an error (which the call itself then
 * reports), or until a number of nanoseconds (-1: no limit) has passed. Returns 1, 0, or -EINTR.
 * Takes a real descriptor. */
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
