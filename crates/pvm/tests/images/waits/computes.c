/* Tasks that only compute. Signals and requests still reach them, and their state stays intact. The
 * first argument selects a case. */
#include "roles.h"
#include <setjmp.h>
#include <sys/time.h>

#define NUMBER 1
#define EXTRA 2
#define GONE 3

static volatile int handled;
static int extra;

static void count_it(int signal)
{
    (void)signal;
    handled++;
}

static void every(long microseconds, void (*handler)(int))
{
    struct itimerval often = {{0, microseconds}, {0, microseconds}};
    CHECK(signal(SIGALRM, handler) != SIG_ERR && setitimer(ITIMER_REAL, &often, 0) == 0);
}

/* Uses all registers for a computation with a known result. */
static double computed(unsigned long *mixed)
{
    unsigned long words[12];
    double sum[10] = {0};
    long double wide = 0;
    for (int word = 0; word < 12; word++)
        words[word] = word * 0x9e3779b97f4a7c15ul + 1;
    for (int round = 1; round < 4000000; round++) {
        for (int word = 0; word < 12; word++)
            words[word] =
                (words[word] ^ words[(word + 5) % 12] >> 7) * 0xff51afd7ed558ccdul + round;
        for (int one = 0; one < 10; one++)
            sum[one] = sum[one] * 0.999 + (double)(words[one] >> 40) / round;
        wide += 1.0L / round;
    }
    for (int word = 0; word < 12; word++)
        *mixed ^= words[word];
    double all = wide;
    for (int one = 0; one < 10; one++)
        all += sum[one];
    return all;
}

static void registers(void)
{
    unsigned long undisturbed = 0, disturbed = 0;
    double expected = computed(&undisturbed);
    every(5000, count_it);
    int rounds = 0;
    for (; handled < 6; rounds++) {
        disturbed = 0;
        double found = computed(&disturbed);
        CHECK(found == expected && disturbed == undisturbed);
    }
    printf("%d handlers in %d rounds\n", handled, rounds);
}

/* The handler itself uses the library. It never runs while a function of the library is under way.
 */
static void sends(int signal)
{
    (void)signal;
    int before = pvm_setsbuf(pvm_mkbuf(PvmDataDefault));
    CHECK(pvm_pkint(&extra, 1, 1) == 0 && pvm_send(tids[1], EXTRA) == 0);
    CHECK(pvm_freebuf(pvm_setsbuf(before)) == 0);
    extra++;
}

static void all_are_sent(void)
{
    static double bulk[300];
    int number = 0;
    every(5000, sends);
    for (; extra < 30; number++) {
        CHECK(pvm_initsend(number % 3 == 0 ? PvmDataRaw : PvmDataDefault) > 0 &&
              pvm_pkint(&number, 1, 1) == 0);
        CHECK(pvm_pkdouble(bulk, number % 300, 1) == 0 && pvm_send(tids[1], NUMBER) == 0);
        /* The other task receives them at intervals. */
        if (number % 1000 == 0)
            CHECK(pvm_recv(tids[1], NUMBER) > 0);
    }
    every(0, SIG_DFL);
    CHECK(pvm_initsend(PvmDataDefault) > 0 && pvm_pkint(&number, 1, 1) == 0 &&
          pvm_pkint(&extra, 1, 1) == 0);
    CHECK(pvm_send(tids[1], DONE) == 0);
    printf("%d messages, %d from the handler\n", number, extra);
}

static void all_have_come(void)
{
    int next[3] = {0}, number, tag, length;
    do {
        int buffer = pvm_recv(tids[0], -1);
        CHECK(buffer > 0 && pvm_bufinfo(buffer, &length, &tag, 0) == 0 &&
              pvm_upkint(&number, 1, 1) == 0);
        CHECK(tag == DONE || number == next[tag]++);
        if (tag == NUMBER && number % 1000 == 0)
            tell(tids[0], NUMBER);
    } while (tag != DONE);
    CHECK(number == next[NUMBER] && pvm_upkint(&number, 1, 1) == 0 && number == next[EXTRA]);
}

/* The same with a program that spends all its time in functions of the library that do not ask the
 * host. */
static volatile int held[2];

