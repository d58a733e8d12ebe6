/* Flooding senders are stopped, for Spin: `make spin` (check.sh, beside this file).
 *
 * Members send to each other more than they may buffer. The model shows which senders wait for
 * room, for which receiver, and which members run handlers while they wait. messages.pml models one
 * queue with its limit word by word. Here a queue is what that model shows it to be: a sequence of
 * messages at home or in segments, where each operation is one step. Members are whole: each sends
 * and receives on one kernel thread.
 *
 * What is modelled, and where it is in the code
 *
 *     ROOM, launch, divert      crates/shm/src/direct/outgoing.rs: describe; outgoing/divert.rs:
 *                               find_room, divert; crates/message/src/proto/send_queue.rs: attempt,
 *                               without_room
 *     BUFFERED, STOPPED         crates/message/src/proto/flow.rs: without_room;
 *                               crates/message/src/buffering.rs: elsewhere;
 *                               crates/shm/src/direct/outgoing.rs: buffered
 *     take, tell                crates/shm/src/direct/incoming.rs: peek, dispose, tell;
 *                               crates/message/src/proto/receiving.rs: poll
 *     HANDLERS_RUN              crates/message/src/upcalls.rs: run_handlers_meanwhile, in
 *                               proto/sending.rs: send, and the end of a section
 *     GIVES_UP                  Group::send_within: the time that the program has set is over, and
 *                               the member polls, and sends again
 *     low                       supply.rs: Supply. Memory becomes low at any time, and perhaps
 *                               enough again
 *
 * Each member sends FLOOD(m) messages to the next one, in a section if the member is in SECTIONS.
 * With REPLIES the handler of each message sends one back, and may have to wait for room.
 *
 * With UPCALLS handlers run by themselves: handlers that wait are threads, and do not keep others
 * from running. Without UPCALLS handlers run where the program polls: after it has sent all
 * messages, and in each send that waits for room. A handler that waits keeps the frames below it on
 * the stack from going on, and at most DEEPEST handlers run so, one within the other. In a section
 * no handler runs; with DEADLINE a send there gives up at any moment.
 *
 * A sender that waits for room and is not stopped diverts at any time. With STAYS (a timeout of 0)
 * the sender diverts at once, and does not go home; with PATIENT (no timeout) it never diverts. The
 * receiver reports what it has taken when that was the last message of a segment, or when home
 * would seem full to its sender; otherwise at any time.
 *
 * What must hold
 *
 *     in each state    Each message is taken once, in order. No member has more segments with
 *                      messages that were not taken than its share, not counting the first one of a
 *                      further pair (the assertion in `launch`).
 *     in final states  All messages are sent, taken, and reported as taken. So no member waits for
 *                      ever for room: a stopped member goes on by itself, once what it has buffered
 *                      is taken.
 *     in each run      The run reaches a final state: there is no cycle.
 *
 * Faults, each by a definition, that must be found, and how
 *
 *     NO_HANDLERS         a send that waits for room runs no handlers
 *                         two members that flood each other wait for each other
 *     SECTIONS=3          both members flood in sections without a deadline
 *                         the same; this is the program's fault, and send_within prevents it
 *     DEEPEST=0           no handler runs within a send that waits
 *                         the same
 *     DRAINED_COUNTS      a segment in which all messages are taken counts as buffered
 *                         with a timeout of 0 and a small share its sender waits for ever
 *     LAST_UNTOLD         the receiver does not report that it has taken the last message
 *                         its sender never learns that none of its messages is buffered
 *     OTHERS_UNCOUNTED    segments for other members do not count
 *                         more than the share is buffered
 *     NO_LIMIT            no member is stopped
 *                         more than the share is buffered
 *
 * What is not modelled: a message that is longer than a segment, and takes several at once; members
 * that end; more handlers at a time than the program's messages ask for.
 *
 * Runs: at most 934161 states and 9 s (little memory), most of them below 1 s. */

#ifndef MEMBERS
#define MEMBERS 2
#endif
#ifndef SHARE
#define SHARE 2
#endif
#ifndef FLOODS
#define FLOODS 7
#endif
/* The members that send, and those that do so in a section, by bits. */
#ifndef SENDERS
#define SENDERS 7
#endif
#ifndef SECTIONS
#define SECTIONS 0
#endif

/* Handlers that run within sends that wait, one within the other; with upcalls they are threads. */
#ifndef DEEPEST
#define DEEPEST 16
#endif

/* Messages at home, and in a segment. */
#ifndef HOME
#define HOME 2
#endif
#ifndef SEGMENT
#define SEGMENT 2
#endif

