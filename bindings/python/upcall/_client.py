"""What clients and resources have by themselves."""

from __future__ import annotations

import enum
import types
import typing

from upcall import _upcall
from upcall._accepting import Accepts

_C = typing.TypeVar("_C", bound="Client")
_R = typing.TypeVar("_R", bound="Resource")


class Pacing(enum.Enum):
    """How a wait is spent."""

    #: Spin a little, then sleep.
    ADAPTIVE = 0
    #: Spin, and take a processor for it.
    POLL = 1
    #: Sleep at once.
    SLEEP = 2


class HandOff(enum.Enum):
    """When a call gives its processor to a server that sleeps."""

    #: When nothing else has to run on it.
    WHEN_IDLE = 0
    #: Before anything else runs on it.
    AT_ONCE = 1


class Shortage(enum.Enum):
    """What a call does that finds no memory for its values free: see `Client.with_shortage`."""

    #: It waits for its turn.
    WAIT = 0
    #: It brings memory of its own.
    GROW = 1


class Client(_upcall.Caller):
    """A client of one interface of one server: the base of all of them.

    Threads may share it. It can be a context manager; without that the binding is given up when the last object of it is gone, resources included.
    """

    if typing.TYPE_CHECKING:

        def __init__(
            self, name: str | Client, /, *, expect: Accepts | None = None, wait: float | None = None
        ) -> None:
            """Binds to whoever exports `name`; or takes the same binding as another client, whose interface carries this one.

            Args:
                expect: which servers are accepted; without it those of this user and of root. A `User`, a `Group`, `ANY_USER`, a function, or several of these of which one must accept.
                wait: maximum time, in seconds, that the client waits while no server serves `name`.

            Raises:
                upcall.BindError: no such server, not permitted, or another version of a procedure.
            """

    @classmethod
    def bind(
        cls: type[_C], name: str, *, expect: Accepts | None = None, wait: float | None = None
    ) -> _C:
        """The same as calling the class."""
        return cls(name, expect=expect, wait=wait)

    def with_deadline(self: _C, seconds: float | None) -> _C:
        """The same client, with a deadline for each call that is made by it, or by what it returns: `CallAborted` after so many seconds. `None`: none.

        A call that was sent goes on in the server, and its result is dropped when it comes.
        """
        return typing.cast(_C, self._with_deadline(seconds))

    def with_abandon(self: _C, word: _upcall.Abandon) -> _C:
        """The same client, whose calls, and those of what it returns, are given up when `word.abandon()` is called: `CallAborted`. Not for `aio`: there tasks are cancelled."""
        return typing.cast(_C, self._with_abandon(word))

    def without_abandon(self: _C) -> _C:
        """The same client without such a word."""
        return typing.cast(_C, self._with_abandon(None))

    def with_hand_off(self: _C, when: HandOff) -> _C:
        """The same client, with a say in when its calls give their processor to a server that sleeps."""
        return typing.cast(_C, self._with_hand_off(when is HandOff.AT_ONCE))

    def with_shortage(self: _C, what: Shortage) -> _C:
        """The same client, with a say in what its calls do when calls under way have all the memory for values."""
        return typing.cast(_C, self._with_shortage(what is Shortage.GROW))

    def set_pacing(self, pacing: Pacing) -> None:
        """How threads that call through this client's channel wait."""
        self._set_pacing(pacing.value)

    @property
    def is_open(self) -> bool:
        """Whether calls can still go through."""
        return self._is_open()

    @property
    def server_pid(self) -> int:
        """The server's process."""
        return self._server_pid()

    @property
    def aio(self) -> typing.Any:
        """The same, for asyncio."""
        return self._upcall_view(self)

    def close(self) -> None:
        """Ends this client: calls by it raise `Closed`. Clients made of it, and resources, go on; the binding is given up when the last of them is gone."""
        self._close()

    def __enter__(self: _C) -> _C:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        if not self._is_open():
            return f"<{type(self).__name__}, closed>"
        return f"<{type(self).__name__} of {self._name()!r}, process {self.server_pid}>"


class Resource(_upcall.Caller):
    """An object that lives in the server: the base of all of them.

    The server drops it when it is closed, at the end of a `with`, or when nothing refers to it here any more.
    """

    @property
    def aio(self) -> typing.Any:
        """The same, for asyncio."""
        return self._upcall_view(self)

    def close(self) -> None:
        """Has the server drop the object, and waits until it has. A resource that is closed, or was given away, stays so."""
        self._close()

    def __enter__(self: _R) -> _R:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        self.close()


def declare(version: int, source: str, limits: str, classes: dict[str, typing.Any]) -> None:
    """For generated modules: gives their classes what they stand for, and their methods."""
    _upcall.declare(version, source, limits, classes)
    for key, declared in classes.items():
        if "#" not in key and not key.endswith(("@async", "@served")):
            declared._upcall_id = key
