#!/usr/bin/env python3
"""Runs the project's checks, and reports every failure and every skip at the end.

usage: tests/run.py [--only STAGE[,STAGE]] [--repeat N] [--filter TEXT] [--json FILE] [--list]

Stages, in this order (`--list` prints them):
  unit     every test binary of the workspace, one after the other; those of pvm beside others
  docs     the examples in the documentation comments
  book     what the tutorials, the how-to pages and README.md say, word by word (tests/book.py)
  soak     kills and stops at random under a mixed load, for SOAK_SECONDS (60)
  models   the lock-free protocols under loom: all interleavings with at most two preemptions, or as
           many as a model asks for
  lint     rustfmt, clippy, the prose of comments and documents (tests/prose.py), whether each
           test that docs/threat-model.md names exists, whether each break of tests/mutants.toml
           still applies, the structure of the crates (tests/structure.py), the lock files beside
           the main one (tests/locks.py), and the links and anchors of all documents (tests/book.py)
  package  the published crates as packages, and a program that depends on them alone
           (tests/package.py)
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

import argparse
import atexit
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Lines in backtraces take a fifth of the time of a build. A failed check says where it is without
# them. Build scripts and tests have the same setting: so a package that both need is compiled
# once (Cargo.toml).
for setting in ("CARGO_PROFILE_DEV_DEBUG", "CARGO_PROFILE_DEV_BUILD_OVERRIDE_DEBUG"):
    os.environ.setdefault(setting, "0")
CARGO = os.environ.get("CARGO", "cargo")
TARGET = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target").resolve()

# Longest silence of a test binary, in seconds. The time-outs inside of tests are 60 s.
STALL = 240

# The same for a binary that runs with the lowest priority.
LOW_STALL = 900

# Number of threads of a test binary that decides by itself which of its tests run at the same time
# (tests/tests/processes/machine.rs). Each of those that run alone holds a thread until it can.
THREADS = {"tests processes": 64}

# Number of threads of each other test binary. On a machine with many processors libtest would run
# as many tests at once, and together they would have more virtual processors than one process
# can. `.cargo/config.toml` says the same.
os.environ.setdefault("RUST_TEST_THREADS", "2")

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

# Packages whose tests run beside those of other packages, with the same priority: most of them
# wait. They begin after the suites of the bench, which measure.
BESIDE = {"pvm"}

# Starts a command with the lowest priority. The kernel divides the processors among sessions
# (autogroups), and `nice` alone counts only within one of them.
LOW = ["sh", "-c", '{ echo 19 >/proc/self/autogroup; } 2>/dev/null; exec nice -n 19 "$@"', "sh"]

# Number of commands that run with the lowest priority at the same time.
BACKGROUND = 2

# Packages with models.
MODELS = ["upcall-shm", "upcall-sched", "upcall-thread", "upcall-ulp"]

LINE = re.compile(r"^test (?P<name>.+?) \.\.\. (?P<outcome>ok|FAILED|ignored)")
# A test that prints to the terminal itself can separate its name from its outcome.
OUTCOME = re.compile(r"^(?P<outcome>ok|FAILED)$")
SKIP = re.compile(r"\bskipped: (?P<why>.+)")

COLOUR = sys.stdout.isatty() and "NO_COLOR" not in os.environ


def paint(code: str, text: str) -> str:
    return f"\033[{code}m{text}\033[0m" if COLOUR else text


@dataclass
class Result:
    """What a run of one test binary, or of one command, came to."""

    title: str
    seconds: float = 0.0
    # Processor time of its processes that have ended, in seconds.
    work: float = 0.0
    passed: int = 0
    ignored: int = 0
    # The name of each failed test, and what it printed.
    failed: dict[str, str] = field(default_factory=dict)
    skips: list[str] = field(default_factory=list)

    def line(self) -> str:
        mark = paint("31;1", "FAILED") if self.failed else paint("32", "ok")
        counts = f"{self.passed} passed" if self.passed else ""
        if self.failed:
            counts += f"  {len(self.failed)} failed"
        if self.skips:
            counts += f"  {len(self.skips)} skipped"
        return f"  {mark:<7} {self.title:<44} {self.seconds:6.1f} s {self.work:6.1f} s  {counts}"


def indented(lines: list[str]) -> str:
    return "\n".join("    " + line[:300] for line in lines)


class Stopwatch:
    def __init__(self) -> None:
        self.start = time.monotonic()

    def seconds(self) -> float:
        return time.monotonic() - self.start


# The sessions that this program has started, by the process that leads each.
SESSIONS: set[int] = set()

# Set while nothing is left to run but what runs with the lowest priority. Then that runs as
# everything else: on a machine with other work it would not come to an end.
ALONE = threading.Event()


def raise_priorities() -> None:
    """Gives the usual priority to what runs with the lowest, where this user may."""
    ALONE.set()
    for leader in list(SESSIONS):
        try:
            Path(f"/proc/{leader}/autogroup").write_text("0")
            os.setpriority(os.PRIO_PGRP, leader, 0)
        except OSError:
            pass


class Child(subprocess.Popen):
    """A process that tells how much processor time it and those that it waited for have used."""

    work = 0.0

    def _try_wait(self, wait_flags: int):
        # As in the class above, which asks the kernel for the status alone.
        try:
            pid, status, usage = os.wait4(self.pid, wait_flags)
        except ChildProcessError:
            return self.pid, 0
        if pid == self.pid:
            self.work = usage.ru_utime + usage.ru_stime
        return pid, status


@contextmanager
def session(command: list[str], low: bool, **options):
    """A command in a session of its own; when the block ends, it has ended or is killed."""
    child = Child(
        [*LOW, *command] if low and not ALONE.is_set() else command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
        **options,
    )
    SESSIONS.add(child.pid)
    try:
        yield child
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        SESSIONS.discard(child.pid)


def kill_sessions() -> None:
    """Kills what is left of them when this program is interrupted."""
    for leader in SESSIONS:
        try:
            os.killpg(leader, signal.SIGKILL)
        except ProcessLookupError:
            pass


@dataclass
class Finished:
    """What a command printed, and its exit status."""

    returncode: int
    stdout: str
    stderr: str
    work: float


def finish(command: list[str], low: bool, **options) -> Finished:
    """Runs a command to its end."""
    with session(command, low, **options) as child:
        stdout, stderr = child.communicate()
    return Finished(child.returncode, stdout, stderr, child.work)


def stream(command: list[str], cwd: Path, env: dict[str, str], low: bool):
    """Yields the lines that `command` prints, then its exit status and its processor time.

    The status is None if the command stalled and was killed.
    """
    stall = LOW_STALL if low else STALL
    with session(command, low, cwd=cwd, env=env, stderr=subprocess.STDOUT) as child:
        lines: queue.Queue[str | None] = queue.Queue()

        def pump() -> None:
            for line in child.stdout:
                lines.put(line.rstrip("\n"))
            lines.put(None)

        threading.Thread(target=pump, daemon=True).start()
        try:
            while (line := lines.get(timeout=stall)) is not None:
                yield line
        except queue.Empty:
            yield None, 0.0
            return
        status = child.wait()
        yield status, child.work


def outputs_of(text: str) -> dict[str, str]:
    """What each test printed, from the sections that libtest prints after the list of tests."""
    parts = re.split(r"^---- (.+?) (?:stdout|stderr) ----$", text, flags=re.M)
    return {name: body.strip() for name, body in zip(parts[1::2], parts[2::2])}


def run_binary(
    title: str, path: Path, cwd: Path, arguments: list[str], env: dict[str, str], low: bool = False
) -> Result:
    watch = Stopwatch()
    result = Result(title)
    seen: dict[str, str] = {}
    text: list[str] = []
    status: int | None = None
    pending: str | None = None
    for line in stream([str(path), "--show-output", *arguments], cwd, env, low):
        if isinstance(line, tuple):
            status, result.work = line
            break
        text.append(line)
        if found := LINE.match(line):
            seen[found["name"]] = found["outcome"]
        elif found := re.match(r"^test (.+?) \.\.\. ", line):
            pending = found[1]
        elif pending and (found := OUTCOME.match(line)):
            seen[pending] = found["outcome"]
            pending = None
    result.seconds = watch.seconds()
    whole = "\n".join(text)
    printed = outputs_of(whole)
    result.passed = sum(outcome == "ok" for outcome in seen.values())
    result.ignored = sum(outcome == "ignored" for outcome in seen.values())
    for name, outcome in seen.items():
        if outcome == "FAILED":
            result.failed[name] = printed.get(name, "")
    for found in re.finditer(r"^    (\S.*)$", whole.rpartition("\nfailures:\n")[2], flags=re.M):
        if "\nfailures:\n" in whole and found[1] in printed:
            result.failed.setdefault(found[1], printed[found[1]])
    # A test program that comes to its end reports failures by this status.
    if status not in (0, 101) or (status and not result.failed):
        listed = subprocess.run(
            [path, "--list", "--format", "terse", *arguments],
            cwd=cwd,
            env=env,
            capture_output=True,
            text=True,
        ).stdout
        names = [line[: -len(": test")] for line in listed.splitlines() if line.endswith(": test")]
        missing = [name for name in names if name not in seen] or ["(the binary itself)"]
        if status is None:
            reason = f"hangs: nothing was printed for {LOW_STALL if low else STALL} s"
        else:
            reason = f"the test process ended with status {status}"
        for name in missing:
            result.failed[name] = reason + "\n" + "\n".join(text[-30:])
        for name in result.failed:
            # Its sections are printed at the end only, which this program did not reach.
            result.failed[name] = result.failed[name] or reason
    result.skips = list(dict.fromkeys(found["why"] for found in SKIP.finditer(whole)))
    return result


def run_command(
    title: str, command: list[str], env: dict[str, str] | None = None, low: bool = False
) -> Result:
    """Runs a command whose exit status is its verdict."""
    watch = Stopwatch()
    whole = {**os.environ, **(env or {})}
    done = finish(command, low, cwd=ROOT, env=whole, stderr=subprocess.STDOUT)
    result = Result(title, watch.seconds(), done.work)
    if done.returncode:
        result.failed[title] = done.stdout[-8000:]
    else:
        result.passed = 1
    result.skips = [found["why"] for found in SKIP.finditer(done.stdout)]
    return result


def clippy_driver() -> dict[str, str] | None:
    """The variables that make cargo compile by clippy's driver; None if there is none.

    `cargo clippy` sets the same, for `cargo check`. So the code is gone through once, not twice.
    """
    command = ["rustc", "--print", "sysroot"]
    root = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.strip()
    driver = Path(root) / "bin/clippy-driver"
    return {"RUSTC_WORKSPACE_WRAPPER": str(driver)} if driver.exists() else None


def warnings_of(messages: list[dict]) -> Result:
    """What the compiler and clippy warn of in a build."""
    result = Result("clippy")
    texts = [
        message["message"]["rendered"]
        for message in messages
        if message.get("reason") == "compiler-message"
        and message["message"]["level"] in ("warning", "error")
        and message["message"]["spans"]
    ]
    if texts:
        result.failed["warnings"] = "\n".join(dict.fromkeys(texts))[-8000:]
    else:
        result.passed = 1
    return result


def build(title: str, arguments: list[str], env: dict[str, str] | None = None, low: bool = False):
    """Builds test binaries.

    Returns the outcome, for each binary its name, path and package folder, and cargo's messages.
    """
    watch = Stopwatch()
    command = [CARGO, "test", "--no-run", "--quiet", "--message-format=json", *arguments]
    done = finish(command, low, cwd=ROOT, env={**os.environ, **(env or {})}, stderr=subprocess.PIPE)
    result, binaries = Result(title, watch.seconds(), done.work), []
    messages = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    for message in messages:
        if message.get("reason") != "compiler-artifact" or not message.get("executable"):
            continue
        if not message["profile"]["test"]:
            continue
        folder = Path(message["manifest_path"]).parent
        target = message["target"]
        kind = target["kind"][0]
        short = folder.relative_to(ROOT).as_posix().removeprefix("crates/")
        name = f"{short} {target['name']}" if kind == "test" else f"{short} ({kind})"
        binaries.append((name, Path(message["executable"]), folder))
    if done.returncode:
        errors = [
            message["message"]["rendered"]
            for message in messages
            if message.get("reason") == "compiler-message"
            and message["message"]["level"] == "error"
        ]
        result.failed[title] = ("\n".join(errors) + "\n" + done.stderr)[-8000:]
    return result, sorted(binaries), messages


def standard_library() -> str:
    """Folder of the shared standard library, which tests of procedural macros are linked with."""
    command = ["rustc", "--print", "target-libdir"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.strip()


class Report:
    """Collects results, and prints each as it comes."""

    def __init__(self) -> None:
        self.results: list[Result] = []
        self.lock = threading.Lock()

    def add(self, result: Result) -> None:
        with self.lock:
            self.results.append(result)
            print(result.line(), flush=True)
            for name, text in result.failed.items():
                # Where it failed and why; the summary has the rest.
                print(f"          {name}\n{indented(text.splitlines()[:8])}", flush=True)

    def note(self, text: str) -> None:
        with self.lock:
            print(text, flush=True)


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
    parts: dict[str, list] = {"bench": [], "beside": [], "others": [], "tests": []}
    for binary in binaries:
        first = re.split(r"[ /]", binary[0])[0]
        part = "beside" if first in BESIDE else first if first in parts else "others"
        parts[part].append(binary)
    runs = {part: unit(report, options, environment, parts[part], False) for part in parts}
    for run in runs["bench"]:
        run()
    beside = at_once(report, 1, runs["beside"])
    for run in runs["others"]:
        run()
    for helper in beside:
        helper.join()
    for run in runs["tests"]:
        run()


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
    seconds = os.environ.get("SOAK_SECONDS", "60")
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


STAGES = ["unit", "docs", "book", "soak", "models", "lint", "package", "miri"]


def summary(report: Report, seconds: float) -> int:
    passed = sum(result.passed for result in report.results)
    failures = [
        (result.title, name, text)
        for result in report.results
        for name, text in result.failed.items()
    ]
    skips = [(result.title, why) for result in report.results for why in result.skips]
    ignored = sum(result.ignored for result in report.results)
    for what, amount in (("slowest", "seconds"), ("most processor time", "work")):
        most = sorted(report.results, key=lambda result: -getattr(result, amount))[:10]
        listed = ", ".join(f"{result.title} {getattr(result, amount):.0f} s" for result in most)
        print(f"\n{what}: {listed}")
    if skips:
        print(f"\nskipped here ({len(skips)}):")
        for title, why in dict.fromkeys(skips):
            print(f"  {title}: {why}")
    if ignored:
        print(f"\nleft to `make test-long`: {ignored}")
    for title, name, text in failures:
        print(f"\n{paint('31;1', 'FAILED')} {title}: {name}")
        print(indented(text.splitlines()[-60:]))
    if failures:
        print("\nfailures:")
        for title, name, _ in failures:
            print(f"  {title}: {name}")
    print(f"\n{seconds / 60:.1f} minutes")
    print(f"{passed} passed, {len(failures)} failed, {len(skips)} skipped")
    return 1 if failures or not passed else 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(STAGES), help="stages, separated by commas")
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
    atexit.register(kill_sessions)
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
