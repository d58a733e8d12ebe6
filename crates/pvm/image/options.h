/* What options.c, output.c and others share. */
#ifndef UPVM_OPTIONS_H
#define UPVM_OPTIONS_H

/* Sets one of the options that the host keeps for this task and for those that it spawns. Returns
 * the value before. */
int upvm_set_at_host(int option, int value);

/* Prints caught output until no task is left whose output comes here. */
void upvm_catch_the_rest(void);

/* Must be called after the target of this task's output changes. */
void upvm_written_changed(void);

/* Whether caught output is printed with its task's tid. */
extern int upvm_show_tids;

#endif
