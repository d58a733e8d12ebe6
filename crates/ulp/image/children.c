/* Children of this program: other programs that it starts (posix_spawn, system, popen), and waits
 * for.
 *
 * All tasks of a process have its children, so each keeps a list of its own, and waits for no
 * others. Until a child becomes another program it runs on this memory: what it does there is done
 * as in any process (`upvm_in_child`). */

#define _GNU_SOURCE
#include "calls.h"
#include "usage.h"
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static pid_t *children;
static int count, room;

/* The host does not move a program that has children. */
static void report(void)
{
    uint64_t *table = upvm_table();
    if (table)
        table[UPVM_TABLE_CHILDREN] = count;
}

/* libc's own function. Its last argument makes it search PATH. */
extern int __spawni(pid_t *, const char *, const posix_spawn_file_actions_t *,
                    const posix_spawnattr_t *, char *const *, char *const *, int);
#define IN_PATH 1

/* The host ignores SIGPIPE; a child must ignore it only if this program does. */
static void as_by_default(posix_spawnattr_t *as)
{
    struct sigaction action;
    sigset_t signals;
    short flags = 0;
    if (sigaction(SIGPIPE, 0, &action) || action.sa_handler == SIG_IGN)
        return;
    posix_spawnattr_getflags(as, &flags);
    sigemptyset(&signals);
    if (flags & POSIX_SPAWN_SETSIGDEF)
        posix_spawnattr_getsigdefault(as, &signals);
    sigaddset(&signals, SIGPIPE);
    posix_spawnattr_setsigdefault(as, &signals);
    posix_spawnattr_setflags(as, flags | POSIX_SPAWN_SETSIGDEF);
}

static int spawned(pid_t *child, const char *file, const posix_spawn_file_actions_t *actions,
                   const posix_spawnattr_t *how, char *const *args, char *const *environment,
                   int where)
{
    posix_spawn_file_actions_t made = {0};
    int own = upvm_gives();
    int error = own ? upvm_give(actions, &made) : 0;
    if (count == room && !error) {
        pid_t *more = realloc(children, (room + 16) * sizeof *more);
        if (more)
            children = more, room += 16;
        else
            error = ENOMEM;
    }
    pid_t new = 0;
    posix_spawnattr_t as = {0};
    if (!error) {
        if (how)
            as = *how;
        as_by_default(&as);
        upvm_in_child = 1;
        error = __spawni(&new, file, own ? &made : actions, &as, args, environment, where);
        upvm_in_child = 0;
        /* libc's call that started the child has passed (numbers.c). */
        if (upvm_table())
            upvm_catch(1);
    }
    if (!error) {
        children[count++] = new;
        report();
        if (child)
            *child = new;
    }
    free(made.__actions);
    return error;
}

int posix_spawn(pid_t *child, const char *file, const posix_spawn_file_actions_t *actions,
                const posix_spawnattr_t *how, char *const *args, char *const *environment)
{
    return spawned(child, file, actions, how, args, environment, 0);
}

int posix_spawnp(pid_t *child, const char *file, const posix_spawn_file_actions_t *actions,
                 const posix_spawnattr_t *how, char *const *args, char *const *environment)
{
    return spawned(child, file, actions, how, args, environment, IN_PATH);
}

static void forget(pid_t child)
{
    for (int one = 0; one < count; one++)
        if (children[one] == child)
            children[one] = children[--count];
    report();
}

/* A wait for children: which ones, as for waitid(2), and where the answer goes. */
struct wait {
    idtype_t kind;
    pid_t which;
    int options;
    int *status;      /* for wait4(2) */
    siginfo_t *about; /* for waitid(2); 0: it is the other */
    struct rusage *used;
};

typedef long makes_call(long number, long a, long b, long c, long d, long e, long f);

/* Interval between two looks at children of which no descriptor reports what is awaited, in
 * nanoseconds. */
#define LOOKS 10000000

/* Whether a stop or a continuation also ends the wait. WUNTRACED is WSTOPPED. */
static int is_for_stops(const struct wait *wait)
{
    return wait->options & (WSTOPPED | WCONTINUED);
}

static int is_wanted(const struct wait *wait, pid_t child)
{
    switch (wait->kind) {
    case P_PID: return child == wait->which;
    case P_PGID: return upvm_call(SYS_getpgid, child, 0, 0, 0) == wait->which;
    default: return 1;
    }
}

/* Asks the kernel about a child. Returns its number, 0 if there is nothing to report, or an
 * error. */
static long asked(struct wait *wait, pid_t child, int options, makes_call *call)
{
    if (!wait->about)
        return call(SYS_wait4, child, (long)wait->status, options, (long)wait->used, 0, 0);
    long done =
        call(SYS_waitid, P_PID, child, (long)wait->about, options, (long)wait->used, 0);
    return done < 0 ? done : wait->about->si_pid;
}

