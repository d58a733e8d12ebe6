/* Waits for a message that nobody sends. */
#include "pvm3.h"

int main(void)
{
    pvm_recv(-1, 7);
    pvm_exit();
    return 0;
}
