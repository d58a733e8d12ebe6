/* Starts tasks that end in various ways, and gets a notice of each end. A neighbour goes on. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "pvm3.h"

static int ends(const char *how)
{
    pvm_mytid();
    switch (*how) {
    case 's':
        return *(volatile int *)8;
    case 'a':
        abort();
    case 'e':
        exit(3);
    case 'l': /* a message that was sent before the crash arrives */
        pvm_initsend(PvmDataRaw);
        pvm_send(pvm_parent(), 5);
        return *(volatile int *)8;
    case 'n': /* the neighbour */
        pvm_recv(pvm_parent(), 6);
        pvm_initsend(PvmDataRaw);
        pvm_send(pvm_parent(), 7);
        pvm_exit();
        return 0;
    }
    pvm_exit();
    return 0;
}

int main(int argc, char **argv)
{
    const char *how[] = {"s", "a", "e", "l", "x", "n"};
    int tids[6], told, ended = 0;
    if (argc > 1)
        return ends(argv[1]);
    pvm_mytid();
    for (int one = 0; one < 6; one++) {
        char *args[] = {(char *)how[one], 0};
        if (pvm_spawn(argv[0], args, 0, 0, 1, &tids[one]) != 1)
            return 1;
    }
    pvm_notify(PvmTaskExit, 9, 5, tids);
    while (ended < 5 && pvm_recv(-1, 9) > 0) {
        pvm_upkint(&told, 1, 1);
        for (int one = 0; one < 5; one++)
            ended += told == tids[one];
    }
    if (pvm_nrecv(tids[3], 5) <= 0)
        return 2;
    pvm_initsend(PvmDataRaw);
    pvm_send(tids[5], 6);
    if (pvm_recv(tids[5], 7) <= 0)
        return 3;
    /* Refused with a message on standard error, whatever standard error is. */
    if (fork() != -1)
        return 4;
    printf("%d have ended, and the neighbour goes on\n", ended);
    pvm_exit();
    return 0;
}
