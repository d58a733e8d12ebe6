/* Two queues of entries, doubly linked. */

#include "matching.h"

void upvm_match_append(struct upvm_queue *queue, struct upvm_entry *entry)
{
    entry->next = 0, entry->before = queue->last, entry->queue = queue;
    if (queue->last)
        queue->last->next = entry;
    else
        queue->first = entry;
    queue->last = entry;
}

void upvm_match_remove(struct upvm_matching *matching, struct upvm_entry *entry)
{
    struct upvm_queue *queue = entry->queue;
    if (!queue)
        return;
    if (entry->before)
        entry->before->next = entry->next;
    else
        queue->first = entry->next;
    if (entry->next)
        entry->next->before = entry->before;
    else
        queue->last = entry->before;
    entry->next = entry->before = 0, entry->queue = 0;
    matching->removed++;
}

int upvm_match_probe(struct upvm_matching *matching, const struct upvm_key *wanted,
                     upvm_ranks *ranks, struct upvm_entry **found)
{
    int best = 0;
    *found = 0;
    for (struct upvm_entry *one = matching->unexpected.first; one;) {
        unsigned removed = matching->removed;
        int rank = ranks ? ranks(one, wanted) : upvm_fits(wanted, &one->key);
        if (rank < 0)
            return rank;
        if (matching->removed != removed) {
            /* Perhaps this very message, or the best one. */
            best = 0, *found = 0, one = matching->unexpected.first;
            continue;
        }
        if (rank == 1 || rank > best)
            best = rank, *found = one;
        if (rank == 1)
            break;
        one = one->next;
    }
    return best;
}

struct upvm_entry *upvm_match_posted(const struct upvm_matching *matching,
                                     const struct upvm_key *key)
{
    struct upvm_entry *one = matching->posted.first;
    while (one && !upvm_fits(&one->key, key))
        one = one->next;
    return one;
}

struct upvm_entry *upvm_match_post(struct upvm_matching *matching, struct upvm_entry *receive)
{
    struct upvm_entry *message;
    if (upvm_match_probe(matching, &receive->key, 0, &message))
        upvm_match_remove(matching, message);
    else
        upvm_match_append(&matching->posted, receive);
    return message;
}

struct upvm_entry *upvm_match_arrive(struct upvm_matching *matching, struct upvm_entry *message)
{
    struct upvm_entry *receive = upvm_match_posted(matching, &message->key);
    if (receive)
        upvm_match_remove(matching, receive);
    else
        upvm_match_append(&matching->unexpected, message);
    return receive;
}
