// tsp CITIES WORKERS [lose]: finds the shortest tour by parallel branch and bound. The master keeps
// the remaining jobs, which are beginnings of tours, and gives the next one to each idle worker.
// When a worker finds a shorter tour, all learn its length at once.
//
// With `lose` the master occasionally kills a worker. PVM notifies it of each worker that has
// ended. It starts a replacement, and gives out the lost job again. The tour must be the shortest
// in any case: the master also computes its length by dynamic programming over sets of cities (Held
// and Karp 1962).

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>

#include <pvm3.h>

enum {
    MOST = 16, WORKERS = 64, INIT = 1, JOB = 2, BOUND = 3, FOUND = 4, DONE = 5, STOP = 6, LOST = 7
};
// Number of search nodes between two checks for a better bound.
enum { PATIENCE = 500, TO_LOSE = 3 };

static int n, distance[MOST][MOST], best, tour[MOST], found[MOST];

// Creates the same cities in every run.
static void cities(void) {
    unsigned seed = 12345;
    int x[MOST], y[MOST], a, b;
    for (a = 0; a < n; a++) {
        seed = seed * 1103515245u + 12345u;
        x[a] = seed >> 16 & 1023;
        seed = seed * 1103515245u + 12345u;
        y[a] = seed >> 16 & 1023;
    }
    for (a = 0; a < n; a++)
        for (b = 0; b < n; b++) distance[a][b] = abs(x[a] - x[b]) + abs(y[a] - y[b]);
}

// The worker
// ---------------------------------------------------------------------------------------

static int master;

static void look(void) {
    int told;
    while (pvm_nrecv(master, BOUND) > 0) {
        pvm_upkint(&told, 1, 1);
        if (told < best) best = told;
    }
}

// Lower bound of the rest of the tour: the distance to the nearest city from each that is still to
// be left.
static int at_least(int visited, int last) {
    int a, b, sum = 0;
    for (a = 0; a < n; a++) {
        int nearest = 1 << 20;
        if (a != last && visited >> a & 1) continue;
        for (b = 0; b < n; b++) {
            int open = b == 0 ? a != 0 : !(visited >> b & 1);
            if (b != a && open && distance[a][b] < nearest) nearest = distance[a][b];
        }
        sum += nearest;
    }
    return sum;
}

static void search(int depth, int visited, int length) {
    static unsigned nodes;
    int city, last = tour[depth - 1];
    if (++nodes % PATIENCE == 0) look();
    if (depth == n) {
        length += distance[last][0];
        if (length >= best) return;
        best = length;
        pvm_initsend(PvmDataDefault);
        pvm_pkint(&best, 1, 1);
        pvm_pkint(tour, n, 1);
        pvm_send(master, FOUND);
        return;
    }
    if (length + at_least(visited, last) >= best) return;
    for (city = 1; city < n; city++) {
        if (visited >> city & 1) continue;
        tour[depth] = city;
        search(depth + 1, visited | 1 << city, length + distance[last][city]);
    }
}

static void work(void) {
    int bytes, tag, from, job;
    pvm_recv(master, INIT);
    pvm_upkint(&n, 1, 1);
    pvm_upkint(&best, 1, 1);
    pvm_upkint(&distance[0][0], MOST * MOST, 1);
    for (;;) {
        pvm_bufinfo(pvm_recv(master, -1), &bytes, &tag, &from);
        if (tag == STOP) return;
        if (tag == BOUND) {
            int told;
            pvm_upkint(&told, 1, 1);
            if (told < best) best = told;
            continue;
        }
        pvm_upkint(&job, 1, 1);
        pvm_upkint(tour, 3, 1);
        search(3, 1 | 1 << tour[1] | 1 << tour[2],
               distance[0][tour[1]] + distance[tour[1]][tour[2]]);
        pvm_initsend(PvmDataDefault);
        pvm_pkint(&job, 1, 1);
        pvm_send(master, DONE);
    }
}

// The master
// ---------------------------------------------------------------------------------------

static int workers, tids[WORKERS], has[WORKERS], done[MOST * MOST], given[MOST * MOST], jobs, left;

static int held_karp(void) {
    int sets = 1 << (n - 1), set, last, next, shortest = 1 << 30;
    int *length = malloc(sizeof(int) * sets * n);
    for (set = 0; set < sets * n; set++) length[set] = 1 << 29;
    for (last = 1; last < n; last++) length[(1 << (last - 1)) * n + last] = distance[0][last];
    for (set = 1; set < sets; set++) {
        for (last = 1; last < n; last++) {
            if (!(set >> (last - 1) & 1)) continue;
            for (next = 1; next < n; next++) {
                int to = set | 1 << (next - 1), by = length[set * n + last] + distance[last][next];
                if (to != set && by < length[to * n + next]) length[to * n + next] = by;
            }
        }
    }
    for (last = 1; last < n; last++) {
        int by = length[(sets - 1) * n + last] + distance[last][0];
        if (by < shortest) shortest = by;
    }
    free(length);
    return shortest;
}

