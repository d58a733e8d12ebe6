/* The member in C of the tests of languages: the same as member.rs. Arguments: the group's name and
 * size, a rank, and what to do. */
#include "../check.h"
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/time.h>
#include <time.h>
#include <upcall_message.h>

enum { KINDS = 7, ROUNDS = 40, MOST = 8 };
enum { NONE, NUMBER, SMALL, ARRAY, WORDS, TEXT, BYTES, PLAIN, GO };

static uint64_t next[MOST];
static size_t size;

static uint64_t *small(uint64_t round) {
    static uint64_t words[4];
    words[0] = upcall_word_of_i64(-(int32_t)round);
    words[1] = round % 2;
    words[2] = upcall_word_of_f32((float)round * 0.5f);
    words[3] = upcall_word_of_f64((double)round * -0.25);
    return words;
}
static uint64_t *array(uint64_t round, size_t from, size_t to) {
    static uint64_t words[5];
    words[0] = round;
    words[1] = from;
    words[2] = to;
    words[4] = UINT16_MAX;
    return words;
}
static uint64_t *words(uint64_t round) {
    static uint64_t words[ROUNDS];
    for (uint64_t at = 0; at < round; at++) words[at] = at * UINT64_C(0x9e3779b97f4a7c15);
    return words;
}
static size_t text(char *to, uint64_t round, size_t from) {
    return (size_t)sprintf(to, "%d ß from %d", (int)round, (int)from);
}
static size_t bytes(uint8_t **to, uint64_t round, size_t from) {
    static uint8_t room[3000000];
    size_t count = round == 0 ? 100000 : round == 1 ? sizeof room : round;
    for (size_t at = 0; at < count; at++) room[at] = (uint8_t)(at + from);
    *to = room;
    return count;
}

static bool same(const upcall_message *message, const void *data, size_t len) {
    return message->size == len && (message->data == NULL) == (len == 0)
           && (len == 0 || memcmp(message->data, data, len) == 0);
}

static void on(void *context, upcall_group *group, const upcall_message *message) {
    uint64_t number = next[message->from]++, round = number / KINDS;
    char said[64];
    uint8_t *data;
    CHECK((uint64_t)(uintptr_t)context == message->kind && number % KINDS == message->kind);
    switch (message->kind) {
    case NONE: CHECK(message->size == 0 && message->data == NULL); break;
    case NUMBER: CHECK(same(message, &round, 8)); break;
    case SMALL:
        CHECK(same(message, small(round), 32) && upcall_word_i64(message, 0) == -(int64_t)round
              && upcall_word_f32(message, 2) == (float)round * 0.5f);
        CHECK(upcall_word_f64(message, 3) == (double)round * -0.25 && upcall_word(message, 4) == 0);
        break;
    case ARRAY:
        CHECK(same(message, array(round, message->from, upcall_group_rank(group)), 40));
        break;
    case WORDS: CHECK(same(message, words(round), round * 8)); break;
    case TEXT: CHECK(same(message, said, text(said, round, message->from))); break;
    default: {
        size_t count = bytes(&data, round, message->from);
        CHECK(same(message, data, count));
    }
    }
}

static bool asked;
static void on_go(void *context, upcall_group *group, const upcall_message *message) {
    (void)context, (void)group;
    asked = message->size == 0;
}

static upcall_handlers *kinds(void) {
    static const char *const all[][2] = {
        {"null", "()"},        {"number", "u64"},  {"small", "(i32,bool,f32,f64)"},
        {"array", "[u16; 5]"}, {"words", "words"}, {"text", "text"},
        {"bytes", "bytes"},    {"plain", "text"},  {"go", "()"}};
    upcall_handlers *handlers = upcall_handlers_new();
    for (upcall_kind kind = 0; kind < sizeof all / sizeof *all; kind++) {
        CHECK(upcall_handlers_kind(handlers, all[kind][0], all[kind][1], &error) == kind);
        if (kind < KINDS)
            OK(upcall_handlers_on(handlers, kind, on, (void *)(uintptr_t)kind, &error));
    }
    OK(upcall_handlers_on(handlers, GO, on_go, NULL, &error));
    return handlers;
}

static upcall_group *join(const char *name, size_t rank) {
    upcall_joining *joining = upcall_joining_new(name, size, &error);
    upcall_joining_set_rank(joining, rank);
    upcall_joining_set_patience(joining, UINT64_C(40000000000));
    upcall_group *group = upcall_group_join(joining, kinds(), &error);
    CHECK(group && upcall_group_rank(group) == rank && upcall_group_size(group) == size
          && upcall_group_process(group, rank) > 0);
    return group;
}

