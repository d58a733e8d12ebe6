/* The addresses of the slot that the program's maps take, and where its heap ends. */
#ifndef UPVM_RANGES_H
#define UPVM_RANGES_H

#include "calls.h"

static inline uintptr_t upvm_up(uintptr_t address, uintptr_t page)
{
    return (address + page - 1) & -page;
}

/* End of the addresses for maps. The list of ranges begins there. */
static inline uintptr_t upvm_limit(void)
{
    return upvm_known_table[UPVM_TABLE_HEAP_END] - UPVM_RANGES;
}

/* The lowest address that a map takes, or the limit. */
uintptr_t upvm_lowest(void);

/* Returns 1 if the list has room for what one call adds. */
int upvm_has_room(void);

/* Returns 1 if no map takes any address from `start` to `end`. */
int upvm_is_free(uintptr_t start, uintptr_t end);

/* Finds the highest free addresses from `least` on. Returns 0 if there are none. */
uintptr_t upvm_place(uintptr_t length, uintptr_t aligned, uintptr_t least);

void upvm_take(uintptr_t start, uintptr_t end);
void upvm_free(uintptr_t start, uintptr_t end);

/* Notes a segment of System V that is attached: shmdt has no length. */
void upvm_attach(uintptr_t start, uintptr_t end);
/* The end of the segment that begins here, or 0. */
uintptr_t upvm_attached(uintptr_t start);
/* Forgets the segments that any of these addresses belongs to. */
void upvm_detach(uintptr_t start, uintptr_t end);

/* End of the heap, at a page (heap.c). Maps begin there or above. */
uintptr_t upvm_heap_end(void);
/* Unmaps what is mapped for the heap above its end, from `at` on or earlier. Returns 0 or an
 * error. */
long upvm_heap_leaves(uintptr_t at);
/* Set if pages of the heap are no longer as they were made. */
extern char upvm_heap_changed;

#endif
