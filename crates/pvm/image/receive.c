/* Receiving. Normally the host finds the message that is asked for among those that have arrived.
 *
 * In some cases each message must be examined on arrival: when the program has handlers or its own
 * matching function, or probes for a message. Then the messages are taken from the host in order,
 * and those that no receive has asked for yet wait here. All messages that wait here arrived before
 * all that wait at the host, so the order between a pair of tasks also holds across wildcards. */

#include "lib.h"
#include "doors.h"
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

/* The list of messages that wait here, in order of arrival. */
#define head upvm_hot.head
#define tail upvm_hot.tail

static int (*matcher)(int, int, int);

static struct handler {
    int source, tag, context, number;
    int (*function)(int);
} *handlers;
static int handler_count, handling;
/* PVM itself has nine handlers, and programs rely on that. */
static int handler_last = 9;

int (*upvm_look)(struct upvm_buffer *buffer);

/* Number of messages that have left the list, modulo 2^32. */
static unsigned unqueued;

static int taken(int number, int from, int tag, int context, long came);

/* Contexts below 0 are the library's own. */
static int fits(const struct upvm_buffer *buffer, int from, int tag, int context)
{
    return (from == -1 || buffer->source == from) && (tag == -1 || buffer->tag == tag) &&
           buffer->context == context;
}

/* Takes the next matching message from the host into buffer `number`, or into a new one if there is
 * no such buffer. Returns the buffer's number, or 0 if no message arrived. */
static int take(int number, int from, int tag, int context, long microseconds)
{
    return taken(number, from, tag, context,
                 UPVM_ASK(upvm_here(), UPVM_ASK_RECEIVE, (long)from, (long)tag, (long)context,
                          microseconds));
}

