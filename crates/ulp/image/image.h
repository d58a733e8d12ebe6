/* What the parts of the archive share. */
#ifndef UPVM_IMAGE_H
#define UPVM_IMAGE_H

#include <stdint.h>
#include "layout.h"

/* Asks the host, which may run others first. */
typedef long upvm_gate(unsigned long what, long a, long b, long c, long d);

/* The table of the slot that this image is in; none if it was not started in a slot. */
uint64_t *upvm_table(void);

/* What that function returned the first time; 0 before. */
extern uint64_t *upvm_known_table;

/* The table of the slot that runs, found by GS, which the worker sets. Only for an image that was
 * started in a slot. */
static inline __attribute__((always_inline)) uint64_t *upvm_here(void)
{
    return *(uint64_t *const __seg_gs *)UPVM_GS_TABLE;
}

/* Says whether system calls of the program are caught from now on, or pass. Returning to the host
 * makes it 1. */
static inline void upvm_catch(unsigned char whether)
{
    *(unsigned char volatile __seg_gs *)UPVM_GS_CATCHES = whether;
}

/* A function of this type that all images of the worker share. */
#define UPVM_DOOR(number, type) (*(__typeof__(type) const __seg_gs *)(UPVM_GS_DOORS + 8 * (number)))

/* What a library above does with output to the standard streams. Returns as write(2), or less than
 * -1 if it leaves the output to the caller. */
extern long (*upvm_writes)(int descriptor, const void *bytes, unsigned long count);

/* What a library above does with this library's own reports, for which the program must not wait.
 * Returns less than 0 if it leaves the report to the caller. */
extern int (*upvm_reports)(const char *line, unsigned long length);

/* Runs the handlers of pending signals. Afterwards the words of an answer are as before. */
void upvm_signals(uint64_t *table);

/* Set if what the last handlers interrupted is to go on: all of them allow it (SA_RESTART). */
extern int upvm_restarts;

/* Asks a question in the middle of a function: handlers run later. */
static inline long upvm_ask_quietly(uint64_t *table, unsigned long what, long a, long b, long c,
                                    long d)
{
    return ((upvm_gate *)table[UPVM_TABLE_GATE])(what, a, b, c, d);
}

/* Asks a question, then handles signals that arrived while it waited. The word of pending signals
 * is beside the count of letters. */
static inline long upvm_ask_host(uint64_t *table, unsigned long what, long a, long b, long c,
                                 long d)
{
    long answer = upvm_ask_quietly(table, what, a, b, c, d);
    if (__builtin_expect(table[UPVM_TABLE_SIGNALS] != 0, 0))
        upvm_signals(table);
    return answer;
}
#define UPVM_ASK(...) upvm_ask_host(__VA_ARGS__)

#endif
