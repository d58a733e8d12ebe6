#!/usr/bin/env python3
"""Checks the documents, and follows the tutorials, the how-to pages and README.md word by word.

usage: tests/book.py --check          links, anchors, SUMMARY.md, words that no document may have
       tests/book.py --run [PAGE...]  does what each page says, in an empty folder
       tests/book.py supports html    (mdBook calls it as a preprocessor: docs/book.toml)

**How a page is followed.** A block of code whose info string has `file=NAME` becomes that file. A
block of `console` has commands, each after `$ `, and beneath a command what it prints. Blocks are
followed in their order, in one shell. Of what is printed

- `…` stands for any text, on a line of its own for any lines; spaces count as one;
- `4711` stands for any number, as the numbers of processes differ, and in a block of
  `console,numbers` each number does;
- cargo's lines (`Compiling upcall v0.2.0`) and the shell's (`[1] 4711`) are left out.

A command that ends in `&` goes on beside the next ones. The test waits until that command has
entered a name in the folder of names, and has printed what stands beneath it. A page that begins
with `<!-- after: PAGE -->` has the files and the package of that page at its start. A page with
`<!-- needs: PROGRAM... -->` is left out, with a line that says so, where one of these is missing.

The port 7411 of a page is another one in each run, which is free.

What is installed in the usual way is here what cargo has built for the other tests (`INSTALLS`).
The clone `~/upcall` of the pages is this tree, and a package that depends on it is locked to the
versions in this tree's Cargo.lock. `upcall = "0.2"` in a Cargo.toml is this tree's crate, too.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
TARGET = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target").resolve()
CARGO = os.environ.get("CARGO", "cargo")

# Longest time that a command of a page may take, in seconds. The first one compiles the library.
PATIENCE = 180

# Three backticks that end a line which does not begin with them.
STRAY_FENCE = re.compile(r"^[ \t]*[^\s`>|](?!.*`{4}).*```[^\s`]*$", re.M)
FENCE = re.compile(r"^( {0,3})(`{3,}|~{3,})\s*([^\n`]*)\n(.*?)^\1\2[`~]*[ \t]*$", re.M | re.S)
LINK = re.compile(r"(!?\[(?:[^\[\]]|\[[^\[\]]*\])*\]\()<?([^)\s>]+)>?((?:\s+\"[^\"]*\")?\))")

# Commands that install something. The test does not run them, and checks that they exist.
INSTALLS = re.compile(r"make [a-z]\w*\b|cargo install --path")

# Commands that make a package.
PACKAGE = re.compile(r"cargo (init|add) ")

# Lines that are left out of what a command prints.
NOISE = re.compile(r"^\s+(Compiling|Finished|Running|Updating|Locking|Adding|Creating|Blocking) "
                   r"|^\s+(Features:|[+-] [\w-]+)$"
                   r"|^\[\d+\][-+]?\s|^note: see more `Cargo.toml` keys")


# --- Markdown ----------------------------------------------------------------------

def pages() -> list[Path]:
    """Every Markdown file of the tree that git knows, or would add."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in listed.split() if (ROOT / name).exists()]


def blank(match: re.Match) -> str:
    """As many spaces, line for line."""
    return re.sub(r"[^\n]", " ", match[0])


def prose(text: str) -> str:
    """The text without blocks and spans of code, line for line."""
    return re.sub(r"`[^`\n]+`", blank, FENCE.sub(blank, text))


