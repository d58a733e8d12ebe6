/* A task whose clocks go on while it moves between hosts that have started at different times, and
 * whose sleeps last as long as they should.
 *
 * Usage: clocks ROUNDS. The task moves to the processes 0 to 2 in turn. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
#include <pvm3.h>
#include <upvm.h>

static const clockid_t clocks[] = {CLOCK_MONOTONIC, CLOCK_BOOTTIME, CLOCK_MONOTONIC_COARSE,
                                   CLOCK_REALTIME};
enum { COUNT = 4, SECOND = 1000000000 };

static long long now(clockid_t clock)
{
    struct timespec time;
    clock_gettime(clock, &time);
    return time.tv_sec * (long long)SECOND + time.tv_nsec;
}

int main(int argc, char **argv)
{
    int rounds = argc > 1 ? atoi(argv[1]) : 9;
    pvm_mytid();
    long long last[COUNT], first = now(CLOCK_MONOTONIC);
    for (int at = 0; at < COUNT; at++)
        last[at] = now(clocks[at]);
    for (int round = 0; round < rounds; round++) {
        int error = upvm_migrate(0, (round + 1) % 3);
        if (error || upvm_process() != (round + 1) % 3)
            printf("FAILED: round %d: %d\n", round, error);
        for (int at = 0; at < COUNT; at++) {
            long long time = now(clocks[at]);
            /* The hosts' own clocks differ by hours. */
            if (time < last[at] || time - last[at] > 600LL * SECOND)
                printf("FAILED: clock %d goes from %lld to %lld\n", at, last[at], time);
            last[at] = time;
        }
        /* Until a time of this clock. */
        long long end = now(CLOCK_MONOTONIC) + SECOND / 50;
        struct timespec until = {end / SECOND, end % SECOND};
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, 0);
        if (now(CLOCK_MONOTONIC) < end)
            printf("FAILED: a sleep ends before its time\n");
    }
    if (now(CLOCK_MONOTONIC) - first < rounds * (SECOND / 50LL))
        printf("FAILED: the clock has lost time\n");
    printf("ok: clocks\n");
    pvm_exit();
    return 0;
}
