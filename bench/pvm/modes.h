// The measurements that pvm_bench.c and mpi_bench.c share. Tasks have places from 0, and the code
// below sends and receives between places by functions that each of the two programs defines:
//
//     put_ints(place, from, count)   put_floats(…)   put_bytes(…)     packed and sent
//     take_ints(place, to, count)    take_floats(…)  take_bytes(…)    received and unpacked
//     offer_floats(…)                offered()        sent until then, without waiting before
//
// Each mode first runs untimed for a while. For messages and rings, a sample is a batch of
// operations that takes at least BATCH_NS, timed by two readings of the clock, and the figures are
// of one operation. A payload is rewritten for each message, and every word is checked on arrival.
// The result is one line of JSON.

#include <sched.h>
#include <stdint.h>
#include <time.h>

#include "../../crates/pvm/tests/programs/block.h"

enum { BATCH_NS = 20000, MOST_SAMPLES = 200000, WARM = 200, SWEEPS = 5000, EVERY = 10 };

static double measured_seconds = 1.0;

static void put_ints(int place, int *from, int count);
static void put_floats(int place, float *from, int count);
static void put_bytes(int place, char *from, int count);
static void offer_floats(int place, float *from, int count);
static void offered(void);
static void take_ints(int place, int *to, int count);
static void take_floats(int place, float *to, int count);
static void take_bytes(int place, char *to, int count);
// Ends all tasks after an error.
static void give_up(const char *what) __attribute__((noreturn));

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

// Samples -----------------------------------------------------------------------------------------

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// Returns the smallest sample that at least this part of the samples do not exceed.
static double part_of(const double *sorted, int count, double part) {
    int rank = (int)(part * count);
    if (rank < part * count) rank++;
    return sorted[rank > 0 ? rank - 1 : 0];
}

static double median(double *samples, int count) {
    qsort(samples, count, sizeof *samples, compare);
    return part_of(samples, count, 0.5);
}

static double mean(const double *samples, int count) {
    double sum = 0;
    int k;
    for (k = 0; k < count; k++) sum += samples[k];
    return sum / count;
}

// Prints the line of a case with this mean, without the line's end.
static void report_as(const char *mode, const char *number, double *samples, int count,
                      double mean_ns) {
    qsort(samples, count, sizeof *samples, compare);
    printf("{\"case\":\"%s-%s\",\"p50_ns\":%.1f,\"p99_ns\":%.1f,\"p999_ns\":%.1f,"
           "\"mean_ns\":%.1f,\"count\":%d",
           mode, number, part_of(samples, count, 0.5), part_of(samples, count, 0.99),
           part_of(samples, count, 0.999), mean_ns, count);
}

// Prints the line without its end.
static void report(const char *mode, int number, double *samples, int count) {
    char text[16];
    snprintf(text, sizeof text, "%d", number);
    report_as(mode, text, samples, count, mean(samples, count));
}

// Prints the line of a case without figures, which the harness takes itself.
static void announce(const char *mode, const char *number) {
    printf("{\"case\":\"%s-%s\"}\n", mode, number);
    fflush(stdout);
}

// Computes the size of a batch and the number of batches, from the time of one operation.
static void plan(double each_ns, int *batch, int *samples) {
    double wanted;
    *batch = each_ns > 0 && each_ns < BATCH_NS ? (int)(BATCH_NS / each_ns) + 1 : 1;
    wanted = measured_seconds * 1e9 / (each_ns * *batch);
    *samples = wanted < 20 ? 20 : wanted > MOST_SAMPLES ? MOST_SAMPLES : (int)wanted;
}

// Payloads ----------------------------------------------------------------------------------------

// The words of a message's payload count up from a number of its own. Some bytes may follow the
// last word.
static void fill(char *payload, int bytes, uint64_t own) {
    uint64_t *words = (uint64_t *)payload;
    int k;
    own *= 0x9E3779B97F4A7C15;
    for (k = 0; k < bytes / 8; k++) words[k] = own + k;
    for (k = bytes / 8 * 8; k < bytes; k++) payload[k] = (char)(own + k);
}

static int filled(const char *payload, int bytes, uint64_t own) {
    const uint64_t *words = (const uint64_t *)payload;
    uint64_t wrong = 0;
    int k;
    own *= 0x9E3779B97F4A7C15;
    for (k = 0; k < bytes / 8; k++) wrong |= words[k] ^ (own + k);
    for (k = bytes / 8 * 8; k < bytes; k++) wrong |= payload[k] != (char)(own + k);
    return wrong == 0;
}

