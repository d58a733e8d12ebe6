/* The Fortran interface. Arguments are passed by address, and the last one receives what the C
 * function returns. The lengths of string arguments follow, as gfortran passes them. Strings have
 * no terminating 0, and are padded with blanks. receivef.c has pvmfrecv and pvmfnrecv.
 *
 * pvmfgetminfo, pvmfsetminfo, pvmfpkmesg, pvmfpkmesgbody and pvmfupkmesg are in PVM's manual, but
 * not in its library. */

#include "lib.h"
#include <string.h>
#include <unistd.h>

static char *trimmed(char *to, const char *text, size_t length)
{
    while (length && text[length - 1] == ' ')
        length--;
    memcpy(to, text, length);
    to[length] = 0;
    return to;
}

/* The argument as a C string, valid until the calling function returns. */
#define TEXT(text) trimmed(__builtin_alloca(text##_length + 1), text, text##_length)

static void fill(char *to, size_t length, const char *text)
{
    if (!to)
        return;
    size_t there = strnlen(text, length);
    memcpy(to, text, there);
    memset(to + there, ' ', length - there);
}

static void set(int *to, int value)
{
    if (to)
        *to = value;
}

#define ROUTINE(name, arguments, body) \
    void pvmf##name##_ arguments       \
    {                                  \
        body;                          \
    }

/* Tasks. */
ROUTINE(mytid, (int *tid), *tid = pvm_mytid())
ROUTINE(parent, (int *tid), *tid = pvm_parent())
ROUTINE(exit, (int *info), *info = pvm_exit())
ROUTINE(sleep, (int *seconds), sleep(*seconds))
ROUTINE(kill, (int *tid, int *info), *info = pvm_kill(*tid))
ROUTINE(sendsig, (int *tid, int *signal, int *info), *info = pvm_sendsig(*tid, *signal))
ROUTINE(pstat, (int *tid, int *info), *info = pvm_pstat(*tid))
ROUTINE(catchout, (int *on, int *info), *info = pvm_catchout(*on ? stdout : 0))
ROUTINE(notify, (int *what, int *tag, int *count, int *tids, int *info),
        *info = pvm_notify(*what, *tag, *count, tids))

/* "*" means any host. */
ROUTINE(spawn,
        (char *file, int *flags, char *where, int *count, int *tids, int *started,
         size_t file_length, size_t where_length),
        *started = pvm_spawn(TEXT(file), 0, *flags,
                             where_length && *where == '*' ? "" : TEXT(where), *count, tids))

/* The machine. */
ROUTINE(halt, (int *info), *info = pvm_halt())
ROUTINE(mstat, (char *host, int *info, size_t host_length), *info = pvm_mstat(TEXT(host)))
ROUTINE(archcode, (char *arch, int *code, size_t arch_length), *code = pvm_archcode(TEXT(arch)))
ROUTINE(tidtohost, (int *tid, int *host), *host = pvm_tidtohost(*tid))
ROUTINE(getopt, (int *option, int *value), *value = pvm_getopt(*option))
ROUTINE(setopt, (int *option, int *value, int *old), *old = pvm_setopt(*option, *value))
ROUTINE(perror, (char *message, int *info, size_t message_length),
        *info = pvm_perror(TEXT(message)))

/* Adds or removes one host. Returns that host's status. */
static int hosts(int (*function)(char **, int, int *), char *host)
{
    int its, done = function(&host, 1, &its);
    return done < 0 ? done : its;
}
ROUTINE(addhost, (char *host, int *info, size_t host_length),
        *info = hosts(pvm_addhosts, TEXT(host)))
ROUTINE(delhost, (char *host, int *info, size_t host_length),
        *info = hosts(pvm_delhosts, TEXT(host)))

