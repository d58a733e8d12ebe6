/* What the parts of libpvm3 share with each other.
 *
 * The library is linked into each image, and each task has its own copy of its data: numbered
 * buffers, packing, and messages that arrived but were not asked for. State of more than one task
 * belongs to the host, which is asked through the gate (crate `ulp`):
 *
 *     blocks     memory that holds packed data. Several tasks may hold one block, and a
 *                block with several holders is read-only. The host knows a task's blocks
 *                by handles; here buffers hold them.
 *     letters    notes to the host that need no immediate reply: a message is sent, or a
 *                block is released. They stay in the slot's table until the next question.
 *                No other task runs before that, so the delay cannot be observed.
 *     questions  RECEIVE, BLOCK, and for everything rare SYSTEM, which takes one buffer
 *                and answers with another. */
#ifndef UPVM_LIB_H
#define UPVM_LIB_H

#include <limits.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include "image.h"
#include "matching.h"
#include "ops.h"
#include "pvm3.h"

/* Data that is copied when the buffer is sent (PvmDataInPlace). As in PVM, items must be
 * contiguous. */
struct upvm_place {
    const char *at;
    size_t bytes;
};

/* A receive in any context, and one that returns at once without letting other tasks run. */
#define UPVM_ANY_CONTEXT UPVM_ANY
#define UPVM_AT_ONCE (-2L)

_Static_assert(UPVM_GROUP_CONTEXT != UPVM_ANY && UPVM_OUTPUT_CONTEXT != UPVM_ANY,
               "a receive in a context of the library's own would match all contexts");

/* States of a buffer. A queued one holds a message that waits in the library: pvm_probe gives its
 * number away before the message is received. */
enum upvm_use { UPVM_FREE, UPVM_USED, UPVM_QUEUED };

/* A message buffer: `length` bytes of data, unpacked from `cursor` on. The first cache line has
 * what each message needs. */
struct upvm_buffer {
    char *data; /* the block's bytes; 0: no block */
    size_t length, capacity, cursor;
    uint32_t handle : 24, used : 8; /* the block's handle at the host; an upvm_use */
    int destination;
    int encoding;
    int place_count;
    union {
        struct upvm_entry entry; /* its links are in the next cache line */
        struct {
            int source, tag, context, wait;
        };
    };

    int crc;
    struct upvm_place *places;
    int place_room;
    int number;
    int next; /* next buffer in the list of free ones */
} __attribute__((aligned(64)));

_Static_assert(offsetof(struct upvm_buffer, source) == offsetof(struct upvm_buffer, entry.key) &&
                   offsetof(struct upvm_buffer, wait) == offsetof(struct upvm_buffer, entry.note) &&
                   offsetof(struct upvm_buffer, entry.next) == 64 &&
                   sizeof(struct upvm_buffer) == 128,
               "a buffer has two cache lines, of which each message needs the first");

/* An unused block that is kept for the next message. */
struct upvm_spare {
    char *data;
    size_t capacity;
    uint32_t handle;
};

#define UPVM_SPARES 4
#define UPVM_CHUNK 8

/* The image's functions that the shared functions (shared.c) fall back on. They handle all cases.
 */
struct upvm_own {
    int (*initsend)(int encoding);
    int (*send)(int to, int tag);
    int (*came)(int from, int tag, long microseconds, long came);
    int (*pack)(const void *items, int count, int stride, int type);
    int (*unpack)(void *items, int count, int stride, int type);
    int (*copy)(void *to, const void *from, size_t bytes);
};

/* The library's data for the per-message path. It lies in one piece behind the slot's table: with
 * thousands of tasks each cache line and each page counts. */
struct upvm_library {
    const struct upvm_own *own;
    int self, parent;
    /* Numbers of the active send and receive buffers. 0: none. */
    int sends, receives;
    /* Whether messages wait here, and whether each message is examined on arrival. */
    int waits, looks;
    /* The current context, for sending and receiving. */
    int context;
    int spare_count;
    /* The lowest buffer number that was never used, and the list of freed ones. */
    int fresh, unused;
    /* Number of bytes that pvm_psend and pvm_precv have copied, for tests. */
    uint64_t copied;

