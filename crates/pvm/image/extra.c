/* Functions that are in no manual, but that PVM's library has and programs use. */

#include "lib.h"
#include <stdlib.h>
#include <sys/time.h>
#include <unistd.h>

int pvmdebmask;

int lpvmerr(const char *function, int code)
{
    return upvm_done(function, code);
}

void pvmsleep(int seconds)
{
    sleep(seconds);
}

int pvmgetclock(struct timeval *now)
{
    return gettimeofday(now, 0);
}
