/* The client of the test of languages. Arguments: the names of `every` and `more`. Prints the check
 * that fails. */
#include "every.h"
#include "../check.h"

#include <pthread.h>
#include <time.h>

static bool is(upcall_string text, const char *expected) {
    return text.len == strlen(expected) && memcmp(text.data, expected, text.len) == 0;
}

static every_deep_t deep(void) {
    static const types_point_t points[] = {{1, -2}, {0.5f, 4}};
    static const upcall_string names[] = {{"a", 1}, {NULL, 0}, {"ccc", 3}};
    static const uint32_t letters[] = {0xdf, 0x1f600};
    static const bool truths[] = {true, false, true};
    static uint8_t raw[5000];
    every_deep_t deep;
    for (size_t i = 0; i < sizeof raw; i++) raw[i] = (uint8_t)i;
    memset(&deep, 0, sizeof deep);
    deep.name = upcall_text("deep");
    deep.points.data = points;
    deep.points.len = 2;
    deep.maybe.is_some = true;
    deep.maybe.value = upcall_text("maybe");
    for (uint16_t i = 0; i < 6; i++) deep.grid.data[i / 2].data[i % 2] = i;
    deep.pair.f0 = 7;
    deep.pair.f1 = upcall_text("pair");
    deep.outcome.is_err = true;
    deep.outcome.as.err = upcall_text("outcome");
    deep.nothing.is_err = true;
    deep.mode = EVERY_MODE_READ | EVERY_MODE_APPEND_ONLY;
    deep.names.data = names;
    deep.names.len = 3;
    deep.raw.data = raw;
    deep.raw.len = sizeof raw;
    deep.letters.data = letters;
    deep.letters.len = 2;
    deep.truths.data = truths;
    deep.truths.len = 3;
    return deep;
}

static void is_deep(const every_deep_t *got) {
    every_deep_t want = deep();
    CHECK(is(got->name, "deep") && got->points.len == 2 && got->points.data[1].y == 4);
    CHECK(got->maybe.is_some && is(got->maybe.value, "maybe"));
    CHECK(memcmp(&got->grid, &want.grid, sizeof want.grid) == 0);
    CHECK(got->pair.f0 == 7 && is(got->pair.f1, "pair") && got->outcome.is_err
          && is(got->outcome.as.err, "outcome"));
    CHECK(got->nothing.is_err && got->mode == want.mode && got->names.len == 3
          && is(got->names.data[2], "ccc") && got->names.data[1].len == 0);
    CHECK(got->raw.len == want.raw.len && memcmp(got->raw.data, want.raw.data, want.raw.len) == 0);
    CHECK(got->letters.len == 2 && got->letters.data[1] == 0x1f600 && got->truths.len == 3
          && got->truths.data[2] && !got->truths.data[1]);
}

static void values(every_client_t *every) {
    uint32_t sum;
    OK(every_null(every, &error));
    OK(every_add(every, 2, 3, &sum, &error));
    CHECK(sum == 5);

    every_numbers_t numbers = {1, 2, 3, UINT64_MAX, -1, -2, -3, INT64_MIN, 1.5f, -2.5,
                               true, 0x1f600},
                    back;
    OK(every_get_numbers(every, &numbers, &back, &error));
    CHECK(back.d == UINT64_MAX && back.e == -1 && back.h == INT64_MIN && back.i == 1.5f
          && back.j == -2.5 && back.k && back.l == 0x1f600);

    every_deep_t value = deep(), got;
    OK(every_get_deep(every, &value, &got, &error));
    is_deep(&got);
    every_deep_free(&got);

    every_shape_t shape = {.tag = EVERY_SHAPE_NAMED, .as = {.named = value}};
    every_option_shape_t found;
    OK(every_get_shape(every, &shape, &found, &error));
    CHECK(found.is_some && found.value.tag == EVERY_SHAPE_NAMED);
    is_deep(&found.value.as.named);
    every_option_shape_free(&found);
    shape.tag = EVERY_SHAPE_CIRCLE;
    shape.as.circle = 0.25;
    OK(every_get_shape(every, &shape, &found, &error));
    CHECK(found.is_some && found.value.tag == EVERY_SHAPE_CIRCLE && found.value.as.circle == 0.25);
    every_option_shape_free(&found);
    shape.tag = 17;
    CHECK(every_get_shape(every, &shape, &found, &error) == UPCALL_REFUSED);

    /* In the slot, in an A-stack and in a segment, and twice, since the client learns from the size
     * of results. */
    static const size_t lens[] = {0, 3, 900, 100000, 3000000, 100000};
    for (size_t i = 0; i < sizeof lens / sizeof *lens; i++) {
        uint8_t *data = malloc(lens[i] + 1);
        upcall_list_u8_t list, copy;
        memset(data, (int)i + 1, lens[i] + 1);
        list.data = data;
        list.len = lens[i];
        OK(every_bytes(every, list, &copy, &error));
        CHECK(copy.len == list.len && memcmp(copy.len ? copy.data : data, data, copy.len) == 0);
        upcall_list_u8_free(&copy);
        free(data);
    }
    every_array_32_u8_t array, same;
    memset(&array, 9, sizeof array);
    OK(every_fixed(every, &array, &same, &error));
    CHECK(memcmp(&array, &same, sizeof array) == 0);

    static const uint64_t three[] = {1, 2, 3};
    upcall_list_u64_t list = {three, 3};
    uint64_t total;
    OK(every_total(every, list, &total, &error));
    CHECK(total == 6);
}