    struct upvm_spare spares[UPVM_SPARES] __attribute__((aligned(64)));
    struct upvm_buffer buffers[UPVM_CHUNK];
} __attribute__((aligned(64)));

_Static_assert(sizeof(struct upvm_library) <= UPVM_LIBRARY_LINES * 64,
               "the library has more data than the table has room for");

#define upvm_hot (*(struct upvm_library *)(upvm_here() + UPVM_TABLE_LIBRARY))
#define upvm_sends upvm_hot.sends
#define upvm_receives upvm_hot.receives
#define upvm_context upvm_hot.context

/* Returns 1 if this number is that of a task in the running task's process. Such a task does not
 * run before this one asks the host for something. */
static inline int upvm_is_here(int tid)
{
    const uint32_t *words = *(const uint32_t *const __seg_gs *)UPVM_GS_NAMES;
    return (unsigned)tid < UPVM_NAMES && words[tid] >> UPVM_NAME_HERE & 1;
}

/* A buffer beyond the first few. */
struct upvm_buffer *upvm_buffer_far(int number);

/* The buffer with this number. 0: there is none. */
static inline struct upvm_buffer *upvm_buffer(int number)
{
    if (number <= 0 || number >= upvm_hot.fresh)
        return 0;
    struct upvm_buffer *buffer =
        number < UPVM_CHUNK ? &upvm_hot.buffers[number] : upvm_buffer_far(number);
    return buffer->used ? buffer : 0;
}

/* Allocates a buffer without a block. Returns its number, or PvmNoMem. */
int upvm_buffer_new(int encoding);

/* Frees the buffer and gives its block back. It is active no longer, and a message that waits in it
 * is lost. */
void upvm_buffer_free(int number);

/* Takes a message out of the queue of those that wait here. */
void upvm_unqueue(struct upvm_buffer *buffer);

/* A message's length for PVM's functions, which have only an int for it. INT_MAX says that the
 * message has that many bytes or more. */
static inline int upvm_length(const struct upvm_buffer *buffer)
{
    return buffer->length < INT_MAX ? (int)buffer->length : INT_MAX;
}

/* Makes `to` hold the block of `from`. Nothing is copied. */
int upvm_buffer_share(struct upvm_buffer *to, const struct upvm_buffer *from);

/* Queues a letter for the host, which reads it at the latest with the next question. */
static inline void upvm_letter(uint64_t kind, uint64_t second, uint64_t third, uint64_t fourth)
{
    uint64_t *table = upvm_here(), *count = &table[UPVM_TABLE_COUNT];
#ifndef UPVM_SHARED /* which has checked that there is room */
    if (*count == UPVM_LETTERS)
        upvm_ask_quietly(table, UPVM_ASK_FLUSH, 0, 0, 0, 0);
#endif
    uint64_t *letter = &table[UPVM_TABLE_LETTERS + *count * UPVM_LETTER_WORDS];
    letter[0] = kind, letter[1] = second, letter[2] = third, letter[3] = fourth;
    /* The letter is complete before it is counted: if a task is ended while it computes, the host
     * reads the letters that are counted. */
    __atomic_signal_fence(__ATOMIC_RELEASE);
    ++*count;
}

/* The slow path of `upvm_room`: gets another block, because there is none, it is full, or it is
 * shared. */
char *upvm_room_made(struct upvm_buffer *buffer, size_t bytes);

/* Number of holders of the buffer's block. The host keeps it in front of the data. */
static inline uint64_t upvm_holders(const struct upvm_buffer *buffer)
{
    return ((const uint64_t *)buffer->data)[-2];
}

/* Returns 1 if a letter that the host has not read yet sends this block. Its receiver is not among
 * the holders yet. */
static inline int upvm_is_on_its_way(uint32_t handle)
{
    const uint64_t *table = upvm_here(), *letter = &table[UPVM_TABLE_LETTERS];
    for (uint64_t left = table[UPVM_TABLE_COUNT]; left--; letter += UPVM_LETTER_WORDS)
        if ((letter[0] & 0xff) == UPVM_LETTER_SEND && (letter[0] >> 8 & 0xffffff) == handle)
            return 1;
    return 0;
}

