#!/bin/sh
# Checks the models of the message protocol and of its limits (messages.pml and limits.pml, which
# describe themselves). Every run must pass, and the named assertion must find each fault that is
# put into the protocol. For `make spin`.
#
# Usage: check.sh FOLDER, for the files that Spin and the compiler make.
set -eu

models=$(cd "$(dirname "$0")" && pwd)
model=$models/messages.pml
mkdir -p "$1"
cd "$1"
failed=0

# build SPIN'S-DEFINITIONS COMPILER'S-OPTIONS
build() {
    spin -a $1 "$model" >spin.log 2>&1 || { cat spin.log; exit 1; }
    ${CC:-cc} -w $2 -DNOFAIR -DNOREDUCE -DCOLLAPSE -DMEMLIM=3000 -o pan pan.c
}

number() {
    sed -n -e "s/^ *\([0-9.e+]*\) states, stored.*/\1/p" \
        -e "s/^pan: elapsed time \([0-9.]*\) seconds/in \1 s/p" pan.log | tr '\n' ' '
}

say() {
    printf '%-46s %s\n' "$1" "$2"
    case $2 in FAILED*) failed=1; tail -n 40 pan.log ;; esac
}

# passes NAME CHECKER'S-OPTIONS
passes() {
    ./pan -n -m100000 $2 >pan.log 2>&1 || true
    if grep -q 'errors: 0$' pan.log &&
        ! grep -q -e 'not completed' -e 'too small' -e 'out of memory' pan.log; then
        say "$1" "passes: states and time $(number)"
    else
        say "$1" "FAILED"
    fi
}

# every_state NAME DEFINITIONS: the assertions hold in every state, and the final states are those
# in which all work is done.
every_state() {
    build "$2" "-O1 -DSAFETY"
    passes "$1" ""
}

# every_run NAME DEFINITIONS: there is no cycle, so every run reaches a final state.
every_run() {
    build "$2" "-O1 -DNP"
    passes "$1, ends" "-l"
}

# both NAME DEFINITIONS: every state and every run at once, for models with few states: the search
# for cycles checks the assertions, too.
both() {
    build "$2" "-O1 -DNP"
    passes "$1, and ends" "-l"
}

# found FAULT BY-WHAT OTHER-DEFINITIONS
found() {
    build "-D$1 $3" "-O0 -DSAFETY"
    ./pan -n -m100000 >pan.log 2>&1 || true
    if grep -q "assertion violated.*$2" pan.log; then
        say "$1" "found, as it should be"
    else
        say "$1" "FAILED: not found by an assertion of $2"
    fi
}

PAIR="-DMESSAGES=4 -DDIVERTS=1 -DSENDER_DIES"
DRAFTS="-DMESSAGES=3 -DDIVERTS=1 -DDRAFTS=1 -DSENDER_DIES"
SHORT="-DMESSAGES=3 -DDIVERTS=1 -DSENDER_DIES"
DIES="-DMESSAGES=3 -DDIVERTS=1 -DRECEIVER_DIES"
TWO="-DSENDERS=2 -DMESSAGES=2 -DDIVERTS=0 -DBUFFER=2 -DSENDER_DIES"
LIMIT="-DMESSAGES=4 -DDIVERTS=0 -DSHARE=1"
BESIDE="-DRECEIVERS=2 -DFIRST_STOPPED -DNEVER_WAITS -DDIVERTS=0 -DBUFFER=2 -DALL_LONG -DSHARE=2"
STOPS="-DRECEIVERS=2 -DRECEIVER_STOPS -DDIVERTS=0 -DBUFFER=2 -DALL_LONG"

