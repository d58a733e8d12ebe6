/* What it counts is its own, the function that counts is not: `turns` times, and its exit status. Then reads from 8, if a
 * second argument says so. */
#include <stdlib.h>
#include <string.h>
#include "image.h"

int main(int argc, char **argv)
{
    uint64_t *own = upvm_here() + UPVM_TABLE_LIBRARY;
    if (upvm_here() != upvm_table() || own[0])
        return 99;
    for (int turn = atoi(argv[1]); turn > 0; turn--) {
        UPVM_DOOR(0, void (*)(void))();
        UPVM_ASK(upvm_table(), UPVM_ASK_YIELD, 0, 0, 0, 0);
    }
    if (argc > 2)
        return UPVM_DOOR(1, int (*)(const int *))((const int *)8);
    return own[0];
}