/* The same, with the host's answer in `came`. */
static int taken(int number, int from, int tag, int context, long came)
{
    const uint64_t *table = upvm_here();
    if (came <= 0) {
        /* A handler has run. It may have received the message that this receive waits for. */
        if (came == UPVM_INTERRUPTED)
            return take(number, from, tag, context, table[UPVM_TABLE_REPLY]);
        return came;
    }
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
static void handle(struct handler *handler, int number)
{
    int sends = upvm_sends, receives = upvm_receives;
    upvm_sends = 0, upvm_receives = number;
    handling = 1;
    upvm_looks_changed();
    handler->function(number);
    handling = 0;
    upvm_looks_changed();
    upvm_buffer_free(upvm_sends);
    upvm_buffer_free(upvm_receives);
    upvm_sends = upvm_buffer(sends) ? sends : 0;
    upvm_receives = upvm_buffer(receives) ? receives : 0;
}

/* Returns 1 if `upvm_look` or a handler has consumed the message. */
static int looked_at(int number)
{
    struct upvm_buffer *buffer = upvm_buffer(number);
    if (upvm_look && upvm_look(buffer)) {
        upvm_buffer_free(number);
        return 1;
    }
    for (int one = 0; one < handler_count; one++) {
        struct handler handler = handlers[one];
        if (buffer->context < 0 || (handler.source != -1 && handler.source != buffer->source) ||
            (handler.tag != -1 && handler.tag != buffer->tag) ||
            (handler.context != -1 && handler.context != buffer->context))
            continue;
        handle(&handler, number);
        return 1;
    }
    return 0;
}

static void keep(int number)
{
    upvm_buffer(number)->next = 0;
    upvm_buffer(number)->used = UPVM_QUEUED;
    if (tail)
        upvm_buffer(tail)->next = number;
    else
        head = number;
    tail = number;
}

void upvm_unqueue(int number)
{
    int before = 0;
    for (int one = head; one != number; one = upvm_buffer(one)->next)
        before = one;
    int next = upvm_buffer(number)->next;
    if (before)
        upvm_buffer(before)->next = next;
    else
        head = next;
    if (tail == number)
        tail = before;
    upvm_buffer(number)->used = UPVM_USED;
    unqueued++;
}

/* How well the message matches: 0 not at all, 1 so well that the search is over. Below 0 it is an
 * error of the program's matching function. */
static int rank(int number, int from, int tag, int context)
{
    const struct upvm_buffer *buffer = upvm_buffer(number);
    if (matcher && context >= 0)
        return buffer->context < 0 ? 0 : matcher(number, from, tag);
    return fits(buffer, from, tag, context);
}

/* Finds a message among those that wait here. Returns its number, 0 if none matches, or the error
 * of the program's matching function. */
static int find(int from, int tag, int context, int take_it)
{
    int best = 0, its_rank = 0;
    for (int number = head; number;) {
        unsigned before = unqueued;
        int found = rank(number, from, tag, context);
        if (found < 0)
            return found;
        /* The matching function has freed or received a message, perhaps this one. */
        if (unqueued != before) {
            best = its_rank = 0, number = head;
            continue;
        }
        if (found > its_rank)
            best = number, its_rank = found;
        if (found == 1)
            break;
        number = upvm_buffer(number)->next;
    }
    if (best && take_it)
        upvm_unqueue(best);
    return best;
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

static int slowly(int from, int tag, int context, long microseconds, int take_it)
{
    long end = microseconds > 0 ? now() + microseconds : 0;
    for (;;) {
        int found = find(from, tag, context, take_it);
        if (found)
            return found;
        if (take_it && !upvm_hot.looks)
            return take(0, from, tag, context, microseconds);
        long left = microseconds > 0 ? end - now() : microseconds;
        int number = take(0, -1, -1, UPVM_ANY_CONTEXT, microseconds > 0 && left < 0 ? 0 : left);
        if (number <= 0)
            return number;
        if (handling || !looked_at(number))
            keep(number);
    }
}

int upvm_receive(int from, int tag, int context, long microseconds)
{
    upvm_self();
    if (head || upvm_hot.looks)
        return slowly(from, tag, context, microseconds, 1);
    return take(0, from, tag, context, microseconds);
}

void upvm_poll_all(void)
{
    for (int number; (number = take(0, -1, -1, UPVM_ANY_CONTEXT, UPVM_AT_ONCE)) > 0;)
        if (!looked_at(number))
            keep(number);
}

void upvm_wait(void)
{
    int number = take(0, -1, -1, UPVM_ANY_CONTEXT, -1);
    if (number > 0 && !looked_at(number))
        keep(number);
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

/* Receives into the active receive buffer. The one before is freed. */
static int received(const char *function, int from, int tag, long microseconds)
{
    if (!is_sound(from, tag))
        return upvm_done(function, PvmBadParam);
    upvm_self();
    if (!head && !upvm_hot.looks) {
        /* The old buffer's number is reused, because that buffer is freed anyway. */
        return activated(function, take(upvm_receives, from, tag, upvm_context, microseconds));
    }
    /* As in PVM, a message that was probed and unpacked by pvm_setrbuf is not received again. */
    struct upvm_buffer *old = upvm_buffer(upvm_receives);
    if (old && old->used == UPVM_QUEUED)
        upvm_buffer_free(upvm_receives);
    int number = slowly(from, tag, upvm_context, microseconds, 1);
    if (number > 0)
        upvm_buffer_free(upvm_receives);
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
    return activated(function, taken(upvm_receives, from, tag, upvm_context, came));
}

int pvm_trecv(int from, int tag, struct timeval *within)
{
    long microseconds = within ? within->tv_sec * 1000000 + within->tv_usec : -1;
    /* A time in the past means no wait. */
    return received("pvm_trecv", from, tag, within && microseconds < 0 ? 0 : microseconds);
}

int pvm_probe(int from, int tag)
{
    if (!is_sound(from, tag))
        return upvm_done("pvm_probe", PvmBadParam);
    upvm_self();
    int number = slowly(from, tag, upvm_context, 0, 0);
    return number >= 0 ? number : upvm_done("pvm_probe", number);
}

int pvm_precv(int from, int tag, void *data, int count, int type, int *source, int *its_tag,
              int *its_count)
{
    size_t size = upvm_size(type);
    if (!is_sound(from, tag) || !size || count < 0 || (count && !data))
        return upvm_done("pvm_precv", PvmBadParam);
    int number = upvm_receive(from, tag, upvm_context, -1);
    if (number < 0)
        return upvm_done("pvm_precv", number);
    struct upvm_buffer *buffer = upvm_buffer(number);
    size_t bytes = buffer->length < size * count ? buffer->length : size * count;
    if (bytes)
        __builtin_memcpy(data, buffer->data, bytes);
    if (source)
        *source = buffer->source;
    if (its_tag)
        *its_tag = buffer->tag;
    if (its_count)
        *its_count = upvm_length(buffer);
    upvm_buffer_free(number);
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
    for (int one = 0; one < handler_count; one++)
        if (handlers[one].source == source && handlers[one].tag == tag &&
            handlers[one].context == context)
            return upvm_done("pvm_addmhf", PvmExists);
    struct handler *more = realloc(handlers, (handler_count + 1) * sizeof *more);
    if (!more)
        return upvm_done("pvm_addmhf", PvmNoMem);
    handlers = more;
    handlers[handler_count++] = (struct handler){source, tag, context, handler_last, function};
    upvm_looks_changed();
    return handler_last++;
}

int pvm_delmhf(int number)
{
    if (number < 0)
        return upvm_done("pvm_delmhf", PvmBadParam);
    for (int one = 0; one < handler_count; one++)
        if (handlers[one].number == number) {
            handlers[one] = handlers[--handler_count];
            upvm_looks_changed();
            return PvmOk;
        }
    return upvm_done("(mhid >= ndhandles) pvm_delmhf", PvmNotFound);
}

/* In no manual, but programs use it to list their handlers. Lists the program's own, not PVM's
 * nine. */
void pvmdisplaymhfinfo(char *who, char *what, int tid)
{
    printf("\n%s t%x: Display Message Handler Information: ndhandles = %d\n%s t%x: %s\n", who, tid,
           handler_count, who, tid, what);
    for (int one = 0; one < handler_count; one++)
        printf("%s t%x: dhandles[%2d].mhid = %2d  .header.src = t%x  .header.ctx = %8d  "
               ".header.tag= %8d\n",
               who, tid, one,
               handlers[one].number, handlers[one].source, handlers[one].context,
               handlers[one].tag);
    printf("\n\n");
}
