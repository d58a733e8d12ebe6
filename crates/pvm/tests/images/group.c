/* Groups, and operations of all their members. The original PVM's group server, pvmgs, must run. */

#include "check.h"
#include <math.h>

#define CHILDREN 3
#define MEMBERS (CHILDREN + 1)

static int children[CHILDREN];

/* A reduction as users write them: the sum of the first numbers, and the maximum of the second
 * ones. */
static void sum_and_mark(int *type, void *data, void *other, int *count, int *info)
{
    int *x = data, *y = other;
    if (*type != PVM_INT || *count != 2) {
        *info = PvmBadParam;
        return;
    }
    x[0] += y[0];
    if (y[1] > x[1])
        x[1] = y[1];
    *info = PvmOk;
}

static void refuse(int *type, void *data, void *other, int *count, int *info)
{
    (void)type, (void)data, (void)other, (void)count;
    *info = PvmOverflow;
}

/* Each member takes part with its instance. The root returns 1 if all results are right. */
static int reduced(char *group, int root)
{
    int me = pvm_getinst(group, pvm_mytid()), n = pvm_gsize(group), last = n - 1, good = 1;
    int is_root = me == root, sum = last * n / 2, part[2] = {me + 1, me};
    int tag = 5, count = 3;
    char bytes[3] = {me, -me, 1};
    short shorts[3] = {me, -me, 2};
    int ints[3] = {me, -me, 1 << 20};
    long longs[3] = {me, -me, 1L << 40};
    float floats[3] = {me, -me, 0.5};
    double doubles[3] = {me, -me, 0.25};
    float pairs[6] = {me, 1, -me, 0, 1, 0};
    double double_pairs[4] = {0, 1, me, me};

    if (pvm_reduce(PvmMax, bytes, count, PVM_BYTE, tag, group, root) != PvmOk)
        good = 0;
    if (is_root && (bytes[0] != last || bytes[1] != 0 || bytes[2] != 1))
        good = 0;
    pvm_barrier(group, n);
    pvm_reduce(PvmMin, shorts, count, PVM_SHORT, tag, group, root);
    if (is_root && (shorts[0] != 0 || shorts[1] != -last || shorts[2] != 2))
        good = 0;
    pvm_barrier(group, n);
    pvm_reduce(PvmSum, ints, count, PVM_INT, tag, group, root);
    if (is_root && (ints[0] != sum || ints[1] != -sum || ints[2] != n << 20))
        good = 0;
    pvm_barrier(group, n);
    pvm_reduce(PvmProduct, longs, count, PVM_LONG, tag, group, root);
    if (is_root && (longs[0] != 0 || longs[1] != 0))
        good = 0;
    pvm_barrier(group, n);
    pvm_reduce(PvmProduct, floats, count, PVM_FLOAT, tag, group, root);
    if (is_root && (floats[0] != 0 || floats[2] != powf(0.5, n)))
        good = 0;
    pvm_barrier(group, n);
    pvm_reduce(PvmSum, doubles, count, PVM_DOUBLE, tag, group, root);
    if (is_root && (doubles[0] != sum || doubles[1] != -sum || doubles[2] != 0.25 * n))
        good = 0;
    pvm_barrier(group, n);
    pvm_reduce(PvmMax, pairs, count, PVM_CPLX, tag, group, root);
    if (is_root && (pairs[0] != last || pairs[1] != 1 || pairs[2] != -last || pairs[4] != 1))
        good = 0;
    pvm_barrier(group, n);
    /* i to the power of n, and a product with 0. */
    pvm_reduce(PvmProduct, double_pairs, 2, PVM_DCPLX, tag, group, root);
    if (is_root &&
        (double_pairs[0] != (n % 4 == 0) - (n % 4 == 2) ||
         double_pairs[1] != (n % 4 == 1) - (n % 4 == 3) || double_pairs[2] != 0))
        good = 0;
    pvm_barrier(group, n);
    pvm_reduce(sum_and_mark, part, 2, PVM_INT, tag, group, root);
    if (is_root && (part[0] != sum + n || part[1] != last))
        good = 0;
    pvm_barrier(group, n);
    return good;
}

