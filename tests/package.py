#!/usr/bin/env python3
"""Packages the published crates, and builds and runs programs that depend on the packages alone.

usage: tests/package.py [--full] [--list]

The packages are those that `cargo publish` would upload. They are unpacked into a local registry,
with the dependencies of Cargo.lock from cargo's cache. Programs are then built from that registry:
without the repository, without network, and by a user without a home directory.

Always checked:
  packages   metadata and licence files of each, and no warning from `cargo package`
  hello      a program with the dependency `upcall = "0.2"` alone: server, client, one call
  old Rust   cargo names the Rust version that is needed
  no gcc     the build scripts that compile C name what is missing, and how to install it

With --full also:
  verify     `cargo package` builds each package
  lock file  the packages build with the versions in Cargo.lock, and with `--locked`
  install    `cargo install upcall-cli`, and the command runs
  features   each feature of crate `upcall` alone, and all of them
  tests      the unit tests of each package

--list prints the published crates, each after those that it depends on, and does nothing else.

Only packages that are missing from cargo's cache are downloaded, before the checks.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CARGO = os.environ.get("CARGO", "cargo")
TARGET = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target").resolve()
PLACE = TARGET / "packages"
REGISTRY = PLACE / "registry"
HELLO = PLACE / "hello"

# Folder in which programs of users are built, those of the documents too (`tests/book.py
# --registry`): what they depend on beside our packages is compiled once.
BUILT = TARGET / "users"

# Metadata that a package has besides its name and version.
WANTED = [
    "description", "license", "keywords", "categories", "readme", "rust_version", "documentation",
]

# Warning that says what `exclude` in a manifest has decided.
EXPECTED = re.compile(r"warning: ignoring (test|example|bench) `[\w-]+` as `[^`]+` is not included")

# Longest time of one command, in seconds.
LIMIT = 900

PROGRAM = '''\
upcall::interface!("
    package demo:greeter;
    interface greeter { greet: func(name: string) -> string; }
");

struct English;

impl greeter::Serve for English {
    fn greet(&self, name: &str) -> String {
        format!("Hello, {name}!")
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let name = format!("hello-{}", std::process::id());
    let server = upcall::Server::new().export(&name, greeter::export(English)).start()?;
    println!("{}", greeter::Greeter::bind(&name)?.greet("world")?);
    drop(server);
    Ok(())
}
'''


class Failed(Exception):
    """A check that failed, with the reason."""


def run(command: list, cwd: Path, env: dict[str, str], fails: bool = False) -> str:
    """Runs a command and returns what it printed. With `fails` the command has to fail."""
    done = subprocess.run([str(word) for word in command], cwd=cwd, env=env, timeout=LIMIT,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, errors="replace")
    if (done.returncode != 0) != fails:
        what = "succeeded" if fails else f"ended with status {done.returncode}"
        raise Failed(f"`{' '.join(map(str, command))}` {what}:\n{done.stdout[-6000:]}")
    return done.stdout


def toolchain() -> Path:
    """The folder of the compiler and of cargo itself, without rustup's proxies."""
    command = ["rustc", "--print", "sysroot"]
    root = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return Path(root.strip()) / "bin"


def published() -> list[dict]:
    """The metadata of each published crate, each after those that it depends on."""
    command = [CARGO, "metadata", "--no-deps", "--offline", "--format-version", "1"]
    text = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    left = [one for one in json.loads(text)["packages"] if one["publish"] is None]
    names, found = {one["name"] for one in left}, []
    while left:
        done = {one["name"] for one in found}
        for one in left:
            needs = {need["name"] for need in one["dependencies"] if need["kind"] != "dev"}
            if needs & names <= done:
                found.append(one)
                left.remove(one)
                break
        else:
            raise Failed(f"circle of dependencies among {', '.join(one['name'] for one in left)}")
    return found


def user() -> dict[str, str]:
    """The environment of a user without a home, whose cargo knows no registry but the local one."""
    folder = PLACE / "cargo"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.toml").write_text(
        '[source.crates-io]\nreplace-with = "local"\n\n'
        f'[source.local]\ndirectory = "{REGISTRY}"\n\n[net]\noffline = true\n')
    path = f"{toolchain()}:/usr/local/bin:/usr/bin:/bin"
    return {
        "PATH": path, "LC_ALL": "C", "CARGO_HOME": str(folder), "CARGO_TERM_COLOR": "never",
        "CARGO_TARGET_DIR": str(BUILT), "CARGO_PROFILE_DEV_DEBUG": "0",
        "RUST_TEST_THREADS": "2",
    }


