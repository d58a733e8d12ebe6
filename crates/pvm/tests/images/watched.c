/* Three tasks for a debugger: each has its own variables, and all exist until the first one ends.
 */

#include "pvm3.h"
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int number;
static int twice;
static int *all;

static int watched_work(int value)
{
    int local = 10 * value + number;
    twice = 2 * number;
    return local + twice;
}

static void watched_leave(void)
{
    if (number == 2 && getenv("WATCHED_CRASH"))
        *(volatile int *)8 = number;
    if (number == 2 && getenv("WATCHED_PACKS")) {
        pvm_initsend(PvmDataRaw);
        pvm_pkint(&number, 1, 1);
        pvm_pkint((int *)8, 1, 1);
    }
    /* The last task ends first. */
    if (number < 3)
        pvm_recv(all[number], 1);
    if (number > 1) {
        pvm_initsend(PvmDataDefault);
        pvm_send(all[number - 2], 1);
    }
}

static int watched_last(int value)
{
    value += twice;
    return value;
}

int main(void)
{
    int count = pvm_siblings(&all);
    for (int one = 0; one < count; one++)
        if (all[one] == pvm_mytid())
            number = one + 1;
    int sum = watched_work(7);
    /* Each task creates a file, and waits until all are told to go on. */
    const char *go = getenv("WATCHED_WAITS");
    if (go) {
        char there[4096];
        snprintf(there, sizeof there, "%s.%d", go, number);
        fclose(fopen(there, "w"));
    }
    while (go && access(go, F_OK))
        pvm_trecv(-1, 99, &(struct timeval){0, 100000});
    watched_leave();
    sum = watched_last(sum);
    pvm_exit();
    return sum == 0;
}
