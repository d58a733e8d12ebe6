/* Maps memory in all ways, and checks where it is and what is in it. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <unistd.h>
#include "image.h"

#define P UPVM_PAGE
#define RW (PROT_READ | PROT_WRITE)
#define ANY (MAP_PRIVATE | MAP_ANONYMOUS)
#define CHECK(that)                                       \
    do {                                                  \
        if (!(that)) {                                    \
            printf("line %d: %s (errno %d)\n", __LINE__, #that, errno); \
            exit(1);                                      \
        }                                                 \
    } while (0)
#define FAILS(call, error) CHECK((errno = 0, (call) == MAP_FAILED) && errno == (error))
#define REFUSES(call, error) CHECK((errno = 0, (call) == -1) && errno == (error))

static char global;

static int is_here(const void *at)
{
    return (uintptr_t)at / UPVM_SLOT == (uintptr_t)&global / UPVM_SLOT;
}

/* Returns 1 if nothing is mapped there. */
static int is_gone(const void *at)
{
    unsigned char in;
    return mincore((void *)at, 1, &in) == -1 && errno == ENOMEM;
}

static char *map(size_t pages)
{
    char *at = mmap(0, pages * P, RW, ANY, -1, 0);
    CHECK(at != MAP_FAILED && is_here(at));
    for (size_t page = 0; page < pages; page++) {
        CHECK(!at[page * P]);
        at[page * P] = page + 1;
    }
    return at;
}

static void anonymous(void)
{
    char *a = map(4), *b = map(3);
    CHECK(b + 3 * P == a);
    /* In the middle, then what remains on both sides with a neighbour. */
    CHECK(!munmap(a + P, 2 * P) && is_gone(a + P) && is_gone(a + 2 * P));
    CHECK(a[0] == 1 && a[3 * P] == 4);
    CHECK(map(2) == a + P);
    CHECK(!munmap(b + P, 6 * P) && b[0] == 1 && is_gone(b + P) && is_gone(a + 3 * P));
    CHECK(!munmap(b, 7 * P) && !munmap(b, P));
    CHECK(map(7) == b);
    CHECK(!munmap(b, 7 * P - 5) && is_gone(b + 6 * P));
}

static void fixed(void)
{
    char *a = map(4);
    CHECK(mmap(a + P, P, RW, ANY | MAP_FIXED, -1, 0) == a + P && !a[P] && a[2 * P] == 3);
    FAILS(mmap(a + P, P, RW, ANY | MAP_FIXED_NOREPLACE, -1, 0), EEXIST);
    /* Below the lowest map. */
    char *c = a - 32 * P;
    CHECK(mmap(c, P, RW, ANY | MAP_FIXED_NOREPLACE, -1, 0) == c);
    CHECK(mmap(c + P, P, RW, ANY, -1, 0) == c + P);
    CHECK(mmap(c + P, P, RW, ANY, -1, 0) == a - P);
    CHECK(mmap(c + 8 * P, 4 * P, RW, ANY | MAP_FIXED, -1, 0) == c + 8 * P);
    /* A hint is a hint. */
    char *d = mmap((void *)0x7000000000, P, RW, ANY, -1, 0);
    CHECK(is_here(d));
    CHECK(mmap(c + 20 * P + 5, P, RW, ANY, -1, 0) == c + 20 * P);
    CHECK(!munmap(c, 36 * P));
}

static void refused(void)
{
    uint64_t *table = upvm_table();
    char *stack = (char *)table[UPVM_TABLE_STACK], *page = (char *)((uintptr_t)&global & -P);
    char *own[] = {stack, (char *)((uintptr_t)table & -P), page, (char *)((uintptr_t)is_here & -P),
                   (char *)table[UPVM_TABLE_HEAP_END] - P, (char *)table[UPVM_TABLE_HEAP_END],
                   (char *)0x10000, (char *)((uintptr_t)table[UPVM_TABLE_CALL] & -P),
                   (char *)((uintptr_t)&global + UPVM_SLOT & -P)};
    global = 7, stack[8] = 5;
    for (unsigned one = 0; one < sizeof own / sizeof *own; one++) {
        FAILS(mmap(own[one], P, RW, ANY | MAP_FIXED, -1, 0), ENOMEM);
        FAILS(mmap(own[one], P, RW, ANY | MAP_FIXED_NOREPLACE, -1, 0), EEXIST);
        REFUSES(munmap(own[one], P), EINVAL);
        FAILS(mremap(own[one], P, 2 * P, MREMAP_MAYMOVE), EFAULT);
    }
    CHECK(global == 7 && stack[8] == 5);
    char *host = own[7], *a = map(1);
    REFUSES(mprotect(host, P, PROT_NONE), ENOMEM);
    REFUSES(madvise((char *)((uintptr_t)stderr & -P) + UPVM_SLOT, P, MADV_DONTNEED), ENOMEM);
    REFUSES(mprotect(a, -1, PROT_NONE), ENOMEM);
    FAILS(mremap(a, P, P, MREMAP_MAYMOVE | MREMAP_FIXED, host), EINVAL);
    FAILS(mmap(0, 0, RW, ANY, -1, 0), EINVAL);
    FAILS(mmap(a + 1, P, RW, ANY | MAP_FIXED, -1, 0), EINVAL);
    FAILS(mmap(0, P, RW, MAP_ANONYMOUS, -1, 0), EINVAL);
    FAILS(mmap(0, P, RW, MAP_PRIVATE, 99, 0), EBADF);
    FAILS(mmap(0, P, RW, ANY | MAP_32BIT, -1, 0), ENOMEM);
    FAILS(mmap(0, UPVM_SLOT, RW, ANY, -1, 0), ENOMEM);
    FAILS(mmap(0, -1, RW, ANY, -1, 0), ENOMEM);
    REFUSES(munmap(a, 0), EINVAL);
    REFUSES(munmap(a + 1, P), EINVAL);
    REFUSES(munmap(a, UPVM_SLOT), EINVAL);
    CHECK(a[0] == 1 && !munmap(a, P));
    CHECK(!mprotect(page, P, RW) && !madvise(stack, P, MADV_DONTNEED) && !stack[8]);
}

