/* Its process, as this program sees it: reports its number to the host, and checks what it can do
 * with that. */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "image.h"

static volatile int handled;

static void count(int number)
{
    (void)number;
    handled++;
}

static void details(int number, siginfo_t *about, void *nothing)
{
    (void)nothing;
    handled += about->si_signo == number && about->si_pid == getpid();
}

#define CHECK(what)                                                \
    do {                                                           \
        if (!(what)) {                                             \
            printf("line %d: %s, errno %d\n", __LINE__, #what, errno); \
            return 1;                                              \
        }                                                          \
    } while (0)

int main(void)
{
    pid_t own = getpid(), other;
    char text[64];
    CHECK(own > 0 && own == gettid() && own == syscall(SYS_getpid) && own == syscall(SYS_gettid));
    /* A signal to the program's own number reaches the program. */
    CHECK(signal(SIGUSR1, count) == SIG_DFL && kill(own, 0) == 0 && handled == 0);
    CHECK(kill(own, SIGUSR1) == 0 && handled == 1 && syscall(SYS_kill, own, SIGUSR1) == 0 &&
          handled == 2);
    CHECK(tgkill(own, gettid(), SIGUSR1) == 0 && handled == 3);
    CHECK(syscall(SYS_tgkill, own, own, SIGUSR1) == 0 && syscall(SYS_tkill, own, SIGUSR1) == 0 &&
          handled == 5);
    /* So does a signal to its group. By default this signal does nothing to the host's other
     * processes. */
    CHECK(signal(SIGWINCH, count) == SIG_DFL && kill(0, SIGWINCH) == 0 && handled == 6);
    CHECK(killpg(0, SIGWINCH) == 0 && handled == 7 && killpg(getpgrp(), SIGWINCH) == 0 &&
          handled == 8);
    CHECK(kill(-getpgrp(), SIGWINCH) == 0 && handled == 9 && syscall(SYS_kill, 0, SIGWINCH) == 0 &&
          handled == 10);
    CHECK(kill(-1, SIGWINCH) == -1 && errno == EPERM && killpg(1 << 22, SIGWINCH) == -1 &&
          errno == ESRCH && handled == 10);
    struct sigaction action = {.sa_sigaction = details, .sa_flags = SA_SIGINFO};
    CHECK(sigaction(SIGUSR1, &action, 0) == 0 && raise(SIGUSR1) == 0 && handled == 11);
    CHECK(getpgid(own) == getpgrp() && getsid(own) == getsid(0));
    /* The kernel's number is the host's, under which files are found below /proc. */
    ssize_t length = readlink("/proc/self", text, sizeof text - 1);
    CHECK(length > 0);
    text[length] = 0;
    pid_t host = atoi(text);
    CHECK(host > 0 && host != own && kill(host, 0) == 0);
    /* No process has another task's number. */
    other = UPVM_ASK(upvm_table(), UPVM_ASK_OWN, own, host, getppid(), 0);
    CHECK(other > 0 && other != own && kill(other, SIGKILL) == -1 && errno == ESRCH);
    return 0;
}
