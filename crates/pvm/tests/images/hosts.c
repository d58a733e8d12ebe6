/* A machine with the hosts `b` and maybe `c` beside its home. The first argument says what to do.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <pvm3.h>

static int failures;

#define CHECK(what)                                                   \
    do {                                                              \
        if (!(what)) {                                                \
            printf("FAILED: line %d: %s\n", __LINE__, #what);         \
            fflush(stdout);                                           \
            failures = 1;                                             \
        }                                                             \
    } while (0)

enum { HERE = 1, GO, ITEM, COUNT, EXIT, GONE };

static char *program;

static int spawned(char *what, char *where, int flags, int *tids, int count)
{
    char *args[] = {what, 0};
    return pvm_spawn(program, args, flags, where, count, tids);
}

static int host_of(int tid)
{
    return pvm_tidtohost(tid) >> 18;
}

/* The next message with this tag within some seconds, as an int; -1: none. */
static int next(int tag, int seconds)
{
    struct timeval limit = {seconds, 0};
    int value = -1;
    if (pvm_trecv(-1, tag, &limit) > 0)
        pvm_upkint(&value, 1, 1);
    return value;
}

static void send_int(int to, int tag, int value)
{
    pvm_initsend(PvmDataDefault);
    pvm_pkint(&value, 1, 1);
    pvm_send(to, tag);
}

static void shows_hosts(void)
{
    struct pvmhostinfo *all;
    struct pvmtaskinfo *tasks;
    int count, archs, tids[4], infos[3], own = pvm_mytid();
    CHECK(pvm_config(&count, &archs, &all) == PvmOk && count == 3 && archs == 1);
    CHECK(all[0].hi_tid == 0x40000 && all[1].hi_tid == 0x80000 && all[2].hi_tid == 0xc0000);
    CHECK(!strcmp(all[1].hi_name, "b") && !strcmp(all[2].hi_name, "c"));
    CHECK(pvm_mstat("b") == PvmOk && pvm_mstat(".") == PvmOk && pvm_mstat("d") == PvmNoHost);
    CHECK(pvm_mstat(all[0].hi_name) == PvmOk && host_of(own) == 1);
    CHECK(pvm_tidtohost(0x80000) == 0x80000);
    char *hosts[] = {"b", "d d", all[0].hi_name};
    CHECK(pvm_addhosts(hosts, 2, infos) == 0 && infos[0] == PvmDupHost && infos[1] == PvmBadParam);
    CHECK(pvm_delhosts(hosts + 1, 2, infos) == 0);
    CHECK(infos[0] == PvmNoHost && infos[1] == PvmBadParam);
    CHECK(pvm_hostsync(0x80000, 0, 0) == PvmNotImpl && pvm_hostsync(0x140000, 0, 0) == PvmNoHost);
    CHECK(pvm_hostsync(0x40000, 0, 0) == PvmOk);

    CHECK(spawned("waits", "b", PvmTaskHost, tids, 4) == 4);
    for (int one = 0; one < 4; one++)
        CHECK(host_of(tids[one]) == 2);
    CHECK(pvm_tasks(0x80000, &count, &tasks) == PvmOk && count == 4);
    CHECK(tasks[0].ti_host == 0x80000 && tasks[0].ti_pid > 0);
    CHECK(pvm_tasks(0, &count, &tasks) == PvmOk && count == 5);
    CHECK(pvm_tasks(0x40000, &count, &tasks) == PvmOk && count == 1);
    pvm_notify(PvmTaskExit, EXIT, 4, tids);
    for (int one = 0; one < 4; one++)
        pvm_kill(tids[one]);
    for (int one = 0; one < 4; one++)
        CHECK(next(EXIT, 30) > 0);

    CHECK(spawned("waits", ".", PvmTaskHost, tids, 1) == 1 && host_of(tids[0]) == 1);
    pvm_kill(tids[0]);
    CHECK(spawned("waits", "b", PvmTaskHost | PvmHostCompl, tids, 4) == 4);
    for (int one = 0; one < 4; one++) {
        CHECK(host_of(tids[one]) != 2);
        pvm_kill(tids[one]);
    }
    CHECK(spawned("waits", "d", PvmTaskHost, tids, 2) == 0);
    CHECK(tids[0] == PvmNoHost && tids[1] == PvmNoHost);
    CHECK(spawned("waits", "LINUX64", PvmTaskArch, tids, 2) == 2);
    pvm_kill(tids[0]), pvm_kill(tids[1]);
    /* A task there knows its own host. */
    CHECK(spawned("own", "c", PvmTaskHost, tids, 1) == 1);
    CHECK(next(HERE, 30) == 3);
    puts("ok: hosts");
}

