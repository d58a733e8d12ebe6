/* Tasks that send each other numbered messages all the time, so that some are always under way,
   until the file GATE exists: `streams GATE`. Each task checks that each message of each other one
   comes once and in order. */
#include <pvm3.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Number of messages by which a task may be ahead of the slowest one, and of the last message. */
enum { ITEM = 1, DONE, MOST = 16, AHEAD = 40, END = -1, LONG = 600 << 10 };

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

/* Takes a message. Returns 1 if it was the last one of its sender. */
static int receive_one(int at, int *next)
{
    int from, number, all;
    pvm_upkint(&from, 1, 1);
    pvm_upkint(&number, 1, 1);
    if (number == END) {
        pvm_upkint(&all, 1, 1);
        if (next[from] != all)
            wrong(at, "some are missing", from, next[from], all);
        return 1;
    }
    if (number != next[from]++)
        wrong(at, "lost, doubled or out of order", from, number, next[from] - 1);
    int length = length_of(from, number);
    if (pvm_upkbyte(data, length, 1) < 0)
        wrong(at, "too short", from, number, length);
    for (int byte = 0; byte < length; byte += 512)
        if (data[byte] != (char)(number + from + byte / 512))
            wrong(at, "another content", from, number, byte);
    return 0;
}

static int slowest(int *next, int n, int at)
{
    int least = 1 << 30;
    for (int one = 0; one < n; one++)
        if (one != at && next[one] < least)
            least = next[one];
    return least;
}

int main(int argc, char **argv)
{
    int me = pvm_mytid(), at = 0, *all, n = pvm_siblings(&all);
    int next[MOST] = {0}, left = n - 1, sent = 0, is_over = 0;
    while (all[at] != me)
        at++;
    pvm_joingroup("streams");
    pvm_barrier("streams", n);
    if (at == 0) {
        puts("ready");
        fflush(stdout);
    }
    while (!is_over || left > 0) {
        if (!is_over && access(argv[1], F_OK) == 0) {
            is_over = 1;
            for (int to = 0, end = END; to < n; to++) {
                if (to == at)
                    continue;
                pvm_initsend(PvmDataDefault);
                pvm_pkint(&at, 1, 1);
                pvm_pkint(&end, 1, 1);
                pvm_pkint(&sent, 1, 1);
                pvm_send(all[to], ITEM);
            }
        } else if (!is_over && sent < slowest(next, n, at) + AHEAD) {
            for (int to = 0; to < n; to++)
                if (to != at)
                    send_one(all[to], at, sent);
            sent++;
        } else {
            struct timeval moment = {0, 1000};
            if (pvm_trecv(-1, ITEM, &moment) > 0)
                left -= receive_one(at, next);
        }
        while (left > 0 && pvm_nrecv(-1, ITEM) > 0)
            left -= receive_one(at, next);
    }
    if (pvm_nrecv(-1, ITEM) > 0)
        wrong(at, "one too many", END, END, END);
    pvm_initsend(PvmDataDefault);
    if (at > 0) {
        pvm_send(all[0], DONE);
    } else {
        for (int one = 1; one < n; one++)
            pvm_recv(all[one], DONE);
        puts("ok: streams");
    }
    pvm_exit();
    return 0;
}
