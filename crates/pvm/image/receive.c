/* Receiving. Normally the host finds the message that is asked for among those that have arrived.
 *
 * In some cases each message must be examined on arrival: when the program has handlers or its own
 * matching function, or probes for a message. Then the messages are taken from the host in order,
 * and those that no receive has asked for yet wait here. All messages that wait here arrived before
 * all that wait at the host, so the order between a pair of tasks also holds across wildcards. */

#include "lib.h"
#include "doors.h"
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>

/* The messages that wait here, and the handlers, which are posted receives. */
static struct upvm_matching matching;

static int (*matcher)(int, int, int);

struct handler {
    struct upvm_entry entry; /* its note is the handler's number */
    int (*function)(int);
};
static int handler_count, handling;
/* PVM itself has nine handlers, and programs rely on that. */
static int handler_last = 9;

int (*upvm_look)(struct upvm_buffer *buffer);

static int taken(int number, long came);

/* Takes the next matching message from the host into buffer `number`, or into a new one if there is
 * no such buffer. Returns the buffer's number, 0 if no message arrived, or UPVM_INTERRUPTED: a
 * signal's handler has run, and what it received may wait here now. */
static int take(int number, struct upvm_key wanted, long microseconds)
{
    return taken(number, UPVM_ASK(upvm_here(), UPVM_ASK_RECEIVE, (long)wanted.source,
                                  (long)wanted.tag, (long)wanted.context, microseconds));
}

/* Takes the next message of any kind. */
static int take_any(long microseconds)
{
    return take(0, (struct upvm_key){UPVM_ANY, UPVM_ANY, UPVM_ANY_CONTEXT}, microseconds);
}

/* The time that the host leaves to an interrupted receive. */
static long time_left(void)
{
    return upvm_here()[UPVM_TABLE_REPLY];
}

/* The same, with the host's answer in `came`. */
static int taken(int number, long came)
{
    const uint64_t *table = upvm_here();
    if (came <= 0)
        return came;
    struct upvm_buffer *buffer = upvm_buffer(number);
    if (!buffer) {
        number = upvm_buffer_new(0);
        if (number < 0)
            return number;
        buffer = upvm_buffer(number);
    }
    upvm_filled(buffer, &table[UPVM_TABLE_REPLY]);
    return number;
}

/* The interrupted function must not see the handler's changes to the active buffers. As in PVM, the
 * buffers that the handler leaves active are freed, and all others are the program's. */
static void handle(int (*function)(int), int number)
{
    int sends = upvm_sends, receives = upvm_receives;
    upvm_sends = 0, upvm_receives = number;
    handling = 1;
    upvm_looks_changed();
    function(number);
    handling = 0;
    upvm_looks_changed();
    upvm_buffer_free(upvm_sends);
    upvm_buffer_free(upvm_receives);
    upvm_sends = upvm_buffer(sends) ? sends : 0;
    upvm_receives = upvm_buffer(receives) ? receives : 0;
}

/* Returns 1 if `upvm_look` or a handler has consumed the message. Contexts below 0 are the
 * library's own. */
static int looked_at(int number)
{
    struct upvm_buffer *buffer = upvm_buffer(number);
    if (upvm_look && upvm_look(buffer)) {
        upvm_buffer_free(number);
        return 1;
    }
    struct upvm_entry *posted =
        buffer->context < 0 ? 0 : upvm_match_posted(&matching, &buffer->entry.key);
    if (!posted)
        return 0;
    handle(((struct handler *)posted)->function, number);
    return 1;
}

static struct upvm_buffer *buffer_of(const struct upvm_entry *entry)
{
    return (struct upvm_buffer *)((char *)entry - offsetof(struct upvm_buffer, entry));
}

static void keep(int number)
{
    struct upvm_buffer *buffer = upvm_buffer(number);
    buffer->used = UPVM_QUEUED;
    upvm_match_append(&matching.unexpected, &buffer->entry);
    upvm_hot.waits = 1;
}

void upvm_unqueue(struct upvm_buffer *buffer)
{
    upvm_match_remove(&matching, &buffer->entry);
    buffer->used = UPVM_USED;
    upvm_hot.waits = !!matching.unexpected.first;
}

/* Returns 1 if the program's matching function chooses the message. */
static int matches(const struct upvm_key *wanted)
{
    return matcher && wanted->context >= 0;
}

/* Asks the program's matching function, which sees no message of the library's own. */
static int rank(const struct upvm_entry *message, const struct upvm_key *wanted)
{
    return message->key.context < 0
               ? 0
               : matcher(buffer_of(message)->number, wanted->source, wanted->tag);
}

/* Finds a message among those that wait here. Returns its number, 0 if none matches, or the error
 * of the program's matching function. */
