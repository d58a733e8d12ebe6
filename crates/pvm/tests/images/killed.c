/* Four children in three processes, one of which is killed: its tasks end, and the others go on. */
#include <signal.h>
#include <stdio.h>
#include <unistd.h>
#include "pvm3.h"

/* The process in which a task runs. Several tasks may have the same one; `getpid` is a task's own.
 */
static int process_of(int tid)
{
    struct pvmtaskinfo *tasks;
    int count;
    return pvm_tasks(tid, &count, &tasks) == 0 && count == 1 ? tasks->ti_pid : 0;
}

int main(int argc, char **argv)
{
    int tids[4], pids[4], own = process_of(pvm_mytid()), ended = 0, other = 0;
    if (argc > 1) {
        pvm_initsend(PvmDataRaw);
        pvm_pkint(&own, 1, 1);
        pvm_send(pvm_parent(), 1);
        pvm_recv(pvm_parent(), 2);
        pvm_send(pvm_parent(), 3);
        pvm_exit();
        return 0;
    }
    char *args[] = {"child", 0};
    /* The end of their output is also reported for the killed tasks: pvm_exit waits for it. */
    pvm_catchout(stdout);
    if (pvm_spawn(argv[0], args, 0, 0, 4, tids) != 4)
        return 1;
    pvm_notify(PvmTaskExit, 9, 4, tids);
    for (int one = 0; one < 4; one++) {
        pvm_recv(tids[one], 1);
        pvm_upkint(&pids[one], 1, 1);
        if (pids[one] != own && !other)
            other = pids[one];
    }
    kill(other, SIGKILL);
    for (int one = 0; one < 4; one++) {
        if (pids[one] != other)
            continue;
        pvm_recv(-1, 9);
        ended++;
    }
    printf("%d of 4 have ended\n", ended);
    for (int one = 0; one < 4; one++) {
        if (pids[one] == other)
            continue;
        pvm_initsend(PvmDataRaw);
        pvm_send(tids[one], 2);
        pvm_recv(tids[one], 3);
    }
    pvm_exit();
    return 0;
}
