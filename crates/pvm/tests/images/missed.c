/* Task 0 wants a notice of the end of each other task, which are in the folders of the arguments.
 * Those sleep, since the machine would end if all waited, until there is a file "stop". */
#include <pvm3.h>
#include <stdio.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    int *all, n = pvm_siblings(&all), me = 0, number, tid;
    while (all[me] != pvm_mytid())
        me++;
    if (me > 0) {
        if (argv[me][0] != '.' && chdir(argv[me]))
            return 1;
        pvm_initsend(PvmDataRaw);
        pvm_send(all[0], 1);
        while (access("stop", F_OK))
            usleep(10000);
        return 0;
    }
    for (number = 1; number < n; number++)
        pvm_recv(all[number], 1);
    pvm_notify(PvmTaskExit, 3, n - 1, all + 1);
    printf("begun\n");
    fflush(stdout);
    for (number = 1; number < n; number++) {
        pvm_recv(-1, 3);
        pvm_unpackf("%d", &tid);
        printf("gone: %x, there: %d\n", tid, pvm_pstat(tid) == PvmOk);
        fflush(stdout);
        /* As to each task that has ended. */
        pvm_initsend(PvmDataRaw);
        pvm_send(tid, 2);
    }
    return 0;
}