static int find(struct upvm_key wanted, int take_it)
{
    struct upvm_entry *found;
    int best = upvm_match_probe(&matching, &wanted, matches(&wanted) ? rank : 0, &found);
    if (best <= 0)
        return best;
    if (take_it)
        upvm_unqueue(buffer_of(found));
    return buffer_of(found)->number;
}

static long now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000 + time.tv_nsec / 1000;
}

/* While a handler runs, no other handler is called for what it sends or receives. */
void upvm_looks_changed(void)
{
    upvm_hot.looks = (handler_count || upvm_look || matcher) && !handling;
}

/* Lets a message be looked at, and keeps it if nothing has consumed it. */
static void take_in(int number)
{
    if (handling || !looked_at(number))
        keep(number);
}

void upvm_poll_all(void)
{
    for (int number; (number = take_any(UPVM_AT_ONCE)) > 0;)
        take_in(number);
}

static int slowly(struct upvm_key wanted, long microseconds, int take_it)
{
    long end = 0;
    /* A limit that the clock does not reach is none. */
    if (microseconds > 0 && __builtin_add_overflow(now(), microseconds, &end))
        microseconds = -1;
    for (;;) {
        /* The program's matching function chooses among all messages that have arrived. */
        if (matches(&wanted))
            upvm_poll_all();
        int found = find(wanted, take_it);
        if (found)
            return found;
        long left = microseconds > 0 ? end - now() : microseconds;
        if (microseconds > 0 && left < 0)
            left = 0;
        int is_direct = take_it && !upvm_hot.looks;
        int number = is_direct ? take(0, wanted, left) : take_any(left);
        if (number == UPVM_INTERRUPTED)
            continue;
        if (number <= 0 || is_direct)
            return number;
        take_in(number);
    }
}

int upvm_receive(int from, int tag, int context, long microseconds)
{
    upvm_self();
    struct upvm_key wanted = {from, tag, context};
    if (!upvm_hot.waits && !upvm_hot.looks) {
        int number = take(0, wanted, microseconds);
        if (number != UPVM_INTERRUPTED)
            return number;
        microseconds = time_left();
    }
    return slowly(wanted, microseconds, 1);
}

void upvm_wait(void)
{
    int number = take_any(-1);
    if (number > 0)
        take_in(number);
}

static int is_sound(int from, int tag)
{
    return from >= -1 && tag >= -1;
}

/* Makes the buffer active if there is one. Returns what the calling function returns. */
static int activated(const char *function, int number)
{
    if (number > 0)
        upvm_receives = number;
    /* The program has probed this message, and packed into it. */
    if (number == upvm_sends)
        upvm_sends = 0;
    return number >= 0 ? number : upvm_done(function, number);
}

/* Receives into the active receive buffer, where the common way is not possible. The buffer before
 * it is freed. */
static int received_slowly(const char *function, int from, int tag, long microseconds)
{
    /* As in PVM, a message that was probed and unpacked by pvm_setrbuf is not received again. */
    struct upvm_buffer *old = upvm_buffer(upvm_receives);
    if (old && old->used == UPVM_QUEUED)
        upvm_buffer_free(upvm_receives);
    int number = slowly((struct upvm_key){from, tag, upvm_context}, microseconds, 1);
    if (number > 0)
        upvm_buffer_free(upvm_receives);
    return activated(function, number);
}

static int received(const char *function, int from, int tag, long microseconds)
{
    if (!is_sound(from, tag))
        return upvm_done(function, PvmBadParam);
    upvm_self();
    if (upvm_hot.waits || upvm_hot.looks)
        return received_slowly(function, from, tag, microseconds);
    /* The old buffer's number is reused, because that buffer is freed anyway. */
    int number = take(upvm_receives, (struct upvm_key){from, tag, upvm_context}, microseconds);
    if (number == UPVM_INTERRUPTED)
        return received_slowly(function, from, tag, time_left());
    return activated(function, number);
}

/* Completes pvm_recv or pvm_nrecv. The host was asked for exactly this message, or not at all
 * (UPVM_UNASKED). */
int upvm_own_came(int from, int tag, long microseconds, long came)
{
    const char *function = microseconds ? "pvm_recv" : "pvm_nrecv";
    if (came == UPVM_UNASKED)
        return received(function, from, tag, microseconds);
    upvm_signals(upvm_here());
    if (came == UPVM_INTERRUPTED)
        return received_slowly(function, from, tag, time_left());
    return activated(function, taken(upvm_receives, came));
}

/* A time limit. One in the past means no wait, and one that a long cannot hold means no limit. */
static long microseconds_of(const struct timeval *within)
{
    long microseconds;
    if (__builtin_mul_overflow(within->tv_sec, 1000000L, &microseconds) ||
        __builtin_add_overflow(microseconds, within->tv_usec, &microseconds))
        return within->tv_sec < 0 ? 0 : -1;
    return microseconds < 0 ? 0 : microseconds;
}

int pvm_trecv(int from, int tag, struct timeval *within)
{
    return received("pvm_trecv", from, tag, within ? microseconds_of(within) : -1);
}

