/*
 * Upcall: messages between the members of a group, with handlers.
 *
 * A process joins a group and becomes one of its members, identified by rank. A member sends a
 * message to another with a few stores into memory that the two share; there is no acknowledgement,
 * and the sender does not wait. The receiver runs the handler that the message names when it polls,
 * or receives the message itself. Members in Rust, C and Python can form one group.
 * docs/reference/messages.md has the details.
 *
 *     static void on_token(void *context, upcall_group *group, const upcall_message *message) {
 *         uint64_t hops = upcall_word(message, 0) + 1;
 *         size_t next = (upcall_group_rank(group) + 1) % upcall_group_size(group);
 *         upcall_group_send(group, next, message->kind, &hops, sizeof hops, NULL);
 *     }
 *
 *     upcall_handlers *handlers = upcall_handlers_new();
 *     upcall_kind token = upcall_handlers_kind(handlers, "token", "u64", &error);
 *     upcall_handlers_on(handlers, token, on_token, NULL, &error);
 *     upcall_joining *joining = upcall_joining_new("ring", 4, &error);
 *     upcall_group *group = upcall_group_join(joining, handlers, &error);
 *
 * Threads. A group belongs to the kernel thread that joined it. On any other thread all functions
 * return UPCALL_OTHER_THREAD and do nothing, except for upcall_group_rank, _size and _process,
 * which any thread may call. A member leaves by upcall_group_leave or by the end of its process; if
 * only its thread ends, it stays a member. Before the join, upcall_handlers and upcall_joining are
 * used by one thread at a time. A signal handler may call only upcall_interrupt_rank, _size and
 * _try_send, and only where the runtime calls it (upcall_handlers_on_interrupt). To end a wait from
 * another signal handler, see upcall_handlers_set_interruption.
 *
 * Payloads. The members agree on a list of kinds of messages: all register the same names with the
 * same signatures in the same order. A signature is one of
 *
 *     ()                                         nothing
 *     u64 i64 u32 i32 u16 u8 bool f64 f32        a number
 *     [u64; 4]    (u64, f64, [i32; 2])           an array, a tuple: of numbers, arrays and tuples
 *     words       bytes       text               uint64_t, bytes, or UTF-8, of any number
 *
 * A payload is a pointer and a size. Each number is a word of eight bytes, one after another, with
 * narrow numbers widened: `int32_t` by its sign, bool as 0 or 1, floats as their bits in the lower
 * part (upcall_word_of_f64 and so on below). So a `(u64, i32)` is
 * `uint64_t words[2] = {7, upcall_word_of_i64(-2)}`. Bytes and text are as they are. A payload has
 * at most 1 GiB, between hosts 256 MiB.
 *
 * A payload that does not fit its kind makes the send fail with UPCALL_UNFIT, and nothing is sent.
 * If a member sends such a payload nevertheless, nothing more is taken from it:
 * UPCALL_EVENT_VIOLATION. So the payload that a handler gets always fits its kind. (A program that
 * reads a message in place, without a copy, must check it itself: upcall_place.)
 *
 * Peer death. If another member dies, the messages that it had sent are taken first. Then there is
 * an event (upcall_group_event), and waits for all members end with UPCALL_ENDED. A sent message
 * arrives, exactly once and in order per sender and receiver, even if the sender dies at once. On
 * several hosts a host that stays out of reach counts as dead (upcall_joining_set_across). Two
 * members that lose each other like that may both still reach a third one: UPCALL_EVENT_PARTED.
 *
 * Errors are as in upcall.h. UPCALL_NOTHING_THERE is not a failure, and writes no error. Durations
 * are in nanoseconds, sizes in bytes. After fork, a child that does not exec must not use what its
 * parent had joined.
 */
#ifndef UPCALL_MESSAGE_H
#define UPCALL_MESSAGE_H

#include "upcall.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A member's view of its group. */
typedef struct upcall_group upcall_group;

/* A kind of message: its index in the list of registered kinds. */
typedef uint32_t upcall_kind;
#define UPCALL_NO_KIND UINT32_MAX

/* No time limit. */
#define UPCALL_NEVER UINT64_MAX

/* A message: the sender's rank, the kind, and a copy of the payload, aligned for words. `data` is
 * NULL if there is no payload. A message that a handler gets is valid until the handler returns. */
