/* Causal order. The first task sends to the second, and then to the third, which then sends to the
 * second. The second must receive both messages in this order, although they come from two tasks
 * and it receives only when both have arrived.
 *
 * causal posted: messages go from memory to memory, and in every other round the second task waits
 * before they arrive. A fourth task in its process computes, so that both arrive before its process
 * looks. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include "pvm3.h"

enum { ROUNDS = 300, FIRST = 1, ASKED, THEN, GO, LAST, MORE, STOP };

static int posted;

static int told(int to, int tag, int round)
{
    if (posted)
        return pvm_psend(to, tag, &round, 1, PVM_INT);
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
    int from, got, bytes, found = -1;
    if (posted) {
        pvm_precv(-1, -1, &found, 1, PVM_INT, &from, &got, &bytes);
    } else {
        pvm_bufinfo(pvm_recv(-1, -1), &bytes, &got, &from);
        pvm_upkint(&found, 1, 1);
    }
    if (got == tag && found == round)
        return 1;
    printf("FAILED: round %d: tag %d of round %d instead of tag %d\n", round, got, found, tag);
    return 0;
}

int main(int argc, char **argv)
{
    posted = argc > 1;
    int *all, me = 0, count = pvm_siblings(&all);
    while (all[me] != pvm_mytid())
        me++;
    while (me == 3 && pvm_nrecv(all[0], STOP) == 0)
        computes();
    for (int round = 0; me < 3 && count >= 3 && round < ROUNDS; round++) {
        if (me == 0) {
            told(all[1], FIRST, round);
            told(all[2], ASKED, round);
            pvm_recv(all[1], GO);
            if (round % 2 == 0)
                told(all[1], LAST, round);
        } else if (me == 1) {
            if (!posted || round % 2)
                computes();
            if (!heard(FIRST, round) || !heard(THEN, round)) {
                for (int other = 0; other < count; other++)
                    if (other != me)
                        pvm_kill(all[other]);
                return 1;
            }
            /* These vary the sender from which the next message is expected. */
            if (round % 3 == 0)
                pvm_recv(all[2], MORE);
            told(all[0], GO, round);
            if (round % 2 == 0)
                pvm_recv(all[0], LAST);
        } else {
            pvm_recv(all[0], ASKED);
            told(all[1], THEN, round);
            if (round % 3 == 0)
                told(all[1], MORE, round);
        }
    }
    if (me == 0 && count > 3)
        told(all[3], STOP, 0);
    pvm_exit();
    return count < 3;
}
