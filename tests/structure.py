#!/usr/bin/env python3
"""Checks the structure of the crates.

It checks import cycles, the names of types, and the files on the path of a call and of a message.
It also checks that atomics are taken from one module, and that the lowest Rust compiles the code.

usage: tests/structure.py [--why] [--names] [CRATE…]

A module imports another one if its code names that module by a path that starts with `crate::`,
`super::` or `self::`, or by the name of a child module. Re-exports are followed to the module that
defines the item. Tests within a module (`#[cfg(test)]`) and `mod child;` do not count.

A cycle is a set of modules each of which reaches every other one through imports. MOST is the size
of the largest cycle that a crate may have. ALLOWED lists the crates with a larger one, with its
current size, which may only shrink.

A type (struct, enum, union, trait or alias) has a name of its own among all crates and bindings.
tests/structure.names lists the names that are defined more than once, each with its current number
of definitions, which may only shrink. `--names` prints the contents that the file should have now.

CALL and MESSAGE list the files that carry a null call and a short message (ARCHITECTURE.md, "A
call's life"). Each has at most LINES lines, including its tests, and the page names it.

Crates above `os` take atomics from `upcall_os::atomic` only, so that a model checker can replace
them. DIRECT lists the files that name `std::sync::atomic`, each with the reason. clippy's
disallowed types cannot check that, because a re-export is the same type to clippy.

A task's id is a name, and only `places.rs` of crate `pvm` knows from its bits where the name was
given. BITS lists what would derive a place elsewhere: in the C code that tasks run, and in Rust.

A target with `test = false` or `doctest = false` in its Cargo.toml has no unit tests, or examples
in documentation comments: cargo would leave them out without a word.

A guard of a `match` has no `let`: that is newer than the `rust-version` of Cargo.toml, and clippy
does not report it. `make msrv` compiles with that version, and finds what this check does not.
"""

import argparse
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NAMES = ROOT / "tests/structure.names"
MOST = 4
DOORED = ["directory", "home", "message", "net", "pvm", "rpc", "sched", "shm"]
DIRECT = {
    "crates/sched/src/mask.rs": "a thread's words, between whose accesses the model interrupts",
    "crates/sched/src/sleep.rs": "a compiler fence, which loom does not have",
    "crates/shm/src/direct/tests.rs": "a test",
    "crates/shm/src/slot.rs": "private memory that the compiler must write word by word",
    "crates/shm/src/span.rs": "a peer's memory, which loom does not model",
}
ALLOWED: dict[str, int] = {}
LINES = 350
CALL = [
    "crates/rpc/src/call.rs",
    "crates/sched/src/calls/kernel.rs",
    "crates/sched/src/calls/kernel_lane.rs",
    "crates/shm/src/single.rs",
    "crates/shm/src/slot.rs",
    "crates/sched/src/server/lane.rs",
    "crates/rpc/src/server.rs",
]
MESSAGE = [
    "crates/message/src/sending.rs",
    "crates/shm/src/direct/outgoing.rs",
    "crates/message/src/link.rs",
    "crates/sched/src/ringer.rs",
    "crates/message/src/receiving.rs",
    "crates/message/src/proto/receiving.rs",
    "crates/shm/src/direct/incoming.rs",
    "crates/message/src/kinds.rs",
]


def strip(text: str) -> str:
    """Returns the code without comments, strings, and items behind `#[cfg(test)]`."""
    text = re.sub(
        r"""//[^\n]*|/\*.*?\*/|(?<!\w)[bc]?r(#*)".*?"\1"""
        r"""|(?<!\w)[bc]?"(?:\\.|[^"\\])*"|b?'(?:\\[^u]|\\u\{\w+\}|[^'\\])'""",
        "",
        text,
        flags=re.S,
    )
    out, at = [], 0
    for found in re.finditer(r"#\[cfg\((?:all\()?test\b[^\n]*\]\s*", text):
        if found.start() < at:
            continue
        out.append(text[at : found.start()])
        end = re.compile(r"[{;]").search(text, found.end())
        if end is None:
            break
        at = end.end()
        depth = 1 if end.group() == "{" else 0
        while depth and at < len(text):
            depth += {"{": 1, "}": -1}.get(text[at], 0)
            at += 1
    out.append(text[at:])
    return "".join(out)


