/* Calls what cannot work. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static void *nothing(void *argument)
{
    return argument;
}

#define IS_REFUSED(call)                         \
    do {                                         \
        errno = 0;                               \
        if ((call) != -1 || errno != ENOSYS) {   \
            printf("%s: errno %d\n", #call, errno); \
            return 1;                            \
        }                                        \
    } while (0)

int main(void)
{
    pthread_t thread;
    char *args[] = {"true", 0};
    int file = open("/bin/true", O_RDONLY);
    IS_REFUSED(fork());
    IS_REFUSED(vfork());
    IS_REFUSED(syscall(SYS_fork));
    IS_REFUSED(syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
    IS_REFUSED(execve("/bin/true", args, environ));
    IS_REFUSED(execv("/bin/true", args));
    IS_REFUSED(execvp("true", args));
    IS_REFUSED(execvpe("true", args, environ));
    IS_REFUSED(execl("/bin/true", "true", (char *)0));
    IS_REFUSED(execlp("true", "true", (char *)0));
    IS_REFUSED(execle("/bin/true", "true", (char *)0, environ));
    IS_REFUSED(fexecve(file, args, environ));
    IS_REFUSED(execveat(file, "", args, environ, AT_EMPTY_PATH));
    IS_REFUSED(syscall(SYS_execve, "/bin/true", args, environ));
    IS_REFUSED(syscall(SYS_execveat, file, "", args, environ, AT_EMPTY_PATH));
    if (pthread_create(&thread, 0, nothing, 0) != ENOSYS)
        return 2;
    if (dlerror())
        return 3;
    if (dlopen("libm.so", RTLD_NOW))
        return 4;
    const char *text = dlerror();
    if (!text || !strstr(text, "dlopen is refused in a task: ") || !strstr(text, "statically"))
        return 5;
    return dlerror() ? 6 : 0;
}
