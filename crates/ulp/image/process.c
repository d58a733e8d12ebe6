/* The process as this program sees it: a number of its own.
 *
 * Signal handlers may run during these functions: nothing here is left half done. */

#define _GNU_SOURCE
#include "calls.h"
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
    return upvm_table() && !upvm_in_child ? getpid() : (pid_t)upvm_call(SYS_gettid, 0, 0, 0, 0);
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

UPVM_ALSO(getppid, __getppid);
UPVM_ALSO(umask, __umask);
UPVM_ALSO(getpid, __getpid);
UPVM_ALSO(gettid, __gettid);
UPVM_ALSO(getpgid, __getpgid);
UPVM_ALSO(tgkill, __tgkill);
