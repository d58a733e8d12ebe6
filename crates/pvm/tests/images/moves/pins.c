/* Tasks that cannot be moved, or that end while they are. Each task has a way by its number, and
 * waits for files of this folder: `go` lets it check what it has and end. */

#include "moves.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

extern char **environ;

static volatile int signals;

static void on_signal(int signal)
{
    (void)signal;
    signals++;
}

/* Waits for a file without holding one. */
static void await(const char *name)
{
    struct timespec time = {0, 1000000};
    while (access(name, F_OK) != 0)
        nanosleep(&time, 0);
}

/* A task at its place says that it waits now. The output is written at once. */
static void ready(const char *way)
{
    printf("%s t%x\n", way, pvm_mytid());
    fflush(stdout);
}

static void opened(void)
{
    char text[8] = "";
    FILE *file = fopen("opened", "w+");
    MUST(file && fputs("ab", file) >= 0 && fflush(file) == 0);
    ready("opened");
    await("go");
    MUST(fputs("cd", file) >= 0 && fflush(file) == 0 && fseek(file, 0, SEEK_SET) == 0);
    MUST(fgets(text, sizeof text, file) && !strcmp(text, "abcd") && fclose(file) == 0);
}

static void parent(void)
{
    char *args[] = {"sh", "-c", "while ! test -e go; do sleep 0.01; done; exit 7", 0};
    int status;
    pid_t child;
    MUST(posix_spawn(&child, "/bin/sh", 0, 0, args, environ) == 0);
    ready("parent");
    await("go");
    MUST(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 7);
}

static void systems(void)
{
    ready("systems");
    MUST(system("while ! test -e go; do sleep 0.01; done; exit 3") == 3 << 8);
}

static void aside(void)
{
    MUST(mkfifo("fifo", 0600) == 0);
    ready("aside");
    int from = open("fifo", O_RDONLY);
    MUST(from >= 0 && close(from) == 0);
    await("go");
}

static void mapped(void)
{
    int file = open("mapped", O_RDWR | O_CREAT, 0600);
    MUST(ftruncate(file, 4096) == 0);
    char *memory = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    MUST(memory != MAP_FAILED && close(file) == 0);
    memory[0] = 'x';
    ready("mapped");
    await("go");
    MUST(memory[0] == 'x' && munmap(memory, 4096) == 0);
}

static void told(void)
{
    int *descriptors;
    MUST(pvm_getfds(&descriptors) > 0);
    ready("told");
    await("go");
}

/* What each of these has must be the same at the end. */
static void plain(const char *way, size_t size)
{
    unsigned *memory = malloc(size);
    fill(memory, size / 4, 9);
    ready(way);
    if (!strcmp(way, "ends")) {
        await("end");
        exit(5);
    }
    if (!strcmp(way, "crashes")) {
        await("end");
        *(volatile int *)0 = 1;
    }
    if (!strcmp(way, "computes"))
        while (signals == 0)
            ;
    await("go");
    MUST(is_filled(memory, size / 4, 9));
    MUST(strcmp(way, "signalled") || signals == 1);
    free(memory);
}

/* Maps, unmaps and protects memory when there is a file `change`, and then makes `changed`. */
static void changes(const char *way, size_t size)
{
    enum { PART = 64 << 10 };
    unsigned *memory = malloc(size), *added = MAP_FAILED;
    int any = PROT_READ | PROT_WRITE;
    char *parts = mmap(0, 3 * PART, any, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(memory && parts != MAP_FAILED);
    fill(memory, size / 4, 9);
    for (int part = 0; part < 3; part++)
        fill((unsigned *)(parts + part * PART), PART / 4, part);
    ready(way);
    await("change");
    MUST(munmap(parts + PART, PART) == 0 && mprotect(parts, PART, PROT_READ) == 0);
    added = mmap(0, 5 * PART, any, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(added != MAP_FAILED);
    fill(added, 5 * PART / 4, 7);
    fill(memory, size / 4, 8);
    close(open("changed", O_CREAT | O_WRONLY, 0600));
    await("go");
    MUST(is_filled(memory, size / 4, 8) && is_filled(added, 5 * PART / 4, 7));
    MUST(is_filled((unsigned *)parts, PART / 4, 0));
    MUST(is_filled((unsigned *)(parts + 2 * PART), PART / 4, 2));
    /* What was unmapped is not there, and what was protected is. */
    int zeros = open("/dev/zero", O_RDONLY);
    MUST(read(zeros, parts + PART, 1) == -1 && errno == EFAULT);
    MUST(read(zeros, parts, 1) == -1 && errno == EFAULT);
    MUST(read(zeros, added, 1) == 1);
}

/* Gives pages back, and fills others with zeros, when there is a file `change`. */
static void drops(const char *way)
{
    enum { PART = 64 << 10 };
    char *parts = mmap(0, 3 * PART, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(parts != MAP_FAILED);
    fill((unsigned *)parts, 3 * PART / 4, 9);
    ready(way);
    await("change");
    MUST(madvise(parts, PART, MADV_DONTNEED) == 0);
    memset(parts + PART, 0, PART);
    close(open("changed", O_CREAT | O_WRONLY, 0600));
    await("go");
    for (int at = 0; at < 2 * PART; at++)
        MUST(parts[at] == 0);
    unsigned *last = malloc(3 * PART);
    fill(last, 3 * PART / 4, 9);
    MUST(!memcmp(parts + 2 * PART, (char *)last + 2 * PART, PART));
    free(last);
}

static void spawns(char *program)
{
    char *args[] = {"plain", 0};
    int tids[2];
    ready("spawns");
    await("spawn");
    MUST(pvm_spawn(program, args, 0, 0, 2, tids) == 2);
    await("go");
}

int main(int argc, char **argv)
{
    int *all, count, at = 0;
    signal(SIGUSR1, on_signal);
    pvm_mytid();
    count = pvm_siblings(&all);
    while (pvm_parent() == PvmNoParent && all[at] != pvm_mytid())
        at++;
    const char *way = at + 1 < argc ? argv[at + 1] : "plain";
    if (!strcmp(way, "opened"))
        opened();
    else if (!strcmp(way, "parent"))
        parent();
    else if (!strcmp(way, "systems"))
        systems();
    else if (!strcmp(way, "aside"))
        aside();
    else if (!strcmp(way, "mapped"))
        mapped();
    else if (!strcmp(way, "told"))
        told();
    else if (!strncmp(way, "changes", 7))
        changes(way, way[7] ? 4 << 20 : 100000);
    else if (!strcmp(way, "drops"))
        drops(way);
    else if (!strcmp(way, "spawns"))
        spawns(argv[0]);
    else
        plain(way, !strcmp(way, "large") ? 40 << 20 : 100000);
    (void)count;
    printf("%s is well\n", way);
    fflush(stdout);
    pvm_exit();
    return failed;
}
