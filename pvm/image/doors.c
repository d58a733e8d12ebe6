/* What a message takes, as programs call it: see shared.c. */

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

/* The host is asked from here: who waits has nothing of what is shared on its stack. */
static inline int received(int from, int tag, long microseconds)
{
    long came = UPVM_UNASKED;
    if (from >= -1 && tag >= -1 && upvm_hot.self && !upvm_hot.head && !upvm_hot.looks) {
        upvm_gate *gate = (upvm_gate *)upvm_here()[UPVM_TABLE_GATE];
        came = gate(UPVM_ASK_RECEIVE, from, tag, upvm_context, microseconds);
    }
    return UPVM_DOOR(UPVM_DOOR_CAME, int (*)(int, int, long, long))(from, tag, microseconds, came);
}

int pvm_recv(int from, int tag)
{
    return received(from, tag, -1);
}

int pvm_nrecv(int from, int tag)
{
    return received(from, tag, 0);
}