static int gathered(char *group, int root)
{
    int me = pvm_getinst(group, pvm_mytid()), n = pvm_gsize(group), good = 1;
    int part[2] = {10 * me, 10 * me + 1}, all[2 * MEMBERS] = {0};
    double mine[3] = {0}, table[3 * MEMBERS];
    char text[20], texts[20 * MEMBERS];
    for (int one = 0; one < 3 * n; one++)
        table[one] = one / 2.0;
    if (pvm_gather(all, part, 2, PVM_INT, 6, group, root) != PvmOk)
        good = 0;
    for (int one = 0; me == root && one < 2 * n; one++)
        if (all[one] != 10 * (one / 2) + one % 2)
            good = 0;
    pvm_barrier(group, n);
    if (pvm_scatter(mine, table, 3, PVM_DOUBLE, 6, group, root) != PvmOk)
        good = 0;
    for (int one = 0; one < 3; one++)
        if (mine[one] != (3 * me + one) / 2.0)
            good = 0;
    pvm_barrier(group, n);
    memset(texts, 0, sizeof texts);
    snprintf(text, sizeof text, "text %d", me);
    pvm_gather(texts, text, 20, PVM_STR, 6, group, root);
    for (int one = 0; me == root && one < n; one++) {
        snprintf(text, sizeof text, "text %d", one);
        if (strcmp(texts + 20 * one, text))
            good = 0;
    }
    pvm_barrier(group, n);
    return good;
}

/* Collective operations do not disturb messages that the program has sent to itself and half
 * unpacked. */
static int undisturbed(char *group, int root)
{
    int value = 41, me = pvm_mytid(), part = 1, sends, receives, kept, good = 1;
    pvm_initsend(PvmDataDefault);
    pvm_pkint(&value, 1, 1);
    pvm_send(me, 5);
    pvm_send(me, 6);
    pvm_recv(me, 6);
    sends = pvm_getsbuf(), receives = pvm_getrbuf();
    kept = pvm_newcontext();
    pvm_setcontext(kept);
    pvm_reduce(PvmSum, &part, 1, PVM_INT, 5, group, root);
    if (pvm_setcontext(0) != kept || pvm_freecontext(kept) != PvmOk)
        good = 0;
    if (pvm_getsbuf() != sends || pvm_getrbuf() != receives)
        good = 0;
    value = 0;
    if (pvm_upkint(&value, 1, 1) != PvmOk || value != 41)
        good = 0;
    value = 0;
    if (pvm_nrecv(me, 5) <= 0 || pvm_upkint(&value, 1, 1) != PvmOk || value != 41)
        good = 0;
    pvm_barrier(group, -1);
    return good;
}

static int order(const char *what, char *name, int number)
{
    int data[2] = {1, 2};
    if (!strcmp(what, "join"))
        return pvm_joingroup(name);
    if (!strcmp(what, "leave"))
        return pvm_lvgroup(name);
    if (!strcmp(what, "barrier"))
        return pvm_barrier(name, number);
    if (!strcmp(what, "freeze"))
        return pvm_freezegroup(name, number);
    if (!strcmp(what, "tid"))
        return pvm_gettid(name, number);
    if (!strcmp(what, "instance"))
        return pvm_getinst(name, number);
    if (!strcmp(what, "size"))
        return pvm_gsize(name);
    if (!strcmp(what, "bcast")) {
        pvm_initsend(PvmDataDefault);
        pvm_pkint(&number, 1, 1);
        return pvm_bcast(name, 9);
    }
    if (!strcmp(what, "receive")) {
        struct timeval within = {0, 200000};
        if (pvm_trecv(-1, 9, &within) <= 0)
            return NOTHING;
        pvm_upkint(&number, 1, 1);
        return number;
    }
    /* Polls for a partner and for all members, as programs do. */
    if (!strcmp(what, "poll")) {
        int tid;
        while ((tid = pvm_gettid(name, number)) < 0)
            ;
        while (pvm_getinst(name, tid) < 0)
            ;
        while (pvm_gsize(name) < 2)
            ;
        return tid;
    }
    if (!strcmp(what, "reduced"))
        return reduced(name, number);
    if (!strcmp(what, "gathered"))
        return gathered(name, number);
    if (!strcmp(what, "undisturbed"))
        return undisturbed(name, number);
    if (!strcmp(what, "reduce"))
        return pvm_reduce(PvmSum, data, 2, PVM_INT, 5, name, number);
    return NOTHING;
}

