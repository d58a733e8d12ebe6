/* Where an image is, and how it ends.
 *
 * An image is a program linked as static-PIE with its own libc. Its slot's table is at the same
 * address in every process, so nothing has to be adjusted when the image moves. */

#define _GNU_SOURCE
#include "calls.h"
#include <dirent.h>
#include <elf.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <sys/wait.h>
#include <unistd.h>

/* Set by libc's first instructions: argc, argv, the environment, and the auxiliary vector. */
extern void *__libc_stack_end;
extern int upcall_current_task;

/* The note that identifies an image. */
__attribute__((used, section(".note.upvm"), aligned(4))) static const struct {
    uint32_t name, text, type;
    char upvm[8];
    uint32_t version;
} note = {5, 4, UPVM_NOTE, "UPVM", UPVM_VERSION};

static uint64_t *find(void)
{
    char **word = (char **)__libc_stack_end + 1;
    word += (long)*word + 2; /* argc, argv and its end */
    while (*word++)
        ;
    for (Elf64_auxv_t *one = (Elf64_auxv_t *)word; one->a_type != AT_NULL; one++)
        if (one->a_type == UPVM_AUXILIARY)
            return (uint64_t *)one->a_un.a_val;
    return 0;
}

/* Defined by the linker: the range of the functions of this archive, and of libraries above. */
extern const char __start_upvm_text[], __stop_upvm_text[];
void upvm_interrupted(void);
void upvm_caught(void);
void upvm_files_begin(void);

/* The table stays at the same address, in any process. */
uint64_t *upvm_known_table;

uint64_t *upvm_table(void)
{
    static char known;
    if (!known) {
        known = 1;
        upvm_known_table = find();
    }
    return upvm_known_table;
}

void _exit(int status)
{
    uint64_t *table = upvm_table();
    if (table && table[UPVM_TABLE_PROCESS] == (uint64_t)upvm_call(SYS_getpid, 0, 0, 0, 0))
        UPVM_ASK(table, UPVM_ASK_EXIT, status, 0, 0, 0);
    for (;;)
        __asm__ volatile("syscall" : : "a"(231L), "D"((long)status) : "rcx", "r11", "memory");
}

void _Exit(int status) __attribute__((alias("_exit")));

/* The linker is made to take this, and through it what replaces libc's functions. */
void *(*const upvm_heap)(intptr_t) = sbrk;
int (*const upvm_unmaps)(void *, size_t) = munmap;
ssize_t (*const upvm_waits)(int, void *, size_t) = read;
int (*const upvm_clock)(clockid_t, struct timespec *) = clock_gettime;
int (*const upvm_closes)(int) = close;
int (*const upvm_opens)(const char *, int, ...) = open;
int (*const upvm_controls)(int, int, ...) = fcntl;
ssize_t (*const upvm_lists)(int, void *, size_t) = getdents64;
int (*const upvm_polls)(struct pollfd *, nfds_t, int) = poll;
int (*const upvm_connects)(int, const struct sockaddr *, socklen_t) = connect;
pid_t (*const upvm_awaits)(int *) = wait;
int (*const upvm_raises)(int) = raise;
int (*const upvm_acts)(int, const struct sigaction *, struct sigaction *) = sigaction;
pid_t (*const upvm_own_process)(void) = getpid;
extern const char upvm_refuses;
const char *const upvm_refused = &upvm_refuses;

/* What a library above does for a program that was started by itself, without a host. */
__attribute__((weak)) void upvm_alone(int argc, char **argv);

__attribute__((constructor(101))) void upvm_begin(int argc, char **argv)
{
    uint64_t *table = upvm_table();
    if (table) {
        upcall_current_task = (int)table[UPVM_TABLE_TASK];
        table[UPVM_TABLE_CODE] = (uint64_t)__start_upvm_text,
        table[UPVM_TABLE_CODE_END] = (uint64_t)__stop_upvm_text;
        table[UPVM_TABLE_INTERRUPTED] = (uint64_t)upvm_interrupted;
        table[UPVM_TABLE_CAUGHT] = (uint64_t)upvm_caught;
        upvm_files_begin();
        upvm_catch(1);
        return;
    }
    if (upvm_alone)
        upvm_alone(argc, argv);
    fprintf(stderr,
            "%s: this program is an image for user-level processes, and was started by itself: "
            "have a host load it (upcall_ulp::Ulp::load)\n",
            argc ? argv[0] : "upvm");
    _exit(127);
}