static int tour_length(void) {
    int k, length = 0, seen = 0;
    for (k = 0; k < n; k++) {
        seen |= 1 << found[k];
        length += distance[found[k]][found[(k + 1) % n]];
    }
    return seen == (1 << n) - 1 ? length : -1;
}

static void start(int first, int count) {
    if (pvm_spawn("tsp", NULL, PvmTaskDefault, "", count, tids + first) != count) {
        printf("tsp: not all workers could be started\n");
        pvm_exit();
        exit(1);
    }
    pvm_notify(PvmTaskExit, LOST, count, tids + first);
    pvm_initsend(PvmDataDefault);
    pvm_pkint(&n, 1, 1);
    pvm_pkint(&best, 1, 1);
    pvm_pkint(&distance[0][0], MOST * MOST, 1);
    pvm_mcast(tids + first, count, INIT);
}

// Gives the worker the next open job, if there is one.
static void give(int worker) {
    int job, beginning[3] = {0};
    has[worker] = -1;
    for (job = 0; job < jobs && (done[job] || given[job]); job++) {}
    if (job == jobs) return;
    beginning[1] = 1 + job / (n - 1);
    beginning[2] = 1 + job % (n - 1);
    has[worker] = job;
    given[job] = 1;
    pvm_initsend(PvmDataDefault);
    pvm_pkint(&job, 1, 1);
    pvm_pkint(beginning, 3, 1);
    pvm_send(tids[worker], JOB);
}

static int worker_of(int tid) {
    int k;
    for (k = 0; k < workers && tids[k] != tid; k++) {}
    return k;
}

static int lead(int lose) {
    int k, tid, bytes, tag, from, job, length, lost = 0, killed = 0, since = 0;
    struct timeval patience = {0, 50000};
    cities();
    best = 1 << 20;
    jobs = (n - 1) * (n - 1);
    // No tour begins with a city that is visited twice.
    for (job = 0; job < jobs; job++) done[job] = job / (n - 1) == job % (n - 1);
    left = (n - 1) * (n - 2);
    start(0, workers);
    for (k = 0; k < workers; k++) give(k);
    while (left > 0) {
        int buffer = pvm_trecv(-1, -1, &patience);
        if (buffer < 0) return 1;
        // No message arrived in time.
        if (buffer == 0) continue;
        pvm_bufinfo(buffer, &bytes, &tag, &from);
        if (tag == FOUND) {
            pvm_upkint(&length, 1, 1);
            if (length < best) {
                best = length;
                pvm_upkint(found, n, 1);
                pvm_initsend(PvmDataDefault);
                pvm_pkint(&best, 1, 1);
                pvm_mcast(tids, workers, BOUND);
            }
        } else if (tag == DONE) {
            pvm_upkint(&job, 1, 1);
            left -= !done[job];
            done[job] = 1;
            k = worker_of(from);
            if (k < workers) give(k);
            if (lose && killed < TO_LOSE && ++since == 10) {
                since = 0;
                // Not the worker that just got a job, but the next one, which is likely to be at
                // work.
                pvm_kill(tids[(k + 1) % workers]);
                killed++;
            }
        } else if (tag == LOST) {
            pvm_upkint(&tid, 1, 1);
            k = worker_of(tid);
            if (k == workers) continue;
            lost++;
            if (has[k] >= 0) given[has[k]] = 0;
            start(k, 1);
            give(k);
        }
    }
    // Workers that are killed but not replaced yet also end.
    pvm_initsend(PvmDataDefault);
    pvm_mcast(tids, workers, STOP);
    for (k = 0; k < workers;) {
        pvm_recv(-1, LOST);
        pvm_upkint(&tid, 1, 1);
        if (worker_of(tid) < workers) k++;
    }
    length = held_karp();
    printf("tsp: %d cities, %d workers: the shortest tour has length %d, %s\n", n, workers, best,
           best == length && tour_length() == best ? "as it must" : "which is WRONG");
    if (lose)
        printf("workers lost: %s\n",
               killed == TO_LOSE && lost <= killed ? "as many as planned" : "WRONG");
    return 0;
}

int main(int argc, char **argv) {
    int failed = 0;
    if (pvm_mytid() < 0) return 1;
    master = pvm_parent();
    if (master != PvmNoParent) {
        work();
    } else {
        n = argc > 1 ? atoi(argv[1]) : 13;
        workers = argc > 2 ? atoi(argv[2]) : 4;
        if (n < 4 || n > MOST || workers < 1 || workers > WORKERS) {
            fprintf(stderr, "usage: tsp CITIES WORKERS [lose], with 4 to %d cities\n", MOST);
            failed = 2;
        } else {
            failed = lead(argc > 3 && !strcmp(argv[3], "lose"));
        }
    }
    pvm_exit();
    return failed;
}
