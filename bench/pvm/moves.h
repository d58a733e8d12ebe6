// Tasks that move between two processes of a machine (upvm.h). The first task lets the second one
// move. All figures are taken by the tasks themselves.

#include <unistd.h>
#include <upvm.h>

// The tasks by place, and tags.
struct movers {
    const int *tids;
    int data, ended;
};

// The real time, which hosts share that are namespaces of one machine. Clocks of a task that count
// from the kernel's start stand still while it moves between hosts.
static int64_t real_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

// A task with this memory, which polls for messages, and writes to 16 of its pages in turn. It
// notes the time between the last poll in one process and the first in the next, and checks the
// rest of its memory at the end.
static void pauses(struct movers movers, long kib) {
    enum { MOST_PAUSES = 10000, WINDOW = 64 << 10 };
    static double found[MOST_PAUSES];
    long size = kib << 10, window = size < WINDOW ? size : WINDOW, at = 0;
    char *data = room(size);
    int count = 0, process = upvm_process(), here;
    int64_t last, now;
    memset(data, 1, window);
    fill(data + window, size - window, 1);
    pvm_initsend(PvmDataRaw);
    pvm_send(movers.tids[0], movers.data);
    for (last = real_ns(); pvm_nrecv(movers.tids[0], movers.ended) == 0; last = now) {
        data[at = (at + 4096 + 64) % window]++;
        here = upvm_process();
        now = real_ns();
        if (here != process && count < MOST_PAUSES) found[count++] = now - last;
        process = here;
    }
    if (!filled(data + window, size - window, 1)) give_up("memory is not what it was");
    pvm_initsend(PvmDataRaw);
    pvm_pkint(&count, 1, 1);
    pvm_pkdouble(found, count, 1);
    pvm_send(movers.tids[0], movers.data);
    free(data);
}

static void migrate(int tid, int process) {
    if (upvm_migrate(tid, process)) give_up("a task was not moved");
}

// Measures the pause of a task of this size that moves to and fro, and as the mean the time from
// the request until it is answered.
static void move(struct movers movers, int me, const char *size) {
    enum { MOST_MOVES = 10000, LEAST = 6 };
    static double totals[MOST_MOVES], found[MOST_MOVES];
    int moves, count;
    int64_t first, begun;
    if (me > 0) {
        pauses(movers, kib_of(size));
        return;
    }
    pvm_recv(movers.tids[1], movers.data);
    migrate(movers.tids[1], 1);
    migrate(movers.tids[1], 0);
    first = now_ns();
    for (moves = 0; moves < MOST_MOVES - 2 &&
                    (moves < LEAST || now_ns() - first < measured_seconds * 1e9);
         moves++) {
        begun = now_ns();
        migrate(movers.tids[1], 1 - moves % 2);
        totals[moves] = now_ns() - begun;
    }
    pvm_initsend(PvmDataRaw);
    pvm_send(movers.tids[1], movers.ended);
    pvm_recv(movers.tids[1], movers.data);
    pvm_upkint(&count, 1, 1);
    pvm_upkdouble(found, count, 1);
    // The first moves find memory that is new to the processes.
    if (count < moves) give_up("the task has not noticed all moves");
    report_as("move", size, found + (count - moves), moves, mean(totals, moves));
    printf("}\n");
}

enum { BATCH = 32 };

// Takes messages of 1,000 bytes, checks that each is the next one, and answers each batch.
static void take(struct movers movers) {
    static char payload[1000];
    uint64_t taken = 0;
    while (pvm_nrecv(movers.tids[0], movers.ended) == 0) {
        if (pvm_trecv(movers.tids[2], movers.data, &(struct timeval){0, 1000}) <= 0) continue;
        pvm_upkbyte(payload, sizeof payload, 1);
        if (!filled(payload, sizeof payload, taken)) give_up("a payload is not what was sent");
        if (++taken % BATCH == 0) {
            pvm_initsend(PvmDataRaw);
            pvm_send(movers.tids[2], movers.data);
        }
    }
}

// Sends batches of messages for as long as the first task says, and reports the time of each.
static void give(struct movers movers) {
    static char payload[1000];
    uint64_t own = 0;
    int milliseconds, k;
    long sent;
    int64_t begun;
    double each;
    for (;;) {
        pvm_recv(movers.tids[0], movers.data);
        pvm_upkint(&milliseconds, 1, 1);
        if (milliseconds == 0) return;
        begun = now_ns();
        for (sent = 0; now_ns() - begun < milliseconds * INT64_C(1000000); sent += BATCH) {
            for (k = 0; k < BATCH; k++) {
                fill(payload, sizeof payload, own++);
                pvm_initsend(PvmDataRaw);
                pvm_pkbyte(payload, sizeof payload, 1);
                pvm_send(movers.tids[1], movers.data);
            }
            pvm_recv(movers.tids[1], movers.data);
        }
        each = (double)(now_ns() - begun) / sent;
        pvm_initsend(PvmDataRaw);
        pvm_pkdouble(&each, 1, 1);
        pvm_send(movers.tids[0], movers.data);
    }
}

static void let_give(struct movers movers, int milliseconds) {
    pvm_initsend(PvmDataRaw);
    pvm_pkint(&milliseconds, 1, 1);
    pvm_send(movers.tids[2], movers.data);
}

static double given(struct movers movers) {
    double each;
    pvm_recv(movers.tids[2], movers.data);
    pvm_upkdouble(&each, 1, 1);
    return each;
}

// Measures a message to a task that moves each 10 ms. `alone_ns` is a message to a task that stays,
// for as long in the sender's process as in the other.
static void moving(struct movers movers, int me, const char *text) {
    enum { MOST_PHASES = 1000, PHASE = 100, EVERY_MS = 10 };
    static double moves[MOST_PHASES], stays[MOST_PHASES];
    int phases, k;
    double here;
    int64_t first;
    if (me > 0) {
        if (me == 1) take(movers);
        else give(movers);
        return;
    }
    migrate(movers.tids[2], 0);
    first = now_ns();
    for (phases = 0; phases < MOST_PHASES &&
                     (phases < 3 || now_ns() - first < measured_seconds * 1e9);
         phases++) {
        migrate(movers.tids[1], 0);
        let_give(movers, PHASE);
        here = given(movers);
        migrate(movers.tids[1], 1);
        let_give(movers, PHASE);
        stays[phases] = 2 / (1 / here + 1 / given(movers));
        let_give(movers, PHASE);
        for (k = 0; k < PHASE / EVERY_MS; k++) {
            migrate(movers.tids[1], k % 2);
            usleep(EVERY_MS * 1000);
        }
        moves[phases] = given(movers);
    }
    let_give(movers, 0);
    pvm_initsend(PvmDataRaw);
    pvm_send(movers.tids[1], movers.ended);
    report_as("moving", text, moves, phases, mean(moves, phases));
    printf(",\"alone_ns\":%.1f}\n", median(stays, phases));
}
