/* Waits for a message that no task sends or, with an argument, that the first task sends late. */
#include <unistd.h>
#include "pvm3.h"

int main(int argc, char **argv)
{
    int *tids, count = pvm_siblings(&tids);
    (void)argv;
    if (argc > 1 && tids[0] == pvm_mytid()) {
        sleep(4);
        pvm_initsend(PvmDataDefault);
        pvm_mcast(tids, count, 7);
    } else {
        pvm_recv(-1, 7);
    }
    pvm_exit();
    return 0;
}
