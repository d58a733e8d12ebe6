/*
 * Upcall: messages between the members of a group, with handlers.
 *
 * What it is: a process joins a group and is one of its members, by rank. A member sends a message to another by a few
 * stores into memory that the two share; nobody answers, and the sender does not wait. The receiver runs the handler
 * that the message names, when it polls, or takes the message itself. Members in Rust, C and Python are members of one
 * group. docs/reference/messages.md says more of it all.
 *
 *     static void on_token(void *context, upcall_group *group, const upcall_message *message) {
 *         uint64_t hops = upcall_word(message, 0) + 1;
 *         upcall_group_send(group, (upcall_group_rank(group) + 1) % upcall_group_size(group), message->kind, &hops, sizeof hops, NULL);
 *     }
 *
 *     upcall_handlers *handlers = upcall_handlers_new();
 *     upcall_kind token = upcall_handlers_kind(handlers, "token", "u64", &error);
 *     upcall_handlers_on(handlers, token, on_token, NULL, &error);
 *     upcall_group *group = upcall_group_join(upcall_joining_new("ring", 4, &error), handlers, &error);
 *
 * Threads. A group belongs to the kernel thread that has joined it: to any other one all functions say
 * UPCALL_OTHER_THREAD, and do nothing, but for upcall_group_rank, _size and _process, which may be asked by all. Who
 * joins leaves, by upcall_group_leave or by the end of the process; a thread that ends without that stays a member.
 * What is not joined yet (upcall_handlers, upcall_joining) is used by one thread at a time. In a handler of a signal
 * only upcall_interrupt_rank, _size and _try_send may be called, where the runtime calls it (upcall_handlers_on_interrupt);
 * for others that are to end a wait: upcall_handlers_set_interruption.
 *
 * What messages carry. Members agree on a list of kinds of messages: all register the same names with the same
 * signatures in the same order. A signature is one of
 *
 *     ()                                         nothing
 *     u64 i64 u32 i32 u16 u8 bool f64 f32        a number
 *     [u64; 4]    (u64, f64, [i32; 2])           an array, a tuple: of numbers, arrays and tuples
 *     words       bytes       text               uint64_t, bytes, or UTF-8, of any number
 *
 * A payload is a pointer and a size. Each number is a word of eight bytes, one after another, narrow ones made wider:
 * `int32_t` by its sign, bool as 0 or 1, floats by their bits in the lower part (upcall_word_of_f64 and so on below). So a
 * `(u64, i32)` is `uint64_t words[2] = {7, upcall_word_of_i64(-2)}`. Bytes and text are as they are. At most 1 GiB.
 * What is not what its kind carries is UPCALL_UNFIT for who sends it, and nothing is sent; from a member that sends it
 * nevertheless nothing more is taken: UPCALL_EVENT_VIOLATION. So the payload that a handler is given is always good. (Who
 * reads a message in place, without a copy, checks for himself: upcall_place.)
 *
 * If another member dies, what it had sent is taken, and then there is an event (upcall_group_event), and waits for
 * all members end with UPCALL_ENDED. A message that was sent arrives, exactly once and in order per sender and
 * receiver, also if the sender dies at once.
 *
 * Errors are as in upcall.h. UPCALL_NOTHING_THERE is no failure: it writes no error. Durations are in nanoseconds, sizes
 * in bytes. After fork, a child without exec must not use what its parent had joined.
 */
#ifndef UPCALL_MESSAGE_H
#define UPCALL_MESSAGE_H

#include "upcall.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A member's group. */
typedef struct upcall_group upcall_group;

/* A kind of message: its place among those that were registered. */
typedef uint32_t upcall_kind;
#define UPCALL_NO_KIND UINT32_MAX

/* A time without end. */
#define UPCALL_NEVER UINT64_MAX

/* A message: whose, of which kind, and a copy of what it carries, aligned for words. `data` is NULL if it carries nothing. A
 * handler's is good until the handler returns. */
typedef struct upcall_message {
    size_t from;
    upcall_kind kind;
    size_t size;
    const void *data;
} upcall_message;

/* Frees what upcall_group_receive or upcall_group_peek gave. */
static inline void upcall_message_free(upcall_message *message) {
    free((void *)(uintptr_t)message->data);
    message->data = NULL;
    message->size = 0;
}

/* ---- Words ----------------------------------------------------------------------------------------------------- */

