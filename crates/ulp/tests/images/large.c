/* Needs more memory than one slot has: as variables, on the heap, and mapped. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "image.h"

#define LARGE (1100ul << 20)

static char zeros[1900ul << 20];

/* Writes a word in each MiB, and reads them again. Returns 1 if all is well. */
static int works(char *at, unsigned long length, char what)
{
    for (unsigned long byte = 0; byte < length; byte += 1 << 20) {
        if (at[byte])
            return 0;
        at[byte] = what;
    }
    at[length - 1] = what;
    for (unsigned long byte = 0; byte < length; byte += 1 << 20)
        if (at[byte] != what)
            return 0;
    return 1;
}

int main(int argc, char **argv)
{
    char *slot = (char *)((uintptr_t)upvm_table() & -UPVM_SLOT);
    char *map = mmap(0, LARGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map < slot + 3 * UPVM_SLOT || map + LARGE > slot + 5 * UPVM_SLOT)
        return 1;
    switch (argv[1][0]) {
    case 'c':
        munmap(map, LARGE);
        return map[LARGE - 1];
    case 'j': /* code in the last slot, that jumps to itself */
        memcpy(map + LARGE - 16, "\xeb\xfe", 2);
        mprotect(map + LARGE - UPVM_PAGE, UPVM_PAGE, PROT_READ | PROT_EXEC);
        ((void (*)(void))(map + LARGE - 16))();
    }
    /* The entry of this descriptor is above all memory of the program. */
    if (dup2(1, 100) != 100)
        return 4;
    char *heap = malloc(LARGE);
    if (!heap || heap > map || !works(zeros, sizeof zeros, 1) || !works(heap, LARGE, 2))
        return 2;
    if (!works(map, LARGE, 3) || mprotect(map, LARGE, PROT_NONE) || munmap(map, LARGE))
        return 3;
    free(heap);
    return close(100) ? 5 : 0;
}
