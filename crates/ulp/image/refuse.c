/* Functions that cannot work in an image: each is refused by name, with an alternative, both when
 * it is linked and when it is called. */

#define _GNU_SOURCE
#include "calls.h"
#include "reasons.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

static void refused(const char *name, const char *why)
{
    char line[256];
    int length = snprintf(line, sizeof line, "upvm: %s is refused in a task: %s\n", name, why);
    upvm_report(line, length < (int)sizeof line ? length : (int)sizeof line);
}

long upvm_refuse(const char *name, const char *why)
{
    refused(name, why);
    return -ENOSYS;
}

#define REFUSES(name, why)                                                              \
    __attribute__((used, section(".gnu.warning." #name))) static const char warning_##name[] = \
        "upvm: " #name " is refused in a task: " why

/* Libraries that come after the archive find these functions through this name too. */
const char upvm_refuses;

int upvm_refuse_fork(const char *name)
{
    refused(name, FORK);
    errno = ENOSYS;
    return -1;
}

REFUSES(fork, FORK);
pid_t fork(void)
{
    return upvm_refuse_fork("fork");
}

REFUSES(vfork, FORK);
pid_t vfork(void)
{
    return upvm_refuse_fork("vfork");
}

REFUSES(daemon, FORK);
int daemon(int keep_folder, int keep_streams)
{
    (void)keep_folder, (void)keep_streams;
    return upvm_refuse_fork("daemon");
}

int upvm_refuse_exec(const char *name)
{
    refused(name, EXEC);
    errno = ENOSYS;
    return -1;
}

/* libc's internal functions by which children become other programs have other names. */
#define REFUSES_EXEC(name, ...)                 \
    REFUSES(name, EXEC);                        \
    _Pragma("GCC diagnostic push");             \
    _Pragma("GCC diagnostic ignored \"-Wunused-parameter\""); \
    int name(__VA_ARGS__)                       \
    {                                           \
        return upvm_refuse_exec(#name);         \
    }                                           \
    _Pragma("GCC diagnostic pop")

REFUSES_EXEC(execve, const char *file, char *const *args, char *const *environment);
REFUSES_EXEC(execv, const char *file, char *const *args);
REFUSES_EXEC(execvp, const char *file, char *const *args);
REFUSES_EXEC(execvpe, const char *file, char *const *args, char *const *environment);
REFUSES_EXEC(execl, const char *file, const char *arg, ...);
REFUSES_EXEC(execlp, const char *file, const char *arg, ...);
REFUSES_EXEC(execle, const char *file, const char *arg, ...);
REFUSES_EXEC(fexecve, int file, char *const *args, char *const *environment);
REFUSES_EXEC(execveat, int folder, const char *file, char *const *args, char *const *environment,
             int flags);

REFUSES(pthread_create, THREADS);
int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *),
                   void *argument)
{
    (void)thread, (void)attributes, (void)start, (void)argument;
    refused("pthread_create", THREADS);
    return ENOSYS;
}

REFUSES(signalfd, SIGNALS);
int signalfd(int descriptor, const sigset_t *signals, int flags)
{
    (void)descriptor, (void)signals, (void)flags;
    return upvm_returns(upvm_refuse("signalfd", SIGNALS));
}

/* What the next call of dlerror returns. */
static const char *library_error;

REFUSES(dlopen, LIBRARIES);
void *dlopen(const char *file, int mode)
{
    (void)file, (void)mode;
    refused("dlopen", LIBRARIES);
    library_error = "dlopen is refused in a task: " LIBRARIES;
    return 0;
}

/* libc's own, which is there if the image uses a function that reports errors to it, as dlsym. */
extern char *__dlerror(void) __attribute__((weak));

/* As libc's: the text of the last error, once. */
char *dlerror(void)
{
    const char *text = library_error;
    library_error = 0;
    if (!text && __dlerror)
        return __dlerror();
    return (char *)text;
}
