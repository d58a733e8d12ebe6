"""The base classes of clients and resources."""

from __future__ import annotations

import enum
import types
import typing

from upcall import _upcall
from upcall._accepting import Accepts

_C = typing.TypeVar("_C", bound="Client")
_R = typing.TypeVar("_R", bound="Resource")


class Pacing(enum.Enum):
    """How a thread waits."""

    #: Spin briefly, then sleep.
    ADAPTIVE = 0
    #: Spin, which keeps a processor busy.
    POLL = 1
    #: Sleep at once.
    SLEEP = 2


class HandOff(enum.Enum):
    """When a call gives its processor to a sleeping server."""

    #: When nothing else is ready to run on it.
    WHEN_IDLE = 0
    #: Before anything else runs on it.
    AT_ONCE = 1


class WhenFull(enum.Enum):
    """What a call does if it finds no free memory for its values: see `Client.with_when_full`."""

    #: The call waits for its turn.
    WAIT = 0
    #: The call brings memory of its own.
    GROW = 1


class Client(_upcall.Caller):
    """A client of one interface of one server: the base class of all clients.

    Threads may share a client. It can be a context manager. Otherwise the binding ends when the
    last of its clients and resources has gone.
    """

    if typing.TYPE_CHECKING:

        def __init__(
            self,
            name: str | Client,
            /,
            *,
            expect: Accepts | None = None,
            wait: float | None = None,
            lost_after: float | None = None,
        ) -> None:
            """Binds to the server that exports `name`.

            In place of a name, `name` may be another client whose interface carries this one; the
            new client shares its binding.

            Args:
                expect: which servers are accepted; by default those of this user and of root. A
                    `User`, a `Group`, a `Host`, `ANY_USER`, a function, or several of these, at
                    least one of which must accept.
                wait: maximum time, in seconds, that the client waits while no server serves `name`.
                lost_after: time, in seconds, after which a server on another host that gives no
                    sign of life is lost, in place of 5. It is rounded up to a second.

            Raises:
                upcall.BindError: no such server, not permitted, or another version of a procedure.
            """

    @classmethod
    def bind(
        cls: type[_C],
        name: str,
        *,
        expect: Accepts | None = None,
        wait: float | None = None,
        lost_after: float | None = None,
    ) -> _C:
        """The same as calling the class."""
        return cls(name, expect=expect, wait=wait, lost_after=lost_after)

    def with_deadline(self: _C, seconds: float | None) -> _C:
        """The same client, with a deadline for each call.

        The deadline applies to calls by the returned client, and by what it returns. They raise
        `CallAborted` after `seconds`; `None` means no deadline. After the deadline, a call that was
        sent continues in the server, and its result is dropped when it arrives.
        """
        return typing.cast(_C, self._with_deadline(seconds))

    def with_cancel(self: _C, token: _upcall.CancelToken) -> _C:
        """The same client, with a token that cancels its calls.

        After `token.cancel()`, calls by the returned client, and by what it returns, raise
        `CallAborted`. Not for `aio`, where tasks are cancelled instead.
        """
        return typing.cast(_C, self._with_cancel(token))

    def without_cancel(self: _C) -> _C:
        """The same client without a token that cancels its calls."""
        return typing.cast(_C, self._with_cancel(None))

    def with_hand_off(self: _C, when: HandOff) -> _C:
        """The same client, with another rule for when its calls give their processor away.

        See `HandOff`.
        """
        return typing.cast(_C, self._with_hand_off(when is HandOff.AT_ONCE))

    def with_when_full(self: _C, rule: WhenFull) -> _C:
        """The same client, with another rule for calls that find no free memory for values."""
        return typing.cast(_C, self._with_when_full(rule is WhenFull.GROW))

    def set_pacing(self, pacing: Pacing) -> None:
        """Sets how threads wait that call through this client's channel."""
        self._set_pacing(pacing.value)

    @property
    def is_open(self) -> bool:
        """Whether calls can go through."""
        return self._is_open()

    @property
    def server_pid(self) -> int:
        """The server's process ID."""
        return self._server_pid()

    @property
    def aio(self) -> typing.Any:
        """This client for asyncio."""
        return self._upcall_view(self)

    def close(self) -> None:
        """Closes this client: later calls by it raise `Closed`.

        Clients made from it, and resources, remain usable; the binding ends with the last of them.
        """
        self._close()

    def __enter__(self: _C) -> _C:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: types.TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        if not self._is_open():
            return f"<{type(self).__name__}, closed>"
        return f"<{type(self).__name__} of {self._name()!r}, process {self.server_pid}>"


class Resource(_upcall.Caller):
    """An object that lives in the server: the base class of all resources.

    The server drops the object when it is closed, at the end of a `with`, or when the last
    reference to it here has gone.
    """

    @property
    def aio(self) -> typing.Any:
        """This resource for asyncio."""
        return self._upcall_view(self)

    def close(self) -> None:
        """Makes the server drop the object, and waits until it has.

        A resource that is closed, or was given away, stays so.
        """
        self._close()

    def __enter__(self: _R) -> _R:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: types.TracebackType | None,
    ) -> None:
        self.close()


def declare(version: int, source: str, limits: str, classes: dict[str, typing.Any]) -> None:
    """For generated modules: connects their classes with the interface, and adds the methods."""
    _upcall.declare(version, source, limits, classes)
    for key, declared in classes.items():
        if "#" not in key and not key.endswith(("@async", "@served")):
            declared._upcall_id = key