typedef struct upcall_message {
    size_t from;
    upcall_kind kind;
    size_t size;
    const void *data;
} upcall_message;

/* Frees a message that upcall_group_receive or upcall_group_peek returned. */
static inline void upcall_message_free(upcall_message *message) {
    free((void *)(uintptr_t)message->data);
    message->data = NULL;
    message->size = 0;
}

/* ---- Words ----------------------------------------------------------------------------------- */

/* Returns a word of a payload: a u64, u32, u16, u8 or bool. Returns 0 beyond the end. */
static inline uint64_t upcall_word(const upcall_message *message, size_t at) {
    uint64_t word = 0;
    if (at < message->size / 8) memcpy(&word, (const unsigned char *)message->data + 8 * at, 8);
    return word;
}
/* The same for an i64 or i32. */
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

/* Return the word for a number. Unsigned numbers and bool are their own words. For i64 and i32: */
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

/* ---- Kinds of messages and their handlers ---------------------------------------------------- */

/* The kinds of messages that a member knows, and its handlers. */
typedef struct upcall_handlers upcall_handlers;

upcall_handlers *upcall_handlers_new(void);
/* Frees handlers that no group was joined with; NULL is allowed. */
void upcall_handlers_free(upcall_handlers *handlers);

/* Registers another kind of message: its name, and the signature of its payload. Returns
 * UPCALL_NO_KIND if a kind of that name exists, or if `carries` is not a signature. Messages of a
 * kind without a handler wait until they are received. */
upcall_kind upcall_handlers_kind(upcall_handlers *handlers, const char *name, const char *carries,
                                 upcall_error *error);

/* Sets the handler for messages of a kind. It runs in the functions of the group that are
 * documented to run handlers, on the thread that calls them. The message is taken before the
 * handler runs, so the handler may send, poll and wait; while it waits, other handlers run. It must
 * not leave the group. `context` must live as long as the group. UPCALL_MISUSE: no such kind, or no
 * handler. */
typedef void (*upcall_handler_fn)(void *context, upcall_group *group,
                                  const upcall_message *message);
upcall_status upcall_handlers_on(upcall_handlers *handlers, upcall_kind kind,
                                 upcall_handler_fn handler, void *context, upcall_error *error);

/* Sets a function that decides whether waits of the group end early. A wait calls `ask` after it
 * has probed in vain, after a signal handler has run, and twice a second. If `ask` returns true,
 * upcall_group_join, upcall_group_send, _wait, _run_until, _barrier and _reduce return
 * UPCALL_INTERRUPTED. They may call `ask` once more to be sure, so it must continue to return true
 * until they have returned. `ask` must not send or wait. A barrier or reduction that ended this way
 * continues with the next call. */
void upcall_handlers_set_interruption(upcall_handlers *handlers, bool (*ask)(void *context),
                                      void *context);

/* ---- Joining --------------------------------------------------------------------------------- */

/* How to become a member. */
typedef struct upcall_joining upcall_joining;

/* Describes a group of `size` members, from 1 to 1024, that all give this name. */
upcall_joining *upcall_joining_new(const char *name, size_t size, upcall_error *error);
/* Describes the group of the job that started this process (`upcall job run`; see
 * docs/reference/jobs.md), with its size and rank. UPCALL_NO_JOB: the process is in no job. */
upcall_joining *upcall_joining_from_environment(upcall_error *error);
/* Frees a description that was never joined; NULL is allowed. */
void upcall_joining_free(upcall_joining *joining);

/* Asks for a rank. By default the member gets a rank that no other member asked for. */
void upcall_joining_set_rank(upcall_joining *joining, size_t rank);
/* Sets how long to wait for the other members: a minute by default. */
void upcall_joining_set_patience(upcall_joining *joining, uint64_t nanoseconds);
/* Sets how the member waits for messages: UPCALL_ADAPTIVE by default. */
void upcall_joining_set_pacing(upcall_joining *joining, upcall_pacing pacing);
/* Sets the atomicity timeout: how long a send waits for room in the queue of a receiver that takes
 * nothing, before it goes on in a buffer. The default is 200 us. With 0 all messages are buffered;
 * with UPCALL_NEVER none are, and senders wait. */
void upcall_joining_set_timeout(upcall_joining *joining, uint64_t nanoseconds);
/* Sets the maximum number of bytes that the group buffers: a quarter of the machine's memory by
 * default. Each member has an equal share. */
