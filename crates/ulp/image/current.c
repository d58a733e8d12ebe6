/* For debuggers: `p/x upcall_current_task`, `break work if upcall_current_task == 0x40002`. Compiled with debug
 * information, for a debugger wants to know its type. */

/* The number of this task, from before main on: each has its own, as it has its own of all variables. */
int upcall_current_task;
