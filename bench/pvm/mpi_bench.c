// mpi_bench: the modes of pvm_bench for MPI processes. README.md describes how to compile and run
// it.

#define _GNU_SOURCE
#include <mpi.h>

#include "modes.h"

enum { DATA = 1 };

static void give_up(const char *what) {
    fprintf(stderr, "mpi_bench: %s\n", what);
    MPI_Abort(MPI_COMM_WORLD, 1);
    exit(1);
}

// Errors end all processes, which is MPI's default.
static void put(int place, void *from, int count, MPI_Datatype type) {
    MPI_Send(from, count, type, place, DATA, MPI_COMM_WORLD);
}

static void take(int place, void *to, int count, MPI_Datatype type) {
    MPI_Recv(to, count, type, place, DATA, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static void put_ints(int place, int *from, int count) { put(place, from, count, MPI_INT); }

static void put_floats(int place, float *from, int count) { put(place, from, count, MPI_FLOAT); }

static MPI_Request offers[2];
static int offers_open;

// A message that is longer than MPI keeps is sent only when the receiver takes it. So two tasks
// that both send first would wait for each other.
static void offer_floats(int place, float *from, int count) {
    MPI_Isend(from, count, MPI_FLOAT, place, DATA, MPI_COMM_WORLD, &offers[offers_open++]);
}

static void offered(void) {
    MPI_Waitall(offers_open, offers, MPI_STATUSES_IGNORE);
    offers_open = 0;
}

static void put_bytes(int place, char *from, int count) { put(place, from, count, MPI_BYTE); }

static void take_ints(int place, int *to, int count) { take(place, to, count, MPI_INT); }

static void take_floats(int place, float *to, int count) { take(place, to, count, MPI_FLOAT); }

static void take_bytes(int place, char *to, int count) { take(place, to, count, MPI_BYTE); }

#ifdef AMPI
#include "ranks.h"
#endif

// Returns true if this number of processes runs the mode.
static int fits(struct asked asked, int tasks) {
    if (asked.direct) return 0;
#ifdef AMPI
    if (!strcmp(asked.mode, "move")) return sensible(asked, tasks) && tasks == 2;
    if (!strcmp(asked.mode, "idle")) return asked.number == tasks && tasks > 1;
#endif
    return sensible(asked, tasks) && (!strcmp(asked.mode, "one-way") || asked.number == tasks);
}

// The modes that AMPI alone has. Returns 0 for another mode.
static int ranked(struct asked asked, int me, int tasks) {
#ifdef AMPI
    if (!strcmp(asked.mode, "move")) return move(me, asked.text), 1;
    if (!strcmp(asked.mode, "idle")) return idle(me, tasks), 1;
#else
    (void)asked, (void)me, (void)tasks;
#endif
    return 0;
}

int main(int argc, char **argv) {
    struct asked asked = parse(argc, argv);
    int me, tasks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &tasks);
    if (!fits(asked, tasks)) {
        if (me == 0) {
            fprintf(stderr, "usage: mpi_bench one-way BYTES | ring PROCESSES | laplace PROCESSES\n"
                            "           | laplace-paper PROCESSES --grid ROWS\n"
                            "           | move SIZE | idle PROCESSES (AMPI only)\n"
                            "           [--seconds S] [--cpus LIST], "
                            "by two processes, or as many as that\n");
        }
        MPI_Finalize();
        return 2;
    }
    if (asked.cpus) confine(asked.cpus, me);
    if (!ranked(asked, me, tasks)) perform(asked, me, tasks);
    MPI_Finalize();
    return 0;
}