// One-way -----------------------------------------------------------------------------------------

static char *buffer(int bytes) {
    void *at;
    if (posix_memalign(&at, 64, bytes + 64)) give_up("no memory");
    memset(at, 0, bytes + 64);
    return at;
}

// Writing and checking the payload takes most of the time of a long message. Bare messages do
// neither: their payload is the previous content of the buffer.
enum { FULL, BARE };

static void pong(int rounds, char *payload, int bytes, uint64_t *own, int bare) {
    while (rounds-- > 0) {
        take_bytes(0, payload, bytes);
        if (!bare && !filled(payload, bytes, ++*own)) give_up("a payload is not what was sent");
        if (!bare) fill(payload, bytes, ~*own);
        put_bytes(0, payload, bytes);
    }
}

static void ping(int rounds, char *payload, int bytes, uint64_t *own, int bare) {
    while (rounds-- > 0) {
        if (!bare) fill(payload, bytes, ++*own);
        put_bytes(1, payload, bytes);
        take_bytes(1, payload, bytes);
        if (!bare && !filled(payload, bytes, ~*own)) give_up("a payload is not what was sent");
    }
}

// Returns the time of a plain copy of as many bytes, for comparison.
static double copy_ns(int bytes) {
    enum { TIMES = 301 };
    static double copied[TIMES];
    char *one = buffer(bytes), *other = buffer(bytes);
    int k, repeat, repeats = bytes < 4096 ? 100 : 1;
    for (k = 0; k < TIMES; k++) {
        int64_t begun = now_ns();
        for (repeat = 0; repeat < repeats; repeat++) {
            memcpy(other, one, bytes);
            __asm__ volatile("" : : "r"(other) : "memory");
        }
        copied[k] = (double)(now_ns() - begun) / repeats;
    }
    free(one);
    free(other);
    return median(copied, TIMES);
}

// Sends `count` batches of messages there and back. A sample is the nanoseconds of a message one
// way.
static void measure(double *samples, int count, int batch, char *payload, int bytes, uint64_t *own,
                    int bare) {
    int k;
    for (k = 0; k < count; k++) {
        int64_t begun = now_ns();
        ping(batch, payload, bytes, own, bare);
        samples[k] = (double)(now_ns() - begun) / batch / 2;
    }
}

// Measures half a round trip between places 0 and 1.
static void one_way(int me, int bytes) {
    char *payload = buffer(bytes);
    int bare, rounds, batch, count;
    uint64_t own = 0;
    double *samples[2];
    int64_t begun;
    if (me == 1) {
        pong(2 * WARM, payload, bytes, &own, FULL);
        take_ints(0, &rounds, 1);
        pong(rounds, payload, bytes, &own, FULL);
        pong(rounds, payload, bytes, &own, BARE);
    } else if (me == 0) {
        ping(WARM, payload, bytes, &own, FULL);
        begun = now_ns();
        ping(WARM, payload, bytes, &own, FULL);
        // Full and bare messages get half of the time each.
        plan((double)(now_ns() - begun) / WARM * 2, &batch, &count);
        rounds = batch * count;
        put_ints(1, &rounds, 1);
        for (bare = FULL; bare <= BARE; bare++) {
            samples[bare] = room(sizeof *samples[bare] * count);
            measure(samples[bare], count, batch, payload, bytes, &own, bare);
        }
        report("one-way", bytes, samples[FULL], count);
        printf(",\"batch\":%d,\"bare_ns\":%.1f,\"memcpy_ns\":%.1f}\n", batch,
               median(samples[BARE], count), copy_ns(bytes));
        for (bare = FULL; bare <= BARE; bare++) free(samples[bare]);
    }
    free(payload);
}

// Ring --------------------------------------------------------------------------------------------

static void turn(int me, int tasks, int rounds) {
    int token, next = (me + 1) % tasks, last = (me + tasks - 1) % tasks;
    while (rounds-- > 0) {
        if (me == 0) {
            token = rounds;
            put_ints(next, &token, 1);
            take_ints(last, &token, 1);
            if (token != rounds + tasks - 1) give_up("not all of the ring had the message");
        } else {
            take_ints(last, &token, 1);
            token++;
            put_ints(next, &token, 1);
        }
    }
}

