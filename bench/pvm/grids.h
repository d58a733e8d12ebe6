// Laplace's equation as in modes.h, on a square grid whose size is known at run time, and with
// blocks that cost more than others. A run sweeps the grid from its first state, and each run is
// checked: the sum of the grid is that of one task.

#include <sys/mman.h>
#include <unistd.h>

enum {
    HEAVY = 4,
    LEAST_RUNS = 3,
    MOST_RUNS = 20000,
    // The largest grid's number of rows and columns.
    LARGEST = 8192,
    // Tasks, rows and exchanges of the runs that are balanced.
    BALANCED = 16,
    BALANCED_ROWS = 1024,
    BALANCED_ROUNDS = 10
};

// What is computed: `rounds` times EVERY sweeps and an exchange. Blocks below `heavy` are swept
// HEAVY times from the same state, which costs more and changes nothing. With `fresh`, each run has
// other pages, so that their places in the caches are not those of one turn.
struct equation {
    int rows, blocks, rounds, heavy, fresh;
};

// A block of columns with a copy of the adjacent ones, and the block's next state.
struct piece {
    int rows, first, columns, times;
    float *now, *next;
};

static float *column(struct piece *piece, float *of, int k) {
    return of + (size_t)k * piece->rows;
}

// Sets the first state, and touches all of the memory.
static void reset(struct piece *piece) {
    size_t k, count = (size_t)piece->rows * (piece->columns + 2);
    for (k = 0; k < count; k++) {
        piece->now[k] = piece->next[k] = k % piece->rows == 0 ? 100.0f : 0.0f;
    }
}

static size_t bytes_of(const struct piece *piece) {
    return sizeof(float) * piece->rows * (piece->columns + 2);
}

// Maps memory that nothing had before, and that is given back when it is dropped.
static float *pages(size_t bytes) {
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) give_up("no memory");
    return at;
}

static struct piece make_piece(struct equation of, int index) {
    struct piece piece = {.rows = of.rows, .first = of.rows * index / of.blocks};
    piece.columns = of.rows * (index + 1) / of.blocks - piece.first;
    piece.times = index < of.heavy ? HEAVY : 1;
    piece.now = pages(bytes_of(&piece));
    piece.next = pages(bytes_of(&piece));
    reset(&piece);
    return piece;
}

static void drop_piece(struct piece *piece) {
    munmap(piece->now, bytes_of(piece));
    munmap(piece->next, bytes_of(piece));
}

// Prepares a block for the next run.
static void renew(struct equation of, struct piece *piece, int index) {
    if (of.fresh) {
        drop_piece(piece);
        *piece = make_piece(of, index);
    } else {
        reset(piece);
    }
}

// Computes the next state of the columns.
static void sweep_columns(struct piece *piece) {
    int c, r, last = piece->rows - 1;
    for (c = 1; c <= piece->columns; c++) {
        const float *left = column(piece, piece->now, c - 1), *own = left + piece->rows,
                    *right = own + piece->rows;
        float *to = column(piece, piece->next, c);
        int at = piece->first + c - 1;
        // The border of the whole grid does not change.
        if (at == 0 || at == last) continue;
        for (r = 1; r < last; r++) to[r] = 0.25f * (left[r] + right[r] + own[r - 1] + own[r + 1]);
    }
}

static void copy_column(struct piece *piece, float *to, int at, const float *from) {
    memcpy(column(piece, to, at), from, sizeof(float) * piece->rows);
}

static void sweep_piece(struct piece *piece) {
    float *swapped = piece->now;
    int k, after = piece->columns + 1;
    for (k = 0; k < piece->times; k++) sweep_columns(piece);
    copy_column(piece, piece->next, 0, piece->now);
    copy_column(piece, piece->next, after, column(piece, piece->now, after));
    piece->now = piece->next;
    piece->next = swapped;
}

// A sum of the bits of all points and their places in the whole grid.
static uint64_t sum_of(struct piece *piece) {
    size_t k, count = (size_t)piece->rows * piece->columns;
    uint64_t sum = 0, place = 2 * (uint64_t)piece->first * piece->rows + 1;
    const float *at = column(piece, piece->now, 1);
    for (k = 0; k < count; k++) {
        uint32_t bits;
        memcpy(&bits, &at[k], sizeof bits);
        sum += bits * (place + 2 * k);
    }
    return sum;
}

