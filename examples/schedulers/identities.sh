#!/bin/sh
# Makes an identity for each host, in FOLDER/HOST, and lets all these hosts trust each other.
#
#     identities.sh FOLDER HOST...
#
# A host that has an identity there keeps it, so hosts can be added. HOST is the name by which the
# other hosts reach it. Keep FOLDER to yourself: it has the keys of all hosts.
set -eu
[ $# -ge 2 ] || { echo "usage: $0 FOLDER HOST..." >&2; exit 2; }
umask 077
mkdir -p "$1"
folder=$(cd "$1" && pwd)
shift

on() {
    UPCALL_HOSTS=$folder/$1
    export UPCALL_HOSTS
    shift
    upcall host "$@"
}

# Prints what a command has said only if it fails.
quietly() {
    said=$("$@" 2>&1) || { echo "$said" >&2; exit 1; }
}

for host; do
    [ -e "$folder/$host/identity.pem" ] || quietly on "$host" init "$host"
done
for host; do
    for other; do
        if [ "$host" != "$other" ] && [ ! -e "$folder/$host/trusted/$other.pem" ]; then
            on "$other" show --pem > "$folder/.$other.pem"
            quietly on "$host" trust "$other" "$folder/.$other.pem" --yes
            rm "$folder/.$other.pem"
        fi
    done
done
