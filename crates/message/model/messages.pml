/* The protocol of messages as a whole, for Spin: `make spin` (check.sh, beside this file).
 *
 * loom checks the memory orders of the code, for one queue and for one sleep at a time
 * (crates/shm/tests/models/loom_direct.rs, crates/sched/tests/models/loom_sleep.rs). This model
 * puts queues, sleep, wake, stops and deaths together, and Spin checks every state that they can
 * reach. Each sender has a processor with a store buffer: a store reaches memory later, after loads
 * that follow it in the program. The sender has no fence; the receiver makes one for all senders.
 * Without that fence Spin finds a message that no receiver sees.
 *
 * What is modelled, and where it is in the code
 *
 *     steps LOOK_AWAY to LAUNCH of Sender   crates/shm/src/direct/outgoing.rs: describe,
 *                                           Draft::put, Draft::launch; outgoing/divert.rs:
 *                                           is_drained, go_home, look, divert; mod.rs: place() is
 *                                           PLACE
 *     SEE_ASLEEP, SEE_NUMBER, RING          crates/sched/src/ringer.rs: Ringer::launched;
 *                                           sleep.rs: no_fence, first_ring
 *     Memory, and the channel `stores`      the store buffer (total store order: stores stay in
 *                                           order)
 *     PEEK to ENTER, READ, TELL             crates/shm/src/direct/incoming.rs: peek, Arrived::word,
 *                                           dispose, tell; incoming/follow.rs: follow, enter,
 *                                           go_home, left
 *     NUMBER to RETRACT                     crates/sched/src/sleep.rs: sleep_until,
 *                                           announce_to_all, retract; FENCE is
 *                                           crates/os/src/membarrier.rs: everywhere, in one sender
 *                                           after the other
 *     DEAD of Sender                        the kernel (stores reach memory), and the clerk, which
 *                                           rouses receivers: Post::rouse
 *     COUNT to STOPPED of Sender            crates/message/src/proto/flow.rs: without_room;
 *                                           buffering.rs: elsewhere; outgoing.rs: buffered. SHARE
 *                                           is the number of segments that a sender may buffer.
 *                                           STAYS is a timeout of 0 (stay_diverted). limits.pml has
 *                                           whole members that flood each other
 *     HALTED of Receiver                    SIGSTOP for ever, which is not reported; or death,
 *                                           which the clerk reports to senders later (`gone`)
 *
 * Each step touches at most one shared word. Home and segments have four words, there can be two
 * segments at a time, and a message has one word or two. A receiver that is stopped for a while,
 * descheduled, or in an atomic section takes no step for any time, anywhere, even in the middle of
 * a message. To the others these are all the same, so the model does not distinguish them. A sender
 * diverts at will (DIVERTS times), or instead of waiting for room. It drops drafts (DRAFTS times),
 * and dies between any two stores or loads.
 *
 * What must hold
 *
 *     in each state    The messages of each pair are taken in order, whole, and none twice:
 *                      `taken`, and the payload when it is read. No message is overwritten unread:
 *                      `READ_TO`. The memory of a segment is not reused before the receiver has
 *                      left it: `used`. Each side finds the other one honest (no Violation). A
 *                      drained queue is home after the next message: `was_drained`. A look follows
 *                      at most MOVES words, and finds another one only if the sender led on since:
 *                      `led`.
 *                      With a share, no more segments than it hold messages that were not taken,
 *                      not counting the first one of each further pair. Nor is more memory of
 *                      segments in use, except for one segment of each pair, which its receiver is
 *                      about to leave (`within_share`).
 *     in final states  All senders have ended. Each message that was launched is taken, even if its
 *                      sender has died since. So no message is stranded, no sender waits for ever
 *                      for room, and a stopped receiver holds up no sender. Receivers have reported
 *                      all messages (init, at the end of this file).
 *     in each run      The run reaches a final state: there is no cycle, with or without fairness.
 *                      So "at last" needs no other formula. (Checked with one sender.)
 *
 * What is not modelled
 *
 *     - The receiver's store buffer. If its reports of disposed messages are seen later, the
 *       receiver is merely slower. Its announcement has a fence behind it.
 *     - Processors that reorder stores (loom), and hostile peers (tests).
 *     - A fence that the kernel refuses, and all other time limits.
 *     - A receiver that cannot map a segment; joining and leaving.
 *     - The reason why a sender diverts; more than two senders.
 *
 * Simplifications
 *
 *     - The number of a sleep is one bit for each sender, which says whether the sender has rung
 *       for the last sleep. A load of the number is one step with the comparison, because the other
 *       side of the comparison is the sender's own.
 *     - A wait takes all rings of a bell. The kernel may leave some of them for the next wait,
 *       which only causes a needless look.
 *     - A sender that is stopped for ever between launch and ring, and is not dead, leaves its
 *       message to a receiver that sleeps. The real protocol does the same.
 *
 * Faults, each by a definition, that must be found, and how
 *
 *     NO_FENCE            the receiver makes no fence
 *                         stranded: the launch was in the store buffer while the sender read
 *                         "awake" and the receiver looked
 *     NO_SECOND_LOOK      the receiver does not look after its announcement
 *                         stranded
 *     NO_NUMBER           a sender rings once, and not once for each sleep
 *                         stranded
 *     NO_ROUSE            the clerk does not rouse the receiver when a sender has died
 *                         stranded: the sender died between launch and ring
 *     NO_TELL             the receiver sleeps without having reported
 *                         it sleeps with all messages taken, and its sender finds no room and no
 *                         way home
 *     HOME_NOT_CLEARED    go_home leaves the word that led away
 *                         the receiver is led away again
 *     SEGMENT_NOT_CLEARED divert leaves the segment's old contents
 *                         an old header is taken for a message
 *     NO_PLUS_ONE         place() without its + 1
 *                         the sender goes home from a segment that its receiver has not seen
 *     NARROW_STRIDE       STRIDE is the capacity
 *                         "in it, with all disposed of" is taken for "left"
 *     ONE_SEGMENT         Memory::SEGMENTS is 1
 *                         divert from home does not check that the last segment was left
 *     LEFT_TOO_EARLY      left() reports before it leaves
 *                         memory is reused, and then given back
 *     ZERO_UNCOUNTED      no word is kept for the 0 after a message
 *                         the 0 overwrites a header
 *     ZERO_LAST           the 0 is written after the header
 *                         the receiver takes the old contents for a header
 *     ONE_MOVE            MOVES is 1
 *                         two words lead to a message at rest, because its sender launches after
 *                         each divert
 *     WAITS_FOR_ALL       the sender to a stopped receiver waits for room
 *                         the receiver holds it up (here by leaving out NEVER_WAITS)
 *     DRAINED_COUNTS      a segment in which all messages are taken counts
 *                         with a timeout of 0 and a share of one segment the sender waits for ever
 *     OTHERS_UNCOUNTED    segments for other receivers do not count
 *                         more than the share is buffered
 *     NO_LIMIT            no sender is stopped
 *                         more than the share is buffered
 *
 * Runs, with states and seconds (on two cores with other work; at most about 1 GiB of memory). All
 * of check.sh, with limits.pml, takes 5 minutes beside much other work, a third of it in gcc.
 *
 *     one sender, which may die                         4213576 states    7.6 s
 *     drafts are dropped                                3074234 states    5.9 s
 *     the receiver may die                               849731 states    1.2 s
 *     the sender makes its own fence                     529212 states    0.7 s
 *     two senders, one may die                          9100642 states   28.4 s
 *     two receivers, one may stop for ever              2049321 states    4.9 s
 *     one sender, which may die, ends                   1523561 states    4.3 s
 *     the receiver may die, ends                        1699461 states    4.5 s
 *     two receivers, one may stop for ever, ends        4098641 states   18.5 s
 *     a limit, and ends                                  794483 states    3.9 s
 *     a limit, and a timeout of 0, and ends              251063 states    1.4 s
 *     a limit, and a stopped receiver beside              20669 states    0.0 s
 *     each of the 18 faults                        at most 1.6 million states, 8 s */

