/* Why functions and system calls are refused in a task, with the way out: a refusal is "upvm: NAME
 * is refused in a task: REASON". */
#ifndef UPVM_REASONS_H
#define UPVM_REASONS_H

#define FORK "it copies all tasks of the process; use pvm_spawn for tasks, posix_spawn for programs"
#define THREADS "a task is one thread; start tasks by pvm_spawn"
#define LIBRARIES "a task is linked as a whole; link the library statically"
#define EXEC "it replaces all tasks; use posix_spawn or system for programs, pvm_spawn for tasks"
#define PROCESS \
    "it would act on all tasks of its process; do it in the shell that starts the run, or in a " \
    "program that you start by posix_spawn"
#define SYSTEM "it is for the administration of the computer; start a program for it by posix_spawn"
#define WATCH "it would stop or watch all tasks of its process; run one process for each task"
#define TIMERS "its signals would come to all tasks; use setitimer, or timerfd_create and poll"
#define SIGNALS "its signals would come to all tasks; use poll, or sigwait for signals of tasks"
#define LATER "it would go on while other tasks run; use read, write and poll"
#define NEWER "only its older form is there; use futex"
#define GONE "the kernel does not have it any more"
#define FRAME "no handler of the kernel's is under way"
#define UNKNOWN "the table of system calls does not have it; call a function of libc in its place"

#endif
