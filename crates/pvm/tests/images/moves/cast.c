/* A block that several tasks hold, in one process and in others. A task that packs again changes
 * nothing for the others, also after moves. Task 0 directs, task 1 has cast the block, and the
 * others have received it. */

#include "moves.h"

#define WORDS 20000

enum { ORDER = 1, BLOCK, REPLY };
enum { SEND, PACK, END };

static int *all, count, me;

/* Obeys the director. `block` is the buffer with the block. */
static void obey(int block)
{
    int what, own = 0;
    for (;;) {
        pvm_recv(all[0], ORDER);
        pvm_upkint(&what, 1, 1);
        switch (what) {
        case SEND:
            /* As it is now, with what was packed here. */
            pvm_setsbuf(block);
            MUST(pvm_send(all[0], REPLY) == 0);
            pvm_setsbuf(0);
            break;
        case PACK:
            own++;
            pvm_setsbuf(block);
            what = 1000 * me + own;
            MUST(pvm_pkint(&what, 1, 1) == 0);
            pvm_setsbuf(0);
            send_int(all[0], REPLY, failed);
            pvm_freebuf(pvm_setsbuf(0));
            break;
        case END: return;
        }
    }
}

/* Checks what a task has: the block, and then what it has packed itself. */
static void check(int at, int packed)
{
    static unsigned words[WORDS];
    int value;
    send_int(all[at], ORDER, SEND);
    pvm_recv(all[at], REPLY);
    MUST(pvm_upkint((int *)words, WORDS, 1) == 0 && is_filled(words, WORDS, 5));
    for (int one = 1; one <= packed; one++)
        MUST(pvm_upkint(&value, 1, 1) == 0 && value == 1000 * at + one);
    MUST(pvm_upkint(&value, 1, 1) == PvmNoData);
}

static void direct(void)
{
    int packed[8] = {0}, places[8] = {0, 0, 0, 1, 1, 0};
    pvm_setopt(PvmAutoErr, 0);
    for (int round = 0; round < 12; round++) {
        int at = 1 + round * 3 % (count - 1), packs = 1 + round % (count - 1);
        places[at] = 1 - places[at];
        move_to(all[at], places[at]);
        for (int other = 1; other < count; other++)
            check(other, packed[other]);
        send_int(all[packs], ORDER, PACK);
        MUST(recv_int(all[packs], REPLY) == 0);
        packed[packs]++;
        for (int other = 1; other < count; other++)
            check(other, packed[other]);
    }
    for (int other = 1; other < count; other++)
        send_int(all[other], ORDER, END);
}

int main(void)
{
    static unsigned words[WORDS];
    pvm_mytid();
    count = pvm_siblings(&all);
    for (int at = 0; at < count; at++)
        if (all[at] == pvm_mytid())
            me = at;
    if (me == 0) {
        direct();
    } else if (me == 1) {
        fill(words, WORDS, 5);
        pvm_initsend(PvmDataRaw);
        pvm_pkint((int *)words, WORDS, 1);
        MUST(pvm_mcast(all + 2, count - 2, BLOCK) == 0);
        obey(pvm_setsbuf(0));
    } else {
        pvm_recv(all[1], BLOCK);
        obey(pvm_setrbuf(0));
    }
    pvm_exit();
    return failed;
}
