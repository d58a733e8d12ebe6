#!/usr/bin/env python3
"""Checks the prose of comments and documents, and the width of lines.

usage: tests/prose.py [--show N] [PATH...]

CONTRIBUTING.md has the rules of writing. This check finds wordings that hide who does what
("whoever calls", "somebody holds it") and constants without a quantity ("So many bytes"). A wording
can be right where it stands, so each folder may have MOST lines with one of them in 1,000 lines of
prose. No line is longer than WIDTH columns, except table rows, lines with a link, and
blocks of code in documents.

It reads every tracked file below PATH (by default the whole repository), except snapshots,
generated code, lock files and the changelog. `--show` prints the N first findings of each folder
(default 5).
"""

import argparse
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Maximum number of lines with a finding in 1,000 lines of prose of a folder.
MOST = 3

# Folders with fewer lines of prose than this count as if they had this many.
FEW = 400

# Maximum number of columns of a line.
WIDTH = 100

# Each wording with what to write instead.
WORDINGS = {
    r"(?:^|[,;:.(—-] |\b(?:and|to|of|by|for|that) )[Ww]ho (?!(?:is|was|are|were)\b)[a-z]": (
        "name the role"
    ),
    r"\b[Ww](?:hoever|hatever|herever)\b": "name the role or the thing",
    r"\b(?:[Nn]obody|[Ss]omebody)\b": "name the role: no process, another thread",
    r"(?:^|[.;:] )So (?:long|often|many|much|far|soon)\b": "state the quantity and the unit",
    r"\b(?:is|are|was|were|be) told\b|\btells? of\b": "notify, report, or the thing that is sent",
    r"\b(?:[Mm]eanwhile|anew|[Ll]est)\b": "at the same time, again, so that … not",
    r"\b[Oo]nes? that\b": "repeat the noun",
    r"\b(?:has|have) come\b": "has arrived",
    r"\bHas (?:the|a|this|its|something)\b": "makes the … do",
    r"\bheed(?:s|ed)?\b|\bhears? of\b|\battends? to\b": "the field's verb",
    r"\bfor (?:it|they|he) (?:has|have|is|are)\b": "because",
}
PATTERNS = [(re.compile(wording), advice) for wording, advice in WORDINGS.items()]

SUFFIXES = {
    *(".rs", ".c", ".h", ".cpp", ".hpp", ".S", ".py", ".sh", ".f"),
    *(".wit", ".pml", ".cmake", ".toml", ".md"),
}
# Generated files, and interfaces of other projects. A macro generates crates/upcall/tests/wit.
SKIPPED = re.compile(
    r"(^|/)(snapshots?|target|vendor|generated|testdata|packages|deps)/|_capnp\.rs$|^CHANGELOG\.md$"
    r"|^crates/upcall/tests/wit/"
)
COMMENT = re.compile(r"(?://[/!]?|#(?!\[|!|include|define|if|el|en|un|pragma)|\*|--)\s?(.*)")


def folder_of(name: str) -> str:
    parts = name.split("/")
    return "/".join(parts[: 2 if parts[0] in ("crates", "bindings") else 1])


def prose_of(name: str, line: str) -> str | None:
    """The prose on a line, or None if it has none."""
    text = line.strip()
    if name.endswith(".md"):
        return text
    if comment := COMMENT.match(text):
        return comment[1]
    trailing = re.search(r"\s//\s(.*)", text)
    return trailing[1] if trailing else None


class Folder:
    """What was found in a folder."""

    def __init__(self) -> None:
        self.lines = 0
        self.findings: list[str] = []
        self.wide: list[str] = []

    def allowed(self) -> float:
        return MOST * max(self.lines, FEW) / 1000


def read(name: str, folder: Folder) -> None:
    fenced = False
    for number, line in enumerate((ROOT / name).read_text(errors="replace").splitlines(), 1):
        is_fence = name.endswith(".md") and line.lstrip().startswith("```")
        fenced ^= is_fence
        if fenced or is_fence:
            continue
        if len(line) > WIDTH and not line.lstrip().startswith("|") and "http" not in line:
            folder.wide.append(f"{name}:{number}: {len(line)} columns, at most {WIDTH}")
        text = prose_of(name, line)
        if not text:
            continue
        folder.lines += 1
        advice = next((advice for pattern, advice in PATTERNS if pattern.search(text)), None)
        # The list of wordings above finds itself.
        if advice and name != "tests/prose.py":
            folder.findings.append(f"{name}:{number}: {text[:70]}  [{advice}]")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--show", type=int, default=5, help="findings printed for each folder")
    parser.add_argument("paths", nargs="*")
    options = parser.parse_args()
    tracked = subprocess.run(
        ["git", "ls-files", "--", *options.paths],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    folders: dict[str, Folder] = defaultdict(Folder)
    for name in tracked:
        is_read = Path(name).suffix in SUFFIXES or Path(name).name == "Makefile"
        if is_read and not SKIPPED.search(name) and (ROOT / name).is_file():
            read(name, folders[folder_of(name)])
    failed = False
    for name, folder in sorted(folders.items()):
        too_many = len(folder.findings) > folder.allowed()
        failed |= too_many or bool(folder.wide)
        if too_many:
            per = 1000 * len(folder.findings) / max(folder.lines, 1)
            print(f"{name}: {len(folder.findings)} findings, {per:.1f} in 1,000 lines of prose")
            print("\n".join(f"  {finding}" for finding in folder.findings[: options.show]))
        if folder.wide:
            print(f"{name}: {len(folder.wide)} lines are too long")
            print("\n".join(f"  {finding}" for finding in folder.wide[: options.show]))
    lines = sum(folder.lines for folder in folders.values())
    findings = sum(len(folder.findings) for folder in folders.values())
    print(f"{findings} findings in {lines} lines of prose")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