/* Returns 1 if only this task holds the buffer's block, so that it may write to the block. */
static inline int upvm_is_alone(const struct upvm_buffer *buffer)
{
    return upvm_holders(buffer) == 1 && !upvm_is_on_its_way(buffer->handle);
}

/* Takes the block out of the buffer. It is kept as a spare if only this task holds it, and released
 * otherwise. */
static inline void upvm_give_back(struct upvm_buffer *buffer)
{
    if (!buffer->data)
        return;
    if (upvm_hot.spare_count < UPVM_SPARES && upvm_is_alone(buffer))
        upvm_hot.spares[upvm_hot.spare_count++] =
            (struct upvm_spare){buffer->data, buffer->capacity, buffer->handle};
    else
        upvm_letter(UPVM_LETTER_RELEASE | (uint64_t)buffer->handle << 8, 0, 0, 0);
    buffer->data = 0, buffer->capacity = 0, buffer->handle = 0;
}

/* Size in bytes above which a spare must not exceed four times the wanted size: a receiver would
 * hold the excess for nothing. */
#define UPVM_LARGE 4096

/* Takes a spare for `bytes` bytes. Returns 0 if it does not fit. */
static inline int upvm_take_spare(struct upvm_buffer *buffer, int which, size_t bytes)
{
    struct upvm_spare *spare = &upvm_hot.spares[which];
    if (spare->capacity < bytes || (spare->capacity > UPVM_LARGE && spare->capacity / 4 > bytes))
        return 0;
    buffer->data = spare->data, buffer->capacity = spare->capacity, buffer->handle = spare->handle;
    *spare = upvm_hot.spares[--upvm_hot.spare_count];
    return 1;
}

/* Empties the buffer for new data. It keeps its block if no other task holds that. */
static inline void upvm_buffer_clear(struct upvm_buffer *buffer)
{
    if (buffer->data && !upvm_is_alone(buffer))
        upvm_give_back(buffer);
    buffer->length = buffer->cursor = 0;
    buffer->place_count = 0;
    buffer->wait = 0;
}

/* Starts a message of this task that has no destination and no tag yet. */
static inline void upvm_begin_buffer(struct upvm_buffer *buffer, int encoding)
{
    buffer->encoding = encoding;
    buffer->source = upvm_hot.self, buffer->destination = 0;
    buffer->tag = 0, buffer->context = upvm_context;
}

/* Fills the buffer from a reply's words, and gives back the block that it held before. */
static inline void upvm_filled(struct upvm_buffer *buffer, const uint64_t *reply)
{
    upvm_give_back(buffer);
    buffer->data = (char *)reply[UPVM_REPLY_DATA], buffer->capacity = reply[UPVM_REPLY_CAPACITY];
    buffer->handle = reply[UPVM_REPLY_HANDLE];
    buffer->length = reply[UPVM_REPLY_LENGTH], buffer->cursor = 0, buffer->place_count = 0;
    buffer->source = (int)reply[UPVM_REPLY_SOURCE],
        buffer->tag = (int)(reply[UPVM_REPLY_SOURCE] >> 32);
    buffer->context = (int)reply[UPVM_REPLY_CONTEXT],
        buffer->encoding = (int)(reply[UPVM_REPLY_CONTEXT] >> 32);
    buffer->wait = (int)reply[UPVM_REPLY_WAIT],
        buffer->destination = (int)(reply[UPVM_REPLY_WAIT] >> 32);
}

/* Queues the letter that sends the buffer as it is. The buffer's header keeps these values, as in
 * PVM. */
static inline void upvm_post(struct upvm_buffer *buffer, int to, int tag, int context)
{
    buffer->tag = tag, buffer->destination = to, buffer->context = context;
    int encoding = buffer->encoding == PvmDataInPlace ? PvmDataRaw : buffer->encoding;
    upvm_letter(UPVM_LETTER_SEND | (uint64_t)buffer->handle << 8 | (uint64_t)buffer->wait << 32,
                (uint32_t)to | (uint64_t)tag << 32, (uint32_t)context | (uint64_t)encoding << 32,
                buffer->length);
}

/* Returns where the next `bytes` are to be packed; the caller must write all of them. 0: no memory.
 */
