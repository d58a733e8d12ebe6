/* Time limits of pvm_trecv that are never reached, and those that are over. */
#include "check.h"
#include <limits.h>

static int order(const char *what, char *name, int number)
{
    (void)what, (void)name;
    return number;
}

static int children[3];

/* The number of replies that come within a limit. */
static int comes_within(long seconds, long microseconds)
{
    struct timeval within = {seconds, microseconds};
    int child = 0;
    for (; child < 3; child++) {
        tell(children[child], "reply", "", 7);
        if (pvm_trecv(children[child], REPLY, &within) <= 0)
            break;
    }
    return child;
}

int main(int argc, char **argv)
{
    if (pvm_parent() > 0)
        obey(order);
    begin(argv[0], 3, children);
    check("a long limit", comes_within(1L << 40, 0), 3);
    check("a limit beyond a long's range", comes_within(LONG_MAX, 0), 3);
    check("the highest limit in microseconds", comes_within(LONG_MAX / 1000000, 0), 3);
    check("microseconds beyond it", comes_within(LONG_MAX / 1000000, LONG_MAX), 3);
    struct timeval never[] = {{LONG_MIN, 0}, {-1, 0}, {0, -1}, {LONG_MIN, -1}};
    for (int at = 0; at < 4; at++)
        check("a limit that is over", pvm_trecv(-1, REPLY, &never[at]), 0);
    return finish(3, children);
}
