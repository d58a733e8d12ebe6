/* What a task keeps when it is moved to and fro. Task 0 directs and moves, task 1 is moved and
 * checks all that it has, and task 2 is its partner in another process. The director is in a third
 * one, since it must run while the subject computes. With an argument the subject is large, too. */

#include "moves.h"
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <upvm.h>

#define ROUNDS 20
#define DEPTH 200
#define MIB (1 << 20)

/* Orders of the director, and the reply. */
enum { ORDER = 1, DONE };
enum {
    CHECK, LARGE, SLEEP, COMPUTE, ALARM, PERIOD, LIMITED, RECEIVE, BARRIER, MAILBOX, NOTICE, SPAWN,
    CHILDREN, LAST
};
/* Tags of other messages. */
enum { NUMBERS = 30, WAITED, FORWARDED, PACKED, KEPT = 41, LATER = 46, EXIT = 60, CHILD };

static int me, director, subject, partner;
static char *program;

/* Memory of all kinds. */
static unsigned initialised[4] = {1, 2, 3, 4};
static unsigned zeroed[5000];
static __thread unsigned own[3] = {5, 6, 7};
static __thread unsigned own_zeroed[700];
static unsigned *heap, *pages, *read_only;
static const char *constant = "a constant";

/* What must be the same, or not less, after each move. */
static pid_t pid, parent;
static char folder[512];
static clock_t computed;
static double used;
static volatile int usr1, usr2, alarms;
static double remaining = 1000;
static int received, shared, packed, instance, mailbox, children[2];

