/* Contexts: who owns them, who inherits them, and what is received in them. */

#include "check.h"

static int child;

static int order(const char *what, char *name, int number)
{
    (void)name;
    if (!strcmp(what, "which"))
        return pvm_getcontext();
    if (!strcmp(what, "new"))
        return pvm_newcontext();
    if (!strcmp(what, "free"))
        return pvm_freecontext(number);
    return NOTHING;
}

static void put(int tag)
{
    int value = pvm_getcontext();
    pvm_initsend(PvmDataDefault);
    pvm_pkint(&value, 1, 1);
    pvm_send(pvm_mytid(), tag);
}

/* Receives a message with this tag. Returns its content: the context in which it was sent. */
static int take(int tag)
{
    struct timeval within = {0, 300000};
    int value = NOTHING;
    if (pvm_trecv(-1, tag, &within) > 0)
        pvm_upkint(&value, 1, 1);
    return value;
}

int main(int count, char **args)
{
    (void)count;
    pvm_mytid();
    if (pvm_parent() > 0)
        obey(order);
    check("the first is 0", pvm_getcontext(), 0);
    int one = pvm_newcontext(), other = pvm_newcontext();
    check("there are others", one > 0 && other > 0 && one != other, 1);
    check("nothing has changed yet", pvm_getcontext(), 0);
    check("it changes", pvm_setcontext(one), 0);
    check("it has", pvm_getcontext(), one);
    begin(args[0], 1, &child);
    check("who is spawned inherits it", ask(child, "which", "", 0), one);
    put(1);
    check("it changes again", pvm_setcontext(other), one);
    put(1);
    pvm_setcontext(0);
    check("nothing comes here", take(-1), NOTHING);
    pvm_setcontext(other);
    check("one comes there", take(-1), other);
    check("and no other", take(-1), NOTHING);
    pvm_setcontext(one);
    check("and one there", take(1), one);
    int its = ask(child, "new", "", 0);
    check("another's is another one", its > 0 && its != one && its != other, 1);
    check("another does not free it", ask(child, "free", "", one), PvmNotFound);
    check("nor this one the other's", pvm_freecontext(its), PvmNotFound);
    check("it is freed", pvm_freecontext(one), PvmOk);
    check("and not again", pvm_freecontext(one), PvmNotFound);
    check("there is no such", pvm_freecontext(123456789), PvmNotFound);
    check("a new one is none of these", pvm_newcontext() != other, 1);
    check("it frees its own", ask(child, "free", "", its), PvmOk);
    return finish(1, &child);
}