/* Buffers. */
ROUTINE(initsend, (int *encoding, int *buffer), *buffer = pvm_initsend(*encoding))
ROUTINE(mkbuf, (int *encoding, int *buffer), *buffer = pvm_mkbuf(*encoding))
ROUTINE(freebuf, (int *buffer, int *info), *info = pvm_freebuf(*buffer))
ROUTINE(getsbuf, (int *buffer), *buffer = pvm_getsbuf())
ROUTINE(getrbuf, (int *buffer), *buffer = pvm_getrbuf())
ROUTINE(setsbuf, (int *buffer, int *old), *old = pvm_setsbuf(*buffer))
ROUTINE(setrbuf, (int *buffer, int *old), *old = pvm_setrbuf(*buffer))
ROUTINE(pkmesg, (int *buffer, int *info), *info = pvm_pkmesg(*buffer))
ROUTINE(pkmesgbody, (int *buffer, int *info), *info = pvm_pkmesgbody(*buffer))
ROUTINE(upkmesg, (int *buffer), *buffer = pvm_upkmesg())
ROUTINE(bufinfo, (int *buffer, int *bytes, int *tag, int *source, int *info),
        *info = pvm_bufinfo(*buffer, bytes, tag, source))

void pvmfgetminfo_(int *buffer, int *length, int *context, int *tag, int *wait, int *encoding,
                   int *crc, int *source, int *destination, int *info)
{
    struct pvmminfo its = {0};
    *info = pvm_getminfo(*buffer, &its);
    *length = its.len, *context = its.ctx, *tag = its.tag, *wait = its.wid;
    *encoding = its.enc, *crc = its.crc, *source = its.src, *destination = its.dst;
}

void pvmfsetminfo_(int *buffer, int *context, int *tag, int *wait, int *source, int *destination,
                   int *info)
{
    struct pvmminfo its = {
        .ctx = *context, .tag = *tag, .wid = *wait, .src = *source, .dst = *destination,
    };
    *info = pvm_setminfo(*buffer, &its);
}