/* On another host: `.` is its own. */
static void own(void)
{
    int tid, host = 0;
    if (spawned("waits", ".", PvmTaskHost, &tid, 1) == 1)
        host = host_of(tid);
    pvm_kill(tid);
    send_int(pvm_parent(), HERE, host);
}

enum { ITEMS = 40, INTS = 64 << 10 };

/* Sends much to its sibling on the other host, writes a line, and ends at once. */
static void floods(void)
{
    static int all[INTS];
    int to;
    pvm_recv(pvm_parent(), GO);
    pvm_upkint(&to, 1, 1);
    for (int item = 0; item < ITEMS; item++) {
        all[0] = item;
        pvm_initsend(PvmDataRaw);
        pvm_pkint(all, INTS, 1);
        pvm_send(to, ITEM);
    }
    pvm_exit();
    exit(0);
}

/* Counts what comes before the notice of the sender's end. */
static void counts(void)
{
    int from, item = 0, bytes, tag, source, before = 0, is_over = 0;
    pvm_recv(pvm_parent(), GO);
    pvm_upkint(&from, 1, 1);
    pvm_notify(PvmTaskExit, EXIT, 1, &from);
    send_int(pvm_parent(), HERE, 0);
    while (!is_over) {
        pvm_bufinfo(pvm_recv(-1, -1), &bytes, &tag, &source);
        if (tag == EXIT) {
            is_over = 1;
            continue;
        }
        pvm_upkint(&item, 1, 1);
        if (item != before)
            break;
        before++;
    }
    send_int(pvm_parent(), COUNT, before);
}

static void keeps_order(void)
{
    int rounds = 5;
    for (int round = 0; round < rounds; round++) {
        int from, to, sends = round % 2;
        CHECK(spawned("floods", sends ? "c" : "b", PvmTaskHost, &from, 1) == 1);
        CHECK(spawned("counts", sends ? "b" : "c", PvmTaskHost, &to, 1) == 1);
        send_int(to, GO, from);
        CHECK(next(HERE, 30) == 0);
        send_int(from, GO, to);
        CHECK(next(COUNT, 60) == ITEMS);
    }
    puts("ok: order");
}

/* Waits until the host `b` has ended. */
static void outlives(void)
{
    int near, far[2], more, host = 0x80000;
    CHECK(spawned("waits", ".", PvmTaskHost, &near, 1) == 1);
    CHECK(spawned("waits", "b", PvmTaskHost, far, 2) == 2);
    pvm_notify(PvmTaskExit, EXIT, 1, &near);
    pvm_notify(PvmTaskExit, EXIT, 2, far);
    pvm_notify(PvmHostDelete, GONE, 1, &host);
    pvm_notify(PvmHostDelete, GONE, 1, &far[0]);
    puts("ready");
    fflush(stdout);
    int first = next(EXIT, 60), second = next(EXIT, 60);
    CHECK((first == far[0] && second == far[1]) || (first == far[1] && second == far[0]));
    CHECK(next(GONE, 60) == host && next(GONE, 60) == host);
    CHECK(pvm_mstat("b") == PvmNoHost);
    CHECK(spawned("waits", "b", PvmTaskHost, &more, 1) == 0 && more == PvmNoHost);
    CHECK(spawned("waits", "", PvmTaskDefault, &more, 1) == 1 && host_of(more) != 2);
    pvm_kill(more);
    /* Sends to a task that has ended are lost. */
    send_int(far[0], GO, 1);
    /* Each notice comes once, and what is over is told at once. */
    CHECK(next(EXIT, 1) == -1 && next(GONE, 0) == -1);
    pvm_notify(PvmHostDelete, GONE, 1, &host);
    CHECK(next(GONE, 30) == host);
    pvm_kill(near);
    CHECK(next(EXIT, 60) == near);
    puts("ok: outlives");
}

