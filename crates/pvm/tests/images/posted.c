/* Messages that are sent from memory and received into memory (pvm_psend, pvm_precv).
 *
 * Usage: posted PROCESSES. There are three tasks. With 2 processes the last two are in the second
 * one, and with 1 all are in one. The first task sends to the second one, which waits when the
 * third one says so: the two run one after the other, so the third one runs when the second one
 * waits.
 *
 * posted PROCESSES MESSAGES: each task starts a chain of that many messages, each of which goes on
 * to a task that is chosen at random. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "lib.h"

enum { ORDER = 1, GO, WAITS, REPLY, DATA, OTHER, ENDED, MOST = 1 << 22, PAGE = 4096 };

static int *all, me, count, failed, processes;
static char *data;

static void check(const char *what, long got, long want)
{
    if (got == want)
        return;
    printf("FAILED: task %d, %s: %ld, not %ld\n", me, what, got, want);
    fflush(stdout);
    failed = 1;
}

/* What the library of this task and the host of this process have copied. */
static long copied(void)
{
    return upvm_hot.copied + upvm_ask_short(UPVM_OP_COPIED, 0);
}

static char content(long number, long at)
{
    return number * 31 + at * 7 + (at >> 8);
}

static void fill(char *to, long number, long bytes)
{
    for (long at = 0; at < bytes; at++)
        to[at] = content(number, at);
}

static long wrong(const char *from, long number, long bytes)
{
    for (long at = 0; at < bytes; at++)
        if (from[at] != content(number, at))
            return at + 1;
    return 0;
}

/* What the host of the other two tasks has copied when the second task waited. */
static long there;

static void others_wait(void)
{
    pvm_recv(all[2], WAITS);
    pvm_upklong(&there, 1, 1);
}

/* Gives the second task an order, with a number of bytes, and returns when that task waits. */
static void order(int what, int bytes)
{
    int words[2] = {what, bytes};
    for (int to = 1; to < 3; to++)
        pvm_psend(all[to], ORDER, words, 2, PVM_INT);
    others_wait();
}

/* The length that the second task has received, and what its library has copied so far. */
static long own_there;

static long reply(void)
{
    long values[2] = {-1};
    pvm_recv(all[1], REPLY);
    pvm_upklong(values, 2, 1);
    own_there = values[1];
    return values[0];
}

static void replies(long value)
{
    long values[2] = {value, upvm_hot.copied};
    pvm_initsend(PvmDataRaw);
    pvm_pklong(values, 2, 1);
    pvm_send(all[0], REPLY);
}

/* The third task runs when this one waits. */
static void waits(void)
{
    pvm_initsend(PvmDataRaw);
    pvm_send(all[2], GO);
}

/* Receives into `to` what is `number`, and reports. */
static void receives(char *to, long number, int room, int from, int tag)
{
    int source = 0, its_tag = 0, length = 0;
    check("receives", pvm_precv(from, tag, to, room, PVM_BYTE, &source, &its_tag, &length), PvmOk);
    check("source", source, all[0]);
    check("tag", its_tag, DATA);
    check("contents", wrong(to, number, length < room ? length : room), 0);
    replies(length);
}

static int signals;
static char small[64];

static void signalled(int signal)
{
    int length = 0;
    signals++;
    /* The handler waits itself, into other memory. */
    check("a handler receives", pvm_precv(all[0], OTHER, small, 64, PVM_BYTE, 0, 0, &length),
          PvmOk);
    check("what it receives", length, 10);
}

/* What the second task does in turn. */
enum { INTO, SHORT, WILD, SIGNAL, END };

static void second(void)
{
    for (;;) {
        int words[2], bytes;
        pvm_precv(all[0], ORDER, words, 2, PVM_INT, 0, 0, 0);
        bytes = words[1];
        memset(data, 0, MOST);
        switch (words[0]) {
        case INTO:
            waits();
            receives(data, bytes, MOST, all[0], DATA);
            break;
        case SHORT:
            waits();
            receives(data, bytes, 100, all[0], DATA);
            check("what lies behind", data[100], 0);
            break;
        case WILD:
            waits();
            receives(data, bytes, MOST, -1, -1);
            break;
        case SIGNAL:
            signal(SIGUSR1, signalled);
            waits();
            receives(data, bytes, MOST, all[0], DATA);
            check("signals", signals, 1);
            break;
        default:
            return;
        }
    }
}

