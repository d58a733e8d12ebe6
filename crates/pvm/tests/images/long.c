/* long WAY MEBIBYTES: the first task sends the second a message of so many MiB and 8 bytes: packed
 * and unpacked ("pack"), or by pvm_psend and pvm_precv ("psend"). */
#include <limits.h>
#include <pvm3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORDS = 1 << 17, TAG = 1, TOLD };

#define CHECK(what)                                                                     \
    do {                                                                                \
        if (!(what)) {                                                                  \
            printf("%s:%d: %s\n", __FILE__, __LINE__, #what);                           \
            fflush(stdout);                                                             \
            pvm_halt();                                                                 \
            exit(1);                                                                    \
        }                                                                               \
    } while (0)

/* The word at this place of the message. */
static unsigned long word(unsigned long place)
{
    return (place + 1) * 0x9e3779b97f4a7c15;
}

static unsigned long some[WORDS];

static void fill(unsigned long *to, unsigned long first, unsigned long count)
{
    for (unsigned long one = 0; one < count; one++)
        to[one] = word(first + one);
}

static void verify(const unsigned long *from, unsigned long first, unsigned long count)
{
    for (unsigned long one = 0; one < count; one++)
        CHECK(from[one] == word(first + one));
}

static void send_packed(int to, unsigned long mebibytes)
{
    CHECK(pvm_initsend(PvmDataRaw) > 0);
    for (unsigned long one = 0; one < mebibytes; one++) {
        fill(some, one * WORDS, WORDS);
        CHECK(pvm_pkulong(some, WORDS, 1) == 0);
    }
    fill(some, mebibytes * WORDS, 1);
    CHECK(pvm_pkulong(some, 1, 1) == 0 && pvm_send(to, TAG) == 0);
}

/* What the interface says of the message's length. */
static void told(int buffer, int code, int length, int from)
{
    int bytes, tag, source;
    struct pvmminfo info;
    CHECK(pvm_bufinfo(buffer, &bytes, &tag, &source) == code && bytes == length && tag == TAG &&
          source == from);
    CHECK(pvm_bufinfo(buffer, 0, &tag, &source) == 0);
    CHECK(pvm_getminfo(buffer, &info) == code && info.len == length && info.tag == TAG &&
          info.src == from);
    if (code < 0) {
        CHECK(pvm_initsend(PvmDataRaw) > 0 && pvm_pkmesg(buffer) == code &&
              pvm_bufinfo(pvm_getsbuf(), &bytes, 0, 0) == 0 && !bytes);
    }
}

static void receive_packed(int from, unsigned long mebibytes)
{
    int buffer = pvm_recv(from, TAG);
    CHECK(buffer > 0);
    if (mebibytes < 2048)
        told(buffer, 0, (int)(mebibytes << 20) + 8, from);
    else
        told(buffer, PvmOverflow, INT_MAX, from);
    for (unsigned long one = 0; one < mebibytes; one++) {
        CHECK(pvm_upkulong(some, WORDS, 1) == 0);
        verify(some, one * WORDS, WORDS);
    }
    CHECK(pvm_upkulong(some, 1, 1) == 0);
    verify(some, mebibytes * WORDS, 1);
    CHECK(pvm_upkulong(some, 1, 1) == PvmNoData && pvm_freebuf(buffer) == 0);
}

static void send_plain(int to, unsigned long mebibytes)
{
    unsigned long count = mebibytes * WORDS + 1, *all = malloc(count * sizeof *all);
    CHECK(all);
    fill(all, 0, count);
    CHECK(pvm_psend(to, TAG, all, count, PVM_ULONG) == 0);
    free(all);
}

static void receive_plain(int from, unsigned long mebibytes)
{
    unsigned long count = mebibytes * WORDS + 1, *all = malloc((count + 1) * sizeof *all);
    int source, tag, length;
    CHECK(all);
    all[count] = 7;
    CHECK(pvm_precv(from, TAG, all, count + 1, PVM_ULONG, &source, &tag, &length) == 0);
    CHECK(source == from && tag == TAG &&
          length == (mebibytes < 2048 ? (int)(mebibytes << 20) + 8 : INT_MAX));
    verify(all, 0, count);
    CHECK(all[count] == 7);
    free(all);
}

int main(int argc, char **argv)
{
    int *tids, me = pvm_mytid();
    unsigned long mebibytes = argc > 2 ? strtoul(argv[2], 0, 10) : 1;
    int plain = argc > 1 && !strcmp(argv[1], "psend");
    pvm_setopt(PvmAutoErr, 0);
    CHECK(pvm_siblings(&tids) == 2);
    if (me == tids[0]) {
        (plain ? send_plain : send_packed)(tids[1], mebibytes);
        CHECK(pvm_recv(tids[1], TOLD) > 0);
        printf("whole\n");
    } else {
        (plain ? receive_plain : receive_packed)(tids[0], mebibytes);
        pvm_initsend(PvmDataRaw);
        CHECK(pvm_send(tids[0], TOLD) == 0);
    }
    pvm_exit();
    return 0;
}
