/* What those parts of libpvm3 know of each other that ask the machine's services. */
#ifndef UPVM_SERVICES_H
#define UPVM_SERVICES_H

#include "lib.h"

extern int pvm_errno;

/* An error that is remembered and returned, but not said, as PVM does where it is no more than an answer: programs ask again and again. */
static inline int upvm_quiet(int code)
{
    if (code < 0)
        pvm_errno = code;
    return code;
}

/* The same, and others run: what this task waits for is theirs to do. */
static inline int upvm_polled(int code)
{
    if (code < 0)
        upvm_yield();
    return upvm_quiet(code);
}

/* The tid of an instance of a group, and the instance of a tid; or an error. */
int upvm_group_task(const char *group, int instance);
int upvm_group_instance(const char *group, int tid);

/* The tids of a group by instance, 0 where it is nobody's, which the caller frees. How many instances that are, or an error. */
int upvm_group_members(const char *group, int **tids);

/* This task is in no group any more. */
void upvm_groups_left(void);

#endif
