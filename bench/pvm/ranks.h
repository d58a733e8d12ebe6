// Ranks of AMPI, which are user-level threads: a rank moves between two processors or processes, or
// many ranks wait. All figures of a move are taken by the rank itself.

#include <signal.h>
#include <sys/time.h>
#include <unistd.h>

// Returns the processing element, a thread of AMPI, that runs this rank.
static int element(void) {
    int *found, is_there;
    MPI_Comm_get_attr(MPI_COMM_WORLD, AMPI_MY_WTH, &found, &is_there);
    if (!is_there) give_up("no processing element");
    return *found;
}

static void migrate(int to) {
    AMPI_Migrate_to_pe(to);
    if (element() != to) give_up("a rank was not moved");
}

// Measures the pause of a rank of this size that moves to and fro. It writes to one of 16 of its
// pages before and after each move, and checks the rest of its memory at the end.
static void move(int me, const char *size) {
    enum { MOST_MOVES = 1000, LEAST = 6, WINDOW = 64 << 10 };
    double *found;
    long bytes = kib_of(size) << 10, window = bytes < WINDOW ? bytes : WINDOW, at = 0;
    int moves, ended = 1;
    int64_t first, begun;
    char *data;
    if (me == 0) {
        take_ints(1, &ended, 1);
        return;
    }
    found = room(sizeof *found * MOST_MOVES);
    data = room(bytes);
    memset(data, 1, window);
    fill(data + window, bytes - window, 1);
    migrate(0);
    migrate(1);
    first = now_ns();
    for (moves = 0; moves < MOST_MOVES &&
                    (moves < LEAST || now_ns() - first < measured_seconds * 1e9);
         moves++) {
        begun = now_ns();
        data[at = (at + 4096 + 64) % window]++;
        migrate(moves % 2);
        data[at = (at + 4096 + 64) % window]++;
        found[moves] = now_ns() - begun;
    }
    if (!filled(data + window, bytes - window, 1)) give_up("memory is not what it was");
    report_as("move", size, found, moves, mean(found, moves));
    printf("}\n");
    fflush(stdout);
    free(data);
    free(found);
    put_ints(0, &ended, 1);
}

static void end_now(int signal) {
    (void)signal;
    _exit(0);
}

// Prints a line when all ranks wait for a message, which does not come: a rank that ended the
// others after a time would keep its processor busy until then. The process ends by an alarm.
static void idle(int me, int tasks) {
    struct itimerval rest = {{0, 0},
                             {(time_t)measured_seconds,
                              (long)((measured_seconds - (time_t)measured_seconds) * 1e6)}};
    char number[16];
    int k, ready = 1;
    if (me > 0) {
        put_ints(0, &ready, 1);
        take_ints(0, &ready, 1);
    }
    for (k = 1; k < tasks; k++) take_ints(k, &ready, 1);
    snprintf(number, sizeof number, "%d", tasks);
    signal(SIGALRM, end_now);
    if (setitimer(ITIMER_REAL, &rest, NULL)) give_up("no alarm");
    announce("idle", number);
    take_ints(1, &ready, 1);
}
