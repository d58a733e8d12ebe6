/* What the parts of libpvm3 know of each other.
 *
 * The library is linked into each image, and is its own: buffers by number, packing, what was received but not asked
 * for. What concerns more than one task is the host's, who is asked through the gate (crate `ulp`):
 *
 *   blocks     memory that holds what was packed. Many tasks may hold one; nobody writes to a block that another
 *              holds, too. The host knows a task's blocks by handles; here they are in buffers.
 *   letters    what the host is told, and need not answer now: that something is sent, that a block is not needed any
 *              more. They lie in the slot's table until the next question: no task runs before that, so nobody sees
 *              that they lie.
 *   questions  RECEIVE, BLOCK, and SYSTEM for all that is rare, which takes a buffer and answers by one. */
#ifndef UPVM_LIB_H
#define UPVM_LIB_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include "image.h"
#include "ops.h"
#include "pvm3.h"

/* Data that is taken when it is sent (PvmDataInPlace): PVM allows only items side by side. */
struct upvm_place {
    const char *at;
    size_t bytes;
};

/* A receive in any context, and one that does not even let others run. */
#define UPVM_ANY_CONTEXT (-1)
#define UPVM_AT_ONCE (-2L)

/* A message buffer. What is received is read from `cursor`; `length` bytes are in it. One line has what each message needs. */
struct upvm_buffer {
    char *data; /* of its block; 0: it has none */
    size_t length, capacity, cursor;
    uint32_t handle : 24, used : 8; /* of its block, for the host */
    int destination;
    int encoding, source, tag, context;
    int place_count;
    int wait;

    int crc;
    struct upvm_place *places;
    int place_room;
    int next; /* behind it, where it waits to be received or is free */
} __attribute__((aligned(64)));

/* A block that nobody uses, for what comes next. */
struct upvm_spare {
    char *data;
    size_t capacity;
    uint32_t handle;
};

#define UPVM_SPARES 4
#define UPVM_CHUNK 8

/* What the functions that all tasks share (shared.c) leave to the image, which knows all cases. */
struct upvm_own {
    int (*initsend)(int encoding);
    int (*send)(int to, int tag);
    /* Who is in another process is sent what lies in letters. */
    int (*flush)(void);
    int (*came)(int from, int tag, long microseconds, long came);
    int (*pack)(const void *items, int count, int stride, int type);
    int (*unpack)(void *items, int count, int stride, int type);
    int (*copy)(void *to, const void *from, size_t bytes);
};

/* What each message needs of the library's own, together, behind the slot's table: with thousands of tasks each line and each page counts. */
struct upvm_library {
    const struct upvm_own *own;
    int self, parent;
    /* The buffers in which is packed, and from which is unpacked: numbers, 0 for none. */
    int sends, receives;
    /* The first message that waits here, and whether each is looked at as it comes. */
    int head, looks;
    /* The context in which is sent and received. */
    int context;
    /* The last message that waits here. */
    int tail;
    int spare_count;
    /* The lowest number of a buffer that was never used, and those that are free again. */
    int fresh, unused;

    struct upvm_spare spares[UPVM_SPARES] __attribute__((aligned(64)));
    struct upvm_buffer buffers[UPVM_CHUNK];
} __attribute__((aligned(64)));

_Static_assert(sizeof(struct upvm_library) <= UPVM_LIBRARY_LINES * 64, "there is so much room");

#define upvm_hot (*(struct upvm_library *)(upvm_here() + UPVM_TABLE_LIBRARY))
#define upvm_sends upvm_hot.sends
#define upvm_receives upvm_hot.receives
#define upvm_context upvm_hot.context

/* Buffers beyond the first few. */
struct upvm_buffer *upvm_buffer_far(int number);

/* The buffer of a number; 0: there is none such. */
static inline struct upvm_buffer *upvm_buffer(int number)
{
    if (number <= 0 || number >= upvm_hot.fresh)
        return 0;
    struct upvm_buffer *buffer = number < UPVM_CHUNK ? &upvm_hot.buffers[number] : upvm_buffer_far(number);
    return buffer->used ? buffer : 0;
}

/* A new buffer's number, without a block; or PvmNoMem. */
int upvm_buffer_new(int encoding);

/* Gives the buffer's number back, and its block. */
void upvm_buffer_free(int number);

/* Has a second buffer hold the block of the first: nothing is copied. */
int upvm_buffer_share(struct upvm_buffer *to, const struct upvm_buffer *from);

