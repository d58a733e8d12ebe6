/* Random calls that map memory, beside a model that knows for each page whether it is mapped, and
 * what is in it. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "image.h"

#define P UPVM_PAGE
#define PAGES (UPVM_SLOT / P)
/* A page near the end of those for maps. */
#define TOP (((upvm_table()[UPVM_TABLE_HEAP_END] - UPVM_RANGES - slot) / P) - 8)
#define RW (PROT_READ | PROT_WRITE)
#define CHECK(that)                                                                     \
    do {                                                                                \
        if (!(that)) {                                                                  \
            printf("step %d, line %d: %s (errno %d)\n", step, __LINE__, #that, errno);  \
            exit(1);                                                                    \
        }                                                                               \
    } while (0)

/* For each page of the slot, 0 if the program has not mapped it, or the number that is in it. */
static unsigned model[PAGES], last;
/* Pages that were mapped once: where a call finds something to do. */
static unsigned places[1 << 16], count;
static uintptr_t slot;
/* Above the heap as large as it was, and 2 MiB, memory that is not mapped is nowhere. */
static char *highest;
static int step;

static unsigned random_below(unsigned most)
{
    static uint64_t state = 20261128;
    state = state * 6364136223846793005ul + 1442695040888963407ul;
    return (state >> 33) % most;
}

static char *at(unsigned page)
{
    return (char *)slot + page * P;
}

static unsigned number(const void *address)
{
    return ((uintptr_t)address - slot) / P;
}

static int is_free(unsigned page, unsigned pages)
{
    for (unsigned one = 0; one < pages; one++)
        if (model[page + one])
            return 0;
    return 1;
}

static void fill(unsigned page, unsigned pages)
{
    for (unsigned one = 0; one < pages; one++) {
        unsigned *words = (unsigned *)at(page + one);
        CHECK(!words[0] && !words[P / 8] && !words[P / 4 - 1]);
        model[page + one] = words[0] = words[P / 8] = words[P / 4 - 1] = ++last;
    }
    places[count++ % (1 << 16)] = page;
}

static void check(unsigned page, unsigned pages)
{
    for (unsigned one = 0; one < pages; one++) {
        unsigned *words = (unsigned *)at(page + one), is = model[page + one];
        unsigned char in;
        if (is)
            CHECK(words[0] == is && words[P / 8] == is && words[P / 4 - 1] == is);
        else if (at(page + one) >= highest)
            CHECK(mincore(words, P, &in) == -1 && errno == ENOMEM);
    }
}

/* A page near one that was mapped. */
static unsigned some(void)
{
    if (!count)
        return TOP - 480;
    unsigned page = places[random_below(count < 1 << 16 ? count : 1 << 16)] + random_below(24) - 8;
    unsigned least = number(sbrk(0)) + 1, most = TOP - 80;
    return page < least ? least : page > most ? most : page;
}

static void map(unsigned pages)
{
    int flags = MAP_ANONYMOUS | (random_below(2) ? MAP_PRIVATE : MAP_SHARED);
    int kind = random_below(6);
    unsigned page = some();
    if (kind == 0)
        flags |= MAP_FIXED;
    if (kind == 1)
        flags |= MAP_FIXED_NOREPLACE;
    char *to = mmap(kind < 3 ? at(page) : 0, pages * P, RW, flags, -1, 0);
    if (kind == 1 && !is_free(page, pages)) {
        CHECK(to == MAP_FAILED && errno == EEXIST);
        return;
    }
    CHECK(to != MAP_FAILED && (uintptr_t)to / UPVM_SLOT == slot / UPVM_SLOT);
    if (kind < 2)
        CHECK(to == at(page));
    if (kind == 2 && is_free(page, pages))
        CHECK(to == at(page));
    if (kind)
        CHECK(is_free(number(to), pages));
    fill(number(to), pages);
}

static void unmap(unsigned pages)
{
    unsigned page = some();
    check(page, pages);
    CHECK(!munmap(at(page), pages * P));
    memset(model + page, 0, pages * sizeof *model);
}

static void move(unsigned pages)
{
    unsigned page = some(), more = 1 + random_below(12);
    /* One mapping of the kernel's: just made. */
    char *from = mmap(0, pages * P, RW, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(from != MAP_FAILED && is_free(number(from), pages));
    fill(number(from), pages);
    int overlaps = page < number(from) + pages && number(from) < page + more;
    int flags = overlaps || random_below(3) ? random_below(2) * MREMAP_MAYMOVE
                                            : MREMAP_MAYMOVE | MREMAP_FIXED;
    char *to = mremap(from, pages * P, more * P, flags, at(page));
    if (to == MAP_FAILED) {
        CHECK(!flags && errno == ENOMEM && more > pages);
        CHECK(!is_free(number(from) + pages, more - pages) || number(from) + more > TOP);
        return;
    }
    unsigned words[12], kept = pages < more ? pages : more;
    memcpy(words, model + number(from), pages * sizeof *words);
    memset(model + number(from), 0, pages * sizeof *model);
    if (flags & MREMAP_FIXED)
        CHECK(to == at(page));
    else
        CHECK(is_free(number(to), more));
    memcpy(model + number(to), words, kept * sizeof *words);
    check(number(to), kept);
    if (more > kept)
        fill(number(to) + kept, more - kept);
}

static void grow(int pages)
{
    char *end = sbrk(0);
    if (random_below(2)) {
        char *got = sbrk(pages * P);
        CHECK(got == end || !is_free(number(end), pages + 1));
    } else if (end - pages * P > (char *)upvm_table()[UPVM_TABLE_HEAP] + (1 << 20)) {
        CHECK(sbrk(-pages * P) == end);
    }
    end = sbrk(0);
    memset(end - 100, 1, 100);
    if (highest < end + (2 << 20))
        highest = end + (2 << 20);
}

int main(int argc, char **argv)
{
    int steps = atoi(argv[1]);
    slot = (uintptr_t)&step / UPVM_SLOT * UPVM_SLOT;
    setvbuf(stdout, 0, _IONBF, 0);
    sbrk(2 << 20);
    highest = (char *)sbrk(0) + (2 << 20);
    munmap(at(TOP - 480), P);
    for (step = 0; step < steps; step++) {
        unsigned pages = 1 + random_below(12);
        switch (random_below(8)) {
        case 0: case 1: map(pages); break;
        case 2: case 3: case 4: unmap(pages + random_below(8)); break;
        case 5: move(pages); break;
        case 6: grow(pages); break;
        case 7: check(some(), pages); break;
        }
    }
    for (unsigned page = number(sbrk(0)) + 2; page < TOP; page++)
        check(page, 1);
    /* All comes back, and is one range. */
    char *heap = (char *)(((uintptr_t)sbrk(0) + P - 1) & -P);
    CHECK(!munmap(heap, at(TOP) - heap));
    char *all = mmap(0, at(TOP) - heap, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(all != MAP_FAILED);
    printf("%u pages were written\n", last);
    return 0;
}
