/* Tasks that write to large memory while the last task moves them: dirty MIB MOVES PROCESSES.
 *
 * Each has an array from mmap and one from malloc, changes words at random, and keeps their sums.
 * Pages go and come back as zeros, and the second array is replaced. */
#define _GNU_SOURCE
#include <pvm3.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <upvm.h>

enum { DONE = 1, WORDS = 512 };

static long words;
static uint64_t *mapped, *heap, mapped_sum, heap_sum, state;

static uint64_t next(void)
{
    return state = state * 6364136223846793005u + 1;
}

static void change(uint64_t *array, uint64_t *sum)
{
    uint64_t value = next(), *word = &array[(value >> 33) % words];
    *sum += value - *word;
    *word = value;
}

static void look(int me, long round)
{
    uint64_t sums[2] = {0, 0};
    for (long at = 0; at < words; at++)
        sums[0] += mapped[at], sums[1] += heap[at];
    if (sums[0] != mapped_sum || sums[1] != heap_sum) {
        printf("%x: wrong sums in round %ld\n", me, round);
        exit(1);
    }
}

static void write_on(int me)
{
    mapped = mmap(0, words * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    heap = calloc(words, 8);
    for (long at = 0; at < words; at++)
        mapped[at] = at, mapped_sum += at, heap[at] = 2 * at, heap_sum += 2 * at;
    state = me;
    for (long round = 0; pvm_nrecv(-1, DONE) == 0; round++) {
        for (int i = 0; i < 1000; i++)
            change(mapped, &mapped_sum), change(heap, &heap_sum);
        if (round % 20 == 7) {
            uint64_t *page = mapped + next() % (words / WORDS) * WORDS;
            for (int at = 0; at < WORDS; at++)
                mapped_sum -= page[at];
            madvise(page, WORDS * 8, MADV_DONTNEED);
        }
        if (round % 100 == 3)
            look(me, round);
        if (round % 300 == 11) {
            free(heap);
            heap = calloc(words, 8), heap_sum = 0;
        }
    }
    look(me, -1);
}

int main(int argc, char **argv)
{
    int me = pvm_mytid(), *all, count = pvm_siblings(&all), moved = 0, stayed = 0;
    words = atol(argv[1]) << 17;
    if (me != all[count - 1]) {
        write_on(me);
    } else {
        int moves = atoi(argv[2]), processes = atoi(argv[3]);
        for (int move = 0; move < moves; move++) {
            int done = upvm_migrate(all[move % (count - 1)], move / (count - 1) % processes);
            done ? stayed++ : moved++;
        }
        pvm_initsend(PvmDataRaw);
        pvm_mcast(all, count - 1, DONE);
        printf("%d moves, %d refused\n", moved, stayed);
    }
    printf("%x: all is well\n", me);
    pvm_exit();
    return 0;
}
