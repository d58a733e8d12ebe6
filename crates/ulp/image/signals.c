/* Signals of this program: what it does with each is in its slot's table, where the host looks when
 * a signal comes. The host marks a signal that has a handler as pending. The handler runs when a
 * question returns, when the signal is no longer blocked, or where the program is interrupted in
 * its own code (handlers.c).
 *
 * Crash signals belong to the host: they end the program, and handlers for them are refused. */

#define _GNU_SOURCE
#include "calls.h"
#include "handlers.h"
#include "reasons.h"
#include <signal.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static stack_t stack = {.ss_flags = SS_DISABLE};

int sigaction(int number, const struct sigaction *new, struct sigaction *old)
{
    uint64_t *table = upvm_table();
    if (!upvm_is_signal(number))
        return upvm_returns(-EINVAL);
    if (new && BIT(number) & (CRASHES | NEVER) && new->sa_handler != SIG_DFL)
        return upvm_returns(-EINVAL);
    /* A pending signal is for the former handler. */
    if (table && new)
        upvm_signals(table);
    if (old)
        *old = upvm_actions[number];
    if (!new || !table)
        return 0;
    upvm_actions[number] = *new;
    uint64_t ignored = new->sa_handler == SIG_IGN ? BIT(number) : 0;
    uint64_t handled = !ignored && new->sa_handler != SIG_DFL ? BIT(number) : 0;
    /* The program may be interrupted here too, and must not be ended by a signal that it handles or
     * ignores both before and after. */
    table[UPVM_TABLE_HANDLED] |= handled;
    table[UPVM_TABLE_IGNORED] |= ignored;
    if (!handled)
        table[UPVM_TABLE_HANDLED] &= ~BIT(number);
    if (!ignored)
        table[UPVM_TABLE_IGNORED] &= ~BIT(number);
    if (ignored)
        upvm_forget(table, BIT(number));
    return 0;
}

int upvm_masked(const sigset_t *mask, sigset_t *before)
{
    uint64_t *table = upvm_table();
    sigset_t empty = *mask;
    if (!table)
        return sigprocmask(SIG_SETMASK, mask, before), 0;
    unsigned long handled = upvm_handled;
    sigprocmask(SIG_SETMASK, &empty, before);
    return upvm_handled != handled;
}

int sigpending(sigset_t *set)
{
    uint64_t *table = upvm_table();
    if (!table)
        return upvm_returns(upvm_call(SYS_rt_sigpending, (long)set, 8, 0, 0));
    upvm_tell_bits(set, table[UPVM_TABLE_SIGNALS]);
    return 0;
}

/* No signal is lost between the check and the wait: the host checks too before it lets a program
 * wait. */
int sigsuspend(const sigset_t *mask)
{
    uint64_t *table = upvm_table();
    if (!table)
        return upvm_returns(upvm_call(SYS_rt_sigsuspend, (long)mask, 8, 0, 0));
    sigset_t before;
    if (!upvm_masked(mask, &before))
        UPVM_ASK(table, UPVM_ASK_SLEEP, -1, 0, 0, 0);
    sigprocmask(SIG_SETMASK, &before, 0);
    return upvm_returns(-EINTR);
}

int sigtimedwait(const sigset_t *set, siginfo_t *about, const struct timespec *time)
{
    uint64_t *table = upvm_table(), wanted = upvm_bits(set) & ~NEVER, come;
    if (!table)
        return upvm_returns(upvm_call(SYS_rt_sigtimedwait, (long)set, (long)about, (long)time, 8));
    table[UPVM_TABLE_WAITED] = wanted;
    long done = 0;
    if (!(table[UPVM_TABLE_SIGNALS] & wanted))
        done = upvm_ask_quietly(table, UPVM_ASK_SLEEP,
                                time ? time->tv_sec * 1000000000 + time->tv_nsec : -1, 0, 0, 0);
    come = table[UPVM_TABLE_SIGNALS] & wanted;
    int number = come ? __builtin_ctzl(come) + 1 : 0;
    if (number)
        upvm_forget(table, BIT(number));
    /* Handlers of other signals run after the wait is over, since they may leave by a jump. */
    table[UPVM_TABLE_WAITED] = 0;
    upvm_signals(table);
    if (!number)
        return upvm_returns(done == -EINTR ? -EINTR : -EAGAIN);
    if (about)
        *about = (siginfo_t){.si_signo = number, .si_code = SI_USER};
    return number;
}

int sigwaitinfo(const sigset_t *set, siginfo_t *about)
{
    return sigtimedwait(set, about, 0);
}

