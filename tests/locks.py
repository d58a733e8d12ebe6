#!/usr/bin/env python3
"""Checks that the lock files of the workspaces beside the main one match this repository's crates.

usage: tests/locks.py

It also checks that a build of all tests compiles each version of a package once.

`bench/links`, `bench/peers` and `tests/fuzz` have lock files of their own, and are built with
`--locked`. The last two contain crates of this repository. If such a crate gets another dependency,
its entry in the lock file is stale, and only that build would show it. So this program compares the
dependencies of each such crate in the lock file with its Cargo.toml. It downloads nothing.

Build scripts and macros on one side and everything else on the other may want one version of a
package with different features. Then cargo compiles it twice, and what depends on it too.
`tests/features` makes the features alike.
"""

import os
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
WORKSPACES = ["bench/links", "bench/peers", "tests/fuzz"]


def manifests() -> dict[str, dict[str, Any]]:
    """Returns the manifest of each package in this repository, by name."""
    found = {}
    for path in ROOT.glob("**/Cargo.toml"):
        if "target" not in path.parts:
            manifest = tomllib.loads(path.read_text())
            if "package" in manifest:
                found[manifest["package"]["name"]] = manifest
    return found


def dependencies(manifest: dict[str, Any]) -> Iterator[tuple[str, bool]]:
    """Yields the name of each dependency, and whether a lock file must contain it."""
    for part in [manifest, *manifest.get("target", {}).values()]:
        for kind in ["dependencies", "build-dependencies", "dev-dependencies"]:
            for name, how in part.get(kind, {}).items():
                table = how if isinstance(how, dict) else {}
                yield (table.get("package", name),
                       kind != "dev-dependencies" and not table.get("optional"))


def compiled_twice() -> list[str]:
    """The packages that a build of all tests compiles with two sets of features."""
    command = [os.environ.get("CARGO", "cargo"), "tree", "--workspace", "--duplicates",
               "--depth", "0", "--prefix", "none", "--quiet"]
    text = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
    lines = (line for line in text.splitlines() if line and not line.startswith("["))
    return sorted(name for name, times in Counter(lines).items() if times > 1)


def repair(workspace: str) -> str:
    """What to do about a lock file that does not fit."""
    return f"run `cargo metadata --manifest-path {workspace}/Cargo.toml` and commit the file"


def main() -> int:
    """Prints the differences. Returns the exit status."""
    packages, wrong = manifests(), 0
    inherited = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    for workspace in WORKSPACES:
        lock = tomllib.loads((ROOT / workspace / "Cargo.lock").read_text())
        for locked in lock["package"]:
            if "source" in locked or locked["name"] not in packages:
                continue
            has = {entry.split()[0] for entry in locked.get("dependencies", [])}
            wants = list(dependencies(packages[locked["name"]]))
            version = packages[locked["name"]]["package"]["version"]
            version = version if isinstance(version, str) else inherited
            missing = {name for name, needed in wants if needed} - has
            extra = has - {name for name, _ in wants}
            for what, names in [("lacks", missing), ("has too many:", extra)]:
                if names:
                    wrong += 1
                    print(f"{workspace}/Cargo.lock: {locked['name']} {what} "
                          f"{', '.join(sorted(names))}; {repair(workspace)}")
    if twice := compiled_twice():
        wrong += 1
        print(f"compiled twice: {', '.join(twice)}; name the features of both in "
              "tests/features/Cargo.toml (`cargo tree --edges features --invert NAME`)")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
