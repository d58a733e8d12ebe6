/* What usage.c and limits.c have for the rest of the archive. */
#ifndef UPVM_USAGE_H
#define UPVM_USAGE_H

#include <stdint.h>
#include <sys/resource.h>
#include <sys/types.h>

/* Nanoseconds of processor time that this program has used. */
uint64_t upvm_used(void);

/* Returns 1 if this clock counts the processor time of this program. */
int upvm_is_own_time(clockid_t clock);

/* To be called at each interrupt of the program. */
void upvm_interrupt_time(void);

/* Adds what a child has used that has ended and was waited for. */
void upvm_child_used(const struct rusage *its);

/* Raises SIGXCPU, or ends the program, if it has used more processor time than it may. Called where
 * the program is interrupted. */
void upvm_check_time(uint64_t *table);

#endif
