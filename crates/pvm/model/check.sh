#!/bin/sh
# Checks the model of moves (moves.pml, which describes itself). Every run must pass, and an
# assertion must find each fault that is put in. For `make spin`.
#
# Usage: check.sh FOLDER, for the files that Spin and the compiler make.
set -eu

model=$(cd "$(dirname "$0")" && pwd)/moves.pml
mkdir -p "$1"
cd "$1"
failed=0

say() {
    printf '%-46s %s\n' "$1" "$2"
    case $2 in FAILED*) failed=1; tail -n 40 pan.log ;; esac
}

# build DEFINITIONS OPTION: the condition under which a process runs excludes Spin's reduction. A
# process that has ended stands anywhere (-E in the runs); the model asserts what must hold then.
build() {
    spin -a $1 "$model" >spin.log 2>&1 || { cat spin.log; exit 1; }
    ${CC:-cc} -w $2 -DSAFETY -DNOFAIR -DNOREDUCE -DCOLLAPSE -DMEMLIM=3000 -o pan pan.c
}

# passes NAME DEFINITIONS
passes() {
    build "$2" -O1
    ./pan -E -n -m100000 >pan.log 2>&1 || true
    if grep -q 'errors: 0$' pan.log &&
        ! grep -q -e 'not completed' -e 'too small' -e 'out of memory' pan.log; then
        say "$1" "passes: $(sed -n 's/^ *\([0-9.e+]*\) states, stored.*/\1 states/p' pan.log)"
    else
        say "$1" "FAILED"
    fi
}

# found FAULT DEFINITIONS
found() {
    build "-D$1 $2" -O0
    ./pan -E -n -m100000 >pan.log 2>&1 || true
    if grep -q "assertion violated" pan.log; then
        say "$1" "found, as it should be"
    else
        say "$1" "FAILED: not found"
    fi
}

ONE="-DMOVES=1 -DHINTS"

passes "a move, and no process ends" "$ONE -DCRASHES=0"
passes "the old process may end" "$ONE -DCRASHES=2"
passes "the new process may end" "$ONE -DCRASHES=4"
passes "a sender beside the task" "$ONE -DCRASHES=0 -DBESIDE=1"
passes "senders that are independent" "-DMOVES=1 -DCRASHES=0"
passes "two moves, one after the other" "-DMOVES=2 -DHINTS -DCRASHES=0"

found NO_MARK_BEFORE "$ONE -DCRASHES=0"
found NO_MARK_AFTER "$ONE -DCRASHES=0"
found NO_CUT "$ONE -DCRASHES=0"
found EARLY_COMMIT "$ONE -DCRASHES=0"
found EPOCH_IGNORED "-DMOVES=2 -DHINTS -DCRASHES=0"

exit $failed
