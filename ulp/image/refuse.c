/* What cannot work in an image, said with its name and the way out, when it is linked and when it is called. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

static void refused(const char *name, const char *why)
{
    fprintf(stderr, "upvm: %s is refused in a task: %s\n", name, why);
}

#define REFUSES(name, why)                                                              \
    __attribute__((used, section(".gnu.warning." #name))) static const char warning_##name[] = \
        "upvm: " #name " is refused in a task: " why

/* Libraries that come after the archive are to find these, too. */
const char upvm_refuses;

#define FORK "it would copy all tasks of the process; start tasks by pvm_spawn, and programs by posix_spawn"
#define THREADS "a task is one thread; start tasks by pvm_spawn"
#define LIBRARIES "a task is linked as a whole; link the library statically"

REFUSES(fork, FORK);
pid_t fork(void)
{
    refused("fork", FORK);
    errno = ENOSYS;
    return -1;
}

REFUSES(vfork, FORK);
pid_t vfork(void)
{
    refused("vfork", FORK);
    errno = ENOSYS;
    return -1;
}

REFUSES(daemon, FORK);
int daemon(int keep_folder, int keep_streams)
{
    (void)keep_folder, (void)keep_streams;
    refused("daemon", FORK);
    errno = ENOSYS;
    return -1;
}

REFUSES(pthread_create, THREADS);
int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *argument)
{
    (void)thread, (void)attributes, (void)start, (void)argument;
    refused("pthread_create", THREADS);
    return ENOSYS;
}

REFUSES(dlopen, LIBRARIES);
void *dlopen(const char *file, int mode)
{
    (void)file, (void)mode;
    refused("dlopen", LIBRARIES);
    return 0;
}