void upcall_joining_set_limit(upcall_joining *joining, uint64_t bytes);

/* Forms the group of members on several hosts, which meet at `address`, HOST:PORT. All members give
 * the same address. It belongs to one of their hosts: the first member there that can listen at it
 * takes in the others. HOST is the name under which the other hosts trust that host (`upcall host
 * trust`), or all members are on one machine, at a loopback address. A job on several hosts has the
 * address in its environment: then this is not needed. UPCALL_MISUSE: NULL, or not UTF-8.
 *
 * Only processes of trusted hosts become members, and on one host only those of this user. Messages
 * between hosts are encrypted. A member on another host is used like any other, with these
 * differences:
 *
 * - A message to it has at most 256 MiB, and at most its share of the limit, or 1 MiB if that is
 *   more (UPCALL_TOO_LONG).
 * - If this process is killed, messages to it that have not left this host are lost.
 *   upcall_group_leave waits until the other hosts have all messages.
 * - If its host cannot be reached, messages to it wait (upcall_joining_set_reconnect_within). Then
 *   it has ended, for this member: UPCALL_EVENT_ENDED.
 * - upcall_group_process returns 0 for it. */
upcall_status upcall_joining_set_across(upcall_joining *joining, const char *address,
                                        upcall_error *error);
/* Sets after which time a host that gives no sign of life is cut off: from a second to 12 hours,
 * 5 s by default. The host's kernel gives the signs, so a host with a stopped process is not cut
 * off. No effect in a group on one host. */
void upcall_joining_set_lost_after(upcall_joining *joining, uint64_t nanoseconds);
/* Sets how long a member on a host that is cut off may be out of reach before it has ended: at most
 * 30 days, 30 s by default. Of two members the shorter time holds. No effect in a group on one
 * host. */
void upcall_joining_set_reconnect_within(upcall_joining *joining, uint64_t nanoseconds);

/* Leaves room for `more` members that join after the group has formed, in a group across hosts
 * (which may all be on one machine, at a loopback address). Their ranks follow those of the first
 * members. upcall_group_size counts them from the start, and so does each member's share of the
 * limit. All first members leave the same room, and member 0, which asks for that rank, takes in
 * the others (upcall_group_expect). Such a group has no barriers and reductions: UPCALL_GROWING. */
void upcall_joining_set_room(upcall_joining *joining, size_t more);
/* Joins a group that has formed, as one of the `count` members with the ranks from `first` on,
 * which join together. The size of the description is upcall_group_size of the others, its rank is
 * one of these ranks, and its address is that of the first members. `invitation` is the text that
 * upcall_group_expect has written for these ranks. Processes of these ranks reach each other
 * through memory if they share a machine; all other members count as members on other hosts.
 *
 * upcall_group_join then returns when all `count` processes have applied, and this one has a
 * connection with each other member. UPCALL_NOT_TAKEN_IN: the ranks are not expected, or this is
 * not their invitation. UPCALL_MISUSE: the text is no invitation. */
upcall_status upcall_joining_set_late(upcall_joining *joining, size_t first, size_t count,
                                      const char *invitation, upcall_error *error);

/* Joins the group; blocks until all other members have joined. Frees `joining` and `handlers` in
 * any case, even if one of the two is NULL. NULL: UPCALL_INCOMPLETE, UPCALL_NOT_TAKEN_IN (the text
 * names the kind of message that differs, or the host that is not trusted), UPCALL_NOT_PROVED (the
 * text names the command by which hosts get to trust each other), UPCALL_MISUSE (a bad name, size
 * or rank, room without an address, or kinds whose names and signatures are longer than 150 KB),
 * UPCALL_RESOURCE. */
upcall_group *upcall_group_join(upcall_joining *joining, upcall_handlers *handlers,
                                upcall_error *error);

/* Leaves and frees the group; NULL is allowed. Messages that were sent still arrive, and the other
 * members get an event. Across hosts it blocks until the other hosts have what this member has sent
 * to their members, for as long as a cut may last. UPCALL_MISUSE, and nothing is done, in a
 * handler, or in any other callback of a function of the group. */
upcall_status upcall_group_leave(upcall_group *group, upcall_error *error);

size_t upcall_group_rank(const upcall_group *group);
/* Returns the number of members, including those that have ended, and those for which the group has
 * room. */
