/* Limits of this program (getrlimit, setrlimit), and its priority.
 *
 * The kernel's belong to the whole process, and no call here changes them. What a program may set
 * is enforced for it alone: the number of descriptors, and processor time. Any other limit can only
 * be set to the value that it has. */

#define _GNU_SOURCE
#include "calls.h"
#include "handlers.h"
#include "usage.h"
#include <limits.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

/* The limits that this program has set, if it has. */
static struct rlimit files, time_limit;
static char has_files, has_time;
/* Nanoseconds of processor time at which SIGXCPU comes next; 0: never. */
static uint64_t warns_at;

static long kernels(int which, struct rlimit *limit)
{
    return upvm_call(SYS_prlimit64, 0, which, 0, (long)limit);
}

/* The limit that holds. Returns 0 or an error. */
static long present(int which, struct rlimit *limit)
{
    uint64_t *table = upvm_table();
    long error = kernels(which, limit);
    if (error)
        return error;
    switch (which) {
    case RLIMIT_NOFILE:
        /* The program can have no more than the process, whose limit stays. */
        limit->rlim_max = limit->rlim_cur;
        if (has_files)
            *limit = files;
        return 0;
    case RLIMIT_CPU:
        if (has_time)
            *limit = time_limit;
        return 0;
    /* A program writes no core file. */
    case RLIMIT_CORE: *limit = (struct rlimit){0, 0}; return 0;
    case RLIMIT_STACK:
        limit->rlim_cur = limit->rlim_max = (uint64_t)table - table[UPVM_TABLE_STACK];
        return 0;
    default: return 0;
    }
}

static const char *name_of(int which)
{
    switch (which) {
    case RLIMIT_CPU: return "setrlimit(RLIMIT_CPU)";
    case RLIMIT_FSIZE: return "setrlimit(RLIMIT_FSIZE)";
    case RLIMIT_DATA: return "setrlimit(RLIMIT_DATA)";
    case RLIMIT_STACK: return "setrlimit(RLIMIT_STACK)";
    case RLIMIT_RSS: return "setrlimit(RLIMIT_RSS)";
    case RLIMIT_NPROC: return "setrlimit(RLIMIT_NPROC)";
    case RLIMIT_NOFILE: return "setrlimit(RLIMIT_NOFILE)";
    case RLIMIT_MEMLOCK: return "setrlimit(RLIMIT_MEMLOCK)";
    case RLIMIT_AS: return "setrlimit(RLIMIT_AS)";
    case RLIMIT_LOCKS: return "setrlimit(RLIMIT_LOCKS)";
    case RLIMIT_SIGPENDING: return "setrlimit(RLIMIT_SIGPENDING)";
    case RLIMIT_MSGQUEUE: return "setrlimit(RLIMIT_MSGQUEUE)";
    case RLIMIT_NICE: return "setrlimit(RLIMIT_NICE)";
    case RLIMIT_RTPRIO: return "setrlimit(RLIMIT_RTPRIO)";
    case RLIMIT_RTTIME: return "setrlimit(RLIMIT_RTTIME)";
    default: return "setrlimit";
    }
}

static long not_permitted(const char *name, const char *why)
{
    upvm_refuse(name, why);
    return -EPERM;
}

static long set(int which, const struct rlimit *new)
{
    struct rlimit old;
    long error = present(which, &old);
    if (error)
        return error;
    if (new->rlim_cur > new->rlim_max)
        return -EINVAL;
    if (which == RLIMIT_CORE || (new->rlim_cur == old.rlim_cur && new->rlim_max == old.rlim_max))
        return 0;
    if (which != RLIMIT_NOFILE && which != RLIMIT_CPU)
        return not_permitted(name_of(which), which == RLIMIT_STACK
                                                 ? "a task's stack does not grow"
                                                 : "it limits all tasks of the process; set it by "
                                                   "ulimit before they start");
    if (new->rlim_max > old.rlim_max)
        return not_permitted(name_of(which), "no limit can be raised in a task; raise it by ulimit "
                                             "before the tasks start");
    if (which == RLIMIT_NOFILE) {
        files = *new, has_files = 1;
        upvm_most_files = new->rlim_cur < INT_MAX ? (int)new->rlim_cur : INT_MAX;
    } else {
        time_limit = *new, has_time = 1;
        warns_at = new->rlim_cur > UINT64_MAX / 1000000000 ? 0 : new->rlim_cur * 1000000000;
        /* A limit of 0 seconds is reached at once. */
        warns_at += new->rlim_cur == 0;
    }
    return 0;
}