def leaves(tree: str) -> list[list[str]]:
    """Returns the paths of a use tree: `a::{b, c::{d, self}}` has a::b, a::c::d and a::c."""
    tree = tree.strip()
    opening = tree.find("{")
    if opening < 0:
        path = re.sub(r"\s+as\s+\w+$", "", tree)
        return [[part.strip() for part in path.split("::")]] if path else []
    head = [part.strip() for part in tree[:opening].strip().rstrip(":").split("::") if part.strip()]
    parts, depth, begin = [], 0, opening + 1
    for at in range(opening, len(tree)):
        depth += {"{": 1, "}": -1}.get(tree[at], 0)
        if (tree[at] == "," and depth == 1) or (tree[at] == "}" and depth == 0):
            parts.append(tree[begin:at])
            begin = at + 1
    found = [head + leaf for part in parts for leaf in leaves(part)]
    return [leaf[:-1] if leaf[-1] == "self" else leaf for leaf in found]


class Crate:
    def __init__(self, folder: Path):
        self.name = folder.relative_to(ROOT).as_posix().removeprefix("crates/")
        source = folder / "src"
        self.code: dict[str, str] = {}
        for path in sorted(source.rglob("*.rs")):
            parts = list(path.relative_to(source).with_suffix("").parts)
            if parts[0] == "bin" or parts[-1] == "tests" or path.name == "build.rs":
                continue
            if parts[-1] in ("mod", "lib", "main"):
                parts.pop()
            self.code["::".join(parts)] = strip(path.read_text())
        # Modules within a file count as part of the file's module.
        self.exports = {name: self.reexported(name) for name in self.code}

    def absolute(self, module: str, path: list[str]) -> list[str] | None:
        """Returns a path from the crate's root, or None if it leads to another crate."""
        base = module.split("::") if module else []
        if path[0] == "crate":
            return path[1:]
        if path[0] == "self":
            return base + path[1:]
        if path[0] == "super":
            while path and path[0] == "super":
                base, path = base[:-1], path[1:]
            return base + path
        if "::".join([*base, path[0]]) in self.code:
            return base + path
        return None

    def reexported(self, module: str) -> dict[str, list[str]]:
        """Returns the names that a module re-exports with `pub use`, each with its path."""
        found = {}
        for tree in re.findall(r"\bpub(?:\([^)]*\))?\s+use\s+([^;]+);", self.code[module]):
            for leaf in leaves(tree):
                path = self.absolute(module, leaf)
                if path is not None:
                    found[leaf[-1]] = path
        return found

    def home(self, path: list[str]) -> str | None:
        """Returns the module that defines the item at a path."""
        for _ in range(8):
            for length in range(len(path), -1, -1):
                module = "::".join(path[:length])
                if module not in self.code:
                    continue
                onward = self.exports[module].get(path[length]) if length < len(path) else None
                if onward is None or onward == path:
                    return module
                path = onward + path[length + 1 :]
                break
        return None

    def imports(self) -> dict[str, dict[str, str]]:
        """Returns the modules that each module imports, each with one of the paths."""
        graph: dict[str, dict[str, str]] = {}
        for module, code in self.code.items():
            paths = []
            for public, tree in re.findall(r"\b(pub(?:\([^)]*\))?\s+)?use\s+([^;]+);", code):
                # A module does not need what it only re-exports.
                if not public:
                    paths += leaves(tree)
            rest = re.sub(r"\buse\s+[^;]+;", "", code)
            for text in re.findall(r"(?<![\w:])(?:crate|super|self)(?:::\w+)+", rest):
                paths.append(text.split("::"))
            base = module.split("::") if module else []
            for text in re.findall(r"(?<![\w:.])[a-z_]\w*(?:::\w+)+", rest):
                first = text.split("::")[0]
                if "::".join([*base, first]) in self.code:
                    paths.append(text.split("::"))
            graph[module] = {}
            for path in paths:
                whole = self.absolute(module, path)
                home = None if whole is None else self.home(whole)
                if home is not None and home != module:
                    graph[module].setdefault(home, "::".join(path))
        return graph


def circles(graph: dict[str, dict[str, str]]) -> list[list[str]]:
    """Returns the strongly connected parts of more than one module, the largest first."""

    def reach(start: str) -> set[str]:
        seen, todo = set(), [start]
        while todo:
            for one in graph[todo.pop()]:
                if one not in seen:
                    seen.add(one)
                    todo.append(one)
        return seen

    reached = {module: reach(module) for module in graph}
    found, known = [], set()
    for module in graph:
        if module not in known and module in reached[module]:
            part = sorted(one for one in reached[module] if module in reached[one])
            known.update(part)
            if len(part) > 1:
                found.append(part)
    return sorted(found, key=len, reverse=True)


