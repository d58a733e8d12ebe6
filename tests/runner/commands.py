"""Builds and runs test binaries, and runs other commands."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

from runner import CARGO, ROOT
from runner.processes import LOW_STALL, STALL, Stopwatch, finish, stream
from runner.results import Result

LINE = re.compile(r"^test (?P<name>.+?) \.\.\. (?P<outcome>ok|FAILED|ignored)")
# A test that prints to the terminal itself can separate its name from its outcome.
OUTCOME = re.compile(r"^(?P<outcome>ok|FAILED)$")
SKIP = re.compile(r"\bskipped: (?P<why>.+)")


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
