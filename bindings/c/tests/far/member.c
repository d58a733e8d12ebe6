/* A member in C of a group across hosts, which a test controls; far_member.py is the same in
 * Python. Arguments: the group's name and size, a rank, and options; or, of a process that is no
 * member, "ask", a request and an address. The member reads one command a line and writes one reply
 * a line: "ok" with words, or "error" with a status and a text. Messages to each other member are
 * numbered, and the receiver checks that none is missing, doubled or out of order. */
#include "../check.h"
#include <upcall_message.h>

enum { MOST = 8 };

/* Longest wait, in nanoseconds. A test waits for longer. */
static const uint64_t PATIENCE = UINT64_C(50000000000);
static const uint64_t FACTOR = UINT64_C(0x9e3779b97f4a7c15);

/* By rank: the next number to send, the number of messages taken, and events. */
static uint64_t next[MOST], taken[MOST];
static bool ended[MOST], joined[MOST], parted[MOST][MOST];

static void on_data(void *context, upcall_group *group, const upcall_message *message) {
    uint64_t number = taken[message->from]++;
    (void)context;
    CHECK(upcall_word(message, 0) == number && upcall_word(message, 1) == number * FACTOR
          && upcall_word(message, 2) == message->from
          && upcall_word(message, 3) == upcall_group_rank(group));
}

static void failed(void) {
    printf("error %d %s\n", (int)error.status, error.text);
}

static void reply(upcall_status status, uint64_t number) {
    if (status == UPCALL_OK) printf("ok %llu\n", (unsigned long long)number);
    else failed();
}

/* Returns the value of an option of this name, or NULL. */
static const char *option(const char *argument, const char *name) {
    size_t len = strlen(name);
    return strncmp(argument, name, len) == 0 && argument[len] == '=' ? argument + len + 1 : NULL;
}

static uint64_t milliseconds(const char *number) {
    return strtoull(number, NULL, 10) * 1000000;
}

/* Reads the invitation from a line of the test. */
static bool set_late(upcall_joining *joining, const char *ranks) {
    unsigned long first, count;
    char line[200];
    CHECK(sscanf(ranks, "%lu:%lu", &first, &count) == 2 && fgets(line, sizeof line, stdin));
    line[strcspn(line, "\n")] = 0;
    return upcall_joining_set_late(joining, first, count, line, &error) == UPCALL_OK;
}

/* Returns the description of the group, or NULL if the invitation is none. */
static upcall_joining *described(int count, char **arguments) {
    upcall_joining *joining =
        upcall_joining_new(arguments[1], strtoul(arguments[2], NULL, 10), &error);
    CHECK(joining);
    upcall_joining_set_rank(joining, strtoul(arguments[3], NULL, 10));
    upcall_joining_set_patience(joining, PATIENCE);
    for (int at = 4; at < count; at++) {
        const char *value;
        if ((value = option(arguments[at], "across")))
            OK(upcall_joining_set_across(joining, value, &error));
        else if ((value = option(arguments[at], "lost")))
            upcall_joining_set_lost_after(joining, milliseconds(value));
        else if ((value = option(arguments[at], "cut")))
            upcall_joining_set_reconnect_within(joining, milliseconds(value));
        else if ((value = option(arguments[at], "room")))
            upcall_joining_set_room(joining, strtoul(value, NULL, 10));
        else if ((value = option(arguments[at], "late"))) {
            if (!set_late(joining, value)) return NULL;
        } else CHECK(!"an unknown option");
    }
    return joining;
}

static void take_events(upcall_group *group) {
    upcall_event event;
    upcall_status found;
    while ((found = upcall_group_event(group, &event, &error)) == UPCALL_OK) {
        CHECK(event.rank < MOST && event.what != UPCALL_EVENT_VIOLATION);
        CHECK(event.other < MOST);
        CHECK((event.other == event.rank) == (event.what != UPCALL_EVENT_PARTED));
        bool *happened = event.what == UPCALL_EVENT_JOINED ? &joined[event.rank]
                       : event.what == UPCALL_EVENT_PARTED ? &parted[event.rank][event.other]
                                                           : &ended[event.rank];
        CHECK(!*happened);
        *happened = true;
    }
    CHECK(found == UPCALL_NOTHING_THERE);
}

/* Polls until `flag`, or until `count` messages of a member were taken. */
static void until(upcall_group *group, size_t from, uint64_t count, const bool *flag) {
    while (!*flag && taken[from] < count) {
        size_t polled;
        OK(upcall_group_poll(group, &polled, &error));
        take_events(group);
        if (polled == 0 && !*flag)
            CHECK(upcall_group_wait(group, PATIENCE, &error) == UPCALL_OK);
    }
}

static upcall_status send(upcall_group *group, size_t to, uint64_t count) {
    upcall_status status = UPCALL_OK;
    while (count-- > 0 && status == UPCALL_OK) {
        uint64_t words[] = {next[to], next[to] * FACTOR, upcall_group_rank(group), to};
        status = upcall_group_send(group, to, 0, words, sizeof words, &error);
        if (status == UPCALL_OK) next[to]++;
    }
    return status;
}

static void has_joined(upcall_group *group, size_t rank) {
    bool has = false;
    upcall_status status = upcall_group_has_joined(group, rank, &has, &error);
    reply(status, has);
}

