/* Two or more tasks of one program. The first waits in some way, and the second ends the wait after
 * it has run often enough. */
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
#define BEGINS 8

static int *tids, tasks;

#define CHECK(what)                                                            \
    do {                                                                       \
        if (!(what)) {                                                         \
            printf("%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #what, errno);\
            fflush(stdout);                                                    \
            pvm_halt();                                                        \
            exit(1);                                                           \
        }                                                                      \
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

/* Reports that the first task is about to wait. */
static void begins(void)
{
    tell(tids[1], BEGINS);
}

/* Takes a thousand turns while the first task waits. Only `then` and this file end the wait. */
static void count(void (*then)(void))
{
    CHECK(pvm_recv(tids[0], BEGINS) > 0);
    for (int turns = 0; turns < 1000; turns++)
        CHECK(pvm_nrecv(-1, DONE) == 0);
    CHECK(close(creat("counted", 0600)) == 0);
    if (then)
        then();
    CHECK(pvm_recv(tids[0], DONE) > 0);
}

/* For shell commands: waits until the second task has counted. */
#define UNTIL_COUNTED "until test -e counted; do sleep 0.01; done; "

/* Runs a shell command in another process. */
static pid_t shell(const char *command)
{
    pid_t child;
    char *args[] = {"sh", "-c", (char *)command, 0};
    extern char **environ;
    CHECK(posix_spawn(&child, "/bin/sh", 0, 0, args, environ) == 0);
    return child;
}
