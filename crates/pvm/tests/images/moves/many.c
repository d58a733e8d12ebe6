/* Many tasks in a ring, which are moved at random: many of them at a time. Each message is checked,
 * and the tasks count in how many of their rounds they were elsewhere than in the last one. */

#include "moves.h"

int main(int argc, char **argv)
{
    int *all, at = 0, rounds = atoi(argv[1]), moves = 0, process = 0, total;
    unsigned words[500];
    pvm_mytid();
    int count = pvm_siblings(&all);
    while (all[at] != pvm_mytid())
        at++;
    int to = all[(at + 1) % count], from = all[(at + count - 1) % count];
    for (int round = 0; round < rounds; round++) {
        /* Two messages on their way to each task. */
        for (int part = 0; part < 2; part++) {
            fill(words, 500, 1000 * at + 2 * round + part);
            pvm_initsend(PvmDataRaw);
            pvm_pkint((int *)words, 500, 1);
            pvm_send(to, 5);
        }
        for (int part = 0; part < 2; part++) {
            pvm_recv(from, 5);
            MUST(pvm_upkint((int *)words, 500, 1) == 0);
            MUST(is_filled(words, 500, 1000 * ((at + count - 1) % count) + 2 * round + part));
        }
        int now = process_of(pvm_mytid());
        moves += now != process;
        process = now;
    }
    MUST(pvm_probe(-1, 5) == 0);
    /* The sum goes around. */
    total = moves + (at > 0 ? recv_int(from, 6) : 0);
    if (at + 1 < count)
        send_int(to, 6, total);
    else
        printf("%d moves\n", total);
    pvm_exit();
    return failed;
}
