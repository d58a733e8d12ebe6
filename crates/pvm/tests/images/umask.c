/* Three siblings that make files in turns: two with a umask of their own, and one that has what the
 * run began with. Arguments: a folder, and that umask in octal. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include "pvm3.h"

static char path[4096], command[5000];

static int mode_of(void)
{
    struct stat about;
    int mode = stat(path, &about) ? -1 : (int)about.st_mode & 0777;
    unlink(path);
    return mode;
}

/* Makes files itself and by another program. */
static int makes(const char *folder, int me, int mask)
{
    snprintf(path, sizeof path, "%s/%d", folder, me);
    int file = open(path, O_CREAT | O_EXCL | O_WRONLY, 0666);
    close(file);
    if (mode_of() != (0666 & ~mask))
        return 0;
    snprintf(command, sizeof command, ": > %s", path);
    return system(command) == 0 && mode_of() == (0666 & ~mask);
}

int main(int argc, char **argv)
{
    int *tids, tasks = pvm_siblings(&tids), own = pvm_mytid(), me = 0;
    int first = argc > 2 ? (int)strtol(argv[2], 0, 8) : -1, mask = first;
    while (tids[me] != own)
        me++;
    for (int round = 0; round < 4; round++) {
        if (me || round)
            pvm_recv(tids[(me + tasks - 1) % tasks], 1);
        /* From the second round on, so that all have made a file before. */
        if (round && me < 2) {
            int next = (me ? 0070 : 0007) + round;
            if (umask(next) != (mode_t)mask)
                return 10 + round;
            mask = next;
        }
        if (!makes(argv[1], me, mask))
            return 20 + round;
        pvm_initsend(PvmDataDefault);
        pvm_send(tids[(me + 1) % tasks], 1);
    }
    if (!me)
        pvm_recv(tids[tasks - 1], 1);
    pvm_exit();
    return 0;
}
