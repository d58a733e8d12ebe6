/* Tasks that cannot be saved, each for the reason that the argument names, until signal 10. */
#include <fcntl.h>
#include <pvm3.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static volatile sig_atomic_t came;

static void note(int signal)
{
    came = 1;
}

int main(int argc, char **argv)
{
    int *all, n = pvm_siblings(&all), me = pvm_mytid();
    const char *why = argv[1];
    int file = -1, child = 0;
    void *map = 0;
    /* A call that the signal interrupts is not begun again. */
    sigaction(SIGUSR1, &(struct sigaction){.sa_handler = note}, 0);
    pvm_joingroup("unsaved");
    pvm_barrier("unsaved", n);
    if (me == all[1]) {
        if (!strcmp(why, "file"))
            file = open("/dev/null", O_RDONLY);
        if (!strcmp(why, "map")) {
            file = open("/bin/sh", O_RDONLY);
            map = mmap(0, 4096, PROT_READ, MAP_PRIVATE, file, 0);
            close(file);
            file = -1;
        }
        if (!strcmp(why, "child")) {
            char *args[] = {"sleep", "1000", 0};
            posix_spawnp(&child, args[0], 0, 0, args, environ);
        }
        printf("begun\n");
        fflush(stdout);
        if (!strcmp(why, "call")) {
            /* A helper waits for a writer, until the signal interrupts it. */
            mkfifo("names/fifo", 0600);
            open("names/fifo", O_RDONLY);
            unlink("names/fifo");
        }
    }
    while (!came)
        pause();
    if (me == all[1]) {
        if (file >= 0)
            close(file);
        if (map)
            munmap(map, 4096);
        if (child) {
            kill(child, 9);
            waitpid(child, 0, 0);
        }
        printf("free\n");
        fflush(stdout);
    }
    for (;;)
        sleep(1000);
}
