/* Many messages between tasks that move, each of them checked. None is lost or doubled, those of
 * two tasks keep their order, and a message arrives after all messages that have caused it.
 *
 * Usage: shuffled MESSAGES SEED [kills] [hosts]. Each task starts some chains of messages, and
 * passes each message of a chain on to a task that it chooses at random. With a message goes what
 * its sender knows of the number of messages that each task has sent to each other one. So a
 * receiver knows how many messages of each task must have arrived before.
 *
 * With `kills` some tasks may end with their process, and the others stop then. Messages of tasks
 * that have ended so may be missing, and no others.
 *
 * With `hosts` a message may arrive before its cause, which PVM does not exclude. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "pvm3.h"

enum { MOST = 16, CHAINS = 4, PASSED = 1, NEWS, DONE, END, FLUSHED, ENDED };
enum { SMALL = 16, LARGE = 2000, HUGE = 16000 };

struct head {
    int left; /* number of messages of this chain that are still to come */
    int length; /* number of integers that follow */
    unsigned sent[MOST][MOST]; /* sender's knowledge: messages from, to */
};

static int *all, me, count, dies, afar, stops, done, flushed[MOST], dead[MOST], missing[MOST];
static unsigned came[MOST];
static unsigned long random_state, messages;
static struct head own;
static int data[HUGE];

static void fails(const char *what, int from, int tag, unsigned wanted, unsigned got)
{
    printf("FAILED: %s: task %d, from %d, tag %d: %u instead of %u\n", what, me, from, tag, got,
           wanted);
    fflush(stdout);
    pvm_halt();
    exit(1);
}

static unsigned chance(unsigned below)
{
    random_state = random_state * 6364136223846793005 + 1442695040888963407;
    return (random_state >> 33) % below;
}

static int task_of(int tid)
{
    for (int at = 0; at < count; at++)
        if (all[at] == tid)
            return at;
    return -1;
}

/* The contents of the message with this number from one task. */
static unsigned content(int from, unsigned number, int at)
{
    return (from * 2654435761u + number) * 40503u + at;
}

static void pack(int left)
{
    unsigned kind = chance(4096);
    own.left = left;
    own.length = kind == 0 ? HUGE : kind < 32 ? LARGE : chance(SMALL);
    static const int encodings[] = {PvmDataRaw, PvmDataDefault, PvmDataInPlace};
    /* Data in place must not change until they are sent, which is below. */
    pvm_initsend(encodings[chance(3)]);
    pvm_pkbyte((char *)&own, sizeof own, 1);
}

static void sends(int to, int tag, int left)
{
    pack(left);
    for (int at = 0; at < own.length; at++)
        data[at] = content(me, own.sent[me][to], at);
    pvm_pkint(data, own.length, 1);
    pvm_send(all[to], tag);
    own.sent[me][to]++;
}

/* Sends one message to all others: its contents are at one place for several processes. */
static void sends_all(int tag)
{
    int others[MOST], at, others_count = 0;
    pack(0);
    for (at = 0; at < own.length; at++)
        data[at] = content(me, 0, at);
    pvm_pkint(data, own.length, 1);
    for (at = 0; at < count; at++)
        if (at != me)
            others[others_count++] = all[at];
    pvm_mcast(others, others_count, tag);
    for (at = 0; at < count; at++)
        own.sent[me][at] += at != me;
}

static void passes_on(int left)
{
    int to = chance(count - 1);
    sends(to + (to >= me), PASSED, left);
}

