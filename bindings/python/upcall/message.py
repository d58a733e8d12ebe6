"""Messages between the members of a group, with handlers.

A process joins a group and is one of its members, by rank. Members in Rust, C and Python are members of one group::

    from upcall import message

    handlers = message.Handlers()
    token = handlers.kind("token", "u64")

    @handlers.on(token)
    def _(group: message.Group, sender: int, hops: int) -> None:
        group.send((group.rank + 1) % group.size, token, hops + 1)

    with message.join("ring", 4, handlers) as group:  # four processes say this; each gets a rank
        if group.rank == 0:
            group.send(1, token, 1)
        group.run_until()  # until another member ends

A group belongs to the thread that has joined it: in another one every method raises `OtherThread`. While a method waits, other threads of the program run, and Ctrl-C ends the wait.
"""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import types
import typing
import weakref
from collections.abc import Callable, Iterator

from upcall import _upcall
from upcall._client import Pacing
from upcall._upcall import Place
from upcall.errors import (
    BadGroup,
    Full,
    GivenUp,
    GroupError,
    Incomplete,
    InHandler,
    JoinError,
    MemberEnded,
    MemberViolation,
    MessageTooLong,
    NoBuffer,
    NoJob,
    NoMembership,
    NoQueue,
    NoSuchRank,
    NothingThere,
    NoUpcalls,
    NotTakenIn,
    OtherThread,
    Overflow,
    QueueRefused,
    ReceiverEnded,
    ReceiverViolation,
    RunError,
    SendError,
    StillViewed,
    Unhandled,
    Unsent,
)

__all__ = [
    "BadGroup",
    "Event",
    "Full",
    "GivenUp",
    "Group",
    "GroupError",
    "Handlers",
    "InHandler",
    "Incomplete",
    "JoinError",
    "Kind",
    "MemberEnded",
    "MemberViolation",
    "Message",
    "MessageTooLong",
    "NoBuffer",
    "NoJob",
    "NoMembership",
    "NoQueue",
    "NoSuchRank",
    "NotTakenIn",
    "NothingThere",
    "NoUpcalls",
    "OtherThread",
    "Overflow",
    "Pacing",
    "Place",
    "QueueRefused",
    "ReceiverEnded",
    "ReceiverViolation",
    "RunError",
    "SendError",
    "StillViewed",
    "Unhandled",
    "Unsent",
    "join",
    "join_job",
]

_T = typing.TypeVar("_T")
_Number = typing.TypeVar("_Number", int, float)

_SIGNATURES: dict[object, str] = {int: "i64", float: "f64", bool: "bool", str: "text", bytes: "bytes", None: "()", type(None): "()"}


def _signature(carries: object) -> str:
    if isinstance(carries, str):
        return carries
    with contextlib.suppress(TypeError):
        if carries in _SIGNATURES:
            return _SIGNATURES[carries]
    if typing.get_origin(carries) is tuple and (parts := typing.get_args(carries)) and Ellipsis not in parts:
        return f"({', '.join(map(_signature, parts))})"
    if typing.get_origin(carries) is typing.Annotated:
        said = [one for one in typing.get_args(carries)[1:] if isinstance(one, str)]
        if said:
            return said[0]
    raise TypeError(f"{carries!r} does not say what a message carries: it is int, float, bool, a tuple of these, str, bytes, None, or a signature as \"(u64, [i32; 4])\"")


@dataclasses.dataclass(frozen=True)
class Kind(typing.Generic[_T]):
    """A kind of message that carries a `_T`."""

    name: str
    #: What it carries, in the words that members in all languages have for it.
    carries: str
    _index: int
    _of: object = dataclasses.field(repr=False, compare=False)


class Message(typing.NamedTuple):
    """A message that was taken, or looked at."""

    #: Who has sent it.
    sender: int
    kind: Kind[typing.Any]
    value: typing.Any


class Event(typing.NamedTuple):
    """What happened to another member."""

    rank: int
    #: How it broke the protocol, after which nothing more is taken from it. `None`: it has ended, or has left the group, and all that it had sent was taken before.
    violation: str | None


