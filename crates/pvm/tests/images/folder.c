/* Spawns itself in another folder, in its own, and in a missing one. */
#include <string.h>
#include <unistd.h>
#include "pvm3.h"

int main(int argc, char **argv)
{
    char own[4096], its[4096], *args[] = {"child", 0};
    int tid;
    getcwd(own, sizeof own);
    if (argc > 1) {
        pvm_initsend(PvmDataDefault);
        pvm_pkstr(own);
        pvm_send(pvm_parent(), 1);
        pvm_exit();
        return 0;
    }
    for (int round = 0; round < 2; round++) {
        if (pvm_spawn(argv[0], args, 0, ":/", 1, &tid) != 1 || pvm_recv(tid, 1) <= 0 ||
            pvm_upkstr(its) || strcmp(its, "/"))
            return 1;
        if (pvm_spawn(argv[0], args, PvmTaskHost, ".:/proc", 1, &tid) != 1 ||
            pvm_recv(tid, 1) <= 0 || pvm_upkstr(its) || strcmp(its, "/proc"))
            return 2;
        if (pvm_spawn(argv[0], args, 0, "", 1, &tid) != 1 || pvm_recv(tid, 1) <= 0 ||
            pvm_upkstr(its) || strcmp(its, own))
            return 3;
        getcwd(its, sizeof its);
        if (strcmp(its, own))
            return 4;
    }
    if (pvm_spawn(argv[0], args, 0, ":/nowhere", 1, &tid) != 0 || tid != PvmNoFile)
        return 5;
    pvm_exit();
    return 0;
}
