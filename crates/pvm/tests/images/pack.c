/* Packs and unpacks items of all types, in messages to itself: a line for each check, the same
 * under any PVM. */
#include <stdio.h>
#include <string.h>
#include "pvm3.h"

extern int pvm_errno;

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

static void show(const void *bytes, int count)
{
    printf("  ");
    for (int byte = 0; byte < count; byte++)
        printf("%02x", ((const unsigned char *)bytes)[byte]);
    printf("\n");
}

/* A function's suffix, its argument's type, and the number of those per item. */
#define TYPES(X)                 \
    X(byte, char, 1)             \
    X(short, short, 1)           \
    X(ushort, unsigned short, 1) \
    X(int, int, 1)               \
    X(uint, unsigned, 1)         \
    X(long, long, 1)             \
    X(ulong, unsigned long, 1)   \
    X(float, float, 1)           \
    X(double, double, 1)         \
    X(cplx, float, 2)            \
    X(dcplx, double, 2)

/* The original PVM packs a long into fewer bytes in XDR, so the values are small, and the length is
 * not printed. */
#define FUNCTION(name, type, parts)                                                            \
    static void try_##name(int encoding, int count, int stride)                                \
    {                                                                                          \
        type from[80], to[80], wanted[80];                                                     \
        int first = stride < 0 ? 40 : 0;                                                       \
        for (int at = 0; at < 80; at++)                                                        \
            from[at] = (type)(at * 37 + 5), to[at] = wanted[at] = (type)99;                    \
        for (int item = 0; item < count; item++)                                               \
            for (int at = first + item * stride * parts, part = 0; part < parts; part++, at++) \
                wanted[at] = from[at];                                                         \
        pvm_initsend(encoding);                                                                \
        int packed = pvm_pk##name(from + first, count, stride);                                \
        printf("  %s %d by %d = %d", #name, count, stride, packed);                            \
        if (packed == PvmOk) {                                                                 \
            bounce();                                                                          \
            printf(", %d", pvm_upk##name(to + first, count, stride));                          \
            if (encoding != PvmDataDefault || !strstr(#name, "long"))                          \
                printf(", %d bytes", length(pvm_getrbuf()));                                   \
            printf(memcmp(to, wanted, sizeof to) ? ", WRONG" : ", right");                     \
        }                                                                                      \
        printf("\n");                                                                          \
    }
TYPES(FUNCTION)

static void types(void)
{
    static const int counts[][2] = {{0, 1}, {1, 1},  {3, 1}, {20, 1}, {1, 2},  {3, 2},
                                    {5, 3}, {2, 0}, {3, -1}, {0, 2}, {-1, 1}, {-1, 2}};
    for (int encoding = PvmDataDefault; encoding <= PvmDataInPlace; encoding++) {
        printf("types, %s:\n", names[encoding]);
        for (unsigned one = 0; one < sizeof counts / sizeof *counts; one++) {
#define TRY(name, type, parts) try_##name(encoding, counts[one][0], counts[one][1]);
            TYPES(TRY)
        }
    }
}

static void values(void)
{
    printf("values:\n");
    short shorts[] = {-1, -32768, 32767}, halves[4];
    unsigned short unsigneds[] = {65535, 32768, 1};
    int wholes[] = {70000, -5, 65535, 40000}, got[6];
    pvm_initsend(PvmDataDefault);
    pvm_pkshort(shorts, 3, 1);
    bounce();
    CHECK(pvm_upkint(got, 3, 1));
    printf("  %d %d %d\n", got[0], got[1], got[2]);
    pvm_initsend(PvmDataDefault);
    pvm_pkushort(unsigneds, 3, 1);
    bounce();
    CHECK(pvm_upkushort((unsigned short *)halves, 3, 1));
    printf("  %d %d %d\n", (unsigned short)halves[0], (unsigned short)halves[1],
           (unsigned short)halves[2]);
    pvm_initsend(PvmDataDefault);
    pvm_pkint(wholes, 4, 1);
    bounce();
    CHECK(pvm_upkshort(halves, 4, 1));
    printf("  %d %d %d %d\n", halves[0], halves[1], halves[2], halves[3]);
    long large[] = {1l << 40, -1, -(1l << 50)}, same[3] = {0};
    pvm_initsend(PvmDataRaw);
    pvm_pklong(large, 3, 1);
    bounce();
    CHECK(pvm_upklong(same, 3, 1));
    printf("  %ld %ld %ld\n", same[0], same[1], same[2]);
    double doubles[] = {1.0 / 3, -0.0, 1e300}, twice[3];
    pvm_initsend(PvmDataDefault);
    pvm_pkdouble(doubles, 3, 1);
    bounce();
    CHECK(pvm_upkdouble(twice, 3, 1));
    printf("  %a %a %a\n", twice[0], twice[1], twice[2]);
}

static void strings(int encoding)
{
    static char text[] = "a longer text, for a string";
    char got[64];
    int number = 7, bad;
    printf("strings, %s:\n", names[encoding]);
    pvm_initsend(encoding);
    CHECK(pvm_pkstr(""));
    CHECK(length(pvm_getsbuf()));
    CHECK(pvm_pkstr("abc"));
    CHECK(length(pvm_getsbuf()));
    CHECK(pvm_pkstr("abcd"));
    CHECK(length(pvm_getsbuf()));
    CHECK(pvm_pkstr(text));
    CHECK(length(pvm_getsbuf()));
    pvm_pkint(&number, 1, 1);
    if (encoding == PvmDataInPlace)
        return;
    bounce();
    for (int one = 0; one < 4; one++) {
        memset(got, '#', sizeof got);
        CHECK(pvm_upkstr(got));
        printf("  \"%s\" %c\n", got, got[strlen(got) + 1]);
    }
    number = 0;
    CHECK(pvm_upkint(&number, 1, 1));
    CHECK(number);
    CHECK(pvm_upkstr(got));
    static const int lengths[] = {100, 0, -1, 5};
    for (int one = 0; one < 4; one++) {
        pvm_initsend(encoding);
        bad = lengths[one];
        pvm_pkint(&bad, 1, 1);
        pvm_pkbyte(text, 12, 1);
        bounce();
        memset(got, '#', sizeof got);
        printf("  a string of %d bytes:\n", bad);
        CHECK(pvm_upkstr(got));
        show(got, 16);
        CHECK(pvm_upkbyte(got, 1, 1));
        show(got, 1);
    }
    /* A length is packed as an integer. */
    pvm_initsend(encoding);
    pvm_pkstr("abc");
    bounce();
    CHECK(pvm_upkint(&number, 1, 1));
    CHECK(number);
    CHECK(pvm_upkbyte(got, 4, 1));
    show(got, 4);
}

/* Unpacks more than the message has. */
static void ends(int encoding)
{
    int words[6] = {0x04030201, 0x08070605, 0x0c0b0a09, 0x100f0e0d, 0x14131211, 0x18171615},
        got[16];
#define END(name, count, stride, packed)                                        \
    pvm_initsend(encoding), pvm_pkint(words, packed, 1), bounce();              \
    memset(got, 0xaa, sizeof got);                                              \
    printf("  %s %d by %d of %d words = %d\n", #name, count, stride, packed,    \
           pvm_upk##name((void *)got, count, stride));                          \
    show(got, sizeof got);                                                      \
    CHECK(pvm_upkint(got, 1, 1))
    printf("ends, %s:\n", names[encoding]);
    END(int, 3, 1, 2);
    END(int, 3, 2, 2);
    END(int, 1, 1, 0);
    END(int, 0, 1, 0);
    END(uint, 5, 1, 2);
    END(float, 4, 2, 3);
    END(cplx, 3, 1, 4);
    END(short, 9, 1, 2);
    END(short, 3, 2, 1);
    END(ushort, 4, 1, 1);
    if (encoding == PvmDataRaw) {
        END(long, 2, 1, 3);
        END(double, 2, 2, 3);
        END(dcplx, 2, 1, 6);
        END(byte, 12, 1, 2);
        END(byte, 12, 2, 2);
    }
    /* Unpacks bytes in other pieces than they were packed in. */
    char bytes[8] = "abcdefg", some[8] = "";
    pvm_initsend(encoding);
    pvm_pkbyte(bytes, 3, 1);
    pvm_pkbyte(bytes + 3, 2, 1);
    bounce();
    CHECK(length(pvm_getrbuf()));
    CHECK(pvm_upkbyte(some, 2, 1));
    show(some, 2);
    CHECK(pvm_upkbyte(some, 2, 1));
    show(some, 2);
    CHECK(pvm_upkbyte(some, 2, 1));
    pvm_initsend(encoding);
    pvm_pkbyte(bytes, 7, 1);
    bounce();
    memset(some, '#', sizeof some);
    CHECK(pvm_upkbyte(some, 3, 2));
    show(some, 8);
}

/* Data in place is copied each time that it is sent. */
static void in_place(void)
{
    int number = 1, got;
    printf("in place:\n");
    pvm_initsend(PvmDataInPlace);
    pvm_pkint(&number, 1, 1);
    CHECK(length(pvm_getsbuf()));
    number = 2;
    bounce();
    CHECK(pvm_upkint(&got, 1, 1));
    CHECK(got);
    number = 3;
    bounce();
    CHECK(pvm_upkint(&got, 1, 1));
    CHECK(got);
    char bytes[20];
    memset(bytes, 'x', sizeof bytes);
    pvm_initsend(PvmDataInPlace);
    for (int one = 0; one < 20; one++)
        pvm_pkbyte(bytes + one, 1, 1);
    bounce();
    CHECK(length(pvm_getrbuf()));
    memset(bytes, 0, sizeof bytes);
    CHECK(pvm_upkbyte(bytes, 20, 1));
    CHECK(bytes[0] == 'x' && bytes[19] == 'x');
}

static void no_buffers(void)
{
    int number = 0;
    char text[8];
    printf("no buffers:\n");
    CHECK(pvm_getsbuf());
    CHECK(pvm_getrbuf());
    CHECK(pvm_pkint(&number, 1, 1));
    CHECK(pvm_pkint(&number, 0, 1));
    CHECK(pvm_pkint(&number, -1, 1));
    CHECK(pvm_pkbyte(text, 1, 2));
    CHECK(pvm_pkstr("text"));
    CHECK(pvm_packf("%d", 1));
    CHECK(pvm_upkint(&number, 1, 1));
    CHECK(pvm_upkint(&number, -1, 1));
    CHECK(pvm_upkstr(text));
    CHECK(pvm_unpackf("%d", &number));
    CHECK(pvm_upkmesg());
    CHECK(pvm_pkmesg(0));
    CHECK(pvm_pkmesg(999));
    CHECK(pvm_pkmesgbody(-1));
    CHECK(pvm_setsbuf(0));
    CHECK(pvm_setsbuf(-1));
    CHECK(pvm_setsbuf(999));
    CHECK(pvm_setrbuf(0));
    CHECK(pvm_setrbuf(-1));
    CHECK(pvm_setrbuf(999));
    CHECK(pvm_freebuf(0));
    CHECK(pvm_freebuf(-1));
    CHECK(pvm_freebuf(999));
    CHECK(pvm_bufinfo(0, 0, 0, 0));
    CHECK(pvm_bufinfo(-1, 0, 0, 0));
    CHECK(pvm_bufinfo(999, 0, 0, 0));
    struct pvmminfo info;
    CHECK(pvm_getminfo(0, &info));
    CHECK(pvm_getminfo(999, &info));
    CHECK(pvm_setminfo(0, &info));
    CHECK(pvm_setminfo(999, &info));
    CHECK(pvm_mkbuf(-1));
    CHECK(pvm_mkbuf(3));
    CHECK(pvm_mkbuf(5));
    CHECK(pvm_initsend(7));
    CHECK(pvm_getsbuf());
}

static void errors(void)
{
    int number;
    printf("errors:\n");
    CHECK(pvm_setopt(PvmAutoErr, 0));
    CHECK(pvm_upkint(&number, -1, 1));
    CHECK(pvm_errno);
    CHECK(pvm_pkmesg(0));
    CHECK(pvm_pkmesg(999));
    CHECK(pvm_errno);
    CHECK(pvm_setsbuf(999));
    CHECK(pvm_errno);
    CHECK(pvm_initsend(PvmDataRaw) > 0);
    CHECK(pvm_errno);
    CHECK(pvm_setopt(PvmAutoErr, 1));
    CHECK(pvm_perror("said"));
    CHECK(pvm_perror(""));
    for (int code = 0; code < 40; code++) {
        pvm_errno = -code;
        printf("  %d: %s\n", code, pvm_strerror());
        pvm_perror("code");
    }
    pvm_errno = 1;
    printf("  %s\n", pvm_strerror());
    pvm_errno = -1000;
    printf("  %s\n", pvm_strerror());
}

int main(void)
{
    setvbuf(stdout, 0, _IOLBF, 0);
    me = pvm_mytid();
    no_buffers();
    types();
    values();
    for (int encoding = PvmDataDefault; encoding <= PvmDataInPlace; encoding++)
        strings(encoding);
    in_place();
    ends(PvmDataDefault);
    ends(PvmDataRaw);
    errors();
    pvm_exit();
    return 0;
}
