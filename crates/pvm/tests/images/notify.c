/* Notices of ends, and of events that do not occur. */

#include "check.h"
#include <unistd.h>

#define CHILDREN 6

static int children[CHILDREN];

static int order(const char *what, char *name, int number)
{
    (void)name;
    if (!strcmp(what, "watch"))
        return pvm_notify(PvmTaskExit, 60, 1, &number);
    /* Returns the task that the notice is about. */
    if (!strcmp(what, "notice")) {
        pvm_recv(-1, 60);
        pvm_upkint(&number, 1, 1);
        return number;
    }
    /* The task leaves the machine, but goes on for a while. */
    if (!strcmp(what, "leave")) {
        pvm_exit();
        sleep(1);
        exit(0);
    }
    return NOTHING;
}

/* The task that the next notice is about. NOTHING: there is no notice. */
static int notice(int tag)
{
    struct timeval within = {0, 300000};
    int about = NOTHING;
    if (pvm_trecv(-1, tag, &within) > 0)
        pvm_upkint(&about, 1, 1);
    return about;
}

/* The same for a notice that must arrive. */
static int noticed(int tag)
{
    int about = NOTHING;
    pvm_recv(-1, tag);
    pvm_upkint(&about, 1, 1);
    return about;
}

static void exits(void)
{
    int length = 0, tag = 0, source = 0, context, gone = children[0];
    check("two are watched", pvm_notify(PvmTaskExit, 50, 2, children), PvmOk);
    check("one is watched more than once", pvm_notify(PvmTaskExit, 51, 1, children), PvmOk);
    check("another task watches it", ask(children[2], "watch", "", children[0]), PvmOk);
    check("no task has ended", notice(-1), NOTHING);
    tell(children[0], "end", "", 0);
    int buffer = pvm_recv(-1, 50);
    pvm_bufinfo(buffer, &length, &tag, &source);
    check("a notice's length", length, 4);
    check("its sender is a daemon", source, (int)0x80000000);
    int about = 0;
    pvm_upkint(&about, 1, 1);
    check("the task that it is about", about, children[0]);
    check("the other notice", noticed(51), children[0]);
    check("the notice of the other task", ask(children[2], "notice", "", 0), children[0]);
    check("no further notice", notice(-1), NOTHING);
    pvm_kill(children[1]);
    check("a task is killed", noticed(50), children[1]);
    check("an ended task is watched", pvm_notify(PvmTaskExit, 52, 1, &gone), PvmOk);
    check("the notice comes at once", noticed(52), gone);
    context = pvm_newcontext();
    pvm_setcontext(context);
    check("a task is watched in a context", pvm_notify(PvmTaskExit, 53, 1, &children[2]), PvmOk);
    pvm_setcontext(0);
    tell(children[2], "end", "", 0);
    check("the notice does not come in another context", notice(53), NOTHING);
    pvm_setcontext(context);
    check("but in that one", noticed(53), children[2]);
    pvm_setcontext(0);
    pvm_freecontext(context);
    check("a task that leaves the machine", pvm_notify(PvmTaskExit, 54, 1, &children[3]), PvmOk);
    tell(children[3], "leave", "", 0);
    check("has ended", noticed(54), children[3]);
}

static void withdrawn(void)
{
    int *one = &children[4];
    check("a task is watched", pvm_notify(PvmTaskExit, 55, 1, one), PvmOk);
    check("with two tags", pvm_notify(PvmTaskExit, 56, 1, one), PvmOk);
    check("one is withdrawn", pvm_notify(PvmTaskExit | PvmNotifyCancel, 55, 1, one), PvmOk);
    check("and a notice comes", noticed(55), *one);
    check("it is withdrawn again", pvm_notify(PvmTaskExit | PvmNotifyCancel, 55, 1, one), PvmOk);
    check("and no notice comes", notice(55), NOTHING);
    check("an unknown request is withdrawn", pvm_notify(PvmTaskExit | PvmNotifyCancel, 57, 1, one),
          PvmOk);
    check("and no notice comes", notice(57), NOTHING);
    tell(children[4], "end", "", 0);
    check("the other notice comes at its end", noticed(56), *one);
    check("and no other", notice(-1), NOTHING);
}

static void others(int me)
{
    int host = pvm_tidtohost(me), no_host = (int)0x80100000, no_task = -5;
    check("new hosts are watched", pvm_notify(PvmHostAdd, 58, -1, 0), PvmOk);
    check("with a count of 0", pvm_notify(PvmHostAdd, 58, 0, 0), PvmOk);
    check("withdrawn", pvm_notify(PvmHostAdd | PvmNotifyCancel, 58, -1, 0), PvmOk);
    check("a host is watched", pvm_notify(PvmHostDelete, 58, 1, &host), PvmOk);
    check("no host has come or gone", notice(58), NOTHING);
    check("withdrawn", pvm_notify(PvmHostDelete | PvmNotifyCancel, 58, 1, &host), PvmOk);
    check("and a notice comes", noticed(58), host);
    check("an unknown host is watched", pvm_notify(PvmHostDelete, 58, 1, &no_host), PvmOk);
    check("the notice comes at once", noticed(58), no_host);
    check("new routes are watched", pvm_notify(PvmRouteAdd, 58, -1, 0), PvmOk);
    check("withdrawn", pvm_notify(PvmRouteAdd | PvmNotifyCancel, 58, -1, 0), PvmOk);
    check("no route has come", notice(58), NOTHING);
    check("a count of 0 tasks", pvm_notify(PvmTaskExit, 58, 0, &host), PvmBadParam);
    check("a count of 0 hosts", pvm_notify(PvmHostDelete, 58, 0, &host), PvmBadParam);
    check("a host is not a task", pvm_notify(PvmTaskExit, 58, 1, &host), PvmBadParam);
    check("a negative number is not a task", pvm_notify(PvmTaskExit, 58, 1, &no_task), PvmBadParam);
    check("a negative tag", pvm_notify(PvmTaskExit, -58, 1, &children[5]), PvmBadParam);
    check("an unknown event", pvm_notify(77, 58, 1, &children[5]), PvmBadParam);
    check("no notice of these comes", notice(-1), NOTHING);
}

int main(int count, char **args)
{
    (void)count;
    int me = pvm_mytid();
    if (pvm_parent() > 0)
        obey(order);
    begin(args[0], CHILDREN, children);
    exits();
    withdrawn();
    others(me);
    return finish(1, &children[5]);
}
