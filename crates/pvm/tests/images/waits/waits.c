/* waits CASE: the first task waits as the case says, and the second counts its turns and ends the
 * wait. Runs in a folder of the test's own. */
#define _GNU_SOURCE
#include "roles.h"
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/un.h>

static char text[64];

static int fifo(void)
{
    CHECK(mkfifo("fifo", 0600) == 0);
    return open("fifo", O_RDWR);
}

static void wakes(int signal)
{
    (void)signal;
}

static void signals(void)
{
    CHECK(pvm_sendsig(tids[0], SIGUSR1) == 0);
}

static struct sockaddr_un address = {AF_UNIX, "socket"};

static void connects(void)
{
    int calls = socket(AF_UNIX, SOCK_STREAM, 0);
    CHECK(connect(calls, (void *)&address, sizeof address) == 0 && send(calls, "xyz", 3, 0) == 3 &&
          close(calls) == 0);
}

static void waits(const char *how)
{
    int status;
    if (!strcmp(how, "sleep")) {
        CHECK(signal(SIGUSR1, wakes) == SIG_DFL && usleep(10000) == 0);
        begins();
        CHECK(sleep(1000) > 0);
    } else if (!strcmp(how, "fifo")) {
        int from = fifo();
        pid_t child = shell(UNTIL_COUNTED "echo hello > fifo");
        begins();
        CHECK(read(from, text, sizeof text) == 6 && !strcmp(text, "hello\n"));
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        CHECK(waitpid(child, &status, 0) == -1 && errno == ECHILD);
    } else if (!strcmp(how, "open")) {
        CHECK(mkfifo("fifo", 0600) == 0);
        shell(UNTIL_COUNTED "echo hello > fifo");
        begins();
        FILE *from = fopen("fifo", "r");
        CHECK(from && fgets(text, sizeof text, from) && !strcmp(text, "hello\n"));
        CHECK(!fgets(text, sizeof text, from) && fclose(from) == 0 && wait(&status) > 0 &&
              wait(&status) == -1);
    } else if (!strcmp(how, "terminal")) {
        int master = posix_openpt(O_RDWR | O_NOCTTY), off = 0;
        CHECK(master >= 0 && grantpt(master) == 0 && unlockpt(master) == 0);
        char command[200];
        snprintf(command, sizeof command, UNTIL_COUNTED "echo typed > %s", ptsname(master));
        int own = open(ptsname(master), O_RDWR | O_NOCTTY);
        CHECK(own >= 0 && isatty(own));
        shell(command);
        begins();
        CHECK(read(master, text, sizeof text) == 7 && !strncmp(text, "typed", 5));
        (void)off;
    } else if (!strcmp(how, "write")) {
        int ends[2];
        CHECK(pipe(ends) == 0);
        pid_t child;
        posix_spawn_file_actions_t actions;
        posix_spawn_file_actions_init(&actions);
        posix_spawn_file_actions_adddup2(&actions, ends[0], 0);
        posix_spawn_file_actions_addclose(&actions, ends[1]);
        char *args[] = {"sh", "-c", UNTIL_COUNTED "wc -c > size", 0};
        CHECK(posix_spawn(&child, "/bin/sh", &actions, 0, args, 0) == 0);
        char *bytes = calloc(1, 1 << 20);
        begins();
        CHECK(write(ends[1], bytes, 1 << 20) == 1 << 20);
        close(ends[1]);
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        FILE *size = fopen("size", "r");
        CHECK(size && fgets(text, sizeof text, size) && atol(text) == 1 << 20);
    } else if (!strcmp(how, "child")) {
        pid_t child = shell(UNTIL_COUNTED "exit 5");
        CHECK(waitpid(child, &status, WNOHANG) == 0);
        begins();
        CHECK(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 5);
    } else if (!strcmp(how, "children")) {
        pid_t slow = shell(UNTIL_COUNTED "exit 0"), fast = shell("exit 1");
        CHECK(wait(&status) == fast);
        begins();
        CHECK(wait(0) == slow && wait(0) == -1 && errno == ECHILD);
    } else if (!strcmp(how, "aside")) {
        pid_t child = shell(UNTIL_COUNTED "exit 6");
        begins();
        CHECK(waitpid(child, &status, WUNTRACED) == child && WEXITSTATUS(status) == 6);
    } else if (!strcmp(how, "system")) {
        begins();
        CHECK(system(UNTIL_COUNTED "exit 3") == 3 << 8);
    } else if (!strcmp(how, "popen")) {
        begins();
        FILE *from = popen(UNTIL_COUNTED "echo hello; exit 4", "r");
        CHECK(from && fgets(text, sizeof text, from) && !strcmp(text, "hello\n"));
        CHECK(pclose(from) == 4 << 8);
    } else if (!strcmp(how, "poll")) {
        int from = fifo();
        struct pollfd all[2] = {{from, POLLIN, 0}, {from, POLLPRI, 0}};
        CHECK(poll(all, 1, 100) == 0 && poll(all, 2, 100) == 0);
        shell(UNTIL_COUNTED "echo hello > fifo");
        begins();
        CHECK(poll(all, 2, -1) == 1 && all[0].revents == POLLIN && !all[1].revents);
        CHECK(poll(all, 1, 1000) == 1 && poll(0, 0, 50) == 0);
    } else if (!strcmp(how, "select")) {
        int from = fifo();
        fd_set reads;
        FD_ZERO(&reads);
        FD_SET(from, &reads);
        struct timeval time = {0, 100000};
        CHECK(select(from + 1, &reads, 0, 0, &time) == 0 && !FD_ISSET(from, &reads) &&
              !time.tv_sec && !time.tv_usec);
        shell(UNTIL_COUNTED "echo hello > fifo");
        FD_SET(from, &reads);
        time.tv_sec = 1000;
        begins();
        CHECK(select(from + 1, &reads, 0, 0, &time) == 1 && FD_ISSET(from, &reads));
        CHECK(time.tv_sec > 0 && time.tv_sec < 1000);
        FD_SET(from + 100, &reads);
        CHECK(select(from + 101, &reads, 0, 0, 0) == -1 && errno == EBADF);
    } else if (!strcmp(how, "epoll")) {
        int from = fifo(), epoll = epoll_create1(0);
        struct epoll_event event = {.events = EPOLLIN, .data.u64 = 77};
        CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, from, &event) == 0);
        event.data.u64 = 0;
        CHECK(epoll_wait(epoll, &event, 1, 100) == 0);
        shell(UNTIL_COUNTED "echo hello > fifo");
        begins();
        CHECK(epoll_wait(epoll, &event, 1, -1) == 1 && event.data.u64 == 77);
    } else if (!strcmp(how, "socket")) {
        int listens = socket(AF_UNIX, SOCK_STREAM, 0), calls = socket(AF_UNIX, SOCK_STREAM, 0);
        CHECK(bind(listens, (void *)&address, sizeof address) == 0 && listen(listens, 5) == 0);
        CHECK(connect(calls, (void *)&address, sizeof address) == 0);
        int hears = accept(listens, 0, 0);
        CHECK(hears > 2 && send(calls, "abc", 3, 0) == 3 && recv(hears, text, 3, MSG_WAITALL) == 3);
        struct timeval time = {0, 10000};
        CHECK(setsockopt(hears, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time) == 0);
        CHECK(recv(hears, text, 3, 0) == -1 && errno == EAGAIN);
        CHECK(recv(hears, text, 3, MSG_DONTWAIT) == -1 && errno == EAGAIN);
        CHECK(close(calls) == 0 && recv(hears, text, 3, 0) == 0);
        CHECK(send(hears, "x", 1, MSG_NOSIGNAL) == -1 && errno == EPIPE);
        begins();
        CHECK((hears = accept(listens, 0, 0)) > 2 && recv(hears, text, 3, 0) == 3 &&
              !memcmp(text, "xyz", 3));
    } else if (!strcmp(how, "lock")) {
        int file = open("lock", O_RDWR | O_CREAT, 0600);
        shell("exec 9< lock; flock 9; : > locked; " UNTIL_COUNTED "exit 0");
        while (access("locked", F_OK))
            usleep(1000);
        CHECK(flock(file, LOCK_EX | LOCK_NB) == -1 && errno == EWOULDBLOCK);
        begins();
        CHECK(flock(file, LOCK_EX) == 0);
    } else if (!strcmp(how, "sync")) {
        FILE *file = fopen("file", "w+");
        for (int line = 0; line < 100000; line++)
            fprintf(file, "%d\n", line);
        CHECK(fflush(file) == 0 && fsync(fileno(file)) == 0 && fdatasync(fileno(file)) == 0);
        /* Evicts the file from memory, if the file system does so, and reads it again. */
        posix_fadvise(fileno(file), 0, 0, POSIX_FADV_DONTNEED);
        rewind(file);
        int number = 0;
        for (int line = 0; line < 100000; line++)
            CHECK(fscanf(file, "%d", &number) == 1 && number == line);
        char *all = malloc(1 << 20);
        posix_fadvise(fileno(file), 0, 0, POSIX_FADV_DONTNEED);
        CHECK(pread(fileno(file), all, 1 << 20, 10) == 588890 - 10 && all[0] == '5');
        begins();
        CHECK(waitpid(shell(UNTIL_COUNTED "exit 0"), &status, 0) > 0);
    }
    CHECK(!access("counted", F_OK));
}

int main(int argc, char **argv)
{
    int own = role();
    if (own == 1)
        count(!strcmp(argv[1], "sleep") ? signals : !strcmp(argv[1], "socket") ? connects : 0);
    if (own)
        return 0;
    waits(argv[1]);
    tell(tids[1], DONE);
    puts("done");
    return 0;
}