def package(crates: list[dict], verify: bool) -> None:
    """Makes the packages, and checks what is in them."""
    for one in crates:
        if missing := [field for field in WANTED if not one[field]]:
            raise Failed(f"{one['name']}: its Cargo.toml has no {', '.join(missing)}")
    chosen = [word for one in crates for word in ("--package", one["name"])]
    how = [] if verify else ["--no-verify", "--exclude-lockfile"]
    command = [CARGO, "package", "--allow-dirty", "--target-dir", PLACE, *how, *chosen]
    # Packages that are not verified need no index; the others try without network first.
    try:
        text = run([*command, "--offline"], ROOT, {**os.environ, "CARGO_TERM_COLOR": "never"})
    except Failed:
        if not verify:
            raise
        text = run(command, ROOT, {**os.environ, "CARGO_TERM_COLOR": "never"})
    warnings = [line for line in text.splitlines()
                if line.startswith("warning") and not EXPECTED.match(line)]
    if warnings:
        raise Failed("`cargo package` warns:\n" + "\n".join(warnings))
    for one in crates:
        with tarfile.open(crate_file(one)) as archive:
            names = {name.partition("/")[2] for name in archive.getnames()}
        if missing := {"LICENSE-APACHE", "LICENSE-MIT", "README.md"} - names:
            raise Failed(f"{one['name']}: the package lacks {', '.join(sorted(missing))}")


def crate_file(one: dict) -> Path:
    return PLACE / "package" / f"{one['name']}-{one['version']}.crate"


def unpack(file: Path) -> None:
    """Puts one package into the local registry."""
    folder = REGISTRY / file.name.removesuffix(".crate")
    checksum = json.dumps({"files": {}, "package": hashlib.sha256(file.read_bytes()).hexdigest()})
    mark = folder / ".cargo-checksum.json"
    if mark.exists() and mark.read_text() == checksum:
        return
    shutil.rmtree(folder, ignore_errors=True)
    with tarfile.open(file) as archive:
        safe = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        archive.extractall(REGISTRY, **safe)
    mark.write_text(checksum)


def third_party(crates: list[dict]) -> list[Path]:
    """The packages in Cargo.lock that ours depend on, as files in cargo's cache."""
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]
    known: dict[str, list[dict]] = {}
    for one in lock:
        known.setdefault(one["name"], []).append(one)
    todo, seen = [(one["name"], one["version"]) for one in crates], set()
    while todo:
        name, version = todo.pop()
        if (name, version) in seen:
            continue
        seen.add((name, version))
        entry = next(one for one in known[name] if one["version"] == version)
        for need in entry.get("dependencies", []):
            words = need.split()
            todo.append((words[0], words[1] if len(words) > 1 else known[words[0]][0]["version"]))
    wanted = [f"{name}-{version}.crate" for name, version in sorted(seen)
              if any("source" in one for one in known[name] if one["version"] == version)]
    home = Path(os.environ.get("CARGO_HOME") or Path.home() / ".cargo")

    def cached() -> dict[str, Path]:
        return {file.name: file for file in home.glob("registry/cache/*/*.crate")}

    if any(name not in cached() for name in wanted):
        run([CARGO, "fetch", "--locked"], ROOT, {**os.environ})
    files = cached()
    if missing := [name for name in wanted if name not in files]:
        raise Failed(f"cargo's cache in {home} lacks {', '.join(missing)}")
    return [files[name] for name in wanted]


def fill(crates: list[dict]) -> None:
    """Makes the local registry."""
    REGISTRY.mkdir(parents=True, exist_ok=True)
    files = third_party(crates) + [crate_file(one) for one in crates]
    for file in files:
        unpack(file)
    wanted = {file.name.removesuffix(".crate") for file in files}
    for folder in REGISTRY.iterdir():
        if folder.name not in wanted:
            shutil.rmtree(folder)
    # Cargo takes a package of a version that it has built already for unchanged.
    for profile in BUILT.glob("*/.fingerprint"):
        # Cargo's own lock: a program of the documents may be built just now.
        with open(profile.parent / ".cargo-lock", "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for kept in profile.iterdir():
                if kept.name.startswith(("upcall", "packaged")):
                    shutil.rmtree(kept)


def program(dependency: str, source: str = PROGRAM) -> None:
    """Writes the user's program."""
    shutil.rmtree(HELLO, ignore_errors=True)
    (HELLO / "src").mkdir(parents=True)
    manifest = ('[package]\nname = "packaged"\nversion = "0.1.0"\nedition = "2024"\n\n'
                f"[dependencies]\n{dependency}\n\n[workspace]\n")
    (HELLO / "Cargo.toml").write_text(manifest)
    (HELLO / "src/main.rs").write_text(source)


def hello(_crates: list[dict]) -> None:
    program('upcall = "0.2"')
    run(["cargo", "build"], HELLO, user())
    left = Path(f"/tmp/upcall-{os.getuid()}")
    there = left.exists()
    bare = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"}
    said = run([BUILT / "debug/packaged"], HELLO, bare)
    if not there:
        # Another process may have started a server there.
        with contextlib.suppress(OSError):
            left.rmdir()
    if said != "Hello, world!\n":
        raise Failed(f"the program printed {said!r}")


def old_rust(_crates: list[dict]) -> None:
    """A compiler that says that it is an old one."""
    program('upcall = "0.2"')
    compiler = PLACE / "old-rustc"
    real = toolchain() / "rustc"
    version = subprocess.run([real, "-vV"], capture_output=True, text=True, check=True).stdout
    release = re.search(r"release: (\S+)", version)[1]
    said = PLACE / "old-version"
    said.write_text(version.replace(release, "1.80.0"))
    compiler.write_text(f'#!/bin/sh\n[ "$*" = -vV ] && exec cat {said}\nexec {real} "$@"\n')
    compiler.chmod(0o755)
    env = {**user(), "RUSTC": str(compiler), "CARGO_TARGET_DIR": str(PLACE / "old-target")}
    text = run(["cargo", "check"], HELLO, env, fails=True)
    workspace = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]
    wanted = workspace["package"]["rust-version"]
    if not re.search(rf"upcall@\S+ requires rustc {re.escape(wanted)}", text):
        raise Failed(f"cargo does not say that Rust {wanted} is needed:\n{text}")


