/* Moves of this and other tasks between the processes of the machine (upvm.h). PVM has none. */

#include "lib.h"
#include "upvm.h"

int upvm_migrate(int tid, int rank)
{
    upvm_self();
    if (rank < 0 || (tid && !upvm_is_task(tid)))
        return upvm_done("upvm_migrate", PvmBadParam);
    struct upvm_question question = {0};
    upvm_put(&question, tid);
    upvm_put(&question, rank);
    int code = upvm_ask(&question, UPVM_OP_MIGRATE);
    int done = upvm_done_since("upvm_migrate", code, upvm_get_text(&question));
    upvm_over(&question);
    return done;
}

int upvm_pin(int on)
{
    upvm_self();
    return upvm_done("upvm_pin", upvm_ask_short(UPVM_OP_PIN, !!on));
}

int upvm_process(void)
{
    upvm_self();
    return upvm_done("upvm_process", upvm_ask_short(UPVM_OP_PROCESS, 0));
}
