/* The server of the test of languages. Arguments: the names to export `every` and `more` under. It
 * ends when its input does. */
#include "every.h"

#include <stdatomic.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static atomic_uint alive, made, dropped;

typedef struct leaf {
    char *name;
    size_t len;
    every_color_t color;
} leaf;

static void leaf_drop(void *value) {
    leaf *self = value;
    alive--;
    dropped++;
    free(self->name);
    free(self);
}

static every_served_node_t *leaf_new(upcall_string name, every_color_t color) {
    leaf *self = malloc(sizeof *self);
    self->name = malloc(name.len + 1);
    memcpy(self->name, name.len ? name.data : "", name.len);
    self->len = name.len;
    self->color = color;
    alive++;
    made++;
    return every_served_node_new(self, leaf_drop);
}

static upcall_string copied(upcall_call *call, const leaf *self) {
    upcall_string text;
    text.len = self->len;
    text.data = memcpy(upcall_call_alloc(call, self->len), self->name, self->len);
    return text;
}

static void node_new(void *context, upcall_call *call, upcall_string name, every_color_t color,
                     every_served_node_t **result) {
    (void)context, (void)call;
    *result = leaf_new(name, color);
}
static void node_name(void *context, upcall_call *call, void *self, upcall_string *result) {
    (void)context;
    *result = copied(call, self);
}
static void node_color(void *context, upcall_call *call, void *self, every_color_t *result) {
    (void)context, (void)call;
    *result = ((leaf *)self)->color;
}
static void node_children(void *context, upcall_call *call, void *self,
                          every_served_list_node_t *result) {
    (void)context, (void)self;
    result->len = 3;
    result->data = upcall_call_alloc(call, 3 * sizeof *result->data);
    for (size_t i = 0; i < 3; i++)
        result->data[i] = leaf_new(upcall_text("child"), EVERY_COLOR_GREEN);
}
static void node_adopt(void *context, upcall_call *call, void *self, every_served_node_t *child,
                       every_result_u32_types_error_t *result) {
    (void)context, (void)call;
    leaf *other = every_served_node_value(child);
    result->is_err = other == self;
    if (result->is_err) result->as.err = TYPES_ERROR_BUSY;
    else result->as.ok = (uint32_t)other->len;
    every_served_node_drop(child);
}
static void node_same(void *context, upcall_call *call, void *self, void *other, bool *result) {
    (void)context, (void)call;
    *result = self == other;
}
static void null(void *context, upcall_call *call) { (void)context, (void)call; }
static void add(void *context, upcall_call *call, uint32_t a, uint32_t b, uint32_t *result) {
    (void)context, (void)call;
    *result = a + b;
}
static void get_numbers(void *context, upcall_call *call, const every_numbers_t *n,
                        every_numbers_t *result) {
    (void)context, (void)call;
    *result = *n;
}
static void get_deep(void *context, upcall_call *call, const every_deep_t *d,
                     every_deep_t *result) {
    (void)context, (void)call;
    *result = *d;
}
static void get_shape(void *context, upcall_call *call, const every_shape_t *s,
                      every_option_shape_t *result) {
    (void)context, (void)call;
    result->is_some = true;
    result->value = *s;
}
static void bytes(void *context, upcall_call *call, const upcall_bytes *data,
                  upcall_list_u8_t *result) {
    (void)context;
    uint8_t *copy = upcall_call_alloc(call, upcall_bytes_len(data));
    /* More stack than threads in Rust have. */
    volatile char large[256 << 10];
    for (size_t i = 0; i < sizeof large; i += 4096) large[i] = 1;
    upcall_bytes_copy(data, 0, copy, upcall_bytes_len(data));
    result->data = copy;
    result->len = upcall_bytes_len(data);
}
static void fixed(void *context, upcall_call *call, const every_array_32_u8_t *data,
                  every_array_32_u8_t *result) {
    (void)context, (void)call;
    *result = *data;
}
static void total(void *context, upcall_call *call, upcall_list_u64_t values, uint64_t *result) {
    (void)context, (void)call;
    for (size_t i = 0; i < values.len; i++) *result += values.data[i];
}
static void bind_(void *context, upcall_call *call, upcall_string name,
                  every_result_void_string_t *result) {
    (void)context, (void)call;
    result->is_err = true;
    result->as.err = name;
}
static void bare(void *context, upcall_call *call, every_result_void_void_t *result) {
    (void)context, (void)call;
    result->is_err = true;
}
static void swap(void *context, upcall_call *call, const every_served_family_t *f,
                 every_served_family_t *result) {
    (void)context;
    char *label = upcall_call_alloc(call, 2 * f->label.len);
    memcpy(label, f->label.data, f->label.len);
    memcpy(label + f->label.len, f->label.data, f->label.len);
    result->label.data = label;
    result->label.len = 2 * f->label.len;
    result->parent = f->child.is_some ? f->child.value : f->parent;
    result->child.is_some = f->child.is_some;
    if (f->child.is_some) result->child.value = f->parent;
}
static void find(void *context, upcall_call *call, uint32_t many, every_served_found_t *result) {
    (void)context;
    if (many == 0) return;
    if (many == 1) {
        result->tag = EVERY_FOUND_ONE;
        result->as.one = leaf_new(upcall_text("one"), EVERY_COLOR_RED);
        return;
    }
    result->tag = EVERY_FOUND_MANY;
    result->as.many.len = many;
    result->as.many.data = upcall_call_alloc(call, many * sizeof *result->as.many.data);
    for (uint32_t i = 0; i < many; i++)
        result->as.many.data[i] = leaf_new(upcall_text("many"), EVERY_COLOR_RED);
}
static void names(void *context, upcall_call *call, every_served_list_lent_node_t all,
                  every_list_string_t *result) {
    (void)context;
    upcall_string *texts = upcall_call_alloc(call, all.len * sizeof *texts);
    for (size_t i = 0; i < all.len; i++) texts[i] = copied(call, all.data[i]);
    result->data = texts;
    result->len = all.len;
}
static void alive_(void *context, upcall_call *call, uint32_t *result) {
    (void)context, (void)call;
    *result = alive;
}
static void late(void *context, upcall_call *call, uint32_t milliseconds,
                 every_served_node_t **result) {
    (void)context, (void)call;
    struct timespec time = {milliseconds / 1000, (long)(milliseconds % 1000) * 1000000};
    nanosleep(&time, NULL);
    *result = leaf_new(upcall_text("late"), EVERY_COLOR_BLUE);
}
static void fail(void *context, upcall_call *call) {
    (void)context;
    upcall_call_fail(call, "as asked");
}
static void die(void *context, upcall_call *call) {
    (void)context, (void)call;
    _exit(0);
}
static void rename_(void *context, upcall_call *call, void *n, upcall_string name,
                    every_served_node_t **result) {
    (void)context, (void)call;
    *result = leaf_new(name, ((leaf *)n)->color);
}
static void node_root(void *context, upcall_call *call,
                      every_served_result_node_types_error_t *result) {
    (void)context, (void)call;
    result->is_err = true;
    result->as.err = TYPES_ERROR_NOT_FOUND;
}