def included(path: Path, text: str) -> tuple[Path, str]:
    """What a page consists of that only includes a file of the root, and where its links begin."""
    if found := re.fullmatch(r"\s*\{\{#include (\S+)\}\}\s*", text):
        path = (path.parent / found[1]).resolve()
        return path, path.read_text()
    return path, text


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as mdBook and others make them."""
    path, text = included(path, path.read_text())
    found: set[str] = set(re.findall(r'<a (?:id|name)="([^"]+)"', text))
    for heading in re.findall(r"^#{1,6} +(.+?)\s*#*$", FENCE.sub(blank, text), re.M):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        name = re.sub(r"[^\w\- ]", "", plain).strip().replace(" ", "-")
        count, unique = 0, name
        while unique in found:
            count += 1
            unique = f"{name}-{count}"
        found.add(unique)
    return found


def check() -> int:
    faults: list[str] = []
    summary = (DOCS / "SUMMARY.md").read_text()
    listed = {(DOCS / target).resolve() for _, target, _ in LINK.findall(summary)}
    for path in pages():
        name, text = path.relative_to(ROOT).as_posix(), path.read_text()
        if path.is_relative_to(DOCS) and path.name != "SUMMARY.md" and path not in listed:
            faults.append(f"{name}: not in docs/SUMMARY.md")
        for stray in STRAY_FENCE.finditer(FENCE.sub(blank, text)):
            line = text.count("\n", 0, stray.start()) + 1
            faults.append(f"{name}:{line}: a fence of three backticks does not begin its line")
        read = prose(text)
        line_of = lambda at: read.count("\n", 0, at) + 1
        for link in LINK.finditer(read):
            target, _, anchor = link[2].partition("#")
            if re.match(r"[a-z][a-z0-9+.-]*:", target):
                continue
            to = (path.parent / target).resolve() if target else path
            place = f"{name}:{line_of(link.start())}"
            if not to.exists():
                faults.append(f"{place}: there is no {link[2]}")
            elif anchor and to.suffix == ".md" and anchor not in anchors(to):
                faults.append(f"{place}: {target or name} has no heading #{anchor}")
        if name != "CHANGELOG.md":
            for word in re.finditer(r"\b[Ii]ssue \d+|\bshared/|\bDESIGN\b|\bHOUSE\b", read):
                faults.append(f"{name}:{line_of(word.start())}: no document speaks of `{word[0]}`")
    print("\n".join(faults) or f"{len(pages())} pages are in order")
    return 1 if faults else 0


# --- mdBook's preprocessor ------------------------------------------------------------

def preprocess() -> int:
    """Mends links that leave docs/: to pages that include their target, or to plain text."""
    _, book = json.load(sys.stdin)
    wrapped = {included(page, page.read_text())[0]: page for page in DOCS.glob("*.md")}

    def chapter(item: dict) -> None:
        page = DOCS / item["source_path"]
        base = included(page, page.read_text())[0].parent

        def mend(link: re.Match) -> str:
            target, mark, anchor = link[2].partition("#")
            if not target or re.match(r"[a-z][a-z0-9+.-]*:", target):
                return link[0]
            to = (base / target).resolve()
            to = wrapped.get(to, to)
            if to.is_relative_to(DOCS):
                return link[1] + os.path.relpath(to, page.parent) + mark + anchor + link[3]
            return f"{link[1].lstrip('!')[1:-2]}"

        parts, last = [], 0
        for block in FENCE.finditer(item["content"]):
            parts += [LINK.sub(mend, item["content"][last : block.start()]), block[0]]
            last = block.end()
        item["content"] = "".join(parts) + LINK.sub(mend, item["content"][last:])

    def walk(items: list) -> None:
        for item in items:
            if isinstance(item, dict) and "Chapter" in item:
                chapter(item["Chapter"])
                walk(item["Chapter"]["sub_items"])

    walk(book.get("items") or book.get("sections"))
    json.dump(book, sys.stdout)
    return 0


# --- Following a page -----------------------------------------------------------------

class Wrong(Exception):
    """What is not as the page says."""


def blocks(page: Path):
    """Yields ('file', name, text) and ('command', line, expected lines), in the page's order."""
    text = page.read_text()
    for block in FENCE.finditer(text):
        words = [word.strip() for word in re.split(r"[,\s]+", block[3]) if word]
        body = re.sub(rf"^{block[1]}", "", block[4], flags=re.M)
        files = [word.removeprefix("file=") for word in words if word.startswith("file=")]
        if files:
            # What mdBook and rustdoc hide is not in the file.
            yield "file", files[0], body
        elif words[:1] == ["console"] and "ignore" not in words:
            command: str | None = None
            expected: list[str] = []
            numbers = "numbers" in words
            for line in body.splitlines():
                if command is not None and command.endswith("\\"):
                    command = command[:-1] + line.strip()
                elif line.startswith("$ "):
                    if command is not None:
                        yield "command", command, expected
                    command, expected = line[2:], []
                elif command is None:
                    raise Wrong(f"a block of console begins with `{line}`, not with a command")
                else:
                    expected.append(re.sub(r"\b\d+\b", "4711", line) if numbers else line)
            if command is not None:
                yield "command", command, expected


