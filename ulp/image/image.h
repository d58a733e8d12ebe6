/* What the parts of the archive know of each other. */
#ifndef UPVM_IMAGE_H
#define UPVM_IMAGE_H

#include <stdint.h>
#include "layout.h"

/* Asks the host. Runs others if the host says so. */
typedef long upvm_gate(unsigned long what, long a, long b, long c, long d);

/* The table of the slot that this image is in; none if it was not started in one. */
uint64_t *upvm_table(void);

/* What a library above does with what is written to the standard streams: as write(2) returns, but below -1 it is none of its. */
extern long (*upvm_writes)(int descriptor, const void *bytes, unsigned long count);

#define UPVM_ASK(table, ...) (((upvm_gate *)(table)[UPVM_TABLE_GATE])(__VA_ARGS__))

#endif