#define QUEUES (MEMBERS * MEMBERS)
#define QUEUE(from, to) ((from) * MEMBERS + (to))
#define NEXT(m) (((m) + 1) % MEMBERS)
#define BEFORE(m) (((m) + MEMBERS - 1) % MEMBERS)
#define FLOOD(m) ((SENDERS >> (m)) & 1 -> FLOODS : 0)
#define MOST 20

mtype = { ASK, REPLY }

/* A message: its count, its kind, and the segment that holds it, from 1; 0 at home. */
chan queue[QUEUES] = [MOST] of { byte, mtype, byte };

/* The sender's end. */
typedef Outgoing { byte sent; bool away; byte next; byte opened };
Outgoing out[QUEUES];
/* The receiver's end: how many it has taken, where it is, and how many it has taken there. */
typedef Incoming { byte taken; byte at; byte here };
Incoming in[QUEUES];
/* What it has reported: messages taken, and segments left. */
byte said[QUEUES];
byte behind[QUEUES];

/* Messages that lie in segments, of each member: the first segment of each queue with one. For
 * assertions only. */
byte lying[QUEUES];
byte first[QUEUES];

byte flooded[MEMBERS];
byte owed[MEMBERS];
bool section[MEMBERS];
bool low;

#define EMPTY(q) (out[q].sent == said[q])
#ifdef STAYS
#define STAYING true
#else
#define STAYING false
#endif

/* `Outgoing::describe`: there is room, perhaps at home again. */
#ifdef STAYS
#define ROOM(q) (out[q].away && out[q].next < SEGMENT)
#else
#define ROOM(q) ((out[q].away -> EMPTY(q) || out[q].next < SEGMENT : out[q].sent - said[q] < HOME))
#endif

/* `Outgoing::buffered`. */
#ifdef DRAINED_COUNTS
#define BUFFERED(q) ((out[q].away -> out[q].opened - behind[q] : 0))
#else
#define BUFFERED(q) ((out[q].away && !EMPTY(q) -> out[q].opened - behind[q] : 0))
#endif
#ifdef OTHERS_UNCOUNTED
#define BUFFERED_BESIDE(m, q) BUFFERED(q)
#elif MEMBERS == 2
#define BUFFERED_BESIDE(m, q) BUFFERED(q)
#else
#define BUFFERED_BESIDE(m, q) \
    (BUFFERED(QUEUE(m, 0)) + BUFFERED(QUEUE(m, 1)) + BUFFERED(QUEUE(m, 2)))
#endif
#ifdef NO_LIMIT
#define STOPPED(m, q) false
#else
#define STOPPED(m, q) (BUFFERED(q) > 0 && (low || BUFFERED_BESIDE(m, q) + 1 > SHARE))
#endif
#ifdef PATIENT
#define MAY_DIVERT(m, q) false
#else
#define MAY_DIVERT(m, q) (!ROOM(q) && !STOPPED(m, q))
#endif

/* Segments with messages that were not taken. */
#define HELD(q) ((lying[q] > 0 -> out[q].opened - first[q] + 1 : 0))
#if MEMBERS == 2
#define HELD_BY(m) HELD(QUEUE(m, NEXT(m)))
#define OTHER_PAIRS 0
#else
#define HELD_BY(m) (HELD(QUEUE(m, NEXT(m))) + HELD(QUEUE(m, BEFORE(m))))
#define OTHER_PAIRS 1
#endif

/* What the main thread waits for, or is done with. */
#define ALL_SENT(m) (flooded[m] == FLOOD(m))
#define WAITS(m) (!ALL_SENT(m) && !ROOM(QUEUE(m, NEXT(m))))
#define ANSWERS(m) (owed[m] > 0 && !ROOM(QUEUE(m, BEFORE(m))))

/* Where handlers run by themselves, or the program polls. */
#ifdef UPCALLS
#ifdef NO_HANDLERS
#define HANDLERS_RUN(m) (!section[m] && ALL_SENT(m))
#else
#define HANDLERS_RUN(m) (!section[m] && (ALL_SENT(m) || WAITS(m)))
#endif
#define MAY_FLOOD(m) (!ALL_SENT(m))
#else
#ifdef NO_HANDLERS
#define MEANWHILE(m) false
#else
#define MEANWHILE(m) (owed[m] < DEEPEST && (ANSWERS(m) || MAY_FLOOD(m) && WAITS(m)))
#endif
#define HANDLERS_RUN(m) (!section[m] && (ALL_SENT(m) && owed[m] == 0 || MEANWHILE(m)))
/* A handler that waits is on the same stack. */
#define MAY_FLOOD(m) (!ALL_SENT(m) && owed[m] == 0)
#endif

