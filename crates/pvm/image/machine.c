/* The machine and its hosts. */

#include "lib.h"
#include "calls.h"
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

/* This host's architecture and its code, as in PVM. */
#define ARCH "LINUX64"
#define ARCH_CODE 4230209
#define SPEED 1000
/* Length in bytes of a file name: PVMTMPNAMLEN in pvm3.h without <stdio.h>. */
#define NAME 128

static void forget(struct pvmhostinfo *all, int count)
{
    for (int one = 0; one < count; one++)
        free(all[one].hi_name);
    free(all);
}

/* Sets `all` to the machine's hosts, which `forget` frees. Returns their number, or an error. */
static int list(struct pvmhostinfo **all)
{
    struct upvm_question question = {0};
    int count = upvm_ask(&question, UPVM_OP_HOSTS), known = 0;
    *all = count > 0 ? calloc(count, sizeof **all) : 0;
    for (; *all && known < count; known++) {
        int number = upvm_get(&question);
        char *name = strdup(upvm_get_text(&question));
        if (!name)
            break;
        (*all)[known] = (struct pvmhostinfo){number, name, ARCH, SPEED, ARCH_CODE};
    }
    upvm_over(&question);
    if (count < 0 || known == count)
        return count;
    forget(*all, known);
    return PvmNoMem;
}

/* The number of the host with this name, or with this number if there is no name. 0 if there is no
 * such host, or an error. */
static int found(const char *name, int number)
{
    struct pvmhostinfo *all;
    int count = list(&all), host = 0;
    for (int one = 0; one < count; one++)
        if (name ? !strcmp(all[one].hi_name, name) : all[one].hi_tid == number)
            host = all[one].hi_tid;
    if (count < 0)
        return count;
    forget(all, count);
    return host;
}

int pvm_config(int *hosts, int *archs, struct pvmhostinfo **infos)
{
    /* The program may use them until the next call. */
    static struct pvmhostinfo *known;
    static int size;
    struct pvmhostinfo *all;
    upvm_self();
    int count = list(&all);
    if (count < 0)
        return upvm_done("pvm_config", count);
    forget(known, size);
    known = all;
    size = count;
    if (hosts)
        *hosts = count;
    if (archs)
        *archs = 1;
    if (infos)
        *infos = all;
    return PvmOk;
}

int pvm_archcode(char *arch)
{
    if (!arch)
        return upvm_done("pvm_archcode", PvmBadParam);
    return strcmp(arch, ARCH) ? upvm_done("pvm_archcode", PvmNotFound) : ARCH_CODE;
}

int pvm_tidtohost(int tid)
{
    if (tid <= 0)
        return upvm_done("pvm_tidtohost", PvmBadParam);
    upvm_self();
    int host = upvm_ask_short(UPVM_OP_TID_TO_HOST, tid);
    return host > 0 ? host : upvm_done("pvm_tidtohost", host);
}

int pvm_mstat(char *host)
{
    upvm_self();
    if (!host || !*host)
        return upvm_done("pvm_mstat", PvmBadParam);
    if (!strcmp(host, "."))
        return PvmOk;
    int number = found(host, 0);
    return number > 0 ? PvmOk : number < 0 ? number : PvmNoHost;
}

char *pvm_version(void)
{
    return PVM_VER;
}

/* Asks the machine to add or to remove hosts, and waits until each has come or gone, or has failed.
 * Returns the number of those that have, and sets `infos` for each. */
static int change(const char *name, unsigned long op, char **hosts, int count, int *infos)
{
    upvm_self();
    if (!hosts || count < 1)
        return upvm_done(name, PvmBadParam);
    struct upvm_question question = {0};
    upvm_put(&question, count);
    for (int one = 0; one < count; one++)
        upvm_put_text(&question, hosts[one] ? hosts[one] : "");
    int done = upvm_ask(&question, op);
    for (int one = 0; one < count && infos; one++) {
        int info = done < 0 ? done : upvm_get(&question);
        infos[one] = info;
    }
    upvm_over(&question);
    return done < 0 ? upvm_done(name, done) : done;
}