def build_scripts() -> dict[str, Path]:
    """The compiled build scripts that compile C, by crate."""
    found = {}
    for name in ["upcall-ulp", "upcall-pvm"]:
        scripts = list((TARGET / "debug/build").glob(f"{name}-*/build-script-build"))
        if not scripts:
            run([CARGO, "check", "--quiet", "--package", name], ROOT, {**os.environ})
            scripts = list((TARGET / "debug/build").glob(f"{name}-*/build-script-build"))
        found[name] = max(scripts, key=lambda path: path.stat().st_mtime)
    return found


def no_gcc(_crates: list[dict]) -> None:
    out = PLACE / "out"
    out.mkdir(parents=True, exist_ok=True)
    machine = "x86_64-unknown-linux-gnu"
    env = {
        "PATH": str(PLACE / "nothing"), "OUT_DIR": str(out), "DEP_UPVM_INCLUDE": str(out),
        "TARGET": machine, "HOST": machine, "OPT_LEVEL": "0", "DEBUG": "false",
    }
    for name, script in build_scripts().items():
        folder = ROOT / "crates" / name.removeprefix("upcall-")
        text = run([script], folder, env)
        errors = re.findall(r"^cargo::error=(.*)$", text, flags=re.M)
        if len(errors) != 1 or "apt install gcc" not in errors[0]:
            raise Failed(f"the build script of {name} does not say how to install gcc:\n{text}")


def verify(crates: list[dict]) -> None:
    package(crates, verify=True)


def lock_file(_crates: list[dict]) -> None:
    """The program of a user who keeps the lock file of the first build."""
    program('upcall = { version = "0.2", features = ["home", "message"] }')
    run(["cargo", "generate-lockfile"], HELLO, user())
    run(["cargo", "check", "--locked"], HELLO, user())


def install(crates: list[dict]) -> None:
    root = PLACE / "installed"
    run(["cargo", "install", "--debug", "--root", root, "upcall-cli"], PLACE, user())
    version = next(one["version"] for one in crates if one["name"] == "upcall-cli")
    said = run([root / "bin/upcall", "--version"], PLACE, {"PATH": "/usr/bin:/bin"})
    if version not in said:
        raise Failed(f"`upcall --version` printed {said!r}")


def features(crates: list[dict]) -> None:
    known = next(one["features"] for one in crates if one["name"] == "upcall")
    for chosen in [[], *([name] for name in sorted(known)), sorted(known)]:
        listed = ", ".join(f'"{name}"' for name in chosen)
        program(f'upcall = {{ version = "0.2", default-features = false, features = [{listed}] }}',
                "fn main() {\n    println!(\"{}\", upcall::directory::HELD.len());\n}\n")
        run(["cargo", "check"], HELLO, {**user(), "RUSTFLAGS": "-Dwarnings"})


def tests(crates: list[dict]) -> None:
    for one in crates:
        folder = REGISTRY / f"{one['name']}-{one['version']}"
        kinds = {kind for target in one["targets"] for kind in target["kind"]}
        which = "--bins" if "lib" not in kinds and "proc-macro" not in kinds else "--lib"
        copy = PLACE / "unpacked" / one["name"]
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(folder, copy, ignore=shutil.ignore_patterns(".cargo-checksum.json"))
        # Outside the repository's workspace, which the folder of build outputs can lie in.
        (copy / "Cargo.toml").write_text((copy / "Cargo.toml").read_text() + "\n[workspace]\n")
        run(["cargo", "test", which], copy, user())


QUICK = {"hello": hello, "old Rust": old_rust, "no gcc": no_gcc}
FULL = {
    "verify": verify, "lock file": lock_file, "install": install, "features": features,
    "tests": tests,
}


def main() -> int:
    shape = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shape)
    parser.add_argument("--full", action="store_true", help="all checks, which take some minutes")
    parser.add_argument("--list", action="store_true", help="print the published crates")
    options = parser.parse_args()
    crates = published()
    if options.list:
        print("\n".join(one["name"] for one in crates))
        return 0

    def packages(crates: list[dict]) -> None:
        package(crates, verify=False)
        fill(crates)

    failed = 0
    checks = {"packages": packages, **QUICK, **(FULL if options.full else {})}
    for title, check in checks.items():
        start = time.monotonic()
        try:
            check(crates)
        except (Failed, subprocess.TimeoutExpired) as error:
            failed += 1
            print(f"FAILED {title}: {error}", flush=True)
            if title == "packages":
                break
        else:
            print(f"ok     {title:<10} {time.monotonic() - start:6.1f} s", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
