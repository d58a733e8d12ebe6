/* A member in C that reads messages in place. Arguments: the group's name and size, a rank, and
 * what to do. */
#include "../check.h"
#include <pthread.h>
#include <time.h>
#include <unistd.h>
#include <upcall_message.h>

enum { BYTES, NUMBER, TEXT };
enum { LARGE = 64 << 20, LITTLE = 8 << 20 };

static upcall_handlers *kinds(void) {
    static const char *const all[][2] = {{"bytes", "bytes"}, {"number", "u64"}, {"text", "text"}};
    upcall_handlers *handlers = upcall_handlers_new();
    for (upcall_kind kind = 0; kind < sizeof all / sizeof *all; kind++)
        CHECK(upcall_handlers_kind(handlers, all[kind][0], all[kind][1], &error) == kind);
    return handlers;
}

static upcall_group *join(const char *name, size_t size, size_t rank, upcall_handlers *handlers) {
    upcall_joining *joining = upcall_joining_new(name, size, &error);
    upcall_joining_set_rank(joining, rank);
    upcall_joining_set_patience(joining, UINT64_C(40000000000));
    upcall_group *group = upcall_group_join(joining, handlers, &error);
    CHECK(group);
    return group;
}

/* Resident bytes of this process, including those of files. */
static size_t resident(void) {
    char line[200];
    size_t kibibytes = 0;
    FILE *status = fopen("/proc/self/status", "r");
    CHECK(status);
    while (fgets(line, sizeof line, status)) sscanf(line, "VmRSS: %zu", &kibibytes);
    fclose(status);
    CHECK(kibibytes > 0);
    return kibibytes << 10;
}

static unsigned char byte(const upcall_place *place, size_t at) {
    return ((const volatile unsigned char *)upcall_place_data(place))[at];
}

/* ---- A large message of another process, which leaves early ---------------------------------- */

static size_t before;

static void ends_of_large(void *context, upcall_group *group, const upcall_place *place) {
    bool *stays = context;
    unsigned char last = 0;
    CHECK(upcall_place_from(place) == 0 && upcall_place_kind(place) == BYTES
          && upcall_place_size(place) == LARGE);
    if (!*stays) {
        printf("ready\n");
        fflush(stdout);
        nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
        upcall_event event;
        CHECK(upcall_group_event(group, &event, &error) == UPCALL_NOTHING_THERE);
    }
    CHECK(byte(place, 0) == 3 && byte(place, LARGE - 1) == 5
          && upcall_place_word(place, LARGE / 8 - 1) >> 56 == 5);
    CHECK(upcall_place_copy(place, LARGE - 1, &last, 1) && last == 5
          && !upcall_place_copy(place, LARGE, &last, 1));
    CHECK(resident() < before + LITTLE);
    *stays = !*stays;
}

static void large(const char *name) {
    upcall_group *group = join(name, 2, 1, kinds());
    upcall_message message;
    upcall_event event;
    bool stays = true;
    OK(upcall_group_barrier(group, &error));
    OK(upcall_group_wait(group, UPCALL_NEVER, &error));
    before = resident();
    OK(upcall_group_peek_in_place(group, ends_of_large, &stays, &error));
    /* The contrast: it shows that a copy would be noticed. */
    OK(upcall_group_peek(group, &message, &error));
    CHECK(message.size == LARGE && resident() > before + LARGE);
    upcall_message_free(&message);
    before = resident();
    OK(upcall_group_receive_in_place(group, ends_of_large, &stays, &error));
    CHECK(stays);
    /* In order. */
    OK(upcall_group_receive(group, &message, &error));
    CHECK(message.kind == NUMBER && upcall_word(&message, 0) == 7);
    upcall_message_free(&message);
    upcall_status found;
    while ((found = upcall_group_event(group, &event, &error)) == UPCALL_NOTHING_THERE) {
        CHECK(upcall_group_receive_in_place(group, ends_of_large, &stays, &error)
              == UPCALL_NOTHING_THERE);
        upcall_group_wait(group, UINT64_C(20000000000), &error);
    }
    CHECK(found == UPCALL_OK && event.what == UPCALL_EVENT_ENDED && event.rank == 0);
    OK(upcall_group_leave(group, &error));
}

