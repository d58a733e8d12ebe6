/* One task spawns others. Each of them waits in its own way for a signal, and reports the result.
 */
#define _GNU_SOURCE
#include "roles.h"
#include <setjmp.h>
#include <sys/select.h>
#include <sys/time.h>

#define READY 1
#define TOLD 2

static volatile int handled, last;
static int ends[2];
static sigjmp_buf back;

static void handler(int signal)
{
    handled++, last = signal;
}

static void writes(int signal)
{
    (void)signal;
    handled++;
    if (write(ends[1], "x", 1) != 1)
        handled = -100;
}

/* Shows a child of this task that the signal has arrived. */
static void marks(int signal)
{
    (void)signal;
    int file = open("marked", O_WRONLY | O_CREAT, 0600);
    handled += file >= 0 && close(file) == 0;
}

static void jumps(int signal)
{
    siglongjmp(back, signal);
}

static void detailed(int signal, siginfo_t *about, void *nothing)
{
    (void)nothing;
    handled += about->si_signo == signal;
}

static void on(int signal, void (*function)(int), int flags)
{
    struct sigaction action = {.sa_handler = function, .sa_flags = flags};
    CHECK(sigaction(signal, &action, 0) == 0);
}

static void ready(void)
{
    tell(pvm_parent(), READY);
}

/* The cases. Each checks its own wait, unless the signal is to end the task. */
static void slept(void)
{
    struct timespec time = {100, 0}, left = {0, 0};
    ready();
    CHECK(nanosleep(&time, &left) == -1 && errno == EINTR && left.tv_sec > 0 && handled == 1);
}

static void slept_in_seconds(void)
{
    ready();
    CHECK(sleep(100) > 0 && handled == 1);
}

static void read_a_pipe(void)
{
    char byte;
    ready();
    CHECK(read(ends[0], &byte, 1) == -1 && errno == EINTR && handled == 1);
}

static void read_again(void)
{
    char byte = 0;
    on(SIGUSR1, writes, SA_RESTART);
    ready();
    CHECK(read(ends[0], &byte, 1) == 1 && byte == 'x' && handled == 1);
}

static void polled(void)
{
    struct pollfd one = {ends[0], POLLIN, 0};
    on(SIGUSR1, handler, SA_RESTART);
    ready();
    CHECK(poll(&one, 1, 100000) == -1 && errno == EINTR && handled == 1);
}

static void selected(void)
{
    fd_set reads;
    FD_ZERO(&reads);
    FD_SET(ends[0], &reads);
    ready();
    CHECK(select(ends[0] + 1, &reads, 0, 0, 0) == -1 && errno == EINTR && handled == 1);
}

static void waited_aside(void)
{
    int status;
    pid_t child = shell("exec sleep 20");
    ready();
    CHECK(waitpid(child, &status, WUNTRACED) == -1 && errno == EINTR && handled == 1);
    CHECK(kill(child, SIGKILL) == 0 && waitpid(child, &status, 0) == child &&
          WTERMSIG(status) == SIGKILL);
}

static void opened_aside(void)
{
    char name[64];
    snprintf(name, sizeof name, "fifo.%x", pvm_mytid());
    CHECK(mkfifo(name, 0600) == 0);
    ready();
    CHECK(open(name, O_RDONLY) == -1 && errno == EINTR && handled == 1);
}

static void waited_for_a_child(void)
{
    int status;
    pid_t child = shell("until test -e marked; do sleep 0.05; done; exit 9");
    on(SIGUSR1, marks, SA_RESTART);
    ready();
    CHECK(wait(&status) == child && WEXITSTATUS(status) == 9 && handled == 1);
}

static void received(void)
{
    ready();
    CHECK(pvm_recv(pvm_parent(), 5) > 0 && handled == 1);
}

static void received_within(void)
{
    double began, took;
    int first;
    ready();
    /* The signal does not shorten a receive. The receive during which it arrives is the last. */
    do {
        struct timeval time = {1, 0};
        began = now();
        first = handled;
        CHECK(pvm_trecv(-1, 6, &time) == 0 && handled <= 1);
        took = now() - began;
        CHECK(took > 0.95);
    } while (!handled);
    CHECK(!first);
}

