/* Asks for what cannot work. */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

static void *nothing(void *argument)
{
    return argument;
}

int main(void)
{
    pthread_t thread;
    if (fork() != -1 || errno != ENOSYS)
        return 1;
    if (pthread_create(&thread, 0, nothing, 0) != ENOSYS)
        return 2;
    return dlopen("libm.so", RTLD_NOW) ? 3 : 0;
}