static bool all_there(void *context) {
    (void)context;
    for (size_t from = 0; from < size; from++)
        if (next[from] < ROUNDS * KINDS) return false;
    return true;
}

static void each_to_each(upcall_group *group, size_t rank) {
    char said[64];
    for (uint64_t round = 0; round < ROUNDS; round++) {
        for (size_t to = 0; to < size; to++) {
            uint8_t *data;
            OK(upcall_group_send(group, to, NONE, NULL, 0, &error));
            OK(upcall_group_send(group, to, NUMBER, &round, 8, &error));
            OK(upcall_group_send(group, to, SMALL, small(round), 32, &error));
            OK(upcall_group_send(group, to, ARRAY, array(round, rank, to), 40, &error));
            OK(upcall_group_send(group, to, WORDS, words(round), round * 8, &error));
            OK(upcall_group_send(group, to, TEXT, said, text(said, round, rank), &error));
            size_t count = bytes(&data, round, rank);
            OK(upcall_group_send(group, to, BYTES, data, count, &error));
        }
        OK(upcall_group_poll(group, NULL, &error));
    }
    OK(upcall_group_run_until(group, all_there, NULL, &error));
    uint64_t sum = rank + 1;
    OK(upcall_group_reduce(group, &sum, upcall_sum_u64, NULL, &error));
    CHECK(sum == size * (size + 1) / 2);
    double least = -(double)rank;
    OK(upcall_group_reduce(group, &least, upcall_min_f64, NULL, &error));
    CHECK(least == -((double)size - 1));
    OK(upcall_group_barrier(group, &error));

    /* A member that still waits in the barrier could not get past a message without a handler, so
     * the receiver asks for that message. */
    size_t before = (rank + size - 1) % size;
    OK(upcall_group_send(group, before, GO, NULL, 0, &error));
    while (!asked) {
        OK(upcall_group_poll(group, NULL, &error));
        upcall_group_wait(group, 1000000, &error);
    }
    OK(upcall_group_send(group, (rank + 1) % size, PLAIN, said, text(said, 9, rank), &error));
    upcall_message seen, taken;
    upcall_event event;
    upcall_status found;
    while ((found = upcall_group_peek(group, &seen, &error)) == UPCALL_NOTHING_THERE) {
        CHECK(upcall_group_event(group, &event, &error) == UPCALL_NOTHING_THERE);
        OK(upcall_group_wait(group, UPCALL_NEVER, &error));
    }
    OK(found);
    OK(upcall_group_receive(group, &taken, &error));
    CHECK(taken.from == before && taken.kind == PLAIN && same(&taken, said, text(said, 9, before))
          && same(&seen, taken.data, taken.size));
    upcall_message_free(&taken);
    upcall_message_free(&seen);
    OK(upcall_group_barrier(group, &error));
}

static void survive(upcall_group *group) {
    OK(upcall_group_barrier(group, &error));
    printf("ready\n");
    fflush(stdout);
    bool ended[MOST] = {false};
    /* Two members are killed, and member 0 leaves. Once this member knows that all three have
     * ended, its barrier fails with UPCALL_ENDED, even if another survivor gave it up first. Other
     * survivors may leave before this one knows of all three. */
    while (!ended[0] || !ended[size - 1] || !ended[size - 2]) {
        upcall_event event;
        OK(upcall_group_poll(group, NULL, &error));
        upcall_status found = upcall_group_event(group, &event, &error);
        if (found == UPCALL_OK) {
            CHECK(event.what == UPCALL_EVENT_ENDED && !ended[event.rank]
                  && strstr(event.text, "ended"));
            ended[event.rank] = true;
        } else {
            CHECK(found == UPCALL_NOTHING_THERE);
            upcall_group_wait(group, UINT64_C(20000000000), &error);
        }
    }
    uint64_t number = 0;
    CHECK(upcall_group_send(group, size - 1, NUMBER, &number, 8, &error) == UPCALL_ENDED
          && strstr(error.text, "ended"));
    CHECK(upcall_group_barrier(group, &error) == UPCALL_ENDED);
}

/* ---- By itself: a group of one --------------------------------------------------------------- */

static int ran;
static upcall_status left_in_handler, nested;

