/* Moves of a task between two processes, for Spin: `make spin` (check.sh, beside this file).
 *
 * Process 0 is the first one. The task runs in process 1, and moves to process 2, and perhaps
 * back. Two tasks send to it: task A in process 0, and task B in process BESIDE. With HINTS each
 * message of A causes one of B, and otherwise they are independent. One of the processes in
 * CRASHES may end at any step. The first process may give a move up at any step.
 *
 * What is modelled, and where it is in the code (crates/pvm/src/moves)
 *
 *     phase, settle                    first.rs: the first process decides
 *     leaves, freeze, finish_left      leaving.rs: the old process
 *     enters, finish_entered           arriving.rs: the new process
 *     keeps, kept, release             keeping.rs: each process
 *     inbox                            messages in the order of sending: a process takes all that
 *                                      have arrived, and handles them in the order of their stamps
 *     time                             a counter in place of Lamport's clocks: the stamps of
 *                                      messages for the task are in the order of their sending
 *
 * A process handles one input after the other. What it sends for one input is one step in the first
 * process, which does not end here; each kept message, and the mark after it, is a step of its own.
 * The end of a process reaches the others after its last message.
 *
 * What must hold
 *
 *     in each state    At most one process runs the task (in RUN). The task takes the next message
 *                      of its sender, after those that have caused it, where it runs (in deliver).
 *     in final states  No move is open, nothing is kept, all processes agree where the task is, it
 *                      runs there if that process lives, and has all messages of senders that live.
 *
 * Faults, each by a definition, that must be found, and how
 *
 *     NO_MARK_BEFORE   the task stops before all processes have marked: a message finds no task
 *     NO_MARK_AFTER    messages do not wait for the marks: they overtake their causes
 *     EARLY_COMMIT     the first process decides before the new one is ready: no task runs
 *     EPOCH_IGNORED    messages of an earlier move count: the task is lost, or runs twice
 *     NO_CUT           the old process delivers what comes late: it overtakes its cause
 *
 * What is not modelled: parts of the state, limits, errands, senders that move themselves, several
 * moves at a time (tests/sim has all of them); the end of the first process, which ends the
 * machine.
 *
 * Runs: at most 4453631 states, and less than a minute each. */

#ifndef MESSAGES
#define MESSAGES 1
#endif
#ifndef MOVES
#define MOVES 2
#endif
/* The process of the second sender. */
#ifndef BESIDE
#define BESIDE 2
#endif
/* Processes of which one may end, by bits. */
#ifndef CRASHES
#define CRASHES 6
#endif

/* What else a process knows about the task's place. */
#define HELD 3
#define GONE_PLACE 4

/* Messages for the task have stamps from 1. */
#define STAMPS (2 * MESSAGES + 1)
#define AT(process, stamp) ((process) * STAMPS + (stamp))

mtype = {
    MOVE, BEGUN, LEAVING, BEFORE, TAKE, READY, SETTLED, AFTER, OVER, GONE, LOST, LETTER, HINT
}

/* Kind, sender, epoch or stamp, and an argument. */
chan inbox[3] = [20] of { mtype, byte, byte, byte };
chan kept[3] = [MESSAGES] of { byte, byte };

bool dead[3];
bool runs[3];
/* What the task has taken of A and of B, and whether it has ended with its process. */
byte taken[2];
bool ended;
byte sent[2];
byte known;
/* How many messages of A have caused each message of B. */
byte depends[MESSAGES];
byte time;

/* The first process. */
byte phase, epoch, rank, from_process, to_process, moves;

/* Each process. */
byte place[3], keeps[3], gone_by[3];
typedef Leaves { byte phase, epoch, to, cut, before, after; bool announced };
Leaves leaves[3];
typedef Enters { byte phase, epoch, after };
Enters enters[3];
/* Messages that wait, by stamp; and those that move with the task. */
byte waits[3 * STAMPS];
byte taken_along[STAMPS];

/* Phases of a move in the first process, and in the process that the task leaves or enters. */
#define ASKED 1
#define ANNOUNCED 2
#define DECIDED 3
#define LEFT_RUNS 1
#define LEFT_FREEZES 2
#define LEFT_FROZEN 3
#define LEFT_RETURNED 4
#define ENTERED_FILLS 1
#define ENTERED_WAITS 2
#define ENTERED_MERGES 3

#define BIT(process) (1 << (process))
#define ALL(set) (((set) | gone_by[me]) == 7)
#define MUST_WAIT \
    (leaves[me].phase != LEFT_RETURNED || \
        (leaves[me].before & (7 - (leaves[me].after | gone_by[me]))) != 0)

