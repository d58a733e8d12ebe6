/* How this library makes the calls that the table (calls.def) has as VIRTUAL: by the functions that
 * programs call, with arguments and results as the kernel has them. For numbers.c alone. */
#ifndef UPVM_NUMBERS_H
#define UPVM_NUMBERS_H

#define MADE(name, result)            \
    static long made_##name(long *w)  \
    {                                 \
        (void)w;                      \
        return result;                \
    }
/* By a function of libc's, which returns -1 and sets errno. */
#define BY(name, result) MADE(name, upvm_result(result))
#define AT(word) ((void *)w[word])

static long passed(long number, long *words, int which);
static long opens(long number, long *words, int which);
static long aside(long number, long *words, int which);
static long refused(long number, const char *name, const char *why);

BY(read, read(w[0], AT(1), w[2]))
BY(write, write(w[0], AT(1), w[2]))
BY(open, open(AT(0), w[1], w[2]))
BY(openat, openat(w[0], AT(1), w[2], w[3]))
BY(creat, creat(AT(0), w[1]))
BY(close, close(w[0]))
BY(close_range, close_range(w[0], w[1], w[2]))
BY(pread64, pread(w[0], AT(1), w[2], w[3]))
BY(readv, readv(w[0], AT(1), w[2]))
BY(writev, writev(w[0], AT(1), w[2]))
BY(preadv, preadv(w[0], AT(1), w[2], w[3]))
BY(ioctl, ioctl(w[0], w[1], w[2]))
BY(fcntl, fcntl(w[0], w[1], w[2]))
BY(flock, flock(w[0], w[1]))
BY(fsync, fsync(w[0]))
BY(fdatasync, fdatasync(w[0]))
BY(syncfs, syncfs(w[0]))
BY(msync, msync(AT(0), w[1], w[2]))
MADE(sync, (sync(), 0))
BY(pipe, pipe(AT(0)))
BY(pipe2, pipe2(AT(0), w[1]))
BY(dup, dup(w[0]))
BY(dup2, dup2(w[0], w[1]))
BY(dup3, dup3(w[0], w[1], w[2]))
BY(chdir, chdir(AT(0)))
BY(fchdir, fchdir(w[0]))

BY(mmap, (long)mmap(AT(0), w[1], w[2], w[3], w[4], w[5]))
BY(munmap, munmap(AT(0), w[1]))
BY(mremap, (long)mremap(AT(0), w[1], w[2], w[3], AT(4)))
BY(mprotect, mprotect(AT(0), w[1], w[2]))
BY(madvise, madvise(AT(0), w[1], w[2]))
BY(shmat, (long)shmat(w[0], AT(1), w[2]))
BY(shmdt, shmdt(AT(0)))

BY(socket, socket(w[0], w[1], w[2]))
BY(socketpair, socketpair(w[0], w[1], w[2], AT(3)))
BY(connect, connect(w[0], AT(1), w[2]))
BY(accept, accept(w[0], AT(1), AT(2)))
BY(accept4, accept4(w[0], AT(1), AT(2), w[3]))
BY(sendto, sendto(w[0], AT(1), w[2], w[3], AT(4), w[5]))
BY(recvfrom, recvfrom(w[0], AT(1), w[2], w[3], AT(4), AT(5)))
BY(sendmsg, sendmsg(w[0], AT(1), w[2]))
BY(recvmsg, recvmsg(w[0], AT(1), w[2]))
BY(sendmmsg, sendmmsg(w[0], AT(1), w[2], w[3]))
BY(recvmmsg, recvmmsg(w[0], AT(1), w[2], w[3], AT(4)))

BY(poll, poll(AT(0), w[1], w[2]))
BY(select, select(w[0], AT(1), AT(2), AT(3), AT(4)))
BY(epoll_ctl, epoll_ctl(w[0], w[1], w[2], AT(3)))
BY(epoll_wait, epoll_wait(w[0], AT(1), w[2], w[3]))
BY(epoll_pwait, w[4] && w[5] != 8 ? (errno = EINVAL, -1)
                                  : epoll_pwait(w[0], AT(1), w[2], w[3], AT(4)))