size_t upcall_group_size(const upcall_group *group);
/* Returns a member's process ID, or 0 if there is no such member, or its process is on another host
 * or not visible in this PID namespace. */
uint32_t upcall_group_process(const upcall_group *group, size_t rank);

/* ---- Sending --------------------------------------------------------------------------------- */

/* Sends a message. Once this returns UPCALL_OK the message arrives, unless the receiver ends before
 * taking it. The payload may be reused at once.
 *
 * The send does not wait for the receiver. It waits only for room in the receiver's queue, and no
 * longer than the group's timeout. If this member has buffered all that it may, or if there is no
 * timeout, it waits until the receiver has taken some messages, however long that takes. While it
 * waits it runs the handlers of arriving messages, except in an atomic section, so members that
 * flood each other make progress. If the arriving messages have no handler, two members may wait
 * for each other forever: upcall_group_send_within avoids that.
 *
 * After any other status nothing was sent: UPCALL_UNFIT, UPCALL_NO_SUCH_RANK, UPCALL_ENDED,
 * UPCALL_VIOLATION, UPCALL_TOO_LONG, UPCALL_NO_MEMORY, UPCALL_NO_QUEUE, UPCALL_QUEUE_REFUSED: the
 * receiver lives, but lacks a resource for the queue. Messages that were sent to it before wait in
 * this process, and the next send offers the queue again. */
upcall_status upcall_group_send(upcall_group *group, size_t to, upcall_kind kind, const void *data,
                                size_t size, upcall_error *error);
/* The same, but waits for at most `nanoseconds`. UPCALL_FULL: there was no room in time.
 * UPCALL_OVERFLOW: this member has buffered all that it may, or memory is low. UPCALL_NEVER waits
 * as long as it takes. */
upcall_status upcall_group_send_within(upcall_group *group, size_t to, upcall_kind kind,
                                       const void *data, size_t size, uint64_t nanoseconds,
                                       upcall_error *error);
/* The same if there is room now; otherwise UPCALL_FULL. Runs no handlers. */
upcall_status upcall_group_try_send(upcall_group *group, size_t to, upcall_kind kind,
                                    const void *data, size_t size, upcall_error *error);
/* Writes the number of buffered bytes with messages that a member has not taken yet; 0 while
 * messages to it go the direct way. UPCALL_NO_SUCH_RANK. */
upcall_status upcall_group_buffered(const upcall_group *group, size_t to, uint64_t *bytes,
                                    upcall_error *error);
/* Writes how many of this member's messages have gone through a buffer so far. It counts those to
 * members that it can still send to. */
upcall_status upcall_group_diverted(const upcall_group *group, uint64_t *count,
                                    upcall_error *error);

/* ---- Taking ---------------------------------------------------------------------------------- */

/* UPCALL_OK: a message waits. UPCALL_NOTHING_THERE: none does. Costs one load for each member that
 * has ever sent a message here. */
upcall_status upcall_group_available(const upcall_group *group, upcall_error *error);
/* Runs the handlers of waiting messages, at most 64 of each member, and writes their number to
 * `count` unless that is NULL. A message without a handler stays, and so do those of the same
 * sender behind it. Does not wait. */
upcall_status upcall_group_poll(upcall_group *group, size_t *count, upcall_error *error);
/* Takes the next message, even if it has a handler; upcall_message_free frees it. Senders take
 * turns. UPCALL_NOTHING_THERE: no message waits, and `message` was not written. Does not wait. */
upcall_status upcall_group_receive(upcall_group *group, upcall_message *message,
                                   upcall_error *error);
/* Copies the message that upcall_group_receive would take, which stays; upcall_message_free frees
 * the copy. */
upcall_status upcall_group_peek(upcall_group *group, upcall_message *message, upcall_error *error);

/* A message in place: a function reads it where it lies, in memory that its sender can write.
 * Nothing is copied, however large the message is. The place is valid, on all threads, until that
 * function returns; afterwards nothing may use its memory.
 *
 * THE SENDER CAN STILL CHANGE THE BYTES, at any moment. Copy what is checked and then used
 * (upcall_place_copy): if a program or a library reads the same bytes twice, it may see different
 * values. Only the payload's size is checked against the kind; it was read once, with sender and
 * kind. So numbers may be out of the range of a narrow type, and text is just bytes that need not
 * be UTF-8. */
typedef struct upcall_place upcall_place;
typedef void (*upcall_place_fn)(void *context, upcall_group *group, const upcall_place *place);