#ifndef SENDERS
#define SENDERS 1
#endif
#ifndef RECEIVERS
#define RECEIVERS 1
#endif
#if RECEIVERS == 2 && defined(SHARE)
/* More than the share to the first one, and then more to the second than fits without a segment. */
#define TURNS 7
#define TO(turn) ((turn) / 4)
#define MESSAGES_TO(r) (r == 0 -> 4 : 3)
#elif RECEIVERS == 2
/* Four to the first one, which is too many if it has stopped; then one to the second. */
#define TURNS 5
#define TO(turn) ((turn) / 4)
#define MESSAGES_TO(r) (r == 0 -> 4 : 1)
#else
#define TURNS MESSAGES
#define TO(turn) 0
#define MESSAGES_TO(r) MESSAGES
#endif
#ifdef NEVER_WAITS
#define MAY_GIVE_UP(r) (r == 0)
#else
#define MAY_GIVE_UP(r) false
#endif
#define QUEUES (SENDERS * RECEIVERS)
#ifndef MESSAGES
#define MESSAGES 3
#endif
#ifndef DIVERTS
#define DIVERTS 1
#endif
#ifndef DRAFTS
#define DRAFTS 0
#endif
#ifndef BUFFER
#define BUFFER 3
#endif
#ifdef ONE_MOVE
#define MOVES 1
#else
#define MOVES 2
#endif