// Runs all blocks by the caller alone, in the order of tasks that take turns. Adds to `ns` the time
// of that, and returns the sum.
static uint64_t run_alone(struct equation of, double *ns) {
    struct piece *all = room(sizeof *all * of.blocks);
    uint64_t sum = 0;
    int k, s, round;
    int64_t begun;
    for (k = 0; k < of.blocks; k++) all[k] = make_piece(of, k);
    begun = now_ns();
    for (round = 0; round < of.rounds; round++) {
        for (k = 0; k < of.blocks; k++) {
            for (s = 0; s < EVERY; s++) sweep_piece(&all[k]);
        }
        for (k = 0; k + 1 < of.blocks; k++) {
            struct piece *one = &all[k], *next = one + 1;
            copy_column(one, one->now, one->columns + 1, column(next, next->now, 1));
            copy_column(next, next->now, 0, column(one, one->now, one->columns));
        }
    }
    *ns = now_ns() - begun;
    for (k = 0; k < of.blocks; k++) {
        sum += sum_of(&all[k]);
        drop_piece(&all[k]);
    }
    free(all);
    return sum;
}

static void solve_piece(struct equation of, struct piece *piece, int me) {
    int round, s, last = piece->columns;
    for (round = 0; round < of.rounds; round++) {
        for (s = 0; s < EVERY; s++) sweep_piece(piece);
        if (me > 0) offer_floats(me - 1, column(piece, piece->now, 1), of.rows);
        if (me + 1 < of.blocks) offer_floats(me + 1, column(piece, piece->now, last), of.rows);
        if (me > 0) take_floats(me - 1, column(piece, piece->now, 0), of.rows);
        if (me + 1 < of.blocks) {
            take_floats(me + 1, column(piece, piece->now, last + 1), of.rows);
        }
        offered();
    }
}

static void put_all(int tasks, int number) {
    int k;
    for (k = 1; k < tasks; k++) put_ints(k, &number, 1);
}

static void take_all(int tasks) {
    int k, number;
    for (k = 1; k < tasks; k++) take_ints(k, &number, 1);
}

// Runs the first task, once all others are ready. Returns the nanoseconds until all have solved
// their part. Ends all tasks if the sum of the grid is another one.
static double run_pieces(struct equation of, struct piece *piece, uint64_t expected) {
    uint64_t sum, part;
    double ns;
    int k;
    int64_t begun;
    renew(of, piece, 0);
    take_all(of.blocks);
    put_all(of.blocks, 1);
    begun = now_ns();
    solve_piece(of, piece, 0);
    take_all(of.blocks);
    ns = now_ns() - begun;
    put_all(of.blocks, 1);
    sum = sum_of(piece);
    for (k = 1; k < of.blocks; k++) {
        take_ints(k, (int *)&part, 2);
        sum += part;
    }
    if (sum != expected) give_up("the grid is not as one task computes it");
    return ns;
}

// Runs the other tasks until the first one lets them end.
static void run_others(struct equation of, int me) {
    struct piece piece = make_piece(of, me);
    uint64_t sum;
    int go = 1;
    for (;;) {
        renew(of, &piece, me);
        put_ints(0, &go, 1);
        take_ints(0, &go, 1);
        if (!go) break;
        solve_piece(of, &piece, me);
        put_ints(0, &go, 1);
        take_ints(0, &go, 1);
        sum = sum_of(&piece);
        put_ints(0, (int *)&sum, 2);
    }
    drop_piece(&piece);
}

// Ends the other tasks.
static void end_others(int tasks) {
    take_all(tasks);
    put_all(tasks, 0);
}

// Finds the size of a grid of which a sweep by one task takes this number of milliseconds.
static void find_grid(int milliseconds) {
    enum { STEP = 32, TRIES = 16, SWEPT = 5 };
    double wanted = 1e6 * milliseconds, took[SWEPT], ratio;
    int tries, k, next, rows = 512;
    for (tries = 0; tries < TRIES; tries++) {
        struct piece piece = make_piece((struct equation){rows, 1, 1, 0, 0}, 0);
        for (k = 0; k < SWEPT; k++) {
            int64_t begun = now_ns();
            sweep_piece(&piece);
            took[k] = now_ns() - begun;
        }
        drop_piece(&piece);
        ratio = wanted / median(took, SWEPT);
        if (ratio > 0.97 && ratio < 1.03) break;
        // One of Newton's steps towards the root of the ratio, but at most twice as large a grid.
        next = (int)(rows * (1 + (ratio < 3 ? ratio : 3)) / 2) / STEP * STEP;
        rows = next < STEP ? STEP : next > LARGEST ? LARGEST : next;
    }
    printf("{\"case\":\"grid-%d\",\"alone_ns\":%.1f,\"grid\":%d}\n", milliseconds,
           median(took, SWEPT), rows);
}