/* Checks a message, and merges what its sender knows with what this task knows. */
static int check(int from, int tag)
{
    struct head head;
    static int got[HUGE];
    pvm_upkbyte((char *)&head, sizeof head, 1);
    unsigned number = head.sent[from][me];
    if (number != came[from])
        fails(number < came[from] ? "doubled" : "lost", from, tag, came[from], number);
    if (head.length < 0 || head.length > HUGE)
        fails("length", from, tag, HUGE, head.length);
    pvm_upkint(got, head.length, 1);
    int of_all = tag != PASSED && tag != DONE;
    for (int at = 0; at < head.length; at++)
        if ((unsigned)got[at] != content(from, of_all ? 0 : number, at))
            fails("contents", from, tag, content(from, of_all ? 0 : number, at), got[at]);
    for (int at = 0; at < count; at++) {
        if (head.sent[at][me] > came[at] && at != from) {
            if (!dies && !afar)
                fails("order", at, tag, came[at], head.sent[at][me]);
            missing[at] = !afar;
        }
        for (int to = 0; to < count; to++)
            if (head.sent[at][to] > own.sent[at][to])
                own.sent[at][to] = head.sent[at][to];
    }
    came[from]++;
    own.sent[from][me] = came[from];
    messages++;
    return head.left;
}

/* Receives a message in one of several ways. */
static int receives(void)
{
    int buffer = 0;
    switch (chance(8)) {
    case 0:
        return (buffer = pvm_nrecv(-1, -1)) ? buffer : pvm_recv(-1, -1);
    case 1:
        pvm_probe(-1, -1);
        return pvm_recv(-1, -1);
    case 2: {
        struct timeval within = {0, 1 + chance(500)};
        return (buffer = pvm_trecv(-1, -1, &within)) ? buffer : pvm_recv(-1, -1);
    }
    default:
        return pvm_recv(-1, -1);
    }
}

static void stop(void)
{
    if (!stops)
        sends_all(FLUSHED);
    stops = 1;
}

static int is_over(void)
{
    for (int at = 0; at < count; at++)
        if (at != me && !flushed[at] && !dead[at])
            return 0;
    return stops;
}

static void handles_one(void)
{
    int bytes, tag, tid, left;
    pvm_bufinfo(receives(), &bytes, &tag, &tid);
    if (tag == ENDED) {
        pvm_upkint(&tid, 1, 1);
        int at = task_of(tid);
        if (at < 0)
            fails("end", at, tag, 0, tid);
        if (!flushed[at] && !dies)
            fails("unexpected end", at, tag, 0, tid);
        dead[at] = 1;
        stop();
        return;
    }
    int from = task_of(tid);
    if (from < 0 || from == me)
        fails("sender", from, tag, 0, tid);
    left = check(from, tag);
    if (tag == PASSED && left > 0 && !stops)
        passes_on(left - 1);
    else if (tag == PASSED && left == 0 && me != 0)
        sends(0, DONE, 0);
    if ((tag == PASSED && left == 0 && me == 0) || tag == DONE)
        if (++done == count * CHAINS)
            sends_all(END), stop();
    if (tag == END)
        stop();
    if (tag == FLUSHED)
        flushed[from] = 1;
    if (!stops && chance(2000) == 0)
        sends_all(NEWS);
}

int main(int argc, char **argv)
{
    count = pvm_siblings(&all);
    me = task_of(pvm_mytid());
    if (count < 2 || count > MOST || argc < 3)
        return 2;
    long each = atol(argv[1]) / (count * CHAINS);
    random_state = atol(argv[2]) * 31 + me;
    for (int at = 3; at < argc; at++) {
        dies |= !strcmp(argv[at], "kills");
        afar |= !strcmp(argv[at], "hosts");
    }
    int others[MOST], others_count = 0;
    for (int at = 0; at < count; at++)
        if (at != me)
            others[others_count++] = all[at];
    pvm_notify(PvmTaskExit, ENDED, others_count, others);
    for (int at = 0; at < CHAINS; at++)
        passes_on(each - 1);
    while (!is_over())
        handles_one();
    for (int at = 0; at < count; at++)
        if (missing[at] && (!dead[at] || flushed[at]))
            fails("order", at, 0, 0, missing[at]);
    printf("ok: task %d has taken %lu messages\n", me, messages);
    pvm_exit();
    return 0;
}
