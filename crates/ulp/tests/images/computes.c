/* Computes for a while, in all registers, without asking for anything; then reports the result. */
#include <stdlib.h>
#include "image.h"

static double sums[10];
static unsigned long words[12];

int main(int argc, char **argv)
{
    int rounds = atoi(argv[1]);
    long double wide = 0;
    (void)argc;
    for (int word = 0; word < 12; word++)
        words[word] = word * 0x9e3779b97f4a7c15ul + 1;
    for (int round = 1; round < rounds; round++) {
        for (int word = 0; word < 12; word++)
            words[word] =
                (words[word] ^ words[(word + 5) % 12] >> 7) * 0xff51afd7ed558ccdul + round;
        for (int one = 0; one < 10; one++)
            sums[one] = sums[one] * 0.999 + (double)(words[one] >> 40) / round;
        wide += 1.0L / round;
    }
    unsigned long all = (unsigned long)(wide * 1e9);
    for (int one = 0; one < 10; one++)
        all = all * 31 + (unsigned long)(sums[one] * 1e9) + words[one];
    UPVM_ASK(upvm_table(), UPVM_ASK_OWN, all, 0, 0, 0);
    return 0;
}
