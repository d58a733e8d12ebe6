/* The per-message functions that programs call. They go through doors (ops.h) to functions that all
 * tasks of a process share (shared.c), and those fall back on functions of the image, declared
 * here. */
#ifndef UPVM_DOORS_H
#define UPVM_DOORS_H

/* Offsets of fields of `upvm_hot`, for receive.S. */
#define UPVM_HOT_SELF 8
#define UPVM_HOT_UNUSUAL 24
#define UPVM_HOT_CONTEXT 32

#ifndef __ASSEMBLER__
#include <stddef.h>

typedef int upvm_packs(const void *items, int count, int stride, int type);
typedef int upvm_unpacks(void *items, int count, int stride, int type);

/* pvm_initsend and pvm_send, for all cases. */
int upvm_own_initsend(int encoding);
int upvm_own_send(int to, int tag);

/* Lets the host read the letters now, so that messages to other processes are sent. */

/* Completes a receive. `came` is the host's answer, or UPVM_UNASKED if the host was not asked.
 * Returns the buffer's number, 0, or an error. */
int upvm_own_came(int from, int tag, long microseconds, long came);

/* pvm_pkint, pvm_upkint and the like for `type`, for all cases. */
upvm_packs upvm_own_pack;
upvm_unpacks upvm_own_unpack;

/* Copies with the image's own libc. Returns PvmOk. */
int upvm_own_copy(void *to, const void *from, size_t bytes);
#endif

#endif
