/* spawns PROGRAM COUNT: spawns the program twice, and prints how many tasks were started. The
 * spawned tasks wait until the first one kills them. */
#include <stdio.h>
#include <stdlib.h>
#include "pvm3.h"

int main(int argc, char **argv)
{
    int tids[2][64], started[2], count = argc == 3 ? atoi(argv[2]) : 0;
    pvm_mytid();
    if (pvm_parent() != PvmNoParent) {
        pvm_recv(-1, -1);
        return 1;
    }
    for (int one = 0; one < 2; one++) {
        started[one] = pvm_spawn(argv[1], 0, PvmTaskDefault, "", count, tids[one]);
        printf("%d of %d started\n", started[one], count);
    }
    for (int one = 0; one < 2; one++)
        for (int task = 0; task < started[one]; task++)
            pvm_kill(tids[one][task]);
    pvm_exit();
    return 0;
}
