/* What programs call for each message: functions that all tasks of a process share (shared.c), behind doors (ops.h), and
 * what those leave to the image. */
#ifndef UPVM_DOORS_H
#define UPVM_DOORS_H

/* Where receive.S finds what is in `upvm_hot`. */
#define UPVM_HOT_SELF 8
#define UPVM_HOT_UNUSUAL 24
#define UPVM_HOT_CONTEXT 32

#ifndef __ASSEMBLER__
#include <stddef.h>

typedef int upvm_packs(const void *items, int count, int stride, int type);
typedef int upvm_unpacks(void *items, int count, int stride, int type);

/* As pvm_initsend and pvm_send, in all cases. */
int upvm_own_initsend(int encoding);
int upvm_own_send(int to, int tag);

/* Who is in another process is sent what lies in letters. */
int upvm_own_flush(void);

/* A receive that the host has answered by this, or was not asked for (UPVM_UNASKED): the buffer's number, 0, or an error. */
int upvm_own_came(int from, int tag, long microseconds, long came);

/* As pvm_pkint and pvm_upkint do for a type, in all cases. */
upvm_packs upvm_own_pack;
upvm_unpacks upvm_own_unpack;

/* Copies, by the image's own libc. PvmOk. */
int upvm_own_copy(void *to, const void *from, size_t bytes);
#endif

#endif
