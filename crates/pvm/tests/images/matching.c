/* Compares matching.c with a plain model, which keeps all messages and receives in two arrays, over
 * random sequences of arrivals, posts, probes, claims and cancellations. Prints the number of a
 * sequence that differs, and ends with 1. Compiled and run without PVM. */
#include "matching.h"
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { SEQUENCES = 2000, STEPS = 200, MOST = 64 };

static uint64_t state;

static unsigned below(unsigned limit)
{
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return (state >> 32) % limit;
}

/* The model's queues have the numbers of entries. */
struct line {
    int all[MOST], count;
};

static struct upvm_matching matching;
static struct upvm_entry entries[MOST];
static struct line messages, receives;

static int fits(const struct upvm_key *wanted, const struct upvm_key *key)
{
    return (wanted->source < 0 || wanted->source == key->source) &&
           (wanted->tag < 0 || wanted->tag == key->tag) &&
           (wanted->context < 0 || wanted->context == key->context);
}

static void drop(struct line *line, int place)
{
    line->count--;
    memmove(&line->all[place], &line->all[place + 1], (line->count - place) * sizeof(int));
}

/* What a ranking hook answers: by the message's number, and different for each wish. */
static int rank(const struct upvm_entry *message, const struct upvm_key *wanted)
{
    unsigned mixed = (message->note * 7u + wanted->tag * 3u + wanted->source + 5u) % 9u;
    return mixed == 8 ? -5 : mixed < 5 ? (int)mixed : 0;
}

/* Drops a message once, perhaps the one that it is asked about, whose rank then does not count. */
static int dropped;
static int rank_and_drop(const struct upvm_entry *message, const struct upvm_key *wanted)
{
    if (dropped >= 0 && below(3) == 0) {
        upvm_match_remove(&matching, &entries[dropped]);
        for (int place = 0; place < messages.count; place++)
            if (messages.all[place] == dropped)
                drop(&messages, place);
        dropped = -1;
        return 2;
    }
    return rank(message, wanted);
}

/* The message that the model finds, as a place in its line; -1: none. */
static int model_find(const struct upvm_key *wanted, upvm_ranks *ranks, int *code)
{
    int best = 0, found = -1;
    for (int place = 0; place < messages.count; place++) {
        const struct upvm_entry *one = &entries[messages.all[place]];
        int its = ranks ? rank(one, wanted) : fits(wanted, &one->key);
        if (its < 0) {
            *code = its;
            return -1;
        }
        if (its == 1 || its > best)
            best = its, found = place;
        if (its == 1)
            break;
    }
    *code = best;
    return found;
}

static int is_line(const struct upvm_queue *queue, const struct line *line)
{
    const struct upvm_entry *one = queue->first, *before = 0;
    for (int place = 0; place < line->count; place++, before = one, one = one->next)
        if (one != &entries[line->all[place]] || one->before != before || one->queue != queue)
            return 0;
    return !one && queue->last == before;
}

static struct upvm_key random_key(void)
{
    return (struct upvm_key){below(3), below(3), below(2)};
}

/* A wish for messages, with wildcards. */
static struct upvm_key random_wish(void)
{
    struct upvm_key key = random_key();
    if (!below(3))
        key.source = UPVM_ANY;
    if (!below(3))
        key.tag = UPVM_ANY;
    if (!below(3))
        key.context = UPVM_ANY;
    return key;
}

static int free_entry(void)
{
    for (int one = 0; one < MOST; one++)
        if (!entries[one].queue)
            return one;
    return -1;
}

static int arrive(int number)
{
    entries[number].key = random_key();
    int place = 0;
    while (place < receives.count &&
           !fits(&entries[receives.all[place]].key, &entries[number].key))
        place++;
    struct upvm_entry *want =
        place < receives.count ? &entries[receives.all[place]] : 0;
    if (upvm_match_posted(&matching, &entries[number].key) != want ||
        upvm_match_arrive(&matching, &entries[number]) != want)
        return 0;
    if (want)
        drop(&receives, place);
    else
        messages.all[messages.count++] = number;
    return 1;
}

static int post(int number)
{
    entries[number].key = random_wish();
    int code, place = model_find(&entries[number].key, 0, &code);
    struct upvm_entry *want = place < 0 ? 0 : &entries[messages.all[place]];
    if (upvm_match_post(&matching, &entries[number]) != want)
        return 0;
    if (want)
        drop(&messages, place);
    else
        receives.all[receives.count++] = number;
    return 1;
}

/* Probes, and sometimes takes what was found. */
static int probe(int how)
{
    struct upvm_key wish = random_wish();
    struct upvm_entry *found;
    dropped = how == 2 && messages.count ? messages.all[below(messages.count)] : -1;
    upvm_ranks *ranks = how == 0 ? 0 : how == 1 ? rank : rank_and_drop;
    int code = upvm_match_probe(&matching, &wish, ranks, &found), expected;
    int place = model_find(&wish, ranks, &expected);
    if (code != expected)
        return 0;
    if (code <= 0)
        return 1;
    if (found != &entries[messages.all[place]])
        return 0;
    if (below(2)) {
        upvm_match_remove(&matching, found);
        drop(&messages, place);
    }
    return 1;
}

static int cancel(struct line *line)
{
    if (!line->count)
        return 1;
    int place = below(line->count);
    struct upvm_entry *one = &entries[line->all[place]];
    upvm_match_remove(&matching, one);
    upvm_match_remove(&matching, one); /* it is in no queue now */
    drop(line, place);
    return 1;
}

static int step(void)
{
    int number = free_entry(), what = below(8);
    if (number >= 0 && what < 3)
        return arrive(number);
    if (number >= 0 && what < 5)
        return post(number);
    return what < 7 ? probe(below(3)) : cancel(below(2) ? &messages : &receives);
}

int main(void)
{
    for (int sequence = 0; sequence < SEQUENCES; sequence++) {
        state = 0x9e3779b97f4a7c15u * (sequence + 1);
        memset(&matching, 0, sizeof matching);
        memset(entries, 0, sizeof entries);
        messages.count = receives.count = 0;
        for (int one = 0; one < MOST; one++)
            entries[one].note = one;
        for (int one = 0; one < STEPS; one++)
            if (!step() || !is_line(&matching.unexpected, &messages) ||
                !is_line(&matching.posted, &receives)) {
                printf("sequence %d differs at step %d\n", sequence, one);
                return 1;
            }
    }
    printf("%d sequences are the same\n", SEQUENCES);
    return 0;
}
