/* Behaviour that programs rely on: a line for each check, the same under any PVM. Two tasks, of
 * which the first spawns the second. */
#include <stdio.h>
#include <string.h>
#include "pvm3.h"

static int me, other;

static void sent(int encoding, int *items, int count, int tag)
{
    pvm_initsend(encoding);
    pvm_pkint(items, count, 1);
    pvm_send(other, tag);
}

static int taken(int from, int tag)
{
    int number = -99;
    pvm_recv(from, tag);
    pvm_upkint(&number, 1, 1);
    return number;
}

static int handled, answers;

/* A handler has active buffers of its own, and may send. */
static int handle(int buffer)
{
    int bytes, tag, from, number = -1;
    pvm_bufinfo(buffer, &bytes, &tag, &from);
    pvm_upkint(&number, 1, 1);
    handled += number;
    pvm_initsend(PvmDataRaw);
    pvm_pkint(&handled, 1, 1);
    pvm_send(from, 60);
    answers++;
    return 0;
}

static void child(void)
{
    /* Messages of one pair of tasks, with different tags. */
    for (int number = 0; number < 6; number++)
        sent(PvmDataRaw, &number, 1, 10 + number % 3);
    /* Data in place is copied when it is sent. */
    int place[] = {7, 8, 9};
    pvm_initsend(PvmDataInPlace);
    pvm_pkint(place, 3, 1);
    place[0] = 70;
    pvm_send(other, 20);
    place[0] = 700;
    /* Packed data was copied when it was packed. */
    int packed = 5;
    pvm_initsend(PvmDataRaw);
    pvm_pkint(&packed, 1, 1);
    packed = 50;
    pvm_send(other, 21);
    /* The same message is sent again. */
    pvm_send(other, 22);
    printf("told to go on: %d\n", taken(other, 30));
    for (int number = 1; number < 4; number++) {
        sent(PvmDataRaw, &number, 1, 50);
        printf("a handler answers: %d\n", taken(other, 60));
    }
    int over = 0;
    sent(PvmDataRaw, &over, 1, 40);
}

static void wildcards(void)
{
    printf("of tag 11 first: %d\n", taken(other, 11));
    printf("of any tag:");
    for (int one = 0; one < 3; one++)
        printf(" %d", taken(other, -1));
    printf("\nof any task:");
    for (int one = 0; one < 2; one++)
        printf(" %d", taken(-1, -1));
    printf("\n");
}

static void places(void)
{
    int got[3];
    pvm_recv(other, 20);
    pvm_upkint(got, 3, 1);
    printf("in place: %d %d %d\n", got[0], got[1], got[2]);
    printf("packed: %d, and again: ", taken(other, 21));
    printf("%d\n", taken(other, 22));
}

static void handlers(void)
{
    int packed = 3;
    int handler = pvm_addmhf(other, 50, -1, handle);
    printf("a handler: %d\n", handler >= 0);
    /* A handler does not change a message that is being packed. */
    sent(PvmDataRaw, &packed, 1, 30);
    int buffer = pvm_initsend(PvmDataRaw);
    pvm_pkint(&packed, 1, 1);
    printf("over: %d\n", taken(other, 40));
    printf("the same buffer: %d\n", pvm_getsbuf() == buffer);
    /* The original PVM reports that it has not found the handler that it removes. */
    pvm_setopt(PvmAutoErr, 0);
    printf("handled %d, answered %d, taken away: %d\n", handled, answers, pvm_delmhf(handler));
    printf("nothing is left: %d\n", pvm_nrecv(-1, -1));
}

/* Arrays that PVM returns belong to the task. */
static void arrays(void)
{
    struct pvmtaskinfo *tasks;
    int count, *siblings, mine = 0;
    printf("tasks: %d\n", pvm_tasks(0, &count, &tasks));
    for (int one = 0; one < count; one++)
        mine += tasks[one].ti_tid == me || tasks[one].ti_tid == other;
    memset(tasks, 0xff, count * sizeof *tasks);
    printf("of these two: %d; siblings: %d\n", mine,
           pvm_siblings(&siblings) == 1 && siblings[0] == me);
}

int main(int argc, char **argv)
{
    (void)argc;
    me = pvm_mytid(), other = pvm_parent();
    if (other > 0) {
        child();
        pvm_exit();
        return 0;
    }
    char *name = strrchr(argv[0], '/');
    pvm_catchout(stdout);
    printf("spawned: %d\n", pvm_spawn(name ? name + 1 : argv[0], 0, PvmTaskDefault, "", 1, &other));
    arrays();
    wildcards();
    places();
    handlers();
    /* Waits until all output of the child is printed. */
    pvm_exit();
    printf("the end\n");
    return 0;
}
