/* A ring: a token goes round four processes, which then add up how often they saw it, and leave.
 * Start it as a job:
 *
 *     cc ring.c -o ring $(pkg-config --cflags --libs upcall)
 *     upcall job run --group 4 -- ./ring 1000
 *
 * This is C11, and also C++. */
#include <stdio.h>
#include <upcall_message.h>

typedef struct ring {
    upcall_kind token, stop;
    uint64_t last, seen;
    bool stopped;
} ring;

static int fail(const char *what, const upcall_error *error) {
    fprintf(stderr, "%s: %s\n", what, error->text);
    return 1;
}

static void on_token(void *context, upcall_group *group, const upcall_message *message) {
    ring *self = (ring *)context;
    size_t rank = upcall_group_rank(group), size = upcall_group_size(group), to;
    uint64_t hops = upcall_word(message, 0) + 1;
    upcall_error error;
    self->seen++;
    if (hops <= self->last) {
        if (upcall_group_send(group, (rank + 1) % size, self->token, &hops, sizeof hops, &error)
            != UPCALL_OK)
            fail("send", &error);
        return;
    }
    for (to = 0; to < size; to++)
        if (upcall_group_send(group, to, self->stop, NULL, 0, &error) != UPCALL_OK)
            fail("stop", &error);
}

static void on_stop(void *context, upcall_group *group, const upcall_message *message) {
    (void)group, (void)message;
    ((ring *)context)->stopped = true;
}

static bool stopped(void *context) {
    return ((ring *)context)->stopped;
}

int main(int count, char **arguments) {
    ring self = {0, 0, 0, 0, false};
    upcall_error error;
    uint64_t first = 1, hops;
    upcall_handlers *handlers = upcall_handlers_new();
    upcall_joining *joining = upcall_joining_from_environment(&error);
    upcall_group *group;
    if (!joining) return fail("a member of a job", &error);
    self.last = count > 1 ? strtoull(arguments[1], NULL, 10) : 1000;

    self.token = upcall_handlers_kind(handlers, "token", "u64", &error);
    self.stop = upcall_handlers_kind(handlers, "stop", "()", &error);
    upcall_handlers_on(handlers, self.token, on_token, &self, &error);
    upcall_handlers_on(handlers, self.stop, on_stop, &self, &error);
    group = upcall_group_join(joining, handlers, &error);
    if (!group) return fail("join", &error);

    if (upcall_group_rank(group) == 0)
        if (upcall_group_send(group, 1 % upcall_group_size(group), self.token, &first, sizeof first,
                              &error)
            != UPCALL_OK)
            return fail("send", &error);
    if (upcall_group_run_until(group, stopped, &self, &error) != UPCALL_OK)
        return fail("run", &error);

    hops = self.seen;
    if (upcall_group_reduce(group, &hops, upcall_sum_u64, NULL, &error) != UPCALL_OK)
        return fail("reduce", &error);
    printf("member %zu of %zu: the token came %llu times, %llu in all\n", upcall_group_rank(group),
           upcall_group_size(group), (unsigned long long)self.seen, (unsigned long long)hops);
    /* No member leaves before all have the result. */
    if (upcall_group_barrier(group, &error) != UPCALL_OK) return fail("barrier", &error);
    return upcall_group_leave(group, &error) == UPCALL_OK ? 0 : fail("leave", &error);
}
