"""A member of a group, the kinds of messages that it knows, and its handlers."""

from __future__ import annotations

import contextlib
import dataclasses
import types
import typing
import weakref
from collections.abc import Callable, Iterator

from upcall import _upcall
from upcall._events import Event
from upcall._joining import Invitation, Terms, bounds
from upcall._signals import heeding
from upcall._signatures import signature
from upcall._upcall import Petition, Place
from upcall.errors import Full, OtherThread, StillViewed

_T = typing.TypeVar("_T")
_Number = typing.TypeVar("_Number", int, float)


@dataclasses.dataclass(frozen=True)
class Kind(typing.Generic[_T]):
    """A kind of message that carries a `_T`."""

    name: str
    #: The signature of the payload, which is the same in all languages.
    carries: str
    _index: int
    _of: object = dataclasses.field(repr=False, compare=False)


class Message(typing.NamedTuple):
    """A message that was received or peeked."""

    #: The sender's rank.
    sender: int
    kind: Kind[typing.Any]
    value: typing.Any


class Handlers:
    """The kinds of messages that a member knows, and its handlers.

    All members of a group have the same kinds in the same order; each has its own handlers.
    """

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
        """Registers another kind of message.

        Without a handler, its messages wait until they are received.

        `carries` is a type: `int` (an `i64`), `float`, `bool`, a tuple of these, `str`, `bytes`, or
        `None` for nothing. Or it is a signature: a number `u64 i64 u32 i32 u16 u8 bool f64 f32`, an
        array `[u64; 4]`, which is a list here, a tuple `(u64, (f64, bool))`, `words`, which are a
        list of any length, `bytes`, `text`, `()`.

        Raises:
            ValueError: there is already a kind of that name. A malformed signature is reported when
                the group is joined.
        """
        if any(known.name == name for known in self._kinds):
            raise ValueError(f"there is a kind of message {name!r} already")
        kind: Kind[typing.Any] = Kind(name, signature(carries), len(self._kinds), self)
        self._kinds.append(kind)
        return kind

    def on(
        self, kind: Kind[_T]
    ) -> Callable[[Callable[[Group, int, _T], object]], Callable[[Group, int, _T], object]]:
        """A decorator that sets the handler for messages of a kind.

        The function is called with the group, the sender and the payload, by the methods of the
        group that poll: `poll`, `run_until`, `barrier`, `reduce`. The message is taken before, so
        the handler may send, poll and wait; while it waits, other handlers run. An exception of the
        handler leaves the method that runs it.
        """
        if kind._of is not self:
            raise ValueError(f"{kind.name!r} was registered with other handlers")

        def register(
            handler: Callable[[Group, int, _T], object],
        ) -> Callable[[Group, int, _T], object]:
            self._handlers[kind._index] = handler
            return handler

        return register


