/* files WHAT …: descriptors of its own. Asks the host when another program is to go on. */
#define _GNU_SOURCE
#include "calls.h"
#include <fcntl.h>
#include <linux/close_range.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what)                                                                          \
    do                                                                                       \
        if (!(what)) {                                                                       \
            fprintf(stderr, "%s:%d: %s (errno %d)\n", __func__, __LINE__, #what, errno);     \
            _exit(1);                                                                        \
        }                                                                                    \
    while (0)
#define IS_BAD(call) (errno = 0, (call) == -1 && errno == EBADF)

static void tell(long number)
{
    UPVM_ASK(upvm_table(), 16, number, 0, 0, 0);
}

static void turn(void)
{
    tell(0);
}

static int made(const char *name)
{
    int file = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(file >= 0 && write(file, name, strlen(name)) == (ssize_t)strlen(name));
    return file;
}

static int holds(int file, const char *name)
{
    char text[100] = "";
    return pread(file, text, sizeof text - 1, 0) == (ssize_t)strlen(name) && !strcmp(text, name);
}

/* Two of these take turns. `own` is a number that the other one does not have. */
static void turns(const char *name, int own, int others)
{
    struct pollfd one = {own, POLLOUT, 0}, other = {others, POLLOUT, 0};
    CHECK(made(name) == 3);
    turn();
    CHECK(holds(3, name) && dup2(3, 100) == 100 && dup2(3, 1000) == 1000 && dup2(3, own) == own);
    turn();
    CHECK(holds(100, name) && holds(1000, name) && holds(own, name));
    CHECK(IS_BAD(close(others)) && IS_BAD(read(others, (char[1]){0}, 1)) &&
          IS_BAD(fcntl(others, F_GETFD)) && IS_BAD(dup(others)) && IS_BAD(dup2(others, 5)) &&
          IS_BAD(lseek(others, 0, SEEK_SET)) && IS_BAD(fstat(others, &(struct stat){0})));
    CHECK(poll(&one, 1, 0) == 1 && one.revents == POLLOUT && one.fd == own);
    CHECK(poll(&other, 1, 0) == 1 && other.revents == POLLNVAL && other.fd == others);
    other.fd = -1;
    CHECK(poll(&other, 1, 0) == 0);
    turn();
    CHECK(close(3) == 0 && IS_BAD(close(3)) && holds(own, name));
    turn();
    CHECK(dup(100) == 3 && dup(100) == 4 && fcntl(3, F_DUPFD, 200) == 200);
    CHECK(dup2(4, 3) == 3 && dup2(3, 3) == 3 && dup2(4, 1000) == 1000 && close(4) == 0);
    int ends[2];
    CHECK(pipe(ends) == 0 && ends[0] == 4 && ends[1] == 5 && socket(AF_UNIX, SOCK_STREAM, 0) == 6);
    turn();
    fd_set reads, writes;
    FD_ZERO(&reads);
    FD_ZERO(&writes);
    FD_SET(4, &reads);
    FD_SET(1000, &writes);
    CHECK(select(1001, &reads, &writes, 0, &(struct timeval){0, 0}) == 1 &&
          FD_ISSET(1000, &writes) && !FD_ISSET(4, &reads));
    FD_ZERO(&reads);
    FD_SET(others, &reads);
    CHECK(IS_BAD(select(1001, &reads, 0, 0, &(struct timeval){0, 0})));
    struct epoll_event event = {.events = EPOLLIN, .data.fd = 4}, found;
    int epoll = epoll_create1(0);
    CHECK(epoll == 7 && epoll_ctl(epoll, EPOLL_CTL_ADD, 4, &event) == 0 &&
          IS_BAD(epoll_ctl(epoll, EPOLL_CTL_ADD, others, &event)) &&
          epoll_wait(epoll, &found, 1, 0) == 0 && write(5, "x", 1) == 1 &&
          epoll_wait(epoll, &found, 1, -1) == 1 && found.data.fd == 4);
    turn();
    /* A program that closes all that there may be closes only its own. */
    CHECK(close_range(4, 99, CLOSE_RANGE_CLOEXEC) == 0 && fcntl(5, F_GETFD) == FD_CLOEXEC &&
          fcntl(3, F_GETFD) == 0);
    closefrom(4);
    for (int number = 4; number < 1100; number++)
        CHECK(IS_BAD(close(number)));
    turn();
    CHECK(holds(3, name));
}

/* The folders and names by which a program opens its own descriptors, and its flags. */
static void paths(void)
{
    int file = made("paths"), flag = 1, status = fcntl(0, F_GETFL);
    CHECK(dup2(file, 100) == 100 && close(file) == 0);
    CHECK((file = open("/dev/fd/100", O_RDONLY)) == 3 && holds(3, "paths") && close(3) == 0);
    CHECK((file = open("/proc/self/fd/100", O_RDONLY)) == 3 && holds(3, "paths"));
    CHECK(open("/dev/fd/77", O_RDONLY) == -1 && errno == ENOENT);
    CHECK(mkdir("below", 0700) == 0 && (file = open("below", O_RDONLY | O_DIRECTORY)) == 4);
    CHECK(openat(4, "new", O_RDWR | O_CREAT, 0600) == 5 && open("/dev/fd/4/new", O_RDONLY) == 6);
    CHECK(dup2(100, 0) == 0 && open("/dev/stdin", O_RDONLY) == 7 && holds(7, "paths"));
    CHECK(ioctl(7, FIOCLEX) == 0 && fcntl(7, F_GETFD) == FD_CLOEXEC && ioctl(7, FIONCLEX) == 0 &&
          fcntl(7, F_GETFD) == 0 && fcntl(7, F_SETFD, FD_CLOEXEC) == 0 &&
          fcntl(7, F_GETFD) == FD_CLOEXEC && status >= 0);
    int refused[] = {F_SETOWN, F_SETSIG, F_SETLEASE, F_NOTIFY};
    for (int one = 0; one < 4; one++)
        CHECK(fcntl(4, refused[one], 0) == -1 && errno == ENOSYS);
    CHECK(fcntl(7, F_SETFL, O_ASYNC) == -1 && errno == ENOSYS && fcntl(7, F_GETOWN) == 0);
    CHECK(ioctl(7, FIOASYNC, &flag) == -1 && errno == ENOSYS);
    sigset_t none;
    sigemptyset(&none);
    CHECK(signalfd(-1, &none, 0) == -1 && errno == ENOSYS);
}

/* The program may have 40, which is checked before anything is made. */
static void limit(void)
{
    int ends[2];
    turn();
    for (int number = 3; number < 39; number++)
        CHECK(open("/dev/null", O_RDWR) == number);
    CHECK(pipe(ends) == -1 && errno == EMFILE);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == -1 && errno == EMFILE);
    CHECK(fcntl(3, F_DUPFD, 40) == -1 && errno == EINVAL && IS_BAD(dup2(3, 40)));
    CHECK(dup2(3, 39) == 39 && dup2(3, 39) == 39);
    CHECK(open("limit", O_RDWR | O_CREAT, 0600) == -1 && errno == EMFILE &&
          access("limit", F_OK) == -1);
    CHECK(dup(3) == -1 && errno == EMFILE && fcntl(3, F_DUPFD, 10) == -1 && errno == EMFILE);
    CHECK(close(17) == 0 && made("limit") == 17);
}

