/* For debuggers: `p/x upcall_current_task`, `break work if upcall_current_task == 0x40002`.
 * Compiled with debug information, since a debugger needs the type. */

/* The number of this task, set before main. Each task has its own, as with all its variables. */
int upcall_current_task;
