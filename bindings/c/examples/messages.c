/* The member in C of messages.rs. Arguments: the group's name, its size, a rank. Alone it prints
 * the time of a send and a poll of a null message, in ns; with another member, the time of a
 * message one way. */
#include <stdio.h>
#include <time.h>
#include <upcall_message.h>

enum { BATCH = 1000, ROUNDS = 200, PINGS = 100000 };

static uint64_t taken;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static int compare(const void *a, const void *b) {
    return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

static void on_null(void *context, upcall_group *group, const upcall_message *message) {
    (void)context, (void)group, (void)message;
    taken++;
}

static void take(upcall_group *group, uint64_t until) {
    while (taken < until) upcall_group_poll(group, NULL, NULL);
}

int main(int count, char **arguments) {
    upcall_error error;
    static double sends[ROUNDS], polls[ROUNDS];
    if (count != 4) return 2;
    size_t size = strtoul(arguments[2], NULL, 10), rank = strtoul(arguments[3], NULL, 10);
    upcall_handlers *handlers = upcall_handlers_new();
    upcall_joining *joining = upcall_joining_new(arguments[1], size, &error);
    upcall_kind null = upcall_handlers_kind(handlers, "null", "()", &error);
    upcall_handlers_on(handlers, null, on_null, NULL, &error);
    upcall_joining_set_rank(joining, rank);
    upcall_joining_set_pacing(joining, UPCALL_POLL);
    upcall_group *group = upcall_group_join(joining, handlers, &error);
    if (!group) return 1;
    if (size == 1) {
        for (int round = 0; round < ROUNDS; round++) {
            double start = now();
            for (int i = 0; i < BATCH; i++)
                if (upcall_group_send(group, 0, null, NULL, 0, &error) != UPCALL_OK) return 1;
            double middle = now();
            take(group, taken + BATCH);
            sends[round] = (middle - start) / BATCH;
            polls[round] = (now() - middle) / BATCH;
        }
        qsort(sends, ROUNDS, sizeof *sends, compare);
        qsort(polls, ROUNDS, sizeof *polls, compare);
        printf("send %.1f poll %.1f\n", sends[ROUNDS / 2], polls[ROUNDS / 2]);
    } else {
        double start = 0;
        for (uint64_t i = 1; i <= PINGS; i++) {
            if (i == PINGS / 2) start = now();
            if (rank == 0 && upcall_group_send(group, 1, null, NULL, 0, &error) != UPCALL_OK)
                return 1;
            take(group, i);
            if (rank == 1 && upcall_group_send(group, 0, null, NULL, 0, &error) != UPCALL_OK)
                return 1;
        }
        if (rank == 0) printf("one way %.1f\n", (now() - start) / PINGS);
    }
    return upcall_group_leave(group, &error) == UPCALL_OK ? 0 : 1;
}
