/* What a message takes, as programs call it: see shared.c; receive.S has the rest. Nothing is done here that could be half done, so handlers of signals may run in its midst (build.rs). */

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

_Static_assert(offsetof(struct upvm_library, self) == UPVM_HOT_SELF && offsetof(struct upvm_library, context) == UPVM_HOT_CONTEXT &&
                   offsetof(struct upvm_library, head) == UPVM_HOT_UNUSUAL && offsetof(struct upvm_library, looks) == UPVM_HOT_UNUSUAL + 4,
               "receive.S knows where they are, and looks at two at once");