/* Opens many, spoils what the host could know of them, and crashes. */
static void crash(int many)
{
    for (int one = 0; one < many; one++)
        CHECK(open("/dev/null", O_RDONLY) == 3 + one);
    CHECK(dup2(3, 1) == 1 && close(2) == 0);
    turn();
    uint64_t *table = upvm_table();
    for (int number = 3; number < 3 + many; number++)
        *upvm_entry_of(table, number) = (number % 40 + 1) << 1 | 1;
    table[UPVM_TABLE_FILES_RANGE] = ~0ul;
    table[UPVM_TABLE_OWNERS] = 8;
    *(volatile int *)8 = 0;
}

/* A child has the program's numbers, though they are others of the process's. */
static void child(void)
{
    char name[32], line[4200], path[4100];
    for (int number = 3; number < 60; number++) {
        snprintf(name, sizeof name, "file.%d", number);
        CHECK(made(name) == number);
    }
    /* One of the process's is to have the number of the other, and the other way round. */
    int a = 3, b;
    while (upvm_real(a) >= 60 || upvm_real(upvm_real(a)) < 0)
        a++;
    b = a, a = upvm_real(b);
    int c = upvm_real(a), d = c == 59 ? 58 : 59;
    CHECK(c > a && b < d && close(b) == 0 && close(c) == -(c >= 60) && dup2(d, c) == c);
    CHECK(upvm_real(c) == a && upvm_real(a) == c);
    /* The child does not inherit these, but uses one of them. */
    CHECK(fcntl(40, F_SETFD, FD_CLOEXEC) == 0 && fcntl(41, F_SETFD, FD_CLOEXEC) == 0);
    CHECK(dup2(42, 1000) == 1000);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, "out", O_WRONLY | O_CREAT, 0600);
    posix_spawn_file_actions_adddup2(&actions, 41, 500);
    posix_spawn_file_actions_addclose(&actions, 43);
    char *args[] = {"find", "/proc/self/fd", "-type", "l", "-printf", "%f %l\n", 0};
    pid_t process;
    int status;
    CHECK(posix_spawnp(&process, "find", &actions, 0, args, environ) == 0 &&
          waitpid(process, &status, 0) == process && status == 0);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, 900, 1);
    CHECK(posix_spawnp(&process, "true", &actions, 0, args, environ) == EBADF);
    posix_spawn_file_actions_destroy(&actions);
    FILE *out = fopen("out", "r");
    int number, found = 0;
    CHECK(out && fileno(out) == b);
    while (fgets(line, sizeof line, out)) {
        CHECK(sscanf(line, "%d %4099s", &number, path) == 2);
        /* `find` opens folders. */
        if (number < 3 || !strstr(path, "/file."))
            continue;
        int from = number == c ? d : number == 500 ? 41 : number == 1000 ? 42 : number;
        snprintf(name, sizeof name, "/file.%d", from);
        CHECK(strlen(path) > strlen(name) && !strcmp(path + strlen(path) - strlen(name), name));
        CHECK(number != b && number != 40 && number != 41 && number != 43);
        found++;
    }
    /* 57, one closed, three not inherited or closed in the child, two more, perhaps c. */
    CHECK(found == 57 - 1 - 3 + 2 + (c >= 60));
    CHECK(system("test -e /proc/self/fd/1000 && test ! -e /proc/self/fd/500") == 0);
    FILE *pipe = popen("exec readlink /proc/self/fd/42", "r");
    CHECK(pipe && fgets(line, sizeof line, pipe) && strstr(line, "/file.42\n") &&
          pclose(pipe) == 0);
}

