/* Common parts of the programs here. They are plain PVM programs, and start themselves again as
 * children that execute the first task's orders. Only the first task prints: a line for each check,
 * the same under any PVM. It exits with 1 if a check has failed. */
#ifndef CHECK_H
#define CHECK_H

#include <pvm3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>

enum { ORDER = 7001, REPLY };
/* Not a code of PVM: no message has arrived. */
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

/* Gives an order to a child, and does not wait. */
static void tell(int child, const char *what, const char *name, int number)
{
    pvm_initsend(PvmDataDefault);
    pvm_pkstr((char *)what);
    pvm_pkstr((char *)name);
    pvm_pkint(&number, 1, 1);
    pvm_send(child, ORDER);
}

/* The child's result. NOTHING: it has not replied in time. */
__attribute__((unused)) static int hear(int child)
{
    struct timeval within = {0, 300000};
    int code = NOTHING;
    if (pvm_trecv(child, REPLY, &within) > 0)
        pvm_upkint(&code, 1, 1);
    return code;
}

/* The child's result. Waits without a limit. */
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

/* Executes orders in a child until the order "end". */
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
