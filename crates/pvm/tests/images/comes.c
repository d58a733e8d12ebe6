/* A machine whose hosts come and go. The first argument says what to do. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <pvm3.h>

#define CHECK(what)                                                   \
    do {                                                              \
        if (!(what)) {                                                \
            printf("FAILED: line %d: %s\n", __LINE__, #what);         \
            fflush(stdout);                                           \
        }                                                             \
    } while (0)

enum { HERE = 1, GO, EXIT, GONE, COME, ITEM };

static char *program;

static int spawned(char *what, char *where, int *tids, int count)
{
    char *args[] = {what, 0};
    return pvm_spawn(program, args, *where ? PvmTaskHost : PvmTaskDefault, where, count, tids);
}

static int host_of(int tid)
{
    return pvm_tidtohost(tid) >> 18;
}

/* The next message with this tag, as an int. */
static int next(int tag)
{
    int value = -1;
    if (pvm_recv(-1, tag) > 0)
        pvm_upkint(&value, 1, 1);
    return value;
}

static void send_int(int to, int tag, int value)
{
    pvm_initsend(PvmDataDefault);
    pvm_pkint(&value, 1, 1);
    pvm_send(to, tag);
}

static int hosts(void)
{
    int count = 0;
    pvm_config(&count, 0, 0);
    return count;
}

static int add(char *name)
{
    int info = 0;
    CHECK(pvm_addhosts(&name, 1, &info) == (info >= 0));
    return info;
}

static int delete(char *name)
{
    int info = 0;
    CHECK(pvm_delhosts(&name, 1, &info) == (info >= 0));
    return info;
}

static void ready(void)
{
    puts("ready");
    fflush(stdout);
}

/* The notice of a host that has come: its number. */
static int come(void)
{
    int count = 0, host = 0;
    pvm_recv(-1, COME);
    pvm_upkint(&count, 1, 1);
    pvm_upkint(&host, 1, 1);
    CHECK(count == 1);
    return host;
}

/* `b` comes, has tasks, goes with them, and comes again. */
static void comes_and_goes(void)
{
    int tids[4], own = pvm_mytid(), b, other;
    pvm_setopt(PvmAutoErr, 0);
    CHECK(hosts() == 1 && pvm_mstat("b") == PvmNoHost);
    CHECK(spawned("waits", "b", tids, 1) == 0 && tids[0] == PvmNoHost);
    pvm_notify(PvmHostAdd, COME, -1, 0);
    b = add("b:2");
    CHECK(b == 0x80000 && come() == b);
    CHECK(hosts() == 2 && pvm_mstat("b") == PvmOk);
    CHECK(add("b") == PvmDupHost && add("a b") == PvmBadParam && add("c:999") == PvmOutOfRes);
    CHECK(add("b:x") == PvmBadParam && add("c:0") == PvmOutOfRes);
    /* Its number is not given again. */
    CHECK(add("nosuch") == PvmCantStart && hosts() == 2);
    pvm_notify(PvmHostDelete, GONE, 1, &b);
    CHECK(spawned("echoes", "b", tids, 4) == 4);
    pvm_notify(PvmTaskExit, EXIT, 4, tids);
    for (int one = 0; one < 4; one++) {
        CHECK(host_of(tids[one]) == 2);
        send_int(tids[one], ITEM, one);
    }
    for (int one = 0, sum = 0; one < 4; one++) {
        sum += next(HERE);
        CHECK(one < 3 || sum == 6);
    }
    /* Also without a name. */
    CHECK(spawned("waits", "", tids, 3) == 3);
    CHECK(host_of(tids[0]) + host_of(tids[1]) + host_of(tids[2]) > 3);
    pvm_notify(PvmTaskExit, EXIT, 3, tids);
    for (int one = 0; one < 3; one++)
        if (host_of(tids[one]) == 1)
            pvm_kill(tids[one]);
    CHECK(delete("nosuch") == PvmNoHost && delete(".") == PvmNoHost);
    CHECK(delete("b") == PvmOk && hosts() == 1 && pvm_mstat("b") == PvmNoHost);
    CHECK(next(GONE) == b);
    for (int one = 0; one < 7; one++)
        next(EXIT);
    CHECK(delete("b") == PvmNoHost);
    /* The notice of the next one only. */
    pvm_notify(PvmHostAdd, COME, 1, 0);
    other = add("b");
    CHECK(other > b && come() == other && hosts() == 2);
    CHECK(add("c") > other && pvm_nrecv(-1, COME) == 0);
    CHECK(spawned("echoes", "b", tids, 1) == 1 && spawned("echoes", "c", tids + 1, 1) == 1);
    CHECK(host_of(tids[0]) == other >> 18 && host_of(own) == 1);
    send_int(tids[0], ITEM, tids[1]);
    CHECK(next(HERE) == tids[1]);
    char *both[] = {"b", "c"};
    int infos[2];
    CHECK(pvm_delhosts(both, 2, infos) == 2 && infos[0] == PvmOk && infos[1] == PvmOk);
    CHECK(hosts() == 1);
    puts("ok: comes and goes");
}

/* Two hosts come at once, and their tasks know each other. */
static void come_together(void)
{
    char *all[] = {"b:2", "c"};
    int infos[2], tids[2];
    CHECK(pvm_addhosts(all, 2, infos) == 2);
    CHECK(infos[0] > 0 && infos[1] > 0 && hosts() == 3);
    CHECK(spawned("passes", "b", tids, 1) == 1 && spawned("echoes", "c", tids + 1, 1) == 1);
    send_int(tids[0], ITEM, tids[1]);
    CHECK(next(HERE) == 42);
    send_int(tids[1], GO, 0);
    puts("ok: come together");
}

/* Answers one message with its contents. */
static void echoes(void)
{
    int value = next(ITEM);
    send_int(pvm_parent(), HERE, value);
    pvm_recv(-1, GO);
}

/* Sends a number to the task that it is told of. */
static void passes(void)
{
    send_int(next(ITEM), ITEM, 42);
}

/* Waits until this many hosts are there, and has a task on each. */
static void waits_for(int count)
{
    pvm_notify(PvmHostAdd, COME, -1, 0);
    ready();
    while (hosts() < count)
        come();
    struct pvmhostinfo *all;
    int tid;
    pvm_config(&count, 0, &all);
    for (int one = 1; one < count; one++) {
        CHECK(spawned("echoes", all[one].hi_name, &tid, 1) == 1);
        send_int(tid, ITEM, one);
        CHECK(next(HERE) == one);
        send_int(tid, GO, 0);
        printf("host %s\n", all[one].hi_name);
    }
    puts("ok: all there");
}

int main(int argc, char **argv)
{
    char *what = argc > 1 ? argv[1] : "";
    program = argv[0];
    pvm_mytid();
    if (!strcmp(what, "waits"))
        pvm_recv(-1, GO);
    else if (!strcmp(what, "echoes"))
        echoes();
    else if (!strcmp(what, "passes"))
        passes();
    else if (!strcmp(what, "comes"))
        comes_and_goes();
    else if (!strcmp(what, "together"))
        come_together();
    else if (!strcmp(what, "idles")) {
        ready();
        pvm_recv(-1, GO);
    } else if (!strcmp(what, "await"))
        waits_for(atoi(argv[2]));
    else
        return 2;
    pvm_exit();
    return 0;
}