/* Words of home and of each segment, and segments at a time. */
#define CAPACITY 4
#ifdef ONE_SEGMENT
#define SEGMENTS 1
#elif !defined(SEGMENTS)
#define SEGMENTS 2
#endif

#define MESSAGE 128
#define TWO 64
#define WRAP 1
#define HOME 2
#define SEGMENT 8
#define PAYLOAD 32
#define HEADER(count, size) (MESSAGE + ((size) - 1) * TWO + (count))
#define STALE (MESSAGE + 31)

#ifdef NARROW_STRIDE
#define STRIDE CAPACITY
#else
#define STRIDE (2 * CAPACITY)
#endif
#ifdef NO_PLUS_ONE
#define PLACE(number, next) ((number) * STRIDE + (next))
#else
#define PLACE(number, next) ((number) * STRIDE + (next) + 1)
#endif

#define AREA ((1 + SEGMENTS) * CAPACITY)
#define AT_HOME(q, position) ((q) * AREA + (position) % CAPACITY)
#define IN_SEGMENT(q, number, position) \
    ((q) * AREA + CAPACITY + (number) % SEGMENTS * CAPACITY + (position))
/* A word of the area where an end of queue `q` is. */
#define WORD(end, q, position) \
    (end[q].away -> IN_SEGMENT(q, end[q].segments - 1, position) : AT_HOME(q, position))
#define QUEUE(s, r) ((s) * RECEIVERS + (r))

typedef Outgoing {
    bool away; byte next; byte until; byte home; byte segments; byte diverted; byte sent
};
typedef Incoming {
    bool away; byte next; byte said; byte home; byte segments; byte taken
};

/* What is shared. */
byte words[QUEUES * AREA];
byte disposed[QUEUES];
byte diverted[QUEUES];
bool asleep[RECEIVERS];
bool bell[RECEIVERS];

/* Whether a sender has rung for the sleep that its receiver numbered last. Nothing else of the two
 * numbers `sleeps` and `rung` matters, which are only compared. */
bool rang[QUEUES];

/* Stores of each sender's processor that are not in memory yet. */
chan stores[SENDERS] = [BUFFER] of { byte, byte };

/* Each end's own state. Only assertions read the other end's. */
Outgoing out[QUEUES];
Incoming in[QUEUES];
bool ended[SENDERS];
bool killed[SENDERS];
bool halted[RECEIVERS];
/* The clerk has reported that the receiver is dead. */
bool gone[RECEIVERS];

/* For assertions only: segments' memory that the receiver has not left; the number of words sent
 * that lead elsewhere. */
bool used[QUEUES * SEGMENTS];
byte led[QUEUES];

#ifdef SHARE
/* Messages in each segment that were not taken. For assertions only. */
byte holds[QUEUES * SEGMENTS];
#define HOLDS(q) holds[(q) * SEGMENTS + (out[q].segments - 1) % SEGMENTS]
#endif

