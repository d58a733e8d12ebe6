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

/* Looks for a child that has ended, among all or one. Returns 0 if there is none yet. */
static long ended(pid_t which, int *status, int options, struct rusage *used)
{
    if (which != -1)
        return upvm_call(SYS_wait4, which, (long)status, options | WNOHANG, (long)used);
    for (int one = 0; one < count; one++) {
        long done = upvm_call(SYS_wait4, children[one], (long)status, options | WNOHANG,
                              (long)used);
        if (done > 0)
            return done;
        if (done == -ECHILD)
            children[one--] = children[--count];
    }
    report();
    return count ? 0 : -ECHILD;
}

/* Waits until a child, or any child, ends, which makes its descriptor ready. */
static long until_ended(pid_t which)
{
    int many = which == -1 ? count : 1;
    struct pollfd all[many];
    long result = 0;
    int open = 0;
    for (; open < many; open++) {
        result = upvm_hold(
            upvm_call(SYS_pidfd_open, which == -1 ? children[open] : which, 0, 0, 0));
        if (result < 0)
            break;
        all[open] = (struct pollfd){result, POLLIN, 0};
    }
    if (result >= 0)
        result = upvm_poll_real(all, open, -1);
    while (open)
        upvm_let_go(all[--open].fd);
    return result;
}

static long waited(pid_t which, int *status, int options, struct rusage *used)
{
    /* A wait for the group is a wait for this program's own children, not for those of other tasks.
     * A wait for any child does not report stops. */
    if (which == 0 || which == -1)
        which = -1, options &= WNOHANG;
    /* Only the kernel knows about other groups and stopped children. */
    if (which < -1 || options & ~WNOHANG)
        return upvm_aside_again(SYS_wait4, which, (long)status, options, (long)used, 0, 0);
    for (;;) {
        long done = ended(which, status, options, used);
        if (done > 0)
            forget(done);
        if (done)
            return done;
        if (options & WNOHANG) {
            upvm_pause();
            return 0;
        }
        done = until_ended(which);
        if (done == -ESRCH)
            continue;
        if (done < 0 && done != -EINTR)
            return upvm_aside_again(SYS_wait4, which, (long)status, options, (long)used, 0, 0);
        if (done < 0 && !upvm_again(done))
            return done;
    }
}

pid_t wait4(pid_t which, int *status, int options, struct rusage *used)
{
    if (!upvm_is_virtual())
        return upvm_returns(upvm_call(SYS_wait4, which, (long)status, options, (long)used));
    struct rusage its;
    int its_status = 0;
    long done = waited(which, &its_status, options, &its);
    if (done > 0) {
        if (WIFEXITED(its_status) || WIFSIGNALED(its_status))
            upvm_child_used(&its);
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
    long end = (long)about, used = (long)&its;
    long done = !upvm_table() || options & WNOHANG
                    ? upvm_call6(SYS_waitid, kind, which, end, options, used, 0)
                    : upvm_aside_again(SYS_waitid, kind, which, end, options, used, 0);
    int ended = about->si_code == CLD_EXITED || about->si_code == CLD_KILLED ||
                about->si_code == CLD_DUMPED;
    if (!done && about->si_pid > 0 && ended && !(options & WNOWAIT))
        upvm_child_used(&its);
    return upvm_returns(done);
}

UPVM_ALSO(posix_spawn, __posix_spawn);
UPVM_ALSO(posix_spawnp, __posix_spawnp);
UPVM_ALSO(wait4, __wait4);
UPVM_ALSO(waitpid, __waitpid);
UPVM_ALSO(wait, __wait);
UPVM_ALSO(wait3, __wait3);
UPVM_ALSO(waitid, __waitid);
UPVM_ALSO(waitid, __libc_waitid);
