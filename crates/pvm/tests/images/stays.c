/* Waits for a message with something that keeps a task in its process, as its argument says. */
#include <spawn.h>
#include <string.h>
#include <pvm3.h>
#include <upvm.h>

extern char **environ;

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    char *words[] = {"true", 0};
    pid_t child;
    int *descriptors;
    pvm_mytid();
    if (!strcmp(what, "wish"))
        upvm_pin(1);
    if (!strcmp(what, "descriptor"))
        pvm_getfds(&descriptors);
    /* A child that has ended counts until the task waits for it. */
    if (!strcmp(what, "child") && posix_spawn(&child, "/bin/true", 0, 0, words, environ))
        return 1;
    pvm_recv(-1, 7);
    return 0;
}
