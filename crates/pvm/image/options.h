/* What options and output know of each other. */
#ifndef UPVM_OPTIONS_H
#define UPVM_OPTIONS_H

/* What lies with the host of this task's options, for itself and for those that it spawns. */
int upvm_set_at_host(int option, int value);

/* Prints what is caught until nobody is there any more from whom some could come. */
void upvm_catch_the_rest(void);

/* Where this task's output goes has changed. */
void upvm_written_changed(void);

/* Whether output is printed with its task's number. */
extern int upvm_show_tids;

#endif
