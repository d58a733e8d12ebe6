/* Notices: the machine sends a message when a task ends (src/services/notices.rs). */

#include "lib.h"

int pvm_notify(int what, int tag, int count, int *tids)
{
    upvm_self();
    int kind = what & ~PvmNotifyCancel, is_about = kind != PvmHostAdd && kind != PvmRouteAdd;
    if ((is_about && (count < 1 || !tids)) || (tag < 0 && pvm_getopt(PvmResvTids) <= 0))
        return upvm_done("pvm_notify", PvmBadParam);
    struct upvm_question question = {0};
    upvm_put(&question, what);
    upvm_put(&question, tag);
    upvm_put(&question, upvm_context);
    upvm_put(&question, count);
    if (is_about)
        upvm_put_bytes(&question, tids, count * sizeof *tids);
    int code = upvm_ask(&question, UPVM_OP_NOTIFY);
    upvm_over(&question);
    return upvm_done("pvm_notify", code);
}