int sigwait(const sigset_t *set, int *number)
{
    int got;
    do
        got = sigtimedwait(set, 0, 0);
    while (got < 0 && errno == EINTR);
    if (got < 0)
        return errno;
    *number = got;
    return 0;
}

/* The kernel's SS_AUTODISARM, which libc's header lacks. */
#define DISARMS (1u << 31)

/* Handlers run on the program's own stack: the kernel's alternate stack belongs to the host. */
int sigaltstack(const stack_t *new, stack_t *old)
{
    if (!upvm_table())
        return upvm_returns(upvm_call(SYS_sigaltstack, (long)new, (long)old, 0, 0));
    if (new && (unsigned)new->ss_flags & ~(SS_DISABLE | SS_ONSTACK | DISARMS))
        return upvm_returns(-EINVAL);
    if (new && !(new->ss_flags & SS_DISABLE) && new->ss_size < (size_t)MINSIGSTKSZ)
        return upvm_returns(-ENOMEM);
    if (old)
        *old = stack;
    if (new)
        stack = *new;
    return 0;
}

static long timer(long first, long second, int set, struct itimerval *old)
{
    uint64_t *table = upvm_table();
    if (!table)
        return -ENOSYS;
    long done = UPVM_ASK(table, UPVM_ASK_TIMER, first, second, set, 0);
    long left = table[UPVM_TABLE_REPLY], again = table[UPVM_TABLE_REPLY + 1];
    if (old && !done) {
        old->it_value = (struct timeval){left / 1000000000, (left % 1000000000 + 999) / 1000};
        old->it_interval = (struct timeval){again / 1000000000, again % 1000000000 / 1000};
        if (old->it_value.tv_usec == 1000000)
            old->it_value = (struct timeval){old->it_value.tv_sec + 1, 0};
    }
    return done;
}

static long whole(const struct timeval *time)
{
    long all;
    if (time->tv_sec < 0 || time->tv_usec < 0 || time->tv_usec > 999999)
        return -1;
    return __builtin_mul_overflow(time->tv_sec, 1000000000L, &all) ? INT64_MAX / 2
                                                                   : all + time->tv_usec * 1000;
}

int setitimer(enum __itimer_which kind, const struct itimerval *new, struct itimerval *old)
{
    if (kind == ITIMER_VIRTUAL || kind == ITIMER_PROF) {
        /* It has no such timer. */
        if (new && !new->it_value.tv_sec && !new->it_value.tv_usec)
            return getitimer(kind, old);
        return upvm_returns(upvm_refuse(
            kind == ITIMER_PROF ? "setitimer(ITIMER_PROF)" : "setitimer(ITIMER_VIRTUAL)",
            "it counts the time of all tasks; use ITIMER_REAL, or ask by clock"));
    }
    if (kind != ITIMER_REAL || !new)
        return upvm_returns(-EINVAL);
    long first = whole(&new->it_value), second = whole(&new->it_interval);
    return upvm_returns(first < 0 || second < 0 ? -EINVAL : timer(first, second, 1, old));
}

int getitimer(enum __itimer_which kind, struct itimerval *old)
{
    if (kind == ITIMER_VIRTUAL || kind == ITIMER_PROF) {
        if (old)
            *old = (struct itimerval){{0, 0}, {0, 0}};
        return 0;
    }
    return upvm_returns(kind != ITIMER_REAL ? -EINVAL : timer(0, 0, 0, old));
}

unsigned int alarm(unsigned int seconds)
{
    struct itimerval new = {{0, 0}, {seconds, 0}}, old = {0};
    if (setitimer(ITIMER_REAL, &new, &old) < 0)
        return 0;
    unsigned left = old.it_value.tv_sec + (old.it_value.tv_usec >= 500000);
    return left || !old.it_value.tv_usec ? left : 1;
}

int timer_create(clockid_t clock, struct sigevent *event, timer_t *made)
{
    (void)clock, (void)event, (void)made;
    return upvm_returns(upvm_refuse("timer_create", TIMERS));
}

UPVM_ALSO(sigaction, __sigaction);
UPVM_ALSO(sigsuspend, __sigsuspend);
UPVM_ALSO(sigsuspend, __libc_sigsuspend);
UPVM_ALSO(sigtimedwait, __sigtimedwait);
UPVM_ALSO(sigwaitinfo, __sigwaitinfo);
UPVM_ALSO(sigwaitinfo, __libc_sigwaitinfo);
UPVM_ALSO(sigwait, __sigwait);
UPVM_ALSO(sigwait, __libc_sigwait);
UPVM_ALSO(sigaltstack, __sigaltstack);
UPVM_ALSO(setitimer, __setitimer);
UPVM_ALSO(getitimer, __getitimer);
UPVM_ALSO(timer_create, ___timer_create);