#ifdef NO_MARK_BEFORE
#define MARKED_BEFORE true
#else
#define MARKED_BEFORE ALL(leaves[me].before)
#endif
#ifdef NO_MARK_AFTER
#define MARKED_AFTER true
#else
#define MARKED_AFTER ALL(enters[me].after)
#endif
#ifdef EPOCH_IGNORED
#define SAME(one, other) true
#else
#define SAME(one, other) ((one) == (other))
#endif

/* A message to a process that has ended is lost. */
inline tell(target, kind, count, value) {
    atomic {
        if
        :: !dead[target] -> assert(nfull(inbox[target])); inbox[target]!kind, me, count, value
        :: else
        fi
    }
}

/* The first process does not end, so this is one step. */
inline announce(what, about, argument_of) {
    atomic {
        to = 0;
        do
        :: to < 3 -> tell(to, what, about, argument_of); to++
        :: else -> break
        od;
        to = 0
    }
}

inline run_task() {
    assert(!runs[0] && !runs[1] && !runs[2]);
    runs[me] = true
}

/* The number of a message, from 1, with those of A first. */
inline deliver(given) {
    assert(runs[me]);
    if
    :: given <= MESSAGES ->
        assert(given == taken[0] + 1);
        taken[0]++
    :: else ->
        assert(given - MESSAGES == taken[1] + 1);
        assert(taken[0] >= depends[given - MESSAGES - 1]);
        taken[1]++
    fi
}

inline flush() {
    i = 1;
    do
    :: i < STAMPS ->
        if
        :: waits[AT(me, i)] != 0 -> deliver(waits[AT(me, i)]); waits[AT(me, i)] = 0
        :: else
        fi;
        i++
    :: else -> break
    od;
    i = 0
}

inline forget() {
    i = 1;
    do
    :: i < STAMPS -> waits[AT(me, i)] = 0; i++
    :: else -> break
    od;
    i = 0
}

#ifdef NO_CUT
#define IS_LATE(stamp) false
#else
#define IS_LATE(stamp) ((stamp) > leaves[me].cut)
#endif

/* A message for the task is in this process. */
inline arrive(at, given) {
    if
    :: leaves[me].phase != 0 && (!IS_LATE(at) || !MUST_WAIT) -> deliver(given)
    :: leaves[me].phase != 0 && IS_LATE(at) && MUST_WAIT -> waits[AT(me, at)] = given
    :: leaves[me].phase == 0 && enters[me].phase != 0 -> waits[AT(me, at)] = given
    :: leaves[me].phase == 0 && enters[me].phase == 0 && !ended -> deliver(given)
    :: else
    fi
}

inline freeze_if_marked() {
    if
    :: leaves[me].phase == LEFT_RUNS && leaves[me].announced && MARKED_BEFORE ->
        leaves[me].phase = LEFT_FREEZES
    :: else
    fi
}

/* Each of these sets `over` if the move is over. */
inline finish_left() {
    if
    :: leaves[me].phase == LEFT_RETURNED && !MUST_WAIT ->
        flush();
        if
        :: !leaves[me].announced || ALL(leaves[me].after) ->
            over = leaves[me].epoch;
            leaves[me].phase = 0; leaves[me].epoch = 0; leaves[me].cut = 0; leaves[me].to = 0;
            leaves[me].before = 0; leaves[me].after = 0; leaves[me].announced = false;
            place[me] = me
        :: else
        fi
    :: else
    fi
}

inline finish_entered() {
    if
    :: enters[me].phase == ENTERED_MERGES && MARKED_AFTER ->
        flush();
        over = enters[me].epoch;
        enters[me].phase = 0; enters[me].epoch = 0; enters[me].after = 0;
        place[me] = me
    :: else
    fi
}

inline report_over() {
    if
    :: over != 0 -> tell(0, OVER, over, 0); over = 0
    :: else
    fi
}

/* The decision, to all processes that know of the move. */
inline settle(where) {
    atomic {
        rank = where;
        before = phase;
        phase = DECIDED;
        to = 0;
        do
        :: to < 3 ->
            if
            :: before != ASKED || to == rank -> tell(to, SETTLED, epoch, rank)
            :: else
            fi;
            to++
        :: else -> break
        od;
        to = 0; before = 0
    }
}

inline leave(move, target) {
    d_step {
        leaves[me].phase = LEFT_RUNS; leaves[me].epoch = move; leaves[me].to = target;
        leaves[me].cut = time;
        place[me] = HELD
    };
    tell(0, BEGUN, move, 0)
}

inline keep(move, old) {
    d_step { keeps[me] = move; place[me] = HELD };
    tell(old, BEFORE, move, 0);
    d_step {
        if
        :: leaves[me].phase != 0 && SAME(leaves[me].epoch, move) ->
            leaves[me].announced = true;
            freeze_if_marked()
        :: else
        fi
    }
}

