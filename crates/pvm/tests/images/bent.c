/* Tasks of the host `b`, which bends each of them that leaves it. The first task moves them to its
 * own process, where they only wait, and ends them. Between two of them it asks a task on the host
 * `c` for an answer. The argument is the number of tasks. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <pvm3.h>
#include <upvm.h>

enum { READY = 1, PING, PONG, NEVER, ENDED };

/* A task that has memory, an open file, a message that it packs, and messages that it has not
 * taken. */
static void victim(int parent, const char *program)
{
    enum { SIZE = 256 << 10 };
    char *memory = malloc(SIZE);
    if (dup(open(program, O_RDONLY)) < 0)
        printf("FAILED: %s cannot be opened\n", program);
    memset(memory, 7, SIZE);
    pvm_initsend(PvmDataDefault);
    pvm_send(parent, READY);
    pvm_initsend(PvmDataRaw);
    pvm_pkbyte(memory, 5000, 1);
    for (;;)
        pvm_recv(-1, NEVER);
}

static void echo(int parent)
{
    for (;;) {
        pvm_recv(parent, PING);
        pvm_initsend(PvmDataDefault);
        pvm_send(parent, PONG);
    }
}

static int started(char *program, char *what, char *host)
{
    char *words[] = {what, 0};
    int tid = -1;
    return pvm_spawn(program, words, PvmTaskHost, host, 1, &tid) == 1 ? tid : -1;
}

int main(int count, char **words)
{
    int parent = pvm_parent();
    if (parent > 0 && !strcmp(words[1], "victim"))
        victim(parent, words[0]);
    if (parent > 0)
        echo(parent);
    int other = started(words[0], "echo", "c"), rounds = atoi(words[count - 1]);
    int moved = 0, refused = 0;
    for (int round = 0; round < rounds; round++) {
        int tid = started(words[0], "victim", "b");
        if (tid < 0)
            return printf("FAILED: no task starts: %d\n", tid), 1;
        pvm_notify(PvmTaskExit, ENDED, 1, &tid);
        pvm_recv(tid, READY);
        for (int one = 0; one < 3; one++) {
            pvm_initsend(PvmDataDefault);
            pvm_pkint(&round, 1, 1);
            pvm_send(tid, READY);
        }
        int code = upvm_migrate(tid, 0);
        if (code == 0)
            moved++;
        else if (code == PvmOutOfRes || code == PvmDenied)
            refused++;
        else
            return printf("FAILED: a move ends with %d\n", code), 1;
        pvm_initsend(PvmDataDefault);
        pvm_send(other, PING);
        pvm_recv(other, PONG);
        pvm_kill(tid);
        pvm_recv(-1, ENDED);
    }
    pvm_kill(other);
    printf("ok: bent: %d moved, %d refused\n", moved, refused);
    pvm_exit();
    return !(moved && refused);
}
