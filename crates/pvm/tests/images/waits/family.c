/* Two tasks, each with children of its own. The first waits in all ways that could report a child
 * of the second. With an argument it can move to another process when it has no child. */
#define _GNU_SOURCE
#include "roles.h"
#include "upvm.h"

#define READY 9
#define ENDED (WEXITED | WNOWAIT)

/* A shell command in a process group of its own. */
static pid_t apart(const char *command)
{
    pid_t child;
    char *args[] = {"sh", "-c", (char *)command, 0};
    extern char **environ;
    posix_spawnattr_t how;
    CHECK(posix_spawnattr_init(&how) == 0 && posix_spawnattr_setpgroup(&how, 0) == 0 &&
          posix_spawnattr_setflags(&how, POSIX_SPAWN_SETPGROUP) == 0 &&
          posix_spawn(&child, "/bin/sh", 0, &how, args, environ) == 0);
    return child;
}

static int has_none(idtype_t kind, id_t which)
{
    siginfo_t about;
    for (int options = WEXITED; options; options = options & WNOHANG ? 0 : WEXITED | WNOHANG)
        if (waitid(kind, which, &about, options) != -1 || errno != ECHILD)
            return 0;
    return 1;
}

static int has_none_to_wait(pid_t which)
{
    for (int options = 0; options < 2; options++)
        if (waitpid(which, 0, options) != -1 || errno != ECHILD)
            return 0;
    return 1;
}

/* Returns 1 if all waits say that there is no child. */
static int is_childless(const pid_t others[2])
{
    return has_none(P_ALL, 0) && has_none(P_PGID, 0) && has_none(P_PGID, getpgrp()) &&
           has_none(P_PGID, others[1]) && has_none(P_PID, others[0]) &&
           has_none(P_PID, others[1]) && has_none_to_wait(-1) && has_none_to_wait(0) &&
           has_none_to_wait(-getpgrp()) && has_none_to_wait(-others[1]) &&
           has_none_to_wait(others[0]) && has_none_to_wait(others[1]);
}

static void waits(const pid_t others[2])
{
    siginfo_t about;
    int status;
    CHECK(is_childless(others));
    CHECK(waitid(P_ALL, 0, &about, WNOHANG) == -1 && errno == EINVAL);
    pid_t child = shell("until test -e go; do sleep 0.01; done; exit 5");
    CHECK(waitid(P_ALL, 0, &about, WEXITED | WNOHANG) == 0 && !about.si_pid);
    CHECK(waitpid(-1, &status, WNOHANG) == 0 && waitpid(0, &status, WNOHANG) == 0);
    CHECK(has_none(P_PGID, child) && has_none(P_PGID, others[1]) && has_none(P_PID, others[0]));
    CHECK(close(creat("go", 0600)) == 0);
    CHECK(waitid(P_ALL, 0, &about, ENDED) == 0 && about.si_pid == child && about.si_status == 5);
    CHECK(waitid(P_PID, child, &about, ENDED) == 0 && about.si_pid == child);
    CHECK(waitid(P_PGID, 0, &about, WEXITED) == 0 && about.si_pid == child &&
          about.si_code == CLD_EXITED);
    CHECK(is_childless(others));
    child = apart("exit 6");
    CHECK(has_none(P_PGID, 0) && has_none_to_wait(0) && has_none_to_wait(-getpgrp()));
    CHECK(waitid(P_PGID, child, &about, ENDED) == 0 && about.si_pid == child);
    CHECK(waitpid(-child, &status, 0) == child && WEXITSTATUS(status) == 6);
    CHECK(is_childless(others));
    child = shell("kill -STOP $$; exit 7");
    CHECK(waitid(P_ALL, 0, &about, WSTOPPED) == 0 && about.si_pid == child &&
          about.si_code == CLD_STOPPED);
    CHECK(waitpid(-1, &status, WNOHANG) == 0 && kill(child, SIGCONT) == 0);
    CHECK(waitpid(-1, &status, WUNTRACED) == child && WEXITSTATUS(status) == 7);
    CHECK(is_childless(others));
}

int main(int argc, char **argv)
{
    (void)argv;
    pid_t children[2];
    siginfo_t about;
    if (role()) {
        children[0] = shell("exit 1"), children[1] = apart("exit 2");
        for (int one = 0; one < 2; one++)
            CHECK(waitid(P_PID, children[one], &about, ENDED) == 0);
        pvm_initsend(PvmDataDefault);
        pvm_pkint(children, 2, 1);
        CHECK(pvm_send(tids[0], READY) == 0 && pvm_recv(tids[0], DONE) > 0);
        CHECK(waitid(P_PID, children[0], &about, WEXITED) == 0 && about.si_status == 1);
        CHECK(wait(0) == children[1] && wait(0) == -1 && errno == ECHILD);
        return 0;
    }
    CHECK(pvm_recv(tids[1], READY) > 0 && pvm_upkint(children, 2, 1) == 0);
    waits(children);
    CHECK(argc == 1 || upvm_migrate(0, 1) == 0);
    tell(tids[1], DONE);
    puts("done");
    return 0;
}