BY(epoll_pwait2, w[4] && w[5] != 8 ? (errno = EINVAL, -1)
                                   : epoll_pwait2(w[0], AT(1), w[2], AT(3), AT(4)))
BY(ppoll, w[3] && w[4] != 8 ? (errno = EINVAL, -1) : ppoll(AT(0), w[1], AT(2), AT(3)))

static long made_pselect6(long *w)
{
    const long *mask = AT(5); /* its address and size */
    if (mask && mask[0] && mask[1] != 8)
        return -EINVAL;
    return upvm_result(
        pselect(w[0], AT(1), AT(2), AT(3), AT(4), mask ? (const sigset_t *)mask[0] : 0));
}

MADE(sched_yield, (sched_yield(), 0))
BY(pause, pause())
BY(nanosleep, nanosleep(AT(0), AT(1)))
MADE(clock_nanosleep, -clock_nanosleep(w[0], w[1], AT(2), AT(3)))
BY(clock_gettime, clock_gettime(w[0], AT(1)))
BY(gettimeofday, gettimeofday(AT(0), AT(1)))
MADE(time, time(AT(0)))
MADE(alarm, alarm(w[0]))
BY(getitimer, w[1] ? getitimer(w[0], AT(1)) : (errno = EFAULT, -1))

BY(clock_getres, clock_getres(w[0], AT(1)))
BY(getrusage, w[1] ? getrusage(w[0], AT(1)) : (errno = EFAULT, -1))
MADE(times, times(AT(0)))

MADE(umask, umask(w[0]))
BY(getrlimit, w[1] ? getrlimit(w[0], AT(1)) : (errno = EFAULT, -1))
BY(setrlimit, w[1] ? setrlimit(w[0], AT(1)) : (errno = EFAULT, -1))
BY(prlimit64, prlimit(w[0], w[1], AT(2), AT(3)))
BY(setpriority, setpriority(w[0], w[1], w[2]))
BY(prctl, prctl(w[0], w[1], w[2], w[3], w[4]))

/* libc returns 20 less what the kernel does. */
static long made_getpriority(long *w)
{
    errno = 0;
    long priority = getpriority(w[0], w[1]);
    return errno ? -errno : 20 - priority;
}

/* Without a time, as the kernel takes it: no timer. */
static long made_setitimer(long *w)
{
    const struct itimerval none = {0};
    return upvm_result(setitimer(w[0], w[1] ? AT(1) : &none, AT(2)));
}

MADE(getpid, getpid())
MADE(gettid, gettid())
MADE(getppid, getppid())
BY(getpgid, getpgid(w[0]))
BY(getsid, getsid(w[0]))
BY(kill, kill(w[0], w[1]))
BY(tkill, tgkill(getpid(), w[0], w[1]))
BY(tgkill, tgkill(w[0], w[1], w[2]))
BY(wait4, wait4(w[0], AT(1), w[2], AT(3)))
BY(waitid, waitid(w[0], w[1], AT(2), w[3]))
MADE(exit, (_exit(w[0]), 0))
MADE(exit_group, (_exit(w[0]), 0))

/* What the kernel would have been told of a thread: this is none of its threads. */
MADE(set_tid_address, gettid())
MADE(set_robust_list, w[1] == 24 ? 0 : -EINVAL)
MADE(rseq, -ENOSYS)

static long made_rt_sigqueueinfo(long *w)
{
    return upvm_is_own(w[0]) ? upvm_raise(w[1]) : passed(SYS_rt_sigqueueinfo, w, 0);
}

static long made_rt_tgsigqueueinfo(long *w)
{
    if (upvm_is_own(w[0]) && upvm_is_own(w[1]))
        return upvm_raise(w[2]);
    return passed(SYS_rt_tgsigqueueinfo, w, 0);
}

/* The kernel's masks have 8 bytes, and libc's more. */
static const sigset_t *mask_of(long address, sigset_t *room)
{
    if (!address)
        return 0;
    memset(room, 0, sizeof *room);
    memcpy(room, (const void *)address, 8);
    return room;
}

