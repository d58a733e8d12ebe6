#!/usr/bin/env python3
"""Runs the project's checks, and reports every failure and every skip at the end.

usage: tests/run.py [--only STAGE[,STAGE]] [--repeat N] [--filter TEXT] [--json FILE] [--list]

Stages, in this order (`--list` prints them):
  unit     every test binary of the workspace, three at a time; what measures runs alone
  docs     the examples in the documentation comments
  book     what the tutorials, the how-to pages and README.md say, word by word (tests/book.py)
  soak     kills and stops at random under a mixed load, for SOAK_SECONDS (30)
  models   the lock-free protocols under loom: all interleavings with at most two preemptions, or as
           many as a model asks for
  lint     rustfmt, clippy, the prose of comments and documents (tests/prose.py), whether each
           test that docs/threat-model.md names exists, whether each break of tests/mutants.toml
           still applies, the structure of the crates (tests/structure.py), the lock files beside
           the main one (tests/locks.py), and the links and anchors of all documents (tests/book.py)
  package  the published crates as packages, and a program that depends on them alone
           (tests/package.py); only if it is named, because it takes long (`make test-long`)
  miri     the shared-memory readers under Miri, where a nightly toolchain has it

One failure hides nothing: a stage runs to its end, and so do the stages after it. The models, the
lints, the packages, the examples, the book and the tests that only compute run with the lowest
priority beside the other tests, which wait for each other most of the time. Two of them run at
once: each uses one processor for much of its time.
Where the tests are built, clippy checks the code as it compiles it (its driver is a compiler). A
test binary that prints nothing for STALL seconds is killed, and the tests that it had not finished
are reported as hanging.

A test says that it cannot run here by a line `skipped: REASON` on its standard error.
The exit status is 0 if everything passed. The last line is `N passed, N failed, N skipped`.
"""

from __future__ import annotations

from __future__ import annotations

import argparse
import atexit
import json
import os
import shutil
import sys
from functools import partial
from pathlib import Path

from runner import CARGO
from runner.commands import build, clippy_driver, standard_library, warnings_of
from runner.processes import ALONE, Stopwatch, kill_groups, raise_priorities
from runner.results import Report, summary
from runner.stages import (
    STAGES,
    at_once,
    docs,
    foreground,
    lint,
    miri,
    models,
    programs,
    soak,
    unit,
)

# Lines in backtraces take a fifth of the time of a build. A failed check says where it is without
# them. Build scripts and tests have the same setting: so a package that both need is compiled
# once (Cargo.toml).
for setting in ("CARGO_PROFILE_DEV_DEBUG", "CARGO_PROFILE_DEV_BUILD_OVERRIDE_DEBUG"):
    os.environ.setdefault(setting, "0")

# Number of threads of a test binary that `THREADS` (runner/stages.py) does not have. On a machine
# with many processors libtest would run as many tests at once, and together they would have more
# virtual processors than one process can. `.cargo/config.toml` says the same.
os.environ.setdefault("RUST_TEST_THREADS", "2")

# Number of commands that run with the lowest priority at the same time.
BACKGROUND = 2


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    usual = ",".join(stage for stage in STAGES if stage != "package")
    parser.add_argument("--only", default=usual, help="stages, separated by commas")
    parser.add_argument("--repeat", type=int, default=1, help="run the test binaries N times")
    parser.add_argument("--filter", help="only tests whose name contains TEXT")
    parser.add_argument("--binary", help="only test binaries whose name contains TEXT")
    parser.add_argument("--json", type=Path, help="write the results to FILE")
    parser.add_argument("--list", action="store_true", help="print the stages")
    parser.add_argument(
        "cargo", nargs="*", help="further arguments for the build of the tests, after --"
    )
    options = parser.parse_args()
    if options.list:
        print("\n".join(STAGES))
        return 0
    stages = options.only.split(",")
    if unknown := [stage for stage in stages if stage not in STAGES]:
        parser.error(f"no stage {', '.join(unknown)}; there are {', '.join(STAGES)}")
    if not shutil.which(CARGO):
        parser.error(f"{CARGO} is not on the PATH: install Rust (https://rustup.rs)")
    environment = {**os.environ}
    environment["LD_LIBRARY_PATH"] = (
        f"{standard_library()}:{environment.get('LD_LIBRARY_PATH', '')}"
    )
    environment["CARGO"] = shutil.which(CARGO)
    # Tests that start programs of other packages need not build them: the stage `unit` has.
    environment["UPCALL_TESTS_BUILT"] = "1"
    atexit.register(kill_groups)
    watch, report = Stopwatch(), Report()
    # The wrapper only where everything is checked: a build by hand is made without it.
    wrapper = clippy_driver() if {"unit", "lint"} <= set(stages) else None
    checked = False

    def background(is_first: bool, is_last: bool):
        """Yields what runs with the lowest priority, beside the tests that wait for each other."""
        # Their build comes first, because it uses all processors.
        if is_last and "models" in stages:
            yield partial(models, report, environment)
        if is_first and "lint" in stages:
            yield partial(lint, report, True, checked)
        if is_last and {"package", "book"} & set(stages):
            yield partial(programs, report, stages)
        if is_last and "docs" in stages:
            yield partial(docs, report, wrapper)
        yield from unit(report, options, environment, binaries, computes=True)

    binaries: list = []
    if "unit" in stages:
        # The tests are built first: the background would take the processors from that build.
        outcome, binaries, messages = build(
            "build of the tests", ["--workspace", *options.cargo], wrapper
        )
        if wrapper:
            checked = True
            report.add(warnings_of(messages))
        if wrapper and outcome.failed:
            # A lint that is denied stops the build, and shall not hide the tests.
            wrapper = None
            outcome, binaries, _ = build("build of the tests", ["--workspace", *options.cargo])
        report.add(outcome)
    for turn in range(options.repeat):
        is_last = turn + 1 == options.repeat
        if options.repeat > 1:
            report.note(f"  turn {turn + 1} of {options.repeat}")
        helpers = at_once(report, BACKGROUND, background(turn == 0, is_last))
        foreground(report, options, environment, binaries)
        # After the tests that measure time.
        if is_last and "soak" in stages:
            soak(report)
        raise_priorities()
        for helper in helpers:
            helper.join()
        ALONE.clear()
    if "miri" in stages:
        miri(report)
    if options.json:
        options.json.write_text(json.dumps([vars(result) for result in report.results], indent=1))
    return summary(report, watch.seconds())


if __name__ == "__main__":
    sys.exit(main())
