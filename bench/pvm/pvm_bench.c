// pvm_bench: messages, ring, Laplace and start of tasks in PVM. One source for the real PVM and for
// Upcall's. README.md describes how to compile and run it.

#define _GNU_SOURCE
#include <pvm3.h>

#include "modes.h"
#ifdef UPVM
#include "moves.h"
#include "saved.h"
#endif

enum { MOST = 1 << 14, TIDS = 1, DATA = 2, READY = 3, ENDED = 4, WAKEN = 5 };

static int tids[MOST], tasks;

static void give_up(const char *what) {
    int k, own = pvm_mytid();
    fprintf(stderr, "pvm_bench: %s\n", what);
    for (k = 0; k < tasks; k++) if (tids[k] > 0 && tids[k] != own) pvm_kill(tids[k]);
    pvm_exit();
    exit(1);
}

static void sent(int place) {
    if (pvm_send(tids[place], DATA) < 0) give_up("a message could not be sent");
}

static void taken(int place) {
    if (pvm_recv(tids[place], DATA) < 0) give_up("no message could be received");
}

static void put_ints(int place, int *from, int count) {
    pvm_initsend(PvmDataRaw);
    pvm_pkint(from, count, 1);
    sent(place);
}

static void put_floats(int place, float *from, int count) {
    pvm_initsend(PvmDataRaw);
    pvm_pkfloat(from, count, 1);
    sent(place);
}

// PVM keeps what it sends.
static void offer_floats(int place, float *from, int count) { put_floats(place, from, count); }

static void offered(void) {}

static void put_bytes(int place, char *from, int count) {
    pvm_initsend(PvmDataRaw);
    if (count > 0) pvm_pkbyte(from, count, 1);
    sent(place);
}

static void take_ints(int place, int *to, int count) {
    taken(place);
    pvm_upkint(to, count, 1);
}

static void take_floats(int place, float *to, int count) {
    taken(place);
    pvm_upkfloat(to, count, 1);
}

static void take_bytes(int place, char *to, int count) {
    taken(place);
    if (count > 0) pvm_upkbyte(to, count, 1);
}

// Returns this program's name, by which PVM finds it.
static char *own_name(char **argv) {
    char *slash = strrchr(argv[0], '/');
    return slash ? slash + 1 : argv[0];
}

static void spawn(char **argv, int count, int *into) {
    if (pvm_spawn(own_name(argv), argv + 1, PvmTaskDefault, "", count, into) != count)
        give_up("not all tasks started");
}

// Like `spawn`, with each task on another host than the task before it, of which the first one's
// predecessor is this task.
static void spawn_apart(char **argv, int count, int *into) {
    struct pvmhostinfo *hosts;
    int all, own = 0, k;
    if (pvm_config(&all, NULL, &hosts) < 0 || all < 2) give_up("there is no other host");
    while (own < all && hosts[own].hi_tid != pvm_tidtohost(pvm_mytid())) own++;
    for (k = 0; k < count; k++) {
        char *host = hosts[(own + k + 1) % all].hi_name;
        if (pvm_spawn(own_name(argv), argv + 1, PvmTaskHost, host, 1, into + k) != 1)
            give_up("not all tasks started");
    }
}

// Measures the time from pvm_spawn until each of `count` children has sent a message from its main,
// per child. The children stay until all have started, and have ended before the next repetition.
static void start(char **argv, int count) {
    enum { TIMES = 1000 };
    static double samples[TIMES];
    int k, times, ended;
    int64_t begun, first = now_ns();
    tasks = count;
    for (times = 0; times < TIMES && (times < 5 || now_ns() - first < measured_seconds * 1e9);
         times++) {
        begun = now_ns();
        spawn(argv, count, tids);
        for (k = 0; k < count; k++) pvm_recv(-1, READY);
        samples[times] = (double)(now_ns() - begun) / count;
        pvm_notify(PvmTaskExit, ENDED, count, tids);
        pvm_initsend(PvmDataRaw);
        pvm_mcast(tids, count, WAKEN);
        for (k = 0; k < count; k++) {
            pvm_recv(-1, ENDED);
            pvm_upkint(&ended, 1, 1);
        }
    }
    report("start", count, samples, times);
    printf("}\n");
}

