/* Terms of clients and of servers, each by itself. Arguments: a name to export under or to bind,
 * and what to check. */
#define _GNU_SOURCE
#include "terms.h"
#include "../check.h"

#include <pthread.h>
#include <sched.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static uint64_t milliseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static void where_(void *context, upcall_call *call, uint32_t *result) {
    (void)context, (void)call;
    *result = (uint32_t)sched_getcpu();
}

/* How long the first call waits for the second, in milliseconds. */
static uint64_t patience;
static uint32_t inside, most;

static void meet(void *context, upcall_call *call, const upcall_bytes *data, uint32_t *result) {
    uint64_t end = milliseconds() + patience;
    (void)context, (void)call, (void)data;
    uint32_t now = __atomic_add_fetch(&inside, 1, __ATOMIC_SEQ_CST);
    if (now > __atomic_load_n(&most, __ATOMIC_SEQ_CST))
        __atomic_store_n(&most, now, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&most, __ATOMIC_SEQ_CST) < 2 && milliseconds() < end) usleep(1000);
    *result = __atomic_load_n(&most, __ATOMIC_SEQ_CST);
    __atomic_sub_fetch(&inside, 1, __ATOMIC_SEQ_CST);
}

static void change(void *context, upcall_call *call, uint32_t a, uint32_t *result) {
    (void)context, (void)call;
    *result = a + 1;
}

static void length(void *context, upcall_call *call, upcall_string text, uint64_t *result) {
    (void)context, (void)call;
    *result = text.len;
}

static void *left_aside(void *result) {
    *(uint64_t *)result = upcall_deadline();
    return NULL;
}

