/* Output of a task that has no stream of its own. It goes to the host, which knows the target. */

#include "lib.h"
#include "options.h"
#include <errno.h>
#include <poll.h>

static long written(int descriptor, const void *bytes, unsigned long count)
{
    (void)descriptor;
    struct upvm_question question = {0};
    upvm_put_bytes(&question, bytes, count);
    int done = upvm_ask(&question, UPVM_OP_OUTPUT);
    upvm_over(&question);
    if (done < 0)
        return -2;
    /* The host has it, but its reader is slow. A signal's handler runs, and then this waits on. */
    while (done > 0 && UPVM_ASK(upvm_here(), UPVM_ASK_READY, done, POLLIN, -1, 0) == -EINTR)
        ;
    return (long)count;
}

static int reported(const char *line, unsigned long length)
{
    struct upvm_question question = {0};
    upvm_put_bytes(&question, line, length);
    int done = upvm_ask(&question, UPVM_OP_REPORT);
    upvm_over(&question);
    return done;
}

/* Runs after the table is known, and before the program's constructors. */
__attribute__((constructor(103))) static void begin(void)
{
    upvm_reports = reported;
    upvm_written_changed();
}

void upvm_written_changed(void)
{
    upvm_writes = upvm_ask_short(UPVM_OP_OUTPUT_KIND, 0) ? written : 0;
}
