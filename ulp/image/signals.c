/* Signals of this program's own: what it does with each is in its slot's table, where the host looks when one comes. The
 * host writes down what comes for a handler, and that runs here when a question returns, or when it is not blocked any
 * more: so never in the middle of anything but a question.
 *
 * Signals of crashes are the host's: they end the program, and a handler for them is refused. */

#define _GNU_SOURCE
#include "calls.h"
#include <signal.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define BIT(number) (1ul << ((number)-1))
#define CRASHES (BIT(SIGSEGV) | BIT(SIGBUS) | BIT(SIGILL) | BIT(SIGFPE) | BIT(SIGABRT))
#define NEVER (BIT(SIGKILL) | BIT(SIGSTOP))

static struct sigaction actions[65];
static stack_t stack = {.ss_flags = SS_DISABLE};
int upvm_restarts;

static uint64_t bits(const sigset_t *set)
{
    uint64_t word;
    memcpy(&word, set, sizeof word);
    return word;
}

static void tell_bits(sigset_t *set, uint64_t word)
{
    if (!set)
        return;
    memset(set, 0, sizeof *set);
    memcpy(set, &word, sizeof word);
}

static int is_signal(int number)
{
    return number > 0 && number < 65;
}

/* One handler, as the kernel calls it. */
static void handle(uint64_t *table, int number)
{
    struct sigaction action = actions[number];
    if (action.sa_flags & SA_RESETHAND) {
        actions[number].sa_handler = SIG_DFL;
        table[UPVM_TABLE_HANDLED] &= ~BIT(number);
    }
    uint64_t blocked = table[UPVM_TABLE_BLOCKED];
    table[UPVM_TABLE_BLOCKED] = (blocked | bits(&action.sa_mask) | (action.sa_flags & SA_NODEFER ? 0 : BIT(number))) & ~NEVER;
    int error = errno;
    if (action.sa_flags & SA_SIGINFO) {
        siginfo_t about = {.si_signo = number, .si_code = SI_USER};
        about.si_pid = upvm_call(SYS_getpid, 0, 0, 0, 0);
        action.sa_sigaction(number, &about, 0);
    } else {
        action.sa_handler(number);
    }
    errno = error;
    table[UPVM_TABLE_BLOCKED] = blocked;
}

static uint64_t comes(const uint64_t *table)
{
    return table[UPVM_TABLE_SIGNALS] & ~table[UPVM_TABLE_BLOCKED] & ~table[UPVM_TABLE_WAITED];
}

/* A handler may ask for something itself, whose answer is not that of what it interrupts. */
void upvm_signals(uint64_t *table)
{
    if (!comes(table))
        return;
    uint64_t reply[UPVM_REPLY_WORDS];
    memcpy(reply, &table[UPVM_TABLE_REPLY], sizeof reply);
    int restarts = 1;
    for (uint64_t come; (come = comes(table));) {
        int number = __builtin_ctzl(come) + 1;
        table[UPVM_TABLE_SIGNALS] &= ~BIT(number);
        if (table[UPVM_TABLE_HANDLED] & BIT(number)) {
            restarts &= actions[number].sa_flags & SA_RESTART ? 1 : 0;
            handle(table, number);
        } else {
            upvm_raise(number); /* it was blocked when it came */
        }
    }
    upvm_restarts = restarts;
    memcpy(&table[UPVM_TABLE_REPLY], reply, sizeof reply);
}

int sigaction(int number, const struct sigaction *new, struct sigaction *old)
{
    uint64_t *table = upvm_table();
    if (!is_signal(number))
        return upvm_returns(-EINVAL);
    if (new && BIT(number) & (CRASHES | NEVER) && new->sa_handler != SIG_DFL)
        return upvm_returns(-EINVAL);
    if (old)
        *old = actions[number];
    if (!new || !table)
        return 0;
    actions[number] = *new;
    int ignored = new->sa_handler == SIG_IGN, handled = !ignored && new->sa_handler != SIG_DFL;
    table[UPVM_TABLE_IGNORED] = (table[UPVM_TABLE_IGNORED] & ~BIT(number)) | (ignored ? BIT(number) : 0);
    table[UPVM_TABLE_HANDLED] = (table[UPVM_TABLE_HANDLED] & ~BIT(number)) | (handled ? BIT(number) : 0);
    if (ignored)
        table[UPVM_TABLE_SIGNALS] &= ~BIT(number);
    return 0;
}

/* By default these do nothing, and nothing can be stopped here. */
static int is_harmless(int number)
{
    return number == SIGCHLD || number == SIGURG || number == SIGWINCH || number == SIGCONT || number == SIGTSTP ||
           number == SIGTTIN || number == SIGTTOU || number == SIGSTOP;
}

/* Of this program by itself: all that is blocked waits, and the rest is done before this returns. */
int upvm_raise(int number)
{
    uint64_t *table = upvm_table();
    if (!number)
        return 0;
    if (!is_signal(number))
        return -EINVAL;
    if (!table || upvm_in_child || BIT(number) & CRASHES)
        return upvm_call(SYS_tgkill, upvm_call(SYS_getpid, 0, 0, 0, 0), upvm_call(SYS_gettid, 0, 0, 0, 0), number, 0);
    if (!(BIT(number) & NEVER)) {
        if ((table[UPVM_TABLE_BLOCKED] | table[UPVM_TABLE_HANDLED]) & BIT(number)) {
            table[UPVM_TABLE_SIGNALS] |= BIT(number);
            upvm_signals(table);
            return 0;
        }
        if (table[UPVM_TABLE_IGNORED] & BIT(number))
            return 0;
    }
    if (!is_harmless(number))
        _exit(128 + number);
    return 0;
}

