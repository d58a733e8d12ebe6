/* What a message takes, as programs call it: see shared.c; pack.c and receive.S have the rest. */

#include "lib.h"
#include "doors.h"

int pvm_initsend(int encoding)
{
    return UPVM_DOOR(UPVM_DOOR_INITSEND, int (*)(int))(encoding);
}

int pvm_send(int to, int tag)
{
    return UPVM_DOOR(UPVM_DOOR_SEND, int (*)(int, int))(to, tag);
}

_Static_assert(offsetof(struct upvm_library, self) == UPVM_HOT_SELF && offsetof(struct upvm_library, context) == UPVM_HOT_CONTEXT &&
                   offsetof(struct upvm_library, head) == UPVM_HOT_UNUSUAL && offsetof(struct upvm_library, looks) == UPVM_HOT_UNUSUAL + 4,
               "receive.S knows where they are, and looks at two at once");