static void left(void *context, upcall_call *call, bool aside, uint64_t *result) {
    pthread_t thread;
    (void)context, (void)call;
    if (!aside) {
        *result = upcall_deadline();
        return;
    }
    CHECK(pthread_create(&thread, NULL, left_aside, result) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
}

/* Longest wait in this file for what surely happens, in milliseconds. */
#define GUARD 60000

/* How many calls of `outlast` have seen that their caller no longer waits. */
static uint32_t outlasted;

/* Whether the caller of `outlast` has left: until then a result would still reach it. */
static bool caller_left;

static void outlast(void *context, upcall_call *call) {
    uint64_t end = milliseconds() + GUARD;
    (void)context, (void)call;
    while (upcall_deadline() != 0 && milliseconds() < end) usleep(1000);
    while (!__atomic_load_n(&caller_left, __ATOMIC_SEQ_CST) && milliseconds() < end) usleep(1000);
    if (upcall_deadline() == 0) __atomic_add_fetch(&outlasted, 1, __ATOMIC_SEQ_CST);
}

static const terms_server_t functions = {.where = where_,
                                         .meet = meet,
                                         .change = change,
                                         .length = length,
                                         .left = left,
                                         .outlast = outlast};

/* The peer that the policy was asked about, and the policy's answer. */
struct asked {
    bool admits;
    uint32_t times, user, group, process;
};

static bool admits(void *context, uint32_t user, uint32_t group, uint32_t process) {
    struct asked *asked = (struct asked *)context;
    asked->times++;
    asked->user = user;
    asked->group = group;
    asked->process = process;
    return asked->admits;
}

/* terms.toml permits 128 KiB of values in a call. */
static void values(const char *name) {
    static char data[256 << 10];
    memset(data, 'x', sizeof data);
    upcall_server *server = upcall_server_new();
    OK(terms_export(server, name, &functions, &error));
    upcall_running *running = upcall_server_start(server, &error);
    CHECK(running);
    terms_client_t *client = terms_bind(name, &error);
    CHECK(client);
    uint64_t back;
    OK(terms_length(client, (upcall_string){data, 127 << 10}, &back, &error));
    CHECK(back == 127 << 10);
    CHECK(terms_length(client, (upcall_string){data, 129 << 10}, &back, &error)
          == UPCALL_NO_MEMORY);
    CHECK(strstr(error.text, "131072"));
    OK(terms_length(client, (upcall_string){data, 1}, &back, &error));
    terms_unbind(client);
    upcall_running_stop(running);
}

static void policy(const char *name) {
    struct asked asked = {false, 0, 0, 0, 0};
    upcall_server *server = upcall_server_new();
    upcall_server_set_policy(server, admits, &asked);
    OK(terms_export(server, name, &functions, &error));
    upcall_running *running = upcall_server_start(server, &error);
    CHECK(running);
    terms_client_t *client = terms_bind(name, &error);
    CHECK(!client && error.status == UPCALL_DENIED
          && strstr(error.text, "its policy does not admit it"));
    CHECK(asked.times >= 1 && asked.user == getuid() && asked.group == getgid()
          && asked.process == (uint32_t)getpid());
    asked.admits = true;
    client = terms_bind(name, &error);
    CHECK(client);
    uint32_t back;
    OK(terms_change(client, 1, &back, &error));
    CHECK(back == 2);
    terms_unbind(client);
    upcall_running_stop(running);
}

/* Users and groups of terms.rs, which need no entry in the system's lists. */
static const uint32_t one = 61001, other = 61002, third = 61003;

/* Serves until the standard input ends. */
static void serve_until_told(upcall_server *server, const char *name) {
    OK(terms_export(server, name, &functions, &error));
    upcall_running *running = upcall_server_start(server, &error);
    CHECK(running);
    printf("ready\n");
    fflush(stdout);
    while (getchar() != EOF) continue;
    upcall_running_stop(running);
}

/* User `one` serves user `other`. */
static void serves_other(const char *name) {
    upcall_server *server = upcall_server_new();
    upcall_accepts accepts = {.users = &other, .user_count = 1};
    upcall_server_set_mode(server, 0666);
    OK(upcall_server_set_accepts(server, &accepts, &error));
    serve_until_told(server, name);
}

/* User `one` serves the members of group `one`, regardless of its umask. */
static void serves_group(const char *name) {
    upcall_server *server = upcall_server_new();
    upcall_accepts accepts = {.groups = &one, .group_count = 1};
    umask(0777);
    upcall_server_set_mode(server, 0660);
    upcall_server_set_group(server, one);
    OK(upcall_server_set_accepts(server, &accepts, &error));
    serve_until_told(server, name);
}

static upcall_status binds(const char *name, const upcall_accepts *accepts) {
    upcall_error found;
    uint32_t back;
    terms_client_t *client = terms_bind_expecting(name, accepts, &found);
    if (!client) {
        error = found;
        return found.status;
    }
    OK(terms_change(client, 1, &back, &error));
    CHECK(back == 2);
    terms_unbind(client);
    return UPCALL_OK;
}

/* User `other` binds to what user `one` serves. */
static void expects_one(const char *name) {
    upcall_accepts users = {.users = &one, .user_count = 1},
                   groups = {.groups = &one, .group_count = 1};
    upcall_accepts both = {.users = &third, .user_count = 1, .groups = &one, .group_count = 1};
    upcall_accepts others = {.users = &third, .user_count = 1}, none = {0},
                   any = {.any_user = true};
    upcall_accepts broken = {.user_count = 1};
    struct asked asked = {true, 0, 0, 0, 0};
    upcall_accepts ask = {.policy = admits, .context = &asked};

    CHECK(!terms_bind(name, &error) && error.status == UPCALL_WRONG_USER
          && strstr(error.text, "the peer is user 61001"));
    CHECK(binds(name, NULL) == UPCALL_WRONG_USER && strstr(error.text, "user 61002 or root"));
    CHECK(binds(name, &others) == UPCALL_WRONG_USER
          && strstr(error.text, "accepted is user 61003"));
    CHECK(binds(name, &none) == UPCALL_WRONG_USER && strstr(error.text, "no process is accepted"));
    CHECK(binds(name, &broken) == UPCALL_MISUSE && strstr(error.text, "users"));
    OK(binds(name, &users));
    OK(binds(name, &groups));
    OK(binds(name, &both));
    OK(binds(name, &any));
    OK(binds(name, &ask));
    CHECK(asked.times == 1 && asked.user == one && asked.group == one && asked.process != 0);
    asked.admits = false;
    CHECK(binds(name, &ask) == UPCALL_WRONG_USER
          && strstr(error.text, "its policy does not admit it"));
    /* What one binding accepts does not count for another. */
    terms_client_t *client = terms_bind_expecting(name, &users, &error);
    CHECK(client);
    CHECK(binds(name, NULL) == UPCALL_WRONG_USER);
    terms_unbind(client);
    /* A wait for a server ends at once if the server is there, and at the time limit if it is
     * absent. */
    client = terms_bind_wait(name, &users, UINT64_MAX, &error);
    CHECK(client);
    terms_unbind(client);
    CHECK(!terms_bind_wait(name, NULL, UINT64_MAX, &error) && error.status == UPCALL_WRONG_USER);
    CHECK(!terms_bind_wait("nothing-has-this-name", &users, 1000, &error));
    CHECK(error.status == UPCALL_NO_SUCH_NAME);
    /* Nothing listens there, so it is not known whose server it would be. */
    CHECK(binds("tcp://127.0.0.1:9/terms", &users) == UPCALL_UNREACHABLE);
}

static void is_admitted(const char *name) {
    upcall_accepts users = {.users = &one, .user_count = 1};
    OK(binds(name, &users));
}

/* Denied by the server's policy. */
static void is_refused(const char *name) {
    upcall_accepts any = {.any_user = true};
    CHECK(binds(name, &any) == UPCALL_DENIED
          && strstr(error.text, "the peer is user 61003, accepted is user 61002"));
}

/* Denied by the mode of the server's socket. */
static void is_kept_out(const char *name) {
    upcall_accepts any = {.any_user = true};
    CHECK(binds(name, &any) == UPCALL_DENIED && strstr(error.text, "may not connect")
          && strstr(error.text, "mode and group"));
}

/* User `one` asks for groups that it cannot have. */
static void foreign_groups(const char *name) {
    upcall_accepts broken = {.group_count = 1};
    upcall_server *server = upcall_server_new();
    CHECK(upcall_server_set_accepts(NULL, NULL, &error) == UPCALL_MISUSE);
    CHECK(upcall_server_set_accepts(server, &broken, &error) == UPCALL_MISUSE
          && strstr(error.text, "groups"));
    CHECK(upcall_server_set_group_named(server, NULL, &error) == UPCALL_MISUSE
          && strstr(error.text, "the group is NULL"));
    upcall_server_set_group(server, 0);
    OK(terms_export(server, name, &functions, &error));
    CHECK(!upcall_server_start(server, &error) && error.status == UPCALL_RESOURCE);
    server = upcall_server_new();
    OK(upcall_server_set_group_named(server, "no-such-group", &error));
    OK(terms_export(server, name, &functions, &error));
    CHECK(!upcall_server_start(server, &error) && error.status == UPCALL_RESOURCE
          && strstr(error.text, "no-such-group"));
}

/* Root names a group. */
static void named_group(const char *name) {
    upcall_server *server = upcall_server_new();
    OK(upcall_server_set_group_named(server, "root", &error));
    upcall_server_set_mode(server, 0660);
    OK(upcall_server_set_accepts(server, NULL, &error));
    OK(terms_export(server, name, &functions, &error));
    upcall_running *running = upcall_server_start(server, &error);
    CHECK(running);
    OK(binds(name, NULL));
    upcall_running_stop(running);
}

/* Binds `what` at an address of a server that listens. */
static terms_client_t *bind_far(const char *address, const char *what) {
    char name[200];
    snprintf(name, sizeof name, "tcp://%s/%s", address, what);
    return terms_bind(name, &error);
}

static void listens(const char *name) {
    struct asked asked = {true, 0, 0, 0, 0};
    char address[UPCALL_ADDRESS_SIZE], second[UPCALL_ADDRESS_SIZE];
    CHECK(upcall_server_listen(NULL, "127.0.0.1:0", &error) == UPCALL_MISUSE);
    upcall_server *server = upcall_server_new();
    CHECK(upcall_server_listen(server, NULL, &error) == UPCALL_MISUSE
          && strstr(error.text, "the address is NULL"));
    OK(upcall_server_listen(server, "0.0.0.0:0", &error));
    CHECK(!upcall_server_start(server, &error) && error.status == UPCALL_UNPROTECTED
          && strstr(error.text, "0.0.0.0:0"));
    server = upcall_server_new();
    OK(upcall_server_listen(server, "no address", &error));
    CHECK(!upcall_server_start(server, &error) && error.status == UPCALL_RESOURCE
          && strstr(error.text, "no address"));

    server = upcall_server_new();
    upcall_server_set_policy(server, admits, &asked);
    OK(upcall_server_listen(server, "127.0.0.1:0", &error));
    OK(upcall_server_listen(server, "127.0.0.1:0", &error));
    OK(terms_export(server, name, &functions, &error));
    upcall_running *running = upcall_server_start(server, &error);
    CHECK(running);
    CHECK(upcall_running_address(running, 0, address) && strncmp(address, "127.0.0.1:", 10) == 0
          && strcmp(address + 10, "0") != 0);
    CHECK(upcall_running_address(running, 1, second) && strcmp(address, second) != 0);
    char none[UPCALL_ADDRESS_SIZE];
    CHECK(!upcall_running_address(running, 2, none) && none[0] == 0);
    CHECK(!upcall_running_address(NULL, 0, none) && none[0] == 0);
    CHECK(!upcall_running_address(running, 0, NULL) && !upcall_running_address(NULL, 0, NULL));

    terms_client_t *client = bind_far(address, name);
    CHECK(client);
    CHECK(asked.times == 1 && asked.user == getuid() && asked.group == UINT32_MAX
          && asked.process == 0);
    uint32_t back;
    OK(terms_change(client, 41, &back, &error));
    CHECK(back == 42 && upcall_client_server(terms_base(client)) == 0);
    CHECK(!bind_far(address, "none") && error.status == UPCALL_NOT_THERE
          && strstr(error.text, address));
    CHECK(!bind_far(address, "no/name") && error.status == UPCALL_MISUSE);
    /* No process listens at this address of RFC 5737, and nothing is sent there. */
    CHECK(!bind_far("198.51.100.1:7000", name) && error.status == UPCALL_NOT_PROVED
          && strstr(error.text, "upcall host init"));
    /* The policy is asked about each connection, at each address. */
    terms_client_t *other = bind_far(second, name);
    CHECK(other && asked.times == 2 && asked.user == getuid());
    OK(terms_change(other, 1, &back, &error));
    CHECK(back == 2);
    terms_unbind(other);
    asked.admits = false;
    CHECK(!bind_far(second, name) && error.status == UPCALL_DENIED);

    upcall_running_stop(running);
    CHECK(terms_change(client, 1, &back, &error) == UPCALL_FAILED && strstr(error.text, address));
    terms_unbind(client);
    CHECK(!bind_far(address, name) && error.status == UPCALL_UNREACHABLE
          && strstr(error.text, address));
}

struct host_seen {
    struct asked asked;
    char host[65];
};

static bool sees_host(void *context, uint32_t user, uint32_t group, uint32_t process) {
    struct host_seen *seen = (struct host_seen *)context;
    const char *host = upcall_policy_host();
    snprintf(seen->host, sizeof seen->host, "%s", host ? host : "none");
    return admits(&seen->asked, user, group, process);
}

/* A server with this policy, and the name of its address. */
static upcall_running *serve_to(const char *name, upcall_policy policy, const void *context,
                                char far[200]) {
    char address[UPCALL_ADDRESS_SIZE];
    upcall_server *server = upcall_server_new();
    upcall_server_set_policy(server, policy, (void *)(uintptr_t)context);
    OK(upcall_server_listen(server, "127.0.0.1:0", &error));
    OK(terms_export(server, name, &functions, &error));
    upcall_running *running = upcall_server_start(server, &error);
    CHECK(running && upcall_running_address(running, 0, address));
    snprintf(far, 200, "tcp://%s/%s", address, name);
    return running;
}

/* This user trusts an identity by the name 127.0.0.1, which is its own. */
static void hosts(const char *name) {
    static const char *const these[] = {"ws1", "127.0.0.1", NULL}, *const others[] = {"ws1", NULL};
    struct host_seen seen = {{true, 0, 0, 0, 0}, ""};
    upcall_accepts accepts = {.policy = upcall_admits_hosts};
    char far[200];
    CHECK(!upcall_policy_host());
    upcall_running *running = serve_to(name, sees_host, &seen, far);
    OK(binds(far, NULL));
    CHECK(strcmp(seen.host, "127.0.0.1") == 0 && seen.asked.user == UINT32_MAX
          && seen.asked.group == UINT32_MAX && seen.asked.process == 0);
    OK(binds(name, NULL));
    CHECK(strcmp(seen.host, "none") == 0 && seen.asked.user == getuid());
    CHECK(!upcall_policy_host());
    /* A client chooses the hosts whose servers it accepts. */
    accepts.context = (void *)(uintptr_t)these;
    OK(binds(far, &accepts));
    CHECK(binds(name, &accepts) == UPCALL_WRONG_USER);
    accepts.context = (void *)(uintptr_t)others;
    CHECK(binds(far, &accepts) == UPCALL_WRONG_USER);
    accepts.context = NULL;
    CHECK(binds(far, &accepts) == UPCALL_WRONG_USER);
    upcall_running_stop(running);
    /* A server chooses the hosts that it admits. */
    running = serve_to(name, upcall_admits_hosts, these, far);
    OK(binds(far, NULL));
    CHECK(binds(name, NULL) == UPCALL_DENIED);
    upcall_running_stop(running);
    running = serve_to(name, upcall_admits_hosts, others, far);
    CHECK(binds(far, NULL) == UPCALL_DENIED && strstr(error.text, "its policy"));
    upcall_running_stop(running);
}

/* Clients share a connection if they have the same time after which its server is lost. */
static void lost_after(const char *name) {
    struct asked asked = {true, 0, 0, 0, 0};
    upcall_bind_terms terms[] = {{0}, {.lost_after = 5000000000}, {.lost_after = 2000000000}};
    terms_client_t *clients[4];
    char far[200];
    upcall_running *running = serve_to(name, admits, &asked, far);
    clients[3] = terms_bind_on(far, NULL, &error);
    for (int i = 0; i < 3; i++) {
        clients[i] = terms_bind_on(far, &terms[i], &error);
        CHECK(clients[i] && asked.times == (i < 2 ? 1 : 2));
    }
    for (int i = 0; i < 4; i++) terms_unbind(clients[i]);
    upcall_accepts none = {0};
    upcall_bind_terms refused = {.accepts = &none}, waits = {.wait = 1000};
    CHECK(!terms_bind_on(far, &refused, &error) && error.status == UPCALL_WRONG_USER);
    CHECK(!terms_bind_on("nothing-has-this-name", &waits, &error)
          && error.status == UPCALL_NO_SUCH_NAME);
    upcall_running_stop(running);
}

static terms_client_t *shared;

static void *meets(void *result) {
    static const uint8_t bytes[900];
    upcall_list_u8_t data = {bytes, sizeof bytes};
    upcall_error own;
    if (terms_meet(shared, data, (uint32_t *)result, &own) != UPCALL_OK) {
        fprintf(stderr, "%s\n", own.text);
        exit(1);
    }
    return NULL;
}

/* Makes two calls whose arguments need an A-stack, while there is only one A-stack. Returns how
 * many of them were in the server at once. */
static uint32_t together(upcall_when_full what, uint64_t milliseconds_each) {
    pthread_t threads[2];
    uint32_t found[2];
    patience = milliseconds_each;
    inside = most = 0;
    upcall_client_set_when_full(terms_base(shared), what);
    for (int i = 0; i < 2; i++) CHECK(pthread_create(&threads[i], NULL, meets, &found[i]) == 0);
    for (int i = 0; i < 2; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    return found[0] > found[1] ? found[0] : found[1];
}

static upcall_running *serve(const char *name, size_t processors) {
    upcall_server *server = upcall_server_new();
    upcall_server_set_processors(server, processors);
    OK(terms_export(server, name, &functions, &error));
    upcall_running *running = upcall_server_start(server, &error);
    CHECK(running);
    shared = terms_bind(name, &error);
    CHECK(shared);
    return running;
}

static void shortage(const char *name) {
    upcall_running *running = serve(name, 2);
    /* The second call waits for the A-stack until the first one no longer waits for the second. */
    CHECK(together(UPCALL_WAIT, 300) == 1);
    /* The second call brings memory of its own. */
    CHECK(together(UPCALL_GROW, 20000) == 2);
    terms_unbind(shared);
    upcall_running_stop(running);
}

/* Makes ten calls to a sleeping server. Returns how many of them ran on the caller's processor. */
static int comes(upcall_hand_off when, uint32_t processor) {
    int here = 0;
    upcall_client_set_hand_off(terms_base(shared), when);
    for (int i = 0; i < 10; i++) {
        uint32_t found;
        usleep(30000);
        OK(terms_where(shared, &found, &error));
        here += found == processor;
    }
    return here;
}

static void hand_off(const char *name) {
    upcall_running *running = serve(name, 1);
    cpu_set_t one;
    uint32_t processor = (uint32_t)sched_getcpu();
    CPU_ZERO(&one);
    CPU_SET(processor, &one);
    CHECK(sched_setaffinity(0, sizeof one, &one) == 0);
    /* A call by a polling thread gives its processor away only with UPCALL_AT_ONCE. The opposite
     * cannot be checked here: the thread sleeps while a sleeping server wakes, and the kernel may
     * put the server on this processor by itself. */
    upcall_client_set_pacing(terms_base(shared), UPCALL_POLL);
    CHECK(comes(UPCALL_AT_ONCE, processor) >= 8);
    comes(UPCALL_WHEN_IDLE, processor);
    terms_unbind(shared);
    upcall_running_stop(running);
}

/* Checks what a procedure sees of its caller's deadline, by clients bound to `name`. */
static void sees_deadline(const char *name) {
    static const uint64_t minute = UINT64_C(60000000000);
    uint64_t seen;
    terms_client_t *client = terms_bind(name, &error);
    CHECK(client);
    OK(terms_left(client, false, &seen, &error));
    CHECK(seen == UPCALL_NO_DEADLINE);
    upcall_client_set_deadline(terms_base(client), minute);
    OK(terms_left(client, false, &seen, &error));
    CHECK(0 < seen && seen <= minute);
    OK(terms_left(client, true, &seen, &error));
    CHECK(seen == UPCALL_NO_DEADLINE);
    CHECK(upcall_deadline() == UPCALL_NO_DEADLINE);
    /* A call that the server has runs to its end, although its caller has left. */
    uint32_t before = __atomic_load_n(&outlasted, __ATOMIC_SEQ_CST);
    __atomic_store_n(&caller_left, false, __ATOMIC_SEQ_CST);
    upcall_client_set_deadline(terms_base(client), 20000000);
    do CHECK(terms_outlast(client, &error) == UPCALL_ABORTED);
    while (!error.sent);
    __atomic_store_n(&caller_left, true, __ATOMIC_SEQ_CST);
    uint64_t end = milliseconds() + GUARD;
    while (__atomic_load_n(&outlasted, __ATOMIC_SEQ_CST) == before) {
        CHECK(milliseconds() < end);
        usleep(1000);
    }
    terms_unbind(client);
}

static void deadline(const char *name) {
    char address[UPCALL_ADDRESS_SIZE], far[200];
    upcall_server *server = upcall_server_new();
    OK(upcall_server_listen(server, "127.0.0.1:0", &error));
    OK(terms_export(server, name, &functions, &error));
    upcall_running *running = upcall_server_start(server, &error);
    CHECK(running && upcall_running_address(running, 0, address));
    sees_deadline(name);
    snprintf(far, sizeof far, "tcp://%s/%s", address, name);
    sees_deadline(far);
    upcall_running_stop(running);
}

static void mismatch(const char *name) {
    terms_client_t *client = terms_bind(name, &error);
    CHECK(!client && error.status == UPCALL_MISMATCH);
    CHECK(strstr(error.text, "change: func(a: u32) -> u32")
          && strstr(error.text, "change: func(a: u64) -> u32"));
    CHECK(strstr(error.text, "added") == NULL && strstr(error.text, "where") == NULL);
}

int main(int count, char **arguments) {
    CHECK(count == 3);
    static const struct {
        const char *what;
        void (*run)(const char *name);
    } all[] = {{"policy", policy},
               {"values", values},
               {"listens", listens},
               {"hosts", hosts},
               {"lost-after", lost_after},
               {"shortage", shortage},
               {"hand-off", hand_off},
               {"deadline", deadline},
               {"mismatch", mismatch},
               {"serves-other", serves_other},
               {"serves-group", serves_group},
               {"expects-one", expects_one},
               {"is-admitted", is_admitted},
               {"is-refused", is_refused},
               {"is-kept-out", is_kept_out},
               {"foreign-groups", foreign_groups},
               {"named-group", named_group}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (strcmp(arguments[2], all[i].what) == 0) {
            all[i].run(arguments[1]);
            return 0;
        }
    }
    return 2;
}
