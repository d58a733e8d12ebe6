/* Where an image is, and how it ends.
 *
 * An image is a program linked as static-PIE with its own libc. It finds the slot that it was loaded into by its own
 * address, so that nothing has to be handed over, and nothing has to be put right when it moves. */

#define _GNU_SOURCE
#include "image.h"
#include <elf.h>
#include <stdio.h>
#include <unistd.h>

/* Set by libc's first instructions: argc, argv, the environment, and the auxiliary vector. */
extern void *__libc_stack_end;

static uint64_t *find(void)
{
    static const char here;
    char **word = (char **)__libc_stack_end + 1;
    while (*word++)
        ;
    while (*word++)
        ;
    for (Elf64_auxv_t *one = (Elf64_auxv_t *)word; one->a_type != AT_NULL; one++)
        if (one->a_type == UPVM_AUXILIARY) {
            uintptr_t start = (uintptr_t)&here & ~(UPVM_SLOT - 1), number = (start - UPVM_FIRST) / UPVM_SLOT;
            uintptr_t middle = start + UPVM_MIDDLE + number % UPVM_PAGES * UPVM_PAGE;
            return (uint64_t *)(middle - number % UPVM_LINES * UPVM_LINE - UPVM_LINE);
        }
    return 0;
}

uint64_t *upvm_table(void)
{
    /* It stays where it is, in whatever process. */
    static uint64_t *table;
    static char known;
    if (!known) {
        known = 1;
        table = find();
    }
    return table;
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

/* Started by itself, and not by a host: there is nobody whom it could ask. */
__attribute__((constructor(101))) void upvm_begin(int argc, char **argv)
{
    if (upvm_table())
        return;
    fprintf(stderr, "%s: this program is an image for user-level processes, and was started by itself: have a host load it (upcall_ulp::Ulp::load)\n",
            argc ? argv[0] : "upvm");
    _exit(127);
}
