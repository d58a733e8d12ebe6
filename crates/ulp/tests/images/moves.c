/* moves ROUNDS KIB: keeps state of every kind, asks in between, and checks that nothing has changed
 * that a move to another process must not change. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <fenv.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include "image.h"

#define DEPTH 1000
#define MAP (64l << 10)

static long counter = 100;
static char zeros[1 << 16];
static __thread long local = 7;
static volatile int handled;
static volatile double third = 1, by = 3;
static FILE *stream;
static char *text;
static size_t text_length;

#define CHECK(what)                                                    \
    do {                                                               \
        if (!(what)) {                                                 \
            fprintf(stderr, "line %d: %s, errno %d\n", __LINE__, #what, errno); \
            _exit(99);                                                 \
        }                                                              \
    } while (0)

static void handle(int number)
{
    handled += number == SIGUSR1;
}

static unsigned long base(void)
{
    unsigned long fs;
    __asm__ volatile("rdfsbase %0" : "=r"(fs));
    return fs;
}

static long now(void)
{
    struct timespec time;
    CHECK(!clock_gettime(CLOCK_MONOTONIC, &time));
    return time.tv_sec * 1000000000 + time.tv_nsec;
}

static long used(void)
{
    struct timespec time;
    CHECK(!clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time));
    return time.tv_sec * 1000000000 + time.tv_nsec;
}

static long *map(void)
{
    long *at = mmap(0, MAP, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED && !at[0] && !at[MAP / 8 - 1]);
    return at;
}

static void ask(long round)
{
    unsigned long fs = base();
    long before = now(), time = used();
    errno = round;
    long reply = UPVM_ASK(upvm_table(), UPVM_ASK_OWN, round, counter, local, handled);
    CHECK(errno == round);
    CHECK(reply == round * 3 && base() == fs && now() >= before);
    CHECK(used() >= time);
}

/* Asks at the deepest point, with a frame of its own at each level. */
static long deep(int depth, long round)
{
    volatile long frame[30];
    for (int word = 0; word < 30; word++)
        frame[word] = depth * 31 + word + round;
    if (depth)
        deep(depth - 1, round);
    else
        ask(round);
    for (int word = 0; word < 30; word++)
        CHECK(frame[word] == depth * 31 + word + round);
    return frame[0];
}

static void at_end(void)
{
    ask(-1);
    printf("ends after %ld rounds\n", counter - 100);
}

static int rounding(void)
{
    unsigned short x87;
    __asm__ volatile("fnstcw %0" : "=m"(x87));
    return fegetround() | (x87 & 0xc00) << 16;
}

int main(int argc, char **argv)
{
    long rounds = atol(argv[1]), words = atol(argv[2]) * 128, *heap = malloc(words * 8);
    sigset_t usr1, pending;
    long *mapped = map();
    pid_t own = getpid(), parent = getppid();
    setvbuf(stdout, 0, _IOFBF, 1 << 14);
    printf("begins\n");
    stream = open_memstream(&text, &text_length);
    atexit(at_end);
    CHECK(heap && stream && signal(SIGUSR1, handle) == SIG_DFL);
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    for (long word = 0; word < words; word++)
        heap[word] = word * 0x9e3779b97f4a7c15ul;
    fesetround(FE_UPWARD);
    int rounds_up = rounding();
    double up = third / by;
    for (long round = 1; round <= rounds; round++) {
        CHECK(!sigprocmask(SIG_BLOCK, &usr1, 0) && !raise(SIGUSR1) && handled == round - 1);
        deep(round % 3 ? 3 : DEPTH, round);
        CHECK(!sigpending(&pending) && sigismember(&pending, SIGUSR1));
        CHECK(!sigprocmask(SIG_UNBLOCK, &usr1, 0) && handled == round);
        CHECK(rounding() == rounds_up && third / by == up && getpid() == own);
        CHECK(getppid() == parent && open("/dev/null", O_RDONLY) == 3 && !close(3));
        /* The list of the maps goes with the program, too. */
        long *other = map();
        other[0] = mapped[round] = round;
        CHECK((other >= mapped + MAP / 8 || other + MAP / 8 <= mapped) && !munmap(other, MAP));
        counter++, local += round;
        zeros[round * 61 % sizeof zeros]++;
        fprintf(stream, "%ld,", round);
        printf("line %ld\n", round);
        /* Some pages change in each round, and each page was in some process before. */
        for (long word = round % 512; word < words; word += 512 * 7)
            heap[word] += round;
        void *more = calloc(round % 50, 1000);
        for (long byte = 0; byte < round % 50 * 1000; byte++)
            CHECK(!((char *)more)[byte]);
        memset(more, 1, round % 50 * 1000);
        free(more);
    }
    unsigned long sum = local;
    for (long word = 0; word < words; word++)
        sum = (sum ^ heap[word]) * 0xff51afd7ed558ccdul;
    for (unsigned at = 0; at < sizeof zeros; at++)
        sum = sum * 31 + zeros[at];
    for (long word = 0; word < MAP / 8; word++)
        CHECK(mapped[word] == (word <= rounds ? word : 0));
    fclose(stream);
    for (unsigned at = 0; at < text_length; at++)
        sum = sum * 31 + text[at];
    UPVM_ASK(upvm_table(), UPVM_ASK_OWN + 1, sum, counter, local, handled);
    return 7;
}