/* ---- Payloads that do not fit their kind ----------------------------------------------------- */

static void never(void *context, upcall_group *group, const upcall_place *place) {
    (void)group, (void)place;
    ++*(int *)context;
}

static void violated(const char *name, bool takes) {
    upcall_handlers *handlers = upcall_handlers_new();
    upcall_event event;
    int ran = 0;
    CHECK(upcall_handlers_kind(handlers, "number", "u64", &error) == 0);
    upcall_group *group = join(name, 2, 1, handlers);
    upcall_status found;
    while ((found = upcall_group_event(group, &event, &error)) == UPCALL_NOTHING_THERE) {
        upcall_group_wait(group, UINT64_C(20000000000), &error);
        CHECK((takes ? upcall_group_receive_in_place
                     : upcall_group_peek_in_place)(group, never, &ran, &error)
              == UPCALL_NOTHING_THERE);
    }
    CHECK(found == UPCALL_OK && event.what == UPCALL_EVENT_VIOLATION
          && strstr(event.text, "\"number\"") && ran == 0);
    OK(upcall_group_leave(group, &error));
}

/* ---- By itself ------------------------------------------------------------------------------- */

static void *reads_place(void *context) {
    const upcall_place *place = context;
    CHECK(upcall_place_word(place, 0) == 1 && upcall_place_size(place) == 8);
    return NULL;
}

/* `take` can use the group, but not leave it, and gets no other message of this sender. */
static void uses_group(void *context, upcall_group *group, const upcall_place *place) {
    upcall_message message;
    uint64_t number = 3, copy = 0;
    int ran = 0;
    size_t count = 1;
    pthread_t thread;
    strcpy(error.text, "not written");
    CHECK(upcall_place_word(place, 0) == 1 && upcall_place_word(place, 1) == 0
          && upcall_place_word(place, SIZE_MAX) == 0);
    CHECK(upcall_place_copy(place, 0, &copy, 8) && copy == 1
          && upcall_place_copy(place, 8, NULL, 0));
    CHECK(!upcall_place_copy(place, 1, &copy, 8) && !upcall_place_copy(place, SIZE_MAX, &copy, 8)
          && !upcall_place_copy(place, 0, NULL, 8));
    CHECK((uintptr_t)upcall_place_data(place) % 8 == 0
          && *(const volatile uint64_t *)upcall_place_data(place) == 1);
    CHECK(pthread_create(&thread, NULL, reads_place, (void *)(uintptr_t)place) == 0
          && pthread_join(thread, NULL) == 0);
    CHECK(upcall_group_receive_in_place(group, never, &ran, &error) == UPCALL_NOTHING_THERE
          && upcall_group_peek_in_place(group, never, &ran, &error) == UPCALL_NOTHING_THERE);
    CHECK(upcall_group_receive(group, &message, &error) == UPCALL_NOTHING_THERE
          && upcall_group_available(group, &error) == UPCALL_NOTHING_THERE);
    OK(upcall_group_poll(group, &count, &error));
    OK(upcall_group_send(group, 0, NUMBER, &number, 8, &error));
    CHECK(ran == 0 && count == 0 && strcmp(error.text, "not written") == 0);
    CHECK(upcall_group_leave(group, &error) == UPCALL_MISUSE
          && strstr(error.text, "leave after that"));
    ++*(int *)context;
}

static void expect_number(void *context, upcall_group *group, const upcall_place *place) {
    (void)group;
    CHECK(upcall_place_kind(place) == NUMBER
          && upcall_place_word(place, 0) == *(uint64_t *)context);
}

static void to_pipe(void *context, upcall_group *group, const upcall_place *place) {
    (void)group;
    CHECK(
        upcall_place_kind(place) == TEXT
        && write(*(int *)context, (const void *)upcall_place_data(place), upcall_place_size(place))
               == 5);
}

static void empty(void *context, upcall_group *group, const upcall_place *place) {
    (void)context, (void)group;
    CHECK(upcall_place_size(place) == 0 && upcall_place_data(place) == NULL
          && upcall_place_copy(place, 0, NULL, 0));
}