static void makes(int signal)
{
    (void)signal;
    int number = 7, before = pvm_getsbuf(), buffer = pvm_mkbuf(PvmDataDefault);
    CHECK(buffer > 0 && buffer != held[0] && buffer != held[1] && pvm_setsbuf(buffer) == before);
    CHECK(pvm_pkint(&number, 1, 1) == 0 && pvm_setsbuf(before) == buffer &&
          pvm_freebuf(buffer) == 0);
    handled++;
}

static void buffers(void)
{
    every(5000, makes);
    for (int round = 0; handled < 60; round++) {
        int numbers[6] = {round, 0, round + 1, 0, round + 2, 0};
        for (int one = 0; one < 2; one++) {
            held[one] = pvm_mkbuf(PvmDataDefault);
            CHECK(held[one] > 0 && held[0] != held[1] && pvm_setsbuf(held[one]) >= 0 &&
                  pvm_pkint(numbers, 3, 2) == 0);
        }
        CHECK(pvm_setsbuf(0) == held[1]);
        for (int one = 0; one < 2; one++) {
            int found[3], buffer = held[one];
            CHECK(pvm_setrbuf(buffer) >= 0 && pvm_upkint(found, 3, 1) == 0 && found[0] == round &&
                  found[2] == round + 2);
            held[one] = 0;
            CHECK(pvm_setrbuf(0) == buffer && pvm_freebuf(buffer) == 0);
        }
    }
}

/* The first task sends the second a message, creates a file, and then only computes. The third task
 * runs in another process, and ends the first when it sees the file. The message arrives, although
 * nothing else has run in the first task's process in between. */
static void ended(int role, int by)
{
    int number = 0;
    if (role == 0) {
        tell(tids[2], NUMBER);
        tell(tids[1], NUMBER);
        CHECK(close(creat("sent", 0600)) == 0);
        for (;;)
            number++;
    }
    if (role == 1) {
        CHECK(pvm_notify(PvmTaskExit, GONE, 1, tids) == 0);
        CHECK(pvm_recv(tids[0], NUMBER) > 0 && pvm_recv(-1, GONE) > 0 &&
              pvm_upkint(&number, 1, 1) == 0 && number == tids[0]);
        puts("it is gone, and what it sent is there");
        return;
    }
    CHECK(pvm_recv(tids[0], NUMBER) > 0);
    while (access("sent", F_OK))
        usleep(1000);
    CHECK((by ? pvm_sendsig(tids[0], by) : pvm_kill(tids[0])) == 0);
}

static void ended_by_its_alarm(void)
{
    alarm(1);
    for (;;)
        handled++;
}

/* Blocked signals are delivered when they are unblocked, without a question to the host. */
static void blocked(void)
{
    sigset_t set, found;
    sigemptyset(&set);
    sigaddset(&set, SIGALRM);
    CHECK(sigprocmask(SIG_BLOCK, &set, 0) == 0);
    every(20000, count_it);
    do
        CHECK(!handled && sigpending(&found) == 0);
    while (!sigismember(&found, SIGALRM));
    CHECK(!handled && sigprocmask(SIG_UNBLOCK, &set, 0) == 0);
    while (handled < 3)
        ;
}

/* Pending signals are delivered when they are unblocked, however briefly. */
static void pending(void)
{
    sigset_t set, found;
    sigemptyset(&set);
    sigaddset(&set, SIGALRM);
    CHECK(sigprocmask(SIG_BLOCK, &set, 0) == 0);
    every(5000, count_it);
    do
        CHECK(sigpending(&found) == 0);
    while (!sigismember(&found, SIGALRM));
    while (handled < 5) {
        for (volatile int spin = 0; spin < 1000000; spin++)
            ;
        CHECK(sigprocmask(SIG_UNBLOCK, &set, 0) == 0 && sigprocmask(SIG_BLOCK, &set, 0) == 0);
    }
}

/* No signal is lost between the check and the wait. */
static void suspended(void)
{
    sigset_t set, none;
    sigemptyset(&none);
    sigemptyset(&set);
    sigaddset(&set, SIGALRM);
    CHECK(sigprocmask(SIG_BLOCK, &set, 0) == 0);
    every(2000, count_it);
    for (int round = 0; round < 200; round++) {
        for (volatile int spin = 0; spin < round * 10000; spin++)
            ;
        for (int before = handled; handled == before;)
            CHECK(sigsuspend(&none) == -1 && errno == EINTR);
    }
}