/* All children and the first task execute an order. */
static void together(const char *what, char *name, int number)
{
    char line[80];
    for (int child = 0; child < CHILDREN; child++)
        tell(children[child], what, name, number);
    int good = order(what, name, number);
    for (int child = 0; child < CHILDREN; child++)
        good &= heard(children[child]);
    snprintf(line, sizeof line, "%s, root %d", what, number);
    check(line, good, 1);
}

static void names(int me)
{
    check("a null name is not joined", pvm_joingroup(0), PvmNullGroup);
    check("an empty name is not joined", pvm_joingroup(""), PvmNullGroup);
    check("an empty name is not left", pvm_lvgroup(""), PvmNullGroup);
    check("no barrier with an empty name", pvm_barrier("", 1), PvmNullGroup);
    check("no size with an empty name", pvm_gsize(""), PvmNullGroup);
    check("no broadcast with an empty name", pvm_bcast("", 1), PvmNullGroup);
    check("an unknown group is not left", pvm_lvgroup("t.none"), PvmNoGroup);
    check("an unknown group has no task", pvm_gettid("t.none", 0), PvmNoGroup);
    check("an unknown group has no instance", pvm_getinst("t.none", me), PvmNoGroup);
    check("an unknown group has no size", pvm_gsize("t.none"), PvmNoGroup);
    check("an unknown group has no barrier", pvm_barrier("t.none", 1), PvmNoGroup);
    check("an unknown group gets no broadcast", pvm_bcast("t.none", 1), PvmNoGroup);
    check("an unknown group is not frozen", pvm_freezegroup("t.none", 1), PvmNoGroup);
}

static void instances(int me)
{
    int first = children[0], second = children[1];
    check("the first instance is 0", pvm_joingroup("t.i"), 0);
    check("no task joins twice", pvm_joingroup("t.i"), PvmDupGroup);
    check("the next is 1", ask(first, "join", "t.i", 0), 1);
    check("the next is 2", ask(second, "join", "t.i", 0), 2);
    check("the group's size", pvm_gsize("t.i"), 3);
    check("the task of an instance", pvm_gettid("t.i", 1), first);
    check("the instance of a task", pvm_getinst("t.i", second), 2);
    check("no such instance", pvm_gettid("t.i", 100), PvmNoInst);
    check("an instance below 0", pvm_gettid("t.i", -1), PvmNoInst);
    check("the instance of a task outside", pvm_getinst("t.i", children[2]), PvmNotInGroup);
    check("a member leaves", ask(first, "leave", "t.i", 0), 0);
    check("but not twice", ask(first, "leave", "t.i", 0), PvmNotInGroup);
    check("the instance is unused", pvm_gettid("t.i", 1), PvmNoInst);
    check("a task outside asks", ask(children[2], "instance", "t.i", second), 2);
    check("the lowest free instance is reused", ask(children[2], "join", "t.i", 0), 1);
    check("a task is in two groups", ask(children[2], "join", "t.j", 0), 0);
    check("the last member leaves", ask(children[2], "leave", "t.j", 0), 0);
    check("and the group is gone", pvm_gsize("t.j"), PvmNoGroup);
    check("the first task leaves", pvm_lvgroup("t.i"), 0);
    check("its instance is gone", ask(second, "instance", "t.i", me), PvmNotInGroup);
    ask(second, "leave", "t.i", 0);
    ask(children[2], "leave", "t.i", 0);
}