#define HERE_OF(q) PLACE(out[q].segments - 1, out[q].next)
#define HERE HERE_OF(q)
/* `Outgoing::buffered` */
#ifdef DRAINED_COUNTS
#define IS_EMPTY(q) false
#else
#define IS_EMPTY(q) (diverted[q] == HERE_OF(q))
#endif
#define BUFFERED(q) ((out[q].away && !IS_EMPTY(q) -> out[q].segments - diverted[q] / STRIDE : 0))
#ifdef STAYS
#define STAYING true
#else
#define STAYING false
#endif
#define MAY_DIVERT (!out[q].away || out[q].segments - out[q].diverted / STRIDE < SEGMENTS)
/* Where the receiver is at home. */
#define READ_TO (in[q].away -> in[q].home : in[q].next)
/* All that was launched was taken, and the receiver has reported so. */
#define DRAINED \
    (!STAYING && out[q].away && in[q].away && in[q].taken == out[q].sent && \
        in[q].segments == out[q].segments && in[q].said == in[q].next)

/* Each step of a process is one of these, and touches at most one shared word. */
mtype = {
    /* The sender finds room. */
    LOOK_AWAY, LOOK_HOME, CLEAR_HOME, GO_HOME, WAIT, COUNT, COUNT_OTHER, STOPPED,
    OPEN_SEGMENT, DIVERT,
    /* It writes and launches a message, and rings. */
    PUT, PUT_ZERO, PUT_ELSEWHERE, LAUNCH, FENCE_OWN, SEE_ASLEEP, SEE_NUMBER, RING,
    DEAD, ENDED,
    /* The receiver takes messages, and reports them. */
    PEEK, FOLLOW, FOLLOW_WRAP, LEAVE, LEFT, ENTER_FIRST, ENTER, READ, TELL, TELL_ALL,
    /* It sleeps. */
    NUMBER, ANNOUNCE, FENCE, LOOK_AGAIN, ASLEEP, RETRACT,
    HALTED
}

/* -------------------------------------------------------- the sender: outgoing.rs */

/* `Outgoing::place`. */
inline place() {
    begin = out[q].next;
    if
    :: !out[q].away && size > CAPACITY - begin % CAPACITY ->
        begin = begin + CAPACITY - begin % CAPACITY
    :: else
    fi;
    end = begin + size
}

inline room() {
    assert(out[q].away || end < READ_TO + CAPACITY);
    pc = (size == 2 -> PUT : PUT_ZERO)
}

/* `Outgoing::describe`. */
inline describe() {
    place();
    was_drained = DRAINED;
    if
    :: end < out[q].until -> room()
    :: else -> pc = (out[q].away -> LOOK_AWAY : LOOK_HOME)
    fi
}

/* A message of one or two words; diverted before, at will, or not. */
inline any_message() {
    if
#ifndef ALL_LONG
    :: size = 1
#endif
    :: size = 2
    fi;
    if
#ifdef STAYS
    :: !out[q].away -> pc = OPEN_SEGMENT
    :: out[q].away -> describe()
#else
    :: diverts < DIVERTS && MAY_DIVERT -> diverts++; pc = OPEN_SEGMENT
    :: describe()
#endif
    fi
}

inline next_message() {
    begin = 0; end = 0; said = 0; size = 0; was_drained = false;
    if
    :: turn == TURNS ->
        pc = ENDED;
        turn = 0; r = 0; q = 0; diverts = 0; drafts = 0;
        ended[me] = true
    :: else -> r = TO(turn); q = QUEUE(me, r); turn++; any_message()
    fi
}

/* `Refused::Full`, and how much is buffered does not matter. */
inline may_divert() {
    if
    :: MAY_DIVERT -> pc = OPEN_SEGMENT
#ifdef NEVER_WAITS
    :: !MAY_DIVERT && MAY_GIVE_UP(r) -> next_message()
    :: !MAY_DIVERT && !MAY_GIVE_UP(r) -> pc = WAIT
#else
    :: !MAY_DIVERT || !STAYING -> pc = WAIT
#endif
    fi
}

