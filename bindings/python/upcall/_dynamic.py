"""Interfaces that are known only at run time: generated modules, made in memory."""

from __future__ import annotations

import linecache
import os
import sys
import types
import typing

from upcall import _upcall
from upcall._accepting import Accepts

_made: dict[str, types.ModuleType] = {}


def _module(title: str, code: str) -> types.ModuleType:
    known = _made.get(code)
    if known is not None:
        return known
    name = f"upcall._made.m{len(_made)}"
    file = f"<upcall: {title}, {len(_made)}>"
    module = types.ModuleType(name)
    module.__file__ = file
    # For dataclasses, help() and tracebacks.
    linecache.cache[file] = (len(code), None, code.splitlines(True), file)
    sys.modules[name] = module
    try:
        exec(compile(code, file, "exec", dont_inherit=True), module.__dict__)
    except BaseException:
        del sys.modules[name]
        raise
    _made[code] = module
    return module


def load(path: str | os.PathLike[str]) -> types.ModuleType:
    """The module that `upcall wit generate --lang python` would write for a .wit file or folder.

    Raises:
        ValueError: the file cannot be read, is not WIT, or uses an unsupported feature; the text
            gives the line and the reason.
    """
    return _module(os.path.basename(os.fspath(path)), _upcall.module_of_file(os.fspath(path)))


def bind(
    name: str,
    wit: str | os.PathLike[str] | None = None,
    *,
    expect: Accepts | None = None,
    wait: float | None = None,
    lost_after: float | None = None,
) -> typing.Any:
    """A client of the server that exports `name`, without a generated module.

    The interface is the server's own, or that of a WIT file. The client's methods are the
    interface's procedures, in snake_case (`help(client)`). Its types are those of the module
    `sys.modules[type(client).__module__]`.

    Args:
        expect: which servers are accepted; by default those of this user and of root. A `User`, a
            `Group`, a `Host`, `ANY_USER`, a function, or several of these.
        wait: maximum time, in seconds, that the call waits while no server serves `name`.
        lost_after: time, in seconds, after which a server on another host that gives no sign of
            life is lost, in place of 5. It is rounded up to a second.

    Raises:
        upcall.BindError: no such server, not permitted, or, with a WIT file, another version of a
            procedure.
    """
    if isinstance(wit, type):
        raise TypeError(f"`upcall.bind` takes no class: write `{wit.__name__}({name!r})`")
    identity, source, limits = _upcall.learn(name, expect, wait)
    if wit is None:
        module = _module(identity, _upcall.module_of(identity, source, limits))
    else:
        module = load(wit)
    clients = {
        vars(known)["_upcall_id"]: known
        for known in vars(module).values()
        if isinstance(known, type)
        and issubclass(known, _upcall.Caller)
        and "_upcall_id" in vars(known)
    }
    for known, client in clients.items():
        # Versions may differ: binding compares procedure by procedure.
        if known.split("@")[0] == identity.split("@")[0]:
            return client(name, expect=expect, lost_after=lost_after)
    from upcall.errors import WrongInterface

    raise WrongInterface(
        f"{name!r} is {identity}, and {os.fspath(wit or identity)} has only {', '.join(clients)}"
    )
