/* Two tasks or more of one program: the first waits in some way, and the second counts how often it runs meanwhile. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "pvm3.h"

#define DONE 7

static int *tids, tasks;

#define CHECK(what)                                                                                          \
    do {                                                                                                     \
        if (!(what)) {                                                                                       \
            printf("%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #what, errno);                              \
            fflush(stdout);                                                                                  \
            pvm_halt();                                                                                      \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)

static int role(void)
{
    tasks = pvm_siblings(&tids);
    for (int one = 0; one < tasks; one++)
        if (tids[one] == pvm_mytid())
            return one;
    return -1;
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static void tell(int whom, int tag)
{
    pvm_initsend(PvmDataDefault);
    CHECK(pvm_send(whom, tag) == 0);
}

/* How often it ran until the first one was done, and the longest time between. */
static void count(void)
{
    long turns = 0;
    double last = now(), longest = 0;
    while (pvm_nrecv(-1, DONE) == 0) {
        double time = now();
        if (time - last > longest)
            longest = time - last;
        last = time;
        turns++;
    }
    printf("%ld turns, longest pause %.0f ms\n", turns, longest * 1000);
    CHECK(turns > 1000);
    CHECK(longest < 0.25); /* they wait for 0.3 s */
}

/* Another process runs this by the shell. */
static pid_t shell(const char *command)
{
    pid_t child;
    char *args[] = {"sh", "-c", (char *)command, 0};
    extern char **environ;
    CHECK(posix_spawn(&child, "/bin/sh", 0, 0, args, environ) == 0);
    return child;
}
