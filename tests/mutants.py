#!/usr/bin/env python3
"""Breaks the product on purpose, one break at a time, and checks that a test notices.

usage: tests/mutants.py [--list] [--only TEXT] [--keep]

The breaks are in tests/mutants.toml. Each names a file, the text to replace, what replaces it, and
the tests that have to fail. The breaks are made in a copy of the tree (target/mutants), never in
the tree itself. A break is caught if the tests compile and at least one fails or hangs; it survives
if all pass. A break with `survives = "reason"` is known to be missed, and is listed.

The exit status is 0 if every break is caught or known to survive, and 2 if a break no longer
applies, because its text is not in the file exactly once.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target").resolve() / "mutants"
TREE = TARGET / "tree"

# Longest run of the tests of one break, in seconds. A test that hangs has noticed the break.
HANGS = 300


def copy_tree() -> None:
    """Copies what git tracks, and new files, so that uncommitted work is tested too."""
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                            cwd=ROOT, capture_output=True, check=True).stdout
    wanted = {name.decode() for name in listed.split(b"\0") if name}
    for name in wanted:
        source, target = ROOT / name, TREE / name
        if not source.exists() and not source.is_symlink():
            continue
        if target.exists() and not target.is_symlink() and target.read_bytes() == source.read_bytes():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        shutil.copy(source, target, follow_symlinks=False)


def cargo(words: list[str], limit: float | None = None) -> subprocess.CompletedProcess | None:
    """Runs cargo in the copy; None if it takes longer than `limit` seconds."""
    loom = words[0] == "loom"
    env = {**os.environ, "CARGO_PROFILE_DEV_DEBUG": "line-tables-only"}
    words = words[1:] if loom else words
    folder = TARGET / ("loom" if loom else "build")
    if loom:
        env |= {"RUSTFLAGS": "--cfg loom", "LOOM_MAX_PREEMPTIONS": "3"}
        words = ["--profile", "models", *words]
    command = ["cargo", "test", "--quiet", "--target-dir", str(folder), *words]
    child = subprocess.Popen(command, cwd=TREE, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True)
    try:
        output, _ = child.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, 9)
        child.communicate()
        return None
    return subprocess.CompletedProcess(command, child.returncode, output)


def try_break(broken: dict) -> tuple[str, str]:
    """Makes one break and runs its tests. Returns the verdict and a detail."""
    path = TREE / broken["file"]
    text = path.read_text()
    if text.count(broken["find"]) != 1:
        return "STALE", f"{broken['file']} has the text {text.count(broken['find'])} times"
    try:
        path.write_text(text.replace(broken["find"], broken["replace"]))
        words = broken["test"].split()
        options = words[: words.index("--")] if "--" in words else words
        built = cargo([*options, "--no-run"])
        if built.returncode:
            return "STALE", "it does not compile:\n" + built.stdout[-2000:]
        ran = cargo(words, HANGS)
        if ran is None:
            return "caught", f"a test hangs for {HANGS} s"
        if ran.returncode == 0:
            return "SURVIVES", ""
        failed = [line.strip() for line in ran.stdout.splitlines() if line.startswith("    ") and "::" in line]
        failed = failed or [line for line in ran.stdout.splitlines() if "panicked at" in line]
        return "caught", (failed[-1] if failed else "").strip()
    finally:
        path.write_text(text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print the breaks")
    parser.add_argument("--only", default="", help="only breaks whose name contains TEXT")
    parser.add_argument("--keep", action="store_true", help="keep the copy and its build")
    options = parser.parse_args()
    breaks = tomllib.loads((ROOT / "tests/mutants.toml").read_text())["break"]
    breaks = [one for one in breaks if options.only in one["name"]]
    if options.list:
        for one in breaks:
            print(f"{one['name']:<48} {one['file']}  ({one['test']})")
        return 0
    copy_tree()
    counts = {"caught": 0, "SURVIVES": 0, "STALE": 0, "known": 0}
    for one in breaks:
        verdict, detail = try_break(one)
        if verdict == "SURVIVES" and "survives" in one:
            verdict, detail = "known", one["survives"]
        counts[verdict] += 1
        print(f"{verdict:<9} {one['name']:<48} {detail}", flush=True)
    if not options.keep:
        shutil.rmtree(TARGET, ignore_errors=True)
    print(f"\n{counts['caught']} caught, {counts['known']} known to survive, "
          f"{counts['SURVIVES']} survive, {counts['STALE']} do not apply")
    return 2 if counts["STALE"] else 1 if counts["SURVIVES"] else 0


if __name__ == "__main__":
    sys.exit(main())