static void third(void)
{
    for (;;) {
        int words[2];
        pvm_precv(all[0], ORDER, words, 2, PVM_INT, 0, 0, 0);
        if (words[0] == END)
            return;
        pvm_recv(all[1], GO);
        long so_far = upvm_ask_short(UPVM_OP_COPIED, 0);
        pvm_initsend(PvmDataRaw);
        pvm_pklong(&so_far, 1, 1);
        pvm_send(all[0], WAITS);
    }
}

static void sends(int tag, long number, int bytes)
{
    fill(data, number, bytes);
    check("sends", pvm_psend(all[1], tag, data, bytes, PVM_BYTE), PvmOk);
    memset(data, 1, bytes);
}

/* Other messages than the one that is measured have few bytes. */
static void check_cost(const char *what, long got, long wanted)
{
    check(what, got >= wanted && got < wanted + 512 ? wanted : got, wanted);
}

static void checks(void)
{
    static const int lengths[] = {0, 1, 7, 64, 100, 4096, 65537, 1 << 20, MOST - 1};
    for (unsigned at = 0; at < sizeof lengths / sizeof *lengths; at++) {
        long bytes = lengths[at];
        order(INTO, bytes);
        long there_before = there, own_before = own_there, before = copied();
        sends(DATA, bytes, bytes);
        long cost = copied() - before;
        check("length", reply(), bytes);
        check_cost("copied by the sender's process", cost, bytes);
        if (processes == 1)
            check("copied in all", cost, bytes);
        /* The next order finds out what the last one has cost. */
        order(INTO, 0);
        check_cost("copied by the receiver's process", there - there_before, bytes);
        sends(DATA, 0, 0);
        reply();
        check_cost("copied by the receiver", own_there - own_before, 0);
    }
    order(SHORT, 200);
    sends(DATA, 200, 200);
    check("length of a long message", reply(), 200);
    order(WILD, 300);
    sends(DATA, 300, 300);
    check("length for a wildcard", reply(), 300);
    /* A message that does not fit waits, and a block that does is received. */
    order(INTO, 50);
    sends(OTHER, 10, 10);
    pvm_initsend(PvmDataRaw);
    fill(data, 50, 50);
    pvm_pkbyte(data, 50, 1);
    pvm_send(all[1], DATA);
    check("length of a block", reply(), 50);
    /* The message that waits is the handler's. */
    order(SIGNAL, 77);
    pvm_sendsig(all[1], SIGUSR1);
    sends(DATA, 77, 77);
    check("length after a signal", reply(), 77);
    /* What is queued is not overtaken. */
    fill(data, 20, 20);
    pvm_initsend(PvmDataRaw);
    int words[2] = {INTO, 20};
    pvm_psend(all[1], ORDER, words, 2, PVM_INT);
    pvm_psend(all[2], ORDER, words, 2, PVM_INT);
    pvm_pkbyte(data, 20, 1);
    pvm_send(all[1], DATA);
    sends(DATA, 30, 30);
    check("the first of two", reply(), 20);
    others_wait();
    order(INTO, 30);
    check("the second of two", reply(), 30);
}

