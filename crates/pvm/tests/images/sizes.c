/* Uses as many MiB of its stack and of its heap as its arguments say, and so does a task that it
 * spawns. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "pvm3.h"

static long deep(long frames)
{
    volatile char room[4000];
    memset((void *)room, (int)frames, sizeof room);
    return frames > 0 ? deep(frames - 1) + (room[0] == (char)frames) : 0;
}

int main(int count, char **words)
{
    long frames = atol(words[1]) * 256;
    int child, parent = pvm_parent();
    volatile char *heap = malloc((atol(words[2]) << 20) + 1);
    if (!heap || deep(frames) != frames)
        return 1;
    heap[atol(words[2]) << 20] = 1;
    if (parent > 0) {
        pvm_initsend(PvmDataRaw);
        pvm_send(parent, 1);
    } else {
        if (pvm_spawn(words[0], words + 1, 0, "", 1, &child) != 1)
            return 2;
        pvm_recv(child, 1);
    }
    printf("%ld MiB\n", frames / 256);
    pvm_exit();
    return 0;
}