int pvm_addhosts(char **hosts, int count, int *infos)
{
    return change("pvm_addhosts", UPVM_OP_ADD_HOSTS, hosts, count, infos);
}

int pvm_delhosts(char **hosts, int count, int *infos)
{
    return change("pvm_delhosts", UPVM_OP_DELETE_HOSTS, hosts, count, infos);
}

int pvm_hostsync(int host, struct timeval *clock, struct timeval *delta)
{
    upvm_self();
    /* The clocks of other hosts are not read yet. */
    if (host != upvm_ask_short(UPVM_OP_TID_TO_HOST, upvm_hot.self))
        return upvm_done("pvm_host_sync", found(0, host) > 0 ? PvmNotImpl : PvmNoHost);
    if (clock)
        gettimeofday(clock, 0);
    if (delta)
        *delta = (struct timeval){0, 0};
    return PvmOk;
}

int pvm_start_pvmd(int count, char **args, int block)
{
    (void)count, (void)args, (void)block;
    /* The machine exists already, or this would not run. */
    return upvm_done("pvm_start_pvmd", PvmDupHost);
}

int pvm_halt(void)
{
    upvm_self();
    return upvm_done("pvm_halt", upvm_ask_short(UPVM_OP_HALT, 0));
}

int pvm_getnoresets(int **tids, int *count)
{
    static int *all;
    upvm_self();
    struct upvm_question question = {0};
    int found = upvm_ask(&question, UPVM_OP_NO_RESETS);
    free(all);
    all = malloc((found > 0 ? found : 0) * sizeof *all + 1);
    for (int one = 0; one < found && all; one++)
        all[one] = upvm_get(&question);
    upvm_over(&question);
    if (found < 0 || !all)
        return upvm_done("pvm_getnoresets", found < 0 ? found : PvmNoMem);
    if (tids)
        *tids = all;
    if (count)
        *count = found;
    return PvmOk;
}

/* PVM's interface for debugging its daemons. There are no daemons here. */
int pvm_tickle(int count, int *args, int *replies, int *reply)
{
    (void)replies, (void)reply;
    return upvm_done("pvm_tickle", count < 1 || count > 10 || !args ? PvmBadParam : PvmNotImpl);
}

/* Returns descriptors for poll(2) and the like: readable while a message waits. The host's
 * descriptor becomes one of the task's, once. */
int pvm_getfds(int **descriptors)
{
    static int one = -1;
    upvm_self();
    if (one < 0) {
        int found = upvm_ask_short(UPVM_OP_DESCRIPTOR, 0);
        if (found >= 0)
            one = upvm_taken(upvm_call(SYS_fcntl, found, F_DUPFD_CLOEXEC, 3, 0), 0);
        if (one < 0)
            return upvm_done("pvm_getfds", found < 0 ? found : PvmSysErr);
    }
    if (descriptors)
        *descriptors = &one;
    return 1;
}

/* Programs that replace parts of PVM's daemons. There are no daemons here. */
int pvm_reg_hoster(void)
{
    return upvm_done("pvm_reg_hoster", PvmNotImpl);
}

int pvm_reg_tasker(void)
{
    return upvm_done("pvm_reg_tasker", PvmNotImpl);
}

int pvm_reg_rm(struct pvmhostinfo **hosts)
{
    (void)hosts;
    return upvm_done("pvm_reg_rm", PvmNotImpl);
}

int pvm_reg_tracer(int tid, int code, int out_tid, int out_code, char *mask, int buffer,
                   int options)
{
    (void)tid, (void)code, (void)out_tid, (void)out_code, (void)mask, (void)buffer, (void)options;
    return upvm_done("pvm_reg_tracer", PvmNotImpl);
}

char *pvmgetrsh(void)
{
    char *name = getenv("PVM_RSH");
    return name ? name : "/usr/bin/rsh";
}

char *pvmgettmp(void)
{
    char *name = getenv("PVM_TMP");
    return name ? name : "/tmp";
}

char *pvmtmpnam(char *name)
{
    static char own[NAME];
    static int count;
    char *to = name ? name : own;
    snprintf(to, NAME, "%s/pvm%x.%d", pvmgettmp(), upvm_self(), count++);
    return to;
}
