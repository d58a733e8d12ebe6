/*
 * Tasks for the balancer.
 *
 * balance uneven: each task computes in rounds, half of them four times as much, and passes on what
 * it has computed. The first task stops all when each of two processes has two fifths of the work.
 *
 * balance ring FILE [STAYS]: the tasks pass numbers around until FILE is there. With STAYS the task
 * of this number is pinned.
 */
#include "pvm3.h"
#include "upvm.h"
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { PASSED = 1, PLACE = 2, GOES_ON = 3 };

/* Number of steps of a round. A round takes several of the kernel's ticks, so that the interrupts
 * do not meet the same task again and again. */
enum { LIGHT = 1000000, HEAVY = 4 * LIGHT };

static int *tids, tasks, me;

static uint32_t compute(uint32_t value, int much)
{
    for (int i = 0; i < much; i++)
        value = value * 1664525 + 1013904223;
    return value;
}

/* The same number, in a few steps: so a task that checks another's result does not compute as much
 * as that one. */
static uint32_t expected(uint32_t value, int much)
{
    uint32_t factor = 1664525, summand = 1013904223;
    for (; much > 0; much /= 2) {
        if (much % 2)
            value = value * factor + summand;
        summand += summand * factor;
        factor *= factor;
    }
    return value;
}

/* Sends a number to the next task, and returns that of the one before. */
static uint32_t passed(uint32_t value)
{
    int number = (int)value;
    pvm_initsend(PvmDataRaw);
    pvm_pkint(&number, 1, 1);
    pvm_send(tids[(me + 1) % tasks], PASSED);
    pvm_recv(tids[(me + tasks - 1) % tasks], PASSED);
    pvm_upkint(&number, 1, 1);
    return (uint32_t)number;
}

/* Tells the first task where this one is. Returns whether to go on. */
static int reported(int is_heavy, time_t until)
{
    int place[2] = {is_heavy ? 4 : 1, upvm_process()}, work[2] = {0, 0}, goes_on;
    pvm_initsend(PvmDataRaw);
    pvm_pkint(place, 2, 1);
    pvm_send(tids[0], PLACE);
    if (me == 0) {
        for (int i = 0; i < tasks; i++) {
            pvm_recv(-1, PLACE);
            pvm_upkint(place, 2, 1);
            work[place[1] & 1] += place[0];
        }
        int least = work[0] < work[1] ? work[0] : work[1];
        goes_on = 5 * least < 2 * (work[0] + work[1]);
        if (goes_on && time(NULL) > until) {
            printf("not balanced in time\n");
            goes_on = 0;
        }
        pvm_initsend(PvmDataRaw);
        pvm_pkint(&goes_on, 1, 1);
        pvm_mcast(tids, tasks, GOES_ON);
        return goes_on;
    }
    pvm_recv(tids[0], GOES_ON);
    pvm_upkint(&goes_on, 1, 1);
    return goes_on;
}

static void uneven(void)
{
    int is_heavy = me % 2, much = is_heavy ? HEAVY : LIGHT, rounds = 0;
    time_t until = time(NULL) + 50;
    do {
        uint32_t from = (me + tasks - 1) % tasks, round = (uint32_t)rounds;
        uint32_t value = passed(compute(round + (uint32_t)me, much));
        uint32_t wanted = expected(round + from, from % 2 ? HEAVY : LIGHT);
        if (value != wanted) {
            printf("task %d: wrong in round %d\n", me, rounds);
            exit(1);
        }
        rounds++;
    } while (reported(is_heavy, until));
    printf("task %d: done\n", me);
}

static void ring(const char *file)
{
    int goes_on = 1;
    for (uint32_t round = 0; goes_on; round++) {
        if (me == 0) {
            goes_on = access(file, F_OK) != 0;
            usleep(500);
        }
        /* The first task's word goes around, with the round. */
        uint32_t value = (round << 1) | (uint32_t)goes_on;
        if (me == 0) {
            if (passed(value) != value)
                printf("wrong in round %u\n", round);
            continue;
        }
        int number;
        pvm_recv(tids[me - 1], PASSED);
        pvm_upkint(&number, 1, 1);
        if ((uint32_t)number >> 1 != round) {
            printf("task %d: wrong in round %u\n", me, round);
            exit(1);
        }
        goes_on = number & 1;
        pvm_initsend(PvmDataRaw);
        pvm_pkint(&number, 1, 1);
        pvm_send(tids[(me + 1) % tasks], PASSED);
    }
    printf("task %d: done\n", me);
}

int main(int argc, char **argv)
{
    int own = pvm_mytid();
    tasks = pvm_siblings(&tids);
    while (tids[me] != own)
        me++;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc > 3 && atoi(argv[3]) == me)
        upvm_pin(1);
    if (argc > 2)
        ring(argv[2]);
    else
        uneven();
    pvm_exit();
    return 0;
}