/* `Refused::Full`. The first segment of each pair is not counted. */
inline refused() {
#ifdef SHARE
    if
    :: out[q].away -> pc = COUNT
    :: else -> may_divert()
    fi
#else
    may_divert()
#endif
}

#ifdef SHARE
/* `Flow::without_room` */
inline decide() {
    if
    :: buffered == 0 -> buffered = 0; beside = 0; may_divert()
#ifdef NO_LIMIT
    :: buffered > 0 -> buffered = 0; beside = 0; may_divert()
#else
    :: buffered > 0 && buffered + beside + 1 <= SHARE -> buffered = 0; beside = 0; may_divert()
    :: buffered > 0 && buffered + beside + 1 > SHARE -> buffered = 0; pc = STOPPED
#endif
    fi
}
#endif

/* No more than the share is buffered; the first segment of each pair aside, and a segment that its
 * receiver is about to leave. */
inline within_share() {
    at = 0; in_use = 0; held = 0;
    do
    :: at < QUEUES * SEGMENTS ->
        held = (holds[at] > 0 -> held + 1 : held);
        in_use = (used[at] -> in_use + 1 : in_use);
        at++
    :: else -> break
    od;
    assert(held <= SHARE + RECEIVERS - 1);
    assert(in_use <= SHARE + RECEIVERS);
    at = 0; in_use = 0; held = 0
}

proctype Sender(byte me) {
    mtype pc;
    byte turn, r, q, size, begin, end, said, diverts, drafts;
    bool was_drained;
#ifdef SHARE
    byte buffered, beside, at, in_use, held;
#endif
    atomic { next_message() };
end_here:
    do
    /* `Outgoing::is_drained` */
    :: atomic { pc == LOOK_AWAY ->
        said = diverted[q];
        assert(said <= HERE && said >= out[q].diverted);
        out[q].diverted = said;
        if
        :: said == HERE && !STAYING -> pc = CLEAR_HOME
        :: else ->
            if
            :: end < CAPACITY -> room()
            :: else -> refused()
            fi
        fi }
    /* `Outgoing::go_home` */
    :: d_step { pc == CLEAR_HOME && nfull(stores[me]) ->
#ifndef HOME_NOT_CLEARED
        stores[me]!AT_HOME(q, out[q].home), 0;
#endif
        pc = GO_HOME }
    :: d_step { pc == GO_HOME && nfull(stores[me]) ->
        stores[me]!WORD(out, q, out[q].next), HOME;
        led[q]++;
        out[q].away = false;
        out[q].next = out[q].home;
        out[q].until = out[q].home;
        out[q].home = 0;
        assert(disposed[q] == out[q].next);
        pc = LOOK_HOME }
    /* `Outgoing::look` */
    :: atomic { pc == LOOK_HOME ->
        said = disposed[q];
        assert(said <= out[q].next);
        out[q].until = said + CAPACITY;
        place();
        if
#ifdef ZERO_UNCOUNTED
        :: end <= out[q].until -> room()
#else
        :: end < out[q].until -> room()
#endif
        :: else -> refused()
        fi }
    /* It tries again and again. Tries that change nothing are left out. */
    :: atomic { pc == WAIT && said != (out[q].away -> diverted[q] : disposed[q]) -> describe() }
    :: atomic { pc == WAIT && gone[r] -> next_message() }
#ifdef SHARE
    /* `OwnBuffers::elsewhere` */
    :: atomic { pc == COUNT ->
        buffered = BUFFERED(q);
#if RECEIVERS == 2
        pc = COUNT_OTHER }
    :: atomic { pc == COUNT_OTHER ->
#ifndef OTHERS_UNCOUNTED
        beside = BUFFERED(QUEUE(me, 1 - r));
#endif
        decide() }
    :: atomic { pc == STOPPED && beside != BUFFERED(QUEUE(me, 1 - r)) -> beside = 0; describe() }
#else
        decide() }
#endif
    :: atomic { pc == STOPPED && said != diverted[q] -> beside = 0; describe() }
