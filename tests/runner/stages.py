"""The stages of a run."""

from __future__ import annotations

import os
import queue
import re
import subprocess
import sys
import threading
import traceback
from functools import partial
from pathlib import Path

from runner import CARGO, ROOT, TARGET
from runner.commands import build, run_binary, run_command
from runner.results import Report, Result

# Number of threads of a test binary that decides by itself which of its tests run at the same time
# (tests/tests/processes/machine.rs). Each of those that run alone holds a thread until it can.
THREADS = {"tests processes": 72}

# Test binaries that only compute: no test in them waits for another process, or measures time.
COMPUTES = {
    "bindings/c values",
    "bindings/python packages",
    "bindings/python values",
    "idl (lib)",
    "idl c",
    "idl packages",
    "pvm examples",
    "tests/sim chaos",
    "tests/sim synth",
    "tests/sim tpuz",
    "tests/values values",
    "upcall packages",
}

# Number of test binaries that run at the same time with the usual priority. Most tests wait most of
# the time. The suites of the bench and the tests across processes measure, and run alone.
LANES = 3

# Test binaries that take long, the longest first. They begin first, so that none is left at the end
# beside nothing else.
LONG = [
    "cli command",
    "message groups",
    "pvm tasks",
    "pvm checkpoint",
    "pvm moves",
    "cli (bin)",
    "pvm coming",
    "bindings/python programs",
]

# Packages with models.
MODELS = ["upcall-shm", "upcall-sched", "upcall-thread", "upcall-ulp"]


def at_once(report: Report, number: int, runs) -> list[threading.Thread]:
    """Starts threads that take one run after the other, until none is left."""
    todo: queue.SimpleQueue = queue.SimpleQueue()
    for run in runs:
        todo.put(run)

    def take() -> None:
        while True:
            try:
                run = todo.get_nowait()
            except queue.Empty:
                return
            try:
                run()
            except Exception:
                report.add(Result("background", failed={"background": traceback.format_exc()}))

    helpers = [threading.Thread(target=take, daemon=True) for _ in range(number)]
    for helper in helpers:
        helper.start()
    return helpers


def unit(report: Report, options, environment: dict[str, str], binaries, computes: bool):
    """Yields the runs of the test binaries that only compute, or of the others."""
    chosen = [options.filter] if options.filter else []

    def run(name: str, path: Path, folder: Path) -> None:
        threads = [f"--test-threads={THREADS[name]}"] if name in THREADS else []
        report.add(run_binary(name, path, folder, [*threads, *chosen], environment, low=computes))

    for binary in binaries:
        name = binary[0]
        if (name in COMPUTES) == computes and (not options.binary or options.binary in name):
            yield partial(run, *binary)


def foreground(report: Report, options, environment: dict[str, str], binaries) -> None:
    """Runs the test binaries that do not only compute."""
    parts: dict[str, list] = {"bench": [], "others": [], "processes": []}
    for binary in sorted(binaries, key=begins):
        name = binary[0]
        bench = re.match("bench[ /]", name)
        parts["bench" if bench else "processes" if name in THREADS else "others"].append(binary)
    runs = {part: unit(report, options, environment, parts[part], False) for part in parts}
    for run in runs["bench"]:
        run()
    for lane in at_once(report, LANES, runs["others"]):
        lane.join()
    for run in runs["processes"]:
        run()


def begins(binary) -> tuple[int, str]:
    """The place of a test binary in the order in which they begin."""
    name = binary[0]
    return LONG.index(name) if name in LONG else len(LONG), name


def docs(report: Report, wrapper: dict[str, str] | None) -> None:
    command = [CARGO, "test", "--workspace", "--doc", "--no-fail-fast", "--quiet"]
    report.add(run_command("examples in documentation", command, wrapper, low=True))


# Number of preemptions, for models that do not set another one. `make models` has 3.
LOOM = {
    "RUSTFLAGS": "--cfg loom",
    "LOOM_MAX_PREEMPTIONS": os.environ.get("LOOM_MAX_PREEMPTIONS", "2"),
}

# `make models` sets that number, and runs the models that take long, too.
LONG_MODELS = ["--include-ignored"] if "LOOM_MAX_PREEMPTIONS" in os.environ else []


def model_arguments() -> list[str]:
    chosen = [word for package in MODELS for word in ("--package", package)]
    return [
        "--profile",
        "models",
        "--target-dir",
        str(TARGET / "loom"),
        *chosen,
        "--test",
        "models",
    ]