def pattern(expected: list[str]) -> re.Pattern:
    """What printed lines must match."""
    parts = []
    for line in expected:
        if line.strip() == "…":
            parts.append(r"(?:[^\n]*\n)*?")
            continue
        line = r"[ \t]+".join(re.escape(word) for word in line.split())
        line = line.replace("…", r"[^\n]*?")
        parts.append(re.sub(r"\b4711\b", r"\\d+", line) + r"[ \t]*\n")
    return re.compile(r"\s*" + r"\s*".join(parts) + r"\s*")


def entered(names: Path) -> set[tuple[str, str]]:
    """What is exported: each name is a folder with a link to its server's socket."""
    return {(link.parent.name, link.name) for link in names.glob("[!.]*/*")}


class Shell:
    """A shell in which the commands of a page run, one after the other."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            ["bash", "--norc", "--noprofile"], cwd=folder, env=environment, text=True, bufsize=1,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            errors="replace", start_new_session=True)
        self.lines: list[str] = []
        self.more = threading.Condition()
        threading.Thread(target=self.pump, daemon=True).start()
        self.send("set -m")

    def pump(self) -> None:
        for line in self.process.stdout:
            with self.more:
                self.lines.append(re.sub(r"\x1b\[[0-9;]*m", "", line.rstrip("\n")))
                self.more.notify_all()
        with self.more:
            self.lines.append("(the shell has ended)")
            self.more.notify_all()

    def send(self, text: str) -> None:
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def printed(self) -> str:
        """What was printed since it was last cleared."""
        with self.more:
            lines = [line for line in self.lines if not NOISE.match(line)]
        return "".join(line + "\n" for line in lines if not line.startswith("(status "))

    def tail(self) -> str:
        return "".join(self.printed().splitlines(keepends=True)[-40:])

    def until(self, done, seconds: float) -> bool:
        end = time.monotonic() + seconds
        while not done():
            if (left := end - time.monotonic()) <= 0:
                return False
            with self.more:
                self.more.wait(min(left, 0.03))
        return True

    def run(self, command: str, expected: list[str], names: Path) -> None:
        wanted = pattern(expected)
        background = command.rstrip().endswith("&")
        before = entered(names)
        with self.more:
            self.lines.clear()
        self.send(f"{{ {command}\n}} </dev/null; echo \"(status $?)\"")
        ends = ("(status ", "(the shell ")
        ended = lambda: any(line.startswith(ends) for line in list(self.lines))
        if not self.until(ended, PATIENCE):
            raise Wrong(f"$ {command}\nruns for {PATIENCE} s, and has printed:\n{self.tail()}")
        if background:
            there = lambda: entered(names) - before
            ready = lambda: there() and wanted.fullmatch(self.printed())
            if not self.until(lambda: ready() or not self.running(), PATIENCE) or not ready():
                missing = "" if there() else "has entered no name, and "
                raise Wrong(f"$ {command}\n{missing}has printed:\n{self.tail()}")
            return
        status = [line for line in self.lines if line.startswith("(status ")]
        # What runs in the background may print a little later than the command that causes it.
        if not self.until(lambda: wanted.fullmatch(self.printed()), 3 if expected else 0.1):
            said = "\n".join(expected)
            raise Wrong(f"$ {command}\nprinted:\n{self.tail()}and the page says:\n{said}")
        if not expected and status != ["(status 0)"]:
            raise Wrong(f"$ {command}\nended with {status}")

    def running(self) -> dict[int, str]:
        """The processes that the page has started, with their command lines."""
        session, found = self.process.pid, {}
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                state, _, _, of, *_ = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(of) == session and int(entry.name) != session and state not in "ZX":
                    words = (entry / "cmdline").read_text().split("\0")
                    found[int(entry.name)] = " ".join(words).strip()
            except (OSError, IndexError, ValueError):
                pass
        return found

    def end(self) -> list[str]:
        """Ends all that the page has started. Returns what was still running."""
        # What the page itself has ended may take a moment.
        self.until(lambda: not self.running(), 1)
        left = self.running()
        for process in left:
            try:
                os.kill(process, 9)
            except ProcessLookupError:
                pass
        self.process.kill()
        self.process.wait()
        return list(left.values())


def where(name: str) -> Path | None:
    """Where cargo has put a program or library when it last built it."""
    found = [path / name for path in (TARGET / "debug", TARGET / "debug/deps")]
    built = [path for path in found if path.exists()]
    return max(built, key=lambda path: path.stat().st_mtime, default=None)


def install(folder: Path) -> None:
    """Puts into `folder` what `make install` and the wheel have, of what cargo has built."""
    built = TARGET / "debug"
    needed = ["upcall", "libupcall_c.so", "lib_upcall.so"]
    if missing := [name for name in needed if not where(name)]:
        words = "-p upcall-cli -p upcall-c -p upcall-python -p upcall-pvm"
        raise SystemExit(f"{built} has no {', '.join(missing)}: `{CARGO} build {words}`")
    for part in ("bin", "lib", "include", "python/upcall"):
        (folder / part).mkdir(parents=True)
    for name in ("upcall", "upvmcc", "upvmf77", "upvmf90"):
        if where(name):
            (folder / "bin" / name).symlink_to(where(name))
    for name in ("libupcall.so", "libupcall.so.0"):
        (folder / "lib" / name).symlink_to(where("libupcall_c.so"))
    for header in (ROOT / "bindings/c/include").glob("*.h"):
        (folder / "include" / header.name).symlink_to(header)
    version = re.search(r'^version = "(.*)"', (ROOT / "Cargo.toml").read_text(), re.M)[1]
    places = {"PREFIX": folder, "LIBDIR": folder / "lib", "INCLUDEDIR": folder / "include",
              "BINDIR": folder / "bin", "VERSION": version}
    for source, target in (("upcall.pc.in", "pkgconfig/upcall.pc"),
                           ("cmake/upcall-config.cmake", "cmake/upcall/upcall-config.cmake"),
                           ("cmake/upcall-config-version.cmake",
                            "cmake/upcall/upcall-config-version.cmake")):
        text = (ROOT / "bindings/c" / source).read_text()
        for word, value in places.items():
            text = text.replace(f"@{word}@", str(value))
        write(folder / "lib", target, text)
    for source in (ROOT / "bindings/python/upcall").iterdir():
        if source.is_file():
            (folder / "python/upcall" / source.name).symlink_to(source)
    (folder / "python/upcall/_upcall.abi3.so").symlink_to(where("lib_upcall.so"))


def write(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def replace(folder: Path, registry: Path) -> None:
    """Lets programs below `folder` take what they depend on from `registry`."""
    write(folder, ".cargo/config.toml",
          '[source.crates-io]\nreplace-with = "packages"\n\n'
          f'[source.packages]\ndirectory = "{registry}"\n')


def supply(folder: Path) -> None:
    """Gives programs below `folder` this tree's crate, its lock file, and a folder to build in."""
    version = re.search(r'^version = "(.*)"', (ROOT / "Cargo.toml").read_text(), re.M)[1]
    own = f'upcall = {{ path = "{ROOT / "crates/upcall"}" }}'
    for path in [*folder.glob("Cargo.toml"), *folder.glob("*/Cargo.toml")]:
        text = path.read_text()
        wanted = re.search(r'^upcall = (?:\{ version = )?"([^"]*)"', text, re.M)
        if not wanted or path.with_name("target").is_symlink():
            continue
        if re.search(r"^upcall = .*\bpath = ", text, re.M):
            pass  # by `cargo add --path`
        elif version.startswith(wanted[1] + "."):
            write(folder, ".cargo/config.toml", f"[patch.crates-io]\n{own}\n")
        else:
            path.write_text(text.replace(wanted[0], own))
        shutil.copy(ROOT / "Cargo.lock", path.with_name("Cargo.lock"))
        # Where tests/package.py builds programs, too.
        (TARGET / "users").mkdir(parents=True, exist_ok=True)
        path.with_name("target").symlink_to(TARGET / "users")