/* A word of a payload: of a u64, u32, u16, u8 or bool. 0 beyond the end. */
static inline uint64_t upcall_word(const upcall_message *message, size_t at) {
    uint64_t word = 0;
    if (at < message->size / 8) memcpy(&word, (const unsigned char *)message->data + 8 * at, 8);
    return word;
}
/* Of an i64 or i32. */
static inline int64_t upcall_word_i64(const upcall_message *message, size_t at) {
    uint64_t word = upcall_word(message, at);
    int64_t number;
    memcpy(&number, &word, 8);
    return number;
}
static inline double upcall_word_f64(const upcall_message *message, size_t at) {
    uint64_t word = upcall_word(message, at);
    double number;
    memcpy(&number, &word, 8);
    return number;
}
static inline float upcall_word_f32(const upcall_message *message, size_t at) {
    uint32_t word = (uint32_t)upcall_word(message, at);
    float number;
    memcpy(&number, &word, 4);
    return number;
}

/* The word of a number; those of unsigned numbers and of bool are themselves. For i64 and i32: */
static inline uint64_t upcall_word_of_i64(int64_t number) {
    return (uint64_t)number;
}
static inline uint64_t upcall_word_of_f64(double number) {
    uint64_t word;
    memcpy(&word, &number, 8);
    return word;
}
static inline uint64_t upcall_word_of_f32(float number) {
    uint32_t word;
    memcpy(&word, &number, 4);
    return word;
}

/* ---- Kinds of messages, and what is done with them --------------------------------------------------------------- */

/* The kinds of messages that a member knows, and its handlers. */
typedef struct upcall_handlers upcall_handlers;

upcall_handlers *upcall_handlers_new(void);
/* For those that no group is joined with after all; NULL is allowed. */
void upcall_handlers_free(upcall_handlers *handlers);

/* Another kind of message: its name, and the signature of what it carries. UPCALL_NO_KIND: there is one of that name already, or that is no signature. Without a
 * handler, its messages wait until they are received. */
upcall_kind upcall_handlers_kind(upcall_handlers *handlers, const char *name, const char *carries, upcall_error *error);

/* Has messages of a kind run `handler`, in functions of the group that say that they run handlers, on the thread that calls these. The message was taken before, so a
 * handler may send, poll and wait; while it waits, others run. It must not leave the group. `context` lives as long as the group. UPCALL_MISUSE: there is no such kind, or no handler. */
typedef void (*upcall_handler_fn)(void *context, upcall_group *group, const upcall_message *message);
upcall_status upcall_handlers_on(upcall_handlers *handlers, upcall_kind kind, upcall_handler_fn handler, void *context, upcall_error *error);

/* Has all waits of the group ask whether they are to end: when they have looked in vain, when a signal's handler has run, and twice a second. If so
 * upcall_group_join, upcall_group_send, _wait, _run_until, _barrier and _reduce return UPCALL_INTERRUPTED. They may ask once more to be sure: `ask` goes on saying so until they have returned. It sends nothing, and waits for nothing. A
 * barrier or reduction that ended so goes on with the next call. */
void upcall_handlers_set_interruption(upcall_handlers *handlers, bool (*ask)(void *context), void *context);

/* ---- Joining ----------------------------------------------------------------------------------------------------- */

/* How to become a member. */
typedef struct upcall_joining upcall_joining;

/* A group of `size` members, from 1 to 1024, that all say this name. */
upcall_joining *upcall_joining_new(const char *name, size_t size, upcall_error *error);
/* The group of the job that this process was started in (`upcall job run`; docs/reference/jobs.md), with its size and rank. UPCALL_NO_JOB: there is none. */
upcall_joining *upcall_joining_from_environment(upcall_error *error);
/* For one that is not joined after all; NULL is allowed. */
void upcall_joining_free(upcall_joining *joining);

/* Asks for a rank; otherwise the member gets one that nobody asked for. */
void upcall_joining_set_rank(upcall_joining *joining, size_t rank);
/* How long to wait for the others: a minute, if nothing is said. */
void upcall_joining_set_patience(upcall_joining *joining, uint64_t nanoseconds);
/* How the wait for messages is spent: UPCALL_ADAPTIVE if nothing is said. */
void upcall_joining_set_pacing(upcall_joining *joining, upcall_pacing pacing);
/* The atomicity timeout: so long at most a send waits for room in the queue of a receiver that takes nothing, and then goes on in a buffer. 200 us if nothing is said;
 * 0: all messages are buffered; UPCALL_NEVER: none is, and senders wait. */
void upcall_joining_set_timeout(upcall_joining *joining, uint64_t nanoseconds);
/* So many bytes at most the group buffers: a quarter of the machine's memory, if nothing is said. Each member has the same share of it. */
void upcall_joining_set_limit(upcall_joining *joining, uint64_t bytes);

