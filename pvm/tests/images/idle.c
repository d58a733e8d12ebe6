/* The first task sleeps; others wait for its message. */
#include <unistd.h>
#include "pvm3.h"

int main(void)
{
    int *tids, tasks = pvm_siblings(&tids);
    if (pvm_mytid() != tids[0])
        return pvm_recv(tids[0], 1) <= 0;
    sleep(3);
    pvm_initsend(PvmDataRaw);
    pvm_mcast(tids, tasks, 1);
    pvm_exit();
    return 0;
}
