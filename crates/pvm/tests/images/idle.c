/* The first task prints a line when all others wait for its message, or soon will. Then it sleeps
 * until it is killed. */
#include <stdio.h>
#include <unistd.h>
#include "pvm3.h"

int main(void)
{
    int *tids, tasks = pvm_siblings(&tids);
    if (pvm_mytid() != tids[0]) {
        pvm_initsend(PvmDataRaw);
        pvm_send(tids[0], 2);
        return pvm_recv(tids[0], 1) <= 0;
    }
    for (int one = 1; one < tasks; one++)
        pvm_recv(tids[one], 2);
    puts("idle");
    fflush(stdout);
    sleep(100000);
    return 1;
}
