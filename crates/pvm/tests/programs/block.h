// Laplace's equation on a grid of N x N floats, by Gauss-Jacobi on blocks of columns; see
// laplace.c.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 128 };
// Operations per point and sweep: three additions and a multiplication.
#define FLOPS 4.0

typedef float Column[N];

// A block of columns with a copy of the adjacent ones, and the block's next state.
struct block {
    int first, columns;
    Column *now, *next;
};

static void *room(size_t bytes) {
    void *at = calloc(1, bytes);
    if (!at) {
        fprintf(stderr, "no memory for %zu bytes\n", bytes);
        exit(1);
    }
    return at;
}

// Initializes one of `blocks` blocks: one row of the whole grid's border is hot.
static void make_block(struct block *block, int index, int blocks) {
    int k;
    block->first = N * index / blocks;
    block->columns = N * (index + 1) / blocks - block->first;
    block->now = room(sizeof(Column) * (block->columns + 2));
    block->next = room(sizeof(Column) * (block->columns + 2));
    for (k = 0; k < block->columns + 2; k++) block->now[k][0] = block->next[k][0] = 100.0f;
}

static void drop_block(struct block *block) {
    free(block->now);
    free(block->next);
}

static void sweep(struct block *block) {
    Column *swapped = block->now;
    int c, r;
    for (c = 1; c <= block->columns; c++) {
        const float *left = block->now[c - 1], *own = block->now[c], *right = block->now[c + 1];
        float *to = block->next[c];
        int column = block->first + c - 1;
        // The border of the whole grid does not change.
        if (column == 0 || column == N - 1) continue;
        for (r = 1; r < N - 1; r++) to[r] = 0.25f * (left[r] + right[r] + own[r - 1] + own[r + 1]);
    }
    // Copies of the neighbours' columns are kept in both states.
    memcpy(block->next[0], block->now[0], sizeof(Column));
    memcpy(block->next[block->columns + 1], block->now[block->columns + 1], sizeof(Column));
    block->now = block->next;
    block->next = swapped;
}

// Computes all blocks one after the other, as a check. Returns the whole grid.
static Column *alone(int blocks, int sweeps, int every) {
    struct block *all = room(sizeof *all * blocks);
    Column *grid = room(sizeof(Column) * N);
    int k, s;
    for (k = 0; k < blocks; k++) make_block(&all[k], k, blocks);
    for (s = 1; s <= sweeps; s++) {
        for (k = 0; k < blocks; k++) sweep(&all[k]);
        for (k = 0; k + 1 < blocks && s % every == 0; k++) {
            memcpy(all[k].now[all[k].columns + 1], all[k + 1].now[1], sizeof(Column));
            memcpy(all[k + 1].now[0], all[k].now[all[k].columns], sizeof(Column));
        }
    }
    for (k = 0; k < blocks; k++) {
        memcpy(grid[all[k].first], all[k].now[1], sizeof(Column) * all[k].columns);
        drop_block(&all[k]);
    }
    free(all);
    return grid;
}