/* Takes the next message as upcall_group_receive does, even if it has a handler, but calls `take`
 * to read it where it lies. When `take` returns, the message is disposed of. Does not wait.
 * UPCALL_NOTHING_THERE: no message waits, and `take` has not run. UPCALL_MISUSE: `take` is NULL.
 *
 * `take` may use the group, but must not leave it, and must not be left by longjmp or an exception.
 * Until `take` returns, no other message of the same sender is taken. Receiving or polling in
 * `take` finds only messages of other senders, and a wait for this sender's next message, also in
 * upcall_group_barrier, does not end. If the sender dies during `take`, the bytes stay, and the
 * event follows the message. */
upcall_status upcall_group_receive_in_place(upcall_group *group, upcall_place_fn take,
                                            void *context, upcall_error *error);
/* Calls `look` in the same way with the message that upcall_group_receive would take, which stays.
 */
upcall_status upcall_group_peek_in_place(upcall_group *group, upcall_place_fn look, void *context,
                                         upcall_error *error);

/* Returns the sender's rank. */
size_t upcall_place_from(const upcall_place *place);
upcall_kind upcall_place_kind(const upcall_place *place);
/* Returns the payload's size in bytes. */
size_t upcall_place_size(const upcall_place *place);
/* Returns a word of the payload, read once, as upcall_word does. Returns 0 beyond the end. */
uint64_t upcall_place_word(const upcall_place *place, size_t at);
/* Copies `len` bytes from byte `at` on. Returns false, and does nothing, if the range is out of
 * bounds. */
bool upcall_place_copy(const upcall_place *place, size_t at, void *to, size_t len);
/* Returns the whole payload, aligned for words, to be read where it lies or to be passed to
 * write(2); NULL if there is no payload. Do not write to it. The sender can change it (see above),
 * so it is volatile. */
const volatile void *upcall_place_data(const upcall_place *place);

/* Writes how often messages for this member were diverted to a buffer because a sender found no
 * room for longer than its timeout. No message is lost by that. If the number grows, this member
 * keeps messages waiting. */
upcall_status upcall_group_diversions(const upcall_group *group, uint64_t *count,
                                      upcall_error *error);

/* ---- Waiting --------------------------------------------------------------------------------- */

/* Waits for a message or an event, at most `nanoseconds` or UPCALL_NEVER: first spins, as the
 * group's pacing says, then blocks the thread. UPCALL_NOTHING_THERE: there is none. Runs no
 * handlers. */
upcall_status upcall_group_wait(upcall_group *group, uint64_t nanoseconds, upcall_error *error);
/* Runs handlers and waits until `done` returns true or, if `done` is NULL, until another member is
 * lost. UPCALL_ENDED, UPCALL_VIOLATION: another member is lost. UPCALL_PARTED: two others have lost
 * each other. UPCALL_UNHANDLED: a message without a handler waits. */
upcall_status upcall_group_run_until(upcall_group *group, bool (*done)(void *context),
                                     void *context, upcall_error *error);
/* Waits until all members have reached the barrier, and runs handlers while it waits. UPCALL_ENDED,
 * UPCALL_VIOLATION: a member is lost that had not reached it; after that neither this barrier nor a
 * later one holds. UPCALL_GIVEN_UP: another member reports such a loss, which this member cannot
 * confirm. UPCALL_PARTED: two members on different hosts have lost each other, and this one has
 * both; no later barrier holds either. UPCALL_UNHANDLED; UPCALL_UNSENT. */
upcall_status upcall_group_barrier(upcall_group *group, upcall_error *error);

/* Combines one number of each member, in the order of ranks, and replaces each member's `*value` by
 * the result. All members call this with the same `combine`, which must be associative; it combines
 * `*combined` and `*next` into a new `*combined`. `value` is eight bytes: a uint64_t, int64_t or
 * double. Runs handlers while it waits. The errors are those of upcall_group_barrier, and leave the
 * value unchanged. */
typedef void (*upcall_combine_fn)(void *context, uint64_t *combined, const uint64_t *next);
upcall_status upcall_group_reduce(upcall_group *group, void *value, upcall_combine_fn combine,
                                  void *context, upcall_error *error);

/* Ways to combine: upcall_sum_u64, upcall_min_u64, upcall_max_u64, and the same for i64 and f64.
 * Sums of u64 and i64 wrap around. */
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

