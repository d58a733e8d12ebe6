/* Mailboxes, and the older functions for integers. */

#include "check.h"

static int child;

static int put(const char *name, int value, int flags)
{
    pvm_initsend(PvmDataDefault);
    pvm_pkint(&value, 1, 1);
    return pvm_putinfo((char *)name, pvm_getsbuf(), flags);
}

/* Gets an entry's value, or an error. */
static int get(const char *name, int index, int flags)
{
    int value = NOTHING, buffer = pvm_recvinfo((char *)name, index, flags);
    if (buffer < 0)
        return buffer;
    pvm_upkint(&value, 1, 1);
    return value;
}

/* Executes an order. The values that it puts identify the child. */
static int order(const char *what, char *name, int number)
{
    if (!strcmp(what, "put"))
        return put(name, 1000 + number, number);
    if (!strcmp(what, "delete"))
        return pvm_delinfo(name, number, 0);
    if (!strcmp(what, "get"))
        return get(name, 0, number);
    if (!strcmp(what, "get 3"))
        return get(name, 3, number);
    if (!strcmp(what, "insert"))
        return pvm_insert(name, number, 2000 + number);
    if (!strcmp(what, "poll")) {
        int value;
        while ((value = get(name, number, PvmMboxDefault)) == PvmNotFound)
            ;
        return value;
    }
    return NOTHING;
}

/* The number of entries in all matching classes. */
static int entries(const char *pattern)
{
    struct pvmmboxinfo *classes;
    int count = 0, all = 0;
    if (pvm_getmboxinfo((char *)pattern, &count, &classes) < 0)
        return NOTHING;
    for (int class = 0; class < count; class++)
        all += classes[class].mi_nentries;
    return all;
}

static void bad(void)
{
    int value = 0;
    pvm_initsend(PvmDataDefault);
    check("no name to put", pvm_putinfo(0, pvm_getsbuf(), 0), PvmBadParam);
    check("an empty name to put", pvm_putinfo("", pvm_getsbuf(), 0), PvmBadParam);
    check("an empty name to get", pvm_recvinfo("", 0, 0), PvmBadParam);
    check("an index below 0 to get", pvm_recvinfo("t.x", -1, 0), PvmBadParam);
    check("no name to delete", pvm_delinfo(0, 0, 0), PvmBadParam);
    check("an index below 0 to delete", pvm_delinfo("t.x", -1, 0), PvmBadParam);
    check("no name to insert", pvm_insert(0, 0, 1), PvmBadParam);
    check("an index below -1 to insert", pvm_insert("t.x", -2, 1), PvmBadParam);
    check("an index below -1 to look up", pvm_lookup("t.x", -2, &value), PvmBadParam);
    check("an index below 0 to delete, too", pvm_delete("t.x", -1), PvmBadParam);
    check("no entries exist", entries("t.*"), 0);
}

static void own(int me)
{
    int length = 0, tag = -1, source = 0, buffer, value = 0;
    check("an entry is put", put("t.own", 1, PvmMboxDefault), 0);
    check("its owner replaces it", put("t.own", 2, PvmMboxDefault), 0);
    check("its value", get("t.own", 0, PvmMboxDefault), 2);
    check("reading does not remove it", get("t.own", 0, PvmMboxFirstAvail), 2);
    check("no such index", get("t.own", 1, PvmMboxDefault), PvmNotFound);
    check("no entry from an index on", get("t.own", 1, PvmMboxFirstAvail), PvmNotFound);
    check("no such class", get("t.none", 0, PvmMboxDefault), PvmNotFound);
    buffer = pvm_recvinfo("t.own", 0, PvmMboxDefault);
    check("it is the active receive buffer", pvm_getrbuf(), buffer);
    pvm_bufinfo(buffer, &length, &tag, &source);
    check("its length", length, 4);
    check("its tag", tag, 0);
    check("its sender", source, me);
    check("another task cannot replace it", ask(child, "put", "t.own", PvmMboxDefault), PvmDenied);
    check("another task cannot delete it", ask(child, "delete", "t.own", 0), PvmDenied);
    check("another task cannot take it", ask(child, "get", "t.own", PvmMboxReadAndDelete),
          PvmDenied);
    check("another task can read it", ask(child, "get", "t.own", PvmMboxDefault), 2);
    check("its owner takes it", get("t.own", 0, PvmMboxReadAndDelete), 2);
    check("and it is gone", pvm_delinfo("t.own", 0, 0), PvmNotFound);
    pvm_initsend(PvmDataRaw);
    pvm_pkstr("text");
    value = 5;
    pvm_pkint(&value, 1, 1);
    pvm_putinfo("t.own", pvm_getsbuf(), PvmMboxDefault);
    pvm_initsend(PvmDataRaw);
    char text[8] = "";
    pvm_recvinfo("t.own", 0, PvmMboxReadAndDelete);
    check("a string is unpacked", pvm_upkstr(text) == PvmOk && !strcmp(text, "text"), 1);
    check("and a number", pvm_upkint(&value, 1, 1) == PvmOk ? value : NOTHING, 5);
    check("and no more", pvm_upkint(&value, 1, 1), PvmNoData);
    /* A received message can be put, too. */
    pvm_initsend(PvmDataDefault);
    value = 6;
    pvm_pkint(&value, 1, 1);
    pvm_send(me, 44);
    pvm_putinfo("t.own", pvm_recv(me, 44), PvmMboxDefault);
    pvm_bufinfo(pvm_recvinfo("t.own", 0, PvmMboxReadAndDelete), &length, &tag, &source);
    check("its tag is unchanged", tag, 44);
    check("and its contents", pvm_upkint(&value, 1, 1) == PvmOk ? value : NOTHING, 6);
    check("nothing is left", entries("t.*"), 0);
}

