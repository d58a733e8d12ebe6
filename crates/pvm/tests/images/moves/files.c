/* A task with files, pipes, sockets and locks, which moves between all processes of the machine by
 * itself. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pvm3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include <upvm.h>

#define CHECK(what)                                                     \
    do {                                                                \
        if (!(what)) {                                                  \
            printf("%d: %s: errno %d\n", __LINE__, #what, errno);       \
            exit(1);                                                    \
        }                                                               \
    } while (0)

static int files[8], high, pipes[2], sockets[2], many[40], set;
static long line;

static void look(int round)
{
    char text[64], back[64];
    struct epoll_event event;
    int length = sprintf(text, "line %d\n", round);
    /* Offsets, flags and contents. */
    CHECK(write(files[0], text, length) == length);
    CHECK(fcntl(files[0], F_GETFD) == 0 && fcntl(files[1], F_GETFD) == FD_CLOEXEC);
    CHECK((fcntl(files[1], F_GETFL) & O_APPEND) != 0);
    CHECK(pread(files[0], back, length, line) == length && !memcmp(text, back, length));
    line += length;
    CHECK(lseek(high, 0, SEEK_CUR) == line);
    /* A pipe and sockets, with what is in them. */
    CHECK(read(pipes[0], back, sizeof back) == 4 && !memcmp(back, "wait", 4));
    CHECK(write(pipes[1], "wait", 4) == 4);
    CHECK(recv(sockets[1], back, sizeof back, 0) == 2 && back[1] == (char)(round + 1));
    back[0] = 'n', back[1] = round + 2;
    CHECK(send(sockets[0], back, 2, 0) == 2);
    CHECK(epoll_wait(set, &event, 1, -1) == 1 && event.data.u64 == 77);
    struct pollfd both[2] = {{pipes[0], POLLIN, 0}, {sockets[1], POLLIN, 0}};
    CHECK(poll(both, 2, -1) == 2);
    /* Numbers that are closed stay closed, and the lowest free one is the next. */
    CHECK(close(999) < 0 && errno == EBADF);
    int next = dup(0);
    CHECK(next == files[2] && close(next) == 0);
    /* The lock of an open file: nobody else has it, and it is held. */
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 10};
    int other = open("locked", O_RDWR);
    CHECK(other >= 0 && fcntl(other, F_OFD_SETLK, &lock) < 0 && errno == EAGAIN);
    close(other);
    for (int at = 0; at < 40; at++)
        CHECK(fcntl(many[at], F_GETFD) == 0);
}

int main(int argc, char **argv)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 10};
    int rounds = atoi(argv[1]), processes = atoi(argv[2]), me = pvm_mytid();
    files[0] = open("lines", O_RDWR | O_CREAT | O_TRUNC, 0600);
    files[1] = open("locked", O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    CHECK(files[0] >= 0 && files[1] >= 0 && fcntl(files[1], F_SETLK, &lock) == 0);
    files[2] = dup(0);
    high = dup2(files[0], 500);
    CHECK(high == 500 && pipe(pipes) == 0);
    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets) == 0);
    for (int at = 0; at < 40; at++)
        CHECK((many[at] = dup(0)) >= 0);
    CHECK((set = epoll_create1(0)) >= 0);
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 77};
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, pipes[0], &event) == 0);
    CHECK(close(files[2]) == 0 && write(pipes[1], "wait", 4) == 4);
    CHECK(send(sockets[0], "n\1", 2, 0) == 2);
    for (int round = 0; round < rounds; round++) {
        look(round);
        int to = (round + 1) % processes, done = upvm_migrate(me, to);
        if (done || upvm_process() != to) {
            printf("round %d: %d, in process %d\n", round, done, upvm_process());
            return 1;
        }
    }
    printf("all files are there\n");
    pvm_exit();
    return 0;
}
