/* System calls by number: those of `syscall`, and those that a program makes without this library,
 * which the kernel reports (interrupted.S). Each goes by the table (calls.def), so that none acts
 * on the whole process by mistake.
 *
 * Signal handlers may run during these functions: nothing here is left half done. */

#define _GNU_SOURCE
#include "calls.h"
#include "reasons.h"
#include <asm/prctl.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/times.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

/* Which arguments are descriptors, one bit each; and who the first one is. */
#define NONE 0
#define FIRST 1
#define SECOND 2
#define THIRD 4
#define SELF 64
#define HOST 128

/* Replaces a task's own numbers by the kernel's. */
static void translate(long *words, int which)
{
    for (int word = 0; word < 3; word++)
        if (which >> word & 1 && (int)words[word] >= 0)
            words[word] = upvm_real(words[word]);
    if (which & (SELF | HOST) && upvm_is_own(words[0]))
        words[0] = which & SELF ? 0 : (long)upvm_table()[UPVM_TABLE_PROCESS];
}

static long passed(long number, long *words, int which)
{
    translate(words, which);
    return upvm_call6(number, words[0], words[1], words[2], words[3], words[4], words[5]);
}

/* In the library's section: an interrupt between the call and the descriptor's number counts as one
 * in the library. There the program does not move to another process, which has no such
 * descriptor. No handler of a signal runs there either. */
__attribute__((noinline, section("upvm_text"))) static long
opens(long number, long *words, int which)
{
    long real = passed(number, words, which);
    if (real < 0)
        return real;
    long flags = upvm_call(SYS_fcntl, real, F_GETFD, 0, 0);
    upvm_call(SYS_fcntl, real, F_SETFD, FD_CLOEXEC, 0);
    return upvm_result(upvm_taken(real, !(flags & FD_CLOEXEC)));
}

static long aside(long number, long *words, int which)
{
    translate(words, which);
    return upvm_aside_again(number, words[0], words[1], words[2], words[3], words[4], words[5]);
}

/* The highest number whose refusals are reported only once. */
#define MOST 511

/* One line for each number: programs try again and again. */
static long refused(long number, const char *name, const char *why)
{
    static uint64_t told[(MOST + 1) / 64];
    char text[32];
    if (number >= 0 && number <= MOST) {
        uint64_t bit = 1ul << number % 64;
        if (told[number / 64] & bit)
            return -ENOSYS;
        told[number / 64] |= bit;
    }
    if (!name) {
        name = text;
        snprintf(text, sizeof text, "system call %ld", number);
    }
    return upvm_refuse(name, why);
}

#include "numbers.h"

static long by_number(long number, long *words)
{
    if (!upvm_is_virtual())
        return passed(number, words, NONE);
    switch (number) {
#define PASSED(number, name, which) case number: return passed(number, words, which);
#define OPENS(number, name, which) case number: return opens(number, words, which);
#define ASIDE(number, name, which) case number: return aside(number, words, which);
#define VIRTUAL(number, name) case number: return made_##name(words);
#define REFUSED(number, name, why) case number: return refused(number, #name, why);
#include "calls.def"
    }
    return refused(number, 0, UNKNOWN);
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