/* A task whose memory is missing: ends by its own signal, and the others go on. */
static void faulty(const char *what)
{
    char *page = mmap(0, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int parent = pvm_parent();
    memset(page, 7, 3 * PAGE);
    if (!strcmp(what, "unmapped"))
        munmap(page + PAGE, 2 * PAGE);
    else if (!strcmp(what, "readonly"))
        mprotect(page + PAGE, 2 * PAGE, PROT_READ);
    else if (!strcmp(what, "waits"))
        ;
    else if (!strcmp(what, "sender")) {
        munmap(page + PAGE, 2 * PAGE);
        pvm_psend(parent, DATA, page, 3 * PAGE, PVM_BYTE);
        exit(0);
    }
    pvm_initsend(PvmDataRaw);
    pvm_send(parent, GO);
    pvm_precv(parent, DATA, page, 3 * PAGE, PVM_BYTE, 0, 0, 0);
    exit(0);
}

static void faults(char *self)
{
    static char *whats[] = {"unmapped", "readonly", "waits", "sender"};
    for (int at = 0; at < 4; at++) {
        /* With two processes there is one in each. */
        char *args[] = {"faulty", whats[at], 0};
        int children[2];
        check("children are started", pvm_spawn(self, args, 0, "", 2, children), 2);
        for (int one = 0; one < 2; one++) {
            int child = children[one], length = 0, sends = at == 3;
            pvm_notify(PvmTaskExit, sends ? DATA : ENDED, 1, &child);
            if (!sends)
                pvm_recv(child, GO);
            if (at == 2)
                pvm_kill(child);
            if (!sends)
                check("a send to missing memory",
                      pvm_psend(child, DATA, data, 3 * PAGE, PVM_BYTE), PvmOk);
            /* Nothing of a message from missing memory arrives: the notice is the first one. */
            pvm_precv(-1, sends ? DATA : ENDED, data, MOST, PVM_BYTE, 0, 0, &length);
            check("length of the notice", length, 4);
            check("the child of the notice", *(int *)data, child);
        }
    }
}

/* Passes messages on from task to task, each of which checks them. Each task knows how many of each
 * other one must come. */
static unsigned long state;

static unsigned chance(unsigned below)
{
    state = state * 6364136223846793005 + 1442695040888963407;
    return (state >> 33) % below;
}

struct head {
    int from, left;
    unsigned number;
};

/* The length of a task's message with this number to another task. */
static int length_of(int from, int to, unsigned number)
{
    unsigned mixed = (from * 64 + to) * 2654435761u + number * 40503u;
    return sizeof(struct head) + (mixed % 97 == 0 ? mixed % 300000 : mixed % 200);
}

static unsigned sent_to[64], came_from[64];

static void passes_on(int left)
{
    int to = chance(count - 1);
    to += to >= me;
    struct head head = {me, left, sent_to[to]++};
    int length = length_of(me, to, head.number);
    memcpy(data, &head, sizeof head);
    fill(data + sizeof head, head.number, length - sizeof head);
    if (chance(4)) {
        pvm_psend(all[to], DATA, data, length, PVM_BYTE);
    } else {
        pvm_initsend(PvmDataRaw);
        pvm_pkbyte(data, length, 1);
        pvm_send(all[to], DATA);
    }
    memset(data, 3, length);
}

static void traffic(long messages)
{
    long got = 0, ended = 0;
    state = me * 77 + 1;
    /* The last message of a chain is told to all. */
    passes_on(messages);
    while (ended < count) {
        int source, tag, length, from = 0;
        memset(data, 0, 300);
        if (chance(8) == 0)
            pvm_probe(-1, -1);
        pvm_precv(-1, -1, data, MOST, PVM_BYTE, &source, &tag, &length);
        if (tag == ENDED) {
            ended++;
            continue;
        }
        struct head head;
        memcpy(&head, data, sizeof head);
        while (all[from] != source)
            from++;
        check("sender", head.from, from);
        check("number", head.number, came_from[from]++);
        check("length", length, length_of(from, me, head.number));
        check("contents", wrong(data + sizeof head, head.number, length - sizeof head), 0);
        got++;
        if (head.left > 0)
            passes_on(head.left - 1);
        else
            for (int to = 0; to < count; to++)
                pvm_psend(all[to], ENDED, 0, 0, PVM_BYTE);
    }
    printf("%s: task %d has taken %ld messages\n", failed ? "FAILED" : "ok", me, got);
    pvm_exit();
    exit(failed);
}

int main(int argc, char **argv)
{
    data = malloc(MOST + 1);
    pvm_setopt(PvmAutoErr, 0);
    pvm_mytid();
    if (argc > 2 && !strcmp(argv[1], "faulty"))
        faulty(argv[2]);
    count = pvm_siblings(&all);
    processes = atoi(argv[1]);
    while (all[me] != pvm_mytid())
        me++;
    if (argc > 2)
        traffic(atol(argv[2]));
    if (me == 1)
        second();
    if (me == 2)
        third();
    if (me == 0) {
        int words[2] = {END, 0};
        checks();
        faults(argv[0]);
        for (int to = 1; to < 3; to++)
            pvm_psend(all[to], ORDER, words, 2, PVM_INT);
        if (!failed)
            printf("ok: all messages are there\n");
    }
    pvm_exit();
    return failed;
}
