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
    check("the initial context is 0", pvm_getcontext(), 0);
    int one = pvm_newcontext(), other = pvm_newcontext();
    check("new contexts differ", one > 0 && other > 0 && one != other, 1);
    check("the current context is unchanged", pvm_getcontext(), 0);
    check("the context is set", pvm_setcontext(one), 0);
    check("the current context is the new one", pvm_getcontext(), one);
    begin(args[0], 1, &child);
    check("a spawned task inherits it", ask(child, "which", "", 0), one);
    put(1);
    check("the context is set again", pvm_setcontext(other), one);
    put(1);
    pvm_setcontext(0);
    check("nothing arrives in the initial context", take(-1), NOTHING);
    pvm_setcontext(other);
    check("one message arrives in the other context", take(-1), other);
    check("and no second one", take(-1), NOTHING);
    pvm_setcontext(one);
    check("and one in the first context", take(1), one);
    int its = ask(child, "new", "", 0);
    check("another task's context is a different one", its > 0 && its != one && its != other, 1);
    check("another task cannot free it", ask(child, "free", "", one), PvmNotFound);
    check("and this one cannot free the other's", pvm_freecontext(its), PvmNotFound);
    check("its owner frees it", pvm_freecontext(one), PvmOk);
    check("but not twice", pvm_freecontext(one), PvmNotFound);
    check("an unknown context is not freed", pvm_freecontext(123456789), PvmNotFound);
    check("a new context is none of these", pvm_newcontext() != other, 1);
    check("the child frees its own", ask(child, "free", "", its), PvmOk);
    return finish(1, &child);
}