def exists(command: str) -> None:
    """Checks that a command which installs something names what is there."""
    for part in command.split("&&"):
        words = shlex.split(part, comments=True)
        if words[0] == "make":
            tried = subprocess.run(["make", "--dry-run", *words[1:]], cwd=ROOT, capture_output=True)
            if tried.returncode:
                raise Wrong(f"$ {command}\n`{part.strip()}` is no target of the Makefile")
        elif words[0] == "cargo" and not (ROOT / words[3] / "src/main.rs").exists():
            raise Wrong(f"$ {command}\nthere is no program in {words[3]}")


def follow(page: Path, installed: Path, registry: Path | None) -> None:
    """Does what a page says."""
    with tempfile.TemporaryDirectory(prefix="book-") as place:
        folder, names = Path(place, "work"), Path(place, "names")
        folder.mkdir()
        names.mkdir(mode=0o700)
        if registry:
            replace(Path(place), registry)
        environment = {
            **os.environ,
            "LC_ALL": "C.UTF-8", "UPCALL_DIR": str(names), "XDG_CACHE_HOME": f"{place}/cache",
            "PATH": f"{installed / 'bin'}:{os.environ['PATH']}",
            "PKG_CONFIG_PATH": str(installed / "lib/pkgconfig"),
            "CMAKE_PREFIX_PATH": str(installed),
            "LD_LIBRARY_PATH": str(installed / "lib"),
            "PYTHONPATH": str(installed / "python"), "PYTHONDONTWRITEBYTECODE": "1",
            "CARGO_NET_OFFLINE": "true", "CARGO_TERM_COLOR": "never",
            "CARGO_PROFILE_DEV_DEBUG": "0", "CARGO_INCREMENTAL": "0",
        }
        for name in ("CARGO_TARGET_DIR", "RUSTC_WORKSPACE_WRAPPER", "RUSTFLAGS"):
            environment.pop(name, None)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = str(free.getsockname()[1])
        shell = Shell(folder, environment)
        try:
            if found := re.match(r"<!-- after: (\S+) -->", page.read_text()):
                for kind, name, text in blocks((page.parent / found[1]).resolve()):
                    if kind == "file":
                        write(folder, name, text)
                    elif PACKAGE.match(name):
                        shell.run(name.replace("~/upcall/", f"{ROOT}/"), [], names)
            # The folder that a page's commands have gone to is that of its next files, too.
            for kind, name, text in blocks(page):
                if kind == "file":
                    write(folder, name, text.replace("7411", port))
                elif INSTALLS.match(name):
                    exists(name)
                else:
                    supply(folder)
                    expected = [line.replace("7411", port) for line in text]
                    command = name.replace("7411", port).replace("~/upcall/", f"{ROOT}/")
                    shell.run(command, expected, names)
        finally:
            left = shell.end()
        if left:
            raise Wrong("at the end of the page there still run:\n" + "\n".join(left))


