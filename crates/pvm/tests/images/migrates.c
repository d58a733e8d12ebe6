/* A task moves itself and its child between the machine's processes, whose number is the first
 * argument. Of several processes the last one has no tasks at first. */
#include "check.h"
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef UPVM
#include <upvm.h>
#endif

extern char **environ;

static int order(const char *what, char *name, int number)
{
    (void)name;
    if (!strcmp(what, "where"))
        return upvm_process();
    if (!strcmp(what, "pin"))
        return upvm_pin(number);
    return upvm_migrate(number, atoi(name));
}

/* Moves the task when its last move, which was refused at the end, is over. */
static int moved_at_last(int rank)
{
    int code;
    while ((code = upvm_migrate(0, rank)) == PvmOutOfRes)
        ;
    return code;
}

/* Moves the task in circles, in which each pair of processes is in both directions. */
static void circles(int processes)
{
    int rounds = 20, wrong = 0;
    for (int round = 0; round < rounds; round++)
        for (int step = 1; step < processes; step++)
            for (int at = 0; at < processes; at++) {
                int to = (at + 1) * step % processes;
                wrong += upvm_migrate(0, to) != 0 || upvm_process() != to;
            }
    check("moves that went wrong", wrong, 0);
}

/* Tries to move the task to all other processes, from each one. */
static void refused(const char *what, int processes, int code)
{
    int wrong = 0, own = upvm_process();
    for (int to = 0; to < processes; to++)
        if (to != own)
            wrong += upvm_migrate(0, to) != code || upvm_process() != own;
    check(what, wrong, 0);
}

/* What keeps the task where it is, until it is undone. */
static void pinned(int processes)
{
    check("the task was not pinned", upvm_pin(1), 0);
    check("it was", upvm_pin(7), 1);
    refused("a pinned task stays", processes, PvmDenied);
    check("it was pinned still", upvm_pin(0), 1);
    check("and is not now", upvm_pin(0), 0);

    pid_t child = -1;
    char *words[] = {"true", 0};
    check("a process is started", posix_spawn(&child, "/bin/true", 0, 0, words, environ), 0);
    refused("a task with a child stays", processes, PvmDenied);
    waitpid(child, 0, 0);

    /* The other process refuses the task when all of it is there. */
    char folder[] = "/tmp/upvm-XXXXXX";
    check("there is a folder", mkdtemp(folder) && !chdir(folder) && !rmdir(folder), 1);
    refused("a task whose folder is gone stays", processes, PvmOutOfRes);
    check("it leaves that folder", chdir("/"), 0);
}

static void mistakes(int processes)
{
    check("a process that is not there", upvm_migrate(0, processes), PvmNoHost);
    check("a rank that is none", upvm_migrate(0, -1), PvmBadParam);
    check("a number that is no task's", upvm_migrate(12, 0), PvmBadParam);
    check("a task that is not there", upvm_migrate(pvm_mytid() + 99, 0), PvmNoTask);
    check("where the task is already", upvm_migrate(pvm_mytid(), upvm_process()), 0);
}

/* Moves a child that waits, and lets it move this task. */
static void child_moves(int child, int processes)
{
    char to[16];
    for (int rank = 0; rank < processes; rank++) {
        check("the child was not pinned", ask(child, "pin", "", 0), 0);
        check("the child moves", upvm_migrate(child, rank), 0);
        check("it is there", ask(child, "where", "", 0), rank);
        check("the child was not pinned there", ask(child, "pin", "", 1), 0);
        check("the child stays", upvm_migrate(child, (rank + 1) % processes),
              processes > 1 ? PvmDenied : 0);
        check("it is there still", ask(child, "where", "", 0), rank);
        check("the child was pinned", ask(child, "pin", "", 0), 1);
        snprintf(to, sizeof to, "%d", rank);
        check("the child moves its parent", ask(child, "migrate", to, pvm_mytid()), 0);
        check("which is there", upvm_process(), rank);
    }
}

int main(int argc, char **argv)
{
    if (pvm_parent() != PvmNoParent)
        obey(order);
    int processes = argc > 1 ? atoi(argv[1]) : 1, child;
    pvm_setopt(PvmAutoErr, 0);
    check("the task begins in the first process", upvm_process(), 0);
    circles(processes);
    mistakes(processes);
    for (int rank = 0; rank < processes; rank++) {
        check("the task moves", moved_at_last(rank), 0);
        pinned(processes);
    }
    /* Children inherit other options, but this is none. */
    check("the task moves", moved_at_last(0), 0);
    upvm_pin(1);
    begin(argv[0], 1, &child);
    check("the parent was pinned", upvm_pin(0), 1);
    child_moves(child, processes);
    /* The report says why. */
    pvm_setopt(PvmAutoErr, 1);
    upvm_pin(1);
    upvm_migrate(0, (upvm_process() + 1) % 2);
    upvm_pin(0);
    return finish(1, &child);
}