static void errors(every_client_t *every, const char *other) {
    every_result_void_string_t named;
    OK(every_bind_(every, upcall_text("x"), &named, &error));
    CHECK(named.is_err && is(named.as.err, "x"));
    every_result_void_string_free(&named);
    char text[200] = {0};
    memset(text, 'x', 101);
    CHECK(every_bind_(every, upcall_text(text), &named, &error) == UPCALL_TOO_LONG
          && strstr(error.text, "101"));
    CHECK(every_bind_(every, upcall_text("\xff\xfe"), &named, NULL) == UPCALL_REFUSED);
    upcall_string none = {NULL, 7};
    CHECK(every_bind_(every, none, &named, &error) == UPCALL_MISUSE);

    every_result_void_void_t bare;
    OK(every_bare(every, &bare, &error));
    CHECK(bare.is_err);
    every_result_node_types_error_t root;
    OK(every_node_root(every, &root, &error));
    CHECK(root.is_err && root.as.err == TYPES_ERROR_NOT_FOUND);
    CHECK(every_fail(every, &error) == UPCALL_PANICKED && strstr(error.text, "as asked"));
    CHECK(every_null(NULL, &error) == UPCALL_MISUSE);
    CHECK(!every_bind("there is no such name", &error) && error.status == UPCALL_MISUSE);
    CHECK(!every_bind("nobody-has-this-name", &error) && error.status == UPCALL_NO_SUCH_NAME);
    CHECK(!every_bind(other, &error) && error.status == UPCALL_WRONG_INTERFACE
          && strstr(error.text, "test:every/more"));
    CHECK(strcmp(upcall_status_text(UPCALL_MISMATCH), "procedures have other types in the server")
          == 0);
}

