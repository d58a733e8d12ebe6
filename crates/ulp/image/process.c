/* The process as this program sees it: a number of its own.
 *
 * Signal handlers may run during these functions: nothing here is left half done. */

#define _GNU_SOURCE
#include "calls.h"
#include "reasons.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

/* The host's number for this program, which no process has: it is larger than any that the kernel
 * gives. A child that is not another program yet is a process of the kernel's. */
pid_t getpid(void)
{
    uint64_t *table = upvm_table();
    return table && !upvm_in_child ? (pid_t)table[UPVM_TABLE_PID]
                                   : (pid_t)upvm_call(SYS_getpid, 0, 0, 0, 0);
}

/* A program is one thread, whose number is the process's. */
pid_t gettid(void)
{
    return upvm_is_virtual() ? getpid() : (pid_t)upvm_call(SYS_gettid, 0, 0, 0, 0);
}

/* The number that the host chooses: the same wherever the program runs. */
pid_t getppid(void)
{
    uint64_t *table = upvm_table();
    return table && !upvm_in_child ? (pid_t)table[UPVM_TABLE_PARENT]
                                   : (pid_t)upvm_call(SYS_getppid, 0, 0, 0, 0);
}

int upvm_is_own(pid_t process)
{
    uint64_t *table = upvm_table();
    return table && !upvm_in_child &&
           (process == (pid_t)table[UPVM_TABLE_PID] || process == (pid_t)table[UPVM_TABLE_PROCESS]);
}

/* 0 stands for the caller, which the kernel knows. */
static pid_t kernels(pid_t process)
{
    return upvm_is_own(process) ? 0 : process;
}

pid_t getpgid(pid_t process)
{
    return upvm_returns(upvm_call(SYS_getpgid, kernels(process), 0, 0, 0));
}

pid_t getsid(pid_t process)
{
    return upvm_returns(upvm_call(SYS_getsid, kernels(process), 0, 0, 0));
}

int tgkill(pid_t process, pid_t thread, int number)
{
    if (number < 0 || number > 64)
        return upvm_returns(-EINVAL);
    if (upvm_is_own(process) && upvm_is_own(thread))
        return upvm_returns(upvm_raise(number));
    return upvm_returns(upvm_call(SYS_tgkill, process, thread, number, 0));
}

/* A mask of its own: the host sets it whenever this program goes on. */
mode_t umask(mode_t mask)
{
    uint64_t *table = upvm_table();
    return table && !upvm_in_child ? UPVM_ASK(table, UPVM_ASK_UMASK, mask & 0777, 0, 0, 0)
                                   : upvm_call(SYS_umask, mask, 0, 0, 0);
}

/* Length of a name, with its end. */
#define NAME 16
static char name[NAME];
static char is_named;

/* The program's name, until it sets another. */
static const char *its_name(void)
{
    return is_named ? name : program_invocation_short_name;
}

/* Questions, whose answers for the host's thread hold for each of its programs, and names for
 * memory. */
static int is_harmless(int what, unsigned long first)
{
    switch (what) {
    case PR_CAPBSET_READ:
    case PR_GET_CHILD_SUBREAPER:
    case PR_GET_DUMPABLE:
    case PR_GET_KEEPCAPS:
    case PR_GET_NO_NEW_PRIVS:
    case PR_GET_PDEATHSIG:
    case PR_GET_SECCOMP:
    case PR_GET_SECUREBITS:
    case PR_GET_THP_DISABLE:
    case PR_GET_TID_ADDRESS:
    case PR_GET_TIMERSLACK:
    case PR_GET_TIMING:
    case PR_GET_TSC:
    case PR_MCE_KILL_GET:
    case PR_SET_VMA: return 1;
    case PR_CAP_AMBIENT: return first == PR_CAP_AMBIENT_IS_SET;
    default: return 0;
    }
}

int prctl(int what, ...)
{
    unsigned long words[4];
    va_list all;
    va_start(all, what);
    for (int word = 0; word < 4; word++)
        words[word] = va_arg(all, unsigned long);
    va_end(all);
    if (!upvm_is_virtual() || is_harmless(what, words[0]))
        return upvm_returns(upvm_call6(SYS_prctl, what, words[0], words[1], words[2], words[3], 0));
    switch (what) {
    case PR_SET_NAME:
        strncpy(name, (const char *)words[0], NAME - 1);
        is_named = 1;
        return 0;
    case PR_GET_NAME: {
        char *to = (char *)words[0];
        strncpy(to, its_name(), NAME - 1);
        to[NAME - 1] = 0;
        return 0;
    }
    }
    char call[32];
    snprintf(call, sizeof call, "prctl(%d)", what);
    return upvm_returns(upvm_refuse(call, PROCESS));
}

UPVM_ALSO(getppid, __getppid);
UPVM_ALSO(umask, __umask);
UPVM_ALSO(prctl, __prctl);
UPVM_ALSO(getpid, __getpid);
UPVM_ALSO(gettid, __gettid);
UPVM_ALSO(getpgid, __getpgid);
UPVM_ALSO(tgkill, __tgkill);