static void polls(int me)
{
    tell(children[0], "poll", "t.p", 1);
    check("a member polls for another", hear(children[0]), NOTHING);
    check("another task joins", ask(children[1], "join", "t.p", 0), 0);
    check("it is not the wanted instance", hear(children[0]), NOTHING);
    check("the wanted instance joins", pvm_joingroup("t.p"), 1);
    check("and is found", heard(children[0]), me);
    pvm_lvgroup("t.p");
    ask(children[1], "leave", "t.p", 0);
}

static void broadcasts(void)
{
    pvm_initsend(PvmDataDefault);
    check("the group is joined", pvm_joingroup("t.b"), 0);
    check("no other member exists", pvm_bcast("t.b", 9), PvmNoInst);
    for (int child = 0; child < 2; child++)
        ask(children[child], "join", "t.b", 0);
    check("a negative tag", pvm_bcast("t.b", -4), PvmBadParam);
    check("a member broadcasts", ask(children[0], "bcast", "t.b", 23), 0);
    check("a member receives it", order("receive", "", 0), 23);
    check("another member receives it", ask(children[1], "receive", "", 0), 23);
    check("the sender does not", ask(children[0], "receive", "", 0), NOTHING);
    check("a task outside broadcasts", ask(children[2], "bcast", "t.b", 24), 0);
    check("a member receives it", order("receive", "", 0), 24);
    check("another member receives it", ask(children[0], "receive", "", 0), 24);
    check("and another", ask(children[1], "receive", "", 0), 24);
    check("the task outside does not", ask(children[2], "receive", "", 0), NOTHING);
    pvm_lvgroup("t.b");
    for (int child = 0; child < 2; child++)
        ask(children[child], "leave", "t.b", 0);
}

static void barriers(void)
{
    for (int child = 0; child < CHILDREN; child++)
        ask(children[child], "join", "t.w", 0);
    check("the instance of a task outside", pvm_barrier("t.w", 1), PvmNotInGroup);
    tell(children[0], "barrier", "t.w", 3);
    check("one waits", hear(children[0]), NOTHING);
    check("a different count", ask(children[1], "barrier", "t.w", 2), PvmMismatch);
    tell(children[1], "barrier", "t.w", -1);
    check("two wait", hear(children[1]), NOTHING);
    check("the third arrives", ask(children[2], "barrier", "t.w", 3), 0);
    check("the first goes on", heard(children[0]), 0);
    check("the second goes on", heard(children[1]), 0);
    tell(children[1], "barrier", "t.w", 2);
    check("a barrier of two members", ask(children[2], "barrier", "t.w", 2), 0);
    check("the other one goes on", heard(children[1]), 0);
    check("a barrier of one", ask(children[2], "barrier", "t.w", 1), 0);
    tell(children[0], "barrier", "t.w", 4);
    tell(children[1], "barrier", "t.w", 4);
    tell(children[2], "barrier", "t.w", 4);
    check("all wait for a task that has not joined", hear(children[2]), NOTHING);
    pvm_joingroup("t.w");
    check("a task joins and arrives", pvm_barrier("t.w", 4), 0);
    for (int child = 0; child < CHILDREN; child++)
        check("all go on", heard(children[child]), 0);
    pvm_lvgroup("t.w");
    for (int child = 0; child < CHILDREN; child++)
        ask(children[child], "leave", "t.w", 0);
}