/* Asks about each child that is wanted. Returns 0 if none has ended yet. */
static long ended(struct wait *wait)
{
    int wanted = 0;
    for (int one = 0; one < count; one++) {
        if (!is_wanted(wait, children[one]))
            continue;
        long done = asked(wait, children[one], wait->options | WNOHANG, upvm_call6);
        if (done == -ECHILD)
            children[one--] = children[--count];
        else if (done)
            return done;
        else
            wanted++;
    }
    report();
    return wanted ? 0 : -ECHILD;
}

/* Waits until a child that is wanted ends, which makes its descriptor ready, or until it is time to
 * look again. Returns -EINTR if handlers have run. */
static long until_ended(const struct wait *wait)
{
    struct pollfd all[count];
    long least = is_for_stops(wait) ? LOOKS : -1;
    int open = 0;
    for (int one = 0; one < count; one++) {
        if (!is_wanted(wait, children[one]))
            continue;
        long child = upvm_hold(upvm_call(SYS_pidfd_open, children[one], 0, 0, 0));
        if (child < 0)
            least = LOOKS;
        else
            all[open++] = (struct pollfd){child, POLLIN, 0};
    }
    long result = upvm_poll_real(all, open, least);
    while (open)
        upvm_let_go(all[--open].fd);
    return result;
}

/* Waits for this program's own children, and never for those of other tasks. Returns the child's
 * number, 0 (WNOHANG), or an error. */
static long waited(struct wait *wait)
{
    for (;;) {
        long done = ended(wait);
        if (done)
            return done;
        if (wait->options & WNOHANG) {
            upvm_pause();
            return 0;
        }
        if (wait->kind == P_PID && is_for_stops(wait))
            return asked(wait, wait->which, wait->options, upvm_aside_again);
        done = until_ended(wait);
        if (done < 0 && !upvm_again(done))
            return done;
    }
}

/* A wait for a process group: 0 is this program's own one. */
static pid_t group(pid_t which)
{
    return which ? which : upvm_call(SYS_getpgid, 0, 0, 0, 0);
}

pid_t wait4(pid_t which, int *status, int options, struct rusage *used)
{
    if (!upvm_is_virtual())
        return upvm_returns(upvm_call(SYS_wait4, which, (long)status, options, (long)used));
    struct rusage its;
    int its_status = 0;
    struct wait wait = {.kind = P_ALL, .options = options, .status = &its_status, .used = &its};
    if (which > 0)
        wait.kind = P_PID, wait.which = which;
    else if (which != -1)
        wait.kind = P_PGID, wait.which = group(-(unsigned)which);
    long done = waited(&wait);
    if (done > 0) {
        if (WIFEXITED(its_status) || WIFSIGNALED(its_status)) {
            forget(done);
            upvm_child_used(&its);
        }
        if (status)
            *status = its_status;
        if (used)
            *used = its;
    }
    return upvm_returns(done);
}

pid_t waitpid(pid_t which, int *status, int options)
{
    return wait4(which, status, options, 0);
}

pid_t wait(int *status)
{
    return wait4(-1, status, 0, 0);
}

pid_t wait3(int *status, int options, struct rusage *used)
{
    return wait4(-1, status, options, used);
}

int waitid(idtype_t kind, id_t which, siginfo_t *about, int options)
{
    if (kind == P_PIDFD)
        which = upvm_real(which);
    struct rusage its;
    siginfo_t its_end = {0};
    if (!about)
        about = &its_end;
    /* The kernel also answers a wait that is not possible. */
    int is_own = upvm_is_virtual() && (kind == P_ALL || kind == P_PID || kind == P_PGID) &&
                 options & (WEXITED | WSTOPPED | WCONTINUED);
    struct wait wait = {.kind = kind, .options = options, .about = about, .used = &its};
    wait.which = kind == P_PGID ? group(which) : (pid_t)which;
    long done;
    if (is_own)
        done = waited(&wait);
    else if (!upvm_table() || options & WNOHANG)
        done = upvm_call6(SYS_waitid, kind, which, (long)about, options, (long)&its, 0);
    else
        done = upvm_aside_again(SYS_waitid, kind, which, (long)about, options, (long)&its, 0);
    int ended = about->si_code == CLD_EXITED || about->si_code == CLD_KILLED ||
                about->si_code == CLD_DUMPED;
    if (done >= 0 && about->si_pid > 0 && ended && !(options & WNOWAIT)) {
        forget(about->si_pid);
        upvm_child_used(&its);
    }
    return upvm_returns(done < 0 ? done : 0);
}

UPVM_ALSO(posix_spawn, __posix_spawn);
UPVM_ALSO(posix_spawnp, __posix_spawnp);
UPVM_ALSO(wait4, __wait4);
UPVM_ALSO(waitpid, __waitpid);
UPVM_ALSO(wait, __wait);
UPVM_ALSO(wait3, __wait3);
UPVM_ALSO(waitid, __waitid);
UPVM_ALSO(waitid, __libc_waitid);
