/* Changes of the active buffers, messages in messages, and formats: a line for each check, the same
 * under any PVM. */
#include <stdio.h>
#include <string.h>
#include "pvm3.h"

static int me;
static const char *const names[] = {"default", "raw", "in place"};

#define CHECK(what) printf("  %s = %d\n", #what, (int)(what))

static int length(int buffer)
{
    int bytes = -1;
    pvm_bufinfo(buffer, &bytes, 0, 0);
    return bytes;
}

/* Sends the send buffer to this task, and receives it. */
static void bounce(void)
{
    pvm_send(me, 1);
    pvm_recv(me, 1);
}

static int next(void)
{
    int number = -99;
    int code = pvm_upkint(&number, 1, 1);
    return code < 0 ? code : number;
}

static int fresh(int encoding, int count)
{
    int numbers[] = {1, 2, 3, 4};
    int buffer = pvm_mkbuf(encoding);
    int old = pvm_setsbuf(buffer);
    pvm_pkint(numbers, count, 1);
    pvm_setsbuf(old);
    return buffer;
}

/* Which buffer is active, and where reading it continues. */
static void dances(int encoding)
{
    printf("dances, %s:\n", names[encoding]);
    int one = fresh(encoding, 4), other = fresh(encoding, 2);
    pvm_setsbuf(one);
    CHECK(pvm_setsbuf(one) == one);
    CHECK(pvm_setsbuf(other) == one);
    CHECK(pvm_getsbuf() == other);
    CHECK(length(one));
    CHECK(length(other));
    bounce();
    CHECK(length(pvm_getrbuf()));
    CHECK(next());
    CHECK(pvm_freebuf(one));
    CHECK(pvm_bufinfo(one, 0, 0, 0));
    CHECK(pvm_freebuf(one));
    CHECK(pvm_freebuf(other));
    CHECK(pvm_getsbuf());
    int got = pvm_getrbuf();
    CHECK(next());
    CHECK(next());
    CHECK(pvm_freebuf(got));
    CHECK(pvm_getrbuf());
    CHECK(next());

    printf(" a buffer is active in one direction:\n");
    one = fresh(encoding, 4);
    CHECK(pvm_setsbuf(one));
    CHECK(pvm_setrbuf(one));
    CHECK(pvm_getsbuf());
    CHECK(pvm_getrbuf() == one);
    CHECK(next());
    CHECK(next());
    CHECK(pvm_setrbuf(one) == one);
    CHECK(next());
    CHECK(pvm_setrbuf(0) == one);
    CHECK(pvm_setrbuf(one));
    CHECK(next());
    CHECK(next());
    CHECK(pvm_setsbuf(one));
    CHECK(pvm_getrbuf());
    CHECK(pvm_setrbuf(one));
    CHECK(next());
    CHECK(pvm_freebuf(one));

    printf(" what is received goes on:\n");
    one = fresh(encoding, 4);
    pvm_setsbuf(one);
    bounce();
    got = pvm_getrbuf();
    CHECK(next());
    CHECK(pvm_setsbuf(got) == one);
    CHECK(pvm_getrbuf());
    bounce();
    CHECK(pvm_getrbuf() != got);
    CHECK(length(pvm_getrbuf()));
    CHECK(next());
    CHECK(pvm_freebuf(got));
    CHECK(pvm_getsbuf());
    CHECK(pvm_freebuf(one));

    printf(" what is received is kept:\n");
    pvm_initsend(encoding);
    pvm_pkint(&me, 1, 1);
    pvm_send(me, 1);
    pvm_pkint(&me, 1, 1);
    pvm_send(me, 2);
    one = pvm_recv(me, 1);
    CHECK(pvm_setrbuf(0) == one);
    other = pvm_recv(me, 2);
    CHECK(one != other);
    CHECK(length(one));
    CHECK(length(other));
    CHECK(pvm_setrbuf(one) == other);
    CHECK(pvm_upkint(&got, 1, 1));
    CHECK(got == me);
    CHECK(pvm_freebuf(other));
    CHECK(pvm_freebuf(one));

    printf(" a new message:\n");
    CHECK(pvm_initsend(encoding) > 0);
    CHECK(length(pvm_getsbuf()));
    one = pvm_getsbuf();
    pvm_pkint(&me, 1, 1);
    CHECK(pvm_setsbuf(0) == one);
    CHECK(pvm_initsend(encoding) != one);
    CHECK(length(one));
    CHECK(pvm_freebuf(one));
    CHECK(pvm_initsend(9));
    CHECK(pvm_getsbuf() > 0);
    CHECK(pvm_freebuf(pvm_getsbuf()));
}

