/* Contexts. The machine assigns the numbers (src/services/contexts.rs); each task keeps its own
 * current context. */

#include "lib.h"

static int ask(int op, int context)
{
    upvm_self();
    struct upvm_question question = {0};
    upvm_put(&question, context);
    int code = upvm_ask(&question, op);
    upvm_over(&question);
    return code;
}

int pvm_newcontext(void)
{
    return upvm_done("pvm_newcontext", ask(UPVM_OP_CONTEXT_NEW, 0));
}

int pvm_freecontext(int context)
{
    return upvm_done("pvm_freecontext", ask(UPVM_OP_CONTEXT_FREE, context));
}

int pvm_getcontext(void)
{
    /* Enrolling sets the context: a spawned task inherits its parent's. */
    upvm_self();
    return upvm_context;
}

int pvm_setcontext(int context)
{
    upvm_self();
    /* Negative contexts are the library's own. */
    if (context < 0)
        return upvm_done("pvm_setcontext", PvmBadParam);
    int old = upvm_context;
    upvm_context = context;
    return old;
}
