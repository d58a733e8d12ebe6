/* What the parts of the archive know of each other. */
#ifndef UPVM_IMAGE_H
#define UPVM_IMAGE_H

#include <stdint.h>
#include "layout.h"

/* Asks the host. Runs others if the host says so. */
typedef long upvm_gate(unsigned long what, long a, long b, long c, long d);

/* The table of the slot that this image is in; none if it was not started in one. */
uint64_t *upvm_table(void);

/* By GS, which the worker sets: the table of the slot that runs. Only in an image that was started in one. */
static inline __attribute__((always_inline)) uint64_t *upvm_here(void)
{
    return *(uint64_t *const __seg_gs *)UPVM_GS_TABLE;
}

/* A function that all images of the worker's share, of a type. */
#define UPVM_DOOR(number, type) (*(__typeof__(type) const __seg_gs *)(UPVM_GS_DOORS + 8 * (number)))

/* What a library above does with what is written to the standard streams: as write(2) returns, but below -1 it is none of its. */
extern long (*upvm_writes)(int descriptor, const void *bytes, unsigned long count);

/* Runs the handlers of signals that have come. What an answer says is there as before. */
void upvm_signals(uint64_t *table);

/* Whether what was interrupted by the last handlers is to go on: all of them said so (SA_RESTART). */
extern int upvm_restarts;

/* A question of a function that is in the midst of something: handlers run later. */
static inline long upvm_ask_quietly(uint64_t *table, unsigned long what, long a, long b, long c, long d)
{
    return ((upvm_gate *)table[UPVM_TABLE_GATE])(what, a, b, c, d);
}

/* A question. Whoever has to wait for its answer finds here what has come meanwhile; the word is beside the letters' count. */
static inline long upvm_ask_host(uint64_t *table, unsigned long what, long a, long b, long c, long d)
{
    long answer = upvm_ask_quietly(table, what, a, b, c, d);
    if (__builtin_expect(table[UPVM_TABLE_SIGNALS] != 0, 0))
        upvm_signals(table);
    return answer;
}
#define UPVM_ASK(...) upvm_ask_host(__VA_ARGS__)

#endif