/* ---- Events of other members ----------------------------------------------------------------- */

typedef enum upcall_event_kind {
    UPCALL_EVENT_ENDED = 0,     /* it has ended or left; all its messages were taken first */
    UPCALL_EVENT_VIOLATION = 1, /* it violates the protocol; nothing more is taken from it */
    UPCALL_EVENT_JOINED = 2,    /* it has joined late; the event comes before its first message */
    /* It and `other` have lost each other, and both live: on several hosts, the link of the two was
     * cut for too long. Comes once for each two members, when both have reported it. Messages with
     * both go on; no barrier or reduction holds any more. */
    UPCALL_EVENT_PARTED = 3
} upcall_event_kind;

typedef struct upcall_event {
    upcall_event_kind what;
    size_t rank;
    /* UPCALL_EVENT_PARTED: the other one of the two. Otherwise the same as `rank`. */
    size_t other;
    /* UTF-8, terminated by a NUL, and truncated if too long. */
    char text[300];
} upcall_event;

/* Returns the next event, in the order in which events were noticed, each one once.
 * UPCALL_NOTHING_THERE: no more. Polling, receiving and peeking notice events. */
upcall_status upcall_group_event(upcall_group *group, upcall_event *event, upcall_error *error);

/* ---- Members that join later ----------------------------------------------------------------- */

/* What a process shows to join a group that has formed: a secret, as hexadecimal digits that end
 * with a NUL. It is given to the process over a channel that no other process reads, such as its
 * standard input; arguments of a command are none. */
typedef struct upcall_invitation {
    char text[65];
} upcall_invitation;

/* Expects the `count` members with the ranks from `first` on to join from now on, together
 * (upcall_joining_set_late), and writes the invitation that their processes show. To be called in
 * the member that takes in others, which must live while they join, but need not poll. Does not
 * wait: each arrival is an event, UPCALL_EVENT_JOINED. A message to a rank that has not joined is
 * refused: UPCALL_NO_QUEUE. A rank is given once, and that of a member that has ended stays unused.
 *
 * UPCALL_NO_ROOM, UPCALL_NOT_LEADER, UPCALL_RANK_TAKEN: then nothing is expected. */
upcall_status upcall_group_expect(upcall_group *group, size_t first, size_t count,
                                  upcall_invitation *invitation, upcall_error *error);
/* Stops expecting the members of an upcall_group_expect, as long as not all of them have applied.
 * Those that have applied are refused, and the ranks may be expected again. */
upcall_status upcall_group_expect_no_more(upcall_group *group, size_t first, size_t count,
                                          upcall_error *error);
/* Expels members on other hosts, in the member that takes in others. This member neither sends to
 * them nor receives from them any more, even if they live: UPCALL_EVENT_ENDED. A member that has
 * not joined yet is refused when it comes. A newcomer needs a connection with every member that is
 * there, and waits for stopped members; it needs none with an expelled member. */
upcall_status upcall_group_expel(upcall_group *group, size_t first, size_t count,
                                 upcall_error *error);
/* Writes false if the member is to join later, and has not joined yet. UPCALL_NO_SUCH_RANK. */
upcall_status upcall_group_has_joined(const upcall_group *group, size_t rank, bool *joined,
                                      upcall_error *error);

/* A request of a process that is no member, such as for an invitation. It comes from a process of a
 * trusted host, or of this user on this host. Any thread may use a petition, one at a time. */
typedef struct upcall_petition upcall_petition;

/* Asks the member that takes in others, at the address at which the members meet, HOST:PORT; any
 * process may. `request` has at most 4 KiB. Blocks until the answer, of at most 4 MiB, is here. If
 * no process listens at the address, tries again, for at most `nanoseconds` or UPCALL_NEVER. Writes
 * the answer, to be freed by free(), and its size. UPCALL_INCOMPLETE: no answer in time.
 * UPCALL_NOT_TAKEN_IN: the member refuses the request, or does not admit this process; the text has
 * the reason. UPCALL_NOT_PROVED: nothing was sent. */
upcall_status upcall_petition_ask(const char *address, const void *request, size_t size,
                                  uint64_t nanoseconds, const void **answer, size_t *answer_size,
                                  upcall_error *error);

