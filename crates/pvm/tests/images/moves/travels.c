/* Tasks with open files on several hosts. Each has a way by its number. The first way moves between
 * all processes by itself, and the others wait for a file `go` of this folder. */
#define _GNU_SOURCE
#include "moves.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <upvm.h>

enum { PROCESSES = 3, ROUNDS = 7 };

static void travels(void)
{
    char text[64] = "", back[64];
    int me = pvm_mytid(), length;
    int lines = open("lines", O_RDWR | O_CREAT | O_TRUNC | O_EXCL, 0600), reads;
    int low = dup(lines), high = dup2(lines, 500), secret = fcntl(lines, F_DUPFD_CLOEXEC, 8);
    int added = open("log", O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    FILE *stream = fopen("stream", "w+");
    MUST(lines >= 0 && low == lines + 1 && high == 500 && secret == 8 && added >= 0 && stream);
    MUST(dup2(lines, 9) == 9);
    MUST((reads = open("lines", O_RDONLY | O_NONBLOCK)) > added && close(low) == 0);
    for (int round = 0, to = 1; round < ROUNDS; round++, to = (to + 1) % PROCESSES) {
        /* Duplicates share an offset, others do not, and flags stay. */
        length = sprintf(text, "line %d\n", round);
        MUST(write(round % 2 ? lines : high, text, length) == length);
        MUST(lseek(secret, 0, SEEK_CUR) == (round + 1) * length);
        MUST(read(reads, back, length) == length && !memcmp(text, back, length));
        MUST(write(added, text, length) == length);
        MUST(lseek(added, 0, SEEK_SET) == 0);
        MUST(fprintf(stream, "%d", round) == 1 && (round % 3 || fflush(stream) == 0));
        MUST(fcntl(lines, F_GETFD) == 0 && fcntl(high, F_GETFD) == 0);
        MUST(fcntl(secret, F_GETFD) == FD_CLOEXEC && fcntl(added, F_GETFD) == FD_CLOEXEC);
        MUST((fcntl(added, F_GETFL) & (O_ACCMODE | O_APPEND)) == (O_WRONLY | O_APPEND));
        MUST((fcntl(lines, F_GETFL) & (O_ACCMODE | O_APPEND | O_NONBLOCK)) == O_RDWR);
        MUST((fcntl(reads, F_GETFL) & (O_ACCMODE | O_NONBLOCK)) == O_NONBLOCK);
        /* Numbers that are closed stay closed. */
        MUST(close(low) < 0 && errno == EBADF);
        /* A host that was busy for long is asked again. */
        int done = 0;
        for (int try = 0; try < 100 && (done = upvm_migrate(me, to)) == PvmOutOfRes; try++)
            usleep(100000);
        MUST(done == 0 && upvm_process() == to);
    }
    MUST(dup(0) == low && close(low) == 0);
    MUST(system("echo child >&9") == 0 && system("{ echo no >&8; } 2>/dev/null") != 0);
    MUST(fclose(stream) == 0);
}

static void await(const char *name)
{
    struct timespec time = {0, 1000000};
    while (access(name, F_OK) != 0)
        nanosleep(&time, 0);
}

/* The task stays because of what it has open, or its file changes before it is opened again. */
static void waits(const char *way)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 10};
    int both[2] = {-1, -1}, file = -1;
    char back[8] = "";
    DIR *folder = 0;
    if (!strcmp(way, "pipe"))
        MUST(pipe(both) == 0);
    else if (!strcmp(way, "socket"))
        MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, both) == 0);
    else if (!strcmp(way, "event"))
        MUST((both[0] = eventfd(0, 0)) >= 0);
    else if (!strcmp(way, "device"))
        MUST((both[0] = open("/dev/zero", O_RDONLY)) >= 0);
    else if (!strcmp(way, "standard"))
        MUST((both[0] = dup(0)) >= 0);
    else if (!strcmp(way, "folder"))
        MUST((folder = opendir(".")) != 0);
    else
        MUST((file = open(way, O_RDWR | O_CREAT, 0600)) >= 0 && write(file, "ab", 2) == 2);
    if (!strcmp(way, "deleted"))
        MUST(unlink(way) == 0);
    if (!strcmp(way, "flock"))
        MUST(flock(file, LOCK_EX) == 0);
    if (!strcmp(way, "fcntl"))
        MUST(fcntl(file, F_SETLK, &lock) == 0);
    printf("%s t%x\n", way, pvm_mytid());
    fflush(stdout);
    await("go");
    if (file >= 0) {
        MUST(write(file, "cd", 2) == 2 && pread(file, back, 8, 0) >= 4);
        MUST(!memcmp(back, "abcd", 4));
    }
    if (both[1] >= 0)
        MUST(write(both[1], "x", 1) == 1 && read(both[0], back, 1) == 1 && *back == 'x');
    if (folder)
        MUST(readdir(folder) && closedir(folder) == 0);
}

int main(int argc, char **argv)
{
    int *all, count, at = 0;
    pvm_mytid();
    count = pvm_siblings(&all);
    while (at < count && all[at] != pvm_mytid())
        at++;
    const char *way = at + 1 < argc ? argv[at + 1] : "none";
    if (!strcmp(way, "travels"))
        travels();
    else
        waits(way);
    printf("%s is well\n", way);
    fflush(stdout);
    pvm_exit();
    return failed;
}
