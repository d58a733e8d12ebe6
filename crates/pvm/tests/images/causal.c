/* Causal order. The first task sends to the second, and then to the third, which then sends to the
 * second. The second must receive both messages in this order, although they come from two tasks
 * and it receives only when both have arrived. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include "pvm3.h"

enum { ROUNDS = 300, FIRST = 1, ASKED, THEN, GO, MORE };

static int told(int to, int tag, int round)
{
    pvm_initsend(PvmDataRaw);
    pvm_pkint(&round, 1, 1);
    return pvm_send(to, tag);
}

static long now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000 + time.tv_nsec;
}

/* Computes without a call of PVM, so that both messages arrive. */
static void computes(void)
{
    for (long end = now() + 1000000; now() < end;)
        ;
}

static int heard(int tag, int round)
{
    int from, got, bytes, found = -1, buffer = pvm_recv(-1, -1);
    pvm_bufinfo(buffer, &bytes, &got, &from);
    pvm_upkint(&found, 1, 1);
    if (got == tag && found == round)
        return 1;
    printf("FAILED: round %d: tag %d of round %d instead of tag %d\n", round, got, found, tag);
    return 0;
}

int main(void)
{
    int *all, me = 0, count = pvm_siblings(&all);
    while (all[me] != pvm_mytid())
        me++;
    for (int round = 0; count == 3 && round < ROUNDS; round++) {
        if (me == 0) {
            told(all[1], FIRST, round);
            told(all[2], ASKED, round);
            pvm_recv(all[1], GO);
        } else if (me == 1) {
            computes();
            if (!heard(FIRST, round) || !heard(THEN, round)) {
                pvm_kill(all[0]), pvm_kill(all[2]);
                return 1;
            }
            /* Varies the sender from which the next message is expected. */
            if (round % 3 == 0)
                pvm_recv(all[2], MORE);
            told(all[0], GO, round);
        } else {
            pvm_recv(all[0], ASKED);
            told(all[1], THEN, round);
            if (round % 3 == 0)
                told(all[1], MORE, round);
        }
    }
    pvm_exit();
    return count != 3;
}