int pvm_probe(int from, int tag)
{
    if (!is_sound(from, tag))
        return upvm_done("pvm_probe", PvmBadParam);
    upvm_self();
    int number = slowly((struct upvm_key){from, tag, upvm_context}, 0, 0);
    return number >= 0 ? number : upvm_done("pvm_probe", number);
}

/* What pvm_precv returns of a message. */
struct received {
    int source, tag;
    size_t length;
};

/* Copies the message in a buffer, which is then freed. */
static struct received emptied(int number, void *data, size_t room)
{
    struct upvm_buffer *buffer = upvm_buffer(number);
    struct received got = {buffer->source, buffer->tag, buffer->length};
    size_t bytes = got.length < room ? got.length : room;
    if (bytes)
        __builtin_memcpy(data, buffer->data, bytes);
    upvm_hot.copied += bytes;
    upvm_buffer_free(number);
    return got;
}

/* Receives into the program's memory. While this waits, the host knows where that is, and copies
 * there what comes. Returns PvmOk, or an error. */
static int received_into(void *data, size_t room, struct upvm_key wanted, struct received *got)
{
    uint64_t *table = upvm_here();
    int number;
    upvm_self();
    if (upvm_hot.waits || upvm_hot.looks) {
        number = slowly(wanted, -1, 1);
    } else {
        long came = UPVM_ASK(table, UPVM_ASK_RECEIVE_INTO, upvm_both(wanted.source, wanted.tag),
                             wanted.context, (long)data, room);
        if (came == UPVM_IN_PLACE) {
            uint64_t *reply = &table[UPVM_TABLE_REPLY];
            *got = (struct received){reply[UPVM_REPLY_SOURCE], reply[UPVM_REPLY_SOURCE] >> 32,
                                     reply[UPVM_REPLY_LENGTH]};
            return PvmOk;
        }
        number = came == UPVM_INTERRUPTED ? slowly(wanted, -1, 1) : taken(0, came);
    }
    if (number < 0)
        return number;
    *got = emptied(number, data, room);
    return PvmOk;
}

int pvm_precv(int from, int tag, void *data, int count, int type, int *source, int *its_tag,
              int *its_count)
{
    size_t size = upvm_size(type);
    if (!is_sound(from, tag) || !size || count < 0 || (count && !data))
        return upvm_done("pvm_precv", PvmBadParam);
    struct received got;
    int code = received_into(data, size * count, (struct upvm_key){from, tag, upvm_context}, &got);
    if (code < 0)
        return upvm_done("pvm_precv", code);
    if (source)
        *source = got.source;
    if (its_tag)
        *its_tag = got.tag;
    if (its_count)
        *its_count = got.length < INT_MAX ? (int)got.length : INT_MAX;
    return PvmOk;
}

int (*pvm_recvf(int (*function)(int, int, int)))(int, int, int)
{
    int (*old)(int, int, int) = matcher;
    matcher = function;
    upvm_looks_changed();
    return old;
}

int pvm_addmhf(int source, int tag, int context, int (*function)(int))
{
    struct upvm_key key = {source, tag, context};
    for (struct upvm_entry *one = matching.posted.first; one; one = one->next)
        if (!memcmp(&one->key, &key, sizeof key))
            return upvm_done("pvm_addmhf", PvmExists);
    struct handler *handler = malloc(sizeof *handler);
    if (!handler)
        return upvm_done("pvm_addmhf", PvmNoMem);
    *handler = (struct handler){{.key = key, .note = handler_last}, function};
    upvm_match_append(&matching.posted, &handler->entry);
    handler_count++;
    upvm_looks_changed();
    return handler_last++;
}

int pvm_delmhf(int number)
{
    if (number < 0)
        return upvm_done("pvm_delmhf", PvmBadParam);
    struct upvm_entry *one = matching.posted.first;
    while (one && one->note != number)
        one = one->next;
    if (!one)
        return upvm_done("(mhid >= ndhandles) pvm_delmhf", PvmNotFound);
    upvm_match_remove(&matching, one);
    free(one);
    handler_count--;
    upvm_looks_changed();
    return PvmOk;
}

/* In no manual, but programs use it to list their handlers. Lists the program's own, not PVM's
 * nine. */
void pvmdisplaymhfinfo(char *who, char *what, int tid)
{
    printf("\n%s t%x: Display Message Handler Information: ndhandles = %d\n%s t%x: %s\n", who, tid,
           handler_count, who, tid, what);
    int place = 0;
    for (struct upvm_entry *one = matching.posted.first; one; one = one->next)
        printf("%s t%x: dhandles[%2d].mhid = %2d  .header.src = t%x  .header.ctx = %8d  "
               ".header.tag= %8d\n",
               who, tid, place++, one->note, one->key.source, one->key.context, one->key.tag);
    printf("\n\n");
}
