"""The results of commands and test binaries, and the report of all."""

from __future__ import annotations

import os
import sys
import threading
from dataclasses import dataclass, field

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