static void objects(every_client_t *every, const char *name, const char *other) {
    uint32_t alive;
    every_node_t *node, *third;
    every_color_t color;
    bool same;
    upcall_string text;
    OK(every_node_new(every, upcall_text("leaf"), EVERY_COLOR_BLUE, &node, &error));
    OK(every_node_name(node, &text, &error));
    CHECK(is(text, "leaf"));
    upcall_string_free(&text);
    OK(every_node_color(node, &color, &error));
    CHECK(color == EVERY_COLOR_BLUE);
    OK(every_node_same(node, node, &same, &error));
    CHECK(same);

    every_list_node_t children;
    every_result_u32_types_error_t adopted;
    OK(every_node_children(node, &children, &error));
    CHECK(children.len == 3);
    OK(every_node_same(node, children.data[1], &same, &error));
    CHECK(!same);
    OK(every_node_adopt(node, children.data[0], &adopted, &error));
    CHECK(!adopted.is_err && adopted.as.ok == 5);
    third = children.data[2];
    children.data[0] = children.data[2] = NULL;
    every_list_node_free(&children);
    OK(every_alive(every, &alive, &error));
    CHECK(alive == 2);

    every_family_t family = {node, upcall_text("ab"), {true, third}}, swapped;
    OK(every_swap(every, &family, &swapped, &error));
    CHECK(is(swapped.label, "abab") && swapped.child.is_some);
    OK(every_node_name(swapped.child.value, &text, &error));
    CHECK(is(text, "leaf"));
    upcall_string_free(&text);

    const every_node_t *lent[] = {swapped.parent, swapped.child.value};
    every_list_lent_node_t both = {lent, 2};
    every_list_string_t names;
    OK(every_names(every, both, &names, &error));
    CHECK(names.len == 2 && is(names.data[0], "child") && is(names.data[1], "leaf"));
    every_list_string_free(&names);

    every_found_t found;
    OK(every_find(every, 100, &found, &error));
    CHECK(found.tag == EVERY_FOUND_MANY && found.as.many.len == 100);
    OK(every_alive(every, &alive, &error));
    CHECK(alive == 102);
    every_found_free(&found);
    every_family_free(&swapped);

    /* Another binding: its resources are foreign. */
    every_client_t *second = every_bind(name, &error);
    CHECK(second);
    OK(every_node_new(second, upcall_text("second"), EVERY_COLOR_RED, &third, &error));
    OK(every_node_new(every, upcall_text("first"), EVERY_COLOR_RED, &node, &error));
    CHECK(every_node_same(node, third, &same, &error) == UPCALL_FOREIGN_HANDLE);
    CHECK(every_node_adopt(node, third, &adopted, &error) == UPCALL_FOREIGN_HANDLE);
    CHECK(every_node_adopt(node, NULL, &adopted, &error) == UPCALL_MISUSE);
    every_node_drop(third);
    every_unbind(second);

    /* An interface that carries this one. */
    more_client_t *more = more_bind(other, &error);
    CHECK(more);
    every_client_t *carried = every_from(more_base(more), &error);
    CHECK(carried && !more_from(every_base(every), &error) && error.status == UPCALL_MISUSE);
    every_node_t *renamed;
    OK(every_node_new(carried, upcall_text("old"), EVERY_COLOR_GREEN, &third, &error));
    OK(more_rename(more, third, upcall_text("new"), &renamed, &error));
    CHECK(more_rename(more, node, upcall_text("foreign"), &renamed, &error)
          == UPCALL_FOREIGN_HANDLE);
    OK(every_node_name(renamed, &text, &error));
    CHECK(is(text, "new"));
    upcall_string_free(&text);
    every_node_drop(renamed);
    every_node_drop(third);
    every_unbind(carried);
    more_unbind(more);

    every_node_drop(node);
    OK(every_alive(every, &alive, &error));
    CHECK(alive == 0);
}

static void *gives_up(void *word) {
    struct timespec time = {0, 20000000};
    nanosleep(&time, NULL);
    upcall_cancel(word);
    return NULL;
}

static void terms(every_client_t *every) {
    every_node_t *node;
    uint32_t alive;
    every_client_t *hasty = every_of(upcall_client_copy(every_base(every)));
    upcall_client_set_deadline(every_base(hasty), 50000000);
    CHECK(every_late(hasty, 500, &node, &error) == UPCALL_ABORTED && error.sent);
    /* In time, with a deadline that a busy machine meets: the slot has less room then. */
    upcall_client_set_deadline(every_base(hasty), UINT64_C(30000000000));
    OK(every_null(hasty, &error));
    every_deep_t value = deep(), got;
    OK(every_get_deep(hasty, &value, &got, &error));
    every_deep_free(&got);
    every_numbers_t numbers = {0}, back;
    OK(every_get_numbers(hasty, &numbers, &back, &error));
    every_unbind(hasty);

    every_client_t *given = every_of(upcall_client_copy(every_base(every)));
    upcall_cancel_token *word = upcall_cancel_token_new();
    pthread_t thread;
    upcall_client_set_cancel_token(every_base(given), word);
    pthread_create(&thread, NULL, gives_up, word);
    CHECK(every_late(given, 500, &node, &error) == UPCALL_ABORTED);
    pthread_join(thread, NULL);
    upcall_client_set_cancel_token(every_base(given), NULL);
    upcall_cancel_token_free(word);
    OK(every_null(given, &error));
    every_unbind(given);

    /* The nodes of late replies were dropped. */
    for (int i = 0; i < 500; i++) {
        struct timespec time = {0, 10000000};
        OK(every_alive(every, &alive, &error));
        if (alive == 0 && i > 100) return;
        nanosleep(&time, NULL);
    }
    CHECK(alive == 0);
}

int main(int count, char **arguments) {
    if (count != 4) return 2;
    every_client_t *every = every_bind(arguments[1], &error);
    CHECK(every);
    if (strcmp(arguments[3], "die") == 0) {
        CHECK(upcall_client_is_open(every_base(every)));
        CHECK(every_die(every, &error) == UPCALL_FAILED && strstr(error.text, "bind again"));
        CHECK(every_null(every, &error) == UPCALL_FAILED
              && !upcall_client_is_open(every_base(every)));
    } else {
        values(every);
        errors(every, arguments[2]);
        objects(every, arguments[1], arguments[2]);
        terms(every);
    }
    every_unbind(every);
    return 0;
}
