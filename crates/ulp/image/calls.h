/* System calls by number, as the kernel has them, and what can be done in place of waiting in one. */
#ifndef UPVM_CALLS_H
#define UPVM_CALLS_H

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include "image.h"

/* Of a library's function: libc has it by other names, too, and what of libc calls those is to come here. */
#define UPVM_ALSO(name, other) extern __typeof(name) other __attribute__((alias(#name)))

static inline long upvm_call6(long number, long a, long b, long c, long d, long e, long f)
{
    long result;
    register long fourth __asm__("r10") = d;
    register long fifth __asm__("r8") = e;
    register long sixth __asm__("r9") = f;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth), "r"(fifth), "r"(sixth)
                     : "rcx", "r11", "memory");
    return result;
}

static inline long upvm_call(long number, long a, long b, long c, long d)
{
    return upvm_call6(number, a, b, c, d, 0, 0);
}

/* poll(2) without waiting. The host's interrupts end it, too, and are nobody's concern. */
static inline long upvm_poll_now(struct pollfd *all, unsigned long count)
{
    long found;
    do
        found = upvm_call(SYS_poll, (long)all, count, 0, 0);
    while (found == -EINTR);
    return found;
}

/* As functions of libc return it. */
static inline long upvm_returns(long result)
{
    if (result >= 0)
        return result;
    errno = -result;
    return -1;
}

/* A child of this process's runs on this memory until it is another program: what it does is to its own descriptors. */
extern char upvm_in_child;

/* The process's descriptor for what this program has as its 0, 1 or 2: it may have closed its own, and others have theirs. */
extern int upvm_standard[3];
static inline int upvm_real(int descriptor)
{
    return (unsigned)descriptor < 3 && !upvm_in_child ? upvm_standard[descriptor] : descriptor;
}

/* A descriptor, or an error, that this program has opened: it is closed when the program ends, and its children have it, too, or not. */
int upvm_opened(int descriptor, int inherited);
extern uint64_t upvm_inherited[UPVM_DESCRIPTORS / 64];

/* Until this descriptor is ready for these events, or has an error, which the call itself is to tell; or so many nanoseconds are over (-1: any number). 1, 0, or -EINTR; real descriptors. */
long upvm_ready(int descriptor, short events, long nanoseconds);

/* Whether calls for this descriptor are not to wait. */
int upvm_never_waits(int descriptor);

/* The call runs on another thread, others go on here meanwhile. What it returns. */
long upvm_aside(long number, long a, long b, long c, long d, long e, long f);

/* The same, and again if it was interrupted by handlers that say so. */
long upvm_aside_again(long number, long a, long b, long c, long d, long e, long f);

/* Whether an interrupted call is to be made again. */
static inline int upvm_again(long result)
{
    return result == -EINTR && upvm_restarts;
}

/* Lets others run: who polls in a loop waits for them. */
void upvm_pause(void);

/* Has this mask, and tells the one before; whether handlers of what was blocked have run. */
int upvm_masked(const sigset_t *mask, sigset_t *before);

/* As raise(3). */
int upvm_raise(int signal);

/* As poll(2) with nanoseconds (-1: any number), but for -errno; real descriptors. */
long upvm_poll_real(struct pollfd *all, unsigned long count, long nanoseconds);

/* Whether this number is the program's own: the one that `getpid` returns, or the kernel's for the
 * host. */
int upvm_is_own(pid_t process);

/* Refuses a call of this name, with a line on standard error: -1, and ENOSYS in `errno`. */
int upvm_refuse_exec(const char *name);
int upvm_refuse_fork(const char *name);

/* Writes a line of the library's own to standard error, whole or not at all: it waits for nothing,
 * and raises no signal where the other end of a pipe is closed. */
void upvm_report(const char *line, unsigned long length);

/* Nanoseconds of CLOCK_MONOTONIC. */
long upvm_now(void);

#endif
