/* Tasks' own descriptors and folders; tasks that end during a system call on a helper thread; and
 * waiting tasks, which use no processor. */
#define _GNU_SOURCE
#include "roles.h"
#include <dirent.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/stat.h>

#define READY 1
#define TOLD 2
#define GO 3

static int descriptors(void)
{
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    while (folder && readdir(folder))
        count++;
    CHECK(folder && closedir(folder) == 0);
    return count;
}

static void closes(void)
{
    struct stat about;
    CHECK(close(0) == 0 && close(0) == -1 && errno == EBADF && read(0, &about, 1) == -1 &&
          errno == EBADF);
    struct pollfd one = {0, POLLIN, 0};
    CHECK(poll(&one, 1, 0) == 1 && one.revents == POLLNVAL);
    CHECK(open("zero", O_RDWR | O_CREAT, 0600) == 0 && write(0, "abc", 3) == 3 &&
          lseek(0, 0, SEEK_END) == 3);
    CHECK(fstat(0, &about) == 0 && S_ISREG(about.st_mode) && about.st_size == 3);
    CHECK(poll(&one, 1, 0) == 1 && one.fd == 0 && one.revents == POLLIN);
    /* All descriptors that the task may have. */
    closefrom(3);
    for (int one = 0; one < 3; one++)
        close(one);
    CHECK(printf("nobody sees this\n") > 0 && fflush(stdout) == EOF && errno == EBADF);
}

static void redirects(void)
{
    CHECK(freopen("out", "w", stdout) && fileno(stdout) == 1 && puts("first") > 0 &&
          fflush(stdout) == 0);
    CHECK(system("echo second; exec 2>&1; exec cat /dev/null") == 0);
    int copy = dup(1), other = open("other", O_WRONLY | O_CREAT, 0600);
    CHECK(copy > 2 && other > 2 && dup2(other, 1) == 1 && close(other) == 0 && puts("third") > 0 &&
          fflush(stdout) == 0);
    CHECK(dup2(copy, STDOUT_FILENO) == 1 && puts("fourth") > 0 && fclose(stdout) == 0);
    char text[100] = "";
    int out = open("out", O_RDONLY), three = open("other", O_RDONLY);
    CHECK(read(out, text, sizeof text) == 20 && !strcmp(text, "first\nsecond\nfourth\n"));
    CHECK(read(three, text, sizeof text) == 6 && !memcmp(text, "third\n", 6));
}

static void leaves(void)
{
    int ends[2];
    for (int one = 0; one < 20; one++)
        CHECK(fopen("/dev/null", "r") && pipe(ends) == 0 && dup(ends[0]) > 0);
}

static void inherits(void)
{
    /* The child ends by SIGPIPE, as in any process. */
    FILE *many = popen("trap '' INT; yes; echo $? > yes.status", "r");
    char line[8];
    CHECK(many && fgets(line, sizeof line, many) && !strcmp(line, "y\n") && pclose(many) >= 0);
    FILE *status = fopen("yes.status", "r");
    CHECK(status && fgets(line, sizeof line, status) && atoi(line) == 128 + SIGPIPE);
    char command[100];
    int given = open("/dev/null", O_RDONLY), kept = open("/dev/null", O_RDONLY | O_CLOEXEC);
    snprintf(command, sizeof command, "test -e /proc/self/fd/%d && test ! -e /proc/self/fd/%d",
             given, kept);
    CHECK(system(command) == 0);
    CHECK(fcntl(kept, F_SETFD, 0) == 0 && fcntl(given, F_SETFD, FD_CLOEXEC) == 0 &&
          fcntl(given, F_GETFD) == FD_CLOEXEC);
    snprintf(command, sizeof command, "test ! -e /proc/self/fd/%d && test -e /proc/self/fd/%d",
             given, kept);
    CHECK(system(command) == 0);
}