/* Tells the host something, at the latest when it is asked for something else. */
static inline void upvm_letter(uint64_t kind, uint64_t second, uint64_t third, uint64_t fourth)
{
    uint64_t *table = upvm_here(), *count = &table[UPVM_TABLE_COUNT];
#ifndef UPVM_SHARED /* which has seen to it that there is room */
    if (*count == UPVM_LETTERS)
        upvm_ask_quietly(table, UPVM_ASK_FLUSH, 0, 0, 0, 0);
#endif
    uint64_t *letter = &table[UPVM_TABLE_LETTERS + *count * UPVM_LETTER_WORDS];
    letter[0] = kind, letter[1] = second, letter[2] = third, letter[3] = fourth;
    /* It is whole before it counts: of a task that is ended while it computes the host takes those that count. */
    __atomic_signal_fence(__ATOMIC_RELEASE);
    ++*count;
}

/* Slow part of `upvm_room`: another block, because there is none, it is full, or others hold it. */
char *upvm_room_made(struct upvm_buffer *buffer, size_t bytes);

/* How many hold the buffer's block: the host keeps it before the data. */
static inline uint64_t upvm_holders(const struct upvm_buffer *buffer)
{
    return ((const uint64_t *)buffer->data)[-2];
}

/* Whether a letter that nobody has read says that the block is sent: it is held by others then, but not counted yet. */
static inline int upvm_is_on_its_way(uint32_t handle)
{
    const uint64_t *table = upvm_here(), *letter = &table[UPVM_TABLE_LETTERS];
    for (uint64_t left = table[UPVM_TABLE_COUNT]; left--; letter += UPVM_LETTER_WORDS)
        if ((letter[0] & 0xff) == UPVM_LETTER_SEND && (letter[0] >> 8 & 0xffffff) == handle)
            return 1;
    return 0;
}

/* Whether this task alone holds the buffer's block, so that it may write there. */
static inline int upvm_is_alone(const struct upvm_buffer *buffer)
{
    return upvm_holders(buffer) == 1 && !upvm_is_on_its_way(buffer->handle);
}

/* The buffer has no block any more: that is kept for what comes next, or its holder is one less. */
static inline void upvm_give_back(struct upvm_buffer *buffer)
{
    if (!buffer->data)
        return;
    if (upvm_hot.spare_count < UPVM_SPARES && upvm_is_alone(buffer))
        upvm_hot.spares[upvm_hot.spare_count++] = (struct upvm_spare){buffer->data, buffer->capacity, buffer->handle};
    else
        upvm_letter(UPVM_LETTER_RELEASE | (uint64_t)buffer->handle << 8, 0, 0, 0);
    buffer->data = 0, buffer->capacity = 0, buffer->handle = 0;
}

/* A block that is much larger than what is in it would lie with a receiver for nothing. */
#define UPVM_LARGE 4096

/* Takes a spare for so many bytes, if it fits. */
static inline int upvm_take_spare(struct upvm_buffer *buffer, int which, size_t bytes)
{
    struct upvm_spare *spare = &upvm_hot.spares[which];
    if (spare->capacity < bytes || (spare->capacity > UPVM_LARGE && spare->capacity / 4 > bytes))
        return 0;
    buffer->data = spare->data, buffer->capacity = spare->capacity, buffer->handle = spare->handle;
    *spare = upvm_hot.spares[--upvm_hot.spare_count];
    return 1;
}

/* Empties it for other data; its block is kept where nobody else holds it. */
static inline void upvm_buffer_clear(struct upvm_buffer *buffer)
{
    if (buffer->data && !upvm_is_alone(buffer))
        upvm_give_back(buffer);
    buffer->length = buffer->cursor = 0;
    buffer->place_count = 0;
    buffer->wait = 0;
}

/* It is this task's, and nothing is said of its way yet. */
static inline void upvm_begin_buffer(struct upvm_buffer *buffer, int encoding)
{
    buffer->encoding = encoding;
    buffer->source = upvm_hot.self, buffer->destination = 0;
    buffer->tag = 0, buffer->context = upvm_context;
}

/* What a reply's words say is in the buffer now; what it held before is given back. */
static inline void upvm_filled(struct upvm_buffer *buffer, const uint64_t *reply)
{
    upvm_give_back(buffer);
    buffer->data = (char *)reply[UPVM_REPLY_DATA], buffer->capacity = reply[UPVM_REPLY_CAPACITY];
    buffer->handle = reply[UPVM_REPLY_HANDLE];
    buffer->length = reply[UPVM_REPLY_LENGTH], buffer->cursor = 0, buffer->place_count = 0;
    buffer->source = (int)reply[UPVM_REPLY_SOURCE], buffer->tag = (int)(reply[UPVM_REPLY_SOURCE] >> 32);
    buffer->context = (int)reply[UPVM_REPLY_CONTEXT], buffer->encoding = (int)(reply[UPVM_REPLY_CONTEXT] >> 32);
    buffer->wait = (int)reply[UPVM_REPLY_WAIT], buffer->destination = (int)(reply[UPVM_REPLY_WAIT] >> 32);
}

