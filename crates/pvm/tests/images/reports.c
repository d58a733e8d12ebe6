/* Spawns tasks that all do the same, when all of them have started, and counts their ends:
 * reports HOW [COUNT]. Without a count, the first task does it itself. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "pvm3.h"

#define NOTHING (*(volatile int *)8)

static int deep(int left)
{
    volatile char room[64];
    room[0] = left;
    return left ? deep(left - 1) + room[0] : NOTHING;
}

static void crashes(int number)
{
    (void)number;
    NOTHING;
}

static int compares(const void *one, const void *other)
{
    return ((const int *)one)[NOTHING] - *(const int *)other;
}

static void crash(const char *how)
{
    int some[3] = {3, 2, 1};
    char odd[16] __attribute__((aligned(16))) = {0};
    if (!strcmp(how, "null"))
        NOTHING;
    if (!strcmp(how, "deep"))
        deep(20000);
    if (!strcmp(how, "overflow"))
        deep(1 << 30);
    if (!strcmp(how, "abort"))
        abort();
    if (!strcmp(how, "sent"))
        raise(SIGSEGV);
    if (!strcmp(how, "trap"))
        __asm__ volatile("int3");
    if (!strcmp(how, "step")) /* the trap flag */
        __asm__ volatile("pushf; orl $0x100, (%%rsp); popf; nop; nop" ::: "memory");
    if (!strcmp(how, "odd")) /* the check of alignment */
        __asm__ volatile("pushf; orl $0x40000, (%%rsp); popf; mov 1(%0), %%eax" ::"r"(odd)
                         : "rax", "memory");
    if (!strcmp(how, "direction"))
        __asm__ volatile("std; ud2");
    if (!strcmp(how, "none")) /* no stack at all */
        __asm__ volatile("xor %%esp, %%esp; push %%rax" ::: "memory");
    if (!strcmp(how, "spins")) /* the same, until it is interrupted */
        __asm__ volatile("mov $0x1234, %%rsp; 1: jmp 1b" ::: "memory");
    if (!strcmp(how, "calls")) /* the same, at a system call */
        __asm__ volatile("mov $0x1234, %%rsp; mov $39, %%eax; syscall; ud2" ::: "memory");
    if (!strcmp(how, "smashed")) /* with the library's table above it */
        for (volatile char *byte = odd; byte < odd + 16000; byte++)
            *byte = 'A';
    if (!strcmp(how, "locked")) {
        flockfile(stdout);
        flockfile(stderr);
        NOTHING;
    }
    if (!strcmp(how, "sorts"))
        qsort(some, 3, sizeof *some, compares);
    if (!strcmp(how, "handler")) {
        signal(SIGUSR1, crashes);
        raise(SIGUSR1);
    }
    if (!strcmp(how, "alarm")) {
        signal(SIGALRM, crashes);
        ualarm(1000, 0);
        for (;;)
            ;
    }
    if (!strcmp(how, "jump"))
        ((void (*)(void))0x41414141)();
    if (!strcmp(how, "checks")) { /* the library works with the check of alignment */
        __asm__ volatile("pushf; orl $0x40000, (%%rsp); popf" ::: "memory");
        pvm_nrecv(-1, -1);
        __asm__ volatile("pushf; andl $~0x40000, (%%rsp); popf" ::: "memory");
    }
    if (!strcmp(how, "own")) { /* what is opened as 2 is the task's own */
        close(2);
        if (open("own.txt", O_CREAT | O_WRONLY | O_TRUNC, 0666) != 2)
            exit(9);
        fprintf(stderr, "mine\n");
        NOTHING;
    }
}

static int acts(const char *how)
{
    static char line[200000];
    if (!strcmp(how, "lines"))
        for (int one = 0; one < 4000; one++)
            printf("line %d of a task that writes much\n", one);
    else if (!strcmp(how, "long"))
        fwrite(memset(line, 'L', sizeof line), 1, sizeof line, stdout);
    else if (!strcmp(how, "odd bytes"))
        fwrite("a\0b\n\0\n\n\xff", 1, 8, stderr);
    else if (!strcmp(how, "fork"))
        return fork() != -1;
    else if (!strcmp(how, "waits"))
        pvm_recv(-1, 77);
    else
        crash(how);
    return 0;
}

int main(int argc, char **argv)
{
    int count = argc > 2 ? atoi(argv[2]) : 0, tids[1000], ended;
    char *args[] = {argv[1], "0", 0};
    if (argc < 2)
        return 2;
    if (!count) {
        if (pvm_parent() > 0)
            pvm_recv(pvm_parent(), 1);
        ended = acts(argv[1]);
        pvm_exit();
        return ended;
    }
    if (pvm_spawn(argv[0], args, 0, 0, count, tids) != count)
        return 3;
    pvm_notify(PvmTaskExit, 9, count, tids);
    pvm_initsend(PvmDataRaw);
    pvm_mcast(tids, count, 1);
    for (ended = 0; ended < count && pvm_recv(-1, 9) > 0; ended++)
        ;
    printf("%d have ended\n", ended);
    pvm_exit();
    return 0;
}
