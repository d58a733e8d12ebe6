/* A program whose tasks move while hosts come and go.
 *
 * Usage: gathers. The first task starts children that send it numbers, moves them about, adds the
 * host `b`, moves children there, starts one there that sends to all of them, and removes the host
 * when the children have left it. It checks that each child's numbers come in order, without one
 * missing. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <pvm3.h>
#include <upvm.h>

enum { CHILDREN = 6, NUMBER = 1, WORD, STOP, STOPPED, ROUNDS = 4 };

static int failed;

#define MUST(condition)                                                  \
    do {                                                                 \
        if (!(condition)) {                                              \
            printf("FAILED: line %d: %s\n", __LINE__, #condition);       \
            fflush(stdout);                                              \
            failed = 1;                                                  \
        }                                                                \
    } while (0)

static void send_int(int to, int tag, int value)
{
    pvm_initsend(PvmDataRaw);
    pvm_pkint(&value, 1, 1);
    pvm_send(to, tag);
}

/* Sends numbers to the parent, and passes on the words that it gets, until it is told to stop. */
static int child(int parent)
{
    for (int number = 0;; number++) {
        int value = 0;
        send_int(parent, NUMBER, number);
        while (pvm_nrecv(-1, WORD) > 0)
            if (pvm_upkint(&value, 1, 1) == 0)
                send_int(parent, WORD, value);
        if (pvm_nrecv(parent, STOP) > 0)
            break;
        if (number % 64 == 0)
            pvm_recv(parent, NUMBER);
    }
    send_int(parent, STOPPED, 0);
    pvm_exit();
    return 0;
}

static int all[CHILDREN], next[CHILDREN], words[CHILDREN], stopped;

static void take(void)
{
    int bytes, tag, from, value = -1, at;
    pvm_bufinfo(pvm_recv(-1, -1), &bytes, &tag, &from);
    MUST(pvm_upkint(&value, 1, 1) == 0);
    for (at = 0; at < CHILDREN && all[at] != from; at++)
        ;
    if (at == CHILDREN) {
        MUST(!"a message of an unknown task");
        return;
    }
    if (tag == NUMBER) {
        MUST(value == next[at]++);
        if (value % 64 == 0)
            send_int(from, NUMBER, 0);
    } else if (tag == WORD) {
        MUST(value == words[at]++);
    } else {
        stopped++;
    }
}

/* Moves each child to the next process, which may be refused while a host joins. */
static void moves(int first, int count)
{
    static int turn;
    turn++;
    for (int at = 0; at < CHILDREN; at++) {
        int error, tries = 0;
        do {
            error = upvm_migrate(all[at], first + (turn + at) % count);
            for (int taken = 0; taken < 50; taken++)
                take();
        } while (error == PvmOutOfRes && tries++ < 1000);
        MUST(error == 0);
    }
}

static int caller(int argc, char **argv)
{
    for (int number = 0; number < 50; number++)
        for (int at = 1; at < argc; at++)
            send_int(strtol(argv[at], 0, 16), WORD, number);
    pvm_exit();
    return 0;
}

int main(int argc, char **argv)
{
    int parent = (pvm_setopt(PvmAutoErr, 0), pvm_parent());
    if (parent > 0)
        return argc > 1 ? caller(argc, argv) : child(parent);
    char *host = "b", *args[CHILDREN + 1] = {0}, texts[CHILDREN][16];
    int errors[1], callers[1];
    MUST(pvm_spawn(argv[0], 0, PvmTaskDefault, 0, CHILDREN, all) == CHILDREN);
    for (int round = 0; round < ROUNDS; round++)
        moves(0, 2);
    MUST(pvm_addhosts(&host, 1, errors) == 1);
    /* The new process has learned where the tasks are that have moved. */
    for (int at = 0; at < CHILDREN; at++) {
        snprintf(texts[at], sizeof texts[at], "%x", all[at]);
        args[at] = texts[at];
    }
    MUST(pvm_spawn(argv[0], args, PvmTaskHost, host, 1, callers) == 1);
    for (int round = 0; round < ROUNDS; round++)
        moves(0, 3);
    moves(0, 2);
    MUST(pvm_delhosts(&host, 1, errors) == 1);
    moves(0, 2);
    for (int at = 0; at < CHILDREN; at++)
        while (words[at] < 50)
            take();
    for (int at = 0; at < CHILDREN; at++)
        send_int(all[at], STOP, 0);
    while (stopped < CHILDREN)
        take();
    printf("%s: gathers\n", failed ? "FAILED" : "ok");
    pvm_exit();
    return 0;
}