/* Exchanges messages with a task on the other host, for some seconds. */
static void talks(void)
{
    int far, item;
    time_t until = time(0) + 3;
    CHECK(spawned("answers", "b", PvmTaskHost, &far, 1) == 1);
    puts("ready");
    fflush(stdout);
    for (item = 1; item < 1000 || time(0) < until; item++) {
        send_int(far, ITEM, item);
        if (next(ITEM, 60) != item) {
            CHECK(!"the answer to the last message");
            break;
        }
    }
    send_int(far, ITEM, 0);
    puts("ok: talks");
}

static void answers(void)
{
    int item = 1;
    while (item) {
        item = next(ITEM, 60);
        send_int(pvm_parent(), ITEM, item);
    }
}

/* Has a task on the other host that is in a system call, and one that waits. */
static void sleeps_afar(void)
{
    int tids[2];
    CHECK(spawned("waits", "b", PvmTaskHost, &tids[0], 1) == 1);
    CHECK(spawned("sleeps", "b", PvmTaskHost, &tids[1], 1) == 1);
    puts("ready");
    fflush(stdout);
    pvm_recv(-1, GO);
}

/* Has tasks on `b` and `c`, and waits until one of them has ended. */
static void is_parted(void)
{
    int tids[2], host = 0xc0000;
    CHECK(spawned("waits", "b", PvmTaskHost, &tids[0], 1) == 1);
    CHECK(spawned("waits", "c", PvmTaskHost, &tids[1], 1) == 1);
    pvm_notify(PvmTaskExit, EXIT, 2, tids);
    pvm_notify(PvmHostDelete, GONE, 1, &host);
    puts("ready");
    fflush(stdout);
    /* The one with the higher rank. */
    CHECK(next(EXIT, 50) == tids[1] && next(GONE, 30) == host);
    CHECK(pvm_mstat("b") == PvmOk && pvm_mstat("c") == PvmNoHost);
    send_int(tids[0], GO, 1);
    CHECK(next(EXIT, 50) == tids[0]);
    puts("ok: parted");
}

/* Catches what a task on each host writes. */
static void prints(char *what)
{
    int tid, count = 0;
    struct pvmhostinfo *hosts;
    pvm_config(&count, 0, &hosts);
    pvm_catchout(stdout);
    for (int one = 0; one < count; one++)
        CHECK(spawned(what, hosts[one].hi_name, PvmTaskHost, &tid, 1) == 1);
    pvm_exit();
    puts("ok: prints");
}

/* Lets a task on `c` catch what tasks of all hosts write, who write much and end at once. */
static void prints_afar(void)
{
    int tid;
    CHECK(spawned("catches", "c", PvmTaskHost, &tid, 1) == 1);
    pvm_notify(PvmTaskExit, EXIT, 1, &tid);
    CHECK(next(EXIT, 60) == tid);
    puts("ok: prints afar");
}

/* Writes lines with this number of further characters. */
static void lines(int more)
{
    static char text[50000];
    memset(text, 'x', more);
    for (int line = 0; line < 200; line++) {
        printf("line %d %s of %d\n", line, text, host_of(pvm_mytid()));
        fflush(stdout);
    }
}

int main(int argc, char **argv)
{
    char *what = argc > 1 ? argv[1] : "";
    program = argv[0];
    pvm_mytid();
    if (!strcmp(what, "waits"))
        pvm_recv(-1, GO);
    else if (!strcmp(what, "sleeps"))
        sleep(1000);
    else if (!strcmp(what, "hosts"))
        shows_hosts();
    else if (!strcmp(what, "own"))
        own();
    else if (!strcmp(what, "order"))
        keeps_order();
    else if (!strcmp(what, "floods"))
        floods();
    else if (!strcmp(what, "counts"))
        counts();
    else if (!strcmp(what, "outlives"))
        outlives();
    else if (!strcmp(what, "talks"))
        talks();
    else if (!strcmp(what, "answers"))
        answers();
    else if (!strcmp(what, "asleep"))
        sleeps_afar();
    else if (!strcmp(what, "prints"))
        prints("lines");
    else if (!strcmp(what, "catches"))
        prints("pages");
    else if (!strcmp(what, "parted"))
        is_parted();
    else if (!strcmp(what, "afar"))
        prints_afar();
    else if (!strcmp(what, "lines"))
        lines(1);
    else if (!strcmp(what, "pages"))
        lines(49999);
    else
        return 2;
    pvm_exit();
    return failures;
}
