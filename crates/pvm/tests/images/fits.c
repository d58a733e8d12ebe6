/* Prints for all small keys whether a message fits a wish: 1 or 0. */
#include "matching.h"
#include <stdio.h>

#define EACH(key, least)                                       \
    for (key.source = least; key.source < 3; key.source++)     \
        for (key.tag = least; key.tag < 3; key.tag++)          \
            for (key.context = least; key.context < 3; key.context++)

int main(void)
{
    struct upvm_key wanted, message;
    EACH(wanted, -4)
        EACH(message, -4)
            putchar('0' + upvm_fits(&wanted, &message));
    return 0;
}
