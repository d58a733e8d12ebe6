/* A reset spares tasks by an option, which children inherit. `pvm_getnoresets` lists the tasks of
 * all processes. */
#include "check.h"

static int order(const char *what, char *name, int number)
{
    (void)what, (void)name;
    return pvm_setopt(PvmNoReset, number);
}

static int spared(void)
{
    int *tids, count = -1;
    return pvm_getnoresets(&tids, &count) == PvmOk ? count : -1;
}

/* Whether the list has this task. */
static int has(int tid)
{
    int *tids, count = 0, found = 0;
    pvm_getnoresets(&tids, &count);
    for (int one = 0; one < count; one++)
        found += tids[one] == tid;
    return found;
}

int main(int argc, char **argv)
{
    int children[3], own = pvm_mytid();
    (void)argc;
    if (pvm_parent() != PvmNoParent)
        obey(order);
    check("no task is spared at first", spared(), 0);
    pvm_setopt(PvmNoReset, 1);
    check("the task itself is spared", has(own), 1);
    begin(argv[0], 3, children);
    check("its children are spared, too", spared(), 4);
    check("a child was spared", ask(children[0], "set", "", 0), 1);
    check("the others are listed", spared(), 3);
    check("that child is not", has(children[0]), 0);
    check("a child is spared still", ask(children[1], "set", "", 1), 1);
    check("it is listed once", has(children[1]), 1);
    check("a child was not spared", ask(children[0], "set", "", 1), 0);
    check("all are listed", spared(), 4);
    return finish(3, children);
}
