/* A server of two interfaces that carry a third one, and a client of both, in one process.
 * Argument: a name to export under. */
#ifdef REVERSE
#include "two.h"
#include "one.h"
#else
#include "one.h"
#include "two.h"
#endif
#include "../check.h"

static int alive;

static bool is(upcall_string text, const char *expected) {
    return text.len == strlen(expected) && memcmp(text.data, expected, text.len) == 0;
}

/* An item is its name. */
static void drop(void *value) {
    free(value);
    __atomic_fetch_sub(&alive, 1, __ATOMIC_SEQ_CST);
}

static test_pool_pool_served_item_t *item(upcall_string name) {
    char *value = (char *)calloc(1, name.len + 1);
    if (name.len > 0) memcpy(value, name.data, name.len);
    __atomic_fetch_add(&alive, 1, __ATOMIC_SEQ_CST);
    return test_pool_pool_served_item_new(value, drop);
}

static void item_new(void *context, upcall_call *call, upcall_string name,
                     test_pool_pool_served_item_t **result) {
    (void)context, (void)call;
    *result = item(name);
}

static void item_name(void *context, upcall_call *call, void *self, upcall_string *result) {
    (void)context;
    *result = upcall_call_text(call, (const char *)self);
}

static void item_report(void *context, upcall_call *call, void *self,
                        test_pool_pool_report_t *result) {
    (void)context;
    result->state.tag = TEST_POOL_POOL_STATE_BUSY;
    result->state.as.busy = upcall_call_text(call, (const char *)self);
    result->rights = TEST_POOL_POOL_RIGHTS_TOUCH;
}

static void take(void *context, upcall_call *call, test_pool_pool_served_item_t **result) {
    (void)call;
    *result = item(upcall_text((const char *)context));
}

static const test_pool_pool_server_t pool = {.context = "taken",
                                             .item_new = item_new,
                                             .item_name = item_name,
                                             .item_report = item_report,
                                             .take = take};

static void serve_open(void *context, upcall_call *call, upcall_string name,
                       test_pool_pool_served_item_t **result) {
    (void)context, (void)call;
    *result = item(name);
}

static void serve_same(void *context, upcall_call *call, one_list_test_pool_pool_report_t reports,
                       one_list_test_pool_pool_report_t *result) {
    (void)context, (void)call;
    *result = reports;
}

static const one_server_t one_functions = {
    .test_pool_pool = &pool, .open = serve_open, .same = serve_same};

static void serve_wrap(void *context, upcall_call *call, test_pool_pool_served_item_t *it,
                       test_pool_pool_served_item_t **result) {
    char text[64];
    (void)context, (void)call;
    snprintf(text, sizeof text, "wrapped %s", (const char *)test_pool_pool_served_item_value(it));
    test_pool_pool_served_item_drop(it);
    *result = item(upcall_text(text));
}

static void serve_lengths(void *context, upcall_call *call,
                          two_served_list_lent_test_pool_pool_item_t items,
                          upcall_list_u32_t *result) {
    uint32_t *data = (uint32_t *)upcall_call_alloc(call, items.len * sizeof *data);
    (void)context;
    for (size_t i = 0; i < items.len; i++) data[i] = (uint32_t)strlen((const char *)items.data[i]);
    result->data = data;
    result->len = items.len;
}

static void serve_states(void *context, upcall_call *call, two_list_test_pool_pool_state_t states,
                         two_list_test_pool_pool_state_t *result) {
    (void)context, (void)call;
    *result = states;
}

static const two_server_t two_functions = {
    .test_pool_pool = &pool, .wrap = serve_wrap, .lengths = serve_lengths, .states = serve_states};

int main(int count, char **arguments) {
    char other[100];
    upcall_server *server = upcall_server_new();
    CHECK(count == 2);
    snprintf(other, sizeof other, "%s-two", arguments[1]);
    OK(one_export(server, arguments[1], &one_functions, &error));
    OK(two_export(server, other, &two_functions, &error));
    upcall_running *running = upcall_server_start(server, &error);
    CHECK(running);

    one_client_t *one = one_bind(arguments[1], &error);
    two_client_t *two = two_bind(other, &error);
    CHECK(one && two);

    /* Made by one client, and passed to functions that both have. */
    test_pool_pool_item_t *opened, *taken, *wrapped, *made;
    test_pool_pool_report_t report;
    upcall_string text;
    OK(one_open(one, upcall_text("opened"), &opened, &error));
    OK(test_pool_pool_item_name(opened, &text, &error));
    CHECK(is(text, "opened"));
    upcall_string_free(&text);
    OK(test_pool_pool_item_report(opened, &report, &error));
    CHECK(report.state.tag == TEST_POOL_POOL_STATE_BUSY && is(report.state.as.busy, "opened")
          && report.rights == TEST_POOL_POOL_RIGHTS_TOUCH);
    test_pool_pool_report_free(&report);

    /* The third interface's own client, made from the second's. */
    test_pool_pool_client_t *by_two = test_pool_pool_from(two_base(two), &error);
    CHECK(by_two);
    OK(test_pool_pool_take(by_two, &taken, &error));
    OK(test_pool_pool_item_new(by_two, upcall_text("made"), &made, &error));
    const test_pool_pool_item_t *both[] = {taken, made};
    two_list_lent_test_pool_pool_item_t lent = {both, 2};
    upcall_list_u32_t lengths;
    OK(two_lengths(two, lent, &lengths, &error));
    CHECK(lengths.len == 2 && lengths.data[0] == 5 && lengths.data[1] == 4);
    upcall_list_u32_free(&lengths);
    OK(two_wrap(two, taken, &wrapped, &error));
    OK(test_pool_pool_item_name(wrapped, &text, &error));
    CHECK(is(text, "wrapped taken"));
    upcall_string_free(&text);

    /* A resource of the other binding is still foreign. */
    CHECK(two_wrap(two, opened, &taken, &error) == UPCALL_FOREIGN_HANDLE);
    test_pool_pool_state_t states[] = {
        {.tag = TEST_POOL_POOL_STATE_IDLE},
        {.tag = TEST_POOL_POOL_STATE_BUSY, .as = {.busy = {"x", 1}}}};
    two_list_test_pool_pool_state_t list = {states, 2}, back;
    OK(two_states(two, list, &back, &error));
    CHECK(back.len == 2 && back.data[0].tag == TEST_POOL_POOL_STATE_IDLE
          && is(back.data[1].as.busy, "x"));
    two_list_test_pool_pool_state_free(&back);

    test_pool_pool_item_drop(opened);
    test_pool_pool_item_drop(made);
    test_pool_pool_item_drop(wrapped);
    test_pool_pool_unbind(by_two);
    one_unbind(one);
    two_unbind(two);
    upcall_running_stop(running);
    CHECK(alive == 0);
    return 0;
}
