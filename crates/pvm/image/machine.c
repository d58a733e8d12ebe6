/* The machine. It has one host, and no other can be added yet. */

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
#define HOST 0x40000
/* Length in bytes of a file name: PVMTMPNAMLEN in pvm3.h without <stdio.h>. */
#define NAME 128

static const char *own_name(void)
{
    static char name[256];
    if (!*name)
        gethostname(name, sizeof name - 1);
    return name;
}

int pvm_config(int *hosts, int *archs, struct pvmhostinfo **infos)
{
    static struct pvmhostinfo host = {HOST, 0, ARCH, SPEED, ARCH_CODE};
    upvm_self();
    host.hi_name = (char *)own_name();
    if (hosts)
        *hosts = 1;
    if (archs)
        *archs = 1;
    if (infos)
        *infos = &host;
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
    return tid > 0 ? HOST : upvm_done("pvm_tidtohost", PvmBadParam);
}

int pvm_mstat(char *host)
{
    upvm_self();
    if (!host || !*host)
        return upvm_done("pvm_mstat", PvmBadParam);
    if (!strcmp(host, ".") || !strcmp(host, own_name()))
        return PvmOk;
    return PvmNoHost;
}

char *pvm_version(void)
{
    return PVM_VER;
}

/* No host can be added yet: each gets the error that PVM returns where no daemon can be started. */
int pvm_addhosts(char **hosts, int count, int *infos)
{
    upvm_self();
    if (!hosts || count < 1)
        return upvm_done("pvm_addhosts", PvmBadParam);
    for (int one = 0; one < count && infos; one++)
        infos[one] = hosts[one] && !strcmp(hosts[one], own_name()) ? PvmDupHost : PvmCantStart;
    return 0;
}

int pvm_delhosts(char **hosts, int count, int *infos)
{
    upvm_self();
    if (!hosts || count < 1)
        return upvm_done("pvm_delhosts", PvmBadParam);
    /* PVM does not remove the host that it was started on, either. */
    for (int one = 0; one < count && infos; one++)
        infos[one] = hosts[one] && !strcmp(hosts[one], own_name()) ? PvmBadParam : PvmNoHost;
    return 0;
}

int pvm_hostsync(int host, struct timeval *clock, struct timeval *delta)
{
    upvm_self();
    if (host != HOST)
        return upvm_done("pvm_host_sync", PvmNoHost);
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