/* Each task changes to its own folder, while it takes turns with the others. */
static void moves(void)
{
    char name[32], place[256], here[256];
    snprintf(name, sizeof name, "folder.%x", pvm_mytid());
    CHECK(getcwd(here, sizeof here) && mkdir(name, 0700) == 0 && chdir(name) == 0 &&
          getcwd(place, sizeof place));
    CHECK(strlen(place) == strlen(here) + 1 + strlen(name) &&
          !strcmp(place + strlen(here) + 1, name));
    for (int round = 0; round < 50; round++) {
        CHECK(getcwd(here, sizeof here) && !strcmp(here, place));
        pvm_nrecv(-1, 999);
    }
    fclose(fopen("mark", "w"));
    CHECK(system("test -e mark") == 0 && chdir("nothing") == -1 && errno == ENOENT &&
          chdir("..") == 0);
    CHECK(chdir("/") == 0 && getcwd(here, sizeof here) && !strcmp(here, "/"));
}

/* Waits in the kernel until it is killed: in an open, for a lock, or for a child's end. */
static void hangs(int how)
{
    char name[32];
    snprintf(name, sizeof name, "hang.%x", pvm_mytid());
    CHECK(mkfifo(name, 0600) == 0);
    tell(pvm_parent(), READY);
    struct flock lock = {.l_type = F_WRLCK};
    int status, file, ends[2];
    switch (how % 3) {
    case 0: open(name, O_RDONLY); break;
    case 1:
        file = open("hang.lock", O_RDWR | O_CREAT, 0600);
        fcntl(file, F_OFD_SETLKW, &lock);
        break;
    default:
        /* The child ends after this task, because its input ends then. */
        CHECK(pipe2(ends, O_CLOEXEC) == 0 && dup2(ends[0], 0) == 0);
        waitpid(shell("exec cat"), &status, WUNTRACED);
    }
    CHECK(!"killed");
}

static void waits_idle(int how)
{
    struct pollfd one = {open("idle", O_RDWR), POLLIN, 0};
    char byte;
    tell(pvm_parent(), READY);
    switch (how % 4) {
    case 0: CHECK(open("idle.other", O_RDONLY) > 2); break;
    case 1: CHECK(poll(&one, 1, -1) == 1); break;
    case 2: CHECK(pvm_recv(pvm_parent(), GO) > 0); break;
    default: CHECK(read(one.fd, &byte, 1) == 1);
    }
}

static int start(char *own, const char *what, int how)
{
    char number[12], *args[] = {(char *)what, number, 0};
    int tid;
    snprintf(number, sizeof number, "%d", how);
    CHECK(pvm_spawn(own, args, 0, 0, 1, &tid) == 1 && pvm_notify(PvmTaskExit, 100, 1, &tid) == 0);
    return tid;
}

static void until_ended(int count)
{
    struct timeval time = {60, 0};
    while (count--)
        CHECK(pvm_trecv(-1, 100, &time) > 0);
}

/* The kernel's notice of a task's end can overtake what the task has sent. */
static void told(int count)
{
    struct timeval time = {60, 0};
    while (count--)
        CHECK(pvm_trecv(-1, TOLD, &time) > 0);
}

static double used(long *woken)
{
    struct rusage all;
    CHECK(getrusage(RUSAGE_SELF, &all) == 0);
    *woken = all.ru_nvcsw;
    return all.ru_utime.tv_sec + all.ru_stime.tv_sec +
           (all.ru_utime.tv_usec + all.ru_stime.tv_usec) / 1e6;
}

static void messages(char *own)
{
    int *all, given;
    char byte;
    fd_set reads;
    CHECK(mkfifo("input", 0600) == 0 && (given = open("input", O_RDWR)) > 2);
    CHECK(pvm_getfds(&all) == 1 && pvm_getfds(&all) == 1);
    int bell = all[0];
    char *args[] = {"tells", "0", 0};
    CHECK(pvm_spawn(own, args, 0, 0, 1, 0) == 1);
    for (int round = 0; round < 3; round++) {
        FD_ZERO(&reads);
        FD_SET(bell, &reads);
        FD_SET(given, &reads);
        CHECK(select((bell > given ? bell : given) + 1, &reads, 0, 0, 0) == 1);
        if (FD_ISSET(given, &reads)) {
            CHECK(round == 1 && read(given, &byte, 1) == 1);
            tell(pvm_mytid(), TOLD);
            continue;
        }
        CHECK(round != 1 && pvm_nrecv(-1, TOLD) > 0);
        if (round == 2)
            return;
        struct pollfd one = {bell, POLLIN, 0};
        CHECK(poll(&one, 1, 0) == 0);
        CHECK(write(given, "x", 1) == 1);
    }
}

