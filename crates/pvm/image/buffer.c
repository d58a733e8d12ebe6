/* Buffers by number, and the blocks that they hold.
 *
 * A block is shared by the tasks that sent and received it, and is read-only while it is shared:
 * packing more into such a buffer first gets a new block. Blocks that only this task holds are kept
 * as spares for its next messages, so that the host is not asked for each one. A task that replies
 * to a message reuses that message's block. */

#include "lib.h"
#include "doors.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The host prefetches these cache lines before the task resumes. */
_Static_assert(offsetof(struct upvm_library, spares[0]) == UPVM_NEAR_SPARES &&
                   offsetof(struct upvm_library, buffers[1]) == UPVM_NEAR_FIRST &&
                   offsetof(struct upvm_library, buffers[2]) == UPVM_NEAR_SECOND,
               "ops.rs has these offsets");

/* Buffers beyond the first few, in chunks. A buffer never moves, because other code keeps its
 * address. */
static struct upvm_buffer **chunks;
static int chunk_count;

static const struct upvm_own own = {
    .initsend = upvm_own_initsend,
    .send = upvm_own_send,
    .came = upvm_own_came,
    .pack = upvm_own_pack,
    .unpack = upvm_own_unpack,
    .copy = upvm_own_copy,
};

/* Runs before the program's own constructors. */
__attribute__((constructor(102))) static void begin(void)
{
    unsigned (*version)(void) = UPVM_DOOR(UPVM_DOOR_VERSION, unsigned (*)(void));
    if (!version || version() != UPVM_LIBRARY_VERSION) {
        fputs(version ? "this program was linked by another version of upvmcc: link it again\n"
                      : "this program is a PVM task, but its host does not run PVM tasks: run "
                        "it by `upcall pvm run`\n",
              stderr);
        _exit(127);
    }
    upvm_hot.own = &own, upvm_hot.fresh = 1;
}

static struct upvm_buffer *at(int number)
{
    return number < UPVM_CHUNK ? &upvm_hot.buffers[number] : upvm_buffer_far(number);
}

struct upvm_buffer *upvm_buffer_far(int number)
{
    return &chunks[number / UPVM_CHUNK - 1][number % UPVM_CHUNK];
}

/* Adds a chunk if the next number needs one. Returns 0 if there is no memory. */
static int grown(void)
{
    if (upvm_hot.fresh / UPVM_CHUNK <= chunk_count)
        return 1;
    struct upvm_buffer **more = realloc(chunks, (chunk_count + 1) * sizeof *chunks);
    if (!more)
        return 0;
    chunks = more;
    chunks[chunk_count] = aligned_alloc(64, UPVM_CHUNK * sizeof **chunks);
    if (!chunks[chunk_count])
        return 0;
    memset(chunks[chunk_count++], 0, UPVM_CHUNK * sizeof **chunks);
    return 1;
}

int upvm_buffer_new(int encoding)
{
    int number = upvm_hot.unused;
    if (number)
        upvm_hot.unused = at(number)->next;
    else if (grown())
        number = upvm_hot.fresh++;
    else
        return PvmNoMem;
    struct upvm_buffer *buffer = at(number);
    /* The array of places is kept. */
    buffer->data = 0, buffer->length = buffer->capacity = buffer->cursor = 0, buffer->handle = 0,
        buffer->used = UPVM_USED;
    buffer->encoding = encoding, buffer->source = buffer->tag = 0, buffer->context = upvm_context;
    buffer->place_count = buffer->wait = buffer->destination = buffer->crc = buffer->next = 0;
    buffer->number = number;
    return number;
}

/* Gives the buffer a block of at least `bytes` bytes: a spare, or one from the host. Returns 0 on
 * failure. */
static int take(struct upvm_buffer *buffer, size_t bytes)
{
    for (int one = upvm_hot.spare_count; one-- > 0;)
        if (upvm_take_spare(buffer, one, bytes))
            return 1;
    uint64_t *table = upvm_here();
    long handle = upvm_ask_quietly(table, UPVM_ASK_BLOCK, bytes, 0, 0, 0);
    if (handle <= 0)
        return 0;
    uint64_t *reply = &table[UPVM_TABLE_REPLY];
    buffer->data = (char *)reply[UPVM_REPLY_DATA], buffer->capacity = reply[UPVM_REPLY_CAPACITY],
        buffer->handle = handle;
    return 1;
}

char *upvm_room_made(struct upvm_buffer *buffer, size_t bytes)
{
    size_t needed = buffer->length + bytes;
    if (needed < bytes)
        return 0;
    struct upvm_buffer old = *buffer;
    /* A block that is full doubles, because more is likely to follow. */
    if (!take(buffer, old.data && needed > old.capacity && needed < 2 * old.capacity
                          ? 2 * old.capacity
                          : needed))
        return 0;
    if (old.data) {
        memcpy(buffer->data, old.data, old.length);
        upvm_give_back(&old);
    }
    buffer->length = needed;
    return buffer->data + old.length;
}

void upvm_buffer_free(int number)
{
    struct upvm_buffer *buffer = upvm_buffer(number);
    if (!buffer)
        return;
    if (buffer->used == UPVM_QUEUED)
        upvm_unqueue(buffer);
    if (number == upvm_sends)
        upvm_sends = 0;
    if (number == upvm_receives)
        upvm_receives = 0;
    upvm_give_back(buffer);
    buffer->used = UPVM_FREE;
    buffer->next = upvm_hot.unused;
    upvm_hot.unused = number;
}

int upvm_buffer_share(struct upvm_buffer *to, const struct upvm_buffer *from)
{
    upvm_give_back(to);
    to->length = from->length, to->cursor = 0, to->encoding = from->encoding;
    if (!from->data)
        return PvmOk;
    uint64_t *table = upvm_here();
    long handle = upvm_ask_quietly(table, UPVM_ASK_SHARE, from->handle, 0, 0, 0);
    if (handle <= 0)
        return PvmNoMem;
    to->data = from->data, to->capacity = from->capacity, to->handle = handle;
    return PvmOk;
}

int upvm_captured(struct upvm_buffer *buffer)
{
    size_t bytes = 0;
    for (int one = 0; one < buffer->place_count; one++)
        bytes += buffer->places[one].bytes;
    if (!bytes)
        return PvmOk;
    /* The data may have changed since the buffer was last sent. */
    buffer->length = 0;
    if (buffer->data && !upvm_is_alone(buffer))
        upvm_give_back(buffer);
    char *to = upvm_room(buffer, bytes);
    if (!to)
        return PvmNoMem;
    for (int one = 0; one < buffer->place_count; one++) {
        struct upvm_place *place = &buffer->places[one];
        memcpy(to, place->at, place->bytes);
        to += place->bytes;
    }
    return PvmOk;
}