def past_the_door() -> int:
    """Prints the files whose use of `std::sync::atomic` differs from DIRECT."""
    named = set()
    for crate in DOORED:
        for path in sorted((ROOT / "crates" / crate / "src").rglob("*.rs")):
            code = re.sub(r"//[^\n]*", "", path.read_text())
            if "std::sync::atomic" in code:
                named.add(path.relative_to(ROOT).as_posix())
    for name in sorted(named - DIRECT.keys()):
        print(f"{name}: names std::sync::atomic; take it from upcall_os::atomic")
    for name in sorted(DIRECT.keys() - named):
        print(f"{name}: does not name std::sync::atomic; remove it from DIRECT")
    return len(named ^ DIRECT.keys())


BITS = {
    ("crates/pvm/image", "crates/pvm/shared"): r">>\s*18\b|<<\s*18\b|0x3ffff|\^\s*to\b|\bto\s*\^",
    ("crates/pvm/src",): r"\bbirth\(|>>\s*(?:18|LOCAL)\b",
}
# `tid.rs` defines the bits.
KNOWS = ("crates/pvm/src/places.rs", "crates/pvm/src/tid.rs")


def places_of_names() -> int:
    """Prints the lines that derive a place from a task's id."""
    wrong = 0
    for folders, bits in BITS.items():
        for path in sorted(path for folder in folders for path in (ROOT / folder).rglob("*.*")):
            name = path.relative_to(ROOT).as_posix()
            code = re.sub(r"//[^\n]*", "", path.read_text())
            for comment in re.findall(r"/\*.*?\*/", code, re.S):
                code = code.replace(comment, "\n" * comment.count("\n"))
            for found in re.finditer(bits, code, re.I) if name not in KNOWS else ():
                line = code.count("\n", 0, found.start()) + 1
                print(f"{name}:{line}: `{found[0]}` takes a place from a task's id: ask places.rs")
                wrong += 1
    return wrong


# A guard with a `let`, up to its arrow. It has no block, other than the fields of a pattern.
GUARD = re.compile(r"\bif\b(?=[^;{}]*\blet\b)(?:[^;{}]|\{[^{};]*\}(?=\s*=[^>]))*?=>")


def guards_too_new() -> int:
    """Prints the guards with `let` in the crates and the bindings."""
    wrong = 0
    for folder in ("crates", "bindings", "bench", "examples", "tests"):
        for path in sorted((ROOT / folder).rglob("*.rs")):
            if "target" in path.parts[len(ROOT.parts) :]:
                continue
            code = re.sub(r"//[^\n]*", "", path.read_text())
            for guard in GUARD.finditer(code):
                line = code.count("\n", 0, guard.start()) + 1
                name = path.relative_to(ROOT).as_posix()
                print(f"{name}:{line}: a guard of `match` with `let` needs Rust 1.95 or newer")
                wrong += 1
    return wrong


# What makes a unit test, and what begins an example in a documentation comment that is compiled.
UNIT_TEST = re.compile(r"#\[(?:\w+::)*test\b|\bproptest!|#\[cfg\((?:all\()?test\b")
FENCE = re.compile(r"^\s*//[/!]\s*```([\w,]*)", re.M)
NOT_COMPILED = {"text", "toml", "ignore", "c", "console", "sh", "python", "wit"}


def tests_left_out() -> int:
    """Prints the files whose tests a `test = false` or `doctest = false` leaves out."""
    wrong = 0
    for manifest in sorted(ROOT.glob("**/Cargo.toml")):
        source = manifest.parent / "src"
        if "target" in manifest.parts[len(ROOT.parts) :] or not source.is_dir():
            continue
        read = tomllib.loads(manifest.read_text())
        targets = [(read["lib"], None)] if "lib" in read else []
        for target in read.get("bin", []):
            targets.append((target, source / "bin" / target["name"]))
        for target, own in targets:
            files = [path for path in sorted(source.rglob("*.rs"))]
            if own:
                files = [path for path in files if own in (path.with_suffix(""), *path.parents)]
            else:
                files = [path for path in files if source / "bin" not in path.parents]
            for path in files if target.get("test") is False else []:
                if UNIT_TEST.search(path.read_text()):
                    name = path.relative_to(ROOT).as_posix()
                    print(f"{name}: has unit tests, and Cargo.toml says `test = false`")
                    wrong += 1
            for path in files if target.get("doctest") is False else []:
                # Every second fence ends a block.
                blocks = FENCE.findall(path.read_text())[::2]
                if any(not NOT_COMPILED & set(words.split(",")) for words in blocks):
                    name = path.relative_to(ROOT).as_posix()
                    print(f"{name}: has examples, and Cargo.toml says `doctest = false`")
                    wrong += 1
    return wrong


