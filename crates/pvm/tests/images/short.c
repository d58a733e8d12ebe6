/* short FOLDER MEBIBYTES: three tasks in three processes. The first sends the second a message of
 * so many MiB, for which the second's process has no memory at first, and then tells the third,
 * which sends the second a message, too. All arrive, in this order. */
#include <fcntl.h>
#include <pvm3.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <unistd.h>

enum { WORDS = 1 << 17, LONG = 1, AFTER, CAUSE, EFFECT };

#define CHECK(what)                                                                     \
    do {                                                                                \
        if (!(what)) {                                                                  \
            printf("FAILED: %s:%d: %s\n", __FILE__, __LINE__, #what);                   \
            fflush(stdout);                                                             \
            pvm_halt();                                                                 \
            exit(1);                                                                    \
        }                                                                               \
    } while (0)

static const char *folder;
static unsigned long some[WORDS];

static const char *path(const char *name)
{
    static char all[4096];
    snprintf(all, sizeof all, "%s/%s", folder, name);
    return all;
}

static void wait_for(const char *name)
{
    while (access(path(name), F_OK))
        usleep(5000);
}

static void send_empty(int to, int tag)
{
    CHECK(pvm_initsend(PvmDataRaw) > 0 && pvm_send(to, tag) == 0);
}

static void first(const int *all, int mebibytes)
{
    wait_for("limited");
    CHECK(pvm_initsend(PvmDataRaw) > 0);
    for (int one = 0; one < mebibytes; one++) {
        for (int word = 0; word < WORDS; word++)
            some[word] = (unsigned long)one * WORDS + word + 1;
        CHECK(pvm_pkulong(some, WORDS, 1) == 0);
    }
    CHECK(pvm_send(all[1], LONG) == 0);
    send_empty(all[1], AFTER);
    send_empty(all[2], CAUSE);
}

static void second(const int *all, int mebibytes)
{
    struct timeval moment = {0, 5000};
    close(open(path("ready"), O_CREAT | O_WRONLY, 0600));
    int buffer, bytes, tag, source;
    while (!(buffer = pvm_trecv(-1, -1, &moment)))
        ;
    CHECK(pvm_bufinfo(buffer, &bytes, &tag, &source) == 0);
    CHECK(bytes == mebibytes << 20 && tag == LONG && source == all[0]);
    for (int one = 0; one < mebibytes; one++) {
        CHECK(pvm_upkulong(some, WORDS, 1) == 0);
        for (int word = 0; word < WORDS; word++)
            CHECK(some[word] == (unsigned long)one * WORDS + word + 1);
    }
    CHECK(pvm_bufinfo(pvm_recv(-1, -1), &bytes, &tag, &source) == 0);
    CHECK(bytes == 0 && tag == AFTER && source == all[0]);
    CHECK(pvm_bufinfo(pvm_recv(-1, -1), &bytes, &tag, &source) == 0);
    CHECK(bytes == 0 && tag == EFFECT && source == all[2]);
    printf("all have arrived\n");
}

static void third(const int *all)
{
    CHECK(pvm_recv(all[0], CAUSE) > 0);
    send_empty(all[1], EFFECT);
    close(open(path("caused"), O_CREAT | O_WRONLY, 0600));
}

int main(int count, char **words)
{
    int *all, tasks = pvm_siblings(&all), own = pvm_mytid();
    if (tasks != 3 || count != 3)
        return 2;
    folder = words[1];
    int mebibytes = atoi(words[2]);
    if (own == all[0])
        first(all, mebibytes);
    else if (own == all[1])
        second(all, mebibytes);
    else
        third(all);
    pvm_exit();
    return 0;
}