static void collects(int me)
{
    int data[4] = {1, 2, 3, 4}, result[4 * MEMBERS], speaker = 0, here = 0, hosts = 0;
    int pvm_grphostinfo(char *, int, int *, int *, int *);
    for (int child = 0; child < CHILDREN; child++)
        ask(children[child], "join", "t.c", 0);
    check("a task outside cannot reduce", pvm_reduce(PvmSum, data, 1, PVM_INT, 5, "t.c", 0),
          PvmNotInGroup);
    check("a task outside cannot gather", pvm_gather(result, data, 1, PVM_INT, 5, "t.c", 0),
          PvmNotInGroup);
    check("a task outside cannot scatter", pvm_scatter(result, data, 1, PVM_INT, 5, "t.c", 0),
          PvmNotInGroup);
    check("the last member joins", pvm_joingroup("t.c"), 3);
    check("no data", pvm_reduce(PvmSum, 0, 1, PVM_INT, 5, "t.c", 3), PvmBadParam);
    check("a count of 0", pvm_gather(result, data, 0, PVM_INT, 5, "t.c", 3), PvmBadParam);
    check("no such type", pvm_scatter(result, data, 1, 77, 5, "t.c", 3), PvmBadParam);
    check("no such root", pvm_reduce(PvmSum, data, 1, PVM_INT, 5, "t.c", 9), PvmNoInst);
    check("no such root", pvm_gather(result, data, 1, PVM_INT, 5, "t.c", 9), PvmNoInst);
    check("no such group", pvm_scatter(result, data, 1, PVM_INT, 5, "t.none", 0), PvmNoGroup);
    check("no place to gather", pvm_gather(0, data, 1, PVM_INT, 5, "t.c", 3), PvmBadParam);
    check("nothing to scatter", pvm_scatter(result, 0, 1, PVM_INT, 5, "t.c", 3), PvmBadParam);
    for (int root = 0; root < MEMBERS; root += 3) {
        together("reduced", "t.c", root);
        together("gathered", "t.c", root);
        together("undisturbed", "t.c", root);
    }
    /* The others do not wait for the root, and their parts arrive. */
    for (int child = 0; child < CHILDREN; child++)
        check("members other than the root go on", ask(children[child], "reduce", "t.c", 3), 0);
    check("the root's function refuses", pvm_reduce(refuse, data, 2, PVM_INT, 5, "t.c", 3),
          PvmOverflow);
    check("information about the group's hosts",
          pvm_grphostinfo("t.c", pvm_tidtohost(me), &speaker, &here, &hosts), 0);
    int least = me;
    for (int child = 0; child < CHILDREN; child++)
        least = children[child] < least ? children[child] : least;
    check("the host's speaker", speaker, least);
    check("the members on this host", here, MEMBERS);
    check("the number of hosts", hosts, 1);
    check("a member leaves", ask(children[1], "leave", "t.c", 0), 0);
    check("no gather with an unused instance", pvm_gather(result, data, 1, PVM_INT, 8, "t.c", 3),
          PvmNoInst);
    check("no scatter with an unused instance", pvm_scatter(result, data, 1, PVM_INT, 8, "t.c", 3),
          PvmNoInst);
    check("a former member is not a root", pvm_reduce(PvmSum, data, 1, PVM_INT, 8, "t.c", 1),
          PvmNoInst);
    pvm_lvgroup("t.c");
    ask(children[0], "leave", "t.c", 0);
    ask(children[2], "leave", "t.c", 0);
}

static void functions(void)
{
    void (*all[])(int *, void *, void *, int *, int *) = {PvmMax, PvmMin, PvmSum, PvmProduct};
    int type = PVM_STR, one = 1, info = 0;
    char x = 3, y = -4;
    for (int function = 0; function < 4; function++) {
        all[function](&type, &x, &y, &one, &info);
        check("strings are not reduced", info, PvmBadParam);
    }
    type = PVM_BYTE;
    PvmMin(&type, &x, &y, &one, &info);
    check("the least byte", info == PvmOk && x == -4, 1);
    PvmSum(&type, &x, &y, &one, &info);
    check("bytes are not added", info, PvmBadParam);
    PvmProduct(&type, &x, &y, &one, &info);
    check("bytes are not multiplied", info, PvmBadParam);
    float z[2] = {3, 4}, w[2] = {-5, 0}, v[2] = {0, -1};
    type = PVM_CPLX;
    PvmMax(&type, z, w, &one, &info);
    check("of equal moduli the first", z[0] == 3 && z[1] == 4, 1);
    PvmMin(&type, z, v, &one, &info);
    check("the lower modulus", z[0] == 0 && z[1] == -1, 1);
    PvmProduct(&type, w, v, &one, &info);
    check("a product", w[0] == 0 && w[1] == 5, 1);
    double nan[1] = {NAN}, number[1] = {1};
    type = PVM_DOUBLE;
    PvmMax(&type, nan, number, &one, &info);
    check("a NaN and a number", nan[0] == 1, 1);
}

