/* Tasks with 100 KiB each, which check them after a while. */
#include <pvm3.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { COUNT = 25600 };

int main(void)
{
    int *all, n = pvm_siblings(&all), me = pvm_mytid();
    unsigned *data = malloc(COUNT * sizeof *data);
    for (unsigned i = 0; i < COUNT; i++)
        data[i] = i * me + 1;
    pvm_joingroup("large");
    pvm_barrier("large", n);
    if (me == all[0]) {
        printf("begun\n");
        fflush(stdout);
    }
    /* Long enough for a checkpoint, which keeps the time that is left. */
    sleep(5);
    for (unsigned i = 0; i < COUNT; i++)
        if (data[i] != i * me + 1) {
            printf("task %x: number %u is %u\n", me, i, data[i]);
            exit(1);
        }
    pvm_barrier("large", n);
    if (me == all[0])
        printf("whole\n");
    pvm_exit();
    return 0;
}
