/* Groups. The machine keeps their members (src/services/groups.rs).
 *
 * The library caches the answers about a frozen group that this task belongs to. Its members change
 * only when the group breaks, and even then the cached answers let them find each other. A task
 * usually caches only its neighbours: in a group of thousands, few members need the whole list. */

#include "services.h"
#include <stdlib.h>
#include <string.h>

#define FEW 16

static struct frozen {
    struct frozen *next;
    int size;
    /* Cached pairs, until there are more than FEW. */
    int few;
    struct {
        int instance, tid;
    } pairs[FEW];
    /* All tids by instance. 0: the list has not been fetched. */
    int *tids, count;
    char name[];
} *frozen;

/* Asks about a group. `number` is 0 where the question has none. */
static int ask(int op, const char *group, int number)
{
    upvm_self();
    if (!group || !*group)
        return PvmNullGroup;
    struct upvm_question question = {0};
    upvm_put_text(&question, group);
    upvm_put(&question, number);
    int code = upvm_ask(&question, op);
    upvm_over(&question);
    return code;
}

/* Returns the number of instances, and stores the group's size and the tids, which the caller
 * frees. */
static int members(const char *group, int *size, int **tids)
{
    upvm_self();
    if (!group || !*group)
        return PvmNullGroup;
    struct upvm_question question = {0};
    upvm_put_text(&question, group);
    int count = *size = upvm_ask(&question, UPVM_OP_GROUP_MEMBERS);
    if (count >= 0) {
        count = upvm_get(&question);
        *tids = malloc(count * sizeof **tids + 1);
        for (int one = 0; one < count && *tids; one++)
            (*tids)[one] = upvm_get(&question);
        if (!*tids)
            count = PvmNoMem;
    }
    upvm_over(&question);
    return count;
}

static struct frozen **find(const char *group)
{
    struct frozen **at = &frozen;
    while (*at && strcmp((*at)->name, group))
        at = &(*at)->next;
    return at;
}

/* Returns the cache of a frozen group, if this task took part in freezing it. */
static struct frozen *known(const char *group)
{
    return frozen && group ? *find(group) : 0;
}

static int *all(struct frozen *one)
{
    int *tids, size;
    if (!one->tids) {
        int count = members(one->name, &size, &tids);
        if (count >= 0)
            one->tids = tids, one->count = count;
    }
    return one->tids;
}

static void remember(struct frozen *one, int instance, int tid)
{
    if (one->few < FEW) {
        one->pairs[one->few].instance = instance;
        one->pairs[one->few++].tid = tid;
    } else {
        all(one);
    }
}

static void forget(struct frozen **at)
{
    struct frozen *one = *at;
    if (!one)
        return;
    *at = one->next;
    free(one->tids);
    free(one);
}

void upvm_groups_left(void)
{
    while (frozen)
        forget(&frozen);
}

int upvm_group_task(const char *group, int instance)
{
    struct frozen *one = known(group);
    if (one && one->tids)
        return instance >= 0 && instance < one->count && one->tids[instance]
                   ? one->tids[instance]
                   : PvmNoInst;
    for (int pair = 0; one && pair < one->few; pair++)
        if (one->pairs[pair].instance == instance)
            return one->pairs[pair].tid;
    int tid = ask(UPVM_OP_GROUP_TASK, group, instance);
    if (one && tid > 0)
        remember(one, instance, tid);
    return tid;
}

int upvm_group_instance(const char *group, int tid)
{
    struct frozen *one = known(group);
    if (one && one->tids && tid > 0) {
        int instance = 0;
        while (instance < one->count && one->tids[instance] != tid)
            instance++;
        return instance < one->count ? instance : PvmNotInGroup;
    }
    for (int pair = 0; one && pair < one->few; pair++)
        if (one->pairs[pair].tid == tid)
            return one->pairs[pair].instance;
    int instance = ask(UPVM_OP_GROUP_INSTANCE, group, tid);
    if (one && instance >= 0)
        remember(one, instance, tid);
    return instance;
}

