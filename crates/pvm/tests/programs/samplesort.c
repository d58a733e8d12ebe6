// samplesort TASKS EACH: sorts EACH numbers of each task, so that the first task ends up with the
// smallest, by regular sampling (Shi and Schaeffer, "Parallel sorting by regular sampling", 1992).
// Each task sorts its own numbers and sends samples to the first, which computes the bounds of the
// tasks' ranges. Then each task sends the others their numbers, and sorts what it has received.
//
// The program uses groups: it joins, freezes, waits at barriers, gathers, broadcasts, and reduces
// with PVM's functions and one of its own.

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <pvm3.h>

enum {
    MOST = 64, SAMPLES = 1, SPLIT = 2, EXCHANGE = 3, COUNTS = 4, ENDS = 5, SUMS = 6, TOTAL = 7,
    MIXED = 8
};

static const char group[] = "samplesort";

static int compare(const void *a, const void *b) {
    int x = *(const int *)a, y = *(const int *)b;
    return (x > y) - (x < y);
}

// A reduction of our own: exclusive or, which reveals a lost number that a sum may hide.
static void mix(int *type, void *x, void *y, int *count, int *info) {
    int k, *to = x, *from = y;
    *info = *type == PVM_INT ? PvmOk : PvmBadParam;
    for (k = 0; k < *count; k++) to[k] ^= from[k];
}

static int place(const int *numbers, int count, int limit) {
    int low = 0, high = count;
    while (low < high) {
        int middle = (low + high) / 2;
        if (numbers[middle] < limit) low = middle + 1;
        else high = middle;
    }
    return low;
}

int main(int argc, char **argv) {
    int *siblings, tids[MOST], samples[MOST * MOST], splits[MOST], sizes[MOST], ends[2],
        all_ends[2 * MOST];
    int tasks, each, me, k, from, *numbers, *sorted, count = 0, size, total;
    // Doubles hold such sums exactly. The real PVM packs longs into only 32 bits.
    double sums[2] = {0, 0};
    int mixed[2] = {0, 0};
    unsigned seed;
    if (pvm_mytid() < 0) return 1;
    tasks = argc > 1 ? atoi(argv[1]) : 4;
    each = argc > 2 ? atoi(argv[2]) : 10000;
    if (tasks < 1 || tasks > MOST || each < tasks) {
        fprintf(stderr,
                "usage: samplesort TASKS EACH, with at most %d tasks, and as many numbers each\n",
                MOST);
        pvm_exit();
        return 2;
    }
    me = pvm_joingroup((char *)group);
    if (me == 0 && pvm_parent() == PvmNoParent && pvm_siblings(&siblings) != tasks && tasks > 1
        && pvm_spawn(argv[0], argv + 1, PvmTaskDefault, "", tasks - 1, tids) != tasks - 1) {
        fprintf(stderr, "samplesort: not all of %d tasks could be started\n", tasks);
        pvm_exit();
        return 1;
    }
    pvm_freezegroup((char *)group, tasks);

    numbers = malloc(sizeof(int) * each);
    sorted = malloc(sizeof(int) * each * tasks);
    seed = 2463534242u + 977u * me;
    for (k = 0; k < each; k++) {
        seed ^= seed << 13;
        seed ^= seed >> 17;
        seed ^= seed << 5;
        numbers[k] = seed % 1000000;
        sums[0] += numbers[k];
        mixed[0] ^= numbers[k];
    }
    qsort(numbers, each, sizeof(int), compare);

    // The first task gathers the samples, and broadcasts the bounds of the ranges.
    for (k = 0; k < tasks; k++) splits[k] = numbers[(long)k * each / tasks];
    pvm_gather(samples, splits, tasks, PVM_INT, SAMPLES, (char *)group, 0);
    if (me == 0) {
        qsort(samples, tasks * tasks, sizeof(int), compare);
        for (k = 1; k < tasks; k++) splits[k - 1] = samples[k * tasks + tasks / 2 - 1];
        pvm_initsend(PvmDataDefault);
        pvm_pkint(splits, tasks - 1, 1);
        pvm_bcast((char *)group, SPLIT);
    } else {
        pvm_recv(pvm_gettid((char *)group, 0), SPLIT);
        pvm_upkint(splits, tasks - 1, 1);
    }

    // Each task sends every task its numbers, including itself.
    for (k = from = 0; k < tasks; k++) {
        int to = k == tasks - 1 ? each : place(numbers, each, splits[k]);
        size = to - from;
        pvm_initsend(PvmDataInPlace);
        pvm_pkint(&size, 1, 1);
        pvm_pkint(numbers + from, size, 1);
        pvm_send(pvm_gettid((char *)group, k), EXCHANGE);
        from = to;
    }
    for (k = 0; k < tasks; k++) {
        pvm_recv(pvm_gettid((char *)group, k), EXCHANGE);
        pvm_upkint(&size, 1, 1);
        pvm_upkint(sorted + count, size, 1);
        count += size;
    }
    qsort(sorted, count, sizeof(int), compare);

    // Checks the result.
    for (k = 0; k < count; k++) {
        sums[1] += sorted[k];
        mixed[1] ^= sorted[k];
    }
    total = count;
    ends[0] = count ? sorted[0] : INT_MAX;
    ends[1] = count ? sorted[count - 1] : INT_MIN;
    pvm_gather(sizes, &count, 1, PVM_INT, COUNTS, (char *)group, 0);
    pvm_gather(all_ends, ends, 2, PVM_INT, ENDS, (char *)group, 0);
    pvm_barrier((char *)group, tasks);
    pvm_reduce(PvmSum, sums, 2, PVM_DOUBLE, SUMS, (char *)group, 0);
    pvm_reduce(PvmSum, &total, 1, PVM_INT, TOTAL, (char *)group, 0);
    pvm_reduce(mix, mixed, 2, PVM_INT, MIXED, (char *)group, 0);
    if (me == 0) {
        int in_order = 1;
        for (k = 1; k < tasks; k++) in_order &= all_ends[2 * k - 1] <= all_ends[2 * k];
        printf("samplesort: %d numbers by %d tasks, %s, %s\n", total, tasks,
               total == tasks * each && sums[0] == sums[1] && mixed[0] == mixed[1]
                   ? "none lost" : "some LOST",
               in_order ? "in order" : "NOT in order");
        printf("from %d to %d, sum %.0f; the tasks have", all_ends[0], all_ends[2 * tasks - 1],
               sums[1]);
        for (k = 0; k < tasks; k++) printf(" %d", sizes[k]);
        printf("\n");
    }
    free(numbers);
    free(sorted);
    // No task leaves before all are done with the group.
    pvm_barrier((char *)group, tasks);
    pvm_lvgroup((char *)group);
    pvm_exit();
    return 0;
}