// Prints a line when `count` children have sent a message from their main and wait for the next
// one, which they get after the time. The harness measures what they use until then.
static void idle(char **argv, int count) {
    struct timespec rest = {(time_t)measured_seconds,
                            (long)((measured_seconds - (time_t)measured_seconds) * 1e9)};
    int k;
    tasks = count;
    spawn(argv, count, tids);
    for (k = 0; k < count; k++) pvm_recv(-1, READY);
    announce("idle", argv[2]);
    nanosleep(&rest, NULL);
    pvm_initsend(PvmDataRaw);
    pvm_mcast(tids, count, WAKEN);
}

// The modes in which tasks move or are saved, which PVM does not have. Returns 0 for another mode.
static int moved(struct asked asked, int me) {
#ifdef UPVM
    struct movers movers = {tids, DATA, ENDED};
    if (!strcmp(asked.mode, "move")) return move(movers, me, asked.text), 1;
    if (!strcmp(asked.mode, "moving")) return moving(movers, me, asked.text), 1;
    if (is_saved(asked)) return saved(asked, me, tasks), 1;
#else
    (void)asked, (void)me;
#endif
    return 0;
}

// Number of tasks of a mode.
static int tasks_of(struct asked asked) {
    if (!strcmp(asked.mode, "one-way") || !strcmp(asked.mode, "move")) return 2;
    if (!strcmp(asked.mode, "balance") || !strcmp(asked.mode, "processor")) return BALANCED;
    if (!strcmp(asked.mode, "grid")) return 1;
    return !strcmp(asked.mode, "moving") ? 3 : asked.number;
}

static void started(int parent) {
    pvm_initsend(PvmDataRaw);
    pvm_send(parent, READY);
    pvm_recv(parent, WAKEN);
}

int main(int argc, char **argv) {
    struct asked asked = parse(argc, argv);
    int parent, own, me = 0, rests = !strcmp(asked.mode, "idle"),
                     starts = rests || !strcmp(asked.mode, "start");
    own = pvm_mytid();
    if (own < 0) return 1;
    parent = pvm_parent();
    tasks = tasks_of(asked);
    if (tasks > MOST || (starts ? asked.number < 1 : !sensible(asked, tasks))) {
        fprintf(stderr, "usage: pvm_bench one-way BYTES | ring TASKS | laplace TASKS | "
                        "start COUNT | idle COUNT | move SIZE | moving messages |\n"
                        "           checkpoint TASKS | restart TASKS |\n"
                        "           laplace-paper TASKS | grid MS | balance ideal|off|on |\n"
                        "           processor away\n"
                        "           [--seconds S] [--direct] [--apart] [--cpus LIST] "
                        "[--until FILE] [--grid ROWS]\n");
        pvm_exit();
        return 2;
    }
    if (asked.direct) pvm_setopt(PvmRoute, PvmRouteDirect);
    if (starts) {
        if (parent >= 0) started(parent);
        else if (rests) idle(argv, asked.number);
        else start(argv, asked.number);
        pvm_exit();
        return 0;
    }
    if (parent < 0) {
        tids[0] = own;
        if (tasks > 1) {
            (asked.apart ? spawn_apart : spawn)(argv, tasks - 1, tids + 1);
            pvm_initsend(PvmDataRaw);
            pvm_pkint(tids, tasks, 1);
            pvm_mcast(tids + 1, tasks - 1, TIDS);
        }
    } else {
        pvm_recv(parent, TIDS);
        pvm_upkint(tids, tasks, 1);
        while (tids[me] != own) me++;
    }
    if (asked.cpus) confine(asked.cpus, me);
    if (!moved(asked, me)) perform(asked, me, tasks);
    pvm_exit();
    return 0;
}
