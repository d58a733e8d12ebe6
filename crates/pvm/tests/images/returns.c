/* A machine that goes on on other hosts: `returns NOTICES` waits for this number of notices about
   hosts, and prints what it knows of them. `returns child` is what it has on each other host. */
#include <fcntl.h>
#include <pvm3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { GONE = 1, COME, GO, HERE, MOST = 8 };

/* Answers where it runs, and with which umask. */
static int as_child(void)
{
    int answer[2];
    pvm_initsend(PvmDataDefault);
    pvm_send(pvm_parent(), HERE);
    while (pvm_nrecv(-1, GO) == 0)
        usleep(1000);
    answer[0] = pvm_tidtohost(pvm_mytid());
    answer[1] = umask(0);
    pvm_initsend(PvmDataDefault);
    pvm_pkint(answer, 2, 1);
    pvm_send(pvm_parent(), HERE);
    pvm_exit();
    return 0;
}

int main(int argc, char **argv)
{
    struct pvmhostinfo *hosts;
    int count, children[MOST], number, ones;
    if (!strcmp(argv[1], "child"))
        return as_child();
    pvm_config(&count, 0, &hosts);
    for (int host = 1; host < count; host++) {
        char *args[] = {"child", 0};
        pvm_notify(PvmHostDelete, GONE, 1, &hosts[host].hi_tid);
        if (pvm_spawn(argv[0], args, PvmTaskHost, hosts[host].hi_name, 1, &children[host]) != 1)
            printf("FAILED: no child on %s\n", hosts[host].hi_name);
    }
    for (int host = 1; host < count; host++)
        pvm_recv(children[host], HERE);
    pvm_notify(PvmHostAdd, COME, -1, 0);
    puts("ready");
    fflush(stdout);
    for (int left = atoi(argv[1]); left > 0;) {
        if (pvm_nrecv(-1, GONE) > 0) {
            pvm_upkint(&number, 1, 1);
            printf("gone: %x\n", number);
            left--;
        } else if (pvm_nrecv(-1, COME) > 0) {
            pvm_upkint(&ones, 1, 1);
            pvm_upkint(&number, 1, 1);
            printf("come: %d, %x\n", ones, number);
            left--;
        } else {
            usleep(1000);
        }
    }
    for (int child = 1; child < count; child++) {
        int answer[2];
        pvm_initsend(PvmDataDefault);
        pvm_send(children[child], GO);
        pvm_recv(children[child], HERE);
        pvm_upkint(answer, 2, 1);
        printf("child %d: host %x, umask %o\n", child, answer[0], answer[1]);
    }
    pvm_config(&count, 0, &hosts);
    for (int host = 0; host < count; host++)
        printf("host %x: %s\n", hosts[host].hi_tid, host ? hosts[host].hi_name : "home");
    printf("own: %x\n", pvm_tidtohost(pvm_mytid()));
    pvm_exit();
    return 0;
}