every_state "one sender, which may die" "$PAIR"
every_state "drafts are dropped" "$DRAFTS"
every_state "the receiver may die" "$DIES"
every_state "the sender makes its own fence" "$SHORT -DOWN_FENCE"
every_state "two senders, one may die" "$TWO"
every_state "two receivers, one may stop for ever" "$STOPS -DNEVER_WAITS"
both "a limit" "$LIMIT"
both "a limit, and a timeout of 0" "$LIMIT -DSTAYS"
every_state "a limit, and a stopped receiver beside" "$BESIDE"
every_run "one sender, which may die" "$SHORT"
every_run "the receiver may die" "$DIES"
every_run "two receivers, one may stop for ever" "$STOPS -DNEVER_WAITS"

stranded='in\[q\].taken==out\[q\].sent'
found NO_FENCE "$stranded" "$SHORT"
found NO_SECOND_LOOK "$stranded" "$SHORT"
found NO_NUMBER "$stranded" "$SHORT"
found NO_ROUSE "$stranded" "$SHORT"
found NO_TELL 'diverted\[q\]' "$SHORT"
found HOME_NOT_CLEARED 'word==(8+in\[q\].segments)' "$SHORT"
found SEGMENT_NOT_CLEARED 'in\[q\].taken' "$SHORT"
found NO_PLUS_ONE 'word==(8+in\[q\].segments)' "$SHORT"
found NARROW_STRIDE 'used\[' "-DMESSAGES=4 -DDIVERTS=3"
found ONE_SEGMENT 'used\[' "$SHORT"
found LEFT_TOO_EARLY 'used\[' "-DMESSAGES=3 -DDIVERTS=3"
found ZERO_UNCOUNTED 'end<' "-DMESSAGES=3 -DDIVERTS=1"
found ZERO_LAST 'in\[q\].taken' "$SHORT"
found ONE_MOVE 'led\[q\]!=before' "$SHORT"
found WAITS_FOR_ALL 'ended\[s\]' "$STOPS"
found DRAINED_COUNTS 'ended\[s\]' "$LIMIT -DSTAYS"
found OTHERS_UNCOUNTED 'held<=' "$BESIDE"
found NO_LIMIT 'held<=' "$LIMIT"

model=$models/limits.pml
UPCALLS="-DUPCALLS"
SMALL="-DHOME=1 -DSEGMENT=1 -DSHARE=1 -DFLOODS=4"
THREE="-DMEMBERS=3 -DHOME=1 -DSEGMENT=1 -DFLOODS=4"

both "two flood each other, upcalls" "$UPCALLS"
both "two flood each other, polling" ""
both "the same, timeout 0" "$UPCALLS -DSTAYS -DSHARE=1"
both "the same, no timeout" "-DPATIENT"
both "handlers answer, upcalls" "$UPCALLS -DREPLIES $SMALL"
both "handlers answer, polling" "-DREPLIES $SMALL"
both "one floods a section" "$UPCALLS -DSENDERS=1 -DSECTIONS=2"
both "one of two is in a section" "$UPCALLS -DSECTIONS=1"
both "both are in sections" "$UPCALLS -DSECTIONS=3 -DDEADLINE"
both "three in a circle, upcalls" "$UPCALLS $THREE"
both "three in a circle, polling" "$THREE"
both "three, handlers answer" "$UPCALLS $THREE -DREPLIES -DSENDERS=3 -DSHARE=2"
both "little memory" "$UPCALLS -DLOW"
both "little memory, timeout 0" "-DLOW -DSTAYS"

found NO_HANDLERS 'flooded\[m\]' "$UPCALLS"
found NO_HANDLERS 'flooded\[m\]' ""
found DEEPEST=0 'flooded\[m\]' ""
found SECTIONS=3 'flooded\[m\]' "$UPCALLS"
found DRAINED_COUNTS 'flooded\[m\]' "$UPCALLS -DSTAYS -DSHARE=1"
found LAST_UNTOLD 'said\[q\]' "$UPCALLS"
found OTHERS_UNCOUNTED "lying\[" "$UPCALLS $THREE -DREPLIES -DSENDERS=3 -DSHARE=2"
found NO_LIMIT "lying\[" "$UPCALLS"

exit $failed
