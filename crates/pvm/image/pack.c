/* Packing and unpacking.
 *
 * With PvmDataRaw and PvmDataInPlace, data are laid out in a message as in memory. With
 * PvmDataDefault they have XDR's sizes, but this machine's byte order: each short takes 4 bytes,
 * and the bytes of each call are padded to a multiple of 4. A long takes 8 bytes. (The original PVM
 * packs it into 4, and loses what does not fit.)
 *
 * The common case, contiguous items that are laid out as in memory, is handled by functions that
 * all tasks share (shared.c). They leave everything else, errors included, to the functions here.
 */

#include "lib.h"
#include "doors.h"
#include "pack.h"
#include <stdlib.h>
#include <string.h>

#define ROW(name, number, argument, size, layout) \
    [number] = {"pvm_pk" #name, "pvm_upk" #name, size, layout},
static const struct type {
    const char *packs, *unpacks;
    unsigned char size, layout;
} types[] = {UPVM_TYPES(ROW)};

#define XDR_UNIT 4

static inline size_t filled(size_t bytes)
{
    return (bytes + XDR_UNIT - 1) & ~(size_t)(XDR_UNIT - 1);
}

/* Copies items one by one. A step is the distance in bytes to the next item, and may be negative.
 */
static inline __attribute__((always_inline)) void
each(char *to, ptrdiff_t to_step, const char *from, ptrdiff_t from_step, size_t count, size_t size)
{
    for (; count; count--, to += to_step, from += from_step)
        memcpy(to, from, size);
}

static void copy(char *to, ptrdiff_t to_step, const char *from, ptrdiff_t from_step, size_t count,
                 size_t size)
{
    if (to_step == (ptrdiff_t)size && from_step == (ptrdiff_t)size) {
        memcpy(to, from, count * size);
        return;
    }
    switch (size) {
    case 1: each(to, to_step, from, from_step, count, 1); break;
    case 2: each(to, to_step, from, from_step, count, 2); break;
    case 4: each(to, to_step, from, from_step, count, 4); break;
    case 8: each(to, to_step, from, from_step, count, 8); break;
    default: each(to, to_step, from, from_step, count, 16);
    }
}

/* Records where the data are, to be copied when the buffer is sent. As in PVM, items must be
 * contiguous. */
static int placed(struct upvm_buffer *buffer, const char *items, size_t count, int stride,
                  size_t size)
{
    if (stride != 1)
        return PvmNotImpl;
    if (!count)
        return PvmOk;
    if (buffer->place_count == buffer->place_room) {
        int room = buffer->place_room ? 2 * buffer->place_room : 8;
        struct upvm_place *places = realloc(buffer->places, room * sizeof *places);
        if (!places)
            return PvmNoMem;
        buffer->places = places, buffer->place_room = room;
    }
    buffer->places[buffer->place_count++] = (struct upvm_place){items, size * count};
    return PvmOk;
}

int upvm_pack(int number, const void *data, int given, int stride)
{
    const struct type *type = &types[number];
    struct upvm_buffer *buffer = upvm_buffer(upvm_sends);
    const char *items = data;
    size_t count = given, size = type->size;
    if (given < 0)
        return PvmBadParam;
    if (!buffer)
        return PvmNoBuf;
    if (buffer->encoding == PvmDataInPlace)
        return placed(buffer, items, count, stride, size);
    if (!count)
        return PvmOk;
    int plain = upvm_is_plain(buffer, type->layout), wide = !plain && type->layout != UPVM_FILLED;
    size_t bytes = wide ? count * XDR_UNIT : plain ? count * size : filled(count);
    char *to = upvm_room(buffer, bytes);
    if (!to)
        return PvmNoMem;
    ptrdiff_t step = (ptrdiff_t)stride * size;
    if (!wide) {
        copy(to, size, items, step, count, size);
        memset(to + count * size, 0, bytes - count * size);
        return PvmOk;
    }
    for (; count; count--, items += step, to += XDR_UNIT) {
        short item;
        memcpy(&item, items, sizeof item);
        int32_t unit = type->layout == UPVM_SIGNED ? item : (unsigned short)item;
        memcpy(to, &unit, sizeof unit);
    }
    return PvmOk;
}

/* If the message has fewer bytes than asked for, unpacks all of them to the last byte. */
int upvm_unpack(int number, void *data, int given, int stride)
{
    const struct type *type = &types[number];
    struct upvm_buffer *buffer = upvm_buffer(upvm_receives);
    char *items = data;
    size_t count = given, size = type->size;
    if (given < 0)
        return PvmBadParam;
    if (!buffer)
        return PvmNoBuf;
    size_t there = buffer->length - buffer->cursor;
    if (!count || !there)
        return count ? PvmNoData : PvmOk;
    int plain = upvm_is_plain(buffer, type->layout), wide = !plain && type->layout != UPVM_FILLED;
    size_t unit = wide ? XDR_UNIT : size;
    size_t whole = there / unit < count ? there / unit : count;
    const char *from = buffer->data + buffer->cursor;
    ptrdiff_t step = (ptrdiff_t)stride * size;
    copy(items, step, from, unit, whole, size); /* the lower half of a wide item comes first */
    if (whole == count) {
        size_t bytes = plain || wide ? count * unit : filled(count);
        buffer->cursor += bytes < there ? bytes : there;
        return PvmOk;
    }
    if (!wide)
        memcpy(items + (ptrdiff_t)whole * step, from + whole * size, there - whole * size);
    buffer->cursor = buffer->length;
    return PvmNoData;
}

int upvm_own_pack(const void *items, int count, int stride, int type)
{
    return upvm_done(types[type].packs, upvm_pack(type, items, count, stride));
}

int upvm_own_unpack(void *items, int count, int stride, int type)
{
    return upvm_done(types[type].unpacks, upvm_unpack(type, items, count, stride));
}

int upvm_own_copy(void *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
    return PvmOk;
}

/* Packs a string as its length including the 0, and its bytes. Not possible with PvmDataInPlace:
 * the length would have no place in the program's memory. */
int upvm_pack_text(const char *text)
{
    struct upvm_buffer *buffer = upvm_buffer(upvm_sends);
    if (!text)
        return PvmBadParam;
    if (buffer && buffer->encoding == PvmDataInPlace)
        return PvmNotImpl;
    size_t bytes = strlen(text) + 1;
    if (bytes > INT_MAX)
        return PvmOverflow;
    int length = bytes;
    int code = upvm_pack(PVM_INT, &length, 1, 1);
    return code < 0 ? code : upvm_pack(PVM_BYTE, text, length, 1);
}

int upvm_unpack_text(char *text)
{
    int length;
    if (!text)
        return PvmBadParam;
    int code = upvm_unpack(PVM_INT, &length, 1, 1);
    return code < 0 || length < 0 ? code : upvm_unpack(PVM_BYTE, text, length, 1);
}

int pvm_pkstr(char *text)
{
    return upvm_done("pvm_pkstr", upvm_pack_text(text));
}

int pvm_upkstr(char *text)
{
    return upvm_done("pvm_upkstr", upvm_unpack_text(text));
}
