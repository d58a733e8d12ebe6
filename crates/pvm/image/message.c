/* Messages as programs see them: numbers of buffers, headers, and messages packed into messages. */

#define PVM33COMPAT
#include "lib.h"
#include "doors.h"
#include "pack.h"
#include <string.h>

/* Values of a header's `enc`: how the data are laid out in the message. */
#define XDR_SIGNATURE 0x10000000
#define PLACE_SIGNATURE 0x20000000
#define TRACE_SIGNATURE 0x40000000
/* This machine's own layout. pvm_config reports it, too. */
#define SIGNATURE 0x408c41

static int is_encoding(int encoding)
{
    return encoding >= PvmDataDefault && encoding <= PvmDataTrace && encoding != 3;
}

static int signature(const struct upvm_buffer *buffer)
{
    switch (buffer->encoding) {
    case PvmDataDefault: return XDR_SIGNATURE;
    case PvmDataTrace: return TRACE_SIGNATURE;
    /* Data that were sent from their place are laid out in the message as in memory. */
    case PvmDataInPlace:
        return buffer->length && !buffer->place_count ? SIGNATURE : PLACE_SIGNATURE;
    default: return SIGNATURE;
    }
}

/* Returns an encoding, or PvmBadMsg. */
static int encoding_of(int signature)
{
    switch (signature) {
    case XDR_SIGNATURE: return PvmDataDefault;
    case TRACE_SIGNATURE: return PvmDataTrace;
    case SIGNATURE: case PLACE_SIGNATURE: return PvmDataRaw;
    default: return PvmBadMsg;
    }
}

int pvm_mkbuf(int encoding)
{
    if (!is_encoding(encoding))
        return upvm_done("pvm_mkbuf", PvmBadParam);
    int number = upvm_buffer_new(encoding);
    if (number < 0)
        return upvm_done("pvm_mkbuf", number);
    upvm_self();
    upvm_begin_buffer(upvm_buffer(number), encoding);
    return number;
}

int upvm_own_initsend(int encoding)
{
    struct upvm_buffer *buffer = upvm_buffer(upvm_sends);
    /* A message that was probed would wait on, empty. */
    if (buffer && buffer->used == UPVM_QUEUED && is_encoding(encoding)) {
        upvm_buffer_free(upvm_sends);
        buffer = 0;
    }
    if (!buffer || !is_encoding(encoding)) {
        int number = pvm_mkbuf(encoding);
        if (number < 0)
            return upvm_done("pvm_initsend", number);
        return upvm_sends = number;
    }
    upvm_buffer_clear(buffer);
    upvm_self();
    upvm_begin_buffer(buffer, encoding);
    return upvm_sends;
}

/* Checks a number that a program passes. Returns PvmOk if there is such a buffer. */
static int checked(int number)
{
    return number <= 0 ? PvmBadParam : upvm_buffer(number) ? PvmOk : PvmNoSuchBuf;
}

int pvm_freebuf(int number)
{
    int code = number ? checked(number) : PvmOk;
    if (code < 0)
        return upvm_done("pvm_freebuf", code);
    upvm_buffer_free(number);
    return PvmOk;
}

int pvm_getsbuf(void)
{
    return upvm_sends;
}

int pvm_getrbuf(void)
{
    return upvm_receives;
}

/* Makes a buffer active. A buffer is active in at most one direction. */
static int activated(const char *function, int number, int *active, int *other)
{
    int code = number ? checked(number) : PvmOk;
    if (code < 0)
        return upvm_done(function, code);
    if (number && number == *other)
        *other = 0;
    int old = *active;
    *active = number;
    return old;
}

int pvm_setsbuf(int number)
{
    int old = activated("pvm_setsbuf", number, &upvm_sends, &upvm_receives);
    /* A later unpacking starts at the beginning. */
    if (old >= 0 && number)
        upvm_buffer(number)->cursor = 0;
    return old;
}

int pvm_setrbuf(int number)
{
    return activated("pvm_setrbuf", number, &upvm_receives, &upvm_sends);
}

/* Returns PvmOverflow if the message is too long for an int. Such a message can be sent, received
 * and unpacked like any other. */
static int length_known(const struct upvm_buffer *buffer)
{
    return buffer->length > INT_MAX ? PvmOverflow : PvmOk;
}

static struct pvmminfo header(const struct upvm_buffer *buffer)
{
    return (struct pvmminfo){
        .len = upvm_length(buffer), .ctx = buffer->context, .tag = buffer->tag, .wid = buffer->wait,
        .enc = signature(buffer), .crc = buffer->crc, .src = buffer->source,
        .dst = buffer->destination,
    };
}

