"""Servers."""

from __future__ import annotations

import abc
import asyncio
import atexit
import collections.abc
import contextvars
import logging
import os
import threading
import time
import traceback
import types
import typing

from upcall import _upcall
from upcall._accepting import Accepts, Admits as Admits, Group
from upcall._client import Pacing

_log = logging.getLogger("upcall")


class Serve(abc.ABC):
    """A server of an interface: the base class of all generated abstract servers.

    Its methods run on threads of their own, several at once.
    """

    if typing.TYPE_CHECKING:
        _upcall_kind: typing.ClassVar[typing.Any]


class ServeResource(abc.ABC):
    """An object that clients hold: the base class of all generated abstract ones.

    The server drops it when its client closes it, unbinds or ends.
    """

    if typing.TYPE_CHECKING:
        _upcall_kind: typing.ClassVar[typing.Any]


class Running:
    """A server that runs until it is stopped or the program ends. It can be a context manager.

    The package keeps it: a server does not end because the program drops this object.
    """

    def __init__(self, served: _upcall.Served) -> None:
        self._served = served
        _running.add(self)

    def stop(self, seconds: float | None = None) -> bool:
        """Removes the names, and waits until running calls have ended.

        Waits for at most `seconds` if given. Returns true if the calls have ended.
        """
        _running.discard(self)
        return self._served.stop(seconds)

    @property
    def addresses(self) -> list[str]:
        """Where the server listens for clients that connect by TCP, with the actual ports.

        The order is that of `listen`. An empty list once the server is stopped.
        """
        return self._served.addresses()

    def revoke(self, pid: int) -> int:
        """Revokes the bindings of a process, and returns their number.

        Calls by these bindings then raise `errors.Revoked`.

        Raises:
            ValueError: the process is 0, which stands for all processes that are not visible in
                this PID namespace, or are on other machines.
        """
        if pid == 0:
            raise ValueError(
                "0 is not a process: it stands for all processes that are not visible here"
            )
        return self._served.revoke(pid)

    def __enter__(self) -> Running:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: types.TracebackType | None,
    ) -> None:
        self.stop()


#: The servers that run. They are kept here, since a program need not keep what `start` returns.
_running: set[Running] = set()

#: An address, `HOST:PORT`, or several. With port 0 the kernel chooses a port, which
#: `Running.addresses` returns.
Addresses = typing.Union[str, collections.abc.Iterable[str]]

#: An object, or the generated class that says which of the object's interfaces is served, and the
#: object.
Served = typing.Union[object, tuple[type[Serve], object]]


def _exports(
    name: str | collections.abc.Mapping[str, Served], server: Served | None
) -> list[tuple[str, typing.Any, object]]:
    if isinstance(name, str):
        named = {name: server}
    elif isinstance(name, collections.abc.Mapping):
        named = dict(name)
    elif isinstance(server, str):
        raise TypeError(f"the name comes first, as in serve({server!r}, {_example(name)})")
    elif server is None and (base := _interface_class(name)) is not None:
        export = base.__name__.removeprefix("Serve").lower()
        raise TypeError(f"the name is missing, as in serve({export!r}, {_example(name)})")
    else:
        raise TypeError(
            f"the name is a str, or a mapping from names to objects, not {type(name).__name__}"
        )
    exports = []
    for export, told in named.items():
        kind, what = told if isinstance(told, tuple) else (type(told), told)
        if isinstance(what, type) and (what is told or issubclass(what, Serve)):
            raise TypeError(f"{what.__name__} is a class: pass an object, {_example(what)}")
        if not hasattr(kind, "_upcall_kind"):
            raise TypeError(
                f"{kind.__name__}, which is to serve {export!r}, has no interface: "
                "derive it from a generated class Serve.., "
                "or give a tuple of such a class and the object"
            )
        exports.append((export, kind._upcall_kind, what))
    return exports


def _interface_class(given: object) -> type | None:
    """The generated class from which the given class derives, or the class of the given object."""
    kind = given if isinstance(given, type) else type(given)
    return next((base for base in kind.__mro__ if "_upcall_kind" in vars(base)), None)


def _example(given: object) -> str:
    """An expression for an object of the class that is given, or of the given object's class."""
    return f"{(given if isinstance(given, type) else type(given)).__name__}()"


def _addresses(given: Addresses) -> list[str]:
    return [given] if isinstance(given, str) else list(given)


def start(
    name: str | collections.abc.Mapping[str, Served],
    server: Served | None = None,
    *,
    processors: int = 1,
    pacing: Pacing = Pacing.ADAPTIVE,
    loop: asyncio.AbstractEventLoop | None = None,
    admits: Accepts | None = None,
    mode: int | None = None,
    group: Group | str | int | None = None,
    listen: Addresses = (),
) -> Running:
    """Serves an object under a name, or several objects, on threads of their own.

    When this returns, clients can bind. The server runs until `Running.stop`, until the `with` of
    the result ends, or until the program ends. The program need not keep the result.

    Args:
        name: the name, or a mapping from names to servers.
        server: an object of a class that derives from a generated abstract server.
        processors: number of virtual processors that take calls. Procedures run on threads of their
            own, up to 512 at once.
        pacing: how idle virtual processors wait.
        loop: the event loop that runs the coroutines of `async def` procedures; by default one of
            the package's own.
        admits: which clients may bind; by default those of the same user. A `User`, a `Group`,
            `ANY_USER`, a function, or several of these, at least one of which must accept. A
            function is called on threads of the package, for `upcall ls` too, and never on two at
            once. It must not block, since other clients would wait for it.
        mode: mode of the server's socket, in place of 0o600. A client needs write permission to
            connect at all: 0o660 lets in the members of the socket's group, 0o666 every user.
            `admits` decides after that.
        group: group of the server's socket, in place of the process's own. A user other than root
            can give only a group of its own.
        listen: where clients may also connect by TCP, and bind `tcp://HOST:PORT/NAME`. `admits`
            decides about these too. A client on another host has to prove a host that is trusted
            here (`upcall host trust`). A function of `admits` sees such a client as user and group
            4294967295 and process 0. The default admits it, `User` and `Group` refuse it. An
            address beyond this machine needs an identity of this host (`upcall host init`).

    Raises:
        upcall.ServeError: the name is taken, for example.
        ValueError: there is no such group, or a socket cannot have this mode.
        TypeError: an argument is of another type.
    """
    if mode is not None and not isinstance(mode, int):
        raise TypeError(f"the mode of a socket is a number, as 0o660, not {mode!r}")
    if mode is not None and not 0 <= mode <= 0o777:
        raise ValueError(f"the mode of a socket is from 0 to 0o777, not {mode:#o}")
    number = None if group is None else (group if isinstance(group, Group) else Group(group)).number
    listens = _addresses(listen)
    return Running(
        _upcall.start(
            _exports(name, server), processors, pacing.value, loop, admits, mode, number, listens
        )
    )


