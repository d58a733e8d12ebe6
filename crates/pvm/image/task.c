/* Tasks: this task's identity, and starting, querying and ending others. */

#include "lib.h"
#include "options.h"
#include "services.h"
#include <stdlib.h>
#include <string.h>

int pvm_mytid(void)
{
    return upvm_self();
}

int pvm_parent(void)
{
    return upvm_parent();
}

int pvm_exit(void)
{
    upvm_self();
    upvm_catch_the_rest();
    int done = upvm_ask_short(UPVM_OP_LEAVE, 0);
    upvm_groups_left();
    upvm_left();
    return upvm_done("pvm_exit", done);
}

/* Appends the exported environment: PVM_EXPORT, and the variables that it names. */
static void put_environment(struct upvm_question *question)
{
    const char *names = getenv("PVM_EXPORT");
    int count = names ? 1 : 0;
    for (int round = 0; round < 2; round++) {
        if (round) {
            upvm_put(question, count);
            if (names) {
                upvm_put_text(question, "PVM_EXPORT");
                upvm_put_text(question, names);
            }
        }
        for (const char *name = names; name && *name;) {
            size_t length = strcspn(name, ":");
            char *one = strndup(name, length);
            const char *value = one ? getenv(one) : 0;
            if (value && round) {
                upvm_put_text(question, one);
                upvm_put_text(question, value);
            } else if (value) {
                count++;
            }
            free(one);
            name += length + (name[length] == ':');
        }
    }
}

int pvm_spawn(char *file, char **args, int flags, char *where, int count, int *tids)
{
    upvm_self();
    if (count < 1 || !file)
        return upvm_done("pvm_spawn", PvmBadParam);
    struct upvm_question question = {0};
    upvm_put_text(&question, file);
    upvm_put(&question, flags);
    upvm_put_text(&question, where);
    upvm_put(&question, count);
    int words = 0;
    while (args && args[words])
        words++;
    upvm_put(&question, words);
    for (int word = 0; word < words; word++)
        upvm_put_text(&question, args[word]);
    put_environment(&question);
    upvm_put(&question, upvm_context);
    int started = upvm_ask(&question, UPVM_OP_SPAWN);
    for (int one = 0; started >= 0 && tids && one < count; one++)
        tids[one] = upvm_get(&question);
    upvm_over(&question);
    /* As in PVM, a partial failure is not reported, but pvm_errno is set to this. */
    if (started >= 0 && started < count)
        pvm_errno = PvmNotFound;
    return upvm_done("pvm_spawn", started);
}

int pvm_kill(int tid)
{
    upvm_self();
    if (!upvm_is_task(tid))
        return upvm_done("pvm_kill", PvmBadParam);
    return upvm_done("pvm_kill", upvm_ask_short(UPVM_OP_KILL, tid));
}

int pvm_sendsig(int tid, int signal)
{
    upvm_self();
    if (!upvm_is_task(tid))
        return upvm_done("pvm_sendsig", PvmBadParam);
    int done = UPVM_ASK(upvm_here(), UPVM_ASK_SHORT, UPVM_OP_SIGNAL, (long)tid, (long)signal, 0);
    return upvm_done("pvm_sendsig", done);
}

int pvm_pstat(int tid)
{
    upvm_self();
    if (!upvm_is_task(tid))
        return upvm_done("pvm_pstat", PvmBadParam);
    int state = upvm_ask_short(UPVM_OP_TASK_STATE, tid);
    /* Lets a program that polls for a task's end see that end. */
    if (state == PvmOk)
        upvm_yield();
    return state == PvmNoTask ? state : upvm_done("pvm_pstat", state);
}

/* The array belongs to the library, and is valid for the task's life. */
int pvm_siblings(int **tids)
{
    static int *all, count;
    upvm_self();
    if (!all) {
        struct upvm_question question = {0};
        int found = upvm_ask(&question, UPVM_OP_SIBLINGS);
        if (found > 0 && (all = malloc(found * sizeof *all))) {
            for (count = 0; count < found; count++)
                all[count] = upvm_get(&question);
        }
        upvm_over(&question);
        if (!all)
            return upvm_done("pvm_siblings", found < 0 ? found : PvmNoMem);
    }
    if (tids)
        *tids = all;
    return count;
}

int pvm_tasks(int where, int *count, struct pvmtaskinfo **tasks)
{
    static struct pvmtaskinfo *all;
    static int there;
    upvm_self();
    struct upvm_question question = {0};
    upvm_put(&question, where);
    int found = upvm_ask(&question, UPVM_OP_TASKS);
    if (found >= 0) {
        for (int one = 0; one < there; one++)
            free(all[one].ti_a_out);
        free(all);
        all = calloc(found + 1, sizeof *all);
        there = all ? found : 0;
        for (int one = 0; one < there; one++) {
            all[one].ti_tid = upvm_get(&question);
            all[one].ti_ptid = upvm_get(&question);
            all[one].ti_host = upvm_get(&question);
            all[one].ti_flag = upvm_get(&question);
            all[one].ti_pid = upvm_get(&question);
            all[one].ti_a_out = strdup(upvm_get_text(&question));
        }
    }
    upvm_over(&question);
    if (found >= 0 && !all)
        found = PvmNoMem;
    if (found < 0)
        return upvm_done("pvm_tasks", found);
    if (count)
        *count = there;
    if (tasks)
        *tasks = all;
    return PvmOk;
}

void upvm_yield(void)
{
    UPVM_ASK(upvm_here(), UPVM_ASK_YIELD, 0, 0, 0, 0);
}