/* A handler that waits for another signal's handler sees it run. */
static volatile int within;

static void waits_for_another(int signal)
{
    int before = handled;
    CHECK(signal == SIGUSR1);
    while (handled < before + 2)
        ;
    within++;
}

static void handlers_within(void)
{
    CHECK(signal(SIGUSR1, waits_for_another) != SIG_ERR);
    every(5000, count_it);
    CHECK(raise(SIGUSR1) == 0 && within == 1 && handled >= 2);
    while (handled < 5)
        ;
}

/* The backtrace of a crash continues beyond the interrupt. */
static void crashes(int signal)
{
    *(volatile int *)8 = signal;
}

__attribute__((noinline)) static void is_interrupted(void)
{
    while (!handled)
        ;
    puts("never");
}

/* A handler may compute until it is interrupted itself, and may leave by a jump. Each alarm is set
 * individually, so that the number of handlers does not depend on speed. */
static sigjmp_buf back;

static void soon(void)
{
    struct itimerval once = {{0, 0}, {0, 5000}};
    CHECK(setitimer(ITIMER_REAL, &once, 0) == 0);
}

static void computes_too(int number)
{
    sigset_t found;
    soon();
    /* The signal is blocked here, so only an interrupt of this loop notes its arrival. */
    do
        CHECK(sigpending(&found) == 0);
    while (!sigismember(&found, number));
    CHECK(signal(number, SIG_IGN) == computes_too && signal(number, computes_too) == SIG_IGN);
    handled++;
    if (handled % 2)
        siglongjmp(back, 1);
}

/* A handler that does not block its signal computes until another invocation has run to its end
 * within it, up to three deep. The outermost one leaves by a jump in each second round. */
static volatile int depth, whole, deepest;

static void within_itself(int number)
{
    (void)number;
    int outermost = !depth++, before = whole;
    if (depth > deepest)
        deepest = depth;
    if (depth < 3) {
        soon();
        while (whole == before)
            ;
    }
    depth--;
    whole++;
    if (outermost && ++handled % 2)
        siglongjmp(back, 1);
}

static void nested_rounds(void)
{
    volatile int jumps = 0;
    handled = 0;
    for (volatile int round = 0; round < 6; round++) {
        if (sigsetjmp(back, 1)) {
            jumps++;
            continue;
        }
        soon();
        while (handled == round)
            ;
    }
    CHECK(handled == 6 && jumps == 3);
}

static void nested(void)
{
    CHECK(signal(SIGALRM, computes_too) == SIG_DFL);
    nested_rounds();
    struct sigaction again = {.sa_handler = within_itself, .sa_flags = SA_NODEFER};
    CHECK(sigaction(SIGALRM, &again, 0) == 0);
    nested_rounds();
    CHECK(depth == 0 && deepest == 3 && whole == 18);
}

int main(int argc, char **argv)
{
    int which = role();
    const char *way = argc > 1 ? argv[1] : "";
    setvbuf(stdout, 0, _IOLBF, 0);
    if (!strcmp(way, "registers"))
        registers();
    else if (!strcmp(way, "buffers"))
        buffers();
    else if (!strcmp(way, "blocked"))
        blocked();
    else if (!strcmp(way, "pending"))
        pending();
    else if (!strcmp(way, "suspended"))
        suspended();
    else if (!strcmp(way, "within"))
        handlers_within();
    else if (!strcmp(way, "crash")) {
        every(5000, crashes);
        is_interrupted();
    } else if (!strcmp(way, "nested"))
        nested();
    else if (!strcmp(way, "sends"))
        which == 0 ? all_are_sent() : all_have_come();
    else if (!strcmp(way, "killed"))
        ended(which, 0);
    else if (!strcmp(way, "signalled"))
        ended(which, SIGUSR2);
    else if (!strcmp(way, "alarm"))
        ended_by_its_alarm();
    else
        CHECK(!"a way");
    puts("done");
    return 0;
}