static void paused(void)
{
    ready();
    CHECK(pause() == -1 && errno == EINTR && handled == 1 && last == SIGUSR1);
}

static void suspended(void)
{
    sigset_t blocked, none, pending;
    sigemptyset(&none);
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    CHECK(sigprocmask(SIG_BLOCK, &blocked, 0) == 0);
    ready();
    do
        CHECK(usleep(10000) == 0 && !handled && sigpending(&pending) == 0);
    while (!sigismember(&pending, SIGUSR1));
    CHECK(sigsuspend(&none) == -1 && errno == EINTR && handled == 1);
    CHECK(sigprocmask(SIG_BLOCK, 0, &pending) == 0 && sigismember(&pending, SIGUSR1));
}

static void waited_for_it(void)
{
    sigset_t blocked;
    int number;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    CHECK(sigprocmask(SIG_BLOCK, &blocked, 0) == 0);
    ready();
    CHECK(sigwait(&blocked, &number) == 0 && number == SIGUSR1 && !handled);
    struct timespec soon = {0, 100000000};
    CHECK(sigtimedwait(&blocked, 0, &soon) == -1 && errno == EAGAIN);
}

static void ignored(void)
{
    on(SIGUSR1, SIG_IGN, 0);
    ready();
    CHECK(usleep(500000) == 0);
}

static void computed(void)
{
    ready();
    /* This task mostly computes. In between the other tasks have turns, among them the signal's
     * sender. */
    while (!handled) {
        pvm_nrecv(-1, 999);
        for (double began = now(); !handled && now() - began < 0.1;)
            ;
    }
}

static void alarmed(void)
{
    struct itimerval often = {{0, 50000}, {0, 50000}}, old;
    on(SIGALRM, handler, 0);
    CHECK(alarm(100) == 0);
    double began = now();
    unsigned left = alarm(1);
    CHECK(left > 0 && left <= 100);
    ready();
    while (handled < 1 || last != SIGALRM)
        usleep(10000);
    CHECK(now() - began > 0.9 && alarm(0) == 0);
    handled = 0;
    CHECK(setitimer(ITIMER_REAL, &often, 0) == 0);
    while (handled < 5)
        pause();
    CHECK(getitimer(ITIMER_REAL, &old) == 0 && old.it_interval.tv_usec == 50000 &&
          old.it_value.tv_usec <= 50000);
    often = (struct itimerval){{0, 0}, {0, 0}};
    CHECK(setitimer(ITIMER_REAL, &often, 0) == 0);
    handled = 0;
    usleep(150000);
    often.it_value.tv_sec = 1;
    CHECK(!handled && setitimer(ITIMER_PROF, &often, 0) == -1 && errno == ENOSYS);
}

static void raised(void)
{
    sigset_t blocked, pending;
    ready();
    pause();
    CHECK(handled == 1 && raise(SIGUSR1) == 0 && handled == 2 && kill(getpid(), SIGUSR1) == 0 &&
          handled == 3);
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    sigaddset(&blocked, SIGUSR2);
    CHECK(sigprocmask(SIG_BLOCK, &blocked, 0) == 0 && raise(SIGUSR1) == 0 && handled == 3);
    CHECK(sigprocmask(SIG_UNBLOCK, &blocked, 0) == 0 && handled == 4);
    on(SIGUSR2, handler, SA_RESETHAND);
    CHECK(raise(SIGUSR2) == 0 && handled == 5 && signal(SIGUSR2, SIG_IGN) == SIG_DFL &&
          raise(SIGUSR2) == 0);
    struct sigaction action = {.sa_sigaction = detailed, .sa_flags = SA_SIGINFO};
    CHECK(sigaction(SIGUSR2, &action, 0) == 0 && raise(SIGUSR2) == 0 && handled == 6);
    on(SIGUSR1, jumps, 0);
    for (int round = 0; round < 3; round++)
        if (!sigsetjmp(back, 1)) {
            raise(SIGUSR1);
            CHECK(!"jumped");
        }
    CHECK(sigprocmask(SIG_BLOCK, 0, &pending) == 0 && !sigismember(&pending, SIGUSR1));
    CHECK(raise(SIGCHLD) == 0 && raise(SIGWINCH) == 0);
    /* Handlers of crash signals are refused. */
    CHECK(sigaction(SIGSEGV, &action, 0) == -1 && errno == EINVAL &&
          signal(SIGFPE, handler) == SIG_ERR);
    CHECK(signal(SIGSEGV, SIG_DFL) == SIG_DFL && sigaction(65, 0, 0) == -1 && raise(0) == 0 &&
          raise(99) == -1);
    CHECK(write(ends[0], "", 0) == -1 && signal(SIGPIPE, SIG_IGN) == SIG_DFL &&
          close(ends[0]) == 0);
    CHECK(write(ends[1], "x", 1) == -1 && errno == EPIPE);
}