class Handlers:
    """The kinds of messages that a member knows, and what it does with them. All members of a group have the same kinds in the same order; handlers are each one's own."""

    def __init__(self) -> None:
        self._kinds: list[Kind[typing.Any]] = []
        self._handlers: dict[int, Callable[[Group, int, typing.Any], object]] = {}

    @typing.overload
    def kind(self, name: str, carries: str) -> Kind[typing.Any]: ...
    @typing.overload
    def kind(self, name: str, carries: None = None) -> Kind[None]: ...
    @typing.overload
    def kind(self, name: str, carries: type[_T]) -> Kind[_T]: ...

    def kind(self, name: str, carries: object = None) -> Kind[typing.Any]:
        """Another kind of message. Without a handler, its messages wait until they are received.

        `carries` is a type: `int` (an `i64`), `float`, `bool`, a tuple of these, `str`, `bytes`, or `None` for nothing. Or a signature: a number `u64 i64 u32 i32 u16 u8 bool f64 f32`, an array `[u64; 4]`, which is a list here, a tuple
        `(u64, (f64, bool))`, `words`, which are a list of any length, `bytes`, `text`, `()`.

        Raises:
            ValueError: there is one of that name already, or it is no signature; the latter when the group is joined.
        """
        if any(known.name == name for known in self._kinds):
            raise ValueError(f"there is a kind of message {name!r} already")
        kind: Kind[typing.Any] = Kind(name, _signature(carries), len(self._kinds), self)
        self._kinds.append(kind)
        return kind

    def on(self, kind: Kind[_T]) -> Callable[[Callable[[Group, int, _T], object]], Callable[[Group, int, _T], object]]:
        """A decorator: has messages of this kind run the function, with the group, the sender and what they carry.

        It runs in methods of the group that poll: `poll`, `run_until`, `barrier`, `reduce`. The message was taken before, so it may send, poll and wait; while it waits, others run. What it raises, that method raises.
        """
        if kind._of is not self:
            raise ValueError(f"{kind.name!r} is a kind of other handlers")

        def register(handler: Callable[[Group, int, _T], object]) -> Callable[[Group, int, _T], object]:
            self._handlers[kind._index] = handler
            return handler

        return register


def _heed(number: int, frame: types.FrameType | None) -> None:
    _upcall.heed()


@contextlib.contextmanager
def _heeding() -> Iterator[None]:
    """While groups are told of messages by a signal."""
    before = signal.getsignal(signal.SIGURG)
    if before not in (signal.SIG_DFL, signal.SIG_IGN, _heed):
        raise NoUpcalls("the program has a handler of its own for SIGURG: poll instead")
    signal.signal(signal.SIGURG, _heed)
    try:
        yield
    finally:
        signal.signal(signal.SIGURG, before)