static struct msghdr message(struct iovec *part, void *along, size_t length)
{
    return (struct msghdr){
        .msg_iov = part, .msg_iovlen = 1, .msg_control = along, .msg_controllen = length};
}

static struct cmsghdr *with(struct msghdr *message, int number)
{
    struct cmsghdr *one = CMSG_FIRSTHDR(message);
    one->cmsg_level = SOL_SOCKET, one->cmsg_type = SCM_RIGHTS, one->cmsg_len = CMSG_LEN(4);
    memcpy(CMSG_DATA(one), &number, 4);
    return one;
}

#define ALONG CMSG_SPACE(4)

static void sends(void)
{
    struct sockaddr_un address = {AF_UNIX, "socket"};
    int line = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    CHECK(line == 3 && connect(line, (void *)&address, sizeof address) == 0);
    CHECK(dup2(made("sent"), 50) == 50);
    char along[3][ALONG] = {0};
    struct iovec part = {"a", 1};
    struct msghdr one = message(&part, along[0], ALONG);
    with(&one, 50);
    CHECK(sendmsg(line, &one, 0) == 1);
    CHECK(*(int *)CMSG_DATA((struct cmsghdr *)along[0]) == 50);
    struct mmsghdr more[2] = {{message(&part, along[1], ALONG), 0},
                              {message(&part, along[2], ALONG), 0}};
    with(&more[0].msg_hdr, 50), with(&more[1].msg_hdr, 50);
    CHECK(sendmmsg(line, more, 2, 0) == 2 && more[1].msg_len == 1);
    with(&one, 51);
    CHECK(IS_BAD(sendmsg(line, &one, 0)));
}

static int came(struct msghdr *message)
{
    struct cmsghdr *one = CMSG_FIRSTHDR(message);
    CHECK(one && one->cmsg_type == SCM_RIGHTS && one->cmsg_len == CMSG_LEN(4));
    return *(int *)CMSG_DATA(one);
}