def paths_too_long() -> int:
    """Prints the files of CALL and MESSAGE that are too long or not on the architecture page."""
    page, wrong = (ROOT / "ARCHITECTURE.md").read_text(), 0
    for name in CALL + MESSAGE:
        lines = len((ROOT / name).read_text().splitlines())
        if lines > LINES:
            print(
                f"{name}: {lines} lines; {LINES} are allowed for a file on the path of a call "
                "or message"
            )
        if f"`{name}`" not in page:
            print(f"{name}: ARCHITECTURE.md does not name it on a call's or message's path")
        wrong += (lines > LINES) + (f"`{name}`" not in page)
    return wrong


def type_names(crates: list[Crate]) -> dict[str, list[str]]:
    """Returns each name of a type with the modules that define it."""
    kinds = r"^(?:pub(?:\([^)]*\))?\s+)?(?:unsafe\s+)?(?:struct|enum|union|trait|type)\s+([A-Z]\w*)"
    found: dict[str, list[str]] = {}
    for crate in crates:
        for module, code in crate.code.items():
            if not module.endswith("_tests"):
                for name in re.findall(kinds, code, re.M):
                    found.setdefault(name, []).append(f"{crate.name}::{module}".rstrip(":"))
    return found


def names_twice(crates: list[Crate], show: bool) -> int:
    """Prints the names that are defined more or less often than NAMES says."""
    found = {name: modules for name, modules in type_names(crates).items() if len(modules) > 1}
    if show:
        for name, modules in sorted(found.items()):
            print(name, len(modules))
        return 0
    allowed = {name: int(count) for name, count in map(str.split, NAMES.read_text().splitlines())}
    wrong = 0
    for name in sorted(found.keys() | allowed.keys()):
        modules, most = found.get(name, []), allowed.get(name, 1)
        if len(modules) > most:
            print(
                f"{name}: {len(modules)} types have this name, {most} may; rename one of "
                + ", ".join(modules)
            )
        elif most > 1 and len(modules) < most:
            print(
                f"{name}: {max(len(modules), 1)} types have this name; {NAMES.name} says {most}: "
                "lower it"
            )
        wrong += len(modules) > most or most > 1 and len(modules) < most
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "crates", nargs="*", metavar="CRATE", help="check only these, e.g. `rpc` or `bindings/c`"
    )
    parser.add_argument(
        "--names",
        action="store_true",
        help="print the contents that tests/structure.names should have now",
    )
    parser.add_argument("--why", action="store_true", help="print the imports within each cycle")
    options = parser.parse_args()
    folders = [
        path.parent
        for path in sorted(ROOT.glob("**/Cargo.toml"))
        if "target" not in path.parts and (path.parent / "src").is_dir()
    ]
    crates = {crate.name: crate for crate in map(Crate, folders)}
    if unknown := [name for name in options.crates if name not in crates]:
        parser.error(f"no crate {unknown[0]!r}; there are {', '.join(crates)}")
    own = [
        crate
        for crate, folder in zip(crates.values(), folders)
        if folder.relative_to(ROOT).parts[0] in ("crates", "bindings")
    ]
    if options.names:
        return names_twice(own, show=True)
    wrong = (
        0
        if options.crates
        else past_the_door()
        + guards_too_new()
        + places_of_names()
        + names_twice(own, show=False)
        + paths_too_long()
        + tests_left_out()
    )
    for crate in [crates[name] for name in options.crates or crates]:
        graph = crate.imports()
        found = circles(graph)
        most = ALLOWED.get(crate.name, MOST)
        largest = len(found[0]) if found else 0
        verdict = "as allowed"
        if largest > most:
            verdict = f"{most} are allowed"
        elif crate.name in ALLOWED and largest < most:
            verdict = f"ALLOWED says {most}: " + (
                "lower it" if largest > MOST else "remove the crate from it"
            )
        wrong += verdict != "as allowed"
        if verdict == "as allowed" and not options.crates:
            continue
        print(f"{crate.name}: the largest cycle has {largest} of {len(graph)} modules; {verdict}")
        for part in found if options.why or options.crates else found[:1]:
            print("  " + " ".join(one or "(root)" for one in part))
            for module in part if options.why else []:
                for other, path in sorted(graph[module].items()):
                    if other in part:
                        print(f"    {module or '(root)'} → {other or '(root)'}   by {path}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
