/* The common case of the per-message functions, once for all tasks of a process (crate `ulp`,
 * `SharedImage`).
 *
 * This code has no data, calls no function, and never waits. It works on the data behind the
 * running task's table. In every unusual case it tail-calls the image's function of the same
 * purpose with the same arguments, before it has changed anything. So the image has all of PVM's
 * semantics, and this is their frequent part. One common case also ends in a tail call: to copy
 * many bytes. */

#define UPVM_SHARED
#include "pack.h"

#define UNUSUAL(what) __builtin_expect(!!(what), 0)

/* One of the first few buffers, or buffer 0, which is never used. */
static inline struct upvm_buffer *at_hand(unsigned number)
{
    return &upvm_hot.buffers[number < UPVM_CHUNK ? number : 0];
}

static inline int has_room_for_a_letter(void)
{
    return upvm_here()[UPVM_TABLE_COUNT] < UPVM_LETTERS;
}

unsigned upvm_shared_version(void)
{
    return UPVM_LIBRARY_VERSION;
}

int upvm_shared_initsend(int encoding)
{
    struct upvm_buffer *buffer = at_hand(upvm_sends);
    if (UNUSUAL(buffer->used != UPVM_USED || (unsigned)encoding > PvmDataInPlace ||
                !upvm_hot.self || !has_room_for_a_letter()))
        return upvm_hot.own->initsend(encoding);
    upvm_buffer_clear(buffer);
    upvm_begin_buffer(buffer, encoding);
    return upvm_sends;
}

int upvm_shared_send(int to, int tag)
{
    struct upvm_buffer *buffer = at_hand(upvm_sends);
    if (UNUSUAL(!buffer->used || buffer->place_count || !upvm_is_here(to) || tag < 0 ||
                !upvm_hot.self || upvm_hot.looks || !has_room_for_a_letter()))
        return upvm_hot.own->send(to, tag);
    upvm_post(buffer, to, tag, upvm_context);
    return PvmOk;
}

/* Puts the host's answer into the active receive buffer, which keeps its number. */
int upvm_shared_came(int from, int tag, long microseconds, long came)
{
    const uint64_t *table = upvm_here();
    struct upvm_buffer *buffer = at_hand(upvm_receives);
    if (UNUSUAL(came != 1 || table[UPVM_TABLE_SIGNALS] || !buffer->used ||
                !has_room_for_a_letter()))
        return upvm_hot.own->came(from, tag, microseconds, came);
    upvm_filled(buffer, &table[UPVM_TABLE_REPLY]);
    return upvm_receives;
}

#define LAYOUT(name, number, argument, size, layout) [number] = layout,
static const unsigned char sizes[] = {UPVM_TYPES(UPVM_SIZE)}, layouts[] = {UPVM_TYPES(LAYOUT)};

/* Long copies use the image's libc, which chose its method at startup. */
static inline int copied(void *to, const void *from, size_t bytes)
{
    switch (bytes) {
    case 4: __builtin_memcpy(to, from, 4); return PvmOk;
    case 8: __builtin_memcpy(to, from, 8); return PvmOk;
    case 16: __builtin_memcpy(to, from, 16); return PvmOk;
    default: return upvm_hot.own->copy(to, from, bytes);
    }
}

/* A negative count makes `bytes` larger than any capacity. */
int upvm_shared_pack(const void *items, int count, int stride, int type)
{
    struct upvm_buffer *buffer = at_hand(upvm_sends);
    size_t size = sizes[type], bytes = count * size;
    if (UNUSUAL(stride != 1 || !buffer->used || buffer->encoding == PvmDataInPlace ||
                !upvm_is_plain(buffer, layouts[type])))
        return upvm_hot.own->pack(items, count, stride, type);
    if (buffer->data ? bytes > buffer->capacity - buffer->length || !upvm_is_alone(buffer)
                     : !upvm_hot.spare_count ||
                           !upvm_take_spare(buffer, upvm_hot.spare_count - 1, bytes))
        return upvm_hot.own->pack(items, count, stride, type);
    char *to = buffer->data + buffer->length;
    buffer->length += bytes;
    return copied(to, items, bytes);
}

int upvm_shared_unpack(void *items, int count, int stride, int type)
{
    struct upvm_buffer *buffer = at_hand(upvm_receives);
    size_t size = sizes[type], bytes = count * size;
    if (UNUSUAL(stride != 1 || !buffer->data || !upvm_is_plain(buffer, layouts[type]) ||
                bytes > buffer->length - buffer->cursor))
        return upvm_hot.own->unpack(items, count, stride, type);
    const char *from = buffer->data + buffer->cursor;
    buffer->cursor += bytes;
    return copied(items, from, bytes);
}
