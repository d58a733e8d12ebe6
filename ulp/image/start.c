/* Where an image is, and how it ends.
 *
 * An image is a program linked as static-PIE with its own libc. It finds the slot that it was loaded into by its own
 * address, so that nothing has to be handed over, and nothing has to be put right when it moves. */

#define _GNU_SOURCE
#include "image.h"
#include <elf.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Set by libc's first instructions: argc, argv, the environment, and the auxiliary vector. */
extern void *__libc_stack_end;

static int in_slot(void)
{
    static int known; /* 1: no, 2: yes */
    if (!known) {
        char **word = (char **)__libc_stack_end + 1;
        while (*word++)
            ;
        while (*word++)
            ;
        known = 1;
        for (Elf64_auxv_t *one = (Elf64_auxv_t *)word; one->a_type != AT_NULL; one++)
            if (one->a_type == UPVM_AUXILIARY)
                known = 2;
    }
    return known == 2;
}

uint64_t *upvm_table(void)
{
    static const char here;
    if (!in_slot())
        return 0;
    return (uint64_t *)(((uintptr_t)&here & ~(UPVM_SLOT - 1)) + UPVM_SLOT - UPVM_PAGE);
}

void _exit(int status)
{
    uint64_t *table = upvm_table();
    if (table)
        UPVM_ASK(table, UPVM_ASK_EXIT, status, 0, 0, 0, 0);
    for (;;)
        __asm__ volatile("syscall" : : "a"(231L), "D"((long)status) : "rcx", "r11", "memory");
}

void _Exit(int status) __attribute__((alias("_exit")));

/* The linker is told to take this, and by it what stands in place of libc's. */
void *(*const upvm_heap)(intptr_t) = sbrk;

/* Started by itself, and not by the runtime: has that start it. */
__attribute__((constructor(101))) void upvm_begin(int argc, char **argv, char **environment)
{
    (void)environment;
    if (upvm_table())
        return;
    static char self[4096];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    const char *runtime = getenv("UPCALL");
    if (!runtime)
        runtime = "upcall";
    char **all = calloc(argc + 6, sizeof *all);
    if (length > 0 && all) {
        char **next = all;
        *next++ = (char *)runtime;
        *next++ = "pvm";
        *next++ = "run";
        *next++ = "--";
        *next++ = self;
        for (int at = 1; at < argc; at++)
            *next++ = argv[at];
        execvp(runtime, all);
    }
    fprintf(stderr, "%s: it is run by `%s pvm run`, which cannot be started: %s. Put `upcall` into the PATH, or say where it is by UPCALL\n",
            argc ? argv[0] : "upvm", runtime, strerror(errno));
    _exit(127);
}