static void *elsewhere(void *context) {
    int ran = 0;
    CHECK(upcall_group_receive_in_place(context, never, &ran, &error) == UPCALL_OTHER_THREAD
          && upcall_group_peek_in_place(context, never, &ran, NULL) == UPCALL_OTHER_THREAD);
    CHECK(ran == 0 && strstr(error.text, "thread that has joined"));
    return NULL;
}

/* In a handler. */
static void on_number(void *context, upcall_group *group, const upcall_message *message) {
    uint64_t next = upcall_word(message, 0) + 1;
    OK(upcall_group_receive_in_place(group, expect_number, &next, &error));
    ++*(int *)context;
}

static void alone(const char *name) {
    int used = 0, ran = 0, pipes[2];
    char said[8] = "";
    uint64_t number = 1;
    pthread_t thread;
    upcall_handlers *handlers = kinds();
    OK(upcall_handlers_on(handlers, NUMBER, on_number, &ran, &error));
    upcall_group *group = join(name, 1, 0, handlers);
    CHECK(upcall_group_receive_in_place(group, NULL, NULL, &error) == UPCALL_MISUSE
          && strstr(error.text, "NULL"));
    CHECK(upcall_group_peek_in_place(group, NULL, NULL, &error) == UPCALL_MISUSE
          && upcall_group_receive_in_place(NULL, uses_group, &used, &error) == UPCALL_MISUSE);
    CHECK(upcall_group_receive_in_place(group, uses_group, &used, &error) == UPCALL_NOTHING_THERE
          && used == 0);
    CHECK(pthread_create(&thread, NULL, elsewhere, group) == 0 && pthread_join(thread, NULL) == 0);
    CHECK(upcall_place_size(NULL) == 0 && upcall_place_data(NULL) == NULL
          && upcall_place_kind(NULL) == UPCALL_NO_KIND && !upcall_place_copy(NULL, 0, said, 0));

    /* Two messages wait, and each look sends one more. */
    OK(upcall_group_send(group, 0, NUMBER, &number, 8, &error));
    number = 2;
    OK(upcall_group_send(group, 0, NUMBER, &number, 8, &error));
    OK(upcall_group_peek_in_place(group, uses_group, &used, &error));
    OK(upcall_group_receive_in_place(group, uses_group, &used, &error));
    CHECK(used == 2);
    OK(upcall_group_receive_in_place(group, expect_number, &number, &error));
    /* The two messages that the looks sent, and then a handler that takes the other message itself.
     */
    uint64_t three = 3;
    OK(upcall_group_peek_in_place(group, expect_number, &three, &error));
    OK(upcall_group_receive_in_place(group, expect_number, &three, &error));
    OK(upcall_group_receive_in_place(group, expect_number, &three, &error));
    OK(upcall_group_send(group, 0, NUMBER, &number, 8, &error));
    OK(upcall_group_send(group, 0, NUMBER, &three, 8, &error));
    OK(upcall_group_poll(group, NULL, &error));
    CHECK(ran == 1 && upcall_group_available(group, &error) == UPCALL_NOTHING_THERE);

    OK(upcall_group_send(group, 0, TEXT, "as is", 5, &error));
    OK(upcall_group_send(group, 0, BYTES, NULL, 0, &error));
    CHECK(pipe(pipes) == 0);
    OK(upcall_group_receive_in_place(group, to_pipe, &pipes[1], &error));
    CHECK(read(pipes[0], said, sizeof said) == 5 && strcmp(said, "as is") == 0);
    OK(upcall_group_receive_in_place(group, empty, NULL, &error));
    CHECK(upcall_group_peek_in_place(group, empty, NULL, &error) == UPCALL_NOTHING_THERE);
    OK(upcall_group_leave(group, &error));
}

int main(int count, char **arguments) {
    if (count != 5) return 2;
    const char *name = arguments[1], *what = arguments[4];
    if (strcmp(what, "alone") == 0) alone(name);
    else if (strcmp(what, "large") == 0) large(name);
    else violated(name, strcmp(what, "receives") == 0);
    return 0;
}
