/* The order of a task's signals, kills and messages. The second task is the sender. The third and
 * the fourth are together in a process that is not the first one. The first task computes, so that
 * the first process is slow. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
#include "pvm3.h"

enum { ROUNDS = 10, SIGNALLED = 1, BEFORE, READY, KILLED, PING, PONG, OVER, ENDED };

static int *all;
static volatile sig_atomic_t signals;

static void counts(int signal)
{
    (void)signal;
    signals++;
}

static void tell(int to, int tag)
{
    pvm_initsend(PvmDataRaw);
    pvm_send(to, tag);
}

static void fails(const char *what)
{
    printf("FAILED: %s\n", what);
    fflush(stdout);
    pvm_halt();
    exit(1);
}

static long now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000 + time.tv_nsec;
}

/* Computes for some milliseconds at a time, without a call of PVM. */
static void computes(void)
{
    while (!pvm_nrecv(all[3], OVER))
        for (long end = now() + 3000000; now() < end;)
            ;
}

static void sends(void)
{
    for (int round = 0; round < ROUNDS; round++) {
        pvm_recv(all[2], READY);
        pvm_sendsig(all[2], SIGUSR1);
        tell(all[2], SIGNALLED);
        pvm_recv(all[2], READY);
        tell(all[2], BEFORE);
        pvm_sendsig(all[2], SIGUSR1);
    }
    pvm_recv(all[2], READY);
    pvm_recv(all[3], READY);
    pvm_kill(all[2]);
    tell(all[3], KILLED);
}

static void is_signalled(void)
{
    signal(SIGUSR1, counts);
    for (int round = 0; round < ROUNDS; round++) {
        tell(all[1], READY);
        pvm_recv(all[1], SIGNALLED);
        if (signals != 2 * round + 1)
            fails("a message came before the signal that was sent before it");
        tell(all[1], READY);
        while (signals != 2 * round + 2)
            usleep(1000);
        if (pvm_nrecv(all[1], BEFORE) <= 0)
            fails("a signal came before the message that was sent before it");
    }
    tell(all[1], READY);
    for (;;) {
        pvm_recv(all[3], PING);
        tell(all[3], PONG);
    }
}

static void watches(void)
{
    int tag;
    pvm_notify(PvmTaskExit, ENDED, 1, &all[2]);
    tell(all[1], READY);
    pvm_recv(all[1], KILLED);
    tell(all[2], PING);
    pvm_bufinfo(pvm_recv(-1, -1), 0, &tag, 0);
    if (tag != ENDED)
        fails("a message came before the kill that was before it");
    printf("the order is right\n");
    tell(all[0], OVER);
}

int main(void)
{
    int me = 0, own = pvm_mytid();
    if (pvm_siblings(&all) != 4)
        return 2;
    while (all[me] != own)
        me++;
    (void (*const[])(void)){computes, sends, is_signalled, watches}[me]();
    pvm_exit();
    return 0;
}
