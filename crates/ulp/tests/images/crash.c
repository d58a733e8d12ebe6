/* Crashes in the way that its argument names. */
#include <fenv.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "image.h"

static int deep(int much)
{
    volatile char room[4096];
    memset((void *)room, much, sizeof room);
    return deep(much + 1) + room[0];
}

int main(int argc, char **argv)
{
    (void)argc;
    UPVM_ASK(upvm_table(), UPVM_ASK_OWN, 0, 0, 0, 0);
    switch (argv[1][0]) {
    case 'n':
        return *(volatile int *)8;
    case 'a':
        abort();
    case 'd':
        return deep(0);
    case 'z': {
        volatile int seven = 7, zero = 0;
        return seven / zero;
    }
    case 'r':
        fesetround(FE_UPWARD);
        UPVM_ASK(upvm_table(), UPVM_ASK_OWN, 1, 0, 0, 0);
        return fegetround() == FE_UPWARD ? 0 : 1;
    case 'e':
        exit(300);
    }
    return 9;
}