static void frozen(int me)
{
    check("the group is joined", pvm_joingroup("t.f"), 0);
    for (int child = 0; child < 2; child++)
        ask(children[child], "join", "t.f", 0);
    check("a task outside cannot freeze it", ask(children[2], "freeze", "t.f", 3), PvmNotInGroup);
    tell(children[0], "freeze", "t.f", 3);
    check("one waits", hear(children[0]), NOTHING);
    check("a different count", ask(children[1], "freeze", "t.f", 2), PvmMismatch);
    tell(children[1], "freeze", "t.f", -1);
    check("two wait", hear(children[1]), NOTHING);
    check("the third arrives", pvm_freezegroup("t.f", 3), 3);
    check("the first goes on", heard(children[0]), 3);
    check("the second goes on", heard(children[1]), 3);
    check("a group is frozen only once", pvm_freezegroup("t.f", 3), PvmDupGroup);
    check("no task can join", ask(children[2], "join", "t.f", 0), PvmNotInGroup);
    check("the group's size", pvm_gsize("t.f"), 3);
    check("a task outside asks for its size", ask(children[2], "size", "t.f", 0), 3);
    check("the task of an instance", pvm_gettid("t.f", 2), children[1]);
    check("the instance of a task", pvm_getinst("t.f", children[0]), 1);
    check("no such instance", pvm_gettid("t.f", 9), PvmNoInst);
    check("the instance of a task outside", pvm_getinst("t.f", children[2]), PvmNotInGroup);
    check("a member asks", ask(children[1], "tid", "t.f", 0), me);
    tell(children[0], "gathered", "t.f", 2);
    tell(children[1], "gathered", "t.f", 2);
    int good = gathered("t.f", 2);
    check("it gathers", good && heard(children[0]) == 1 && heard(children[1]) == 1, 1);
    check("a task outside broadcasts", ask(children[2], "bcast", "t.f", 31), 0);
    check("a member broadcasts", ask(children[1], "bcast", "t.f", 32), 0);
    check("a member receives it", order("receive", "", 0), 31);
    check("a member receives it", order("receive", "", 0), 32);
    check("another member receives it", ask(children[0], "receive", "", 0), 31);
    ask(children[0], "receive", "", 0);
    ask(children[1], "receive", "", 0);
    tell(children[0], "barrier", "t.f", 3);
    check("one waits", hear(children[0]), NOTHING);
    check("a member leaves", pvm_lvgroup("t.f"), 0);
    check("and waiting members get an error", heard(children[0]), PvmNoGroup);
    check("as do later calls", ask(children[1], "barrier", "t.f", 2), PvmNoGroup);
    check("its members still find each other", ask(children[1], "tid", "t.f", 1), children[0]);
    check("the next leaves", ask(children[0], "leave", "t.f", 0), 0);
    check("the last member leaves", ask(children[1], "leave", "t.f", 0), 0);
    check("another task creates the group", ask(children[2], "join", "t.f", 0), 0);
    check("a former member asks for its size", ask(children[1], "size", "t.f", 0), 1);
    ask(children[2], "leave", "t.f", 0);
}

static void ends(void)
{
    for (int child = 0; child < CHILDREN; child++)
        ask(children[child], "join", "t.e", 0);
    tell(children[2], "end", "", 0);
    while (pvm_gsize("t.e") == 3)
        ;
    check("a task that ends leaves", pvm_gsize("t.e"), 2);
    pvm_kill(children[1]);
    while (pvm_gsize("t.e") == 2)
        ;
    check("a task that is killed leaves", pvm_gettid("t.e", 1), PvmNoInst);
    check("the other member stays", pvm_gettid("t.e", 0), children[0]);
}

int main(int count, char **args)
{
    (void)count;
    int me = pvm_mytid();
    if (pvm_parent() > 0)
        obey(order);
    begin(args[0], CHILDREN, children);
    names(me);
    instances(me);
    polls(me);
    broadcasts();
    barriers();
    functions();
    collects(me);
    frozen(me);
    ends();
    return finish(1, children);
}