static long made_rt_sigprocmask(long *w)
{
    sigset_t set, old;
    if (w[3] != 8)
        return -EINVAL;
    long done = upvm_result(sigprocmask(w[0], mask_of(w[1], &set), &old));
    if (!done && w[2])
        memcpy(AT(2), &old, 8);
    return done;
}

static long made_rt_sigpending(long *w)
{
    sigset_t set;
    if ((unsigned long)w[1] > 8)
        return -EINVAL;
    long done = upvm_result(sigpending(&set));
    if (!done)
        memcpy(AT(0), &set, w[1]);
    return done;
}

static long made_rt_sigtimedwait(long *w)
{
    sigset_t set;
    return w[3] != 8 ? -EINVAL : upvm_result(sigtimedwait(mask_of(w[0], &set), AT(1), AT(2)));
}

static long made_rt_sigsuspend(long *w)
{
    sigset_t set;
    return w[1] != 8 ? -EINVAL : upvm_result(sigsuspend(mask_of(w[0], &set)));
}

BY(sigaltstack, sigaltstack(AT(0), AT(1)))

/* As the kernel has an action. */
struct kernel_action {
    void *handler;
    unsigned long flags;
    void *restorer;
    uint64_t mask;
};

static long made_rt_sigaction(long *w)
{
    const struct kernel_action *new = AT(1);
    struct kernel_action *old = AT(2);
    struct sigaction action = {0}, before;
    if (w[3] != 8)
        return -EINVAL;
    if (new) {
        action.sa_handler = (void (*)(int))new->handler;
        action.sa_flags = new->flags;
        memcpy(&action.sa_mask, &new->mask, 8);
    }
    long done = upvm_result(sigaction(w[0], new ? &action : 0, &before));
    if (!done && old) {
        *old = (struct kernel_action){(void *)before.sa_handler, before.sa_flags, 0, 0};
        memcpy(&old->mask, &before.sa_mask, 8);
    }
    return done;
}

static long made_brk(long *w)
{
    extern void *__curbrk;
    brk(AT(0));
    return (long)__curbrk;
}

/* FS belongs to the program, and GS to the host. */
static long made_arch_prctl(long *w)
{
    if (w[0] == ARCH_SET_FS || w[0] == ARCH_GET_FS)
        return passed(SYS_arch_prctl, w, 0);
    return refused(SYS_arch_prctl, "arch_prctl", "only FS is a task's own");
}

static long made_personality(long *w)
{
    if ((unsigned)w[0] == 0xFFFFFFFF)
        return passed(SYS_personality, w, 0);
    return refused(SYS_personality, "personality", PROCESS);
}

static long made_pidfd_open(long *w)
{
    if (upvm_is_own(w[0]))
        return refused(SYS_pidfd_open, "pidfd_open of the own process",
                       "the kernel knows no such process; use raise, and pvm_notify for its end");
    return opens(SYS_pidfd_open, w, 0);
}

/* Locks with priority inheritance name a thread of the kernel's. */
static long made_futex(long *w)
{
    switch (w[1] & FUTEX_CMD_MASK) {
    case FUTEX_WAIT:
    case FUTEX_WAIT_BITSET: return aside(SYS_futex, w, 0);
    case FUTEX_LOCK_PI:
    case FUTEX_UNLOCK_PI:
    case FUTEX_TRYLOCK_PI:
    case FUTEX_LOCK_PI2:
    case FUTEX_WAIT_REQUEUE_PI:
    case FUTEX_CMP_REQUEUE_PI:
        return refused(SYS_futex, "futex with priority inheritance",
                       "a task is no thread; use locks without it");
    }
    return passed(SYS_futex, w, 0);
}

/* Among the flags is the kernel's own way of not waiting. -1 is the descriptor's position. */
static long made_preadv2(long *w)
{
    if (w[5])
        return passed(SYS_preadv2, w, 1);
    return upvm_result(w[3] == -1 ? readv(w[0], AT(1), w[2]) : preadv(w[0], AT(1), w[2], w[3]));
}

static long made_pwritev2(long *w)
{
    if (w[5] || w[3] != -1)
        return passed(SYS_pwritev2, w, 1);
    return upvm_result(writev(w[0], AT(1), w[2]));
}

#endif
