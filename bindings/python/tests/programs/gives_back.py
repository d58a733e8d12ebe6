"""Serves interfaces that give back what they get, for any package.

Argument: a file with a line for each interface: its module, what it gives back (values or objects),
and the names of three servers.

The first server makes the objects itself. The second calls the first by the generated client, and
the third by a client that is made when it binds: their objects are resources, each behind an object
of its own.
"""

from __future__ import annotations

import dataclasses
import importlib
import re
import sys
import threading
import typing

import upcall

Walk = typing.Callable[[typing.Any], typing.Any]

alive = 0
lock = threading.Lock()


def count(by: int) -> None:
    global alive
    with lock:
        alive += by


def never(*_: object) -> typing.Any:
    raise AssertionError("this method is never called")


def concrete(base: type, **methods: typing.Any) -> typing.Any:
    """A class that has all abstract methods of `base`."""
    abstract: frozenset[str] = getattr(base, "__abstractmethods__")
    return type(
        base.__name__.removeprefix("Serve"), (base,), {name: never for name in abstract} | methods
    )


def rebuilt(
    value: typing.Any, leaf: Walk, module: typing.Any, before: str, after: str
) -> typing.Any:
    """A copy of `value` in which `leaf` replaces each object.

    A class whose name begins with `before` becomes the one whose name begins with `after`.
    """

    def go(value: typing.Any) -> typing.Any:
        if isinstance(value, (upcall.ServeResource, upcall.Resource)):
            return leaf(value)
        if isinstance(value, (list, tuple)):
            return type(value)(map(go, value))
        if isinstance(value, upcall.Err):
            return upcall.Err(go(value.value))
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            kind = type(value)
            if kind.__module__ == module.__name__:
                kind = getattr(module, after + kind.__name__.removeprefix(before), kind)
            return kind(*(go(getattr(value, field.name)) for field in dataclasses.fields(value)))
        return value

    return go(value)


def fails(base: typing.Any, name: str) -> bool:
    """Whether a procedure's result is a WIT `result`. (`some(ok(..))` looks like one.)"""
    return "Raises:" in getattr(base, name).__doc__


def returned(value: typing.Any, fails: bool) -> typing.Any:
    """Returns the value as a procedure does: an `Err` is raised."""
    if not fails:
        return value
    if isinstance(value, upcall.Err):
        raise upcall.Err(value.value)
    return value.value


def asked(method: typing.Any, value: typing.Any, fails: bool) -> typing.Any:
    """Calls another server's procedure, and returns its result as a value."""
    if not fails:
        return method(value)
    try:
        return upcall.Ok(method(value))
    except upcall.Err as error:
        return upcall.Err(error.value)


def values(module: typing.Any, client: typing.Any) -> typing.Any:
    """A server that gives values back; with a client it asks the client's server."""

    base = module.ServeGivesBack

    def echo(name: str) -> typing.Any:
        result = fails(base, name)

        def run(_: typing.Any, v: typing.Any) -> typing.Any:
            if client is not None:
                v = bytes(v) if isinstance(v, upcall.Bytes) else v
                back = asked(getattr(client, name), v, result)
                assert back == v and type(back) is type(v), f"{name}: {v} came back as {back}"
                v = back
            return returned(v, result)

        return run

    return concrete(base, **{name: echo(name) for name in base.__abstractmethods__})()


class Numbered:
    """An object of the first server."""

    def __init__(self, number: int) -> None:
        self.number = number
        count(1)

    def __del__(self) -> None:
        count(-1)


def objects(module: typing.Any, client: typing.Any) -> typing.Any:
    """A server that gives objects back; with a client it asks the client's server."""
    base = module.ServeGivesObjects
    kinds: dict[type, typing.Any] = {}

    def proxy(there: typing.Any) -> typing.Any:
        served = kinds[type(there)] = kinds.get(type(there)) or concrete(
            getattr(module, f"Serve{type(there).__name__}")
        )
        made = served()
        made.there = there
        return made

    def out(v: typing.Any) -> typing.Any:
        return rebuilt(v, lambda one: one.there, module, "Served", "")

    def back(v: typing.Any) -> typing.Any:
        return rebuilt(v, proxy, module, "", "Served")

    def make(name: str) -> typing.Any:
        returns = typing.cast(str, getattr(base, name).__annotations__["return"])
        found = re.search(r"\[(\w+)\]$", returns)
        assert found
        served = concrete(getattr(module, found[1]))
        numbered = type(served.__name__, (served, Numbered), {})
        return lambda _, number: (
            numbered(number) if client is None else proxy(getattr(client, name)(number))
        )

    def tell(name: str) -> typing.Any:
        def run(_: typing.Any, v: typing.Any) -> list[int]:
            if client is not None:
                return typing.cast("list[int]", getattr(client, name)(out(v)))
            numbers: list[int] = []
            rebuilt(v, lambda one: numbers.append(one.number), module, "", "")
            return numbers

        return run

    def echo(name: str) -> typing.Any:
        result = fails(base, name)
        return lambda _, v: returned(
            v if client is None else back(asked(getattr(client, name), out(v), result)), result
        )

    def number(name: str) -> typing.Any:
        return lambda _, of: of.number if client is None else getattr(client, name)(of.there)

    methods: dict[str, typing.Any] = {
        "alive": lambda _: alive if client is None else client.alive()
    }
    for name in base.__abstractmethods__ - methods.keys():
        methods[name] = {"make": make, "tell": tell, "echo": echo, "number": number}[
            name.split("_")[0]
        ](name)
    server = concrete(base, **methods)()
    # The servers of the interfaces that it carries.
    for part, kind in base.__dict__.get("__annotations__", {}).items():
        setattr(server, part, concrete(getattr(module, kind))())
    return server


def main() -> None:
    with open(sys.argv[1]) as file:
        lines = [line.split() for line in file]
    running = []
    has = {}
    for stem, kind, name, *_ in lines:
        has[name] = globals()[kind](importlib.import_module(stem), None)
    running.append(upcall.start(has, processors=1))
    asks = {}
    for stem, kind, name, second, third in lines:
        module = importlib.import_module(stem)
        client = {"values": "GivesBack", "objects": "GivesObjects"}[kind]
        asks[second] = globals()[kind](module, getattr(module, client)(name))
        learnt = upcall.bind(name)
        asks[third] = globals()[kind](sys.modules[type(learnt).__module__], learnt)
    running.append(upcall.start(asks, processors=1))
    print("ready", flush=True)
    sys.stdin.read()
    for server in running:
        server.stop()


main()