int main(int argc, char **argv)
{
    if (argc > 1) {
        int how = atoi(argv[2]);
        if (!strcmp(argv[1], "closes"))
            closes();
        else if (!strcmp(argv[1], "redirects"))
            redirects();
        else if (!strcmp(argv[1], "leaves"))
            leaves();
        else if (!strcmp(argv[1], "inherits"))
            inherits();
        else if (!strcmp(argv[1], "moves"))
            moves();
        else if (!strcmp(argv[1], "hangs"))
            hangs(how);
        else if (!strcmp(argv[1], "idle"))
            waits_idle(how);
        else if (!strcmp(argv[1], "tells")) {
            usleep(100000);
            tell(pvm_parent(), TOLD);
            return 0;
        }
        if (strcmp(argv[1], "closes"))
            tell(pvm_parent(), TOLD);
        return 0;
    }
    /* The first of these tasks may leave a descriptor of libc's open, and the first system call on
     * a helper thread leaves one of the host's. */
    int synced = creat("synced", 0600);
    CHECK(synced > 2 && fsync(synced) == 0 && close(synced) == 0);
    start(argv[0], "leaves", 0);
    until_ended(1);
    told(1);
    /* The first tasks open descriptors that stay: queues between the processes, with the first
     * message through them. A leak grows with each turn. */
    int before, now = descriptors(), turns = 0;
    do {
        before = now;
        start(argv[0], "leaves", 0);
        start(argv[0], "closes", 0);
        start(argv[0], "redirects", 0);
        start(argv[0], "inherits", 0);
        until_ended(4);
        told(3);
        now = descriptors();
    } while (now != before && ++turns < 20);
    CHECK(now == before);
    char here[256], there[256];
    CHECK(getcwd(here, sizeof here));
    for (int one = 0; one < 5; one++)
        start(argv[0], "moves", 0);
    until_ended(5);
    told(5);
    CHECK(getcwd(there, sizeof there) && !strcmp(here, there));
    messages(argv[0]);
    printf("own\n");

    int lock = open("hang.lock", O_RDWR | O_CREAT, 0600);
    struct flock all = {.l_type = F_WRLCK};
    CHECK(fcntl(lock, F_OFD_SETLK, &all) == 0);
    for (int round = 0; round < 3; round++) {
        int hung[30];
        for (int one = 0; one < 30; one++)
            hung[one] = start(argv[0], "hangs", one);
        for (int one = 0; one < 30; one++)
            CHECK(pvm_recv(hung[one], READY) > 0);
        usleep(round * 20000);
        for (int one = 0; one < 30; one++)
            CHECK(pvm_kill(hung[one]) == 0);
        until_ended(30);
    }
    printf("killed\n");

    CHECK(mkfifo("idle", 0600) == 0 && mkfifo("idle.other", 0600) == 0);
    int idle[40];
    for (int one = 0; one < 40; one++)
        idle[one] = start(argv[0], "idle", one);
    for (int one = 0; one < 40; one++)
        CHECK(pvm_recv(idle[one], READY) > 0);
    /* On a busy machine earlier work may still be ending, so one quiet second of 30 is enough. The
     * cost of a wake-up depends on the machine. A task that never sleeps is not woken, but uses
     * processor time. */
    int quiet = 0;
    for (int second = 0; second < 30 && !quiet; second++) {
        long before_it, woken;
        double began = used(&before_it);
        sleep(1);
        double took = used(&woken) - began;
        woken -= before_it;
        printf("idle: woken %ld times, %.1f ms of processor in a second\n", woken, took * 1000);
        quiet = woken < 40 && took < 0.5;
    }
    CHECK(quiet);
    int other = open("idle.other", O_RDWR), first = open("idle", O_RDWR);
    for (int one = 2; one < 40; one += 4)
        tell(idle[one], GO);
    CHECK(other > 2 && write(first, "0123456789", 10) == 10);
    for (int one = 0; one < 40; one++) {
        /* Polling tasks see nothing if reading tasks were first. */
        struct timeval time = {0, 300000};
        if (!pvm_trecv(-1, TOLD, &time))
            CHECK(write(first, "x", 1) == 1);
    }
    until_ended(40);
    puts("done");
    return 0;
}
