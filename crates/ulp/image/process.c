/* The process as this program sees it: a number of its own, and system calls by number.
 *
 * Signal handlers may run during these functions: nothing here is left half done. */

#define _GNU_SOURCE
#include "calls.h"
#include <stdarg.h>
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
    if (upvm_is_own(process) && upvm_is_own(thread))
        return upvm_returns(upvm_raise(number));
    return upvm_returns(upvm_call(SYS_tgkill, process, thread, number, 0));
}

/* System calls by number. Where this archive replaces a function of libc, it replaces the call by
 * number too. */
long syscall(long number, ...)
{
    long words[6];
    va_list all;
    va_start(all, number);
    for (int word = 0; word < 6; word++)
        words[word] = va_arg(all, long);
    va_end(all);
    if (upvm_table() && !upvm_in_child)
        switch (number) {
        case SYS_getpid: return getpid();
        case SYS_gettid: return gettid();
        case SYS_getpgid: return getpgid(words[0]);
        case SYS_getsid: return getsid(words[0]);
        case SYS_kill: return kill(words[0], words[1]);
        case SYS_tkill: return tgkill(getpid(), words[0], words[1]);
        case SYS_tgkill: return tgkill(words[0], words[1], words[2]);
        case SYS_execve: return upvm_refuse_exec("execve");
        case SYS_execveat: return upvm_refuse_exec("execveat");
        case SYS_fork: return upvm_refuse_fork("fork");
        case SYS_vfork: return upvm_refuse_fork("vfork");
        case SYS_clone: return upvm_refuse_fork("clone");
        case SYS_clone3: return upvm_refuse_fork("clone3");
        case SYS_exit:
        case SYS_exit_group: _exit(words[0]);
        }
    return upvm_returns(
        upvm_call6(number, words[0], words[1], words[2], words[3], words[4], words[5]));
}

UPVM_ALSO(getpid, __getpid);
UPVM_ALSO(gettid, __gettid);
UPVM_ALSO(getpgid, __getpgid);
UPVM_ALSO(tgkill, __tgkill);
