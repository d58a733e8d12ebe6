// ring TASKS ROUNDS: a message of one int travels round a ring of tasks (Konuru et al., "A
// user-level process package for PVM", section 4.4). Each task adds its index, so the sum shows
// whether each task had the message once per round.
//
// The tasks are siblings that were started together, or the first task spawns the others.

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <pvm3.h>

enum { MOST = 10000, RING = 1, TOKEN = 2 };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

int main(int argc, char **argv) {
    int *siblings, tids[MOST], tasks, rounds, me = 0, k, token;
    double begun, took;
    int own = pvm_mytid(), parent = pvm_parent();
    if (own < 0) return 1;
    tasks = argc > 1 ? atoi(argv[1]) : 4;
    rounds = argc > 2 ? atoi(argv[2]) : 1000;
    if (tasks < 1 || tasks > MOST || rounds < 1) {
        fprintf(stderr, "usage: ring TASKS ROUNDS\n");
        pvm_exit();
        return 2;
    }
    if (tasks > 1 && pvm_siblings(&siblings) == tasks) {
        for (k = 0; k < tasks; k++) {
            tids[k] = siblings[k];
            if (tids[k] == own) me = k;
        }
    } else if (parent == PvmNoParent) {
        tids[0] = own;
        k = tasks > 1 ? pvm_spawn(argv[0], argv + 1, PvmTaskDefault, "", tasks - 1, tids + 1) : 0;
        if (k != tasks - 1) {
            fprintf(stderr, "ring: only %d of %d tasks could be started\n", k + 1, tasks);
            while (k > 0) pvm_kill(tids[k--]);
            pvm_exit();
            return 1;
        }
        pvm_initsend(PvmDataRaw);
        pvm_pkint(tids, tasks, 1);
        if (tasks > 1) pvm_mcast(tids + 1, tasks - 1, RING);
    } else {
        pvm_recv(parent, RING);
        pvm_upkint(tids, tasks, 1);
        while (tids[me] != own) me++;
    }
    int next = tids[(me + 1) % tasks], last = tids[(me + tasks - 1) % tasks];
    token = 0;
    begun = now();
    for (k = 0; k < rounds; k++) {
        if (me > 0) {
            pvm_recv(last, TOKEN);
            pvm_upkint(&token, 1, 1);
            token += me;
        }
        pvm_initsend(PvmDataRaw);
        pvm_pkint(&token, 1, 1);
        pvm_send(next, TOKEN);
        if (me == 0) {
            pvm_recv(last, TOKEN);
            pvm_upkint(&token, 1, 1);
        }
    }
    took = now() - begun;
    if (me == 0) {
        int expected = rounds * (tasks * (tasks - 1) / 2);
        printf("ring of %d tasks, %d rounds: sum %d, %s\n", tasks, rounds, token,
               token == expected ? "right" : "WRONG");
        printf("%.3f us a round\n", took / rounds * 1e6);
    }
    pvm_exit();
    return 0;
}