/* The letter by which it is sent as it is. As it is sent, so PVM says of it from now on. */
static inline void upvm_post(struct upvm_buffer *buffer, int to, int tag, int context)
{
    buffer->tag = tag, buffer->destination = to, buffer->context = context;
    int encoding = buffer->encoding == PvmDataInPlace ? PvmDataRaw : buffer->encoding;
    upvm_letter(UPVM_LETTER_SEND | (uint64_t)buffer->handle << 8 | (uint64_t)buffer->wait << 32,
                (uint32_t)to | (uint64_t)tag << 32, (uint32_t)context | (uint64_t)encoding << 32, buffer->length);
}

/* Where the next `bytes` are to be packed; the caller writes all of them. 0: no memory. */
static inline char *upvm_room(struct upvm_buffer *buffer, size_t bytes)
{
    if (!buffer->data || bytes > buffer->capacity - buffer->length || !upvm_is_alone(buffer))
        return upvm_room_made(buffer, bytes);
    char *room = buffer->data + buffer->length;
    buffer->length += bytes;
    return room;
}

/* The next `bytes` to be unpacked, or 0: so many are not there, and nothing is taken. */
static inline const char *upvm_next(struct upvm_buffer *buffer, size_t bytes)
{
    if (bytes > buffer->length - buffer->cursor)
        return 0;
    const char *next = buffer->data + buffer->cursor;
    buffer->cursor += bytes;
    return next;
}

/* Copies what lies in place into a block, if anything does. PvmOk or PvmNoMem. */
int upvm_captured(struct upvm_buffer *buffer);

/* An error of a function of the interface: it is remembered (pvm_errno), said where PvmAutoErr says so, and returned. What is not below 0 is returned only. */
int upvm_done(const char *function, int code);

/* This task's number; it is enrolled if it was not. */
int upvm_enroll(void);
static inline int upvm_self(void)
{
    return upvm_hot.self ? upvm_hot.self : upvm_enroll();
}

/* What is asked of the system, and its answer: integers of 32 bits, and texts (their length with the 0, then that). */
struct upvm_question {
    int asked, answered; /* numbers of buffers; 0: none */
};
void upvm_put(struct upvm_question *question, int value);
void upvm_put_text(struct upvm_question *question, const char *text);
/* Puts a whole buffer: encoding, length, bytes. */
void upvm_put_buffer(struct upvm_question *question, const struct upvm_buffer *buffer);
/* Asks (an OP_… of ops.h), and waits. What it answers, below 0 an error. */
int upvm_ask(struct upvm_question *question, int op);
/* The same without anything to say or to hear but this one integer. */
int upvm_ask_short(int op, int value);
/* Of the answer, in order. At its end: 0, and an empty text. A text is valid until the question is over. */
int upvm_get(struct upvm_question *question);
const char *upvm_get_text(struct upvm_question *question);
void upvm_put_bytes(struct upvm_question *question, const void *bytes, size_t count);
/* The rest of the answer is a buffer as by upvm_put_buffer: a new one, or 0. */
int upvm_get_buffer(struct upvm_question *question);
/* Has to end each question. */
void upvm_over(struct upvm_question *question);

/* Sends a buffer as it is in a context. PvmOk, or an error. */
int upvm_send(struct upvm_buffer *buffer, int to, int tag, int context);

/* Bytes of an item of a type (PVM_INT, …); 0: there is no such. */
size_t upvm_size(int type);

/* Who has spawned this task: its number, or an error. */
int upvm_parent(void);

/* This task is not enrolled any more. */
void upvm_left(void);

/* Waits for a message, as pvm_trecv does, in a context. `microseconds` below 0: for ever. The number of its buffer, which is nobody's yet; 0: none came; below 0: an error. */
int upvm_receive(int from, int tag, int context, long microseconds);

/* What looks at each message as it comes, before anybody receives it: returns 1 if it has taken the message, whose buffer is freed then. */
extern int (*upvm_look)(struct upvm_buffer *buffer);
/* That has changed. */
void upvm_looks_changed(void);

/* Handles what has come; does not wait. */
void upvm_poll_all(void);
static inline void upvm_poll(void)
{
    if (upvm_hot.looks)
        upvm_poll_all();
}

/* Waits until a message has come, and handles it, or keeps it. */
void upvm_wait(void);

/* What PVM takes for a task's number. */
int upvm_is_task(int tid);

/* Lets other tasks run. */
void upvm_yield(void);

#endif