#ifdef NEVER_WAITS
    :: atomic { pc == STOPPED && MAY_GIVE_UP(r) -> beside = 0; next_message() }
#endif
#endif
    /* `Outgoing::divert` */
    :: d_step { pc == OPEN_SEGMENT && nfull(stores[me]) ->
        assert(!used[q * SEGMENTS + out[q].segments % SEGMENTS]);
        used[q * SEGMENTS + out[q].segments % SEGMENTS] = true;
#ifndef SEGMENT_NOT_CLEARED
        stores[me]!IN_SEGMENT(q, out[q].segments, 0), 0;
#endif
        pc = DIVERT }
    :: d_step { pc == DIVERT && nfull(stores[me]) ->
        stores[me]!WORD(out, q, out[q].next), SEGMENT + out[q].segments;
        led[q]++;
        out[q].home = (out[q].away -> out[q].home : out[q].next);
        out[q].away = true;
        out[q].next = 0;
        out[q].until = 0;
        out[q].segments++;
        describe() }
    /* `Draft::put`, and perhaps the draft is dropped. */
    :: atomic { pc == PUT && nfull(stores[me]) ->
        stores[me]!WORD(out, q, begin + 1), PAYLOAD + out[q].sent;
        if
        :: drafts < DRAFTS -> drafts++; any_message()
        :: pc = PUT_ZERO
        fi }
    /* `Draft::launch` */
    :: d_step { pc == PUT_ZERO && nfull(stores[me]) ->
#ifndef ZERO_LAST
        stores[me]!WORD(out, q, end), 0;
#endif
        pc = (begin == out[q].next -> LAUNCH : PUT_ELSEWHERE) }
    :: d_step { pc == PUT_ELSEWHERE && nfull(stores[me]) ->
        stores[me]!WORD(out, q, begin), HEADER(out[q].sent, size);
        pc = LAUNCH }
    :: d_step { pc == LAUNCH && nfull(stores[me]) ->
        stores[me]!WORD(out, q, out[q].next),
            (begin == out[q].next -> HEADER(out[q].sent, size) : WRAP);
        led[q] = (begin == out[q].next -> led[q] : led[q] + 1);
#ifdef SHARE
        if
        :: out[q].away -> HOLDS(q)++; within_share()
        :: else
        fi;
#endif
        out[q].next = end;
        out[q].sent++;
        assert(!was_drained || !out[q].away);
        begin = 0; said = 0; size = 0; was_drained = false;
#if defined(OWN_FENCE) || defined(ZERO_LAST)
        pc = FENCE_OWN }
    :: d_step { pc == FENCE_OWN &&
#ifdef ZERO_LAST
        nfull(stores[me]) -> stores[me]!WORD(out, q, end), 0;
#else
        empty(stores[me]) ->
#endif
#endif
        end = 0;
        pc = SEE_ASLEEP }
    /* `Ringer::launched` */
    :: atomic { pc == SEE_ASLEEP ->
        if
        :: asleep[r] -> pc = SEE_NUMBER
        :: else -> next_message()
        fi }
    :: atomic { pc == SEE_NUMBER ->
        if
        :: rang[q] -> next_message()
        :: else -> rang[q] = true; pc = RING
        fi }
    :: atomic { pc == RING -> bell[r] = true; next_message() }
#ifdef SENDER_DIES
    /* At any point. (While it waits it does nothing that it had not done before.) */
    :: d_step { me == 0 && pc != WAIT && pc != STOPPED && pc != DEAD && pc != ENDED ->
        pc = DEAD;
        turn = 0; r = 0; q = 0; size = 0; begin = 0; end = 0; said = 0;
        diverts = 0; drafts = 0; was_drained = false;
        killed[me] = true }
    /* Its stores reach memory; then its end is seen, and the clerk rouses the receivers
     * (`Post::rouse`). */
    :: d_step { pc == DEAD && empty(stores[me]) ->
#ifndef NO_ROUSE
        do
        :: r < RECEIVERS -> bell[r] = true; r++
        :: else -> break
        od;
        r = 0;
#endif
        pc = ENDED; ended[me] = true }
#endif
    od
}

