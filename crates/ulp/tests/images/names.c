/* Asks with the word of each name that the host gives, until that is 0. */
#include "image.h"

int main(void)
{
    uint64_t *table = upvm_table();
    const uint32_t *words = *(const uint32_t *const __seg_gs *)UPVM_GS_NAMES;
    for (long name = 0; (name = UPVM_ASK(table, UPVM_ASK_OWN, words[name], 0, 0, 0));)
        ;
    return 0;
}