// Measures a hop of a message of one int that all tasks pass on.
static void ring(int me, int tasks) {
    int k, rounds, batch, count, warm = tasks < WARM ? WARM / tasks + 2 : 2;
    double *samples;
    int64_t begun = 0;
    for (k = 0; k < warm; k++) {
        // In the first round, tasks may still be starting.
        if (k == 1) begun = now_ns();
        turn(me, tasks, 1);
    }
    if (me > 0) {
        take_ints(me - 1, &rounds, 1);
        if (me + 1 < tasks) put_ints(me + 1, &rounds, 1);
        turn(me, tasks, rounds);
        return;
    }
    plan((double)(now_ns() - begun) / (warm - 1), &batch, &count);
    rounds = batch * count;
    samples = room(sizeof *samples * count);
    put_ints(1, &rounds, 1);
    for (k = 0; k < count; k++) {
        begun = now_ns();
        turn(me, tasks, batch);
        samples[k] = (double)(now_ns() - begun) / batch / tasks;
    }
    report("ring", tasks, samples, count);
    printf(",\"batch\":%d}\n", batch);
    free(samples);
}

// Laplace -----------------------------------------------------------------------------------------

static void exchange(struct block *block, int me, int tasks) {
    if (me > 0) offer_floats(me - 1, block->now[1], N);
    if (me + 1 < tasks) offer_floats(me + 1, block->now[block->columns], N);
    if (me > 0) take_floats(me - 1, block->now[0], N);
    if (me + 1 < tasks) take_floats(me + 1, block->now[block->columns + 1], N);
    offered();
}

static void solve(struct block *block, int me, int tasks) {
    int k;
    for (k = 1; k <= SWEEPS; k++) {
        sweep(block);
        if (k % EVERY == 0) exchange(block, me, tasks);
    }
}

// Runs the first task once all tasks are ready. Returns the nanoseconds until it has the whole
// grid.
static double run(int tasks, Column *grid) {
    struct block block;
    int k, go = 1;
    int64_t begun;
    make_block(&block, 0, tasks);
    for (k = 1; k < tasks; k++) take_ints(k, &go, 1);
    for (k = 1; k < tasks; k++) put_ints(k, &go, 1);
    begun = now_ns();
    solve(&block, 0, tasks);
    memcpy(grid[block.first], block.now[1], sizeof(Column) * block.columns);
    for (k = 1; k < tasks; k++) {
        int first = N * k / tasks, columns = N * (k + 1) / tasks - first;
        take_floats(k, grid[first], N * columns);
    }
    drop_block(&block);
    return (double)(now_ns() - begun);
}

// Runs the other tasks, until the first task's command is 0.
static void runs(int me, int tasks) {
    struct block block;
    int go = 1;
    for (;;) {
        make_block(&block, me, tasks);
        put_ints(0, &go, 1);
        take_ints(0, &go, 1);
        if (go) {
            solve(&block, me, tasks);
            put_floats(0, block.now[1], N * block.columns);
        }
        drop_block(&block);
        if (!go) return;
    }
}

// Measures the paper's grid: the time of one sweep of all tasks, and Mflops by its median.
static void laplace(int me, int tasks) {
    enum { RUNS = 1000 };
    static double samples[RUNS];
    double alones[3];
    Column *grid, *check = NULL;
    int k, done, none = 0;
    int64_t begun;
    if (me > 0) {
        runs(me, tasks);
        return;
    }
    grid = room(sizeof(Column) * N);
    for (k = 0; k < 3; k++) {
        free(check);
        begun = now_ns();
        check = alone(tasks, SWEEPS, EVERY);
        alones[k] = (double)(now_ns() - begun) / SWEEPS;
    }
    run(tasks, grid);
    begun = now_ns();
    for (done = 0; done < RUNS && (done < 5 || now_ns() - begun < measured_seconds * 1e9); done++) {
        samples[done] = run(tasks, grid) / SWEEPS;
        if (memcmp(grid, check, sizeof(Column) * N))
            give_up("the grid is not as one task computes it");
    }
    for (k = 1; k < tasks; k++) {
        take_ints(k, &(int){0}, 1);
        put_ints(k, &none, 1);
    }
    report("laplace", tasks, samples, done);
    printf(",\"mflops\":%.1f,\"alone_ns\":%.1f}\n",
           FLOPS * (N - 2) * (N - 2) / part_of(samples, done, 0.5) * 1e3, median(alones, 3));
    free(grid);
    free(check);
}

