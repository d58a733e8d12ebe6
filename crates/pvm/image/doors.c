/* The per-message functions that programs call; see shared.c for what they do and receive.S for the
 * rest. Nothing here leaves a state half changed, so signal handlers may interrupt these functions
 * (build.rs). */

#include "lib.h"
#include "doors.h"
#include "pack.h"

int pvm_initsend(int encoding)
{
    return UPVM_DOOR(UPVM_DOOR_INITSEND, int (*)(int))(encoding);
}

int pvm_send(int to, int tag)
{
    return UPVM_DOOR(UPVM_DOOR_SEND, int (*)(int, int))(to, tag);
}

#define FUNCTIONS(name, number, argument, size, layout)                                       \
    int pvm_pk##name(argument *items, int count, int stride)                                  \
    {                                                                                         \
        return UPVM_DOOR(UPVM_DOOR_PACK, upvm_packs *)(items, count, stride, number);         \
    }                                                                                         \
    int pvm_upk##name(argument *items, int count, int stride)                                 \
    {                                                                                         \
        return UPVM_DOOR(UPVM_DOOR_UNPACK, upvm_unpacks *)(items, count, stride, number);     \
    }
UPVM_TYPES(FUNCTIONS)

_Static_assert(offsetof(struct upvm_library, self) == UPVM_HOT_SELF &&
                   offsetof(struct upvm_library, context) == UPVM_HOT_CONTEXT &&
                   offsetof(struct upvm_library, waits) == UPVM_HOT_UNUSUAL &&
                   offsetof(struct upvm_library, looks) == UPVM_HOT_UNUSUAL + 4,
               "receive.S has these offsets, and tests two fields at once");
