/* Sending: a letter tells the host which block goes to which task. Nothing is copied, and the
 * sender does not wait. pvm_psend first asks the host to copy the data from where they are; if the
 * host does not, they are copied to a block here. */

#include "lib.h"
#include "doors.h"
#include "pack.h"
#include <stdlib.h>
#include <string.h>

int upvm_enroll(void)
{
    uint64_t *table = upvm_here();
    upvm_ask_quietly(table, UPVM_ASK_SHORT, UPVM_OP_ENROLL, 0, 0, 0);
    upvm_hot.self = (int)table[UPVM_TABLE_REPLY],
        upvm_hot.parent = (int)table[UPVM_TABLE_REPLY + 1];
    upvm_context = (int)table[UPVM_TABLE_REPLY + 2];
    return upvm_hot.self;
}

int upvm_parent(void)
{
    upvm_self();
    return upvm_hot.parent;
}

void upvm_left(void)
{
    upvm_hot.self = 0;
}

int upvm_send(struct upvm_buffer *buffer, int to, int tag, int context)
{
    upvm_self();
    if (buffer->place_count) {
        int captured = upvm_captured(buffer);
        if (captured < 0)
            return captured;
    }
    upvm_post(buffer, to, tag, context);
    /* A receiver in another process can run now. */
    if (!upvm_is_here(to))
        upvm_ask_quietly(upvm_here(), UPVM_ASK_FLUSH, 0, 0, 0, 0);
    return PvmOk;
}

int upvm_is_task(int tid)
{
    return tid >= UPVM_NAME_FIRST && tid % UPVM_NAME_FIRST;
}

int upvm_own_send(int to, int tag)
{
    struct upvm_buffer *buffer = upvm_buffer(upvm_sends);
    if (!buffer)
        return upvm_done("pvm_send", PvmNoBuf);
    if (!upvm_is_task(to) || tag < 0)
        return upvm_done("pvm_send", PvmBadParam);
    int sent = upvm_send(buffer, to, tag, upvm_context);
    upvm_poll();
    return sent == PvmOk ? PvmOk : upvm_done("pvm_send", sent);
}

static int by_number(const void *one, const void *other)
{
    int a = *(const int *)one, b = *(const int *)other;
    return (a > b) - (a < b);
}

/* Sends to each task once, and not to this one, as PVM does. */
static int to_each(struct upvm_buffer *buffer, int *to, int count, int tag)
{
    int own = upvm_self();
    qsort(to, count, sizeof *to, by_number);
    for (int one = 0; one < count; one++) {
        if (to[one] == own || (one && to[one] == to[one - 1]))
            continue;
        int sent = upvm_send(buffer, to[one], tag, upvm_context);
        if (sent < 0)
            return sent;
    }
    return PvmOk;
}

int pvm_mcast(int *to, int count, int tag)
{
    struct upvm_buffer *buffer = upvm_buffer(upvm_sends);
    if (count < 0 || tag < 0 || (count && !to))
        return upvm_done("pvm_mcast", PvmBadParam);
    for (int one = 0; one < count; one++)
        if (!upvm_is_task(to[one]))
            return upvm_done("pvm_mcast", PvmBadParam);
    if (!buffer)
        return upvm_done("pvm_mcast", PvmNoBuf);
    int *copy = malloc(count * sizeof *copy + 1);
    if (!copy)
        return upvm_done("pvm_mcast", PvmNoMem);
    memcpy(copy, to, count * sizeof *copy);
    int sent = to_each(buffer, copy, count, tag);
    free(copy);
    return upvm_done("pvm_mcast", sent);
}

size_t upvm_size(int type)
{
    static const unsigned char sizes[] = {[PVM_STR] = 1, UPVM_TYPES(UPVM_SIZE)};
    return type >= 0 && type < (int)(sizeof sizes) ? sizes[type] : 0;
}

int pvm_psend(int to, int tag, void *data, int count, int type)
{
    size_t size = upvm_size(type);
    if (!size || count < 0 || tag < 0 || !upvm_is_task(to) || (count && !data))
        return upvm_done("pvm_psend", PvmBadParam);
    upvm_self();
    if (upvm_ask_quietly(upvm_here(), UPVM_ASK_SEND_FROM, upvm_both(to, tag), upvm_context,
                         (long)data, size * count) > 0)
        return PvmOk;
    int number = upvm_buffer_new(PvmDataInPlace);
    if (number < 0)
        return upvm_done("pvm_psend", number);
    struct upvm_buffer *buffer = upvm_buffer(number);
    char *room = upvm_room(buffer, size * count);
    int sent = PvmNoMem;
    if (room) {
        memcpy(room, data, size * count);
        upvm_hot.copied += size * count;
        sent = upvm_send(buffer, to, tag, upvm_context);
    }
    upvm_buffer_free(number);
    return upvm_done("pvm_psend", sent);
}