/* Each store of a sender's processor reaches memory at some time, in order. */
proctype Memory(byte of_sender) {
    byte at, word;
end_here:
    do
    :: d_step { stores[of_sender]?at, word -> words[at] = word; at = 0; word = 0 }
    od
}

/* -------------------------------------------------------- the receiver: incoming.rs, post.rs */

/* On to the next queue, or to sleep. */
inline nothing_more() {
    s++;
    pc = PEEK;
    if
    :: s == SENDERS -> s = 0; pc = NUMBER
    :: else
    fi;
    q = QUEUE(s, me)
}

inline nothing() {
    word = 0; moves = 0; before = 0;
    if
#ifndef NO_TELL
    :: in[q].said != in[q].next -> pc = TELL_ALL
    :: else
#else
    :: true
#endif
        -> nothing_more()
    fi
}

/* `Arrived::dispose`. It reports after a quarter of the memory; here, after any amount. */
inline dispose(size) {
    in[q].next = in[q].next + size;
    in[q].taken++;
#ifdef SHARE
    holds[q * SEGMENTS + (in[q].segments + SEGMENTS - 1) % SEGMENTS] =
        holds[q * SEGMENTS + (in[q].segments + SEGMENTS - 1) % SEGMENTS] -
            (in[q].away -> 1 : 0);
#endif
    word = 0; moves = 0; before = 0;
    if
    :: pc = TELL
    :: pc = PEEK
    fi
}

/* `Incoming::tell`. */
inline tell() {
    in[q].said = in[q].next;
    if
    :: in[q].away -> diverted[q] = PLACE(in[q].segments - 1, in[q].next)
    :: else -> disposed[q] = in[q].next
    fi
}

/* `Incoming::peek` and `follow`: how to treat the word in the header's place. */
inline consider() {
    if
    :: word == 0 -> nothing()
    :: word >= MESSAGE ->
        assert((word & 31) == in[q].taken);
        if
        :: word & TWO -> pc = READ
        :: else -> dispose(1)
        fi
    :: word != 0 && word < MESSAGE && moves == MOVES ->
        /* Another time. Only if the sender led on since. */
        assert(led[q] != before);
        nothing()
    :: word != 0 && word < MESSAGE && moves < MOVES ->
        moves++;
        if
        :: word == WRAP -> assert(!in[q].away && in[q].next % CAPACITY != 0); pc = FOLLOW_WRAP
        :: word == HOME -> assert(in[q].away); pc = LEAVE
        :: else ->
            assert(word == SEGMENT + in[q].segments);
            pc = (in[q].away -> LEAVE : ENTER_FIRST)
        fi
    fi
}

inline left() {
    if
    :: word == HOME ->
        in[q].away = false;
        in[q].next = in[q].home;
        in[q].said = in[q].home;
        in[q].home = 0;
        pc = FOLLOW
    :: else -> pc = ENTER
    fi
}

