#!/usr/bin/env python3
"""Compares the time of calls with that of an earlier commit.

usage: bench/against/against.py [--rounds N] [--milliseconds N] [--then-lto HOW] [--json FILE]
                                COMMIT
       make against BASE=COMMIT

The same small server and client (src/main.rs here) are built twice, with the library of the
working tree and with that of COMMIT. Both take turns, in an order that changes each round, and
each turn has processes of its own: the address of a process's memory changes the time of long
calls. COMMIT `HEAD` with nothing changed shows the noise. Builds are in target/against. Needs two
processors.

The cases are a Null call, and 200 bytes, 4 KiB, 64 KiB and 1 MiB in, with both sides polling or
parked. The client rewrites its bytes for each call, and the server reads all of them. A turn's
figure is the median of its calls. The ratio is the median over all rounds of now / then in one
round. `--then-lto off HEAD` shows what link-time optimisation brings.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target").resolve() / "against"

MANIFEST = """\
[package]
name = "against"
version = "1.0.0"
edition = "2024"

[workspace]

[dependencies]
upcall = {{ path = "{crates}/upcall" }}
rustix = {{ version = "1.1", features = ["thread"] }}

[build-dependencies]
upcall-idl = {{ path = "{crates}/idl" }}

[profile.release]
codegen-units = 1
lto = "thin"
"""

# Maximum time of a turn, in seconds. Calls take microseconds, so a longer turn hangs.
HANGS = 60


def tree_of(commit: str) -> Path:
    """Returns a directory with the files of `commit`."""
    sha = subprocess.run(
        ["git", "rev-parse", "--verify", commit + "^{commit}"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    tree = TARGET / sha / "tree"
    if not (tree / "Cargo.toml").exists():
        tree.mkdir(parents=True, exist_ok=True)
        archive = subprocess.run(
            ["git", "archive", sha], cwd=ROOT, check=True, capture_output=True
        ).stdout
        subprocess.run(["tar", "-x", "-C", tree], input=archive, check=True)
    return tree


def build(name: str, tree: Path, lto: str = "thin") -> Path:
    """Builds the program with the library in `tree`, optimised at link time as `lto` says."""
    package = TARGET / name / "package"
    package.mkdir(parents=True, exist_ok=True)
    # Before 128caec the crates were in the root.
    crates = tree / "crates" if (tree / "crates").exists() else tree
    (package / "Cargo.toml").write_text(MANIFEST.format(crates=crates))
    (package / "Cargo.lock").write_bytes((tree / "Cargo.lock").read_bytes())
    for part in ["build.rs", "src", "wit"]:
        if not (package / part).exists():
            (package / part).symlink_to(HERE / part)
    print(f"building {name} …", file=sys.stderr, flush=True)
    built = TARGET / name / "built"
    subprocess.run(
        ["cargo", "build", "--quiet", "--release", "--target-dir", built],
        cwd=package,
        check=True,
        env={**os.environ, "CARGO_PROFILE_RELEASE_LTO": lto},
    )
    return built / "release/against"


def turn(program: Path, mode: str, milliseconds: int) -> dict[str, float]:
    """Runs a server and a client. Returns the time of each case in nanoseconds."""
    name = f"against-{os.getpid()}"
    served = [program, "server", name, mode, "1"]
    with subprocess.Popen(
        served, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin and server.stdout
        server.stdout.readline()
        command = [program, "client", name, mode, "0", str(milliseconds)]
        ran = subprocess.run(command, check=True, capture_output=True, text=True, timeout=HANGS)
        server.stdin.close()
    return {case: float(took) for case, took in (line.split() for line in ran.stdout.splitlines())}


def main() -> int:
    """Returns the exit status."""
    about, _, how = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(description=about, epilog=how.partition("\n\n")[2])
    parser.add_argument("commit", help="the commit to compare with")
    parser.add_argument("--rounds", type=int, default=40, help="rounds (40)")
    parser.add_argument(
        "--milliseconds", type=int, default=250, help="time of each case in a turn (250)"
    )
    parser.add_argument(
        "--then-lto",
        choices=["off", "thin", "fat"],
        default="thin",
        help="link-time optimisation of the build of COMMIT (thin)",
    )
    parser.add_argument(
        "--json", metavar="FILE", help="writes the figures as JSON; - is standard output"
    )
    options = parser.parse_args()
    then = "then" if options.then_lto == "thin" else f"then-{options.then_lto}"
    programs = {
        "then": build(then, tree_of(options.commit), options.then_lto),
        "now": build("now", ROOT),
    }
    found: dict[tuple[str, str], dict[str, list[float]]] = {}
    for number in range(options.rounds):
        for mode in ["polled", "parked"]:
            for which in ["then", "now"] if number % 2 else ["now", "then"]:
                for case, took in turn(programs[which], mode, options.milliseconds).items():
                    found.setdefault((case, mode), {}).setdefault(which, []).append(took)
        if sys.stderr.isatty():
            print(f"\rround {number + 1} of {options.rounds}", end="", file=sys.stderr, flush=True)
    records = []
    for (case, mode), by in found.items():
        ratios = [now / then for now, then in zip(by["now"], by["then"], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
        then, now = statistics.median(by["then"]), statistics.median(by["now"])
        records.append(
            {"suite": "against", "case": case, "mode": mode, "then_ns": then, "now_ns": now}
            | {"ratio": middle, "quartiles": [low, high], "rounds": len(ratios)}
        )
    out = sys.stdout if options.json != "-" else sys.stderr
    if sys.stderr.isatty():
        print(file=sys.stderr)
    print(
        f"{'case':<12}{'mode':<10}{'then, ns':>12}{'now, ns':>12}{'ratio':>9}   quartiles", file=out
    )
    for one in records:
        low, high = one["quartiles"]
        figures = (
            f"{one['then_ns']:>12.1f}{one['now_ns']:>12.1f}{one['ratio']:>9.3f}"
            f"   {low:.3f} to {high:.3f}"
        )
        print(f"{one['case']:<12}{one['mode']:<10}{figures}", file=out)
    if options.json:
        text = json.dumps(records, indent=1) + "\n"
        if options.json == "-":
            sys.stdout.write(text)
        else:
            Path(options.json).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
