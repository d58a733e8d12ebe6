/* Two tasks in two processes. The first sends a message and then computes, without a call of PVM,
 * until it sees the file that the second creates on receiving the message. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "pvm3.h"

enum { PATIENCE_S = 30 };

static time_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec;
}

int main(int count, char **words)
{
    int *all, tasks = pvm_siblings(&all);
    const char *file = words[count - 1];
    if (tasks != 2)
        return 2;
    if (all[0] != pvm_mytid()) {
        pvm_recv(all[0], 1);
        close(open(file, O_CREAT | O_WRONLY, 0600));
        pvm_exit();
        return 0;
    }
    int packs_at_once = count > 2 && !strcmp(words[1], "psend");
    if (packs_at_once) {
        pvm_psend(all[1], 1, &tasks, 1, PVM_INT);
    } else {
        pvm_initsend(PvmDataRaw);
        pvm_send(all[1], 1);
    }
    for (time_t end = now() + PATIENCE_S; access(file, F_OK) && now() < end;)
        ;
    int came = !access(file, F_OK);
    if (!came)
        printf("FAILED: the message did not arrive within %d s\n", PATIENCE_S);
    pvm_exit();
    return !came;
}
