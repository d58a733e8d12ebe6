"""Processes that end with this program, some of them with the lowest priority."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

# Longest silence of a test binary, in seconds. The time-outs inside of tests are 60 s.
STALL = 240

# The same for a binary that runs with the lowest priority.
LOW_STALL = 900

# Starts a command with the lowest priority.
LOW = ["nice", "-n", "19"]


class Stopwatch:
    def __init__(self) -> None:
        self.start = time.monotonic()

    def seconds(self) -> float:
        return time.monotonic() - self.start


# The process groups that this program has started, by the process that leads each. They stay in
# this program's session, for two reasons. The kernel divides the processors among sessions
# (autogroups), and `nice` counts only within one. And while threads of one session wake each other
# often, Linux 6.18.44 may give another session no processor for a minute; 6.18.45 mends that
# (docs/reference/limits.md).
GROUPS: set[int] = set()

# Set while nothing is left to run but what runs with the lowest priority. Then that runs as
# everything else: on a machine with other work it would not come to an end.
ALONE = threading.Event()


def raise_priorities() -> None:
    """Gives the usual priority to what runs with the lowest, where this user may."""
    ALONE.set()
    for leader in list(GROUPS):
        try:
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
def group(command: list[str], low: bool, **options):
    """A command in a process group of its own; when the block ends, it has ended or is killed."""
    child = Child(
        [*LOW, *command] if low and not ALONE.is_set() else command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        errors="replace",
        process_group=0,
        **options,
    )
    GROUPS.add(child.pid)
    try:
        yield child
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        GROUPS.discard(child.pid)


def kill_groups() -> None:
    """Kills what is left of them when this program is interrupted."""
    for leader in GROUPS:
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
    with group(command, low, **options) as child:
        stdout, stderr = child.communicate()
    return Finished(child.returncode, stdout, stderr, child.work)


def stream(command: list[str], cwd: Path, env: dict[str, str], low: bool):
    """Yields the lines that `command` prints, then its exit status and its processor time.

    The status is None if the command stalled and was killed.
    """
    stall = LOW_STALL if low else STALL
    with group(command, low, cwd=cwd, env=env, stderr=subprocess.STDOUT) as child:
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