/* Becomes a member: returns when all others are there, and blocks until then. Frees `joining` and `handlers` in any case, also if one of the two is NULL. NULL: UPCALL_INCOMPLETE, UPCALL_NOT_TAKEN_IN (the text says which kind
 * of message differs), UPCALL_MISUSE (a bad name, size or rank, or kinds whose names and
 * signatures are longer than 150 KB), UPCALL_RESOURCE. */
upcall_group *upcall_group_join(upcall_joining *joining, upcall_handlers *handlers, upcall_error *error);

/* Leaves, and frees the group; NULL is allowed. What was sent still arrives, and the others learn of it. UPCALL_MISUSE, and nothing is done, in a handler, or in
 * anything else that a function of the group calls. */
upcall_status upcall_group_leave(upcall_group *group, upcall_error *error);

size_t upcall_group_rank(const upcall_group *group);
/* How many members there are, those that have ended included. */
size_t upcall_group_size(const upcall_group *group);
/* A member's process; 0: there is no such member, or its process is not visible in this PID namespace. */
uint32_t upcall_group_process(const upcall_group *group, size_t rank);

/* ---- Sending ----------------------------------------------------------------------------------------------------- */

/* Sends a message. Once this returns UPCALL_OK it arrives, unless the receiver ends before it takes it. The payload may be used again at once.
 * Does not wait for the receiver, but for room in its queue, and then no longer than the group's timeout. Where this member has buffered
 * all that it may, or with no timeout, it waits until the receiver has taken some, for as long as that takes. While it waits it runs the
 * handlers of what comes, but not in an atomic section: members that flood each other go on. If what comes has no handler they may wait
 * for each other for ever: upcall_group_send_within ends that. Else nothing was sent: UPCALL_UNFIT, UPCALL_NO_SUCH_RANK, UPCALL_ENDED,
 * UPCALL_VIOLATION, UPCALL_TOO_LONG, UPCALL_NO_MEMORY, UPCALL_NO_QUEUE,
 * UPCALL_QUEUE_REFUSED: the receiver lives, and lacks a resource for the queue. What was sent to it
 * before waits in this process, and the next send offers the queue again. */
upcall_status upcall_group_send(upcall_group *group, size_t to, upcall_kind kind, const void *data, size_t size, upcall_error *error);
/* The same, and waits for so many nanoseconds at most: UPCALL_FULL, or UPCALL_OVERFLOW where this member has buffered all that it may or memory
 * is low. UPCALL_NEVER: for as long as it takes. */
upcall_status upcall_group_send_within(upcall_group *group, size_t to, upcall_kind kind, const void *data, size_t size, uint64_t nanoseconds, upcall_error *error);
/* The same, if there is room now; else UPCALL_FULL. Runs no handlers. */
upcall_status upcall_group_try_send(upcall_group *group, size_t to, upcall_kind kind, const void *data, size_t size, upcall_error *error);
/* Bytes of the buffer with messages that a member has not taken yet; 0 while they go the direct way. UPCALL_NO_SUCH_RANK. */
upcall_status upcall_group_buffered(const upcall_group *group, size_t to, uint64_t *bytes, upcall_error *error);
/* How many messages of this member's went through a buffer so far, of those to members that it can still send to. */
upcall_status upcall_group_diverted(const upcall_group *group, uint64_t *count, upcall_error *error);

/* ---- Taking ------------------------------------------------------------------------------------------------------ */

/* UPCALL_OK: a message waits. UPCALL_NOTHING_THERE: none. A load for each member that has ever sent one here. */
upcall_status upcall_group_available(const upcall_group *group, upcall_error *error);
/* Runs the handlers of the messages that wait, at most 64 of each member; `count`, if it is not NULL, gets how many. A message without a handler stays, and those of
 * the same sender behind it. Does not wait. */
upcall_status upcall_group_poll(upcall_group *group, size_t *count, upcall_error *error);
/* Takes the next message, whatever handlers there are; upcall_message_free frees it. Members have their turns. UPCALL_NOTHING_THERE: none waits, and `message` was not written. Does not wait. */
upcall_status upcall_group_receive(upcall_group *group, upcall_message *message, upcall_error *error);
/* A copy of the message that upcall_group_receive would take, which stays; upcall_message_free frees the copy. */
upcall_status upcall_group_peek(upcall_group *group, upcall_message *message, upcall_error *error);