static void leaves(void *context, upcall_group *group, const upcall_message *message) {
    (void)message;
    upcall_error *told = context;
    left_in_handler = upcall_group_leave(group, told);
    /* Handlers may send and poll. */
    if (++ran == 1) {
        OK(upcall_group_send(group, 0, 0, NULL, 0, &error));
        nested = upcall_group_poll(group, NULL, &error);
    }
}

static void *elsewhere(void *context) {
    upcall_group *group = context;
    upcall_message message;
    upcall_event event;
    uint64_t word = 0;
    upcall_status all[] = {
        upcall_group_send(group, 0, 0, NULL, 0, &error),
        upcall_group_try_send(group, 0, 0, NULL, 0, NULL),
        upcall_group_available(group, NULL),
        upcall_group_poll(group, NULL, NULL),
        upcall_group_receive(group, &message, NULL),
        upcall_group_peek(group, &message, NULL),
        upcall_group_wait(group, 0, NULL),
        upcall_group_run_until(group, NULL, NULL, NULL),
        upcall_group_barrier(group, NULL),
        upcall_group_reduce(group, &word, upcall_sum_u64, NULL, NULL),
        upcall_group_event(group, &event, NULL),
        upcall_group_begin_atomic(group, NULL),
        upcall_group_end_atomic(group, NULL),
        upcall_group_buffered(group, 0, &word, NULL),
        upcall_group_diverted(group, &word, NULL),
        upcall_group_diversions(group, &word, NULL),
        upcall_group_leave(group, NULL),
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) CHECK(all[i] == UPCALL_OTHER_THREAD);
    CHECK(strstr(error.text, "thread that has joined") && upcall_group_size(group) == 1);
    return NULL;
}

static volatile sig_atomic_t stop;

static bool is_stopped(void *context) {
    (void)context;
    return stop;
}

