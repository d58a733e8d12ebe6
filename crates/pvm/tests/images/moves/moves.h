/* Common parts of programs that are moved between the processes of their machine. Tasks of this
 * machine move others by the command `upcall pvm move`, as a user does. */
#ifndef MOVES_H
#define MOVES_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <pvm3.h>

static int failed;

/* Reports what is wrong, and goes on. */
#define MUST(condition)                                                                   \
    do {                                                                                  \
        if (!(condition)) {                                                               \
            fprintf(stderr, "FAILED: %s:%d: %s\n", __FILE__, __LINE__, #condition);       \
            failed = 1;                                                                   \
        }                                                                                 \
    } while (0)

/* The number of the process in which a task runs. */
__attribute__((unused)) static int process_of(int tid)
{
    struct pvmtaskinfo *tasks;
    int count;
    return pvm_tasks(tid, &count, &tasks) == 0 && count == 1 ? tasks->ti_pid : 0;
}

/* Moves a task to the process of this rank. Returns when it runs there. On a machine that is very
 * busy, a move may take too long, and is tried again. */
__attribute__((unused)) static void move_to(int tid, int rank)
{
    char command[512], text[512] = "";
    snprintf(command, sizeof command, "\"$UPCALL\" pvm move t%x %d --machine %d 2>&1", tid, rank,
             (int)getppid());
    for (int try = 0; try < 200; try++) {
        FILE *from = popen(command, "r");
        text[from ? fread(text, 1, sizeof text - 1, from) : 0] = 0;
        if ((from && pclose(from) == 0) || (try > 0 && strstr(text, "in that process already")))
            return;
        if (!strstr(text, "in time") && !strstr(text, "did not reply") && !strstr(text, "again"))
            break;
        usleep(100000);
    }
    fprintf(stderr, "FAILED: %s: %s\n", command, text);
    failed = 1;
}

/* Fills words by their seed. */
__attribute__((unused)) static void fill(unsigned *words, size_t count, unsigned seed)
{
    for (size_t at = 0; at < count; at++)
        words[at] = (seed + (unsigned)at) * 2654435761u;
}

__attribute__((unused)) static int is_filled(const unsigned *words, size_t count, unsigned seed)
{
    for (size_t at = 0; at < count; at++)
        if (words[at] != (seed + (unsigned)at) * 2654435761u)
            return 0;
    return 1;
}

__attribute__((unused)) static void send_int(int to, int tag, int value)
{
    pvm_initsend(PvmDataRaw);
    pvm_pkint(&value, 1, 1);
    pvm_send(to, tag);
}

__attribute__((unused)) static int recv_int(int from, int tag)
{
    int value = -1;
    pvm_recv(from, tag);
    pvm_upkint(&value, 1, 1);
    return value;
}

#endif
