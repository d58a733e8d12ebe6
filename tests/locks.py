#!/usr/bin/env python3
"""Checks that the lock files of the workspaces beside the main one fit to this repository's crates.

usage: tests/locks.py

`bench/peers` and `tests/fuzz` have lock files of their own, and are built with `--locked`. They
contain crates of this repository. If one of those gets another dependency or version, the lock file
does not fit any more, and only that build would show it. So for each such crate the version and the
dependencies in the lock file are compared with its Cargo.toml. Nothing is downloaded for that.
"""

import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
WORKSPACES = ["bench/peers", "tests/fuzz"]


def manifests() -> dict[str, dict[str, Any]]:
    """The manifest of each package in this repository, by name."""
    found = {}
    for path in ROOT.glob("**/Cargo.toml"):
        if "target" not in path.parts:
            manifest = tomllib.loads(path.read_text())
            if "package" in manifest:
                found[manifest["package"]["name"]] = manifest
    return found


def dependencies(manifest: dict[str, Any]) -> Iterator[tuple[str, bool]]:
    """The name of each dependency, and whether a lock file has to have it."""
    for part in [manifest, *manifest.get("target", {}).values()]:
        for kind in ["dependencies", "build-dependencies", "dev-dependencies"]:
            for name, how in part.get(kind, {}).items():
                table = how if isinstance(how, dict) else {}
                yield table.get("package", name), kind != "dev-dependencies" and not table.get("optional")


def repair(workspace: str) -> str:
    """What to do about a lock file that does not fit."""
    return f"run `cargo metadata --manifest-path {workspace}/Cargo.toml` and commit the file"


def main() -> int:
    """Prints what does not fit. Returns the exit status."""
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
                    print(f"{workspace}/Cargo.lock: {locked['name']} {what} {', '.join(sorted(names))}; "
                          + repair(workspace))
            if locked["version"] != version:
                wrong += 1
                print(f"{workspace}/Cargo.lock: {locked['name']} has version {locked['version']}, "
                      f"its Cargo.toml {version}; {repair(workspace)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
