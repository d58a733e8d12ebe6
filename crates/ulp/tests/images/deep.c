/* Uses as many MiB of its stack as its argument says, in frames of 4 KiB. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "image.h"

static long deep(long frames)
{
    volatile char room[4000];
    memset((void *)room, (int)frames, sizeof room);
    return frames > 0 ? deep(frames - 1) + (room[0] == (char)frames) : 0;
}

int main(int argc, char **argv)
{
    long frames = argc > 1 ? atol(argv[1]) * 256 : 0;
    uint64_t *table = upvm_table();
    printf("the stack begins at %#lx and has %lu KiB\n", table[UPVM_TABLE_STACK],
           ((uint64_t)table - table[UPVM_TABLE_STACK]) / 1024 + 1);
    /* libc's malloc maps in the slot, too, and nowhere else. */
    void *volatile more_than_all = malloc(UPVM_SLOT);
    return more_than_all ? 2 : deep(frames) == frames ? 0 : 1;
}