static int is_reached(rlim_t seconds, uint64_t used)
{
    return seconds <= UINT64_MAX / 1000000000 && used >= seconds * 1000000000;
}

/* As the kernel does: SIGXCPU at the soft limit and each second after that, SIGKILL at the hard
 * one. A handler runs as soon as handlers may. */
void upvm_check_time(uint64_t *table)
{
    uint64_t used = table[UPVM_TABLE_TIME];
    if (!warns_at || used < warns_at)
        return;
    if (is_reached(time_limit.rlim_max, used))
        upvm_raise(SIGKILL);
    warns_at = used + 1000000000;
    if ((table[UPVM_TABLE_HANDLED] | table[UPVM_TABLE_BLOCKED]) & BIT(SIGXCPU))
        upvm_note(table, BIT(SIGXCPU));
    else
        upvm_raise(SIGXCPU);
}

int prlimit64(pid_t process, __rlimit_resource_t which, const struct rlimit64 *new,
              struct rlimit64 *old)
{
    if (!upvm_is_virtual() || (process && !upvm_is_own(process)))
        return upvm_returns(upvm_call(SYS_prlimit64, process, which, (long)new, (long)old));
    struct rlimit before;
    long error = present(which, &before);
    if (!error && new)
        error = set(which, (const struct rlimit *)new);
    if (!error && old)
        *(struct rlimit *)old = before;
    return upvm_returns(error);
}

int getrlimit64(__rlimit_resource_t which, struct rlimit64 *limit)
{
    return prlimit64(0, which, 0, limit);
}

int setrlimit64(__rlimit_resource_t which, const struct rlimit64 *limit)
{
    return prlimit64(0, which, limit, 0);
}

/* The kernel's result is 20 less the priority. */
int getpriority(__priority_which_t which, id_t who)
{
    int own = which == PRIO_PROCESS && upvm_is_virtual() && upvm_is_own(who);
    long found = upvm_call(SYS_getpriority, which, own ? 0 : who, 0, 0);
    return found < 0 ? upvm_returns(found) : 20 - found;
}

#define PRIORITY "the priority is that of the process with all its tasks; use nice before it starts"

static long be_as_nice(int priority, const char *name)
{
    int most = priority < 19 ? priority : 19, next = most > -20 ? most : -20;
    int now = 20 - upvm_call(SYS_getpriority, PRIO_PROCESS, 0, 0, 0);
    return next == now ? 0 : not_permitted(name, PRIORITY);
}

int setpriority(__priority_which_t which, id_t who, int priority)
{
    int own = who == 0 || upvm_is_own(who);
    if (upvm_is_virtual() && which == PRIO_PROCESS && own)
        return upvm_returns(be_as_nice(priority, "setpriority"));
    if (upvm_is_virtual() && (which == PRIO_PGRP || which == PRIO_USER))
        return upvm_returns(not_permitted("setpriority", "it would change other processes, too"));
    return upvm_returns(upvm_call(SYS_setpriority, which, who, priority, 0));
}

int nice(int more)
{
    int now = getpriority(PRIO_PROCESS, 0), next;
    if (__builtin_add_overflow(now, more, &next))
        next = more;
    long done = !upvm_is_virtual() ? upvm_call(SYS_setpriority, PRIO_PROCESS, 0, next, 0)
                           : be_as_nice(next, "nice");
    if (done == -EACCES)
        done = -EPERM;
    return done < 0 ? upvm_returns(done) : getpriority(PRIO_PROCESS, 0);
}

UPVM_ALSO(prlimit64, __prlimit64);
extern int prlimit(pid_t, __rlimit_resource_t, const struct rlimit *, struct rlimit *)
    __attribute__((alias("prlimit64"))); /* same on x86-64 */
UPVM_ALSO(getrlimit64, __getrlimit64);
extern int getrlimit(__rlimit_resource_t, struct rlimit *) __attribute__((alias("getrlimit64")));
extern int __getrlimit(__rlimit_resource_t, struct rlimit *) __attribute__((alias("getrlimit64")));
UPVM_ALSO(setrlimit64, __setrlimit64);
extern int setrlimit(__rlimit_resource_t, const struct rlimit *)
    __attribute__((alias("setrlimit64")));
extern int __setrlimit(__rlimit_resource_t, const struct rlimit *)
    __attribute__((alias("setrlimit64")));
UPVM_ALSO(getpriority, __getpriority);
UPVM_ALSO(setpriority, __setpriority);
