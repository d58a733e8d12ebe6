/* Keeps state of every kind, asks in between, and checks that the state is its own. */
#include <errno.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "image.h"

int counter = 100;
static char *name;
static __thread int local = 7;
static char zeros[1 << 20];

static void at_end(void)
{
    printf("%s ends\n", name);
}

int main(int argc, char **argv)
{
    uint64_t *table = upvm_table();
    int number = atoi(argv[1]), rounds = argc > 2 ? atoi(argv[2]) : 3;
    char tokens[] = "a b c";
    counter += number, local += number, errno = number;
    name = malloc(32);
    sprintf(name, "ulp %d", number);
    srand(number);
    int first = rand();
    srand(number);
    strtok(tokens, " ");
    zeros[number] = 1;
    atexit(at_end);
    setvbuf(stdout, 0, _IOFBF, 4096);
    printf("%s begins\n", name);
    for (int round = 0; round < rounds; round++) {
        long reply = UPVM_ASK(table, UPVM_ASK_OWN, number, round, (long)&counter, 0);
        if (reply != number * 1000 + round)
            return 1;
        counter++;
    }
    if (counter != 100 + number + rounds || local != 7 + number || errno != number)
        return 2;
    if (rand() != first || strcmp(strtok(0, " "), "b") || zeros[number] != 1)
        return 3;
    char *big = malloc(8 << 20), *again;
    memset(big, number, 8 << 20);
    free(big);
    again = calloc(1, 8 << 20);
    for (int at = 0; at < 8 << 20; at += 512)
        if (again[at])
            return 4;
    if (!aligned_alloc(4096, 8192) ||
        (uintptr_t)again / UPVM_SLOT != (uintptr_t)&counter / UPVM_SLOT)
        return 5;
    if ((uintptr_t)&local / UPVM_SLOT != (uintptr_t)&counter / UPVM_SLOT ||
        (uintptr_t)&errno / UPVM_SLOT != (uintptr_t)&counter / UPVM_SLOT)
        return 6;
    /* A child has this memory until it has failed, and must not ask the host. */
    pid_t child;
    char *none[] = {"none", 0};
    if (posix_spawn(&child, "/nowhere/at/all", 0, 0, none, none) != ENOENT)
        return 7;
    struct timespec before, after;
    if (clock_gettime(CLOCK_MONOTONIC, &before) || clock_gettime(CLOCK_MONOTONIC, &after) ||
        after.tv_sec < before.tv_sec)
        return 8;
    if (clock_gettime(-99, &after) != -1 || errno != EINVAL || time(0) < 1700000000)
        return 9;
    return number + 10;
}