static void receives(void)
{
    struct sockaddr_un address = {AF_UNIX, "socket"};
    int door = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    CHECK(door == 3 && bind(door, (void *)&address, sizeof address) == 0 && listen(door, 9) == 0);
    turn();
    int line = accept4(door, 0, 0, SOCK_CLOEXEC);
    CHECK(line == 4 && fcntl(line, F_GETFD) == FD_CLOEXEC && dup2(line, 6) == 6);
    char along[3][ALONG] = {0}, byte;
    struct iovec part = {&byte, 1};
    struct msghdr one = message(&part, along[0], ALONG);
    CHECK(recvmsg(line, &one, MSG_CMSG_CLOEXEC) == 1 && came(&one) == 5);
    CHECK(holds(5, "sent") && fcntl(5, F_GETFD) == FD_CLOEXEC);
    struct mmsghdr more[3] = {{message(&part, along[1], ALONG), 0},
                              {message(&part, along[2], ALONG), 0},
                              {message(&part, 0, 0), 0}};
    CHECK(recvmmsg(line, more, 3, MSG_WAITFORONE, 0) >= 2 && came(&more[0].msg_hdr) == 7 &&
          came(&more[1].msg_hdr) == 8 && holds(8, "sent") && fcntl(8, F_GETFD) == 0);
}

/* Ends while a helper opens a file. */
static void fifo(void)
{
    CHECK(mkfifo("fifo", 0600) == 0);
    open("fifo", O_RDONLY);
    CHECK(!"it has ended");
}

static int ends[2];

static void closes(int signal)
{
    CHECK(signal == SIGUSR1 && close(ends[0]) == 0);
    turn();
}

/* A handler closes what is read. Then another program gets that descriptor of the process's. */
static void loses(void)
{
    struct sigaction action = {.sa_handler = closes, .sa_flags = SA_RESTART};
    CHECK(pipe(ends) == 0 && sigaction(SIGUSR1, &action, 0) == 0);
    tell(upvm_real(ends[0]));
    CHECK(IS_BAD(read(ends[0], (char[1]){0}, 1)));
}

static void gains(void)
{
    CHECK(pipe(ends) == 0 && write(ends[1], "x", 1) == 1);
    tell(upvm_real(ends[0]));
    CHECK(read(ends[0], (char[1]){0}, 1) == 1);
}

static void locks(int first)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 10};
    int file = open("locks", O_RDWR | O_CREAT, 0600);
    if (first) {
        CHECK(fcntl(file, F_SETLK, &lock) == 0 && fcntl(file, F_GETLK, &lock) == 0 &&
              lock.l_type == F_UNLCK);
        turn();
        lock = (struct flock){.l_type = F_UNLCK};
        CHECK(fcntl(file, F_SETLK, &lock) == 0);
        turn();
        lock.l_type = F_WRLCK;
        CHECK(fcntl(file, F_SETLK, &lock) == -1 && errno == EAGAIN);
        return;
    }
    CHECK(fcntl(file, F_SETLK, &lock) == -1 && errno == EAGAIN);
    struct flock other = lock;
    CHECK(fcntl(file, F_GETLK, &other) == 0 && other.l_type == F_WRLCK && other.l_len == 10 &&
          other.l_pid == -1);
    CHECK(fcntl(file, F_SETLKW, &lock) == 0);
    turn();
}

int main(int argc, char **argv)
{
    const char *what = argv[1];
    if (chdir(argv[2]))
        return 2;
    if (!strcmp(what, "turns"))
        turns(argv[3], atoi(argv[4]), atoi(argv[5]));
    else if (!strcmp(what, "paths"))
        paths();
    else if (!strcmp(what, "limit"))
        limit();
    else if (!strcmp(what, "crash"))
        crash(atoi(argv[3]));
    else if (!strcmp(what, "child"))
        child();
    else if (!strcmp(what, "sends"))
        sends();
    else if (!strcmp(what, "receives"))
        receives();
    else if (!strcmp(what, "fifo"))
        fifo();
    else if (!strcmp(what, "loses"))
        loses();
    else if (!strcmp(what, "gains"))
        gains();
    else
        locks(!strcmp(what, "locks"));
    return argc < 3;
}
