/* Programs often seed their random numbers by their process number. Each task has its own numbers,
 * and they stay the same while the task moves. The first task starts a second generation of tasks
 * when some have moved, so that numbers would be given twice if a task that leaves gave its own
 * back. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>
#include "pvm3.h"

enum { NUMBERS = 400, CHILDREN = 8, READY = 1 };

static void fails(const char *what, long wanted, long got)
{
    printf("FAILED: %s: %ld instead of %ld\n", what, got, wanted);
    fflush(stdout);
    pvm_halt();
    exit(1);
}

int main(int argc, char **argv)
{
    int tids[CHILDREN], parent = pvm_parent();
    pid_t pid = getpid(), forerunner = getppid();
    long first[3], moving[NUMBERS];
    struct timeval moment = {0, 300};
    srand(pid);
    srand48(pid);
    for (int at = 0; at < NUMBERS; at++) {
        moving[at] = lrand48() ^ rand();
        if (at % 4 == 0)
            pvm_trecv(pvm_mytid(), READY, &moment);
        if (getpid() != pid || getppid() != forerunner)
            fails("process", pid, getpid());
    }
    srand(getpid());
    srand48(getpid());
    for (int at = 0; at < NUMBERS; at++) {
        long number = lrand48() ^ rand();
        if (number != moving[at])
            fails("random number", number, moving[at]);
        if (at < 3)
            first[at] = number;
    }
    if (parent == PvmNoParent) {
        int started = pvm_spawn(argv[0], 0, PvmTaskDefault, 0, CHILDREN, tids);
        if (started != CHILDREN)
            fails("children", CHILDREN, started);
        for (int at = 0; at < CHILDREN; at++)
            pvm_recv(-1, READY);
    }
    printf("seed %d: %ld %ld %ld\n", pid, first[0], first[1], first[2]);
    fflush(stdout);
    pvm_initsend(PvmDataDefault);
    if (parent != PvmNoParent)
        pvm_send(parent, READY);
    pvm_exit();
    return 0;
}