/* In place: a function looks at the message where it lies, in memory that its sender can write, and nothing is copied, however large it is. The place is good until that function
 * returns, for all threads; what it points to is nobody's after that.
 *
 * THE SENDER CAN STILL CHANGE THE BYTES, at any moment. What is checked and then used must be a copy (upcall_place_copy): what is read there twice, by this program or by a library, may differ. Of
 * what its kind carries only the size is checked, which was read once with sender and kind: so numbers may be out of the range of a narrow type, and text is no more than bytes, and need not be UTF-8. */
typedef struct upcall_place upcall_place;
typedef void (*upcall_place_fn)(void *context, upcall_group *group, const upcall_place *place);

/* Takes the next message as upcall_group_receive does, whatever handlers there are, but has `take` look at it where it lies; when that has returned, the message is disposed of. Does not wait.
 * UPCALL_NOTHING_THERE: none waits, and `take` has not run. UPCALL_MISUSE: `take` is NULL.
 * `take` may use the group, but not leave it, and not be left by longjmp or an exception. Meanwhile no other message of the same sender is taken: to receive or to poll there finds those of others, and a
 * wait for what this sender sends next, also in upcall_group_barrier, does not end. If the sender dies meanwhile, the bytes stay, and the event comes after the message. */
upcall_status upcall_group_receive_in_place(upcall_group *group, upcall_place_fn take, void *context, upcall_error *error);
/* Has `look` look so at the message that upcall_group_receive would take, which stays. */
upcall_status upcall_group_peek_in_place(upcall_group *group, upcall_place_fn look, void *context, upcall_error *error);

/* Who has sent it. */
size_t upcall_place_from(const upcall_place *place);
upcall_kind upcall_place_kind(const upcall_place *place);
/* Bytes that it carries. */
size_t upcall_place_size(const upcall_place *place);
/* A word of it, read once: as upcall_word. 0 beyond the end. */
uint64_t upcall_place_word(const upcall_place *place, size_t at);
/* Copies `len` bytes from byte `at` on; false, and nothing done, if they do not lie within. */
bool upcall_place_copy(const upcall_place *place, size_t at, void *to, size_t len);
/* All of it, aligned for words, for who reads it where it lies or gives it to write(2); NULL if it carries nothing. It is not to be written to. See above: the sender can change it, hence volatile. */
const volatile void *upcall_place_data(const upcall_place *place);

/* How often messages for this member went over to a buffer: a sender found no room for longer than its timeout. Nothing is lost by that; who sees it grow keeps messages waiting. */
upcall_status upcall_group_diversions(const upcall_group *group, uint64_t *count, upcall_error *error);

/* ---- Waiting ----------------------------------------------------------------------------------------------------- */

/* Waits until a message or an event is there, at most so long, or UPCALL_NEVER: spins first, as the group's pacing says, then blocks the thread. UPCALL_NOTHING_THERE: none is. Runs no handlers. */
upcall_status upcall_group_wait(upcall_group *group, uint64_t nanoseconds, upcall_error *error);
/* Runs handlers and waits until `done` says so, or, if that is NULL, until another member is lost. UPCALL_ENDED, UPCALL_VIOLATION: another member is; UPCALL_UNHANDLED: a message waits that has no handler. */
upcall_status upcall_group_run_until(upcall_group *group, bool (*done)(void *context), void *context, upcall_error *error);
/* Waits until all members have come here, and runs handlers meanwhile. UPCALL_ENDED, UPCALL_VIOLATION: a member is lost that did not come; neither this barrier nor a later one holds then.
 * UPCALL_GIVEN_UP: so another member reports, which nothing here confirms. UPCALL_UNHANDLED; UPCALL_UNSENT. */
upcall_status upcall_group_barrier(upcall_group *group, upcall_error *error);

/* Combines a number of each member, in the order of ranks, and gives the result to all, in its place. All members call it with the same `combine`, which makes of `*combined` and `*next` a new `*combined`, and is to be associative.
 * `value` is eight bytes: a uint64_t, int64_t or double. Runs handlers meanwhile; errors as those of upcall_group_barrier, and then the value is as it was. */
typedef void (*upcall_combine_fn)(void *context, uint64_t *combined, const uint64_t *next);
upcall_status upcall_group_reduce(upcall_group *group, void *value, upcall_combine_fn combine, void *context, upcall_error *error);

/* Ways to combine: upcall_sum_u64, upcall_min_u64, upcall_max_u64, and for i64 and f64. Sums of u64 and i64 wrap around. */
#define UPCALL_COMBINE(name, type, expression)                                                  \
    static inline void upcall_##name(void *context, uint64_t *combined, const uint64_t *next) { \
        type a, b;                                                                              \
        (void)context;                                                                          \
        memcpy(&a, combined, 8);                                                                \
        memcpy(&b, next, 8);                                                                    \
        a = (expression);                                                                       \
        memcpy(combined, &a, 8);                                                                \
    }