int main(int count, char **arguments) {
    static const every_server_t every = {
        .node_new = node_new,
        .node_name = node_name,
        .node_color = node_color,
        .node_children = node_children,
        .node_adopt = node_adopt,
        .node_same = node_same,
        .node_root = node_root,
        .null = null,
        .add = add,
        .get_numbers = get_numbers,
        .get_deep = get_deep,
        .get_shape = get_shape,
        .bytes = bytes,
        .fixed = fixed,
        .total = total,
        .bind = bind_,
        .bare = bare,
        .swap = swap,
        .find = find,
        .names = names,
        .alive = alive_,
        .late = late,
        .fail = fail,
        .die = die,
    };
    static const more_server_t more = {.every = &every, .rename = rename_};
    more_server_t lacks = more;
    upcall_error error;
    upcall_server *server = upcall_server_new();
    char c, address[UPCALL_ADDRESS_SIZE];
    if (count < 3) return 2;
    lacks.rename = NULL;
    if (more_export(server, arguments[2], &lacks, &error) != UPCALL_MISUSE
        || strcmp(error.text, "the interface has the procedure `rename`: set `.rename` of the "
                              "more_server_t to its function")
               != 0)
        return 3;
    lacks = more;
    lacks.every = NULL;
    if (more_export(server, arguments[2], &lacks, &error) != UPCALL_MISUSE
        || strcmp(error.text, "the interface carries test:every/every@1.0.0: set `.every` of the "
                              "more_server_t to its functions")
               != 0)
        return 3;
    upcall_server_set_processors(server, 2);
    upcall_server_set_spare_processors(server, 4);
    /* A third argument is an address to listen at. */
    if (count > 3 && upcall_server_listen(server, arguments[3], &error) != UPCALL_OK) {
        fprintf(stderr, "%s\n", error.text);
        return 4;
    }
    if (every_export(server, arguments[1], &every, &error) != UPCALL_OK
        || more_export(server, arguments[2], &more, &error) != UPCALL_OK) {
        fprintf(stderr, "%s\n", error.text);
        return 4;
    }
    upcall_running *running = upcall_server_start(server, &error);
    if (!running) {
        fprintf(stderr, "%s\n", error.text);
        return 5;
    }
    if (upcall_running_address(running, 0, address)) puts(address);
    puts("ready");
    fflush(stdout);
    while (read(0, &c, 1) > 0) continue;
    upcall_running_stop(running);
    if (alive != 0 || made != dropped) {
        fprintf(stderr, "%u nodes live, %u made, %u dropped\n", alive, made, dropped);
        return 6;
    }
    return 0;
}
