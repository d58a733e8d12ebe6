/* Tasks that send each other numbered messages without waiting, so that some are always under way:
   `streams COUNT [GATE]`. Each task checks that each message of each other one comes once and in
   order. The second half is sent once the file GATE exists. */
#include <pvm3.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { ITEM = 1, DONE, MOST = 16, BURST = 10, LONG = 600 << 10 };

static char data[LONG];

/* The contents of a message depend on its sender and its number. Some go in parts. */
static int length_of(int from, int number)
{
    return number % 40 == from ? LONG - number : (number * 37 + from) % 3000;
}

static void send_one(int to, int from, int number)
{
    int length = length_of(from, number);
    for (int at = 0; at < length; at += 512)
        data[at] = number + from + at / 512;
    pvm_initsend(number % 2 ? PvmDataRaw : PvmDataDefault);
    pvm_pkint(&from, 1, 1);
    pvm_pkint(&number, 1, 1);
    pvm_pkbyte(data, length, 1);
    pvm_send(to, ITEM);
}

static void wrong(int at, const char *what, int from, int number, int expected)
{
    printf("FAILED: task %d: %s: message %d of %d, not %d\n", at, what, number, from, expected);
    fflush(stdout);
    exit(1);
}

static void receive_one(int at, int *next)
{
    int from, number;
    pvm_upkint(&from, 1, 1);
    pvm_upkint(&number, 1, 1);
    if (number != next[from]++)
        wrong(at, "lost, doubled or out of order", from, number, next[from] - 1);
    int length = length_of(from, number);
    if (pvm_upkbyte(data, length, 1) < 0)
        wrong(at, "too short", from, number, length);
    for (int byte = 0; byte < length; byte += 512)
        if (data[byte] != (char)(number + from + byte / 512))
            wrong(at, "another content", from, number, byte);
}

int main(int argc, char **argv)
{
    int me = pvm_mytid(), count = atoi(argv[1]), at = 0, *all, n = pvm_siblings(&all);
    int next[MOST] = {0}, left = (n - 1) * count;
    while (all[at] != me)
        at++;
    pvm_joingroup("streams");
    pvm_barrier("streams", n);
    if (at == 0) {
        puts("ready");
        fflush(stdout);
    }
    for (int sent = 0; sent < count || left > 0;) {
        int is_held = argc > 2 && sent >= count / 2 && access(argv[2], F_OK);
        if (is_held)
            usleep(1000);
        for (int burst = 0; burst < BURST && sent < count && !is_held; burst++, sent++)
            for (int to = 0; to < n; to++)
                if (to != at)
                    send_one(all[to], at, sent);
        if (sent == count && left > 0) {
            pvm_recv(-1, ITEM);
            receive_one(at, next);
            left--;
        }
        while (left > 0 && pvm_nrecv(-1, ITEM) > 0) {
            receive_one(at, next);
            left--;
        }
    }
    if (pvm_nrecv(-1, ITEM) > 0)
        wrong(at, "one too many", -1, -1, -1);
    pvm_initsend(PvmDataDefault);
    if (at > 0) {
        pvm_send(all[0], DONE);
    } else {
        for (int one = 1; one < n; one++)
            pvm_recv(all[one], DONE);
        printf("ok: %d messages\n", n * (n - 1) * count);
    }
    pvm_exit();
    return 0;
}
