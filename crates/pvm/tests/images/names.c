/* Two siblings, each of which prints the process that has named it, and whether both are in one
 * process. */
#include <stdio.h>
#include "pvm3.h"

int main(void)
{
    struct pvmtaskinfo *tasks;
    int *all, me = 0, own = pvm_mytid(), processes[2], tids = pvm_siblings(&all), count;
    if (tids != 2)
        return 2;
    for (int one = 0; one < 2; one++) {
        pvm_tasks(all[one], &count, &tasks);
        processes[one] = tasks->ti_pid;
    }
    while (all[me] != own)
        me++;
    printf("task %d is named in process %d, %s\n", me, (own >> 18) - 1,
           processes[0] == processes[1] ? "together" : "apart");
    pvm_exit();
    return 0;
}
