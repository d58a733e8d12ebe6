// laplace TASKS [SWEEPS [EVERY]]: Laplace's equation on a grid of 128 x 128 floats by Gauss-Jacobi
// (Konuru et al., "A user-level process package for PVM", section 4.5). The columns are distributed
// to the tasks in blocks. Each task sweeps over its block 10 times (EVERY), then exchanges its
// border columns with its neighbours, until 5000 sweeps are done.
//
// Between two exchanges a block works with old borders, so the result depends on the number of
// blocks. The first task therefore computes the same blocks by itself afterwards, and compares
// every bit.
//
// The tasks are siblings that were started together, or the first task spawns the others.

#include <time.h>

#include <pvm3.h>

#include "block.h"

enum { BLOCKS = 1, TO_LEFT = 2, TO_RIGHT = 3, RESULT = 4 };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static void exchange(struct block *block, int left, int right) {
    if (left) {
        pvm_initsend(PvmDataRaw);
        pvm_pkfloat(block->now[1], N, 1);
        pvm_send(left, TO_LEFT);
    }
    if (right) {
        pvm_initsend(PvmDataRaw);
        pvm_pkfloat(block->now[block->columns], N, 1);
        pvm_send(right, TO_RIGHT);
    }
    if (left) {
        pvm_recv(left, TO_RIGHT);
        pvm_upkfloat(block->now[0], N, 1);
    }
    if (right) {
        pvm_recv(right, TO_LEFT);
        pvm_upkfloat(block->now[block->columns + 1], N, 1);
    }
}

// Collects the grid from all tasks and prints the result.
static void finish(struct block *own, int *tids, int tasks, int sweeps, int every, double begun) {
    Column *grid = room(sizeof(Column) * N), *check;
    double sum = 0, took;
    int k, r;
    memcpy(grid[own->first], own->now[1], sizeof(Column) * own->columns);
    for (k = 1; k < tasks; k++) {
        int first = N * k / tasks, columns = N * (k + 1) / tasks - first;
        pvm_recv(tids[k], RESULT);
        pvm_upkfloat(grid[first], N * columns, 1);
    }
    took = now() - begun;
    for (k = 0; k < N; k++) for (r = 0; r < N; r++) sum += grid[k][r];
    check = alone(tasks, sweeps, every);
    printf("laplace with %d tasks, %d sweeps: sum %.6f, %s\n", tasks, sweeps, sum,
           memcmp(grid, check, sizeof(Column) * N) ? "NOT as computed alone" : "as computed alone");
    printf("%.2f Mflops\n", FLOPS * (N - 2) * (N - 2) * sweeps / took / 1e6);
    free(grid);
    free(check);
}

int main(int argc, char **argv) {
    int *siblings, tids[N], tasks, sweeps, every, me = 0, k, left, right;
    struct block block;
    double begun;
    int own = pvm_mytid(), parent = pvm_parent();
    if (own < 0) return 1;
    tasks = argc > 1 ? atoi(argv[1]) : 2;
    sweeps = argc > 2 ? atoi(argv[2]) : 5000;
    every = argc > 3 ? atoi(argv[3]) : 10;
    if (tasks < 1 || tasks > N || sweeps < 1 || every < 1) {
        fprintf(stderr, "usage: laplace TASKS [SWEEPS [EVERY]], with at most %d tasks\n", N);
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
        if (tasks > 1 &&
            pvm_spawn(argv[0], argv + 1, PvmTaskDefault, "", tasks - 1, tids + 1) != tasks - 1) {
            fprintf(stderr, "laplace: not all of %d tasks could be started\n", tasks);
            pvm_exit();
            return 1;
        }
        pvm_initsend(PvmDataRaw);
        pvm_pkint(tids, tasks, 1);
        if (tasks > 1) pvm_mcast(tids + 1, tasks - 1, BLOCKS);
    } else {
        pvm_recv(parent, BLOCKS);
        pvm_upkint(tids, tasks, 1);
        while (tids[me] != own) me++;
    }
    left = me > 0 ? tids[me - 1] : 0;
    right = me < tasks - 1 ? tids[me + 1] : 0;
    make_block(&block, me, tasks);
    begun = now();
    for (k = 1; k <= sweeps; k++) {
        sweep(&block);
        if (k % every == 0) exchange(&block, left, right);
    }
    if (me == 0) {
        finish(&block, tids, tasks, sweeps, every, begun);
    } else {
        pvm_initsend(PvmDataRaw);
        pvm_pkfloat(block.now[1], N * block.columns, 1);
        pvm_send(tids[0], RESULT);
    }
    drop_block(&block);
    pvm_exit();
    return 0;
}
