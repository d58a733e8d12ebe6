/* Each receive of the first task is interrupted by a signal, whose handler probes for a message
 * that does not come. So the library takes in what has arrived, and with it the message that the
 * interrupted receive waits for. */
#include <pvm3.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>

enum { READY = 1, ANSWER, OTHER, NEVER, ROUNDS = 20 };

static volatile int probes;

static void probe(int signal)
{
    (void)signal;
    probes++;
    if (pvm_probe(-1, NEVER))
        abort();
}

static void tell(int whom, int tag, int number)
{
    pvm_initsend(PvmDataRaw);
    pvm_pkint(&number, 1, 1);
    pvm_send(whom, tag);
}

/* The number of the next answer, received in a way that differs by the round. */
static int received(int from, int round)
{
    struct timeval long_enough = {60, 0};
    int number = -1;
    switch (round % 3) {
    case 0: pvm_recv(from, ANSWER); break;
    case 1: pvm_trecv(from, ANSWER, &long_enough); break;
    default: pvm_precv(from, ANSWER, &number, 1, PVM_INT, 0, 0, 0); return number;
    }
    pvm_upkint(&number, 1, 1);
    return number;
}

int main(void)
{
    int *tids, me = pvm_mytid(), is_right = 1;
    pvm_siblings(&tids);
    if (me != tids[0]) {
        for (int round = 0; round < ROUNDS; round++) {
            pvm_recv(tids[0], READY);
            pvm_sendsig(tids[0], SIGUSR1);
            tell(tids[0], OTHER, -round);
            tell(tids[0], ANSWER, round);
        }
        pvm_exit();
        return 0;
    }
    signal(SIGUSR1, probe);
    for (int round = 0; round < ROUNDS; round++) {
        tell(tids[1], READY, 0);
        is_right &= received(tids[1], round) == round;
        /* Nothing is left in the library, so that the next receive asks the host. */
        is_right &= pvm_recv(tids[1], OTHER) > 0;
    }
    printf("%s, %d handlers have run\n", is_right ? "right" : "wrong", probes);
    pvm_exit();
    return !is_right || probes < 1;
}