def run(chosen: list[str], registry: Path | None) -> int:
    paths = [Path(name).resolve() for name in chosen]
    if not paths:
        guides = [*DOCS.glob("tutorials/*.md"), *DOCS.glob("how-to/*.md")]
        paths = [*sorted(guides), DOCS / "install.md", ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    failed = 0
    with tempfile.TemporaryDirectory(prefix="installed-") as place:
        install(Path(place))
        for page in paths:
            if not any(kind == "command" for kind, _, _ in blocks(page)):
                continue
            needs = re.search(r"^<!-- needs: (.+) -->$", page.read_text(), re.M)
            programs = needs[1].split() if needs else []
            missing = [name for name in programs if not shutil.which(name)]
            if missing:
                name = page.relative_to(ROOT)
                print(f"skipped: {name}: no {', '.join(missing)} here", flush=True)
                continue
            start = time.monotonic()
            try:
                follow(page, Path(place), registry)
                seconds = time.monotonic() - start
                print(f"ok      {page.relative_to(ROOT)}  {seconds:.1f} s", flush=True)
            except Wrong as wrong:
                failed += 1
                print(f"FAILED  {page.relative_to(ROOT)}\n{wrong}\n", flush=True)
    return 1 if failed else 0


def main() -> int:
    # A shell in the background leaves SIGINT ignored, and so would be the servers of the pages.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if sys.argv[1:2] == ["supports"]:
        return 0
    if len(sys.argv) == 1:
        return preprocess()
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--check", action="store_true", help="check the text of all pages")
    parser.add_argument("--run", action="store_true", help="follow the pages, or those given")
    parser.add_argument("--registry", type=Path, metavar="FOLDER",
                        help="packages that programs depend on, instead of those in cargo's cache")
    parser.add_argument("pages", nargs="*")
    options = parser.parse_args()
    status = 0
    if options.check:
        status |= check()
    if options.run:
        status |= run(options.pages, options.registry)
    return status


if __name__ == "__main__":
    sys.exit(main())