UPCALL_COMBINE(sum_u64, uint64_t, a + b)
UPCALL_COMBINE(min_u64, uint64_t, a < b ? a : b)
UPCALL_COMBINE(max_u64, uint64_t, a > b ? a : b)
UPCALL_COMBINE(sum_i64, int64_t, (int64_t)((uint64_t)a + (uint64_t)b))
UPCALL_COMBINE(min_i64, int64_t, a < b ? a : b)
UPCALL_COMBINE(max_i64, int64_t, a > b ? a : b)
UPCALL_COMBINE(sum_f64, double, a + b)
UPCALL_COMBINE(min_f64, double, a < b ? a : b)
UPCALL_COMBINE(max_f64, double, a > b ? a : b)

/* ---- What happened to others ------------------------------------------------------------------------------------- */

typedef enum upcall_event_kind {
    UPCALL_EVENT_ENDED = 0,    /* it has ended or left; all that it had sent was taken before */
    UPCALL_EVENT_VIOLATION = 1 /* it does not keep to the protocol; nothing more is taken from it */
} upcall_event_kind;

typedef struct upcall_event {
    upcall_event_kind what;
    size_t rank;
    /* UTF-8, with a NUL at its end, cut if it is longer. */
    char text[300];
} upcall_event;

/* The next of the events, in the order in which they were noticed, each told once; UPCALL_NOTHING_THERE: no more. Polling, receiving and looking notice them. */
upcall_status upcall_group_event(upcall_group *group, upcall_event *event, upcall_error *error);

/* ---- Atomic sections --------------------------------------------------------------------------------------------- */

/* Begins a section in which no handler runs unless this thread polls; it keeps interrupts off (below). Sections may be nested. */
upcall_status upcall_group_begin_atomic(upcall_group *group, upcall_error *error);
/* Ends the one that was begun last; interrupts that it kept off run now. UPCALL_MISUSE: there is none. */
upcall_status upcall_group_end_atomic(upcall_group *group, upcall_error *error);

/* ---- Interrupts -------------------------------------------------------------------------------------------------- */

/* For code that computes for long and does not poll: while it is interruptible, messages of some kinds interrupt it, by a
 * signal (SIGURG), whatever it computes, and their handlers run on its thread at once. All else waits for a poll, and what the same
 * sender has sent behind it; so does what was buffered farther than 2 MiB.
 *
 * Such a handler runs between any two instructions of the thread: it does what POSIX calls async-signal-safe, and nothing else. It
 * allocates, frees, locks and prints nothing, does not leave by longjmp or an exception, and touches what the thread may be changing
 * by atomics only. Whoever registers it says that it is so. Where the group is polled it runs as all others do. */

/* What such a handler has of its group, until it returns. */
typedef struct upcall_interrupt upcall_interrupt;
typedef void (*upcall_interrupt_fn)(void *context, upcall_interrupt *interrupt, const upcall_message *message);

/* Has messages of a kind run `handler`, in interrupts too. UPCALL_MISUSE: there is no such kind, or what it carries has no fixed size, or more than 64 bytes. */
upcall_status upcall_handlers_on_interrupt(upcall_handlers *handlers, upcall_kind kind, upcall_interrupt_fn handler, void *context, upcall_error *error);

/* Runs `body`, which can be interrupted meanwhile. Functions of the group that it uses, and atomic sections, keep interrupts off until they are done. System
 * calls are restarted where the kernel can do so, and end with EINTR where not (signal(7)): sleeps, for example. It must not be left by longjmp or an exception.
 * UPCALL_RESOURCE: the kernel has no membarrier(2), or the program has a handler of its own for SIGURG; then `body` has not run. */
upcall_status upcall_group_interruptible(upcall_group *group, void (*body)(void *context), void *context, upcall_error *error);

/* This member's rank, and how many members there are, in such a handler. */
size_t upcall_interrupt_rank(const upcall_interrupt *interrupt);
size_t upcall_interrupt_size(const upcall_interrupt *interrupt);
/* Sends a message in such a handler, if that takes nothing but to write it: to a member that this one has sent to before, whose queue has room. UPCALL_FULL: it takes more, and nothing was sent. Else UPCALL_OK, UPCALL_UNFIT, UPCALL_NO_SUCH_RANK or UPCALL_MISUSE. */
upcall_status upcall_interrupt_try_send(upcall_interrupt *interrupt, size_t to, upcall_kind kind, const void *data, size_t size);

#ifdef __cplusplus
}
#endif

#endif