/* Data that was packed but not sent is not part of a later message. */
static void unsent(int me, int encoding)
{
    int value = 1;
    pvm_initsend(encoding);
    pvm_pkint(&value, 1, 1);
    value = 2;
    pvm_initsend(encoding);
    pvm_pkint(&value, 1, 1);
    pvm_send(me, 45);
    pvm_recv(me, 45);
    check("the value that was packed last", pvm_upkint(&value, 1, 1) == PvmOk ? value : NOTHING, 2);
    check("is the only one", pvm_upkint(&value, 1, 1), PvmNoData);
}

static void many(void)
{
    struct pvmmboxinfo *classes;
    int count = 0;
    for (int index = 0; index < 4; index++)
        check("a further entry", put("t.many", 10 + index, PvmMboxMultiInstance), index);
    check("the index of a deleted entry", pvm_delinfo("t.many", 1, 0), 1);
    check("the next entry is found", get("t.many", 1, PvmMboxFirstAvail), 12);
    check("another task fills the gap", ask(child, "put", "t.many", PvmMboxMultiInstance), 1);
    check("and adds another entry", ask(child, "put", "t.many", PvmMboxMultiInstance), 4);
    check("the owner replaces the first entry", put("t.many", 20, PvmMboxDefault), 0);
    check("and another task cannot", ask(child, "put", "t.many", PvmMboxDefault), PvmDenied);
    check("an entry at an index", put("t.many", 27, PvmMboxOverWritable | PvmMboxDirectIndex(7)),
          7);
    check("the first free index from there",
          put("t.many", 28, PvmMboxMultiInstance | PvmMboxDirectIndex(7)), 8);
    check("another task replaces it", ask(child, "put", "t.many", PvmMboxDirectIndex(7)), 7);
    check("which the other task owns now", put("t.many", 1, PvmMboxDirectIndex(7)), PvmDenied);
    check("one class", pvm_getmboxinfo("t.many", &count, &classes) == PvmOk ? count : NOTHING, 1);
    if (count == 1) {
        check("its name", strcmp(classes->mi_name, "t.many"), 0);
        check("its entries", classes->mi_nentries, 7);
        check("an index", classes->mi_indices[5], 7);
        check("an owner", classes->mi_owners[5], child);
        check("another owner", classes->mi_owners[6], pvm_mytid());
        check("flags", classes->mi_flags[6], PvmMboxMultiInstance | PvmMboxDirectIndex(7));
        check("no flags", classes->mi_flags[0], 0);
    }
    for (int index = 0; index < 9; index++) {
        pvm_delinfo("t.many", index, 0);
        ask(child, "delete", "t.many", index);
    }
    check("nothing is left", entries("t.*"), 0);
}

static void patterns(void)
{
    put("t.abc", 1, 0);
    put("t.aac", 1, 0);
    put("t.a+c", 1, 0);
    check("all names match", entries("t.*"), 3);
    check("a name", entries("t.abc"), 1);
    check("a part of names", entries("ac"), 1);
    check("any text between", entries("t.*a*c"), 3);
    check("no match", entries("t.*b*b"), 0);
    pvm_delinfo("t.abc", 0, 0);
    pvm_delinfo("t.aac", 0, 0);
    pvm_delinfo("t.a+c", 0, 0);
    check("nothing is left", entries("t.*"), 0);
}

