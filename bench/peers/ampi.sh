#!/usr/bin/env bash
# Builds Adaptive MPI (AMPI, part of Charm++), which Debian does not have, for `upcall-bench pvm`.
#
# usage: bench/peers/ampi.sh SOURCES FOLDER
#
# SOURCES is a checkout of Charm++ (https://github.com/charmplusplus/charm). It is left as it is:
# the build changes a copy by ampi.patch, without which a rank that moves crashes.
# FOLDER gets one build of AMPI for each of two machine layers: `multicore`, whose processing
# elements are threads of one process, and `netlrts`, whose processing elements are in processes
# that send datagrams. Both take some hundred megabytes, and 10 to 30 minutes of two processors.
# The command then finds them by UPCALL_BENCH_AMPI=FOLDER.
set -euo pipefail

sources=$(realpath "$1") folder=$(realpath -m "$2")
jobs=$(nproc)

for need in cmake g++ make patch; do
    command -v "$need" > /dev/null || {
        echo "ampi.sh: needs $need (Debian: apt-get install cmake g++ make patch)" >&2
        exit 1
    }
done

# The build writes into its sources.
copy=$folder/sources
[ ! -e "$copy" ] || { echo "ampi.sh: $copy is already there" >&2; exit 1; }
mkdir -p "$copy"
tar -C "$sources" --exclude .git -cf - . | tar -C "$copy" -xf -
patch -d "$copy" -p1 --forward < "$(dirname "$0")/ampi.patch"

# A build's headers and scripts are links into the sources, so both stay where they are.
build() {
    (cd "$copy" && ./build AMPI "$@" --with-production "-j$jobs")
}
build multicore-linux-x86_64
build netlrts-linux-x86_64 smp
ln -sfn sources/multicore-linux-x86_64 "$folder/multicore"
ln -sfn sources/netlrts-linux-x86_64-smp "$folder/netlrts"