static void files(void)
{
    char name[] = "/tmp/upvm-maps-XXXXXX", text[8] = "";
    int file = mkstemp(name);
    CHECK(file >= 0 && !unlink(name) && !ftruncate(file, 3 * P));
    CHECK(pwrite(file, "one", 3, 0) == 3 && pwrite(file, "two", 3, P) == 3);
    char *shared = mmap(0, 2 * P, RW, MAP_SHARED, file, 0);
    char *private = mmap(0, P, RW, MAP_PRIVATE | MAP_POPULATE, file, P);
    CHECK(is_here(shared) && is_here(private));
    CHECK(!strcmp(shared + P, "two") && !strcmp(private, "two"));
    strcpy(shared, "ONE"), strcpy(private, "TWO");
    CHECK(pread(file, text, 3, 0) == 3 && !strcmp(text, "ONE"));
    CHECK(pread(file, text, 3, P) == 3 && !strcmp(text, "two"));
    CHECK(!msync(shared, P, MS_ASYNC) && !mlock(shared, P) && !munlock(shared, P));
    /* Another page of the file in place of the second. */
    CHECK(mmap(shared + P, P, RW, MAP_SHARED | MAP_FIXED, file, 0) == shared + P);
    CHECK(!strcmp(shared + P, "ONE"));
    FAILS(mmap(0, P, RW, MAP_SHARED, file, 5), EINVAL);
    close(file);
    CHECK(!munmap(shared, 2 * P) && !munmap(private, P) && is_gone(shared));
    /* The standard input is this program's own. */
    file = memfd_create("in", 0);
    CHECK(!ftruncate(file, P) && pwrite(file, "in", 2, 0) == 2 && dup2(file, 0) == 0);
    CHECK(!strcmp(mmap(0, P, PROT_READ, MAP_SHARED, 0, 0), "in"));
}