static void on_signal(int signal)
{
    if (signal == SIGUSR1)
        usr1++;
    else if (signal == SIGUSR2)
        usr2++;
    else
        alarms++;
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static double processor(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_utime.tv_sec + usage.ru_stime.tv_sec +
           (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static void set_timer(long value, long interval)
{
    struct itimerval timer = {{interval / 1000, interval % 1000 * 1000},
                              {value / 1000, value % 1000 * 1000}};
    MUST(setitimer(ITIMER_REAL, &timer, 0) == 0);
}

/* ---- The subject. */

static void prepare(void)
{
    sigset_t blocked;
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGUSR1, &action, 0);
    sigaction(SIGUSR2, &action, 0);
    sigaction(SIGALRM, &action, 0);
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR2);
    sigprocmask(SIG_BLOCK, &blocked, 0);
    kill(getpid(), SIGUSR2);
    fill(zeroed, 5000, 10);
    fill(own_zeroed, 700, 11);
    heap = malloc(MIB);
    fill(heap, MIB / 4, 12);
    pages = mmap(0, 8 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    fill(pages, 4096, 13);
    read_only = pages + 2048;
    MUST(mprotect(read_only, 4096, PROT_READ) == 0);
    MUST(munmap((char *)pages + 4 * 4096, 4096) == 0);
    pid = getpid();
    parent = getppid();
    MUST(mkdir("own", 0777) == 0 && chdir("own") == 0 && getcwd(folder, sizeof folder));
    umask(027);
    set_timer(1000 * 1000, 0);
    printf("packed before, ");
    packed = pvm_mkbuf(PvmDataRaw);
    pvm_recv(partner, NUMBERS);
    received = pvm_setrbuf(0);
    pvm_recv(partner, NUMBERS);
    shared = pvm_setrbuf(0);
    instance = pvm_joingroup("kept");
    pvm_initsend(PvmDataRaw);
    pvm_pkint(&pid, 1, 1);
    mailbox = pvm_putinfo("kept.own", pvm_getsbuf(), PvmMboxDefault);
    MUST(mailbox == 0);
    pvm_notify(PvmTaskExit, EXIT, 1, &partner);
}

static void check_memory(void)
{
    for (unsigned at = 0; at < 4; at++)
        MUST(initialised[at] == at + 1);
    MUST(is_filled(zeroed, 5000, 10) && is_filled(own_zeroed, 700, 11));
    MUST(own[0] == 5 && own[1] == 6 && own[2] == 7);
    MUST(is_filled(heap, MIB / 4, 12) && is_filled(pages, 4096, 13));
    MUST(!strcmp(constant, "a constant"));
    heap = realloc(heap, MIB);
    free(malloc(100000));
}

static void check_process(void)
{
    char text[512], name[32];
    struct stat stat_of;
    struct itimerval timer;
    sigset_t pending, blocked;
    MUST(getpid() == pid && getppid() == parent);
    MUST(getcwd(text, sizeof text) && !strcmp(text, folder));
    snprintf(name, sizeof name, "made.%ld", (long)(now() * 1e9));
    FILE *made = fopen(name, "w");
    MUST(made && fclose(made) == 0 && stat(name, &stat_of) == 0);
    MUST((stat_of.st_mode & 0777) == 0640 && unlink(name) == 0);
    MUST(umask(027) == 027);
    MUST(clock() >= computed && processor() >= used);
    for (clock_t until = clock() + CLOCKS_PER_SEC / 1000; clock() < until;)
        ;
    computed = clock();
    used = processor();
    getitimer(ITIMER_REAL, &timer);
    double left = timer.it_value.tv_sec + timer.it_value.tv_usec / 1e6;
    MUST(left > 0 && left <= remaining);
    remaining = left;
    sigpending(&pending);
    sigprocmask(SIG_BLOCK, 0, &blocked);
    MUST(sigismember(&pending, SIGUSR2) && sigismember(&blocked, SIGUSR2) && usr2 == 0);
    MUST(!sigismember(&blocked, SIGUSR1));
}

static void check_messages(int round)
{
    int value = -1, old;
    MUST(pvm_mytid() == me && pvm_parent() == PvmNoParent);
    old = pvm_setsbuf(packed);
    pvm_pkint(&round, 1, 1);
    if (round == 10) {
        pvm_setsbuf(shared);
        MUST(pvm_send(partner, FORWARDED) == 0);
    }
    pvm_setsbuf(old);
    old = pvm_setrbuf(received);
    MUST(pvm_upkint(&value, 1, 1) == 0 && value == 3 * round);
    received = pvm_setrbuf(old);
    MUST(pvm_getinst("kept", me) == instance);
    MUST(pvm_probe(-1, KEPT + 2) > 0 && pvm_probe(-1, 99) == 0);
}

static void check(int round)
{
    int seen = usr1;
    check_memory();
    check_process();
    check_messages(round);
    /* The director has sent a signal before this order. */
    MUST(seen == round + 1);
}

static void large(void)
{
    static unsigned *memory;
    if (!memory) {
        memory = malloc(64 * MIB);
        fill(memory, 16 * MIB, 77);
    } else {
        MUST(is_filled(memory, 16 * MIB, 77));
        free(memory);
        memory = 0;
    }
}

static void children_reply(void)
{
    for (int child = 0; child < 2; child++)
        send_int(children[child], CHILD, 1000 + child);
    for (int child = 0; child < 2; child++)
        MUST(recv_int(children[child], CHILD) == 2000 + child);
}

/* Carries out an order that the director waits for. */
static void order(int what, int round)
{
    struct timespec time = {0, 300 * 1000 * 1000};
    struct timeval limit = {0, 200 * 1000};
    double start = now();
    int value = -1, seen = usr1;
    switch (what) {
    case CHECK: check(round); break;
    case LARGE: large(); break;
    case SLEEP:
        MUST(nanosleep(&time, 0) == 0 && now() - start >= 0.3);
        break;
    case COMPUTE:
        send_int(director, WAITED, 0);
        for (volatile unsigned long turns = 0; usr1 == seen; turns++)
            ;
        break;
    case ALARM:
        set_timer(200, 0);
        while (alarms == 0)
            pause();
        MUST(alarms == 1 && now() - start >= 0.2);
        break;
    case PERIOD:
        set_timer(30, 30);
        while (alarms < 6)
            pause();
        set_timer(0, 0);
        MUST(now() - start >= 0.15);
        break;
    case LIMITED:
        MUST(pvm_trecv(-1, 99, &limit) == 0 && now() - start >= 0.2);
        break;
    case RECEIVE: MUST(recv_int(partner, WAITED) == 4711); break;
    case BARRIER: MUST(pvm_barrier("kept", 3) >= 0); break;
    case MAILBOX:
        MUST(pvm_recvinfo("kept.late", 0, PvmMboxWaitForInfo) > 0);
        MUST(pvm_upkint(&value, 1, 1) == 0 && value == 4712);
        break;
    case NOTICE: MUST(recv_int(-1, EXIT) == partner); break;
    case SPAWN: {
        printf("and printed afterwards\n");
        char *args[] = {"child", 0};
        pvm_catchout(stdout);
        MUST(pvm_spawn(program, args, 0, 0, 2, children) == 2);
        break;
    }
    case CHILDREN: children_reply(); break;
    }
}

static void serve(void)
{
    int what, round;
    for (;;) {
        pvm_recv(director, ORDER);
        pvm_upkint(&what, 1, 1);
        pvm_upkint(&round, 1, 1);
        if (what == LAST)
            return;
        order(what, round);
        send_int(director, DONE, failed);
    }
}

/* Serves in a deep recursion, whose frames must be the same afterwards. */
static void deep(int depth)
{
    unsigned frame[1000];
    fill(frame, 1000, depth);
    if (depth == 0)
        serve();
    else
        deep(depth - 1);
    MUST(is_filled(frame, 1000, depth));
}

/* What waited all the time. */
static void finish(void)
{
    unsigned words[1000];
    int numbers[ROUNDS];
    sigset_t none;
    pvm_setrbuf(shared);
    MUST(pvm_upkint(numbers, ROUNDS, 1) == 0);
    for (int round = 0; round < ROUNDS; round++)
        MUST(numbers[round] == 3 * round);
    for (int tag = KEPT + 4; tag >= KEPT; tag--) {
        pvm_recv(partner, tag);
        MUST(pvm_upkint((int *)words, 1000, 1) == 0 && is_filled(words, 1000, tag));
    }
    for (int value = 0; value < 4; value++)
        MUST(recv_int(partner, LATER) == value);
    pvm_setsbuf(packed);
    MUST(pvm_send(partner, PACKED) == 0);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, 0);
    MUST(usr2 == 1);
    MUST(pvm_delinfo("kept.own", 0, 0) == 0);
}

static void be_subject(void)
{
    prepare();
    send_int(director, DONE, failed);
    deep(DEPTH);
    finish();
    /* The notice of the partner's end, and the children. */
    send_int(director, DONE, failed);
    serve();
}

/* ---- The partner. */

static void be_partner(void)
{
    unsigned words[1000];
    int numbers[ROUNDS], value;
    for (int round = 0; round < ROUNDS; round++)
        numbers[round] = 3 * round;
    pvm_initsend(PvmDataRaw);
    pvm_pkint(numbers, ROUNDS, 1);
    pvm_send(subject, NUMBERS);
    pvm_send(subject, NUMBERS);
    for (int tag = KEPT; tag < KEPT + 5; tag++) {
        fill(words, 1000, tag);
        pvm_initsend(PvmDataRaw);
        pvm_pkint((int *)words, 1000, 1);
        pvm_send(subject, tag);
    }
    pvm_joingroup("kept");
    send_int(director, DONE, 0);
    while ((value = recv_int(director, ORDER)) < 4) {
        send_int(subject, LATER, value);
        send_int(director, DONE, 0);
    }
    recv_int(director, ORDER);
    send_int(subject, WAITED, 4711);
    MUST(pvm_barrier("kept", 3) >= 0);
    pvm_recv(subject, FORWARDED);
    MUST(pvm_upkint((int *)words, ROUNDS, 1) == 0);
    for (int round = 0; round < ROUNDS; round++)
        MUST(words[round] == 3 * round);
    pvm_recv(subject, PACKED);
    MUST(pvm_upkint((int *)words, ROUNDS, 1) == 0);
    for (int round = 0; round < ROUNDS; round++)
        MUST(words[round] == round);
    recv_int(director, ORDER);
}

/* ---- The director. */

static int processes[2];
/* The ranks of these processes begin with the first that is not the director's. */
static int first, at;

/* Moves the subject to the other one of these processes. */
static void move(void)
{
    at = 1 - at;
    move_to(subject, first + at);
    MUST(process_of(subject) == processes[at]);
}

static void tell(int what, int round)
{
    pvm_initsend(PvmDataRaw);
    pvm_pkint(&what, 1, 1);
    pvm_pkint(&round, 1, 1);
    pvm_send(subject, ORDER);
}

static void done(void)
{
    MUST(recv_int(subject, DONE) == 0);
}

/* Moves the subject until it has carried out an order. */
static void move_during(int what)
{
    tell(what, 0);
    do
        move();
    while (pvm_probe(subject, DONE) == 0);
    done();
}

/* Moves the subject a few times while it waits for something. */
static void moves(int count)
{
    while (count-- > 0)
        move();
}

static void direct(int has_large)
{
    int value = 0;
    first = upvm_process() == 0;
    processes[0] = process_of(subject);
    processes[1] = process_of(partner);
    MUST(processes[0] && processes[1] && processes[0] != processes[1]);
    MUST(recv_int(partner, DONE) == 0);
    done();
    pvm_joingroup("kept");
    for (int round = 0; round < ROUNDS; round++) {
        move();
        if (round % 5 == 2) {
            send_int(partner, ORDER, round / 5);
            MUST(recv_int(partner, DONE) == 0);
        }
        pvm_sendsig(subject, SIGUSR1);
        tell(CHECK, round);
        done();
    }
    send_int(partner, ORDER, 4);
    if (has_large) {
        tell(LARGE, 0);
        done();
        moves(2);
        tell(LARGE, 0);
        done();
    }
    move_during(SLEEP);
    move_during(LIMITED);
    tell(COMPUTE, 0);
    recv_int(subject, WAITED);
    moves(4);
    pvm_sendsig(subject, SIGUSR1);
    done();
    move_during(ALARM);
    move_during(PERIOD);
    tell(RECEIVE, 0);
    moves(3);
    move_to(partner, first);
    send_int(partner, ORDER, 0);
    done();
    move_to(partner, first + 1);
    tell(BARRIER, 0);
    moves(3);
    pvm_barrier("kept", 3);
    done();
    tell(MAILBOX, 0);
    moves(3);
    value = 4712;
    pvm_initsend(PvmDataRaw);
    pvm_pkint(&value, 1, 1);
    pvm_putinfo("kept.late", pvm_getsbuf(), PvmMboxDefault);
    done();
    MUST(pvm_recvinfo("kept.own", 0, PvmMboxDefault) > 0);
    tell(SPAWN, 0);
    done();
    moves(2);
    tell(LAST, 0);
    done();
    move();
    send_int(partner, ORDER, 0);
    move_during(NOTICE);
    tell(CHILDREN, 0);
    moves(2);
    done();
    MUST(pvm_gsize("kept") == 2);
    tell(LAST, 0);
}

static int child(void)
{
    int value = recv_int(pvm_parent(), CHILD);
    printf("child %d\n", value);
    send_int(pvm_parent(), CHILD, value + 1000);
    pvm_exit();
    return 0;
}

int main(int argc, char **argv)
{
    int *all;
    me = pvm_mytid();
    program = argv[0];
    if (argc > 1 && !strcmp(argv[1], "child"))
        return child();
    if (pvm_siblings(&all) != 3)
        return 2;
    director = all[0], subject = all[1], partner = all[2];
    if (me == director)
        direct(argc > 1);
    else if (me == subject)
        be_subject();
    else
        be_partner();
    pvm_exit();
    return failed;
}
