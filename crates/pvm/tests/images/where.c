/* Prints the address of its variable, and that of a task that it spawns. */
#include <stdio.h>
#include <string.h>
#include "pvm3.h"

static int variable;

int main(int argc, char **argv)
{
    (void)argc;
    int child, all;
    printf("at %p\n", (void *)&variable);
    if (pvm_parent() < 0) {
        char *name = strrchr(argv[0], '/');
        pvm_catchout(stdout);
        all = pvm_spawn(name ? name + 1 : argv[0], 0, PvmTaskDefault, "", 1, &child) == 1;
        pvm_exit();
        return !all;
    }
    pvm_exit();
    return 0;
}
