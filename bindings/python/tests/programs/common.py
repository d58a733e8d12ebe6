"""What the programs share."""

import os
import sys
import time
import typing

import upcall
from every import ServeEvery, ServeNode
from expect import raises


def until(what: typing.Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "what was waited for did not come"
        time.sleep(0.005)


def name(what: str) -> str:
    return f"py-{what}-{os.getpid()}"


def partial(base: typing.Any, **methods: typing.Any) -> typing.Any:
    """An object of an abstract class that has only some of its methods."""

    def missing(method: str) -> typing.Any:
        def run(self: object, *arguments: object) -> typing.Any:
            raise NotImplementedError(method)

        return run

    bound = {method: missing(method) for method in base.__abstractmethods__}
    bound.update({method: staticmethod(run) for method, run in methods.items()})
    return type("Partial", (base,), bound)()


def every(**methods: typing.Any) -> ServeEvery:
    return typing.cast(ServeEvery, partial(ServeEvery, **methods))


def node(**methods: typing.Any) -> ServeNode:
    return typing.cast(ServeNode, partial(ServeNode, **methods))


__all__ = ["every", "name", "node", "partial", "raises", "sys", "until", "upcall"]