/* A string is packed as `count` bytes. */
#define TYPES(X, way)             \
    switch (*type) {              \
    case PVM_STR:                 \
    X(PVM_BYTE, way##byte)        \
    X(PVM_SHORT, way##short)      \
    X(PVM_INT, way##int)          \
    X(PVM_FLOAT, way##float)      \
    X(PVM_CPLX, way##cplx)        \
    X(PVM_DOUBLE, way##double)    \
    X(PVM_DCPLX, way##dcplx)      \
    X(PVM_LONG, way##long)        \
    default: *info = PvmBadParam; \
    }
#define CASE(number, function) \
    case number: *info = function(data, *count, *stride); break;
ROUTINE(pack, (int *type, void *data, int *count, int *stride, int *info), TYPES(CASE, pvm_pk))
ROUTINE(unpack, (int *type, void *data, int *count, int *stride, int *info), TYPES(CASE, pvm_upk))

/* Sending and receiving. */
ROUTINE(send, (int *tid, int *tag, int *info), *info = pvm_send(*tid, *tag))
ROUTINE(mcast, (int *count, int *tids, int *tag, int *info), *info = pvm_mcast(tids, *count, *tag))
ROUTINE(probe, (int *tid, int *tag, int *buffer), *buffer = pvm_probe(*tid, *tag))
ROUTINE(psend, (int *tid, int *tag, void *data, int *count, int *type, int *info),
        *info = pvm_psend(*tid, *tag, data, *count, *type))
ROUTINE(precv,
        (int *tid, int *tag, void *data, int *count, int *type, int *its_tid, int *its_tag,
         int *its_count, int *info),
        *info = pvm_precv(*tid, *tag, data, *count, *type, its_tid, its_tag, its_count))

/* -1 seconds means no limit. */
void pvmftrecv_(int *tid, int *tag, int *seconds, int *microseconds, int *buffer)
{
    struct timeval within = {*seconds, *microseconds};
    *buffer = pvm_trecv(*tid, *tag, *seconds == -1 ? 0 : &within);
}

/* `function` gets the buffer's number by value, not by address. The meaning of the fourth argument
 * is not documented. */
void pvmfaddmhf_(int *source, int *tag, int *context, void *unused, int (*function)(int),
                 int *number)
{
    (void)unused;
    *number = pvm_addmhf(*source, *tag, *context, function);
}
ROUTINE(delmhf, (int *number, int *info), *info = pvm_delmhf(*number))

/* Contexts. */
ROUTINE(newcontext, (int *context), *context = pvm_newcontext())
ROUTINE(setcontext, (int *context, int *old), *old = pvm_setcontext(*context))
ROUTINE(getcontext, (int *context), *context = pvm_getcontext())
ROUTINE(freecontext, (int *context, int *info), *info = pvm_freecontext(*context))

/* Groups. */
ROUTINE(joingroup, (char *group, int *instance, size_t group_length),
        *instance = pvm_joingroup(TEXT(group)))
ROUTINE(lvgroup, (char *group, int *info, size_t group_length), *info = pvm_lvgroup(TEXT(group)))
ROUTINE(gsize, (char *group, int *size, size_t group_length), *size = pvm_gsize(TEXT(group)))
ROUTINE(gettid, (char *group, int *instance, int *tid, size_t group_length),
        *tid = pvm_gettid(TEXT(group), *instance))
ROUTINE(getinst, (char *group, int *tid, int *instance, size_t group_length),
        *instance = pvm_getinst(TEXT(group), *tid))
ROUTINE(barrier, (char *group, int *count, int *info, size_t group_length),
        *info = pvm_barrier(TEXT(group), *count))
ROUTINE(bcast, (char *group, int *tag, int *info, size_t group_length),
        *info = pvm_bcast(TEXT(group), *tag))
ROUTINE(freezegroup, (char *group, int *size, int *info, size_t group_length),
        *info = pvm_freezegroup(TEXT(group), *size))
ROUTINE(gather,
        (void *result, void *data, int *count, int *type, int *tag, char *group, int *root,
         int *info, size_t group_length),
        *info = pvm_gather(result, data, *count, *type, *tag, TEXT(group), *root))
ROUTINE(scatter,
        (void *result, void *data, int *count, int *type, int *tag, char *group, int *root,
         int *info, size_t group_length),
        *info = pvm_scatter(result, data, *count, *type, *tag, TEXT(group), *root))
ROUTINE(reduce,
        (void (*function)(int *, void *, void *, int *, int *), void *data, int *count, int *type,
         int *tag, char *group, int *root, int *info, size_t group_length),
        *info = pvm_reduce(function, data, *count, *type, *tag, TEXT(group), *root))

#define OPERATION(name, function)                                 \
    void name(int *type, void *x, void *y, int *count, int *info) \
    {                                                             \
        function(type, x, y, count, info);                        \
    }
OPERATION(pvmmax_, PvmMax)
OPERATION(pvmmin_, PvmMin)
OPERATION(pvmsum_, PvmSum)
OPERATION(pvmproduct_, PvmProduct)

/* Mailboxes. */
ROUTINE(putinfo, (char *name, int *buffer, int *flags, int *index, size_t name_length),
        *index = pvm_putinfo(TEXT(name), *buffer, *flags))
ROUTINE(recvinfo, (char *name, int *index, int *flags, int *buffer, size_t name_length),
        *buffer = pvm_recvinfo(TEXT(name), *index, *flags))
ROUTINE(delinfo, (char *name, int *index, int *flags, int *info, size_t name_length),
        *info = pvm_delinfo(TEXT(name), *index, *flags))

/* A list of which each call returns one element. It starts over after the last element, and when
 * `count` is passed as -1. */
struct list {
    int count, next;
};

static int begins(const struct list *list, const int *count)
{
    return list->next >= list->count || (count && *count == -1);
}

void pvmfconfig_(int *count, int *archs, int *tid, char *name, char *arch, int *speed, int *info,
                 size_t name_length, size_t arch_length)
{
    static struct list list;
    static struct pvmhostinfo *hosts;
    static int arch_count;
    if (begins(&list, count)) {
        list = (struct list){0};
        if ((*info = pvm_config(&list.count, &arch_count, &hosts)) < 0 || !list.count)
            return;
    }
    struct pvmhostinfo *host = &hosts[list.next++];
    set(count, list.count);
    set(archs, arch_count);
    set(tid, host->hi_tid);
    fill(name, name_length, host->hi_name);
    fill(arch, arch_length, host->hi_arch);
    set(speed, host->hi_speed);
    *info = 1; /* not PvmOk, as in PVM */
}

void pvmftasks_(int *where, int *count, int *tid, int *parent, int *host, int *flags, char *file,
                int *info, size_t file_length)
{
    static struct list list;
    static struct pvmtaskinfo *tasks;
    if (begins(&list, count)) {
        list = (struct list){0};
        if ((*info = pvm_tasks(*where, &list.count, &tasks)) < 0 || !list.count)
            return;
    }
    struct pvmtaskinfo *task = &tasks[list.next++];
    set(count, list.count);
    set(tid, task->ti_tid);
    set(parent, task->ti_ptid);
    set(host, task->ti_host);
    set(flags, task->ti_flag);
    fill(file, file_length, task->ti_a_out);
    *info = 1;
}

/* Returns PvmNotFound once after the last element. */
void pvmfgetmboxinfo_(char *pattern, char *name, int *count, int *entries, int *indices,
                      int *owners, int *flags, int *info, size_t pattern_length,
                      size_t name_length)
{
    static struct list list;
    static struct pvmmboxinfo *boxes;
    int ended = list.count && list.next >= list.count && !(count && *count == -1);
    if (begins(&list, count)) {
        list = (struct list){0};
        *info = ended ? PvmNotFound : pvm_getmboxinfo(TEXT(pattern), &list.count, &boxes);
        if (*info >= 0 && !list.count)
            *info = PvmNotFound;
        if (*info < 0)
            return;
    }
    struct pvmmboxinfo *box = &boxes[list.next++];
    set(count, list.count);
    set(entries, box->mi_nentries);
    fill(name, name_length, box->mi_name);
    for (int one = 0; one < box->mi_nentries; one++) {
        set(indices ? &indices[one] : 0, box->mi_indices[one]);
        set(owners ? &owners[one] : 0, box->mi_owners[one]);
        set(flags ? &flags[one] : 0, box->mi_flags[one]);
    }
    *info = PvmOk;
}

void pvmfsiblings_(int *count, int *index, int *tid)
{
    int *tids, there = pvm_siblings(&tids);
    set(count, there);
    if (index && tid)
        *tid = *index >= 0 && *index < there ? tids[*index] : PvmNoTask;
}

void pvmfhostsync_(int *host, int *seconds, int *microseconds, int *delta_seconds,
                   int *delta_microseconds, int *info)
{
    struct timeval clock = {0}, delta = {0};
    *info = pvm_hostsync(*host, &clock, &delta);
    *seconds = clock.tv_sec, *microseconds = clock.tv_usec;
    *delta_seconds = delta.tv_sec, *delta_microseconds = delta.tv_usec;
}

/* `args` holds all arguments, separated by blanks. */
void pvmfstartpvmd_(char *args, int *block, int *info, size_t args_length)
{
    char *text = TEXT(args), *rest,
        **words = __builtin_alloca((args_length / 2 + 2) * sizeof *words);
    int count = 0;
    for (char *word = strtok_r(text, " \t", &rest); word; word = strtok_r(0, " \t", &rest))
        words[count++] = word;
    words[count] = 0;
    *info = pvm_start_pvmd(count, words, *block);
}
