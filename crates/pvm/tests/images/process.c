/* Siblings, each with its own process id, by which it cannot reach another task. No task can
 * execute another program. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include "pvm3.h"

int main(void)
{
    int *tids, tasks = pvm_siblings(&tids), own = getpid(), other = 0;
    /* Each task tries this. */
    char *args[] = {"true", 0};
    if (execv("/bin/true", args) != -1 || errno != ENOSYS)
        return 2;
    /* A task's children are other programs, whose parent is the real process. */
    char host[16], command[64];
    ssize_t length = readlink("/proc/self", host, sizeof host - 1);
    host[length > 0 ? length : 0] = 0;
    snprintf(command, sizeof command, "test $PPID = %s && test ! -e /proc/%d && exit 7", host, own);
    if (system(command) != 7 << 8)
        return 4;
    for (int one = 0; one < tasks; one++) {
        if (tids[one] == pvm_mytid())
            continue;
        pvm_initsend(PvmDataRaw);
        pvm_pkint(&own, 1, 1);
        pvm_send(tids[one], 1);
    }
    for (int one = 1; one < tasks; one++) {
        pvm_recv(-1, 1);
        pvm_upkint(&other, 1, 1);
        if (kill(other, SIGKILL) != -1 || errno != ESRCH)
            return 3;
    }
    printf("%d\n", own);
    pvm_exit();
    return 0;
}