static void waits(void)
{
    tell(child, "poll", "t.wait", 0);
    check("the child polls", hear(child), NOTHING);
    put("t.wait", 3, PvmMboxDefault);
    check("the entry is found", heard(child), 3);
    pvm_delinfo("t.wait", 0, 0);
    tell(child, "get", "t.wait", PvmMboxWaitForInfo);
    check("the child waits", hear(child), NOTHING);
    put("t.wait", 4, PvmMboxMultiInstance | PvmMboxDirectIndex(2));
    check("not for another index", hear(child), NOTHING);
    put("t.wait", 5, PvmMboxDefault);
    check("for this index", heard(child), 5);
    tell(child, "get 3", "t.wait", PvmMboxWaitForInfo | PvmMboxFirstAvail | PvmMboxReadAndDelete);
    check("the child waits for any entry from an index on", hear(child), NOTHING);
    put("t.wait", 6, PvmMboxOverWritable | PvmMboxDirectIndex(5));
    check("it gets the entry", heard(child), 6);
    check("and removes it", get("t.wait", 5, PvmMboxDefault), PvmNotFound);
    check("no wait for an existing entry", ask(child, "get", "t.wait", PvmMboxWaitForInfo), 5);
    check("which the child may not take",
          ask(child, "get", "t.wait", PvmMboxWaitForInfo | PvmMboxReadAndDelete), PvmDenied);
    pvm_delinfo("t.wait", 0, 0);
    pvm_delinfo("t.wait", 2, 0);
    check("nothing is left", entries("t.*"), 0);
}

static void integers(void)
{
    int value = 0;
    check("an integer", pvm_insert("t.int", 5, 77), 5);
    check("an integer is not replaced", pvm_insert("t.int", 5, 78), PvmDupEntry);
    check("at the first place", pvm_insert("t.int", -1, 79), 0);
    check("at the next", pvm_insert("t.int", -1, 80), 1);
    check("an integer is looked up", pvm_lookup("t.int", 5, &value), 5);
    check("its value", value, 77);
    check("the first", pvm_lookup("t.int", -1, &value), 0);
    check("its value", value, 79);
    check("no match", pvm_lookup("t.int", 3, &value), PvmNoEntry);
    check("a lookup without a value", pvm_lookup("t.int", 1, 0), 1);
    check("it is also a mailbox entry", get("t.int", 1, PvmMboxDefault), 80);
    check("the child's integer", ask(child, "insert", "t.int", 9), 9);
    check("another task cannot delete it", pvm_delete("t.int", 9), PvmDenied);
    check("the child can", ask(child, "delete", "t.int", 9), 9);
    check("an integer is deleted", pvm_delete("t.int", 5), 5);
    check("but not twice", pvm_delete("t.int", 5), PvmNoEntry);
    pvm_delete("t.int", 0);
    pvm_delete("t.int", 1);
    check("nothing is left", entries("t.*"), 0);
}

static void ends(void)
{
    struct pvmmboxinfo *classes;
    int count = 0;
    check("an entry that goes", ask(child, "put", "t.goes", PvmMboxDefault), 0);
    check("a persistent entry for others",
          ask(child, "put", "t.stays", PvmMboxPersistent | PvmMboxOverWritable), 0);
    tell(child, "end", "", 0);
    while (entries("t.goes"))
        ;
    check("the persistent entry remains",
          pvm_getmboxinfo("t.stays", &count, &classes) == PvmOk ? count : NOTHING, 1);
    check("without an owner", classes->mi_owners[0], 0);
    check("and can be read", get("t.stays", 0, PvmMboxDefault), 1005);
    check("and be taken", get("t.stays", 0, PvmMboxReadAndDelete), 1005);
    check("nothing is left", entries("t.*"), 0);
}

int main(int count, char **args)
{
    (void)count;
    int me = pvm_mytid();
    if (pvm_parent() > 0)
        obey(order);
    begin(args[0], 1, &child);
    bad();
    own(me);
    unsent(me, PvmDataRaw);
    unsent(me, PvmDataTrace);
    many();
    patterns();
    waits();
    integers();
    ends();
    return finish(0, 0);
}