def serve(
    name: str | collections.abc.Mapping[str, Served],
    server: Served | None = None,
    *,
    processors: int = 1,
    pacing: Pacing = Pacing.ADAPTIVE,
    loop: asyncio.AbstractEventLoop | None = None,
    admits: Accepts | None = None,
    mode: int | None = None,
    group: Group | str | int | None = None,
    listen: Addresses = (),
) -> None:
    """As `start`, but returns only when the program is interrupted (Ctrl-C).

    An interrupt ends the server, and `serve` returns when running calls have ended. A second Ctrl-C
    does not wait for them.
    """
    running = start(
        name,
        server,
        processors=processors,
        pacing=pacing,
        loop=loop,
        admits=admits,
        mode=mode,
        group=group,
        listen=listen,
    )
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        # A thread waits in place of this one, which can be interrupted again.
        ending = threading.Thread(target=running.stop, daemon=True)
        ending.start()
        ending.join()
    finally:
        running.stop(0)


#: The moment until which the caller of an `async def` procedure waits, by `time.monotonic`. Its
#: coroutine and the tasks that it starts run with a copy of the context.
_ends: contextvars.ContextVar[float | None] = contextvars.ContextVar("upcall_ends", default=None)


def deadline() -> float | None:
    """How long the caller of the running procedure still waits, in seconds.

    A procedure that computes for long can look at it now and then, and return early::

        def render(self, scene: str) -> bytes:
            for part in parts(scene):
                if upcall.deadline() == 0:
                    raise upcall.Err(Error.TOO_LATE)  # the result would be dropped
                ...

    Returns 0.0 once the deadline has passed, and `None` if the caller waits forever. The end of
    the caller, or its `CancelToken`, changes nothing here. This function never blocks.

    An `async def` procedure, the tasks that it starts and `asyncio.to_thread` see the time of their
    caller. Outside of a procedure, and on threads that a procedure starts in other ways, there is
    no caller: `None`. Pass the time on to them: ``client.with_deadline(upcall.deadline())``.
    """
    ends = _ends.get()
    times = [_upcall.deadline(), None if ends is None else max(ends - time.monotonic(), 0.0)]
    return min((left for left in times if left is not None), default=None)


_loop: asyncio.AbstractEventLoop | None = None
_loop_lock = threading.Lock()


def _own_loop() -> asyncio.AbstractEventLoop:
    global _loop
    with _loop_lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, name="upcall-loop", daemon=True).start()
        return _loop


def wait(
    coroutine: collections.abc.Coroutine[typing.Any, typing.Any, typing.Any],
    loop: asyncio.AbstractEventLoop | None,
) -> typing.Any:
    """For the engine: runs the coroutine of an `async def` procedure, and waits for its result."""
    on = loop or _own_loop()
    if not on.is_running():
        coroutine.close()
        raise RuntimeError("the event loop for the server's coroutines is not running")
    left = _upcall.deadline()
    before = _ends.set(None if left is None else time.monotonic() + left)
    try:
        # The loop runs the coroutine with a copy of this thread's context.
        return asyncio.run_coroutine_threadsafe(coroutine, on).result()
    finally:
        _ends.reset(before)


def failed(procedure: str, error: BaseException, declares_error: bool) -> None:
    """For the engine: a procedure raised an exception that its interface does not declare.

    What to write instead is for the log alone: it quotes the server's source, which no client sees.
    """
    if declares_error and (raised := _raised_value(error)) is not None:
        error.add_note(f"Write `raise upcall.Err({raised})` for an error of the interface.")
    _log.error("the procedure %s failed", procedure, exc_info=error)


def _raised_value(error: BaseException) -> str | None:
    """The expression that a procedure raised although its value is no exception."""
    if type(error) is not TypeError or str(error) != "exceptions must derive from BaseException":
        return None
    import ast

    lines = [frame.line for frame in traceback.extract_tb(error.__traceback__)]
    try:
        statement = ast.parse(lines[-1] or "").body[0]
    except (IndexError, SyntaxError, ValueError, RecursionError):
        return ".."
    if isinstance(statement, ast.Raise) and statement.exc is not None:
        return ast.unparse(statement.exc)
    return ".."


@atexit.register
def _end() -> None:
    """Shuts the runtime down, since it must not use the interpreter after it ends."""
    for running in list(_running):
        running.stop(2.0)
    if _loop is not None:
        _loop.call_soon_threadsafe(_loop.stop)
    _upcall._close()


# The child of a fork serves nothing.
os.register_at_fork(after_in_child=_running.clear)
