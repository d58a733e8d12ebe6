/* Matching of messages with receives, for any interface: nothing here is PVM's, allocates, waits or
 * asks the host.
 *
 * - A key is a message's source, tag and context. A receive's key may have UPVM_ANY in each place;
 *   a message's never has it.
 * - Messages that no receive has asked for are `unexpected`, in the order of arrival. Receives that
 *   wait for a message are `posted`, in the order of posting. The caller owns the entries and
 *   embeds them in its own structures; an entry is in at most one queue.
 * - A message goes to the first posted receive that it fits, and a receive takes the first
 *   unexpected message that fits. So messages of one sender cannot overtake each other, unless a
 *   hook ranks them (pvm_recvf).
 * - A receive that waits inside a function is not posted here. It searches after each arrival: a
 *   receive in a handler, which runs while it waits, takes what it wants first. PVM posts only its
 *   handlers here, and receives that wait without handlers at the host (src/node/posted.rs).
 * - A hook may remove any entries; the search then begins again.
 */
#ifndef UPVM_MATCHING_H
#define UPVM_MATCHING_H

#define UPVM_ANY (-1)

struct upvm_key {
    int source, tag, context;
};

struct upvm_entry {
    struct upvm_key key;
    int note; /* the owner's */
    struct upvm_entry *next, *before;
    struct upvm_queue *queue; /* 0: in none */
};

struct upvm_queue {
    struct upvm_entry *first, *last;
};

/* All bytes 0: no message and no receive. */
struct upvm_matching {
    struct upvm_queue unexpected, posted;
    /* Number of entries that were removed, modulo 2^32. */
    unsigned removed;
};

/* How well a message fits: 0 not at all; 1 it is found, and the search ends; more than 1 it is
 * found unless a later one ends the search or has a higher number. Below 0 an error, which ends
 * the search. */
typedef int upvm_ranks(const struct upvm_entry *message, const struct upvm_key *wanted);

/* Returns 1 if a message with this key is one that is wanted. */
static inline int upvm_fits(const struct upvm_key *wanted, const struct upvm_key *key)
{
    return (wanted->source == UPVM_ANY || wanted->source == key->source) &&
           (wanted->tag == UPVM_ANY || wanted->tag == key->tag) &&
           (wanted->context == UPVM_ANY || wanted->context == key->context);
}

/* Adds an entry, which is in no queue, at the end of one. */
void upvm_match_append(struct upvm_queue *queue, struct upvm_entry *entry);

/* Removes an entry from its queue, if it is in one: a message that is taken or freed, or a receive
 * that is cancelled. */
void upvm_match_remove(struct upvm_matching *matching, struct upvm_entry *entry);

/* Finds an unexpected message, which stays where it is: the one that `ranks` ranks highest, or the
 * first that fits if there is no `ranks`. Returns its rank and stores it, or 0, or an error of
 * `ranks`. */
int upvm_match_probe(struct upvm_matching *matching, const struct upvm_key *wanted,
                     upvm_ranks *ranks, struct upvm_entry **found);

/* Finds the first posted receive that a message with this key fits. It stays posted. */
struct upvm_entry *upvm_match_posted(const struct upvm_matching *matching,
                                     const struct upvm_key *key);

/* Posts a receive. Returns the unexpected message that it takes instead, or 0. */
struct upvm_entry *upvm_match_post(struct upvm_matching *matching, struct upvm_entry *receive);

/* Takes in a message. Returns the posted receive that takes it, which is posted no longer. If there
 * is none, returns 0, and the message is unexpected. */
struct upvm_entry *upvm_match_arrive(struct upvm_matching *matching, struct upvm_entry *message);

#endif
