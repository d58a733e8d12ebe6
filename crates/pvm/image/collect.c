/* Collective operations of a group: broadcast, reduce, gather, scatter.
 *
 * Each member but the root sends its part and continues, or waits for the root alone. The root
 * receives one message from each member by tid, in the order of instances. So a member that is one
 * round ahead is not mistaken for another, and sums of floating-point numbers are the same in each
 * run. The messages use a context of the library's own, which no receive of the program matches. */

#include "services.h"
#include <stdlib.h>
#include <string.h>

#define EACH for (int one = 0; one < *count; one++)

/* The loop for one type. The last argument is the loop's body, in which x[one] and y[one] are the
 * elements. */
#define LOOP(type_number, type_name, ...)       \
    case type_number: {                         \
        type_name *x = data;                    \
        const type_name *y = other;             \
        EACH __VA_ARGS__;                       \
        break;                                  \
    }
#define WHOLE(...)                                      \
    LOOP(PVM_SHORT, short, __VA_ARGS__)                 \
    LOOP(PVM_INT, int, __VA_ARGS__)                     \
    LOOP(PVM_LONG, long, __VA_ARGS__)                   \
    LOOP(PVM_USHORT, unsigned short, __VA_ARGS__)       \
    LOOP(PVM_UINT, unsigned int, __VA_ARGS__)           \
    LOOP(PVM_ULONG, unsigned long, __VA_ARGS__)
#define REAL(...)                               \
    LOOP(PVM_FLOAT, float, __VA_ARGS__)         \
    LOOP(PVM_DOUBLE, double, __VA_ARGS__)
#define COMPLEX(...)                                    \
    LOOP(PVM_CPLX, struct single_pair, __VA_ARGS__)     \
    LOOP(PVM_DCPLX, struct double_pair, __VA_ARGS__)
#define REDUCES(name, ...)                                                      \
    void name(int *type, void *data, void *other, int *count, int *info)        \
    {                                                                           \
        *info = PvmOk;                                                          \
        switch (*type) {                                                        \
            __VA_ARGS__                                                         \
        default:                                                                \
            *info = PvmBadParam;                                                \
        }                                                                       \
    }

struct single_pair {
    float r, i;
};
struct double_pair {
    double r, i;
};

/* The square of the modulus, in the type's own precision, as PVM compares complex numbers. */
#define SQUARE(z) ((z).r * (z).r + (z).i * (z).i)

/* If both are equal, complex numbers keep the first and all others the second. */
REDUCES(PvmMax,
        LOOP(PVM_BYTE, char, x[one] = x[one] > y[one] ? x[one] : y[one])
        WHOLE(x[one] = x[one] > y[one] ? x[one] : y[one])
        REAL(x[one] = x[one] > y[one] ? x[one] : y[one])
        COMPLEX(if (SQUARE(y[one]) > SQUARE(x[one])) x[one] = y[one]))

REDUCES(PvmMin,
        LOOP(PVM_BYTE, char, x[one] = x[one] < y[one] ? x[one] : y[one])
        WHOLE(x[one] = x[one] < y[one] ? x[one] : y[one])
        REAL(x[one] = x[one] < y[one] ? x[one] : y[one])
        COMPLEX(if (SQUARE(y[one]) < SQUARE(x[one])) x[one] = y[one]))

/* Integer overflow wraps. */
REDUCES(PvmSum,
        WHOLE(__builtin_add_overflow(x[one], y[one], &x[one]))
        REAL(x[one] += y[one])
        COMPLEX(x[one].r += y[one].r, x[one].i += y[one].i))

REDUCES(PvmProduct,
        WHOLE(__builtin_mul_overflow(x[one], y[one], &x[one]))
        REAL(x[one] *= y[one])
        COMPLEX({
            __typeof__(x[one]) z = x[one], w = y[one];
            x[one].r = z.r * w.r - z.i * w.i;
            x[one].i = z.r * w.i + z.i * w.r;
        }))

/* One member's contribution. */
struct part {
    int count, type, tag;
    size_t bytes;
};

static int is_sound(struct part *part)
{
    size_t size = upvm_size(part->type);
    part->bytes = part->count > 0 ? size * part->count : 0;
    return part->bytes && part->tag >= 0;
}

/* Length of a part in bytes. A string has its own length, at most `count` bytes. */
static size_t length(const struct part *part, const char *data)
{
    return part->type == PVM_STR ? strnlen(data, part->bytes - 1) + 1 : part->bytes;
}

static int send_part(const struct part *part, const char *data, int to)
{
    int number = upvm_buffer_new(PvmDataRaw);
    if (number < 0)
        return number;
    struct upvm_buffer *buffer = upvm_buffer(number);
    size_t bytes = length(part, data);
    char *room = upvm_room(buffer, bytes);
    int sent = PvmNoMem;
    if (room) {
        memcpy(room, data, bytes);
        sent = upvm_send(buffer, to, part->tag, UPVM_GROUP_CONTEXT);
    }
    upvm_buffer_free(number);
    return sent;
}