int upvm_group_members(const char *group, int **tids)
{
    struct frozen *one = known(group);
    int size;
    if (!one || !all(one))
        return members(group, &size, tids);
    *tids = malloc(one->count * sizeof **tids + 1);
    if (!*tids)
        return PvmNoMem;
    memcpy(*tids, one->tids, one->count * sizeof **tids);
    return one->count;
}

int pvm_joingroup(char *group)
{
    return upvm_polled(ask(UPVM_OP_GROUP_JOIN, group, 0));
}

int pvm_lvgroup(char *group)
{
    if (group)
        forget(find(group));
    return upvm_polled(ask(UPVM_OP_GROUP_LEAVE, group, 0));
}

int pvm_gettid(char *group, int instance)
{
    return upvm_polled(upvm_group_task(group, instance));
}

int pvm_getinst(char *group, int tid)
{
    return upvm_polled(upvm_group_instance(group, tid));
}

int pvm_gsize(char *group)
{
    const struct frozen *one = known(group);
    if (one)
        return one->size;
    int size = ask(UPVM_OP_GROUP_SIZE, group, 0);
    /* Programs poll the size until all members have joined. */
    upvm_yield();
    return upvm_quiet(size);
}

int pvm_barrier(char *group, int count)
{
    return upvm_polled(ask(UPVM_OP_GROUP_BARRIER, group, count));
}

int pvm_freezegroup(char *group, int count)
{
    int size = ask(UPVM_OP_GROUP_FREEZE, group, count);
    if (size < 0)
        return upvm_polled(size);
    /* Without memory the group is not cached. */
    struct frozen *one = malloc(sizeof *one + strlen(group) + 1);
    if (one) {
        *one = (struct frozen){.next = frozen, .size = size};
        strcpy(one->name, group);
        frozen = one;
    }
    return size;
}

/* Stores the number of hosts that the group's members are on, the number of members on `host`, and
 * the lowest tid of those as their speaker. */
int pvm_grphostinfo(char *group, int host, int *speaker, int *on_host, int *hosts)
{
    int *tids, count = upvm_group_members(group, &tids), least = -1, here = 0, distinct = 0;
    for (int one = 0; one < count; one++) {
        if (!tids[one])
            continue;
        int tid = tids[one], its = pvm_tidtohost(tid), seen = 0;
        if (its == host) {
            here++;
            if (least < 0 || tid < least)
                least = tid;
        }
        /* The distinct hosts overwrite the tids that were already examined. */
        while (seen < distinct && tids[seen] != its)
            seen++;
        if (seen == distinct)
            tids[distinct++] = its;
    }
    if (count >= 0)
        free(tids);
    if (speaker)
        *speaker = least;
    if (on_host)
        *on_host = here;
    if (hosts)
        *hosts = distinct;
    return count < 0 ? upvm_polled(count) : PvmOk;
}

static void waiting(struct upvm_question *question, const char *what)
{
    int wanted = upvm_get(question), here = upvm_get(question);
    if (here)
        fprintf(stderr, "  %d of %d wait %s:", here, wanted, what);
    for (int one = 0; one < here; one++)
        fprintf(stderr, " t%x", upvm_get(question));
    if (here)
        fputc('\n', stderr);
}

/* Prints all groups to stderr. PVM's group server prints them where the server runs. */
void pvm_gsdump(void)
{
    static const char *const states[] = {"", ", frozen", ", frozen and left"};
    upvm_self();
    struct upvm_question question = {0};
    int groups = upvm_ask(&question, UPVM_OP_GROUP_LIST);
    fprintf(stderr, "%d groups\n", groups);
    for (int group = 0; group < groups; group++) {
        const char *name = upvm_get_text(&question);
        int size = upvm_get(&question), state = upvm_get(&question),
            instances = upvm_get(&question);
        fprintf(stderr, "%s: %d%s:", name, size, states[state]);
        for (int one = 0; one < instances; one++) {
            int tid = upvm_get(&question);
            if (tid)
                fprintf(stderr, " %d t%x", one, tid);
        }
        fputc('\n', stderr);
        waiting(&question, "at a barrier");
        waiting(&question, "for it to be frozen");
    }
    upvm_over(&question);
}