#ifdef DEADLINE
#define GIVES_UP(m) (section[m] && (ANSWERS(m) || MAY_FLOOD(m) && WAITS(m)))
#else
#define GIVES_UP(m) false
#endif

inline launch(q, kind) {
    if
    :: out[q].away && EMPTY(q) && !STAYING -> out[q].away = false
    :: else
    fi;
    if
    :: out[q].away ->
        first[q] = (lying[q] == 0 -> out[q].opened : first[q]);
        out[q].next++;
        lying[q]++
    :: else
    fi;
    assert(nfull(queue[q]));
    queue[q]!out[q].sent, kind, (out[q].away -> out[q].opened : 0);
    out[q].sent++;
    assert(HELD_BY(me) <= SHARE + OTHER_PAIRS)
}

inline divert(q) {
    out[q].away = true;
    out[q].next = 0;
    out[q].opened++
}

/* Takes the next message, wherever it is. A handler runs. */
inline take(q) {
    queue[q]?count, kind, at;
    here = len(queue[q]);
    assert(count == in[q].taken);
    in[q].taken++;
    if
    :: at != in[q].at && at == 0 -> behind[q] = in[q].at
    :: at != in[q].at && at != 0 -> behind[q] = at - 1
    :: else
    fi;
    in[q].here = (at != in[q].at -> 1 : in[q].here + 1);
    in[q].at = at;
    if
    :: at != 0 ->
        lying[q]--;
        first[q] = (lying[q] == 0 -> 0 : (in[q].here < SEGMENT -> at : at + 1))
    :: at == 0 -> in[q].here = 0
    fi;
    if
    :: said[q] = in[q].taken
#ifdef LAST_UNTOLD
    :: at != 0 || in[q].taken - said[q] < HOME
#else
    :: (at != 0 -> here > 0 : in[q].taken - said[q] < HOME)
#endif
    fi;
#ifdef REPLIES
    owed[me] = (kind == ASK -> owed[me] + 1 : owed[me]);
#endif
    count = 0; kind = 0; at = 0; here = 0
}

#ifdef LAST_UNTOLD
#define MAY_TELL(q) (in[q].at == 0)
#else
#define MAY_TELL(q) true
#endif

proctype Member(byte me) {
    byte count, at, here, to, back;
    mtype kind;
    d_step { to = QUEUE(me, NEXT(me)); back = QUEUE(me, BEFORE(me)) };
    byte from, other;
    d_step { from = QUEUE(BEFORE(me), me); other = QUEUE(NEXT(me), me) };
end_here:
    do
    :: atomic { MAY_FLOOD(me) && ROOM(to) -> launch(to, ASK); flooded[me]++ }
    :: atomic { MAY_FLOOD(me) && MAY_DIVERT(me, to) -> divert(to); launch(to, ASK); flooded[me]++ }
    :: atomic { section[me] && ALL_SENT(me) -> section[me] = false }
#ifdef REPLIES
    :: atomic { owed[me] > 0 && ROOM(back) -> launch(back, REPLY); owed[me]-- }
    :: atomic { owed[me] > 0 && MAY_DIVERT(me, back) ->
        divert(back);
        launch(back, REPLY);
        owed[me]-- }
#if MEMBERS > 2
    :: atomic { (HANDLERS_RUN(me) || GIVES_UP(me)) && nempty(queue[other]) -> take(other) }
#endif
#endif
    :: atomic { (HANDLERS_RUN(me) || GIVES_UP(me)) && nempty(queue[from]) -> take(from) }
    /* A poll that finds nothing. */
    :: d_step {
        HANDLERS_RUN(me) && len(queue[from]) == 0 && said[from] != in[from].taken &&
            MAY_TELL(from) ->
        said[from] = in[from].taken }
#if defined(REPLIES) && MEMBERS > 2
    :: d_step {
        HANDLERS_RUN(me) && len(queue[other]) == 0 && said[other] != in[other].taken ->
        said[other] = in[other].taken }
#endif
    od
}

#ifdef LOW
/* The machine's memory. */
proctype Machine() {
end_here:
    low = true;
end_low:
    if
    :: true -> low = false
    :: true -> skip
    fi
}
#endif

init {
    byte m, q;
    atomic {
        do
        :: m < MEMBERS -> section[m] = (SECTIONS >> m) & 1; run Member(m); m++
        :: else -> break
        od;
#ifdef LOW
        run Machine();
#endif
        m = 0
    };
    timeout;
    d_step {
        do
        :: m < MEMBERS -> assert(ALL_SENT(m) && owed[m] == 0 && !section[m]); m++
        :: else -> break
        od;
        do
        :: q < QUEUES -> assert(in[q].taken == out[q].sent && EMPTY(q)); q++
        :: else -> break
        od
    }
}