/* Takes the next petition, in the member that takes in others. Petitions arrive as events do. While
 * 16 are not answered, further ones are refused. If the other process gives up before, its petition
 * is not returned. UPCALL_NOTHING_THERE: there is none. */
upcall_status upcall_group_petition(upcall_group *group, upcall_petition **petition,
                                    upcall_error *error);
/* Returns the request, which another program may have filled with anything; NULL if it is empty. It
 * is valid until the petition is answered or refused. */
const void *upcall_petition_data(const upcall_petition *petition);
size_t upcall_petition_size(const upcall_petition *petition);
/* Returns the proved identity of the host of the process that has asked, in hexadecimal digits, or
 * NULL if it has asked at a loopback address of this machine. */
const char *upcall_petition_host(const upcall_petition *petition);
/* Send the answer, or the reason for a refusal, and free the petition; NULL is allowed. They do not
 * wait. If the other process has ended, the answer is dropped. */
void upcall_petition_answer(upcall_petition *petition, const void *data, size_t size);
void upcall_petition_refuse(upcall_petition *petition, const char *why);
/* Expects members as upcall_group_expect does, but only processes of the petition's host can use
 * the invitation. The petition stays. */
upcall_status upcall_group_expect_from(upcall_group *group, size_t first, size_t count,
                                       const upcall_petition *petition,
                                       upcall_invitation *invitation, upcall_error *error);

/* ---- Atomic sections ------------------------------------------------------------------------- */

/* Begins a section in which no handler runs unless this thread polls; it also holds back interrupts
 * (below). Sections may be nested. */
upcall_status upcall_group_begin_atomic(upcall_group *group, upcall_error *error);
/* Ends the innermost section; interrupts that it held back run now. UPCALL_MISUSE: there is no
 * section. */
upcall_status upcall_group_end_atomic(upcall_group *group, upcall_error *error);

/* ---- Interrupts ------------------------------------------------------------------------------ */

/* For code that computes for a long time and does not poll. While it is interruptible, messages of
 * some kinds interrupt it by a signal (SIGURG), and their handlers run on its thread at once. All
 * other messages wait for a poll, and so does everything that the same sender sent after them, and
 * what was buffered farther than 2 MiB.
 *
 * Such a handler runs between any two instructions of the thread, and may only do what POSIX calls
 * async-signal-safe. It must not allocate, free, lock or print, and must not leave by longjmp or an
 * exception. It may access only by atomics what the thread may be changing. Registering a handler
 * asserts that it meets these rules. Where the group is polled it runs like any other handler. */

/* An interrupt handler's access to its group, valid until the handler returns. */
typedef struct upcall_interrupt upcall_interrupt;
typedef void (*upcall_interrupt_fn)(void *context, upcall_interrupt *interrupt,
                                    const upcall_message *message);

/* Sets a handler for messages of a kind that also runs in interrupts. UPCALL_MISUSE: no such kind,
 * or its payload has no fixed size or more than 64 bytes. */
upcall_status upcall_handlers_on_interrupt(upcall_handlers *handlers, upcall_kind kind,
                                           upcall_interrupt_fn handler, void *context,
                                           upcall_error *error);

/* Runs `body`, which can be interrupted while it runs. Functions of the group that it uses, and
 * atomic sections, hold back interrupts until they are done. The kernel restarts interrupted system
 * calls where it can; others, such as sleeps, end with EINTR (signal(7)). `body` must not be left
 * by longjmp or an exception. UPCALL_RESOURCE: the kernel has no membarrier(2), or the program has
 * a handler of its own for SIGURG; then `body` has not run. */
upcall_status upcall_group_interruptible(upcall_group *group, void (*body)(void *context),
                                         void *context, upcall_error *error);

/* Return this member's rank and the number of members, in an interrupt handler. */
size_t upcall_interrupt_rank(const upcall_interrupt *interrupt);
size_t upcall_interrupt_size(const upcall_interrupt *interrupt);
/* Sends a message in an interrupt handler if that needs only stores: to a member that this one has
 * sent to before, whose queue has room. UPCALL_FULL: it would need more, and nothing was sent.
 * Other statuses: UPCALL_OK, UPCALL_UNFIT, UPCALL_NO_SUCH_RANK or UPCALL_MISUSE. */
upcall_status upcall_interrupt_try_send(upcall_interrupt *interrupt, size_t to, upcall_kind kind,
                                        const void *data, size_t size);

#ifdef __cplusplus
}
#endif

#endif