#include "grids.h"

// Arguments ---------------------------------------------------------------------------------------

// Confines the task at this place to a processor of a list like 0,1. Places use the list in order,
// and start again at its end.
static void confine(const char *list, int place) {
    int cpus[64], count = 0;
    cpu_set_t set;
    char *end;
    for (; *list && count < 64; list = *end == ',' ? end + 1 : end) {
        cpus[count++] = (int)strtol(list, &end, 10);
        if (end == list) give_up("--cpus takes numbers, as in 0,1");
    }
    CPU_ZERO(&set);
    CPU_SET(cpus[place % count], &set);
    if (sched_setaffinity(0, sizeof set, &set)) give_up("no such processor");
}

// The number of KiB of a size such as 100k, 64m or 1g.
static long kib_of(const char *size) {
    char *unit;
    long number = strtol(size, &unit, 10);
    return *unit == 'g' ? number << 20 : *unit == 'm' ? number << 10 : number;
}

// The part of the command line that both programs share.
struct asked {
    const char *mode, *text, *cpus, *file;
    int number, direct, apart, grid;
};

static struct asked parse(int argc, char **argv) {
    struct asked asked = {argc > 1 ? argv[1] : "", argc > 2 ? argv[2] : "", NULL, NULL,
                          argc > 2 ? atoi(argv[2]) : -1, 0, 0, 0};
    int k;
    for (k = 3; k < argc; k++) {
        if (!strcmp(argv[k], "--seconds") && k + 1 < argc) measured_seconds = atof(argv[++k]);
        else if (!strcmp(argv[k], "--cpus") && k + 1 < argc) asked.cpus = argv[++k];
        else if (!strcmp(argv[k], "--until") && k + 1 < argc) asked.file = argv[++k];
        else if (!strcmp(argv[k], "--grid") && k + 1 < argc) asked.grid = atoi(argv[++k]);
        else if (!strcmp(argv[k], "--direct")) asked.direct = 1;
        else if (!strcmp(argv[k], "--apart")) asked.apart = 1;
        // AMPI leaves some of its own options.
        else if (argv[k][0] != '+') asked.mode = "";
    }
    return asked;
}

// Returns true if the tasks are to be saved by the harness.
static int is_saved(struct asked asked) {
    return !strcmp(asked.mode, "checkpoint") || !strcmp(asked.mode, "restart");
}

// Returns true if the mode exists and its number is valid.
static int sensible(struct asked asked, int tasks) {
    if (!strcmp(asked.mode, "one-way")) return asked.number >= 0 && tasks == 2;
    if (!strcmp(asked.mode, "move")) return asked.number > 0 && kib_of(asked.text) > 0;
    if (!strcmp(asked.mode, "moving")) return !strcmp(asked.text, "messages");
    if (is_saved(asked)) return tasks > 0 && asked.file;
    if (!strcmp(asked.mode, "ring")) return tasks > 1;
    if (!strcmp(asked.mode, "grid")) return asked.number > 0 && tasks == 1;
    if (!strcmp(asked.mode, "laplace-paper")) {
        return tasks > 0 && asked.grid > 2 && asked.grid >= tasks && asked.grid <= LARGEST;
    }
    if (!strcmp(asked.mode, "balance")) {
        return tasks == BALANCED && (!strcmp(asked.text, "ideal") || !strcmp(asked.text, "off") ||
                                     !strcmp(asked.text, "on"));
    }
    if (!strcmp(asked.mode, "processor")) {
        return tasks == BALANCED && !strcmp(asked.text, "away") && asked.file;
    }
    if (!strcmp(asked.mode, "laplace")) return tasks > 0 && tasks <= N;
    return 0;
}

static void perform(struct asked asked, int me, int tasks) {
    if (!strcmp(asked.mode, "one-way")) one_way(me, asked.number);
    else if (!strcmp(asked.mode, "ring")) ring(me, tasks);
    else if (!strcmp(asked.mode, "laplace")) laplace(me, tasks);
    else if (!strcmp(asked.mode, "grid")) find_grid(asked.number);
    else if (!strcmp(asked.mode, "laplace-paper")) laplace_paper(me, tasks, asked.grid);
    else if (!strcmp(asked.mode, "balance")) balance(me, asked.text);
    else if (!strcmp(asked.mode, "processor")) processor_away(me, asked.file);
    else give_up("this system has no such mode");
}
