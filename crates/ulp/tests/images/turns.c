/* Takes turns, and asks, ends or crashes at one of them. */
#include <fenv.h>
#include <stdlib.h>
#include "image.h"

static volatile double third = 3;

int main(int argc, char **argv)
{
    int number = atoi(argv[1]), turns = atoi(argv[2]);
    (void)argc;
    /* Control words and flags of its own. */
    fesetround(number % 2 ? FE_UPWARD : FE_TONEAREST);
    feclearexcept(FE_ALL_EXCEPT);
    if (number % 3 == 0)
        third = 1 / third;
    int flags = fetestexcept(FE_ALL_EXCEPT);
    for (int turn = 0; turn < turns; turn++) {
        if (UPVM_ASK(upvm_table(), UPVM_ASK_YIELD, 0, 0, 0, 0) != 0)
            return 1;
        if (fegetround() != (number % 2 ? FE_UPWARD : FE_TONEAREST))
            return 2;
        if (fetestexcept(FE_ALL_EXCEPT) != flags)
            return 3;
        if (turn == 5 && UPVM_ASK(upvm_table(), UPVM_ASK_OWN, number, 0, 0, 0) != number)
            return 4;
    }
    if (number % 5 == 4)
        abort();
    return 100 + number;
}