static void moved(void)
{
    char *wall = map(1), *a = map(2), *b;
    FAILS(mremap(a, 2 * P, 3 * P, 0), ENOMEM);
    CHECK((b = mremap(a, 2 * P, 4 * P, MREMAP_MAYMOVE)) != MAP_FAILED && b != a && is_here(b));
    CHECK(b[0] == 1 && b[P] == 2 && !b[2 * P] && is_gone(a) && is_gone(a + P));
    /* Up to what is mapped above. */
    b[3 * P] = 9;
    CHECK(mremap(b, 4 * P, P, 0) == b && is_gone(b + P) && mremap(b, P, 4 * P, 0) == b);
    CHECK(b[0] == 1 && !b[3 * P]);
    FAILS(mremap(b, 0, P, MREMAP_MAYMOVE), EINVAL);
    char *c = b - 64 * P;
    CHECK(mremap(b, 2 * P, 3 * P, MREMAP_MAYMOVE | MREMAP_FIXED, c) == c && c[0] == 1);
    CHECK(is_gone(b) && is_gone(b + P) && !is_gone(b + 2 * P));
    CHECK((a = mremap(c, P, P, MREMAP_MAYMOVE | MREMAP_DONTUNMAP)) != c && a[0] == 1 && !c[0]);
    FAILS(mremap(c, P, 2 * P, MREMAP_MAYMOVE | MREMAP_DONTUNMAP), EINVAL);
    FAILS(mremap(c, P, 2 * P, MREMAP_FIXED, a), EINVAL);
    FAILS(mremap(c, P, 2 * P, 64), EINVAL);
    FAILS(mremap(c + 40 * P, P, 2 * P, MREMAP_MAYMOVE), EFAULT);
    /* The same memory twice. */
    char *shared = mmap(0, P, RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    char *again = mremap(shared, 0, P, MREMAP_MAYMOVE);
    strcpy(shared, "twice");
    CHECK(again != shared && !strcmp(again, "twice"));
    CHECK(wall[0] == 1 && !munmap(c, wall + P - c) && is_gone(wall));
}

/* The heap ends below the lowest map, and its memory may be replaced. */
static void heap(void)
{
    char *end = sbrk(0), *up = (char *)(((uintptr_t)end + P - 1) & -P), *wall = up + 600 * P;
    CHECK(mmap(wall, P, RW, ANY | MAP_FIXED, -1, 0) == wall);
    CHECK(sbrk(wall - end + 1) == (void *)-1 && errno == ENOMEM && sbrk(0) == end);
    CHECK(sbrk(wall - end) == end);
    memset(end, 1, wall - end);
    CHECK(sbrk(end - wall) == wall && !munmap(wall, P) && is_gone(wall));
    /* What is mapped for the heap beyond its end is not the program's. */
    CHECK(mmap(up + 2 * P, P, RW, ANY | MAP_FIXED_NOREPLACE, -1, 0) == up + 2 * P);
    CHECK(is_gone(up + 3 * P) && !munmap(up + P, P) && is_gone(up + P));
    CHECK(sbrk(up + 2 * P - end) == end && !up[P]);
    /* Pages of the heap that are replaced, and come back as zeros. */
    CHECK(mmap(up, P, PROT_READ, ANY | MAP_FIXED, -1, 0) == up && !mprotect(up + P, P, 0));
    CHECK(brk(end) == 0 && brk(up + 2 * P) == 0);
    memset(up, 3, 2 * P);
    CHECK(brk(end) == 0 && !munmap(up + 2 * P, P));
    /* malloc, when the heap cannot grow, maps. */
    CHECK(mmap(up + P, P, RW, ANY | MAP_FIXED, -1, 0) == up + P);
    char *big = malloc(40 << 20), *small = malloc(300);
    CHECK(is_here(big) && is_here(small));
    memset(big, 1, 40 << 20);
    free(big), free(small);
    CHECK(!munmap(up + P, P));
}

static void segments(void)
{
    int id = shmget(IPC_PRIVATE, 3 * P, IPC_CREAT | 0600), other = shmget(IPC_PRIVATE, P, 0600);
    char *a = shmat(id, 0, 0), *b = shmat(id, 0, 0);
    CHECK(!shmctl(id, IPC_RMID, 0));
    CHECK(is_here(a) && is_here(b) && a != b);
    strcpy(a + 2 * P, "shared");
    CHECK(!strcmp(b + 2 * P, "shared"));
    FAILS(shmat(other, a, 0), EINVAL);
    FAILS(shmat(other, (void *)((uintptr_t)&global & -P), SHM_REMAP), EINVAL);
    CHECK(!shmdt(a) && is_gone(a) && is_gone(a + 2 * P) && map(3) == a);
    CHECK(shmat(other, a + 5, SHM_REMAP | SHM_RND) == a && !a[0] && a[P] == 2);
    CHECK(!shmdt(a) && is_gone(a) && a[P] == 2 && !shmctl(other, IPC_RMID, 0));
    REFUSES(shmdt(a), EINVAL);
    REFUSES(shmdt(is_here), EINVAL);
    CHECK(!munmap(b, P) && !munmap(a, 3 * P));
}

static void kinds(void)
{
    char *huge = mmap(0, 4 << 20, RW, ANY | MAP_HUGETLB, -1, 0);
    CHECK(huge == MAP_FAILED ? errno == ENOMEM
                             : is_here(huge) && !((uintptr_t)huge % (2 << 20)));
    CHECK(huge == MAP_FAILED || !munmap(huge, 4 << 20));
    char *stack = mmap(0, 4 * P, RW, ANY | MAP_GROWSDOWN | MAP_STACK, -1, 0);
    CHECK(is_here(stack) && is_gone(stack - P) && !munmap(stack, 4 * P));
    char *none = mmap(0, 64 << 20, PROT_NONE, ANY | MAP_NORESERVE, -1, 0);
    CHECK(is_here(none) && !mprotect(none, P, RW) && (none[0] = 1) && !munmap(none, 64 << 20));
    char *all = mmap64(0, 512 << 20, RW, ANY, -1, 0);
    CHECK(is_here(all) && (all[(512 << 20) - 1] = 1) && !munmap(all, 512 << 20));
}

int main(int argc, char **argv)
{
    global = 1;
    switch (argc > 1 ? argv[1][0] : 'a') {
    case 'g': { /* an access to what is gone */
        volatile char *a = map(1);
        munmap((void *)a, P);
        return a[0];
    }
    case 's': { /* memory that two share through a descriptor */
        volatile char *a = mmap(0, P, RW, MAP_SHARED, open(argv[2], O_RDWR), 0);
        CHECK(is_here((void *)a));
        while (UPVM_ASK(upvm_table(), UPVM_ASK_OWN, (long)a, a[0], 0, 0))
            a[0]++;
        return 0;
    }
    case 'l': /* what is left when the program ends */
        for (int one = 0; one < 20; one++)
            mprotect(map(3) + P, P, PROT_READ);
        UPVM_ASK(upvm_table(), UPVM_ASK_OWN, 0, 0, 0, 0);
        return 0;
    }
    setvbuf(stdout, 0, _IONBF, 0);
    anonymous();
    fixed();
    refused();
    files();
    moved();
    segments();
    kinds();
    heap();
    return 0;
}