static void headers(const char *of, int buffer)
{
    struct pvmminfo info;
    int code = pvm_getminfo(buffer, &info);
    printf("  %s: %d: length %d, context %d, tag %d, wait %d, encoding %x, crc %d, "
           "from %s, to %s\n",
           of, code, info.len, info.ctx, info.tag, info.wid, info.enc, info.crc,
           info.src == me ? "me" : info.src ? "another" : "nobody",
           info.dst == me ? "me" : info.dst ? "another" : "nobody");
}

static void messages(int encoding, int within)
{
    printf("messages, %s within %s:\n", names[encoding], names[within]);
    struct pvmminfo info;
    char bytes[8] = "abcdefg", got[12];
    int inner = pvm_mkbuf(encoding), number = 11;
    headers("fresh", inner);
    pvm_setsbuf(inner);
    pvm_pkbyte(bytes, 7, 1);
    pvm_getminfo(inner, &info);
    info.len = 1, info.ctx = 4, info.tag = 3, info.wid = 5, info.enc = 6, info.crc = 7,
        info.src = 8, info.dst = 9;
    CHECK(pvm_setminfo(inner, &info));
    headers("set", inner);
    pvm_setsbuf(0);
    CHECK(pvm_pkmesg(inner));
    CHECK(pvm_pkmesgbody(inner));
    int outer = pvm_mkbuf(within);
    pvm_setsbuf(outer);
    pvm_pkint(&number, 1, 1);
    CHECK(pvm_pkmesg(outer));
    CHECK(pvm_pkmesg(inner));
    CHECK(length(outer));
    CHECK(pvm_pkmesgbody(inner));
    CHECK(length(outer));
    bounce();
    headers("outer", pvm_getrbuf());
    CHECK(next());
    int unpacked = pvm_upkmesg();
    CHECK(unpacked > 0 && unpacked != pvm_getrbuf());
    headers("unpacked", unpacked);
    int received = pvm_setrbuf(unpacked);
    memset(got, '#', sizeof got);
    CHECK(pvm_upkbyte(got, 7, 1));
    printf("  %.12s\n", got);
    CHECK(pvm_upkbyte(got, 7, 1));
    CHECK(pvm_setrbuf(received) == unpacked);
    if (encoding == within) {
        memset(got, '#', sizeof got);
        CHECK(pvm_upkbyte(got, 7, 1));
        printf("  %.12s\n", got);
    }
    CHECK(pvm_upkmesg());
    /* An unpacked message is like any other. */
    pvm_setsbuf(unpacked);
    bounce();
    headers("sent on", pvm_getrbuf());
    CHECK(pvm_freebuf(unpacked));
    CHECK(pvm_freebuf(inner));
    CHECK(pvm_freebuf(outer));

    /* A packed message is the header and the length, as integers, and the body. */
    pvm_initsend(encoding);
    pvm_pkint(&number, 1, 1);
    bounce();
    pvm_initsend(within);
    CHECK(pvm_pkmesg(pvm_getrbuf()));
    CHECK(next());
    bounce();
    for (int word = 0; word < (encoding == within ? 11 : 9); word++) {
        int value = next();
        printf("  %x\n", value == me ? 0 : value);
    }
}