int raise(int number)
{
    return upvm_returns(upvm_raise(number));
}

int kill(pid_t process, int number)
{
    if (upvm_table() && !upvm_in_child && process == (pid_t)upvm_table()[UPVM_TABLE_PROCESS])
        return upvm_returns(upvm_raise(number));
    return upvm_returns(upvm_call(SYS_kill, process, number, 0, 0));
}

int sigqueue(pid_t process, int number, const union sigval value)
{
    (void)value;
    return kill(process, number);
}

int pthread_kill(pthread_t thread, int number)
{
    (void)thread; /* there is one */
    return -upvm_raise(number);
}

int sigprocmask(int how, const sigset_t *set, sigset_t *old)
{
    uint64_t *table = upvm_table();
    if (!table || upvm_in_child)
        return upvm_returns(upvm_call(SYS_rt_sigprocmask, how, (long)set, (long)old, 8));
    uint64_t blocked = table[UPVM_TABLE_BLOCKED], word = set ? bits(set) : 0;
    tell_bits(old, blocked);
    if (!set)
        return 0;
    if (how == SIG_BLOCK)
        blocked |= word;
    else if (how == SIG_UNBLOCK)
        blocked &= ~word;
    else if (how == SIG_SETMASK)
        blocked = word;
    else
        return upvm_returns(-EINVAL);
    table[UPVM_TABLE_BLOCKED] = blocked & ~NEVER;
    upvm_signals(table);
    return 0;
}

int pthread_sigmask(int how, const sigset_t *set, sigset_t *old)
{
    return sigprocmask(how, set, old) ? errno : 0;
}

int upvm_masked(const sigset_t *mask, sigset_t *before)
{
    uint64_t *table = upvm_table();
    sigset_t empty = *mask;
    if (!table)
        return sigprocmask(SIG_SETMASK, mask, before), 0;
    int handled = (table[UPVM_TABLE_SIGNALS] & ~bits(mask) & table[UPVM_TABLE_HANDLED]) != 0;
    sigprocmask(SIG_SETMASK, &empty, before);
    return handled;
}

int sigpending(sigset_t *set)
{
    uint64_t *table = upvm_table();
    if (!table)
        return upvm_returns(upvm_call(SYS_rt_sigpending, (long)set, 8, 0, 0));
    tell_bits(set, table[UPVM_TABLE_SIGNALS]);
    return 0;
}

/* No signal is lost between the look and the wait: the host writes them down while a question is asked only, and looks itself before it lets a program wait. */
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
    uint64_t *table = upvm_table(), wanted = bits(set) & ~NEVER, come;
    if (!table)
        return upvm_returns(upvm_call(SYS_rt_sigtimedwait, (long)set, (long)about, (long)time, 8));
    table[UPVM_TABLE_WAITED] = wanted;
    long done = 0;
    if (!(table[UPVM_TABLE_SIGNALS] & wanted))
        done = UPVM_ASK(table, UPVM_ASK_SLEEP, time ? time->tv_sec * 1000000000 + time->tv_nsec : -1, 0, 0, 0);
    table[UPVM_TABLE_WAITED] = 0;
    come = table[UPVM_TABLE_SIGNALS] & wanted;
    if (!come)
        return upvm_returns(done == -EINTR ? -EINTR : -EAGAIN);
    int number = __builtin_ctzl(come) + 1;
    table[UPVM_TABLE_SIGNALS] &= ~BIT(number);
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

/* Handlers run on the program's own stack: the kernel's other one is the host's. */
int sigaltstack(const stack_t *new, stack_t *old)
{
    if (!upvm_table())
        return upvm_returns(upvm_call(SYS_sigaltstack, (long)new, (long)old, 0, 0));
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
    return __builtin_mul_overflow(time->tv_sec, 1000000000L, &all) ? INT64_MAX / 2 : all + time->tv_usec * 1000;
}

int setitimer(enum __itimer_which kind, const struct itimerval *new, struct itimerval *old)
{
    /* Those that count processor time count all tasks'. */
    if (kind != ITIMER_REAL || !new)
        return upvm_returns(-EINVAL);
    long first = whole(&new->it_value), second = whole(&new->it_interval);
    return upvm_returns(first < 0 || second < 0 ? -EINVAL : timer(first, second, 1, old));
}

int getitimer(enum __itimer_which kind, struct itimerval *old)
{
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

/* Their signals would come to the process. */
int timer_create(clockid_t clock, struct sigevent *event, timer_t *made)
{
    (void)clock, (void)event, (void)made;
    return upvm_returns(-ENOSYS);
}

UPVM_ALSO(sigaction, __sigaction);
UPVM_ALSO(raise, gsignal);
UPVM_ALSO(kill, __kill);
UPVM_ALSO(sigqueue, __sigqueue);
UPVM_ALSO(pthread_kill, __pthread_kill);
UPVM_ALSO(sigprocmask, __sigprocmask);
UPVM_ALSO(pthread_sigmask, __pthread_sigmask);
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