static void on_alarm(int signal) {
    (void)signal;
    stop = true;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static bool never(void *context) {
    (void)context;
    return false;
}

/* Waits that a signal ends, and a wait that runs out. */
static void interrupted(upcall_group *group) {
    const struct itimerval soon = {.it_value = {.tv_usec = 50000}};
    double start = now();
    /* The wait calls `ask`, and continues. */
    CHECK(upcall_group_wait(group, 700000000, &error) == UPCALL_NOTHING_THERE
          && now() - start >= 0.7);
    CHECK(signal(SIGALRM, on_alarm) != SIG_ERR);
    setitimer(ITIMER_REAL, &soon, NULL);
    CHECK(upcall_group_wait(group, UPCALL_NEVER, &error) == UPCALL_INTERRUPTED
          && strstr(error.text, "interrupted"));
    stop = false;
    setitimer(ITIMER_REAL, &soon, NULL);
    CHECK(upcall_group_run_until(group, never, NULL, &error) == UPCALL_INTERRUPTED);
    CHECK(upcall_group_wait(group, 0, &error) == UPCALL_INTERRUPTED);
    stop = false;
}

/* With a timeout of 0 each message goes through the buffer. */
static void buffered(const char *name) {
    upcall_handlers *handlers = upcall_handlers_new();
    upcall_joining *joining = upcall_joining_new(name, 1, &error);
    upcall_message message;
    uint64_t diverted, diversions;
    CHECK(upcall_handlers_kind(handlers, "null", "()", &error) == 0);
    upcall_joining_set_timeout(joining, 0);
    upcall_group *group = upcall_group_join(joining, handlers, &error);
    CHECK(group);
    OK(upcall_group_send(group, 0, 0, NULL, 0, &error));
    OK(upcall_group_receive(group, &message, &error));
    upcall_message_free(&message);
    OK(upcall_group_diverted(group, &diverted, &error));
    OK(upcall_group_diversions(group, &diversions, &error));
    CHECK(diverted == 1 && diversions == 1);
    OK(upcall_group_leave(group, &error));
}

static void alone(const char *name) {
    upcall_error told;
    upcall_handlers *handlers = upcall_handlers_new();
    CHECK(upcall_handlers_kind(handlers, "null", "()", &error) == 0);
    CHECK(upcall_handlers_kind(handlers, "small", "(i32, u8)", &error) == 1);
    CHECK(upcall_handlers_kind(handlers, "text", "text", &error) == 2);
    CHECK(upcall_handlers_kind(handlers, "words", "words", &error) == 3);
    CHECK(upcall_handlers_kind(handlers, "null", "()", &error) == UPCALL_NO_KIND
          && error.status == UPCALL_MISUSE && strstr(error.text, "already"));
    CHECK(upcall_handlers_kind(handlers, "bad", "u46", &error) == UPCALL_NO_KIND
          && strstr(error.text, "u46"));
    CHECK(upcall_handlers_kind(handlers, "upcall:came", "u8", &error) == UPCALL_NO_KIND);
    CHECK(upcall_handlers_kind(NULL, "bad", "u8", &error) == UPCALL_NO_KIND);
    CHECK(upcall_handlers_on(handlers, 4, leaves, NULL, &error) == UPCALL_MISUSE
          && upcall_handlers_on(handlers, 0, NULL, NULL, &error) == UPCALL_MISUSE);
    OK(upcall_handlers_on(handlers, 0, leaves, &told, &error));
    upcall_handlers_set_interruption(handlers, is_stopped, NULL);
    upcall_group *group = upcall_group_join(upcall_joining_new(name, 1, &error), handlers, &error);
    CHECK(group);

    /* Payloads that do not fit their kinds. */
    uint64_t small[] = {0, 0, 0};
    CHECK(upcall_group_send(group, 0, 1, small, 15, &error) == UPCALL_UNFIT
          && strstr(error.text, "15 bytes"));
    CHECK(upcall_group_send(group, 0, 1, small, 24, &error) == UPCALL_UNFIT);
    CHECK(upcall_group_send(group, 0, 1, NULL, 16, &error) == UPCALL_MISUSE);
    small[1] = 256;
    CHECK(upcall_group_try_send(group, 0, 1, small, 16, &error) == UPCALL_UNFIT
          && strstr(error.text, "0x100 is no u8"));
    small[0] = (uint64_t)INT32_MAX + 1;
    CHECK(upcall_group_send(group, 0, 1, small, 16, &error) == UPCALL_UNFIT
          && strstr(error.text, "i32"));
    CHECK(upcall_group_send(group, 0, 2, "\xff", 1, &error) == UPCALL_UNFIT
          && strstr(error.text, "UTF-8"));
    CHECK(upcall_group_send(group, 0, 3, small, 12, &error) == UPCALL_UNFIT);
    CHECK(upcall_group_send(group, 0, 4, NULL, 0, &error) == UPCALL_MISUSE
          && upcall_group_send(group, 0, UPCALL_NO_KIND, NULL, 0, &error) == UPCALL_MISUSE);
    CHECK(upcall_group_send(group, 1, 0, NULL, 0, &error) == UPCALL_NO_SUCH_RANK
          && upcall_group_send(NULL, 0, 0, NULL, 0, &error) == UPCALL_MISUSE);

    upcall_message message;
    upcall_event event;
    size_t count;
    uint64_t word = 7;
    strcpy(error.text, "not written");
    CHECK(upcall_group_available(group, &error) == UPCALL_NOTHING_THERE
          && upcall_group_receive(group, &message, &error) == UPCALL_NOTHING_THERE);
    CHECK(upcall_group_event(group, &event, &error) == UPCALL_NOTHING_THERE
          && upcall_group_wait(group, 1000000, &error) == UPCALL_NOTHING_THERE);
    CHECK(strcmp(error.text, "not written") == 0
          && upcall_group_receive(group, NULL, &error) == UPCALL_MISUSE);

    /* A handler that leaves, and one that polls. */
    OK(upcall_group_send(group, 0, 0, NULL, 0, &error));
    OK(upcall_group_wait(group, UPCALL_NEVER, &error));
    OK(upcall_group_poll(group, &count, &error));
    CHECK(ran == 2 && count == 1 && nested == UPCALL_OK && left_in_handler == UPCALL_MISUSE
          && strstr(told.text, "leave after that"));
    CHECK(upcall_group_end_atomic(group, &error) == UPCALL_MISUSE);
    OK(upcall_group_begin_atomic(group, &error));
    OK(upcall_group_begin_atomic(group, &error));
    OK(upcall_group_end_atomic(group, &error));
    OK(upcall_group_end_atomic(group, &error));
    CHECK(upcall_group_end_atomic(group, &error) == UPCALL_MISUSE);

    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, elsewhere, group) == 0 && pthread_join(thread, NULL) == 0);
    OK(upcall_group_reduce(group, &word, upcall_max_u64, NULL, &error));
    CHECK(word == 7
          && upcall_group_reduce(group, NULL, upcall_max_u64, NULL, &error) == UPCALL_MISUSE);
    OK(upcall_group_buffered(group, 0, &word, &error));
    CHECK(word == 0 && upcall_group_buffered(group, 1, &word, &error) == UPCALL_NO_SUCH_RANK
          && upcall_group_diverted(group, NULL, &error) == UPCALL_MISUSE);

    /* A message without a handler is reported. */
    OK(upcall_group_send(group, 0, 2, "x", 1, &error));
    CHECK(upcall_group_run_until(group, NULL, NULL, &error) == UPCALL_UNHANDLED
          && strstr(error.text, "\"text\""));
    OK(upcall_group_available(group, &error));
    OK(upcall_group_receive(group, &message, &error));
    CHECK(same(&message, "x", 1));
    upcall_message_free(&message);
    interrupted(group);
    OK(upcall_group_leave(group, &error));
    OK(upcall_group_leave(NULL, &error));

    buffered(name);
    CHECK(!upcall_group_join(upcall_joining_new(name, 0, &error), upcall_handlers_new(), &error)
          && error.status == UPCALL_MISUSE);
    CHECK(!upcall_group_join(NULL, upcall_handlers_new(), &error)
          && !upcall_group_join(upcall_joining_new(name, 1, &error), NULL, &error));
    CHECK(!upcall_joining_from_environment(&error) && error.status == UPCALL_NO_JOB
          && strstr(error.text, "UPCALL_GROUP"));
    upcall_joining *late = upcall_joining_new(name, 2, &error),
                   *patient = upcall_joining_new(name, 2, &error);
    handlers = upcall_handlers_new();
    upcall_handlers_set_interruption(handlers, is_stopped, NULL);
    upcall_joining_set_patience(patient, UPCALL_NEVER);
    stop = true;
    CHECK(!upcall_group_join(patient, handlers, &error) && error.status == UPCALL_INTERRUPTED);
    upcall_joining_set_patience(late, 1000000);
    CHECK(!upcall_group_join(late, upcall_handlers_new(), &error)
          && error.status == UPCALL_INCOMPLETE);
    upcall_handlers_free(upcall_handlers_new());
    upcall_joining_free(upcall_joining_new(name, 2, &error));
}