class Group:
    """A process's membership in a group, made by `join`.

    Use it in a `with`, at whose end the process leaves: messages that it sent still arrive, and the
    other members get an event.
    """

    def __init__(self, handlers: Handlers, terms: Terms) -> None:
        # A weak reference: the garbage collector cannot see a cycle through the engine.
        this = weakref.ref(self)

        def bound(
            handler: Callable[[Group, int, typing.Any], object],
        ) -> Callable[[int, typing.Any], object]:
            def run(sender: int, value: typing.Any) -> object:
                group = this()
                return None if group is None else handler(group, sender, value)

            return run

        self._kinds = list(handlers._kinds)
        self._handlers = handlers
        running = {index: bound(handler) for index, handler in handlers._handlers.items()}
        kinds = [(kind.name, kind.carries, running.get(kind._index)) for kind in self._kinds]
        self._member = _upcall.Member(terms, kinds)

    @property
    def rank(self) -> int:
        """This member's rank, from 0."""
        return self._member.rank()

    @property
    def size(self) -> int:
        """The number of members, including those that have ended.

        It also counts those for which the group has room.
        """
        return self._member.size()

    def process(self, rank: int) -> int | None:
        """A member's process ID.

        `None`: there is no such member, or its process is on another host or not visible in this
        PID namespace.
        """
        return self._member.process(rank)

    def _index(self, kind: Kind[typing.Any]) -> int:
        if kind._of is not self._handlers or kind._index >= len(self._kinds):
            raise ValueError(f"{kind.name!r} is not a kind of message of this group")
        return kind._index

    @typing.overload
    def send(self, to: int, kind: Kind[None], *, timeout: float | None = None) -> None: ...
    @typing.overload
    def send(self, to: int, kind: Kind[_T], value: _T, *, timeout: float | None = None) -> None: ...

    def send(
        self,
        to: int,
        kind: Kind[typing.Any],
        value: typing.Any = None,
        *,
        timeout: float | None = None,
    ) -> None:
        """Sends a message.

        Once this has returned the message arrives, exactly once and in order, unless the receiver
        ends before taking it.

        The send does not wait for the receiver. It waits only for room in the receiver's queue, and
        no longer than the group's timeout. If this member has buffered all that it may, or if the
        group has no timeout, it waits until the receiver has taken some messages: as long as that
        takes, or for `timeout` seconds. While it waits it runs the handlers of arriving messages,
        except in an atomic section. If arriving messages have no handler, and members wait for each
        other's room, they wait forever: `timeout` ends that.

        If this raises, nothing was sent.

        Raises:
            TypeError, ValueError: the value does not fit the kind.
            Full, Overflow: there was no room for `timeout` seconds.
            SendError: see its classes.
            BaseException: the exception of a handler.
        """
        self._member.send(to, self._index(kind), value, True, timeout)

    @typing.overload
    def try_send(self, to: int, kind: Kind[None]) -> bool: ...
    @typing.overload
    def try_send(self, to: int, kind: Kind[_T], value: _T) -> bool: ...

    def try_send(self, to: int, kind: Kind[typing.Any], value: typing.Any = None) -> bool:
        """Sends a message if there is room now. Otherwise returns false, and nothing was sent.

        Runs no handlers.
        """
        try:
            self._member.send(to, self._index(kind), value, False, None)
        except Full:
            return False
        return True

    @property
    def available(self) -> bool:
        """Whether a message waits: one load for each member that has ever sent a message here."""
        return self._member.available()

    def poll(self) -> int:
        """Runs the handlers of waiting messages, and returns the number of messages.

        It handles at most 64 messages of each member. A message without a handler stays, and so do
        those of the same sender behind it. Does not wait.
        """
        return self._member.poll()

    def receive(self) -> Message:
        """Takes the next message, even if it has a handler. Senders take turns. Does not wait.

        Raises:
            NothingThere: no message waits.
        """
        sender, kind, value = self._member.take(True)
        return Message(sender, self._kinds[kind], value)

    def peek(self) -> Message:
        """Returns the message that `receive` would take, which stays.

        Raises:
            NothingThere: no message waits.
        """
        sender, kind, value = self._member.take(False)
        return Message(sender, self._kinds[kind], value)

    @contextlib.contextmanager
    def receive_in_place(self) -> Iterator[Place]:
        """Takes the next message, even if it has a handler, but leaves it where it lies.

        The message is disposed of at the end of the `with`, even if an exception ends that. Nothing
        is copied, however large the message is. Does not wait.

            with group.receive_in_place() as message:
                file.write(message)

        Within the `with` the sender can still change the bytes: see `Place`. Until the message is
        disposed of, no other message of the same sender is taken. Receiving or polling in the
        `with` finds only messages of other senders, and a wait for this sender's next message, also
        in `barrier`, does not end. If the sender dies, the bytes stay, and the event follows the
        message. The bytes also stay when the group is left.

        Raises:
            NothingThere: no message waits.
            StillViewed: at the end of the `with`, a buffer of the message is still exported: a
                `memoryview` that was not released, or an array. When the last of these has gone,
                the next method call on the group disposes of the message. An exception of the
                `with` is not replaced by this one.
        """
        return self._in_place(True)

    @contextlib.contextmanager
    def peek_in_place(self) -> Iterator[Place]:
        """Returns the message that `receive` would take, where it lies, as `receive_in_place` does.

        The message stays, and after the `with` it is the next one of its sender again.

        Raises:
            NothingThere: no message waits.
            StillViewed: as for `receive_in_place`; the message cannot be taken until the last
                buffer has gone.
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
                raise StillViewed(
                    "the message cannot be disposed of while a buffer of it is exported: "
                    "release it (memoryview.release, del) within the `with`, or copy what is "
                    "needed longer (bytes)"
                )

    def wait(self, timeout: float | None = None) -> bool:
        """Waits for a message or an event, at most `timeout` seconds. Returns true if there is one.

        Runs no handlers.

        Raises:
            ValueError: `timeout` is not a valid number of seconds.
        """
        return self._member.wait(timeout)

    def run_until(self, done: Callable[[], object] | None = None) -> None:
        """Runs handlers and waits until `done` returns a true value.

        Raises:
            MemberEnded, MemberViolation: another member is lost.
            Parted: two others have lost each other.
            Unhandled: a message without a handler waits.
        """
        self._member.run_until(done)

    def barrier(self) -> None:
        """Waits until all members have reached the barrier, and runs handlers while it waits.

        Raises:
            RunError: a member is lost that had not reached the barrier, two members have lost each
                other, or a message without a handler waits. After a loss, or after an exception of
                a handler, no later barrier holds.
        """
        self._member.barrier()

    def reduce(
        self,
        value: _Number,
        combine: Callable[[_Number, _Number], _Number],
        number: str | None = None,
    ) -> _Number:
        """Combines one number of each member, in the order of ranks: `group.reduce(1.5, max)`.

        All members call this with the same `combine`, which must be associative, and get the same
        result. Numbers are `i64` if they are `int`, otherwise `f64`; `number` can override this:
        "u64". Runs handlers while it waits.

        Raises:
            RunError: as for `barrier`.
        """
        if number is None:
            number = "i64" if isinstance(value, int) else "f64"
        return typing.cast(_Number, self._member.reduce(number, value, combine))

    def events(self) -> Iterator[Event]:
        """Yields the events of other members, in the order in which they were noticed, each once.

        Ends when there are no more. Polling, receiving and peeking notice events.
        """
        while (event := self._member.event()) is not None:
            yield Event(*event)

    def expect(self, ranks: range, petition: Petition | None = None) -> Invitation:
        """Expects members with these ranks to join from now on, together (`join_late`).

        To be called in the member that takes in others, which must live while they join, but need
        not poll. Does not wait: each arrival is an event, whose `joined` is true. A message to a
        rank that has not joined is refused (`NoQueue`). A rank is given once, and that of a member
        that has ended stays unused.

        Returns:
            The invitation that the processes of these ranks show. With a `petition`, only processes
            of its host can use it.

        Raises:
            NoRoom, NotLeader, RankTaken: no member is expected.
            ValueError: `ranks` are not consecutive ranks.
        """
        if petition is not None:
            return Invitation(self._member.expect_from(*bounds(ranks), petition))
        return Invitation(self._member.expect(*bounds(ranks)))

    def petition(self) -> Petition | None:
        """Takes the next request of a process that is no member (`upcall.message.petition`).

        Petitions arrive as events do, in the member that takes in others. While 16 are not
        answered, further ones are refused. If the other process gives up before, its petition does
        not appear here. `None`: there is none. Does not wait.
        """
        return self._member.petition()

    def expect_no_more(self, ranks: range) -> None:
        """Stops expecting the members of an `expect`, as long as not all of them have applied.

        Those that have applied are refused, and the ranks may be expected again.
        """
        self._member.expect_no_more(*bounds(ranks))

    def expel(self, ranks: range) -> None:
        """Expels members on other hosts, in the member that takes in others.

        This member neither sends to them nor receives from them any more, even if they live: they
        have ended. A member that has not joined yet is refused when it comes. A newcomer needs a
        connection with every member that is there, and waits for stopped members; it needs none
        with an expelled member.
        """
        self._member.expel(*bounds(ranks))

    def has_joined(self, rank: int) -> bool:
        """Whether a member has joined: false if it is to join later, and has not yet.

        Raises:
            NoSuchRank: there is no such member.
        """
        return self._member.has_joined(rank)

    @contextlib.contextmanager
    def upcalls(self) -> Iterator[None]:
        """Within this, handlers run by upcalls while the main thread computes.

        They run between two bytecodes, as Python's signal handlers do, so they may do anything.
        They do not run within other handlers, methods of the group, or its sections (`atomic`). A
        long call into code that is not Python delays them. An exception of a handler is raised
        where the thread was.

            with group.upcalls():
                solve()

        Only for the main thread, which a signal (SIGURG) notifies; this installs a handler for it.
        If the thread does nothing but wait for messages, `wait` and `run_until` are faster.

        Raises:
            OtherThread: this is not the main thread.
            NoUpcalls: the program has a handler of its own for SIGURG; the kernel has no
                membarrier(2); or a descriptor or memory is missing.
        """
        if not self._member.is_first():
            raise OtherThread(
                "upcalls run on the main thread only, where Python runs signal handlers: "
                "poll on this thread"
            )
        with heeding():
            self._member.announce()
            try:
                yield
            finally:
                self._member.retract()

    @contextlib.contextmanager
    def atomic(self) -> Iterator[None]:
        """A section in which no handler runs unless this thread polls.

        Handlers that the section kept from running by upcalls (`upcalls`) run after it.
        """
        self._member.begin_atomic()
        try:
            yield
        finally:
            self._member.end_atomic()

    def buffered(self, to: int) -> int:
        """The number of buffered bytes with messages that a member has not taken yet.

        0 while messages to it go the direct way.

        Raises:
            NoSuchRank: there is no such member.
        """
        return self._member.buffered(to)

    @property
    def diverted(self) -> int:
        """How many of this member's messages have gone through a buffer so far.

        Counts messages to members that it can still send to.
        """
        return self._member.diverted()

    @property
    def diversions(self) -> int:
        """How often messages for this member were diverted to a buffer.

        That happens if a sender finds no room for longer than its timeout. No message is lost by
        that. If the number grows, this member keeps messages waiting.
        """
        return self._member.diversions()

    def leave(self) -> None:
        """Leaves the group, as the end of its `with` does.

        Afterwards all methods raise `upcall.Closed`. Leaving again does nothing. Across hosts this
        blocks until the other hosts have what this member has sent to their members, for as long as
        a cut may last. Other threads run in that time; Ctrl-C is noticed after it.

        Raises:
            InHandler: in a handler, or in any other callback of a method of the group.
        """
        self._member.close()

    def __enter__(self) -> Group:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: types.TracebackType | None,
    ) -> None:
        self.leave()

    def __repr__(self) -> str:
        closed = "" if self._member.is_open() else ", left, or another thread's"
        return f"<Group: member {self.rank} of {self.size}{closed}>"