proctype Receiver(byte me) {
    mtype pc = PEEK;
    byte s, q, word, moves, before, at;
    q = QUEUE(0, me);
end_here:
    do
    :: atomic { pc == PEEK -> before = led[q]; word = words[WORD(in, q, in[q].next)]; consider() }
    :: atomic { pc == FOLLOW -> word = words[WORD(in, q, in[q].next)]; consider() }
    :: atomic { pc == FOLLOW_WRAP ->
        word = words[AT_HOME(q, 0)];
        assert(word >= MESSAGE);
        in[q].next = in[q].next + CAPACITY - in[q].next % CAPACITY;
        consider() }
    /* `Incoming::left`: first it leaves, then it reports that. */
    :: d_step { pc == LEAVE ->
        diverted[q] = in[q].segments * STRIDE;
#ifdef LEFT_TOO_EARLY
        pc = LEFT }
    :: d_step { pc == LEFT ->
#endif
        used[q * SEGMENTS + (in[q].segments - 1) % SEGMENTS] = false;
        left() }
    /* `Incoming::enter` */
    :: d_step { pc == ENTER_FIRST -> disposed[q] = in[q].next; pc = ENTER }
    :: d_step { pc == ENTER ->
        diverted[q] = PLACE(in[q].segments, 0);
        in[q].home = (in[q].away -> in[q].home : in[q].next);
        in[q].away = true;
        in[q].next = 0;
        in[q].said = 0;
        in[q].segments++;
        pc = FOLLOW }
    :: atomic { pc == READ ->
        assert(words[WORD(in, q, in[q].next + 1)] == PAYLOAD + in[q].taken);
        dispose(2) }
    :: d_step { pc == TELL -> tell(); pc = PEEK }
    :: d_step { pc == TELL_ALL -> tell(); nothing_more() }

    /* `Post::sleep`: `sleep::announce_to_all` */
    :: d_step { pc == NUMBER ->
#ifndef NO_NUMBER
        do
        :: s < SENDERS -> rang[QUEUE(s, me)] = false; s++
        :: else -> break
        od;
        s = 0;
#endif
        pc = ANNOUNCE }
    :: d_step { pc == ANNOUNCE -> asleep[me] = true;
#if defined(NO_FENCE) || defined(OWN_FENCE)
        pc = LOOK_AGAIN }
#else
        pc = FENCE }
    /* `membarrier::everywhere`: one sender's processor after the other. */
    :: d_step { pc == FENCE ->
        do
        :: stores[s]?at, word -> words[at] = word
        :: empty(stores[s]) -> break
        od;
        at = 0; word = 0;
        s++;
        if
        :: s == SENDERS -> s = 0; pc = LOOK_AGAIN
        :: else
        fi }
#endif
    /* `Incoming::waits` */
    :: d_step { pc == LOOK_AGAIN ->
        q = QUEUE(s, me);
        if
#ifndef NO_SECOND_LOOK
        :: words[WORD(in, q, in[q].next)] != 0 -> pc = RETRACT
#endif
        :: else ->
            s++;
            if
            :: s == SENDERS -> pc = ASLEEP
            :: else
            fi
        fi }
    :: d_step { pc == ASLEEP && bell[me] -> bell[me] = false; pc = RETRACT }
    :: d_step { pc == RETRACT -> asleep[me] = false; s = 0; q = QUEUE(0, me); pc = PEEK }
#if defined(RECEIVER_DIES) || defined(RECEIVER_STOPS)
    /* At any point. (While it sleeps it does nothing that it had not done before.) */
    :: d_step { me == 0 && pc != ASLEEP && pc != HALTED && !gone[0] ->
        pc = HALTED; s = 0; q = 0; word = 0; moves = 0; before = 0; halted[me] = true }
#endif
#ifdef RECEIVER_DIES
    :: d_step { pc == HALTED && !gone[me] -> gone[me] = true }
#endif
    od
}

/* -------------------------------------------------------- the end of every run */

init {
    byte s, r, q;
    d_step {
        do
        :: q < QUEUES ->
            out[q].until = CAPACITY;
            r = CAPACITY;
            do
            :: r < AREA -> words[q * AREA + r] = STALE; r++
            :: else -> break
            od;
            q++
        :: else -> break
        od;
        q = 0; r = 0
    };
    atomic {
        do
        :: s < SENDERS -> run Sender(s); run Memory(s); s++
        :: else -> break
        od;
        s = 0;
        do
#ifdef FIRST_STOPPED
        :: r == 0 -> halted[0] = true; r++
        :: r > 0 && r < RECEIVERS -> run Receiver(r); r++
#else
        :: r < RECEIVERS -> run Receiver(r); r++
#endif
        :: else -> break
        od;
        r = 0
    };
    timeout;
    d_step {
        do
        :: s < SENDERS ->
            assert(ended[s] && empty(stores[s]));
            r = 0;
            do
            :: r < RECEIVERS ->
                q = QUEUE(s, r);
                if
                :: !halted[r] ->
                    assert(in[q].taken == out[q].sent);
                    assert(killed[s] || out[q].sent == MESSAGES_TO(r) || MAY_GIVE_UP(r));
                    assert((out[q].away -> diverted[q] == HERE : disposed[q] == out[q].next))
                :: else
                fi;
                r++
            :: else -> break
            od;
            s++
        :: else -> break
        od
    }
}
