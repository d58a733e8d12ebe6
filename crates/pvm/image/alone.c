/* A program that was started from the shell instead of as a task. It becomes a task by executing
 * the `upcall` command that it was linked for. */

#include "lib.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Defined in runtime.o, which upvmcc writes. */
extern const char upvm_runtime[];

extern char **environ;
extern int __execve(const char *, char *const *, char *const *);
extern int __execvpe(const char *, char *const *, char *const *);

/* The linker option `-u upvm_pvm` pulls this object into each program. */
const char upvm_pvm;

void upvm_alone(int argc, char **argv)
{
    char own[4096];
    ssize_t length = readlink("/proc/self/exe", own, sizeof own - 1);
    const char *runtime = getenv("UPCALL");
    char **words = calloc(argc + 6, sizeof *words);
    if (length <= 0 || !words)
        return;
    own[length] = 0;
    words[0] = "upcall", words[1] = "pvm", words[2] = "run", words[3] = "--", words[4] = own;
    for (int word = 1; word < argc; word++)
        words[4 + word] = argv[word];
    if (!runtime)
        runtime = upvm_runtime;
    /* The public names are overridden to fail in images. */
    __execve(runtime, words, environ);
    __execvpe("upcall", words, environ);
    fprintf(stderr,
            "%s: a PVM task needs `upcall` to run it, which was found neither as %s nor in PATH: "
            "%s. Set UPCALL to its path\n",
            argc ? argv[0] : own, runtime, strerror(errno));
    _exit(127);
}
