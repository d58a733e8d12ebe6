/* The descriptors of a child: those of the program, under the program's numbers.
 *
 * A child begins with the process's descriptors, which are closed when it becomes another program.
 * Before that, the child moves each descriptor that it inherits to the program's number for it.
 * That number may be another descriptor of the process's, which has to be moved first. So the
 * moves are put in order: none overwrites a descriptor that a later one needs. In a circle of
 * moves, one descriptor waits at a number that no move needs.
 *
 * Then the child does what its caller asked for, in the program's numbers. The caller may use
 * descriptors that the child does not inherit. These are moved, too, and closed at the end. */

#define _GNU_SOURCE
#include "calls.h"
#include <stdlib.h>
#include <string.h>

/* As in libc: what a child first does with descriptors. */
struct action {
    enum { CLOSE, DUPLICATE, OPEN, CHDIR, FCHDIR, CLOSE_FROM, FOREGROUND } what;
    union {
        int descriptor; /* of all but CHDIR */
        struct {
            int from, to;
        } duplicate;
        long words[3];
    };
};

/* What to do with each number. */
struct place {
    /* The descriptor that is to move here, plus 1; 0 if there is none. */
    int from;
    /* The number to which what is here is to move, plus 1; 0 if it is to move nowhere. */
    int to;
    /* The caller uses what is here, and the child does not inherit it. */
    char lent;
    /* The caller's own actions make something new here. */
    char made;
};

struct plan {
    posix_spawn_file_actions_t *actions;
    struct place *places;
    int count, error;
};

static int entries(void)
{
    return ((upvm_entry *)&upvm_table()[UPVM_TABLE_FILES_RANGE])[1];
}

/* The process's own 0, 1 and 2 are inherited by the kernel. */
static int is_as_ever(int number)
{
    return number < 3 && upvm_real(number) == number && upvm_inherits(number, -1) == 1;
}

int upvm_gives(void)
{
    if (!upvm_is_virtual())
        return 0;
    for (int number = 0; number < 3; number++)
        if (!is_as_ever(number))
            return 1;
    return entries() > 3;
}

static void move(struct plan *plan, int from, int to)
{
    if (!plan->error)
        plan->error = posix_spawn_file_actions_adddup2(plan->actions, from, to);
}

static void end(struct plan *plan, int number)
{
    if (!plan->error)
        plan->error = posix_spawn_file_actions_addclose(plan->actions, number);
}

/* The descriptor that one of the caller's actions uses; -1 if it uses none. */
static int used(const struct action *action)
{
    switch (action->what) {
    case DUPLICATE: return action->duplicate.from;
    case FCHDIR:
    case FOREGROUND: return action->descriptor;
    default: return -1;
    }
}

/* Notes what the caller's actions need, and what they make. */
static void look(struct plan *plan, const posix_spawn_file_actions_t *given)
{
    const struct action *all = given ? (const void *)given->__actions : 0;
    for (int one = 0; given && one < given->__used; one++) {
        int number = used(&all[one]), made = -1;
        if (number >= 0 && number < plan->count && upvm_inherits(number, -1) != 1)
            plan->places[number].lent = 1;
        if (all[one].what == DUPLICATE)
            made = all[one].duplicate.to;
        else if (all[one].what == OPEN)
            made = all[one].descriptor;
        if (made >= 0 && made < plan->count)
            plan->places[made].made = 1;
    }
}

/* Moves what is to be at `number`, and then what is to be where that was, and so on. Nothing needs
 * what is at `number` now. */
static void move_chain(struct plan *plan, int number)
{
    struct place *places = plan->places;
    while (places[number].from) {
        int from = places[number].from - 1;
        move(plan, from, number);
        places[number].from = places[from].to = 0;
        number = from;
    }
}

/* Moves what is to be at `number`, after all that has to move before. */
static void move_to(struct plan *plan, int number)
{
    struct place *places = plan->places;
    int last = number;
    while (places[last].to && places[last].to - 1 != number)
        last = places[last].to - 1;
    if (!places[last].to) {
        move_chain(plan, last);
        return;
    }
    /* A circle: what is at `number` waits at a free place. */
    int place = 0;
    while (place < plan->count - 1 && (upvm_real(place) >= 0 || places[place].to))
        place++;
    int goes = places[number].to - 1;
    move(plan, number, place);
    places[number].to = 0;
    places[goes].from = place + 1, places[place].to = goes + 1;
    move_chain(plan, number);
    end(plan, place);
}

static void arrange(struct plan *plan)
{
    struct place *places = plan->places;
    for (int number = 0; number < entries(); number++) {
        int real = upvm_real(number);
        if (real < 0 || !(upvm_inherits(number, -1) == 1 || places[number].lent))
            continue;
        if (real == number) {
            /* This makes it one that is not closed. */
            if (!places[number].lent && !is_as_ever(number))
                move(plan, number, number);
            continue;
        }
        places[number].from = real + 1, places[real].to = number + 1;
    }
    for (int number = 0; number < plan->count; number++)
        if (places[number].from)
            move_to(plan, number);
}

/* Closes what the process has and the program has not: among its 0, 1 and 2, and among what the
 * caller uses. */
static void close_others(struct plan *plan)
{
    for (int number = 0; number < plan->count; number++) {
        int open = upvm_real(number) >= 0;
        if ((number < 3 && !(open && upvm_inherits(number, -1) == 1) &&
             !(open && plan->places[number].lent)) ||
            (!open && plan->places[number].lent))
            end(plan, number);
    }
}

/* What the caller asked for, in the middle. */
static void append(struct plan *plan, const posix_spawn_file_actions_t *given)
{
    posix_spawn_file_actions_t *made = plan->actions;
    if (plan->error || !given || !given->__used)
        return;
    int all = made->__used + given->__used;
    struct action *actions = realloc(made->__actions, all * sizeof *actions);
    if (!actions) {
        plan->error = ENOMEM;
        return;
    }
    memcpy(actions + made->__used, given->__actions, given->__used * sizeof *actions);
    made->__actions = (void *)actions;
    made->__used = made->__allocated = all;
}

int upvm_give(const posix_spawn_file_actions_t *given, posix_spawn_file_actions_t *made)
{
    struct plan plan = {.actions = made, .count = entries()};
    for (int number = 0; number < entries(); number++)
        if (upvm_real(number) >= plan.count)
            plan.count = upvm_real(number) + 1;
    /* One place more than there are numbers, which is free. */
    plan.count++;
    int failed = posix_spawn_file_actions_init(made);
    if (failed)
        return failed;
    plan.places = calloc(plan.count, sizeof *plan.places);
    if (!plan.places)
        return ENOMEM;
    look(&plan, given);
    arrange(&plan);
    close_others(&plan);
    append(&plan, given);
    for (int number = 0; number < plan.count; number++)
        if (plan.places[number].lent && !plan.places[number].made)
            end(&plan, number);
    free(plan.places);
    return plan.error;
}