// Measures a sweep of the grid by all tasks, and by one task in as many blocks.
static void laplace_paper(int me, int tasks, int rows) {
    enum { RUNS = 100, ROUNDS = 2 };
    static double samples[RUNS], alones[RUNS];
    struct equation of = {rows, tasks, ROUNDS, 0, 1};
    struct piece piece;
    uint64_t sum;
    double spent = 0;
    int done;
    if (me > 0) {
        run_others(of, me);
        return;
    }
    piece = make_piece(of, 0);
    sum = run_alone(of, &alones[0]);
    run_pieces(of, &piece, sum);
    for (done = 0; done < RUNS && (done < LEAST_RUNS || spent < measured_seconds * 1e9); done++) {
        samples[done] = run_pieces(of, &piece, sum);
        spent += samples[done];
        samples[done] /= ROUNDS * EVERY;
        if (run_alone(of, &alones[done]) != sum) give_up("a second run computes something else");
        alones[done] /= ROUNDS * EVERY;
    }
    end_others(tasks);
    report("laplace-paper", tasks, samples, done);
    printf(",\"alone_ns\":%.1f,\"grid\":%d,\"sum\":\"%016llx\"}\n", median(alones, done), rows,
           (unsigned long long)sum);
    drop_piece(&piece);
}

// Measures a sweep of a grid of which half of the tasks have blocks that cost HEAVY times as much.
// The times are of the second half of the runs, and the mean is of all of them.
static void balance(int me, const char *how) {
    double *samples;
    struct equation of = {BALANCED_ROWS, BALANCED, BALANCED_ROUNDS, BALANCED / 2, 0};
    struct piece piece;
    uint64_t sum;
    double alone_ns;
    int k, done;
    int64_t first;
    if (me > 0) {
        run_others(of, me);
        return;
    }
    samples = room(sizeof *samples * MOST_RUNS);
    piece = make_piece(of, 0);
    sum = run_alone(of, &alone_ns);
    first = now_ns();
    for (done = 0; done < MOST_RUNS && (done < 2 * LEAST_RUNS ||
                                        now_ns() - first < measured_seconds * 1e9);
         done++) {
        samples[done] = run_pieces(of, &piece, sum) / (BALANCED_ROUNDS * EVERY);
    }
    end_others(BALANCED);
    k = done / 2;
    report_as("balance", how, samples + k, done - k, mean(samples, done));
    printf(",\"alone_ns\":%.1f,\"sum\":\"%016llx\"}\n", alone_ns / (BALANCED_ROUNDS * EVERY),
           (unsigned long long)sum);
    drop_piece(&piece);
    free(samples);
}

// Runs until a file of this name exists, and prints the times at which runs have ended.
static void processor_away(int me, const char *file) {
    int64_t *ends;
    double *samples;
    struct equation of = {BALANCED_ROWS, BALANCED, BALANCED_ROUNDS, 0, 0};
    struct piece piece;
    uint64_t sum;
    double alone_ns;
    int k, done = 0;
    if (me > 0) {
        run_others(of, me);
        return;
    }
    ends = room(sizeof *ends * (MOST_RUNS + 1));
    samples = room(sizeof *samples * MOST_RUNS);
    piece = make_piece(of, 0);
    sum = run_alone(of, &alone_ns);
    run_pieces(of, &piece, sum);
    ends[0] = now_ns();
    announce("processor", "away");
    do {
        samples[done++] = run_pieces(of, &piece, sum) / (BALANCED_ROUNDS * EVERY);
        ends[done] = now_ns();
    } while (done < MOST_RUNS && access(file, F_OK));
    end_others(BALANCED);
    report_as("processor", "away", samples, done, mean(samples, done));
    printf(",\"sweeps\":%d,\"ends_ns\":[", BALANCED_ROUNDS * EVERY);
    for (k = 0; k <= done; k++) printf("%s%lld", k ? "," : "", (long long)ends[k]);
    printf("]}\n");
    drop_piece(&piece);
    free(ends);
    free(samples);
}
