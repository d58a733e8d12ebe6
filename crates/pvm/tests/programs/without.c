/* Runs a program without some system calls, as in a container that refuses them (EPERM):
 * without NAME[,NAME...] PROGRAM [ARGUMENT...] */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static const struct {
    const char *name;
    int number;
} known[] = {
    {"process_vm_readv", SYS_process_vm_readv},
    {"process_vm_writev", SYS_process_vm_writev},
    {"pidfd_getfd", SYS_pidfd_getfd},
    {"pidfd_open", SYS_pidfd_open},
};

enum { KNOWN = sizeof known / sizeof *known };

/* The number of a system call, or -1. */
static int number(const char *name)
{
    for (int one = 0; one < KNOWN; one++)
        if (!strcmp(known[one].name, name))
            return known[one].number;
    return -1;
}

int main(int argc, char **argv)
{
    struct sock_filter filter[2 * KNOWN + 2];
    int length = 0, count = 0;
    filter[length++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
                                                    offsetof(struct seccomp_data, nr));
    if (argc < 3)
        return 2;
    for (char *one = strtok(argv[1], ","); one; one = strtok(0, ",")) {
        if (number(one) < 0 || count++ == KNOWN) {
            fprintf(stderr, "without: %s: unknown, or too many\n", one);
            return 2;
        }
        filter[length++] =
            (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number(one), 0, 1);
        filter[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM);
    }
    filter[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {length, filter};
    if (!count || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) {
        perror("without");
        return 2;
    }
    execvp(argv[2], argv + 2);
    perror(argv[2]);
    return 2;
}