static void ended(void)
{
    on(SIGUSR1, SIG_DFL, 0);
    ready();
    pause();
}

static void ended_aside(void)
{
    on(SIGUSR1, SIG_DFL, 0);
    pid_t child = shell("exec sleep 1");
    ready();
    waitpid(child, 0, WUNTRACED);
}

static void ended_by_its_alarm(void)
{
    alarm(1);
    ready();
    pvm_recv(-1, 999);
}

static void ended_by_a_pipe(void)
{
    close(ends[0]);
    ready();
    CHECK(write(ends[1], "x", 1) == 1);
}

/* A task at a barrier of a group ends at once. */
static void ended_at_a_barrier(void)
{
    on(SIGUSR1, SIG_DFL, 0);
    CHECK(pvm_joingroup("group") == 0);
    ready();
    pvm_barrier("group", 2);
}

static const struct {
    void (*function)(void);
    int ends;
} ways[] = {
    {slept, 0},           {slept_in_seconds, 0},   {read_a_pipe, 0},     {read_again, 0},
    {polled, 0},          {selected, 0},           {waited_aside, 0},    {opened_aside, 0},
    {waited_for_a_child, 0}, {received, 0},        {received_within, 0}, {paused, 0},
    {suspended, 0},       {waited_for_it, 0},      {ignored, 0},         {computed, 0},
    {alarmed, 0},         {raised, 0},             {ended, 1},           {ended_aside, 1},
    {ended_by_its_alarm, 1}, {ended_by_a_pipe, 1}, {ended_at_a_barrier, 1},
};
#define WAYS ((int)(sizeof ways / sizeof *ways))

int main(int argc, char **argv)
{
    if (argc > 1) {
        int way = atoi(argv[1]);
        CHECK(pipe(ends) == 0);
        on(SIGUSR1, handler, 0);
        ways[way].function();
        tell(pvm_parent(), TOLD);
        return 0;
    }
    int all[WAYS], ended_ones = 0;
    for (int way = 0; way < WAYS; way++) {
        char number[12], *args[] = {number, 0};
        snprintf(number, sizeof number, "%d", way);
        CHECK(pvm_spawn(argv[0], args, 0, 0, 1, &all[way]) == 1);
        CHECK(pvm_notify(PvmTaskExit, 100 + way, 1, &all[way]) == 0);
    }
    for (int way = 0; way < WAYS; way++)
        CHECK(pvm_recv(all[way], READY) > 0);
    /* All tasks wait now, or soon. */
    usleep(200000);
    for (int way = 0; way < WAYS; way++)
        CHECK(pvm_sendsig(all[way], 0) == 0 && pvm_sendsig(all[way], SIGUSR1) == 0);
    usleep(100000);
    tell(all[9], 5);
    for (int way = 0; way < WAYS; way++) {
        struct timeval time = {50, 0};
        int told = pvm_nrecv(all[way], TOLD);
        CHECK(pvm_trecv(-1, 100 + way, &time) > 0);
        if (told == 0)
            told = pvm_nrecv(all[way], TOLD);
        if ((told > 0) != !ways[way].ends) {
            printf("way %d: told %d\n", way, told);
            return 1;
        }
        ended_ones += ways[way].ends;
    }
    CHECK(!handled && ended_ones == 5);
    puts("done");
    fflush(stdout);
    signal(SIGTERM, SIG_DFL);
    raise(SIGTERM);
    return 0;
}
