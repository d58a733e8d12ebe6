#!/usr/bin/env python3
"""Breaks the product on purpose, one break at a time, and checks that a test notices.

usage: tests/mutants.py [--list | --check] [--only TEXT] [--keep]

The breaks are in tests/mutants.toml. Each names the requirements that it takes away (the ids of
docs/requirements.md), a file, the text to replace, its replacement, and the tests that have to
fail. The breaks are made in a copy of the tree (target/mutants), never in the tree itself. First
each test runs without a break, and has to pass. A break is caught if the tests compile and at least
one fails or hangs. It survives if all pass, and is then listed. A break with `survives = "reason"`
is known to be missed. A break whose test reports that it cannot run here is `skipped`.

`--list` prints each requirement with its breaks. `--check` compares the list with the tree and
with docs/requirements.md, and builds nothing; `make lint` calls it.

The exit status is 0 if every break is caught or known to survive, 1 if one survives or tests fail
without a break, and 2 if a break no longer applies, because its text is not in the file exactly
once, or because no test matches.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target").resolve() / "mutants"
TREE = TARGET / "tree"

# Time limit for the tests of one break: HANGS seconds, plus SLOWER times their time without the
# break. A test that hangs has noticed the break.
HANGS = 60
SLOWER = 10

# The line with which a test reports that it cannot run here (tests/run.py).
SKIP = re.compile(r"\bskipped: (?P<why>.+)")

KEYS = {"name", "shows", "file", "find", "replace", "test"}


def read_list() -> tuple[list[dict], dict[str, str]]:
    """Returns the breaks, and for each requirement without a break the reason."""
    found = tomllib.loads((ROOT / "tests/mutants.toml").read_text())
    for one in found["break"]:
        shows = one.get("shows", [])
        one["shows"] = [shows] if isinstance(shows, str) else shows
    return found["break"], found.get("without", {})


def requirements() -> dict[str, str]:
    """Returns the ids of docs/requirements.md, each with its text."""
    page = (ROOT / "docs/requirements.md").read_text()
    return dict(re.findall(r"^\| ([TSULDPVH]\d+[a-z]?|pvm-[a-z]+) \| (.*?) \|", page, re.M))


def check(breaks: list[dict], without: dict[str, str]) -> list[str]:
    """Returns the faults of the list."""
    wrong, known, names = [], requirements(), set()
    for one in breaks:
        name = one.get("name", "a break without a name")
        missing = {key for key in KEYS if not one.get(key) and key != "replace" or key not in one}
        if missing:
            wrong.append(f"{name}: no {', '.join(sorted(missing))}")
            continue
        if odd := one.keys() - KEYS - {"survives"}:
            wrong.append(f"{name}: {', '.join(sorted(odd))} is no key of a break")
        if name in names:
            wrong.append(f"{name}: two breaks have this name")
        names.add(name)
        wrong += [f"{name}: {id} is no requirement" for id in one["shows"] if id not in known]
        path = ROOT / one["file"]
        count = path.read_text().count(one["find"]) if path.is_file() else None
        if count is None:
            wrong.append(f"{name}: {one['file']} does not exist")
        elif count != 1:
            wrong.append(f"{name}: {one['file']} has its text {count} times")
    broken = {id for one in breaks for id in one["shows"]}
    lacking = [id for id in known if id not in broken | without.keys()]
    wrong += [f"{id}: it has neither a break nor a reason in [without]" for id in lacking]
    wrong += [f"{id}: [without] has it, and it has a break" for id in without if id in broken]
    wrong += [f"{id}: [without] has it, and is no requirement" for id in without if id not in known]
    return wrong


def print_list(breaks: list[dict], without: dict[str, str]) -> None:
    """Prints each requirement with its breaks, and then those that have none."""
    known = requirements()
    for id, what in known.items():
        for one in [one for one in breaks if id in one["shows"]]:
            mark = "  (known to survive)" if "survives" in one else ""
            print(f"{id:<14} {one['name']:<62} {one['file']}{mark}")
    none = [id for id in known if not any(id in one["shows"] for one in breaks)]
    print("\nwithout a break:")
    for id in none:
        print(f"{id:<14} {known[id]}: {without.get(id, 'NO REASON')}")
    print(f"\n{len(breaks)} breaks of {len(known) - len(none)} requirements; {len(none)} have none")


def copy_tree() -> None:
    """Copies tracked and new files, so that uncommitted work is tested, too."""
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                            cwd=ROOT, capture_output=True, check=True).stdout
    wanted = {name.decode() for name in listed.split(b"\0") if name}
    for name in wanted:
        source, target = ROOT / name, TREE / name
        if not source.exists() and not source.is_symlink():
            target.unlink(missing_ok=True)
            continue
        plain = target.exists() and not target.is_symlink()
        if plain and target.read_bytes() == source.read_bytes():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        shutil.copy(source, target, follow_symlinks=False)


def cargo(words: list[str], limit: float | None = None) -> subprocess.CompletedProcess | None:
    """Runs cargo in the copy. Returns None if it takes longer than `limit` seconds."""
    loom = words[0] == "loom"
    # A break changes one line, so an incremental build saves time.
    env = {**os.environ, "CARGO_INCREMENTAL": "1", "CARGO_PROFILE_DEV_DEBUG": "0",
           "CARGO_PROFILE_DEV_BUILD_OVERRIDE_DEBUG": "0"}
    words = words[1:] if loom else words
    folder = TARGET / ("loom" if loom else "build")
    if loom:
        env |= {"RUSTFLAGS": "--cfg loom", "LOOM_MAX_PREEMPTIONS": "3", "CARGO_INCREMENTAL": "0"}
        words = ["--profile", "models", *words]
    command = ["cargo", "test", "--quiet", "--target-dir", str(folder), *words]
    child = subprocess.Popen(command, cwd=TREE, env=env, stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                             text=True, errors="replace", start_new_session=True)
    try:
        output, _ = child.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, 9)
        child.communicate()
        return None
    return subprocess.CompletedProcess(command, child.returncode, output)


def build_and_run(test: str, limit: float | None) -> tuple[str, str, float]:
    """Builds and runs tests. Returns the outcome, a detail, and how long the tests ran.

    The outcome is `passed`, `failed`, `hangs` or `STALE`. The detail of tests that passed is the
    reason for which one was skipped.
    """
    options, _, filters = test.partition(" -- ")
    options = options.split()
    built = cargo([*options, "--no-run"])
    if built.returncode:
        return "STALE", "it does not compile:\n" + built.stdout[-2000:], 0.0
    began = time.monotonic()
    ran = cargo([*options, "--", "--show-output", *filters.split()], limit)
    took = time.monotonic() - began
    if ran is None:
        return "hangs", f"the tests hang for {limit:.0f} s", took
    if ran.returncode == 0:
        # cargo also succeeds if no test matches.
        if not any(map(int, re.findall(r"^running (\d+) tests?$", ran.stdout, re.M))):
            return "STALE", f"no test matches: {test}", took
        skipped = SKIP.search(ran.stdout)
        return "passed", skipped["why"] if skipped else "", took
    failed = re.findall(r"^    ([a-z_0-9:]+)$", ran.stdout, re.M)
    failed = failed or re.findall(r"^.*(?:panicked at|signal: ).*$", ran.stdout, re.M)
    return "failed", failed[-1] if failed else " ".join(ran.stdout.split()[-24:]), took


class Controls:
    """The tests without a break: each set runs once, before the first break that it must notice."""

    def __init__(self) -> None:
        self.found: dict[str, tuple[str, str, float]] = {}

    def run(self, test: str) -> tuple[str, str, float]:
        if test not in self.found:
            self.found[test] = build_and_run(test, None)
        return self.found[test]


def try_break(broken: dict, controls: Controls) -> tuple[str, str]:
    """Makes one break and runs its tests. Returns the verdict and a detail."""
    path = TREE / broken["file"]
    text = path.read_text()
    if text.count(broken["find"]) != 1:
        return "STALE", f"{broken['file']} has the text {text.count(broken['find'])} times"
    outcome, detail, took = controls.run(broken["test"])
    skipped = detail
    if outcome == "STALE":
        return outcome, detail
    if outcome != "passed":
        return "UNSOUND", f"without the break, too: {detail}"
    try:
        path.write_text(text.replace(broken["find"], broken["replace"]))
        outcome, detail, _ = build_and_run(broken["test"], HANGS + SLOWER * took)
    finally:
        path.write_text(text)
    if outcome == "passed":
        return ("skipped", skipped) if skipped else ("SURVIVES", "")
    return ("STALE" if outcome == "STALE" else "caught"), detail


def order(broken: dict) -> tuple[str, str]:
    """Sorts breaks of one crate that one test notices together, so that little is rebuilt."""
    return broken["test"].split(" -- ")[0], broken["file"].split("/")[0]


def main() -> int:
    as_written = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=as_written)
    parser.add_argument("--list", action="store_true", help="print each requirement's breaks")
    parser.add_argument("--check", action="store_true", help="only check that each break applies")
    parser.add_argument("--only", default="", metavar="TEXT[,TEXT]",
                        help="only breaks of requirement TEXT, or with TEXT in their name or test")
    parser.add_argument("--keep", action="store_true", help="keep the copy and its build")
    options = parser.parse_args()
    breaks, without = read_list()
    if options.list:
        print_list(breaks, without)
        return 0
    wrong = check(breaks, without)
    if options.check or wrong:
        print("\n".join(wrong) or f"{len(breaks)} breaks apply")
        return 2 if wrong else 0
    wanted = options.only.split(",")
    fits = lambda one, text: text in one["name"] or text in one["test"] or text in one["shows"]
    breaks = [one for one in breaks if any(fits(one, text) for text in wanted)]
    copy_tree()
    verdicts = ["caught", "known", "skipped", "SURVIVES", "UNSOUND", "STALE"]
    counts, survivors, controls = dict.fromkeys(verdicts, 0), [], Controls()
    for one in sorted(breaks, key=order):
        verdict, detail = try_break(one, controls)
        if verdict == "SURVIVES" and "survives" in one:
            verdict, detail = "known", one["survives"]
        counts[verdict] += 1
        line = f"{verdict:<9} {','.join(one['shows']):<12} {one['name']:<58} {detail.strip()}"
        if verdict != "caught":
            survivors.append(line)
        print(line, flush=True)
    if not options.keep:
        shutil.rmtree(TARGET, ignore_errors=True)
    if survivors:
        print("\nnot caught:\n" + "\n".join(survivors))
    print("\n" + ", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    return 2 if counts["STALE"] else 1 if counts["SURVIVES"] or counts["UNSOUND"] else 0


if __name__ == "__main__":
    sys.exit(main())
