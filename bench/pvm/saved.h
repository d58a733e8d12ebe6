// Tasks that are saved in a file and go on from it. The harness saves the machine, kills it and
// starts it again. Each task has memory of its own, whose content it checks at the end.

enum { SAVED_BYTES = 100 << 10, LOOK_US = 500 };

// Prints a line when all tasks wait, and a second line when a file of this name exists and all
// tasks have found their memory as it was.
static void saved(struct asked asked, int me, int tasks) {
    char *data = buffer(SAVED_BYTES);
    int k, number = me;
    fill(data, SAVED_BYTES, me + 1);
    if (me > 0) {
        put_ints(0, &number, 1);
        take_ints(0, &number, 1);
        if (!filled(data, SAVED_BYTES, me + 1)) give_up("memory is not as it was");
        number += me;
        put_ints(0, &number, 1);
        free(data);
        return;
    }
    for (k = 1; k < tasks; k++) take_ints(k, &number, 1);
    announce(asked.mode, asked.text);
    // A task that waited for its input could not be saved.
    while (access(asked.file, F_OK)) usleep(LOOK_US);
    for (k = 1; k < tasks; k++) put_ints(k, &k, 1);
    if (!filled(data, SAVED_BYTES, 1)) give_up("memory is not as it was");
    for (k = 1; k < tasks; k++) {
        take_ints(k, &number, 1);
        if (number != 2 * k) give_up("a task has answered with another number");
    }
    announce(asked.mode, asked.text);
    free(data);
}