/* Another list of kinds: the member that comes first takes in the others, and refuses them. */
static void differs(const char *name, size_t rank) {
    upcall_handlers *handlers = upcall_handlers_new();
    CHECK(upcall_handlers_kind(handlers, "null", "()", &error) == 0
          && upcall_handlers_kind(handlers, "number", "i64", &error) == 1);
    upcall_joining *joining = upcall_joining_new(name, size, &error);
    upcall_joining_set_rank(joining, rank);
    upcall_joining_set_patience(joining, UINT64_C(30000000000));
    CHECK(!upcall_group_join(joining, handlers, &error));
    CHECK(error.status == UPCALL_NOT_TAKEN_IN || error.status == UPCALL_INCOMPLETE);
    printf("%s\n", error.text);
}

/* The other member sends a malformed number; this member polls for it, or receives it. */
static void violated(const char *name, bool polls) {
    upcall_handlers *handlers = upcall_handlers_new();
    upcall_joining *joining = upcall_joining_new(name, 2, &error);
    upcall_event event;
    upcall_message message;
    CHECK(upcall_handlers_kind(handlers, "number", "u64", &error) == 0);
    if (polls) OK(upcall_handlers_on(handlers, 0, on, NULL, &error));
    upcall_joining_set_rank(joining, 1);
    upcall_group *group = upcall_group_join(joining, handlers, &error);
    CHECK(group);
    upcall_status found;
    while ((found = upcall_group_event(group, &event, &error)) == UPCALL_NOTHING_THERE) {
        upcall_group_wait(group, UINT64_C(20000000000), &error);
        if (polls) OK(upcall_group_poll(group, NULL, &error));
        else CHECK(upcall_group_receive(group, &message, &error) == UPCALL_NOTHING_THERE);
    }
    CHECK(found == UPCALL_OK && event.what == UPCALL_EVENT_VIOLATION && event.rank == 0
          && strstr(event.text, "\"number\"") && next[0] == 0);
    OK(upcall_group_leave(group, &error));
}

enum { INTERRUPTS = 300 };
static atomic_uint_fast64_t heard, wrong;

