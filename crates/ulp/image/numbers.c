/* System calls by number: those of `syscall`, and those that a program makes without this library,
 * which the kernel reports (interrupted.S). */

#define _GNU_SOURCE
#include "calls.h"
#include <signal.h>
#include <stdarg.h>
#include <ucontext.h>
#include <unistd.h>

static long by_number(long number, const long *words)
{
    if (upvm_table() && !upvm_in_child)
        switch (number) {
        case SYS_getpid: return getpid();
        case SYS_gettid: return gettid();
        case SYS_getpgid: return upvm_result(getpgid(words[0]));
        case SYS_getsid: return upvm_result(getsid(words[0]));
        case SYS_kill: return upvm_result(kill(words[0], words[1]));
        case SYS_tkill: return upvm_result(tgkill(getpid(), words[0], words[1]));
        case SYS_tgkill: return upvm_result(tgkill(words[0], words[1], words[2]));
        case SYS_execve: return upvm_result(upvm_refuse_exec("execve"));
        case SYS_execveat: return upvm_result(upvm_refuse_exec("execveat"));
        case SYS_fork: return upvm_result(upvm_refuse_fork("fork"));
        case SYS_vfork: return upvm_result(upvm_refuse_fork("vfork"));
        case SYS_clone: return upvm_result(upvm_refuse_fork("clone"));
        case SYS_clone3: return upvm_result(upvm_refuse_fork("clone3"));
        case SYS_exit:
        case SYS_exit_group: _exit(words[0]);
        }
    return upvm_call6(number, words[0], words[1], words[2], words[3], words[4], words[5]);
}

/* libc starts a child (children.c): it begins at the instruction after this one, and on another
 * stack. So the program makes the call again, and the kernel lets it pass. */
static int is_start_of_child(long number)
{
    return upvm_in_child && (number == SYS_clone || number == SYS_clone3 || number == SYS_vfork);
}

/* Called from interrupted.S. */
__attribute__((used)) void upvm_make(greg_t *registers)
{
    long words[6] = {registers[REG_RDI], registers[REG_RSI], registers[REG_RDX],
                     registers[REG_R10], registers[REG_R8],  registers[REG_R9]};
    if (is_start_of_child(registers[REG_RAX])) {
        upvm_catch(0);
        registers[REG_RIP] -= 2;
        return;
    }
    int error = errno;
    registers[REG_RAX] = by_number(registers[REG_RAX], words);
    errno = error;
}

long syscall(long number, ...)
{
    long words[6];
    va_list all;
    va_start(all, number);
    for (int word = 0; word < 6; word++)
        words[word] = va_arg(all, long);
    va_end(all);
    return upvm_returns(by_number(number, words));
}
