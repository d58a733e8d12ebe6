/* What the programs here have in common: they are plain PVM programs, which start themselves again, as children that obey the first one. That one alone prints: a line for each check, the same under any PVM. It ends with 1 if one has failed. */
#ifndef CHECK_H
#define CHECK_H

#include <pvm3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>

enum { ORDER = 7001, REPLY };
/* What is no code of PVM's: nothing has come. */
enum { NOTHING = -777 };

static int failed;

static void check(const char *what, int got, int want)
{
    if (got == want) {
        printf("ok: %s\n", what);
    } else {
        printf("FAILED: %s: %d, not %d\n", what, got, want);
        failed = 1;
    }
    fflush(stdout);
}

/* Has a child do something, and does not wait. */
static void tell(int child, const char *what, const char *name, int number)
{
    pvm_initsend(PvmDataDefault);
    pvm_pkstr((char *)what);
    pvm_pkstr((char *)name);
    pvm_pkint(&number, 1, 1);
    pvm_send(child, ORDER);
}

/* What came of it. NOTHING: it does not say within a time in which it would. */
__attribute__((unused)) static int hear(int child)
{
    struct timeval within = {0, 300000};
    int code = NOTHING;
    if (pvm_trecv(child, REPLY, &within) > 0)
        pvm_upkint(&code, 1, 1);
    return code;
}

/* The same for what must come. */
static int heard(int child)
{
    int code = NOTHING;
    pvm_recv(child, REPLY);
    pvm_upkint(&code, 1, 1);
    return code;
}

static int ask(int child, const char *what, const char *name, int number)
{
    tell(child, what, name, number);
    return heard(child);
}

/* A child obeys until it is told to "end". */
static void obey(int (*order)(const char *what, char *name, int number))
{
    char what[64], name[64];
    int number, code;
    pvm_setopt(PvmAutoErr, 0);
    for (;;) {
        pvm_recv(pvm_parent(), ORDER);
        pvm_upkstr(what);
        pvm_upkstr(name);
        pvm_upkint(&number, 1, 1);
        if (!strcmp(what, "end")) {
            pvm_exit();
            exit(0);
        }
        code = order(what, name, number);
        pvm_initsend(PvmDataDefault);
        pvm_pkint(&code, 1, 1);
        pvm_send(pvm_parent(), REPLY);
    }
}

static void begin(char *self, int count, int *children)
{
    pvm_setopt(PvmAutoErr, 0);
    check("children are started", pvm_spawn(self, 0, PvmTaskDefault, "", count, children), count);
}

static int finish(int count, int *children)
{
    for (int child = 0; child < count; child++)
        tell(children[child], "end", "", 0);
    printf("%s\n", failed ? "some have FAILED" : "all is well");
    pvm_exit();
    return failed;
}

#endif
