/*
 * order FOLDER: three tasks in three processes. The first one sends many numbers to the third one,
 * and then a message that makes the second one send to the third one, too.
 *
 * The third one's process is stopped while they send: from when FOLDER/opened is there until
 * FOLDER/sent is. FOLDER/stopped says that it is.
 */
#include "pvm3.h"
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { OPENS = 1, NUMBER = 2, CAUSE = 3, EFFECT = 4, NUMBERS = 10000 };

static const char *folder;

static const char *path(const char *name)
{
    static char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void create(const char *name)
{
    close(open(path(name), O_CREAT | O_WRONLY, 0600));
}

static void send_number(int to, int tag, int number)
{
    pvm_initsend(PvmDataRaw);
    pvm_pkint(&number, 1, 1);
    pvm_send(to, tag);
}

static void receive_all(void)
{
    int numbers = 0, number;
    pvm_recv(-1, OPENS);
    pvm_recv(-1, OPENS);
    create("opened");
    for (;;) {
        int buffer = pvm_recv(-1, -1), tag;
        pvm_bufinfo(buffer, NULL, &tag, NULL);
        if (tag == EFFECT)
            break;
        pvm_upkint(&number, 1, 1);
        if (number != numbers)
            printf("wrong: %d after %d\n", number, numbers);
        numbers++;
    }
    printf("the effect comes after %d of its causes\n", numbers);
}

int main(int argc, char **argv)
{
    int *tids, own = pvm_mytid();
    pvm_siblings(&tids);
    folder = argv[1];
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (own == tids[0]) {
        send_number(tids[2], OPENS, 0);
        while (access(path("stopped"), F_OK) != 0)
            usleep(1000);
        for (int i = 0; i < NUMBERS; i++)
            send_number(tids[2], NUMBER, i);
        send_number(tids[1], CAUSE, 0);
    } else if (own == tids[1]) {
        send_number(tids[2], OPENS, 0);
        pvm_recv(tids[0], CAUSE);
        send_number(tids[2], EFFECT, 0);
        create("sent");
    } else {
        receive_all();
    }
    pvm_exit();
    return 0;
}
