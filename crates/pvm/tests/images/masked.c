/* A task with a umask that leaves no right. It ends when it is killed. */
#include <pvm3.h>
#include <stdio.h>
#include <sys/stat.h>

int main(void)
{
    pvm_mytid();
    umask(0777);
    puts("begun");
    fflush(stdout);
    for (;;) {
        struct timeval moment = {0, 1000};
        pvm_trecv(-1, 1, &moment);
    }
}
