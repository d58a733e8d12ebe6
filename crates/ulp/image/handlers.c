/* Runs the handlers of pending signals, and raises signals of the program's own. Other handlers may
 * interrupt this, so it is not part of the library's code during which no handler runs (build.rs):
 * nothing here is left half done where a handler could see it. */

#define _GNU_SOURCE
#include "calls.h"
#include "handlers.h"
#include "usage.h"

struct sigaction upvm_actions[65];
int upvm_restarts;

unsigned long upvm_handled;

/* Runs one handler, as the kernel would. Others may interrupt this. So the signals that are to wait
 * for the handler are blocked before this one is claimed, and the former mask is restored
 * afterwards. Returns 1 if the signal was pending. */
static int handle(uint64_t *table, int number, int *restarts)
{
    uint64_t blocked = table[UPVM_TABLE_BLOCKED];
    table[UPVM_TABLE_BLOCKED] = blocked | BIT(number);
    struct sigaction action = upvm_actions[number];
    if (!(table[UPVM_TABLE_HANDLED] & BIT(number)) || !upvm_claims(table, number)) {
        table[UPVM_TABLE_BLOCKED] = blocked;
        return 0;
    }
    if (action.sa_flags & SA_RESETHAND) {
        table[UPVM_TABLE_HANDLED] &= ~BIT(number);
        upvm_actions[number].sa_handler = SIG_DFL;
    }
    *restarts &= action.sa_flags & SA_RESTART ? 1 : 0;
    upvm_handled++;
    table[UPVM_TABLE_BLOCKED] = (blocked | upvm_bits(&action.sa_mask) |
                                 (action.sa_flags & SA_NODEFER ? 0 : BIT(number))) &
                                ~NEVER;
    int error = errno;
    if (action.sa_flags & SA_SIGINFO) {
        siginfo_t about = {.si_signo = number, .si_code = SI_USER};
        about.si_pid = getpid();
        action.sa_sigaction(number, &about, 0);
    } else {
        action.sa_handler(number);
    }
    errno = error;
    table[UPVM_TABLE_BLOCKED] = blocked;
    return 1;
}

static uint64_t comes(const uint64_t *table)
{
    return table[UPVM_TABLE_SIGNALS] & ~table[UPVM_TABLE_BLOCKED] & ~table[UPVM_TABLE_WAITED];
}

/* A handler may ask something itself, whose answer must not replace that of the question which it
 * interrupts. */
void upvm_signals(uint64_t *table)
{
    if (!comes(table))
        return;
    uint64_t reply[UPVM_REPLY_WORDS];
    memcpy(reply, &table[UPVM_TABLE_REPLY], sizeof reply);
    int restarts = 1;
    for (uint64_t come; (come = comes(table));) {
        int number = __builtin_ctzl(come) + 1;
        /* A signal without a handler was blocked when it arrived. */
        if (!handle(table, number, &restarts) && !(table[UPVM_TABLE_HANDLED] & BIT(number)) &&
            upvm_claims(table, number))
            upvm_raise(number);
    }
    upvm_restarts = restarts;
    memcpy(&table[UPVM_TABLE_REPLY], reply, sizeof reply);
}

/* Called from interrupted.S. Handlers run here if the host allows it. */
__attribute__((used)) void upvm_look_around(uint64_t *table)
{
    long may = upvm_ask_quietly(table, UPVM_ASK_INTERRUPTED, 0, 0, 0, 0);
    upvm_interrupt_time();
    upvm_check_time(table);
    if (may)
        upvm_signals(table);
}

/* By default these signals do nothing, and nothing can be stopped here. */
static int is_harmless(int number)
{
    return number == SIGCHLD || number == SIGURG || number == SIGWINCH || number == SIGCONT ||
           number == SIGTSTP || number == SIGTTIN || number == SIGTTOU || number == SIGSTOP;
}

/* Raises a signal of this program itself. A blocked signal waits; anything else is done before this
 * returns. */
int upvm_raise(int number)
{
    uint64_t *table = upvm_table();
    if (!number)
        return 0;
    if (!upvm_is_signal(number))
        return -EINVAL;
    if (!table || upvm_in_child || BIT(number) & CRASHES)
        return upvm_call(SYS_tgkill, upvm_call(SYS_getpid, 0, 0, 0, 0),
                         upvm_call(SYS_gettid, 0, 0, 0, 0), number, 0);
    if (!(BIT(number) & NEVER)) {
        if ((table[UPVM_TABLE_BLOCKED] | table[UPVM_TABLE_HANDLED]) & BIT(number)) {
            upvm_note(table, BIT(number));
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

/* The group that the kernel would take for the caller's is the host's, with other processes that
 * the shell has put there. A program acts as if it were alone in it. */
static int is_own_group(pid_t process)
{
    return process == 0 || (process < -1 && -process == upvm_call(SYS_getpgid, 0, 0, 0, 0));
}

int kill(pid_t process, int number)
{
    if (number && !upvm_is_signal(number))
        return upvm_returns(-EINVAL);
    if (upvm_is_own(process))
        return upvm_returns(upvm_raise(number));
    if (upvm_is_virtual()) {
        if (is_own_group(process))
            return upvm_returns(upvm_raise(number));
        /* The call is for all processes but its own, among them the host. */
        if (process == -1)
            return upvm_returns(-EPERM);
    }
    return upvm_returns(upvm_call(SYS_kill, process, number, 0, 0));
}

int sigqueue(pid_t process, int number, const union sigval value)
{
    (void)value;
    return kill(process, number);
}

int pthread_kill(pthread_t thread, int number)
{
    (void)thread; /* there is only one */
    return -upvm_raise(number);
}

int sigprocmask(int how, const sigset_t *set, sigset_t *old)
{
    uint64_t *table = upvm_table();
    if (!table || upvm_in_child)
        return upvm_returns(upvm_call(SYS_rt_sigprocmask, how, (long)set, (long)old, 8));
    uint64_t blocked = table[UPVM_TABLE_BLOCKED], word = set ? upvm_bits(set) : 0;
    upvm_tell_bits(old, blocked);
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

UPVM_ALSO(raise, gsignal);
UPVM_ALSO(kill, __kill);
UPVM_ALSO(sigqueue, __sigqueue);
UPVM_ALSO(pthread_kill, __pthread_kill);
UPVM_ALSO(sigprocmask, __sigprocmask);
UPVM_ALSO(pthread_sigmask, __pthread_sigmask);