static int receive_part(const struct part *part, char *data, int from)
{
    int number = upvm_receive(from, part->tag, UPVM_GROUP_CONTEXT, -1);
    if (number <= 0)
        return number < 0 ? number : PvmSysErr;
    struct upvm_buffer *buffer = upvm_buffer(number);
    size_t bytes =
        part->type == PVM_STR && buffer->length < part->bytes ? buffer->length : part->bytes;
    const char *came = upvm_next(buffer, bytes);
    if (came)
        memcpy(data, came, bytes);
    upvm_buffer_free(number);
    return came ? PvmOk : PvmNoData;
}

/* Lists all members. Returns their number, or an error if an instance is unused. */
static int contiguous(const char *group, int **tids)
{
    int count = upvm_group_members(group, tids);
    for (int one = 0; one < count; one++)
        if (!(*tids)[one]) {
            free(*tids);
            return PvmNoInst;
        }
    return count;
}

int pvm_bcast(char *group, int tag)
{
    int *tids, count = upvm_group_members(group, &tids);
    if (count < 0)
        return upvm_polled(count);
    int own = upvm_self(), others = 0;
    for (int one = 0; one < count; one++)
        if (tids[one] && tids[one] != own)
            tids[others++] = tids[one];
    int sent = others ? pvm_mcast(tids, others, tag) : upvm_polled(PvmNoInst);
    free(tids);
    return sent;
}

typedef void reduces(int *, void *, void *, int *, int *);

static int reduce_all(const struct part *part, reduces *function, char *data, const char *group)
{
    int *tids, count = upvm_group_members(group, &tids);
    if (count < 0)
        return count;
    /* `function` may write to the received part, so it gets a copy. */
    char *other = malloc(part->bytes);
    int own = upvm_self(), done = other ? PvmOk : PvmNoMem;
    for (int one = 0; one < count && done >= 0; one++) {
        if (!tids[one] || tids[one] == own)
            continue;
        done = receive_part(part, other, tids[one]);
        int type = part->type, items = part->count;
        if (done >= 0)
            function(&type, data, other, &items, &done);
    }
    free(other);
    free(tids);
    return done;
}

/* Only the root calls `function`, once for each other member's part. */
static int reduce(struct part *part, reduces *function, void *data, const char *group, int root)
{
    if (!function || !data || part->count <= 0 || part->tag < 0)
        return PvmBadParam;
    int own = upvm_self(), instance = upvm_group_instance(group, own);
    if (instance < 0)
        return instance;
    int task = upvm_group_task(group, root);
    if (task < 0)
        return task;
    if (!is_sound(part))
        return PvmBadParam;
    return task == own ? reduce_all(part, function, data, group) : send_part(part, data, task);
}

int pvm_reduce(reduces *function, void *data, int count, int type, int tag, char *group, int root)
{
    struct part part = {.count = count, .type = type, .tag = tag};
    int done = reduce(&part, function, data, group, root);
    return done < 0 ? upvm_done("pvm_reduce", done) : PvmOk;
}

/* Returns the root's tid, or an error if this task is not a member. */
static int root_of(const char *group, int root)
{
    int task = upvm_group_task(group, root);
    int instance = task < 0 ? task : upvm_group_instance(group, upvm_self());
    return instance < 0 ? instance : task;
}

static int gather(struct part *part, char *result, const char *data, const char *group, int root)
{
    if (!data || !is_sound(part))
        return PvmBadParam;
    int task = root_of(group, root), own = upvm_self();
    if (task < 0)
        return task;
    if (task != own)
        return send_part(part, data, task);
    if (!result)
        return PvmBadParam;
    int *tids, count = contiguous(group, &tids), done = PvmOk;
    if (count < 0)
        return count;
    for (int one = 0; one < count && done >= 0; one++, result += part->bytes)
        if (tids[one] == own)
            memmove(result, data, length(part, data));
        else
            done = receive_part(part, result, tids[one]);
    free(tids);
    return done;
}

int pvm_gather(void *result, void *data, int count, int type, int tag, char *group, int root)
{
    struct part part = {.count = count, .type = type, .tag = tag};
    return upvm_done("pvm_gather", gather(&part, result, data, group, root));
}

static int scatter(struct part *part, char *result, const char *data, const char *group, int root)
{
    if (!result || !is_sound(part))
        return PvmBadParam;
    int task = root_of(group, root), own = upvm_self();
    if (task < 0)
        return task;
    if (task != own)
        return receive_part(part, result, task);
    if (!data)
        return PvmBadParam;
    int *tids, count = contiguous(group, &tids), done = PvmOk;
    if (count < 0)
        return count;
    const char *its = 0;
    for (int one = 0; one < count && done >= 0; one++, data += part->bytes)
        if (tids[one] == own)
            its = data;
        else
            done = send_part(part, data, tids[one]);
    free(tids);
    /* Copied last: `result` may overlap the other members' parts. */
    if (its && done >= 0)
        memmove(result, its, length(part, its));
    return done;
}

int pvm_scatter(void *result, void *data, int count, int type, int tag, char *group, int root)
{
    struct part part = {.count = count, .type = type, .tag = tag};
    return upvm_done("pvm_scatter", scatter(&part, result, data, group, root));
}
