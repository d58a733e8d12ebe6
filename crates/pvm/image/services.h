/* What the parts of libpvm3 share that use the machine's services. */
#ifndef UPVM_SERVICES_H
#define UPVM_SERVICES_H

#include "lib.h"

extern int pvm_errno;

/* Stores and returns an error without reporting it. As in PVM, this is for errors that are merely
 * an answer, in functions that programs call repeatedly. */
static inline int upvm_quiet(int code)
{
    if (code < 0)
        pvm_errno = code;
    return code;
}

/* The same, and lets other tasks run: what this task polls for is their work. */
static inline int upvm_polled(int code)
{
    if (code < 0)
        upvm_yield();
    return upvm_quiet(code);
}

/* The tid of an instance of a group, and the instance of a tid; or an error. */
int upvm_group_task(const char *group, int instance);
int upvm_group_instance(const char *group, int tid);

/* Stores a group's tids by instance, 0 for an unused one; the caller frees the array. Returns the
 * number of instances, or an error. */
int upvm_group_members(const char *group, int **tids);

/* Forgets all cached groups, because this task has left them. */
void upvm_groups_left(void);

#endif
