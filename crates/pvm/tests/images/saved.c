/* A program for checkpoints: its tasks exchange messages of all kinds, and print what they have
   computed at the end. `saved ROUNDS` starts; `saved child NUMBER` is what task 0 spawns. */
#include <pvm3.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { FIRST = 100, NEXT = 1 << 20, CHILD = 7, GONE = 8, LAST = 9, LONGEST = 3000 };

static unsigned mixed(unsigned hash, unsigned value)
{
    return (hash ^ value) * 0x9e3779b1u + (hash >> 15);
}

static volatile sig_atomic_t alarms;

static void count(int signal)
{
    alarms++;
}

static int as_child(int number)
{
    unsigned square = number * number;
    pvm_initsend(PvmDataRaw);
    pvm_pkuint(&square, 1, 1);
    pvm_send(pvm_parent(), CHILD);
    return 0;
}

static unsigned spawn_one(const char *program, int number)
{
    char text[20], *args[] = {"child", text, 0};
    unsigned square;
    int tid, gone;
    sprintf(text, "%d", number);
    if (pvm_spawn((char *)program, args, PvmTaskDefault, "", 1, &tid) != 1) {
        printf("no child\n");
        exit(1);
    }
    pvm_notify(PvmTaskExit, GONE, 1, &tid);
    pvm_recv(tid, CHILD);
    pvm_upkuint(&square, 1, 1);
    pvm_recv(-1, GONE);
    pvm_upkint(&gone, 1, 1);
    if (gone != tid) {
        printf("another child is gone\n");
        exit(1);
    }
    return square;
}

/* Sends to all others, and receives from each of them, in any order. */
static unsigned exchange(int *all, int n, int at, int round, unsigned hash)
{
    static unsigned data[LONGEST];
    int length = 1 + (round * 37 + at * 911) % LONGEST;
    for (int i = 0; i < length; i++)
        data[i] = hash + i;
    int others[64], count = 0;
    for (int i = 0; i < n; i++)
        if (i != at)
            others[count++] = all[i];
    pvm_initsend(round % 2 ? PvmDataRaw : PvmDataInPlace);
    pvm_pkint(&length, 1, 1);
    pvm_pkuint(data, length, 1);
    pvm_mcast(others, count, FIRST + round);
    /* The buffer that was sent stays packed, and more is added to another one. */
    int sent = pvm_setsbuf(0), extra = pvm_mkbuf(PvmDataRaw);
    pvm_setsbuf(extra);
    pvm_pkuint(&hash, 1, 1);
    unsigned from[64] = {0};
    for (int left = count; left > 0; left--) {
        struct timeval patience = {0, 300};
        int buffer = 0, bytes, tag, tid;
        while ((buffer = pvm_trecv(-1, FIRST + round, &patience)) == 0)
            ;
        pvm_bufinfo(buffer, &bytes, &tag, &tid);
        int who = 0;
        while (who < n && all[who] != tid)
            who++;
        int its;
        static unsigned got[LONGEST];
        pvm_upkint(&its, 1, 1);
        pvm_upkuint(got, its, 1);
        unsigned sum = its;
        for (int i = 0; i < its; i++)
            sum = mixed(sum, got[i]);
        if (from[who] || its != 1 + (round * 37 + who * 911) % LONGEST) {
            printf("round %d: task %d sent %d numbers%s\n", round, who, its,
                   from[who] ? " twice" : "");
            exit(1);
        }
        from[who] = sum | 1;
    }
    pvm_pkuint(from, n, 1);
    pvm_send(all[(at + 1) % n], NEXT + round);
    pvm_freebuf(pvm_setsbuf(sent));
    unsigned before[65];
    pvm_recv(all[(at + n - 1) % n], NEXT + round);
    pvm_upkuint(before, n + 1, 1);
    for (int i = 0; i <= n; i++)
        hash = mixed(hash, before[i]);
    for (int i = 0; i < n; i++)
        hash = mixed(hash, from[i]);
    return hash;
}

/* One task leaves an entry that all take; they wait for it. */
static unsigned leave(int at, int n, int round, unsigned hash)
{
    char name[20];
    unsigned left;
    sprintf(name, "round%d", round);
    if (round % n == at) {
        pvm_initsend(PvmDataDefault);
        pvm_pkuint(&hash, 1, 1);
        if (pvm_putinfo(name, pvm_getsbuf(), PvmMboxDefault) < 0)
            exit(1);
    }
    if (pvm_recvinfo(name, 0, PvmMboxWaitForInfo) < 0)
        exit(1);
    pvm_upkuint(&left, 1, 1);
    return mixed(hash, left);
}

int main(int argc, char **argv)
{
    if (argc > 2)
        return as_child(atoi(argv[2]));
    int me = pvm_mytid(), rounds = atoi(argv[1]), at = 0, *all, n = pvm_siblings(&all);
    int parent = getppid();
    while (all[at] != me)
        at++;
    pvm_joingroup("saved");
    pvm_barrier("saved", n);
    if (at == 0) {
        printf("begun\n");
        fflush(stdout);
    }
    unsigned hash = at;
    signal(SIGALRM, count);
    if (at == 1)
        ualarm(5000, 5000);
    for (int round = 0; round < rounds; round++) {
        hash = exchange(all, n, at, round, hash);
        if (round % 3 == at % 3)
            for (unsigned i = 0; i < 3000000; i++)
                hash = mixed(hash, i);
        if (round % 4 == 0)
            pvm_barrier("saved", n);
        if (round % 5 == 0)
            hash = leave(at, n, round, hash);
        if (round % 7 == at)
            nanosleep(&(struct timespec){0, 3000000}, 0);
        if (at == 0 && round % 6 == 5)
            hash = mixed(hash, spawn_one(argv[0], round));
        hash = mixed(hash, pvm_getinst("saved", me) == pvm_getinst("saved", all[at]));
    }
    pvm_barrier("saved", n);
    if (at > 0) {
        pvm_initsend(PvmDataRaw);
        pvm_pkuint(&hash, 1, 1);
        pvm_send(all[0], LAST);
    } else {
        for (int i = 1; i < n; i++) {
            unsigned its;
            pvm_recv(all[i], LAST);
            pvm_upkuint(&its, 1, 1);
            printf("task %d: %08x\n", i, its);
        }
        printf("task 0: %08x\n", hash);
        fprintf(stderr, "%s\n", getppid() == parent ? "the same machine" : "another machine");
    }
    if (at == 1 && alarms == 0)
        printf("no alarm\n");
    pvm_exit();
    return 0;
}