def models(report: Report, environment: dict[str, str]) -> None:
    outcome, binaries, _ = build("build of the models", model_arguments(), LOOM, low=True)
    report.add(outcome)
    for name, path, folder in binaries:
        report.add(
            run_binary(
                f"{name} under loom", path, folder, LONG_MODELS, {**environment, **LOOM}, low=True
            )
        )


def soak(report: Report) -> None:
    seconds = os.environ.get("SOAK_SECONDS", "30")
    # The wait that counts as a hang is generous: other programs may have the processors.
    if not (TARGET / "debug/soak").exists():
        missing = Result(
            "soak", failed={"soak": "it is not built: `cargo build -p upcall-tests --bin soak`"}
        )
        return report.add(missing)
    words = [str(TARGET / "debug/soak"), "--seconds", seconds, "--hang", "60000"]
    report.add(run_command(f"soak, {seconds} s", words))


def claims() -> Result:
    """Checks that each test exists that the threat model names for a claim."""
    result, page = Result("claims of docs/threat-model.md"), ROOT / "docs/threat-model.md"
    known: set[str] = set()
    for path in ROOT.glob("**/*.rs"):
        if "target" not in path.relative_to(ROOT).parts:
            known.update(
                re.findall(
                    r"#\[test\](?:\s*#\[[^\n]*)*\s*fn ([a-z0-9_]+)",
                    path.read_text(errors="replace"),
                )
            )
    named = []
    for line in page.read_text().splitlines():
        claim = re.fullmatch(r"\|[^|]*\|([^|]*)\|", line)
        # Elsewhere functions of the kernel are named, too; none of them has so many words.
        named += (
            re.findall(r"`([a-z0-9_]+)`", claim[1])
            if claim
            else re.findall(r"`((?:[a-z0-9]+_){3,}[a-z0-9]+)`", line)
        )
    missing = [name for name in named if name not in known]
    if missing or not named:
        result.failed["tests that do not exist"] = "\n".join(missing) or "the page names no test"
    result.passed = len(named) - len(missing)
    return result


def lint(report: Report, low: bool, checked: bool) -> None:
    report.add(claims())
    report.add(
        run_command(
            "breaks of tests/mutants.toml", [sys.executable, "tests/mutants.py", "--check"], low=low
        )
    )
    report.add(run_command("structure", [sys.executable, "tests/structure.py"], low=low))
    report.add(run_command("lock files", [sys.executable, "tests/locks.py"], low=low))
    report.add(run_command("prose", [sys.executable, "tests/prose.py"], low=low))
    report.add(run_command("documents", [sys.executable, "tests/book.py", "--check"], low=low))
    report.add(run_command("rustfmt", [CARGO, "fmt", "--all", "--check"], low=low))
    if not checked:
        words = [CARGO, "clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"]
        report.add(run_command("clippy", words, low=low))


def programs(report: Report, stages: list[str]) -> None:
    """Builds the programs of users: one that depends on the packages, and those of the book."""
    words = [sys.executable, "tests/book.py", "--run"]
    if "package" in stages:
        packages = run_command("packages", [sys.executable, "tests/package.py"], low=True)
        report.add(packages)
        if not packages.failed:
            # Cargo compiles a package again that it finds at another path.
            words += ["--registry", str(TARGET / "packages/registry")]
    if "book" in stages:
        report.add(run_command("tutorials", words, low=True))


def miri(report: Report) -> None:
    has = subprocess.run([CARGO, "+nightly", "miri", "--version"], cwd=ROOT, capture_output=True)
    if has.returncode:
        skipped = Result("miri")
        skipped.skips.append("no nightly toolchain with Miri (rustup +nightly component add miri)")
        return report.add(skipped)
    # Tree Borrows: the older model refuses an atomic read of bytes that are borrowed shared, which
    # a copy from a caller's argument makes.
    flags = {"MIRIFLAGS": "-Zmiri-disable-isolation -Zmiri-tree-borrows"}
    report.add(
        run_command(
            "miri",
            [
                CARGO,
                "+nightly",
                "miri",
                "test",
                "--quiet",
                "--target-dir",
                str(TARGET / "miri"),
                "--package",
                "upcall-shm",
                "--lib",
            ],
            flags,
        )
    )


STAGES = ["unit", "docs", "book", "soak", "models", "lint", "package", "miri"]
