/* pinned HOW: asks where it can move, then does what keeps it from moving, and asks again, and then
 * ends that, and asks a third time. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include "image.h"

static void ask(void)
{
    UPVM_ASK(upvm_table(), UPVM_ASK_OWN, 0, 0, 0, 0);
}

static void handle(int number)
{
    (void)number;
    ask();
}

int main(int argc, char **argv)
{
    extern char **environ;
    uint64_t *table = upvm_table();
    char *again[] = {"true", 0};
    /* Within the slot, far above the heap. */
    char *place = (char *)(((uintptr_t)table & -UPVM_SLOT) + (900ul << 20));
    int status, file, pipes[2];
    pid_t child;
    ask();
    switch (argv[1][0]) {
    case 'd': /* a descriptor */
        file = open("/dev/null", O_RDONLY);
        ask();
        close(file);
        break;
    case 'm': /* a file in memory */
        file = open("/proc/self/exe", O_RDONLY);
        if (mmap(place, 4096, PROT_READ, MAP_PRIVATE | MAP_FIXED, file, 0) != place)
            return 1;
        close(file);
        ask();
        munmap(place, 4096);
        break;
    case 's': /* shared memory */
        if (mmap(place, 4096, PROT_READ, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != place)
            return 1;
        ask();
        munmap(place, 4096);
        break;
    case 'n': /* many mappings */
        for (int page = 0; page < 1100; page++)
            mprotect(place + page * 8192, 4096, PROT_READ);
        ask();
        mprotect(place, 1100 * 8192, PROT_READ | PROT_WRITE);
        break;
    case 'c': /* a child */
        if (posix_spawnp(&child, "true", 0, 0, again, environ))
            return 2;
        ask();
        if (waitpid(child, &status, 0) != child)
            return 3;
        break;
    case 'w': { /* a wait for several descriptors of the process */
        struct pollfd both[2] = {{0, POLLIN, 0}, {0, POLLPRI, 0}};
        poll(both, 2, 1000000);
        break;
    }
    case 'h': /* a handler that runs while the library waits, and asks */
        signal(SIGUSR1, handle);
        usleep(1000000);
        break;
    case 'g': { /* the address of the gate on the stack */
        volatile uint64_t gate = table[UPVM_TABLE_GATE];
        ask();
        gate = 0;
        break;
    }
    }
    ask();
    return 0;
}
