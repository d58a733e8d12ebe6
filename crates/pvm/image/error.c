/* Errors: pvm_errno, their texts, and how they are reported. */

#include "lib.h"
#include <stdlib.h>

/* The value of the option PvmAutoErr. */
int upvm_auto_err = 1;

int pvm_errno;

/* Indexed by the negated code. The texts are those of the original PVM. */
char *pvm_errlist[] = {
    "Error 0",
    "Error 1",
    "Bad parameter",
    "Parameter mismatch",
    "Value too large",
    "End of buffer",
    "No such host",
    "No such file",
    "Permission denied",
    "Error 9",
    "Malloc failed",
    "Error 11",
    "Can't decode message",
    "Error 13",
    "Can't contact local daemon",
    "No current buffer",
    "No such buffer",
    "Null group name",
    "Already in group",
    "No such group",
    "Not in group",
    "No such instance",
    "Host failed",
    "No parent task",
    "Not implemented",
    "Pvmd system error",
    "Version mismatch",
    "Out of resources",
    "Duplicate host",
    "Can't start pvmd",
    "Already in progress",
    "No such task",
    "Not Found",
    "Already Exists",
    "Hoster must run on master host",
    "Spawning parent set PvmNoParent",
    "Master Host IP Address is Loopback! (See pvm3/Readme)",
};
int pvm_nerr = sizeof pvm_errlist / sizeof *pvm_errlist;

char *pvm_strerror(void)
{
    unsigned number = -(unsigned)pvm_errno;
    return number < sizeof pvm_errlist / sizeof *pvm_errlist ? pvm_errlist[number]
                                                             : "Unknown Error";
}

int pvm_perror(char *message)
{
    fprintf(stderr, "libpvm [t%x]: %s: %s\n", upvm_self(), message ? message : "(null)",
            pvm_strerror());
    return PvmOk;
}

int upvm_done(const char *function, int code)
{
    return upvm_done_since(function, code, "");
}

int upvm_done_since(const char *function, int code, const char *why)
{
    /* Runs the handlers of signals that arrived during the call, which may have taken long. No
     * state is half changed any more. */
    upvm_signals(upvm_here());
    if (code >= 0)
        return code;
    pvm_errno = code;
    if (upvm_auto_err)
        fprintf(stderr, "libpvm [t%x]: %s(): %s\n", upvm_self(), function,
                *why ? why : pvm_strerror());
    if (upvm_auto_err == 2)
        exit(code);
    if (upvm_auto_err == 3)
        abort();
    return code;
}
