// cast SCRIPT [ARGS]: starts several programs in one virtual machine as a script says, and prints
// their output.
//
// It does what a user does at PVM's console, but with PVM's own functions, so that it works in the
// same way under any PVM. Commands of a script:
//
//     start [N] PROGRAM ARGS     starts N copies by one pvm_spawn (default 1), and goes on
//     run [N] PROGRAM ARGS       the same, and waits until the copies have ended
//     pause MS                   waits for MS milliseconds
//     entries N PATTERN          waits until the mailboxes whose names match hold N entries
//     tell K TEXT                sends a text to the K-th task started (the first is 1)
//     kill K                     ends the K-th task
//     wait K                     waits until the K-th task has ended
//
// At the end it waits for all tasks. If it is compiled together with a program whose `main` was
// renamed (-Dmain=cast_program), it runs that program instead of waiting, with the standard input
// and the rest of the arguments: spawned tasks have no input.

#undef main
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <pvm3.h>

enum { MOST = 64, ENDED = 9001, TOLD = 1 };

int cast_program(int argc, char **argv) __attribute__((weak));

static int tids[MOST], ended[MOST], count;

static int fail(const char *what, const char *of) {
    printf("cast: %s: %s\n", what, of);
    pvm_exit();
    exit(1);
}

static void await(int first, int after) {
    int k, tid;
    for (;;) {
        for (k = first; k < after && ended[k]; k++) {}
        if (k == after) return;
        pvm_recv(-1, ENDED);
        pvm_upkint(&tid, 1, 1);
        for (k = 0; k < count; k++) if (tids[k] == tid) ended[k] = 1;
    }
}

// Prints the copies' ids, so that a reader can tell the tasks apart.
static void start(char **words, int wait) {
    int k, first = count, copies = 1, started;
    if (words[1] && atoi(words[1]) > 0) copies = atoi(*++words);
    if (!words[1] || count + copies > MOST) fail("cannot start", words[0]);
    started = pvm_spawn(words[1], words + 2, PvmTaskDefault, "", copies, tids + first);
    if (started != copies) fail("not all started of", words[1]);
    printf("cast: %s", words[1]);
    for (k = first; k < first + copies; k++) printf(" t%x", tids[k]);
    printf("\n");
    count += copies;
    pvm_notify(PvmTaskExit, ENDED, copies, tids + first);
    if (wait) await(first, count);
}

static void entries(int wanted, char *pattern) {
    struct pvmmboxinfo *classes;
    int k, number, found;
    do {
        found = 0;
        if (pvm_getmboxinfo(pattern, &number, &classes) < 0) fail("no list of mailboxes", pattern);
        for (k = 0; k < number; k++) found += classes[k].mi_nentries;
        if (found < wanted) usleep(10000);
    } while (found < wanted);
}

// The index of the K-th task started.
static int place_of(const char *word) {
    int k = word ? atoi(word) : 0;
    if (k < 1 || k > count) fail("no such task", word ? word : "none");
    return k - 1;
}

static void perform(char *line) {
    char *words[MOST] = {0}, *text = NULL;
    int k, to;
    // A text keeps its spaces.
    if (!strncmp(line, "tell ", 5)) text = strchr(line + 5, ' ');
    if (text) *text++ = 0;
    words[0] = strtok(line, " \n");
    for (k = 1; k < MOST - 1 && words[k - 1]; k++) words[k] = strtok(NULL, " \n");
    if (!words[0] || words[0][0] == '#') return;
    if (!strcmp(words[0], "start") || !strcmp(words[0], "run")) {
        start(words, words[0][0] == 'r');
    } else if (!strcmp(words[0], "pause") && words[1]) {
        usleep(1000 * atoi(words[1]));
    } else if (!strcmp(words[0], "entries") && words[2]) {
        entries(atoi(words[1]), words[2]);
    } else if (!strcmp(words[0], "tell") && text) {
        to = tids[place_of(words[1])];
        text[strcspn(text, "\n")] = 0;
        pvm_initsend(PvmDataDefault);
        pvm_pkstr(text);
        pvm_send(to, TOLD);
    } else if (!strcmp(words[0], "kill")) {
        pvm_kill(tids[place_of(words[1])]);
    } else if (!strcmp(words[0], "wait")) {
        k = place_of(words[1]);
        await(k, k + 1);
    } else {
        fail("not understood", words[0]);
    }
}

int main(int argc, char **argv) {
    char line[1000];
    FILE *script = argc > 1 ? fopen(argv[1], "r") : NULL;
    if (!script) {
        fprintf(stderr, "usage: cast SCRIPT [ARGS]\n");
        return 2;
    }
    pvm_catchout(stdout);
    while (fgets(line, sizeof line, script)) perform(line);
    fclose(script);
    if (cast_program) return cast_program(argc - 1, argv + 1);
    await(0, count);
    pvm_exit();
    return 0;
}