inline decided(move, where) {
    d_step {
        if
        :: enters[me].phase != 0 && SAME(enters[me].epoch, move) ->
            if
            :: where == me && enters[me].phase == ENTERED_WAITS ->
                run_task();
                enters[me].phase = ENTERED_MERGES;
                finish_entered()
            :: where != me ->
                enters[me].phase = 0; enters[me].epoch = 0; enters[me].after = 0;
                forget()
            :: else
            fi
        :: else ->
            if
            :: leaves[me].phase != 0 && SAME(leaves[me].epoch, move) && where == me ->
                if
                :: leaves[me].phase == LEFT_FROZEN -> run_task()
                :: else
                fi;
                leaves[me].phase = LEFT_RETURNED;
                finish_left()
            :: leaves[me].phase != 0 && SAME(leaves[me].epoch, move) && where != me ->
                assert(!runs[me]);
                leaves[me].phase = 0; leaves[me].epoch = 0; leaves[me].cut = 0; leaves[me].to = 0;
                leaves[me].before = 0; leaves[me].after = 0; leaves[me].announced = false;
                forget()
            :: leaves[me].phase == 0 && where == me -> over = move
            :: else
            fi
        fi
    };
    report_over();
    if
    :: keeps[me] != 0 && SAME(keeps[me], move) -> release(move, where)
    :: else
    fi
}

inline release(move, where) {
    d_step {
        keeps[me] = 0;
        place[me] = (where == me -> HELD : where)
    };
    do
    :: atomic { nempty(kept[me]) ->
        kept[me]?stamp, letter;
        if
        :: !dead[where] -> inbox[where]!LETTER, me, stamp, letter
        :: else
        fi;
        stamp = 0; letter = 0 }
    :: empty(kept[me]) -> break
    od;
    tell(where, AFTER, move, 0)
}

inline lost(other) {
    d_step {
        gone_by[me] = gone_by[me] | BIT(other);
        freeze_if_marked();
        finish_left();
        finish_entered()
    };
    report_over();
    if
    :: me == 0 && rank == other ->
        d_step { ended = true; phase = 0; moves = MOVES };
        announce(GONE, 0, 0)
    :: me == 0 && rank != other && phase != 0 && phase != DECIDED && to_process == other ->
        settle(from_process)
    :: else
    fi
}

inline gone() {
    d_step {
        keeps[me] = 0;
        place[me] = GONE_PLACE;
        enters[me].phase = 0; enters[me].epoch = 0; enters[me].after = 0;
        forget();
        do
        :: nempty(kept[me]) -> kept[me]?stamp, letter
        :: empty(kept[me]) -> break
        od;
        stamp = 0; letter = 0
    }
}

/* A task of this process sends its next message to the task. */
inline send(sender) {
    atomic {
        if
        :: sender == 1 -> depends[sent[1]] = known
        :: else
        fi;
        sent[sender]++;
        time++;
        letter = sender * MESSAGES + sent[sender];
        if
        :: place[me] == HELD && keeps[me] != 0 -> kept[me]!time, letter
        :: place[me] == HELD && keeps[me] == 0 -> arrive(time, letter)
        :: place[me] == me -> deliver(letter)
        :: place[me] < 3 && place[me] != me && !dead[place[me]] ->
            inbox[place[me]]!LETTER, me, time, letter
        :: else
        fi;
        letter = 0
    }
}

#ifdef HINTS
#define MAY_SEND (sent[1] < known)
inline hint() { tell(BESIDE, HINT, 0, sent[0]) }
#else
#define MAY_SEND (sent[1] < MESSAGES)
inline hint() { skip }
#endif

inline clear() { atomic { from = 0; number = 0; argument = 0 } }

