/* The client in C of calls.rs. Argument: the server's name. For each line of input it runs a round,
 * and prints the time of a null call and of an add, in ns. */
#include "every.h"

#include <stdio.h>
#include <time.h>

enum { CALLS = 20000 };

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

int main(int count, char **arguments) {
    upcall_error error;
    char line[16];
    every_client_t *every = count == 2 ? every_bind(arguments[1], &error) : NULL;
    if (!every) return 1;
    upcall_client_set_pacing(every_base(every), UPCALL_POLL);
    while (fgets(line, sizeof line, stdin)) {
        double start = now(), middle, end;
        for (uint32_t i = 0; i < CALLS; i++)
            if (every_null(every, &error) != UPCALL_OK) return 2;
        middle = now();
        for (uint32_t i = 0; i < CALLS; i++) {
            uint32_t sum;
            if (every_add(every, i, 1, &sum, &error) != UPCALL_OK || sum != i + 1) return 3;
        }
        end = now();
        printf("%.2f %.2f\n", (middle - start) / CALLS, (end - middle) / CALLS);
        fflush(stdout);
    }
    every_unbind(every);
    return 0;
}