/* Answers each number with itself. */
static void on_interrupt(void *context, upcall_interrupt *interrupt,
                         const upcall_message *message) {
    uint64_t number = upcall_word(message, 0);
    bool good = context == &heard && message->from == 0 && message->kind == 0
                && message->size == sizeof number && number == heard;
    good &= upcall_interrupt_rank(interrupt) == 1 && upcall_interrupt_size(interrupt) == 2;
    good &=
        upcall_interrupt_try_send(interrupt, 2, 0, &number, sizeof number) == UPCALL_NO_SUCH_RANK;
    good &= upcall_interrupt_try_send(interrupt, 0, 0, &number, 4) == UPCALL_UNFIT;
    good &= upcall_interrupt_try_send(interrupt, 0, 1000, &number, sizeof number) == UPCALL_MISUSE;
    good &= upcall_interrupt_try_send(interrupt, 0, 0, &number, sizeof number) == UPCALL_OK;
    if (!good) wrong++;
    heard++;
}

/* Runs until all messages have arrived, and a while longer, doing what a handler may not do. */
static void compute(void *group) {
    double limit = now() + 30, ends = limit;
    CHECK(upcall_group_leave(group, &error) == UPCALL_MISUSE);
    while (now() < ends) {
        free(malloc(1 + (size_t)heard));
        if (heard == INTERRUPTS && ends == limit) ends = now() + 0.05;
    }
    CHECK(ends < limit);
}

/* This member computes, and the other one interrupts it; in the end by a malformed number, which an
 * interrupt leaves to a poll. */
static void interrupts(const char *name) {
    upcall_handlers *handlers = upcall_handlers_new();
    upcall_joining *joining = upcall_joining_new(name, 2, &error);
    upcall_event event;
    CHECK(upcall_handlers_kind(handlers, "number", "u64", &error) == 0
          && upcall_handlers_kind(handlers, "lie", "u64", &error) == 1);
    CHECK(upcall_handlers_kind(handlers, "text", "text", &error) == 2
          && upcall_handlers_kind(handlers, "long", "[u64; 9]", &error) == 3);
    OK(upcall_handlers_on_interrupt(handlers, 0, on_interrupt, &heard, &error));
    OK(upcall_handlers_on_interrupt(handlers, 1, on_interrupt, NULL, &error));
    CHECK(upcall_handlers_on_interrupt(handlers, 2, on_interrupt, NULL, &error) == UPCALL_MISUSE
          && strstr(error.text, "carry text"));
    CHECK(upcall_handlers_on_interrupt(handlers, 3, on_interrupt, NULL, &error) == UPCALL_MISUSE
          && strstr(error.text, "64 bytes"));
    CHECK(upcall_handlers_on_interrupt(handlers, 4, on_interrupt, NULL, &error) == UPCALL_MISUSE);
    CHECK(upcall_handlers_on_interrupt(handlers, 0, NULL, NULL, &error) == UPCALL_MISUSE);
    upcall_joining_set_rank(joining, 1);
    upcall_group *group = upcall_group_join(joining, handlers, &error);
    CHECK(group);
    CHECK(upcall_group_interruptible(group, NULL, NULL, &error) == UPCALL_MISUSE);
    OK(upcall_group_barrier(group, &error));
    OK(upcall_group_interruptible(group, compute, group, &error));
    CHECK(heard == INTERRUPTS && wrong == 0);
    OK(upcall_group_poll(group, NULL, &error));
    OK(upcall_group_event(group, &event, &error));
    CHECK(event.what == UPCALL_EVENT_VIOLATION && strstr(event.text, "\"lie\"")
          && heard == INTERRUPTS);
    OK(upcall_group_leave(group, &error));
}

int main(int count, char **arguments) {
    if (count != 5) return 2;
    const char *name = arguments[1], *what = arguments[4];
    size_t rank = strtoul(arguments[3], NULL, 10);
    size = strtoul(arguments[2], NULL, 10);
    if (strcmp(what, "alone") == 0) {
        alone(name);
    } else if (strcmp(what, "interrupts") == 0) {
        interrupts(name);
    } else if (strcmp(what, "differs") == 0) {
        differs(name, rank);
    } else if (strcmp(what, "polls") == 0 || strcmp(what, "receives") == 0) {
        violated(name, *what == 'p');
    } else {
        upcall_group *group = join(name, rank);
        if (strcmp(what, "all") == 0) each_to_each(group, rank);
        else survive(group);
        OK(upcall_group_leave(group, &error));
    }
    return 0;
}
