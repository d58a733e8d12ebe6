/* Tasks that exchange numbered messages, each with each, until one of them is signalled. Some
 * processes are killed or stopped at that time. All that a task has sent has arrived when its last
 * message has. */

#include "moves.h"
#include <signal.h>
#include <sys/time.h>

#define MOST 16

enum { NUMBER = 1, LAST, ENDED };

static volatile int signalled;
static int *all, count, me;
static int sent[MOST], got[MOST], last[MOST], ended[MOST];

static void on_signal(int signal)
{
    (void)signal;
    signalled = 1;
}

static int place(int tid)
{
    for (int at = 0; at < count; at++)
        if (all[at] == tid)
            return at;
    MUST(!"a message of an unknown task");
    return me;
}

static void next(int to)
{
    send_int(all[to], NUMBER, sent[to]++);
}

static void take(int finishes)
{
    struct timeval limit = {0, 20000};
    int bytes, tag, from, value = -1;
    int buffer = pvm_trecv(-1, -1, &limit);
    if (buffer <= 0)
        return;
    pvm_bufinfo(buffer, &bytes, &tag, &from);
    MUST(pvm_upkint(&value, 1, 1) == 0);
    if (tag == ENDED) {
        ended[place(value)] = 1;
        return;
    }
    from = place(from);
    if (tag == LAST) {
        MUST(value == got[from] && !last[from]);
        last[from] = signalled = 1;
        return;
    }
    MUST(value == got[from] && !last[from]);
    got[from]++;
    if (!finishes)
        next(from);
}

static int are_all_done(void)
{
    for (int at = 0; at < count; at++)
        if (at != me && !last[at] && !ended[at])
            return 0;
    return 1;
}

int main(void)
{
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGUSR1, &action, 0);
    pvm_mytid();
    count = pvm_siblings(&all);
    for (int at = 0; at < count; at++)
        if (all[at] == pvm_mytid())
            me = at;
    pvm_notify(PvmTaskExit, ENDED, count, all);
    for (int at = 0; at < count; at++)
        if (at != me)
            next(at);
    for (int at = 0; at < count; at++)
        while (at != me && got[at] == 0)
            take(0);
    printf("ready t%x\n", pvm_mytid());
    fflush(stdout);
    while (!signalled)
        take(0);
    for (int at = 0; at < count; at++)
        if (at != me)
            send_int(all[at], LAST, sent[at]);
    while (!are_all_done())
        take(1);
    printf("%d is well\n", me);
    fflush(stdout);
    pvm_exit();
    return failed;
}