class Group:
    """A process's membership in a group. Made by `join`; use it in a `with`, at whose end the process leaves: what it has sent still arrives, and the others learn of it."""

    def __init__(
        self,
        name: str | None,
        size: int,
        handlers: Handlers,
        rank: int | None,
        patience: float,
        pacing: Pacing,
        timeout: float | None,
        limit: int | None,
    ) -> None:
        # Not the group itself: nobody would see that circle.
        this = weakref.ref(self)

        def bound(handler: Callable[[Group, int, typing.Any], object]) -> Callable[[int, typing.Any], object]:
            def run(sender: int, value: typing.Any) -> object:
                group = this()
                return None if group is None else handler(group, sender, value)

            return run

        self._kinds = list(handlers._kinds)
        self._handlers = handlers
        running = {index: bound(handler) for index, handler in handlers._handlers.items()}
        kinds = [(kind.name, kind.carries, running.get(kind._index)) for kind in self._kinds]
        self._member = _upcall.Member(name, size, rank, patience, pacing.value, timeout, limit, kinds)

    @property
    def rank(self) -> int:
        """This member's place, from 0."""
        return self._member.rank()

    @property
    def size(self) -> int:
        """How many members there are, those that have ended included."""
        return self._member.size()

    def process(self, rank: int) -> int | None:
        """A member's process. `None`: there is no such member, or its process is not visible in this PID namespace."""
        return self._member.process(rank)

    def _index(self, kind: Kind[typing.Any]) -> int:
        if kind._of is not self._handlers or kind._index >= len(self._kinds):
            raise ValueError(f"{kind.name!r} is no kind of message of this group")
        return kind._index

    @typing.overload
    def send(self, to: int, kind: Kind[None], *, timeout: float | None = None) -> None: ...
    @typing.overload
    def send(self, to: int, kind: Kind[_T], value: _T, *, timeout: float | None = None) -> None: ...

    def send(self, to: int, kind: Kind[typing.Any], value: typing.Any = None, *, timeout: float | None = None) -> None:
        """Sends a message. Once this has returned it arrives, exactly once and in order, unless the receiver ends before it takes it.

        It does not wait for the receiver, but for room in its queue, and then no longer than the group's timeout. Where this member has
        buffered all that it may, or the group has no timeout, it waits until the receiver has taken some: for as long as that takes, or for
        `timeout` seconds. While it waits it runs the handlers of what comes, but not in an atomic section. If what comes has no handler, and
        members wait for each other's room, they wait for ever: `timeout` ends that.

        Raises:
            TypeError, ValueError: the value is not what the kind carries.
            Full, Overflow: there was no room for `timeout` seconds.
            SendError: see its classes.
            BaseException: whatever a handler raised.
            Nothing was sent then.
        """
        self._member.send(to, self._index(kind), value, True, timeout)

    @typing.overload
    def try_send(self, to: int, kind: Kind[None]) -> bool: ...
    @typing.overload
    def try_send(self, to: int, kind: Kind[_T], value: _T) -> bool: ...

    def try_send(self, to: int, kind: Kind[typing.Any], value: typing.Any = None) -> bool:
        """The same, if there is room now; if not it returns false, and nothing was sent. Runs no handlers."""
        try:
            self._member.send(to, self._index(kind), value, False, None)
        except Full:
            return False
        return True

    @property
    def available(self) -> bool:
        """Whether a message waits: a load for each member that has ever sent one here."""
        return self._member.available()

    def poll(self) -> int:
        """Runs the handlers of the messages that wait, at most 64 of each member, and returns how many. A message without a handler stays, and those of the same sender behind it. Does not wait."""
        return self._member.poll()

    def receive(self) -> Message:
        """Takes the next message, whatever handlers there are. Members have their turns. Does not wait.

        Raises:
            NothingThere: no message waits.
        """
        sender, kind, value = self._member.take(True)
        return Message(sender, self._kinds[kind], value)

    def peek(self) -> Message:
        """The message that `receive` would take, which stays.

        Raises:
            NothingThere: no message waits.
        """
        sender, kind, value = self._member.take(False)
        return Message(sender, self._kinds[kind], value)

    @contextlib.contextmanager
    def receive_in_place(self) -> Iterator[Place]:
        """Takes the next message, whatever handlers there are, but leaves it where it lies until the end of the `with`; then it is disposed of, also if that ends by an exception. Nothing is copied, however large it is. Does not wait.

            with group.receive_in_place() as message:
                file.write(message)

        The sender can still change the bytes meanwhile: see `Place`. Until it is disposed of no other message of the same sender is taken: to receive or to poll in the `with` finds those of others, and a wait for what this sender sends next, also in
        `barrier`, does not end. If the sender dies meanwhile the bytes stay, and the event comes after the message; they stay also when the group is left.

        Raises:
            NothingThere: no message waits.
            StillViewed: at the end of the `with`, a buffer of it is still exported: a `memoryview` that was not released, an array. The message is disposed of by the first method of the group that is called when the last of these has gone. An exception
                of the `with` is not replaced by this one.
        """
        return self._in_place(True)

    @contextlib.contextmanager
    def peek_in_place(self) -> Iterator[Place]:
        """The message that `receive` would take, where it lies, as `receive_in_place` has it. It stays, and after the `with` it is the next one of its sender again.

        Raises:
            NothingThere: no message waits.
            StillViewed: as there; it is kept from being taken until the last buffer has gone.
        """
        return self._in_place(False)

    def _in_place(self, takes: bool) -> Iterator[Place]:
        place = self._member.place(takes, self._kinds)
        is_good = False
        try:
            yield place
            is_good = True
        finally:
            if self._member.end(place) and is_good:
                raise StillViewed("the message cannot be disposed of while a buffer of it is exported: release it (memoryview.release, del) within the `with`, or copy what is needed longer (bytes)")

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until a message or an event is there, at most so many seconds, and returns whether one is. Runs no handlers.

        Raises:
            ValueError: that is no number of seconds.
        """
        return self._member.wait(timeout)

    def run_until(self, done: Callable[[], object] | None = None) -> None:
        """Runs handlers and waits until `done` returns something true.

        Raises:
            MemberEnded, MemberViolation: another member is lost.
            Unhandled: a message waits that has no handler.
        """
        self._member.run_until(done)

    def barrier(self) -> None:
        """Waits until all members have come here, and runs handlers meanwhile.

        Raises:
            RunError: a member is lost that did not come, or a message waits that has no handler. After the former, or after an exception of a handler's, no later barrier holds.
        """
        self._member.barrier()

    def reduce(self, value: _Number, combine: Callable[[_Number, _Number], _Number], number: str | None = None) -> _Number:
        """Combines a number of each member, in the order of ranks, and gives the result to all: `group.reduce(1.5, max)`. Runs handlers meanwhile.

        All members call it with the same `combine`, which is to be associative. Numbers are `i64` if they are `int`, else `f64`; or what `number` says: "u64".

        Raises:
            RunError: as `barrier`.
        """
        if number is None:
            number = "i64" if isinstance(value, int) else "f64"
        return typing.cast(_Number, self._member.reduce(number, value, combine))

    def events(self) -> Iterator[Event]:
        """What has happened to other members, in the order in which it was noticed, each once, until there is no more. Polling, receiving and looking notice it."""
        while (event := self._member.event()) is not None:
            yield Event(*event)

    @contextlib.contextmanager
    def upcalls(self) -> Iterator[None]:
        """Within this, handlers run by themselves, while the main thread computes: between two bytecodes, as handlers of signals do. So they may do anything; but they do not run within other handlers, methods of the group and its sections
        (`atomic`). A long call into code that is not Python keeps them waiting. What a handler raises is raised where the thread was.

            with group.upcalls():
                solve()

        Only for the main thread. It is told by a signal (SIGURG), for which this has a handler meanwhile. While it does nothing but wait for messages, `wait` and `run_until` are quicker.

        Raises:
            OtherThread: this is not the main thread.
            NoUpcalls: the program has a handler of its own for SIGURG; the kernel has no membarrier(2); or a descriptor or memory is missing.
        """
        if not self._member.is_first():
            raise OtherThread("handlers run by themselves on the main thread only, where Python runs those of signals: poll here")
        with _heeding():
            self._member.announce()
            try:
                yield
            finally:
                self._member.retract()

    @contextlib.contextmanager
    def atomic(self) -> Iterator[None]:
        """A section in which no handler runs unless this polls; those that it kept from running by themselves (`upcalls`) run after it."""
        self._member.begin_atomic()
        try:
            yield
        finally:
            self._member.end_atomic()

    def buffered(self, to: int) -> int:
        """Bytes of the buffer with messages that a member has not taken yet; 0 while they go the direct way.

        Raises:
            NoSuchRank: there is no such member.
        """
        return self._member.buffered(to)

    @property
    def diverted(self) -> int:
        """How many messages of this member's went through a buffer so far, of those to members that it can still send to."""
        return self._member.diverted()

    @property
    def diversions(self) -> int:
        """How often messages for this member went over to a buffer: a sender found no room for longer than its timeout. Nothing is lost by that; who sees it grow keeps messages waiting."""
        return self._member.diversions()

    def leave(self) -> None:
        """Leaves the group, as the end of its `with`: afterwards all methods raise `upcall.Closed`. Twice is once.

        Raises:
            InHandler: in a handler, or in anything else that a method of the group calls.
        """
        self._member.close()

    def __enter__(self) -> Group:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None) -> None:
        self.leave()

    def __repr__(self) -> str:
        closed = "" if self._member.is_open() else ", left, or another thread's"
        return f"<Group: member {self.rank} of {self.size}{closed}>"


