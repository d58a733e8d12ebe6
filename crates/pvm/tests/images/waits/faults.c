/* Measures how long one task's page faults stop its neighbours. This is not a test; its results
 * are in docs/performance/pvm.md (`upcall pvm run -n 2 faults FILE`; creates the file, 64 MiB). */
#define _GNU_SOURCE
#include "roles.h"
#include <sys/mman.h>

#define BYTES (64l << 20)
#define PAGE 4096

static int by_size(const void *one, const void *other)
{
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

/* Prints the number of turns until the first task is done, and the longest time between two turns.
 */
static void count_turns(void)
{
    long turns = 0;
    double last = now(), longest = 0;
    while (pvm_nrecv(-1, DONE) == 0) {
        double time = now();
        if (time - last > longest)
            longest = time - last;
        last = time;
        turns++;
    }
    printf("%ld turns, longest pause %.0f ms\n", turns, longest * 1000);
}

static void touch(const char *what, volatile char *at, int writes)
{
    static double took[BYTES / PAGE];
    long count = 0;
    for (long page = 0; page < BYTES / PAGE; page += 7) {
        double began = now();
        if (writes)
            at[page * PAGE] = 1;
        else
            (void)at[page * PAGE];
        took[count++] = (now() - began) * 1e6;
    }
    qsort(took, count, sizeof *took, by_size);
    printf("%s: median %.1f us, 99th of 100 %.1f, most %.1f\n", what, took[count / 2],
           took[count * 99 / 100], took[count - 1]);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    if (role() == 1)
        count_turns();
    if (role())
        return 0;
    int file = open(argv[1], O_RDWR | O_CREAT, 0600);
    char *bytes = malloc(BYTES);
    touch("first touch of memory", bytes, 1);
    memset(bytes, 7, BYTES);
    CHECK(file > 2 && write(file, bytes, BYTES) == BYTES && fsync(file) == 0);
    char *mapped = mmap(0, BYTES, PROT_READ, MAP_SHARED, file, 0);
    CHECK(mapped != MAP_FAILED && madvise(mapped, BYTES, MADV_RANDOM) == 0);
    touch("a file's page in memory", mapped, 0);
    CHECK(munmap(mapped, BYTES) == 0 && posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED) == 0);
    mapped = mmap(0, BYTES, PROT_READ, MAP_SHARED, file, 0);
    CHECK(madvise(mapped, BYTES, MADV_RANDOM) == 0);
    touch("a file's page not in memory", mapped, 0);
    CHECK(munmap(mapped, BYTES) == 0 && posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED) == 0);
    double began = now();
    CHECK(pread(file, bytes, PAGE, 1000 * PAGE) == PAGE);
    printf("the same by pread: %.1f us, in which others run\n", (now() - began) * 1e6);
    tell(tids[1], DONE);
    return 0;
}