static inline char *upvm_room(struct upvm_buffer *buffer, size_t bytes)
{
    if (!buffer->data || bytes > buffer->capacity - buffer->length || !upvm_is_alone(buffer))
        return upvm_room_made(buffer, bytes);
    char *room = buffer->data + buffer->length;
    buffer->length += bytes;
    return room;
}

/* Returns the next `bytes` to be unpacked. If there are fewer, returns 0 and consumes nothing. */
static inline const char *upvm_next(struct upvm_buffer *buffer, size_t bytes)
{
    if (bytes > buffer->length - buffer->cursor)
        return 0;
    const char *next = buffer->data + buffer->cursor;
    buffer->cursor += bytes;
    return next;
}

/* Copies data that is in place, if any, into a block. Returns PvmOk or PvmNoMem. */
int upvm_captured(struct upvm_buffer *buffer);

/* Ends a function of the interface. A negative code is stored in pvm_errno, reported as PvmAutoErr
 * demands, and returned. Any other value is only returned. */
int upvm_done(const char *function, int code);
/* The same, with a reason in words for the report. An empty one: PVM's text for the code. */
int upvm_done_since(const char *function, int code, const char *why);

/* This task's tid. Enrols the task if it is not enrolled. */
int upvm_enroll(void);
static inline int upvm_self(void)
{
    return upvm_hot.self ? upvm_hot.self : upvm_enroll();
}

/* A question to the system, and its answer. Both consist of 32-bit integers and strings; a string
 * is its length including the 0, and its bytes. */
struct upvm_question {
    int asked, answered; /* buffers' numbers; 0: none */
};
void upvm_put(struct upvm_question *question, int value);
void upvm_put_text(struct upvm_question *question, const char *text);
/* Appends a whole buffer: encoding, length, bytes. */
void upvm_put_buffer(struct upvm_question *question, const struct upvm_buffer *buffer);
/* Asks the system for `op` (an OP_… of ops.h) and waits for the answer. Returns its code; below 0
 * it is an error. */
int upvm_ask(struct upvm_question *question, int op);
/* The same, with a single integer as the question and only a code as the answer. */
int upvm_ask_short(int op, int value);
/* The answer's next integer, or its next string, which is valid until upvm_over. After the end: 0,
 * and an empty string. */
int upvm_get(struct upvm_question *question);
const char *upvm_get_text(struct upvm_question *question);
void upvm_put_bytes(struct upvm_question *question, const void *bytes, size_t count);
/* Reads the rest of the answer, a buffer as upvm_put_buffer writes it. Returns a new buffer's
 * number, or 0. */
int upvm_get_buffer(struct upvm_question *question);
/* Frees the question. Each question ends with this. */
void upvm_over(struct upvm_question *question);

/* Packs two numbers into a word of a question. */
static inline long upvm_both(int low, int high)
{
    return (long)((uint32_t)low | (uint64_t)(uint32_t)high << 32);
}

/* Sends a buffer as it is. Returns PvmOk, or an error. */
int upvm_send(struct upvm_buffer *buffer, int to, int tag, int context);

/* Size in bytes of an item of `type` (PVM_INT, …). 0: there is no such type. */
size_t upvm_size(int type);

/* The tid of this task's parent, or an error. */
int upvm_parent(void);

/* Marks this task as not enrolled. */
void upvm_left(void);

/* Waits for a message in a context, as pvm_trecv does. A negative `microseconds` means no limit.
 * Returns the number of its buffer, which is not made the active one; 0 if no message came; an
 * error below 0. */
int upvm_receive(int from, int tag, int context, long microseconds);

/* Examines each message on arrival, before it can be received. Returns 1 if it has consumed the
 * message; its buffer is then freed. */
extern int (*upvm_look)(struct upvm_buffer *buffer);
/* Must be called after `upvm_look` changes. */
void upvm_looks_changed(void);

/* Examines the messages that have arrived. Does not wait. */
void upvm_poll_all(void);
static inline void upvm_poll(void)
{
    if (upvm_hot.looks)
        upvm_poll_all();
}

/* Waits for a message, and handles or keeps it. */
void upvm_wait(void);

/* Returns 1 if `tid` has the form of a task's tid. */
int upvm_is_task(int tid);

/* Lets other tasks run. */
void upvm_yield(void);

#endif
