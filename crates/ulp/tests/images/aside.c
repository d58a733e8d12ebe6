/* aside DESCRIPTOR ROUNDS: has the host run a read aside, and reports its result; then asks for a
 * call that helpers do not run, and for one at a bad address. */
#include "calls.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    static char text[16];
    uint64_t *table = upvm_table();
    for (int round = 0; round < atoi(argv[2]); round++) {
        memset(text, 0, sizeof text);
        long got = upvm_aside(SYS_read, atoi(argv[1]), (long)text, sizeof text, 0, 0, 0);
        UPVM_ASK(table, 16, got, text[0], 0, 0);
    }
    long words[7] = {SYS_getpid};
    UPVM_ASK(table, UPVM_ASK_ASIDE, (long)words, 0, 0, 0);
    UPVM_ASK(table, UPVM_ASK_ASIDE, 8, 0, 0, 0);
    return argc == 3 ? 0 : 1;
}