static void formats(int encoding)
{
    int numbers[] = {1, 2, 3, 4, 5, 6, 7, 8}, more[8] = {0}, number = 0;
    float complexes[] = {1.5f, -2.5f, 3.5f, 4.5f};
    double doubles[] = {0.5, 1.5, 2.5, 3.5};
    printf("formats, %s:\n", names[encoding]);
#define PACK(...)                                            \
    pvm_initsend(encoding), number = pvm_packf(__VA_ARGS__); \
    printf("  (%s) = %d, %d bytes\n", #__VA_ARGS__, number, length(pvm_getsbuf()))
    PACK("");
    PACK("nothing");
    PACK("%d", 5);
    PACK("%d %d,%d\n%d x", 1, 2, 3, 4);
    PACK("%hd", 5);
    PACK("%ud %uhd %hud", 5, 6, 7);
    PACK("%f%lf", 1.5, 1.5);
    PACK("%hf %uf", 1.5, 1.5);
    PACK("%c", 'a');
    PACK("%hc %lc %uc", 'a', 'b', 'c');
    PACK("%3c", "abc");
    PACK("%s", "hello");
    PACK("%2s %ls", "hello", "hello");
    PACK("%x", complexes);
    PACK("%2x %lx %.2lx", complexes, doubles, doubles);
    PACK("%0d", numbers);
    PACK("%1d", numbers);
    PACK("%4d", numbers);
    PACK("%12hd", numbers);
    PACK("%.2d", numbers);
    PACK("%*d", 3, numbers);
    PACK("%.*d", 2, numbers);
    PACK("%3.2d", numbers);
    PACK("%*.*d", 3, 2, numbers);
    PACK("%hhd", 1);
    PACK("%");
    PACK("%%");
    PACK("%q", 1);
    PACK("%i", 1);
    PACK("%n", 1);
    PACK("%u", 1);
    PACK("%h", 1);
    PACK("%3", 1);
    PACK("%-1d", numbers);
    PACK("%d %q %d", 1, 2, 3);
    PACK("%+ %d", encoding, 1);
    PACK("%+%d", encoding, 1);
    PACK(" %+", 1);
    PACK("%d%+", 1, 2);
    PACK("%+ %d", 7, 1);
    if (encoding == PvmDataRaw) {
        PACK("%ld %uld %lud", 1l, 2ul, 3ul);
        PACK("%lld %hld %lhd", 1l, 2l, 3l);
    }

    int whole = 0;
    short half = 0;
    long large = 0;
    char byte = 0, text[20] = "", three[4] = "";
    float real = 0, complex[4] = {0};
    double precise = 0, precises[4] = {0};
    unsigned positive = 0;
    unsigned short positive_half = 0;
    unsigned long positive_large = 0;
    pvm_packf("%+ %d %hd %ld %c %f %lf %s %ud %uhd %uld", encoding, -5, -6, 7l, 'z', 1.5, -2.5,
              "text", 7u, 8, 9ul);
    bounce();
    CHECK(pvm_unpackf("%d %hd %ld %c %f %lf %s %ud %uhd %uld", &whole, &half, &large, &byte, &real,
                      &precise, text, &positive, &positive_half, &positive_large));
    printf("  %d %d %ld %c %f %f %s %u %u %lu\n", whole, half, large, byte, real, precise, text,
           positive, positive_half, positive_large);
    CHECK(pvm_unpackf("%d", &whole));
    pvm_packf("%+ %*.*d %3c %x %2lx %2.d %1.0d", encoding, 3, 2, numbers, "abc", complexes, doubles,
              numbers + 4, numbers + 6);
    bounce();
    CHECK(pvm_unpackf("%*.2d %3c", 3, more, three));
    printf("  %d %d %d %d %d %d %s\n", more[0], more[1], more[2], more[3], more[4], more[5], three);
    CHECK(pvm_unpackf("%x%2lx", complex, precises));
    printf("  %f %f %f %f %f %f\n", complex[0], complex[1], precises[0], precises[1], precises[2],
           precises[3]);
    CHECK(pvm_unpackf("%2d %d", more, more + 2));
    printf("  %d %d %d\n", more[0], more[1], more[2]);
    CHECK(pvm_unpackf(""));
    CHECK(pvm_unpackf("%q", more));
    CHECK(pvm_unpackf("%+", 1));
    CHECK(pvm_unpackf("%d", more));
    pvm_packf("%+ %2d", encoding, numbers);
    bounce();
    CHECK(pvm_unpackf("%d %q", &whole));
    CHECK(pvm_unpackf("%3d", more));
    printf("  %d %d %d\n", whole, more[0], more[1]);
}

int main(void)
{
    setvbuf(stdout, 0, _IOLBF, 0);
    me = pvm_mytid();
    for (int encoding = PvmDataDefault; encoding <= PvmDataRaw; encoding++) {
        dances(encoding);
        messages(encoding, PvmDataDefault);
        messages(encoding, PvmDataRaw);
        formats(encoding);
    }
    pvm_exit();
    return 0;
}