proctype Process(byte me) provided (!dead[me]) {
    byte from, number, argument, i, over, to, before, stamp, letter;
end_waits:
    do
    :: atomic { inbox[me]?MOVE, from, number, argument ->
        leave(number, argument);
        clear() }
    :: atomic { inbox[me]?BEGUN, from, number, argument ->
        if
        :: phase == ASKED && SAME(number, epoch) ->
            phase = ANNOUNCED;
            announce(LEAVING, epoch, from_process)
        :: else
        fi;
        clear() }
    :: atomic { inbox[me]?LEAVING, from, number, argument ->
        keep(number, argument);
        clear() }
    :: atomic { inbox[me]?BEFORE, from, number, argument ->
        if
        :: leaves[me].phase != 0 && SAME(leaves[me].epoch, number) ->
            leaves[me].before = leaves[me].before | BIT(from);
            freeze_if_marked()
        :: else
        fi;
        clear() }
    :: atomic { inbox[me]?TAKE, from, number, argument ->
        if
        :: SAME(keeps[me], number) ->
            enters[me].phase = ENTERED_FILLS; enters[me].epoch = number; enters[me].after = 0;
            i = 1;
            do
            :: i < STAMPS -> waits[AT(me, i)] = taken_along[i]; i++
            :: else -> break
            od;
            i = 0
        :: else
        fi;
        clear() }
    :: atomic { enters[me].phase == ENTERED_FILLS ->
        enters[me].phase = ENTERED_WAITS;
        tell(0, READY, enters[me].epoch, 0) }
    :: atomic { inbox[me]?READY, from, number, argument ->
        if
        :: phase == ANNOUNCED && SAME(number, epoch) && from == to_process -> settle(to_process)
        :: else
        fi;
        clear() }
    :: atomic { inbox[me]?SETTLED, from, number, argument } -> decided(number, argument);
        clear()
    :: atomic { inbox[me]?AFTER, from, number, argument ->
        if
        :: enters[me].phase != 0 && SAME(enters[me].epoch, number) ->
            enters[me].after = enters[me].after | BIT(from);
            finish_entered()
        :: leaves[me].phase != 0 && SAME(leaves[me].epoch, number) ->
            leaves[me].after = leaves[me].after | BIT(from);
            finish_left()
        :: else
        fi };
        report_over();
        clear()
    :: atomic { inbox[me]?OVER, from, number, argument ->
        if
        :: phase == DECIDED && SAME(number, epoch) && from == rank -> phase = 0
        :: else
        fi;
        clear() }
    :: atomic { inbox[me]?GONE, from, number, argument -> gone(); clear() }
    :: atomic { inbox[me]?LOST, from, number, argument -> lost(from); clear() }
    :: atomic { inbox[me]?LETTER, from, number, argument -> arrive(number, argument);
        clear() }
    :: atomic { inbox[me]?HINT, from, number, argument -> known = argument;
        clear() }
    /* The task has reached its next point. */
    :: atomic { leaves[me].phase == LEFT_FREEZES ->
        runs[me] = false;
        leaves[me].phase = LEFT_FROZEN;
        i = 1;
        do
        :: i < STAMPS -> taken_along[i] = waits[AT(me, i)]; i++
        :: else -> break
        od;
        i = 0;
        tell(leaves[me].to, TAKE, leaves[me].epoch, 0) }
    :: atomic { me == 0 && sent[0] < MESSAGES -> send(0); hint() }
    :: atomic { me == BESIDE && MAY_SEND -> send(1) }
    /* The first process begins a move, and gives it up. */
    :: atomic { me == 0 && phase == 0 && moves < MOVES && !dead[3 - rank] && !dead[rank] ->
        moves++; epoch++;
        phase = ASKED; from_process = rank; to_process = 3 - rank;
        tell(rank, MOVE, epoch, to_process) }
    :: me == 0 && (phase == ASKED || phase == ANNOUNCED) -> settle(from_process)
#ifdef EARLY_COMMIT
    :: me == 0 && phase == ANNOUNCED -> settle(to_process)
#endif
    od
}

proctype Crash() {
    byte me, other, number, argument, from;
    mtype kind;
    atomic {
        if
        :: CRASHES & 2 -> me = 1
        :: CRASHES & 4 -> me = 2
        fi;
        dead[me] = true;
        runs[me] = false;
        do
        :: nempty(inbox[me]) -> inbox[me]?kind, from, number, argument
        :: empty(inbox[me]) -> break
        od;
        do
        :: other < 3 ->
            if
            :: other != me -> assert(nfull(inbox[other])); inbox[other]!LOST, me, 0, 0
            :: else
            fi;
            other++
        :: else -> break
        od;
        me = 0; other = 0; number = 0; argument = 0; from = 0; kind = 0
    }
}

init {
    byte p;
    atomic {
        rank = 1;
        runs[1] = true;
        place[0] = 1; place[1] = 1; place[2] = 1;
        run Process(0);
        run Process(1);
        run Process(2);
        if
        :: CRASHES != 0 -> run Crash()
        :: else
        fi
    };
    timeout;
    d_step {
        assert(phase == 0);
        assert(ended || runs[rank]);
        assert(ended || taken[0] == MESSAGES);
        assert(ended || dead[BESIDE] || taken[1] == MESSAGES);
        do
        :: p < 3 ->
            if
            :: !dead[p] ->
                assert(empty(inbox[p]) && empty(kept[p]));
                assert(keeps[p] == 0 && leaves[p].phase == 0 && enters[p].phase == 0);
                assert(place[p] == (ended -> GONE_PLACE : rank))
            :: else
            fi;
            p++
        :: else -> break
        od
    }
}
