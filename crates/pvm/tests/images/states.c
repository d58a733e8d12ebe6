/* Does what its first argument says, while a test observes it. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "pvm3.h"

/* The library's own way to the kernel. */
long upvm_call6(long number, long a, long b, long c, long d, long e, long f);

int main(int argc, char **argv)
{
    char what = argc > 1 ? argv[1][0] : 'h';
    pvm_mytid();
    printf("%s FOO=%s\n", argc > 1 ? argv[1] : "hello", getenv("FOO") ? getenv("FOO") : "-");
    fflush(stdout);
    if (what == 'r')
        pvm_recv(-1, 7);
    if (what == 's')
        sleep(600);
    if (what == 'b') {
        pvm_joingroup("ring");
        pvm_barrier("ring", 2);
    }
    if (what == 'p')
        while (!pvm_nrecv(-1, 8))
            ;
    /* A system call that stops the process. The library makes it as one of its own. */
    if (what == 'k')
        upvm_call6(SYS_pause, 0, 0, 0, 0, 0, 0);
    if (what == 'c')
        for (volatile int on = 1; on;)
            ;
    if (what == 'm') {
        char text[64] = "nothing";
        int found = pvm_recvinfo("box", 0, 0);
        if (found > 0 && pvm_setrbuf(found) >= 0)
            pvm_upkstr(text);
        printf("found %s\n", text);
    }
    if (what == 'i')
        printf("read %d\n", getchar());
    printf("end");
    pvm_exit();
    return 0;
}
