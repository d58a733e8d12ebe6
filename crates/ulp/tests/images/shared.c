/* Counts in its own memory with a shared function, as many times as the first argument says; its
 * exit status is the count. Then reads from address 8, if there is a second argument. */
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
