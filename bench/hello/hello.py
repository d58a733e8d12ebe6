#!/usr/bin/env python3
"""Measures what hello world costs to build with Upcall, beside tonic.

usage: bench/hello/hello.py [--turns N] [--json FILE] [--profile PROFILE]

Each program is a server and a client (bench/hello/upcall, bench/hello/tonic). Both are built from
nothing but the sources of their dependencies, in turns: Upcall from its packages
(tests/package.py), tonic from crates.io. The table has the medians of the turns:

  time       time of `cargo build`, in seconds
  CPU        processor time of it, in seconds: what other programs take does not count
  binary     size of the program, in MB; and without symbols and debug information
  crates     number of packages that are compiled, with the program itself

tonic's stubs are generated without protoc, which saves it the crates of tonic-prost-build.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "tests"))

import package  # noqa: E402

PLACE = package.TARGET / "hello"
SIDES = ["upcall", "tonic"]

# Longest wait for a server, in seconds.
PATIENCE = 10


def environment(side: str) -> dict[str, str]:
    """Settings of the caller that change a build do not count."""
    kept = {name: value for name, value in os.environ.items()
            if not name.startswith(("CARGO_PROFILE", "CARGO_INCREMENTAL", "RUSTFLAGS", "RUSTC"))}
    if side == "upcall":
        kept |= package.user()
        del kept["CARGO_PROFILE_DEV_DEBUG"]
    return {**kept, "CARGO_TARGET_DIR": str(PLACE / side / "target")}


def prepare() -> None:
    """Copies the programs, and makes everything that is downloaded be there."""
    crates = package.published()
    package.package(crates, verify=False)
    package.fill(crates)
    for side in SIDES:
        shutil.rmtree(PLACE / side, ignore_errors=True)
        shutil.copytree(HERE / side, PLACE / side)
        package.run(["cargo", "fetch"], PLACE / side, environment(side))


def crates_of(side: str) -> int:
    words = ["cargo", "tree", "--offline", "--edges", "normal,build", "--prefix", "none"]
    lines = package.run(words, PLACE / side, environment(side)).splitlines()
    return len({" ".join(line.split()[:2]) for line in lines if line})


def build(side: str, profile: str) -> dict[str, float]:
    """Builds one program from nothing."""
    target = PLACE / side / "target"
    shutil.rmtree(target, ignore_errors=True)
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    words = ["cargo", "build", "--quiet", "--offline", "--locked", "--profile", profile]
    package.run(words, PLACE / side, environment(side))
    seconds, after = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    program = target / ("debug" if profile == "dev" else profile) / "hello"
    bare = target / "bare"
    subprocess.run(["strip", "-o", bare, program], check=True)
    return {
        "seconds": seconds,
        "cpu_seconds": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "bytes": program.stat().st_size,
        "stripped_bytes": bare.stat().st_size,
    }


def greets(side: str, profile: str) -> None:
    """Checks that the program works: its client calls its server."""
    program = PLACE / side / "target" / ("debug" if profile == "dev" else profile) / "hello"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        where = f"127.0.0.1:{probe.getsockname()[1]}" if side == "tonic" else f"hello-{os.getpid()}"
    server = subprocess.Popen([program, "serve", where])
    try:
        end = time.monotonic() + PATIENCE
        while True:
            done = subprocess.run([program, "call", where], capture_output=True, text=True)
            if done.stdout == "Hello, world!\n":
                return
            if time.monotonic() > end:
                raise package.Failed(f"{side}: the client printed {done.stdout!r}, {done.stderr!r}")
            time.sleep(0.05)
    finally:
        server.terminate()
        server.wait()


def main() -> int:
    shape = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shape)
    parser.add_argument("--turns", type=int, default=3, help="builds of each program (3)")
    parser.add_argument("--profile", action="append", choices=["dev", "release"],
                        help="only this one")
    parser.add_argument("--json", type=Path, help="write the record to FILE")
    options = parser.parse_args()
    prepare()
    record = []
    print(f"{'':<20}{'time':>9}{'CPU':>9}{'binary':>11}{'stripped':>11}{'crates':>8}")
    for profile in options.profile or ["dev", "release"]:
        turns: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
        for turn in range(options.turns):
            for side in SIDES if turn % 2 == 0 else reversed(SIDES):
                turns[side].append(build(side, profile))
        for side in SIDES:
            greets(side, profile)
            middle = {name: statistics.median(turn[name] for turn in turns[side])
                      for name in turns[side][0]}
            crates = crates_of(side)
            record.append({"side": side, "profile": profile, "crates": crates, **middle,
                           "turns": turns[side]})
            seconds = f"{middle['seconds']:7.1f} s{middle['cpu_seconds']:7.1f} s"
            sizes = f"{middle['bytes'] / 1e6:8.2f} MB{middle['stripped_bytes'] / 1e6:8.2f} MB"
            print(f"{side + ', ' + profile:<20}{seconds}{sizes}{crates:>8}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except package.Failed as error:
        sys.exit(f"bench/hello: {error}")
