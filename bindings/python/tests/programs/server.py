"""The server of the test of languages.

Arguments: the names to export `every` and `more` under. It ends when its input does, and then
reports whether all its objects were dropped exactly once.
"""

import gc
import os
import sys
import threading
import time
import typing

import upcall
from every import (
    Color,
    Deep,
    Error,
    Numbers,
    ServedFamily,
    ServedFound,
    ServedFoundMany,
    ServedFoundNone,
    ServedFoundOne,
    ServeEvery,
    ServeMore,
    ServeNode,
    Shape,
)

lock = threading.Lock()
made = dropped = 0


class Leaf(ServeNode):
    def __init__(self, name: str, color: Color) -> None:
        global made
        self._name, self._color = name, color
        with lock:
            made += 1

    def __del__(self) -> None:
        global dropped
        with lock:
            dropped += 1

    def name(self) -> str:
        return self._name

    async def color(self) -> Color:
        return self._color

    def children(self) -> list[ServeNode]:
        return [Leaf("child", Color.GREEN) for _ in range(3)]

    def adopt(self, child: ServeNode) -> int:
        assert isinstance(child, Leaf)
        return len(child.name())

    def same(self, other: ServeNode) -> bool:
        return self is other


class AsAsked(Exception):
    """An exception without a text; its name is reported, here the text of Rust's server."""


AsAsked.__name__ = "as asked"


class Both(ServeMore, ServeEvery):
    def new_node(self, name: str, color: Color) -> ServeNode:
        return Leaf(name, color)

    def node_root(self) -> ServeNode:
        raise upcall.Err(Error.NOT_FOUND)

    def null(self) -> None:
        pass

    def add(self, a: int, b: int) -> int:
        return a + b

    async def get_numbers(self, n: Numbers) -> Numbers:
        return n

    def get_deep(self, d: Deep) -> Deep:
        return d

    def get_shape(self, s: Shape) -> Shape | None:
        return s

    def bytes(self, data: upcall.Bytes) -> upcall.Data:
        return data

    def fixed(self, data: typing.Any) -> typing.Any:
        return data

    def total(self, values: list[int]) -> int:
        return sum(values)

    def bind(self, name: str) -> None:
        raise upcall.Err(name)

    def bare(self) -> None:
        raise upcall.Err(None)

    def swap(self, f: ServedFamily) -> ServedFamily:
        label = f.label * 2
        if f.child is None:
            return ServedFamily(f.parent, label, None)
        return ServedFamily(parent=f.child, label=label, child=f.parent)

    def find(self, many: int) -> ServedFound:
        if many == 0:
            return ServedFoundNone()
        if many == 1:
            return ServedFoundOne(Leaf("one", Color.RED))
        return ServedFoundMany([Leaf("many", Color.RED) for _ in range(many)])

    def names(self, all: list[ServeNode]) -> list[str]:
        return [typing.cast(Leaf, node).name() for node in all]

    def alive(self) -> int:
        return made - dropped

    def late(self, milliseconds: int) -> ServeNode:
        time.sleep(milliseconds / 1000)
        return Leaf("late", Color.BLUE)

    def fail(self) -> None:
        raise AsAsked

    def die(self) -> None:
        os._exit(0)

    def rename(self, n: ServeNode, name: str) -> ServeNode:
        return Leaf(name, typing.cast(Leaf, n)._color)


def main() -> None:
    every, more = sys.argv[1:]
    both = Both()
    exports = {every: (ServeEvery, both), more: (ServeMore, both)}
    with upcall.start(exports, processors=2):
        print("ready", flush=True)
        sys.stdin.read()
    gc.collect()
    assert made == dropped, f"{made} objects were made, and {dropped} dropped"


main()