static void set_header(struct upvm_buffer *buffer, const struct pvmminfo *info)
{
    buffer->context = info->ctx, buffer->tag = info->tag, buffer->wait = info->wid;
    buffer->source = info->src, buffer->destination = info->dst;
}

int pvm_bufinfo(int number, int *bytes, int *tag, int *source)
{
    int code = checked(number);
    if (code < 0)
        return upvm_done("pvm_bufinfo", code);
    struct upvm_buffer *buffer = upvm_buffer(number);
    if (bytes)
        *bytes = upvm_length(buffer);
    if (tag)
        *tag = buffer->tag;
    if (source)
        *source = buffer->source;
    return bytes ? upvm_done("pvm_bufinfo", length_known(buffer)) : PvmOk;
}

int pvm_getminfo(int number, struct pvmminfo *info)
{
    int code = info ? checked(number) : PvmBadParam;
    if (code < 0)
        return upvm_done("pvm_getminfo", code);
    *info = header(upvm_buffer(number));
    return upvm_done("pvm_getminfo", length_known(upvm_buffer(number)));
}

int pvm_setminfo(int number, struct pvmminfo *info)
{
    int code = info ? checked(number) : PvmBadParam;
    if (code < 0)
        return upvm_done("pvm_setminfo", code);
    set_header(upvm_buffer(number), info);
    return PvmOk;
}

int pvm_getmwid(int number)
{
    int code = checked(number);
    return code < 0 ? upvm_done("pvm_getmwid", code) : upvm_buffer(number)->wait;
}

int pvm_setmwid(int number, int wait)
{
    int code = checked(number);
    if (code < 0)
        return upvm_done("pvm_setmwid", code);
    upvm_buffer(number)->wait = wait;
    return PvmOk;
}

/* Checks whether a message can be packed into the active one. With data in place, a message has no
 * bytes yet, and no memory for others. */
static int can_be_packed(int number)
{
    int code = checked(number);
    if (code < 0)
        return code;
    struct upvm_buffer *to = upvm_buffer(upvm_sends), *from = upvm_buffer(number);
    if (!to)
        return PvmNoBuf;
    if (to == from)
        return PvmBadParam;
    return to->encoding == PvmDataInPlace || from->place_count ? PvmNotImpl : PvmOk;
}

/* Packs the header, the length again, and the body as bytes. PVM reports no errors of this
 * function, either. */
int pvm_pkmesg(int number)
{
    int code = can_be_packed(number);
    if (code < 0)
        return code;
    struct upvm_buffer *from = upvm_buffer(number);
    if ((code = length_known(from)) < 0)
        return code;
    struct pvmminfo info = header(from);
    if ((code = upvm_pack(PVM_INT, &info, sizeof info / sizeof(int), 1)) < 0)
        return code;
    if ((code = upvm_pack(PVM_INT, &info.len, 1, 1)) < 0)
        return code;
    return upvm_pack(PVM_BYTE, from->data, info.len, 1);
}

int pvm_pkmesgbody(int number)
{
    int code = can_be_packed(number);
    if (code < 0)
        return code;
    struct upvm_buffer *to = upvm_buffer(upvm_sends), *from = upvm_buffer(number);
    if (signature(to) != signature(from))
        return PvmMismatch;
    char *room = from->length ? upvm_room(to, from->length) : 0;
    if (room)
        memcpy(room, from->data, from->length);
    return from->length && !room ? PvmNoMem : PvmOk;
}

int pvm_upkmesg(void)
{
    struct pvmminfo info;
    int length;
    int code = upvm_unpack(PVM_INT, &info, sizeof info / sizeof(int), 1);
    if (code < 0 || (code = upvm_unpack(PVM_INT, &length, 1, 1)) < 0)
        return code;
    const struct upvm_buffer *from = upvm_buffer(upvm_receives);
    int encoding = encoding_of(info.enc);
    if (encoding < 0 || length < 0)
        return PvmBadMsg;
    if ((size_t)length > from->length - from->cursor)
        return PvmNoData;
    int number = upvm_buffer_new(encoding);
    if (number < 0)
        return number;
    struct upvm_buffer *to = upvm_buffer(number);
    char *room = length ? upvm_room(to, length) : 0;
    if (length && !room) {
        upvm_buffer_free(number);
        return PvmNoMem;
    }
    set_header(to, &info);
    to->crc = info.crc;
    upvm_unpack(PVM_BYTE, room, length, 1);
    return number;
}
