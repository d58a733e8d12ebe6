"""Calls for asyncio: `await client.aio.read(...)`.

A call neither blocks its event loop nor takes a kernel thread: a hundred concurrent calls are a
hundred user-level threads of the runtime. Cancelling a task cancels its call: the server continues,
and the result is dropped when it arrives. Deadlines are those of the client:
`client.with_deadline(0.5).aio.read(...)`, or `files.with_deadline(0.5).read(...)` for a client that
`upcall.aio.bind` returned. A token (`with_cancel`) has no effect here.
"""

from __future__ import annotations

import asyncio
import collections.abc
import functools
import os
import types
import typing
import weakref

from upcall import _upcall
from upcall._accepting import Accepts, Group
from upcall._client import Client as _SyncClient
from upcall._client import Pacing
from upcall._dynamic import bind as _bind
from upcall._serving import Addresses, Served, start

__all__ = ["Client", "Resource", "bind", "serve"]

_V = typing.TypeVar("_V", bound="View", covariant=True)
_C = typing.TypeVar("_C", bound="Client")


class _Loop:
    """The pending calls of an event loop, and the completions that resolve them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.completions = _upcall.Completions()
        self.waiting: dict[int, asyncio.Future[typing.Any]] = {}
        self.next = 0
        loop.add_reader(self.completions.fileno(), self.drain)

    def drain(self) -> None:
        for key, finished in self.completions.take():
            future = self.waiting.pop(key)
            if future.done():
                finished.forget()
                continue
            try:
                result = finished.result()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)


_loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Loop] = weakref.WeakKeyDictionary()


async def _call(
    caller: _upcall.Caller, number: int, args: tuple[typing.Any, ...], kwargs: dict[str, typing.Any]
) -> typing.Any:
    loop = asyncio.get_running_loop()
    here = _loops.get(loop)
    if here is None:
        here = _loops[loop] = _Loop(loop)
    key = here.next
    here.next += 1
    token = here.completions.call(caller, number, args, kwargs, key)
    future = here.waiting[key] = loop.create_future()
    try:
        return await future
    except asyncio.CancelledError:
        token.cancel()
        raise


class View:
    """A client or a resource, for asyncio."""

    def __init__(self, sync: _upcall.Caller) -> None:
        self._sync = sync

    @classmethod
    def _upcall_add(cls, name: str, number: int, docs: str) -> None:
        async def method(self: View, *args: typing.Any, **kwargs: typing.Any) -> typing.Any:
            return await _call(self._sync, number, args, kwargs)

        signature, _, text = docs.partition("\n--\n\n")
        method.__name__ = name
        method.__qualname__ = f"{cls.__qualname__}.{name}"
        method.__doc__ = text
        method.__text_signature__ = signature.removeprefix(name)  # type: ignore[attr-defined]
        setattr(cls, name, method)

    async def close(self) -> None:
        """Closes the client or resource, as its `close` does."""
        await asyncio.get_running_loop().run_in_executor(None, self._sync._close)

    async def __aenter__(self: _V) -> _V:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: types.TracebackType | None,
    ) -> None:
        await self.close()


class Client(View):
    """The base class of all clients for asyncio."""

    def with_deadline(self: _C, seconds: float | None) -> _C:
        """The same client, with a deadline for each call.

        Calls raise `CallAborted` after `seconds`, and so do those of the objects that they return;
        `None` means no deadline.
        """
        sync = typing.cast(_SyncClient, self._sync)
        return type(self)(sync.with_deadline(seconds))


class Resource(View):
    """The base class of all resources for asyncio."""


class _HasView(typing.Protocol[_V]):
    @property
    def aio(self) -> _V: ...


@typing.overload
async def bind(
    name: str,
    interface: collections.abc.Callable[..., _HasView[_V]],
    *,
    expect: Accepts | None = None,
    lost_after: float | None = None,
) -> _V: ...
@typing.overload
async def bind(
    name: str,
    interface: None = None,
    *,
    wit: str | os.PathLike[str] | None = None,
    expect: Accepts | None = None,
    lost_after: float | None = None,
) -> typing.Any: ...


async def bind(
    name: str,
    interface: collections.abc.Callable[..., _HasView[_V]] | None = None,
    *,
    wit: str | os.PathLike[str] | None = None,
    expect: Accepts | None = None,
    lost_after: float | None = None,
) -> typing.Any:
    """A client for asyncio: `files = await upcall.aio.bind("files", Files)`.

    `interface` is a generated class. Without it, the client is like that of `upcall.bind`.
    """
    make = interface if interface is not None else functools.partial(_bind, wit=wit)
    if expect is not None:
        make = functools.partial(make, expect=expect)
    if lost_after is not None:
        make = functools.partial(make, lost_after=lost_after)
    client = await asyncio.get_running_loop().run_in_executor(None, make, name)
    return client.aio


async def serve(
    name: str | collections.abc.Mapping[str, Served],
    server: Served | None = None,
    *,
    processors: int = 1,
    pacing: Pacing = Pacing.ADAPTIVE,
    admits: Accepts | None = None,
    mode: int | None = None,
    group: Group | str | int | None = None,
    listen: Addresses = (),
) -> None:
    """Serves until the task is cancelled; `async def` procedures run on this event loop."""
    loop = asyncio.get_running_loop()
    begin = functools.partial(
        start,
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
    running = await loop.run_in_executor(None, begin)
    try:
        await asyncio.Event().wait()
    finally:
        # Procedures that run want the loop until they end.
        await asyncio.shield(loop.run_in_executor(None, running.stop))