static upcall_petition *await_petition(upcall_group *group) {
    upcall_petition *petition;
    upcall_status found;
    while ((found = upcall_group_petition(group, &petition, &error)) == UPCALL_NOTHING_THERE) {
        CHECK(upcall_group_wait(group, PATIENCE, &error) == UPCALL_OK);
        OK(upcall_group_poll(group, NULL, &error));
    }
    OK(found);
    return petition;
}

/* Answers the next petition with an invitation that is valid on its host. */
static void invite(upcall_group *group, size_t first, size_t count) {
    upcall_petition *petition = await_petition(group);
    upcall_invitation invitation;
    const char *host = upcall_petition_host(petition);
    OK(upcall_group_expect_from(group, first, count, petition, &invitation, &error));
    printf("ok %.*s %s\n", (int)upcall_petition_size(petition),
           (const char *)upcall_petition_data(petition), host ? host : "here");
    upcall_petition_answer(petition, invitation.text, strlen(invitation.text));
}

/* Asks at an address, and prints the answer. */
static void ask(const char *address, const char *request) {
    const void *answer;
    size_t size;
    if (upcall_petition_ask(address, request, strlen(request), PATIENCE, &answer, &size, &error)) {
        failed();
        return;
    }
    printf("ok %.*s\n", (int)size, (const char *)answer);
    free((void *)(uintptr_t)answer);
}

/* Obeys a command. Returns false if it is the last one. */
static bool obey(upcall_group *group, const char *line) {
    unsigned long rank;
    unsigned long long count;
    if (sscanf(line, "send %lu %llu", &rank, &count) == 2) {
        CHECK(rank < MOST);
        reply(send(group, rank, count), 0);
    } else if (sscanf(line, "take %lu %llu", &rank, &count) == 2) {
        CHECK(rank < MOST);
        until(group, rank, count, &ended[rank]);
        reply(UPCALL_OK, taken[rank]);
    } else if (sscanf(line, "end-of %lu", &rank) == 1) {
        CHECK(rank < MOST);
        until(group, rank, UINT64_MAX, &ended[rank]);
        reply(UPCALL_OK, taken[rank]);
    } else if (sscanf(line, "joined %lu", &rank) == 1) {
        CHECK(rank < MOST);
        until(group, rank, UINT64_MAX, &joined[rank]);
        has_joined(group, rank);
    } else if (sscanf(line, "parted %lu %llu", &rank, &count) == 2) {
        CHECK(rank < MOST && count < MOST);
        until(group, rank, UINT64_MAX, &parted[rank][count]);
        reply(UPCALL_OK, 0);
    } else if (sscanf(line, "has-joined %lu", &rank) == 1) {
        has_joined(group, rank);
    } else if (sscanf(line, "expect %lu %llu", &rank, &count) == 2) {
        upcall_invitation invitation;
        if (upcall_group_expect(group, rank, count, &invitation, &error) != UPCALL_OK) failed();
        else printf("ok %s\n", invitation.text);
    } else if (sscanf(line, "expect-no-more %lu %llu", &rank, &count) == 2) {
        reply(upcall_group_expect_no_more(group, rank, count, &error), 0);
    } else if (sscanf(line, "expel %lu %llu", &rank, &count) == 2) {
        reply(upcall_group_expel(group, rank, count, &error), 0);
    } else if (sscanf(line, "invite %lu %llu", &rank, &count) == 2) {
        invite(group, rank, count);
    } else if (strcmp(line, "hold\n") == 0) {
        /* It is never answered. */
        CHECK(await_petition(group));
        reply(UPCALL_OK, 0);
    } else if (strcmp(line, "refuse\n") == 0) {
        upcall_petition_refuse(await_petition(group), "not today");
        reply(UPCALL_OK, 0);
    } else if (sscanf(line, "process %lu", &rank) == 1) {
        reply(UPCALL_OK, upcall_group_process(group, rank));
    } else if (strcmp(line, "barrier\n") == 0) {
        reply(upcall_group_barrier(group, &error), 0);
    } else if (sscanf(line, "reduce %llu", &count) == 1) {
        uint64_t value = count;
        upcall_status status = upcall_group_reduce(group, &value, upcall_sum_u64, NULL, &error);
        reply(status, value);
    } else {
        CHECK(strcmp(line, "leave\n") == 0);
        return false;
    }
    return true;
}

int main(int count, char **arguments) {
    if (count < 4) return 2;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (strcmp(arguments[1], "ask") == 0) {
        ask(option(arguments[3], "across"), arguments[2]);
        return 0;
    }
    upcall_handlers *handlers = upcall_handlers_new();
    CHECK(upcall_handlers_kind(handlers, "data", "[u64; 4]", &error) == 0);
    OK(upcall_handlers_on(handlers, 0, on_data, NULL, &error));
    upcall_joining *joining = described(count, arguments);
    upcall_group *group = joining ? upcall_group_join(joining, handlers, &error) : NULL;
    if (!group) {
        failed();
        return 0;
    }
    reply(UPCALL_OK, upcall_group_rank(group));
    char line[200];
    while (fgets(line, sizeof line, stdin) && obey(group, line)) continue;
    upcall_status left = upcall_group_leave(group, &error);
    reply(left, 0);
    return 0;
}
