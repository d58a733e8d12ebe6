/* Functions of Upcall that PVM has not: where a task runs, and moves between the processes of its
 * machine (`upcall pvm run --procs P`).
 *
 * pvm3.h of Upcall defines UPVM, and that of the original PVM does not. So one source serves both:
 *
 *     #include <pvm3.h>
 *     #ifdef UPVM
 *     #include <upvm.h>
 *     #endif
 *
 * Functions that fail return an error of pvm3.h, which is reported as the option PvmAutoErr says.
 */
#ifndef UPVM_UPVM_H
#define UPVM_UPVM_H

#ifdef __cplusplus
extern "C" {
#endif

/* Moves a task to the process of this rank, from 0. Tid 0 is the caller. Waits until the task runs
 * there, or is refused: at most about 5 s, and longer for a large task. The task goes on in either
 * case.
 *
 * Returns 0 also if the task is there already. PvmNoTask: there is no such task, or it has ended.
 * PvmNoHost: there is no such process. PvmDenied: something keeps the task in its process, and the
 * report says what. PvmHostFail: the other process has ended. PvmOutOfRes: the other process does
 * not take the task, or another move of it is not over yet. */
int upvm_migrate(int tid, int rank);

/* Keeps the caller in its process (1), or lets others move it again (0). A pinned task cannot be
 * moved, not even by itself. Returns the former state. A new task is not pinned. */
int upvm_pin(int on);

/* Returns the rank, from 0, of the process in which the caller runs now. */
int upvm_process(void);

#ifdef __cplusplus
}
#endif

#endif
