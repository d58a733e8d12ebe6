/* A task's options, the environment that it exports to spawned tasks, and the trace masks. */

#include "lib.h"
#include "options.h"
#include <stdlib.h>
#include <string.h>

#define OPTIONS 26
/* Options that concern only this task. */
static int options[OPTIONS] = {
    [PvmRoute] = PvmAllowDirect, [PvmFragSize] = 4080,  [PvmShowTids] = 1,
    [PvmPollType] = PvmBadParam, [PvmPollTime] = PvmBadParam,
};
extern int upvm_auto_err;

static int is_hosts(int option)
{
    switch (option) {
    case PvmOutputTid: case PvmOutputCode: case PvmOutputContext:
    case PvmSelfOutputTid: case PvmSelfOutputCode: case PvmSelfOutputContext:
    case PvmTraceTid: case PvmTraceCode: case PvmTraceContext:
    case PvmTraceBuffer: case PvmTraceOptions:
    case PvmSelfTraceTid: case PvmSelfTraceCode: case PvmSelfTraceContext:
    case PvmSelfTraceBuffer: case PvmSelfTraceOptions:
    case PvmNoReset:
        return 1;
    }
    return 0;
}

int upvm_set_at_host(int option, int value)
{
    int old = upvm_ask_quietly(upvm_here(), UPVM_ASK_SHORT, UPVM_OP_OPTION, (long)option,
                               (long)value, 1);
    if (option == PvmSelfOutputTid)
        upvm_written_changed();
    return old;
}

int pvm_getopt(int option)
{
    upvm_self();
    int value;
    if (option <= 0 || option >= OPTIONS || option == PvmPollType || option == PvmPollTime)
        return upvm_done("pvm_getopt", PvmBadParam);
    if (option == PvmAutoErr)
        value = upvm_auto_err;
    else if (is_hosts(option))
        value = upvm_ask_quietly(upvm_here(), UPVM_ASK_SHORT, UPVM_OP_OPTION, (long)option, 0, 0);
    else
        value = options[option];
    return value;
}

static int allowed(int option, int value)
{
    switch (option) {
    case PvmRoute:
        return value >= PvmDontRoute && value <= PvmRouteDirect;
    case PvmFragSize:
        return value > 0 && value <= 1 << 20;
    case PvmOutputTid: case PvmSelfOutputTid: case PvmTraceTid: case PvmSelfTraceTid:
        return value == 0 || upvm_is_task(value);
    case PvmTraceOptions: case PvmSelfTraceOptions:
        return value >= PvmTraceFull && value <= PvmTraceCount;
    case PvmPollType: case PvmPollTime:
        return 0;
    }
    return option > 0 && option < OPTIONS;
}

int pvm_setopt(int option, int value)
{
    upvm_self();
    if (!allowed(option, value))
        return upvm_done("pvm_setopt", PvmBadParam);
    if (is_hosts(option))
        return upvm_set_at_host(option, value);
    int *at = option == PvmAutoErr ? &upvm_auto_err : &options[option];
    int old = *at;
    *at = value;
    if (option == PvmShowTids)
        upvm_show_tids = value;
    return old;
}

/* Adds a name to PVM_EXPORT, or removes it. */
static int exported(const char *name, int on)
{
    const char *now = getenv("PVM_EXPORT");
    size_t length = name ? strlen(name) : 0;
    if (!length || strpbrk(name, ":="))
        return PvmBadParam;
    char *names = malloc((now ? strlen(now) : 0) + length + 2), *end = names;
    if (!names)
        return PvmNoMem;
    *end = 0;
    for (const char *one = now; one && *one;) {
        size_t its = strcspn(one, ":");
        if (its && (its != length || strncmp(one, name, length))) {
            if (end != names)
                *end++ = ':';
            memcpy(end, one, its);
            end += its;
            *end = 0;
        }
        one += its + (one[its] == ':');
    }
    if (on) {
        if (end != names)
            *end++ = ':';
        strcpy(end, name);
    }
    int done = *names ? setenv("PVM_EXPORT", names, 1) : unsetenv("PVM_EXPORT");
    free(names);
    return done ? PvmNoMem : PvmOk;
}

int pvm_export(char *name)
{
    return upvm_done("pvm_export", exported(name, 1));
}

int pvm_unexport(char *name)
{
    return upvm_done("pvm_unexport", exported(name, 0));
}

/* Nothing is traced. The masks are only kept so that they can be read back. */
#define MASK 36
static char masks[2][MASK];

int pvm_settmask(int whose, char *mask)
{
    if (whose < PvmTaskSelf || whose > PvmTaskChild || !mask)
        return upvm_done("pvm_settmask", PvmBadParam);
    memcpy(masks[whose], mask, strnlen(mask, MASK - 1));
    return PvmOk;
}

int pvm_gettmask(int whose, char *mask)
{
    if (whose < PvmTaskSelf || whose > PvmTaskChild || !mask)
        return upvm_done("pvm_gettmask", PvmBadParam);
    memcpy(mask, masks[whose], MASK);
    return PvmOk;
}
