/* Messages that were probed, and are then freed, unpacked, packed into or sent before any receive
 * takes them; and the buffers of handlers. A task alone sends to itself. */
#include "check.h"

static int me;

/* Sends a number with a tag, and waits until the message has arrived. */
static void sent(int tag, int number)
{
    pvm_initsend(PvmDataRaw);
    pvm_pkint(&number, 1, 1);
    pvm_send(me, tag);
    pvm_initsend(PvmDataRaw);
    pvm_send(me, 99);
    pvm_recv(me, 99);
    pvm_freebuf(pvm_getrbuf());
}

static int next(void)
{
    int number = NOTHING, code = pvm_upkint(&number, 1, 1);
    return code < 0 ? code : number;
}

/* The number in the next message with this tag. 0: no such message is here. */
static int taken(int tag)
{
    int code = pvm_nrecv(-1, tag);
    return code <= 0 ? code : next();
}

static int length(int buffer)
{
    int bytes, code = pvm_bufinfo(buffer, &bytes, 0, 0);
    return code < 0 ? code : bytes;
}

static int probed(int tag, int number)
{
    sent(tag, number);
    return pvm_probe(-1, tag);
}

static void begin_case(const char *what)
{
    printf("%s:\n", what);
    while (pvm_nrecv(-1, -1) > 0)
        ;
    pvm_freebuf(pvm_getrbuf());
}

static void frees(void)
{
    begin_case("a probed message is freed");
    int one = probed(1, 11);
    sent(2, 22);
    sent(1, 12);
    check("probed twice", pvm_probe(-1, 1) == one, 1);
    check("freed", pvm_freebuf(one), 0);
    check("freed again", pvm_freebuf(one), PvmNoSuchBuf);
    int new = pvm_mkbuf(PvmDataRaw);
    check("probed afterwards", pvm_probe(-1, 1) != new, 1);
    check("the next with its tag", taken(1), 12);
    check("no other", taken(1), 0);
    check("another tag", taken(2), 22);
    check("the last one", pvm_freebuf(probed(3, 33)), 0);
    sent(4, 44);
    check("one that came later", taken(-1), 44);
    check("none", taken(-1), 0);
    pvm_freebuf(new);
}

static void unpacks(void)
{
    begin_case("a probed message is unpacked");
    int one = probed(1, 11);
    check("active", pvm_setrbuf(one), 0);
    check("unpacked", next(), 11);
    sent(2, 22);
    one = probed(1, 13);
    pvm_setrbuf(one);
    check("another is received", taken(2), 22);
    check("the probed one does not come", taken(-1), 0);
    one = probed(1, 14);
    pvm_setrbuf(one);
    check("none is received", pvm_nrecv(-1, 7), 0);
    check("the probed one is gone", length(one), PvmNoSuchBuf);
    check("and does not come", taken(1), 0);
    one = probed(1, 15);
    pvm_setrbuf(one);
    int number = 0, count = 0;
    check("received into a variable",
          pvm_precv(-1, 1, &number, 1, PVM_INT, 0, 0, &count), 0);
    check("its number", number, 15);
    check("its length", count, sizeof number);
    check("no buffer is active", pvm_getrbuf(), 0);
    check("the probed one is gone", length(one), PvmNoSuchBuf);
}

static void packs(void)
{
    begin_case("a probed message is active for sending");
    int one = probed(1, 11), more = 12;
    pvm_setsbuf(one);
    check("more is packed", pvm_pkint(&more, 1, 1), 0);
    check("received", pvm_recv(-1, 1) == one, 1);
    check("active in one direction", pvm_getsbuf(), 0);
    check("the first", next(), 11);
    check("the second", next(), 12);
    one = probed(1, 13);
    pvm_setsbuf(one);
    check("a message is begun", pvm_initsend(PvmDataRaw) > 0, 1);
    check("the probed one is gone", taken(-1), 0);
    sent(3, 33);
    check("what is sent has come", taken(-1), 33);
    one = probed(1, 14);
    struct pvmminfo info;
    pvm_getminfo(one, &info);
    info.tag = 5;
    check("its tag is changed", pvm_setminfo(one, &info), 0);
    check("it has not the old one", taken(1), 0);
    check("it has the new one", taken(5), 14);
    check("none", taken(-1), 0);
}

/* Ranks messages by their tags: tag 1 ends the search, others count by their number. */
static int ranks(int buffer, int from, int tag)
{
    int its;
    pvm_bufinfo(buffer, 0, &its, 0);
    return from == -1 && tag == 7 ? its : 0;
}

static void matches(void)
{
    begin_case("a function of the program's matches");
    sent(3, 33);
    sent(5, 55);
    sent(4, 44);
    sent(1, 11);
    sent(6, 66);
    pvm_recvf(ranks);
    check("one that ends the search", taken(7), 11);
    check("the highest", taken(7), 66);
    check("the next", taken(7), 55);
    check("the next", taken(7), 44);
    check("none", taken(8), 0);
    pvm_recvf(0);
    check("without the function", taken(-1), 33);
}

static int kept, within;

static int keeps(int buffer)
{
    kept = pvm_setrbuf(0);
    return buffer;
}

static int replaces(int buffer)
{
    int number = 77;
    pvm_freebuf(buffer);
    kept = pvm_mkbuf(PvmDataRaw);
    pvm_setsbuf(kept);
    pvm_pkint(&number, 1, 1);
    pvm_setsbuf(0);
    return 0;
}

static int receives(int buffer)
{
    kept = pvm_recv(-1, 1);
    pvm_setrbuf(0);
    return buffer;
}

static int frees_another(int buffer)
{
    within = pvm_freebuf(pvm_probe(-1, 1));
    return buffer;
}

static int leaves(int buffer)
{
    kept = pvm_initsend(PvmDataRaw);
    return buffer;
}

static void handles(int (*function)(int))
{
    int handler = pvm_addmhf(-1, 50, -1, function);
    sent(50, 5);
    pvm_delmhf(handler);
}

static int unpacked(int buffer)
{
    pvm_setrbuf(buffer);
    int number = next();
    pvm_freebuf(buffer);
    return number;
}

static void handlers(void)
{
    begin_case("buffers of handlers");
    handles(keeps);
    check("a message that was made inactive stays", unpacked(kept), 5);
    handles(replaces);
    check("a new buffer stays", unpacked(kept), 77);
    sent(1, 11);
    handles(receives);
    check("a message that was received stays", unpacked(kept), 11);
    sent(1, 12);
    handles(frees_another);
    check("another message is freed", within, 0);
    check("and does not come", taken(-1), 0);
    handles(leaves);
    check("a buffer that is left active is freed", length(kept), PvmNoSuchBuf);
}

int main(int argc, char **argv)
{
    me = pvm_mytid();
    pvm_setopt(PvmAutoErr, 0);
    frees();
    unpacks();
    packs();
    matches();
    /* The original PVM sometimes crashes after a handler that frees or receives messages. */
    if (argc < 2 || strcmp(argv[1], "no-handlers"))
        handlers();
    return finish(0, 0);
}