def join(
    name: str,
    size: int,
    handlers: Handlers,
    *,
    rank: int | None = None,
    patience: float = 60.0,
    pacing: Pacing = Pacing.ADAPTIVE,
    timeout: float | None = 0.0002,
    limit: int | None = None,
) -> Group:
    """Becomes a member of a group of `size` processes that all say this name, and returns when all others are there.

    `rank` asks for a place; otherwise it gets one that nobody asked for. `patience` is for how many seconds the others are waited for. `timeout`, in seconds too, is the atomicity timeout: so long at most a sender waits for room in the
    queue of a receiver that takes nothing, and then goes on in a buffer; at 0 all messages are buffered, with `None` none is, and senders wait. `limit`: so many bytes at most the group buffers; a quarter of the machine's memory if it is not given.

    Raises:
        JoinError: see its classes.
        ValueError: what a kind carries is no signature, a time no number of seconds, or the limit no number of bytes.
    """
    return Group(name, size, handlers, rank, patience, pacing, timeout, limit)


def join_job(
    handlers: Handlers,
    *,
    patience: float = 60.0,
    pacing: Pacing = Pacing.ADAPTIVE,
    timeout: float | None = 0.0002,
    limit: int | None = None,
) -> Group:
    """Joins the group of the job that this process was started in (`upcall job run --group 4 -- python3 program.py`), with the size and the rank that it has there.

    Raises:
        NoJob: it was not.
    """
    return Group(None, 0, handlers, None, patience, pacing, timeout, limit)
