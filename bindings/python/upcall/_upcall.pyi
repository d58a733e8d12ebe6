"""The engine, in Rust."""

import asyncio
import collections.abc
import typing

from upcall import message
from upcall._accepting import Accepts
from upcall._joining import Terms

__version__: str

class Caller:
    _upcall_view: typing.ClassVar[typing.Any]
    def __init__(self, *args: typing.Any, **kwargs: typing.Any) -> None: ...
    def _with_deadline(self, seconds: float | None) -> typing.Any: ...
    def _with_cancel(self, token: CancelToken | None) -> typing.Any: ...
    def _with_hand_off(self, at_once: bool) -> typing.Any: ...
    def _with_when_full(self, grow: bool) -> typing.Any: ...
    def _set_pacing(self, number: int) -> None: ...
    def _is_open(self) -> bool: ...
    def _server_pid(self) -> int: ...
    def _name(self) -> str: ...
    def _close(self) -> None: ...

class Kind: ...

@typing.final
class CancelToken:
    """A token that cancels calls, once: see `Client.with_cancel`."""

    def __init__(self) -> None: ...
    def cancel(self) -> None:
        """Cancels all calls that have this token: they raise `CallAborted`.

        Any thread may call this; it never waits.
        """

    @property
    def is_cancelled(self) -> bool:
        """Whether `cancel` has been called."""

@typing.final
class Bytes:
    """Bytes that a client sent, uninterpreted and not copied, for the time of the call.

    The client can still change them, so there is no view of them as memory. They can be copied
    (`bytes(data)`, `chunks`), or written to a descriptor. Once the procedure has returned, every
    use raises `Closed`.
    """

    def __len__(self) -> int: ...
    def __bytes__(self) -> bytes: ...
    def part(self, start: int, length: int) -> Bytes:
        """A part of the bytes: `length` bytes from `start` on."""

    def chunks(self, size: int = 65536) -> collections.abc.Iterator[bytes]:
        """Copies of consecutive parts of at most `size` bytes.

        For hashing and parsing without a copy of the whole.
        """

    def write_to(self, file: int | typing.IO[bytes]) -> None:
        """Writes all bytes to a file or a descriptor, without a copy in this process.

        Flushes what the file has buffered first.
        """

@typing.final
class Served:
    def stop(self, seconds: float | None = None) -> bool: ...
    def addresses(self) -> list[str]: ...
    def revoke(self, pid: int) -> int: ...

@typing.final
class Finished:
    def result(self) -> typing.Any: ...
    def forget(self) -> None: ...

@typing.final
class Completions:
    def __init__(self) -> None: ...
    def fileno(self) -> int: ...
    def call(
        self,
        caller: Caller,
        number: int,
        args: tuple[typing.Any, ...],
        kwargs: dict[str, typing.Any],
        key: int,
    ) -> CancelToken: ...
    def take(self) -> list[tuple[int, Finished]]: ...

def declare(version: int, source: str, limits: str, classes: dict[str, typing.Any]) -> None: ...
def module_of(title: str, source: str, limits: str) -> str: ...
def module_of_file(path: str) -> str: ...
def heed() -> None: ...
def learn(
    name: str, expect: Accepts | None = None, wait: float | None = None
) -> tuple[str, str, str]: ...
def start(
    exports: list[tuple[str, typing.Any, object]],
    processors: int,
    pacing: int,
    on: asyncio.AbstractEventLoop | None,
    admits: Accepts | None,
    mode: int | None,
    group: int | None,
    listen: list[str],
) -> Served: ...
def deadline() -> float | None: ...
def peer_host() -> str | None: ...
def _close() -> None: ...

@typing.final
class Place:
    """A message where it lies, in memory that its sender can write.

    `Group.receive_in_place` and `peek_in_place` return it. It has the buffer protocol, read-only:
    `memoryview(message)`, `file.write(message)`, `hashlib.sha256(message)` and
    `numpy.frombuffer(message)` use it without a copy. Numbers are words of eight bytes, so
    `memoryview(message).cast("Q")` reads them (`"q"` for signed ones, `"d"` for `f64`).

    The sender can still change the bytes, at any moment. Copy what is checked and then used:
    `bytes(message)`. Only the payload's size is checked against the kind, so numbers may be out of
    the range of a narrow type, and text is bytes that need not be UTF-8.

    Any thread may read it. After its `with`, reading a word or making a buffer raises `Closed`.
    """

    @property
    def sender(self) -> int:
        """The sender's rank."""

    @property
    def kind(self) -> message.Kind[typing.Any]:
        """The message's kind."""

    @property
    def size(self) -> int:
        """Size of the payload, in bytes."""

    def word(self, at: int) -> int:
        """A word of the payload, from 0 to 2**64 - 1, read once.

        Raises:
            IndexError: there is no such word.
            Closed: its `with` has ended.
        """

    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@typing.final
class Petition:
    """A request of a process that is no member, such as for an invitation.

    `Group.petition` returns it. It comes from a process of a trusted host, or of this user on this
    host. A petition that is dropped is refused. Any thread may use it.
    """

    @property
    def request(self) -> bytes:
        """What was asked, at most 4 KiB. Another program may have written anything into it."""

    @property
    def host(self) -> str | None:
        """The proved identity of the host of the process that has asked, in hexadecimal digits.

        `None`: that process has asked at a loopback address of this machine.
        """

    def answer(self, answer: bytes) -> None:
        """Sends the answer, at most 4 MiB. If the other process has ended, it is dropped.

        Does not wait.

        Raises:
            Closed: the petition was answered or refused before.
        """

    def refuse(self, why: str) -> None:
        """Refuses the request: the other process gets a `NotTakenIn` with this reason.

        Does not wait.

        Raises:
            Closed: the petition was answered or refused before.
        """

def petition(across: str, request: bytes, patience: float) -> bytes: ...
@typing.final
class Member:
    def __init__(
        self,
        terms: Terms,
        kinds: list[tuple[str, str, collections.abc.Callable[[int, typing.Any], object] | None]],
    ) -> None: ...
    def rank(self) -> int: ...
    def size(self) -> int: ...
    def process(self, rank: int) -> int | None: ...
    def send(
        self, to: int, kind: int, value: typing.Any, waits: bool, limit: float | None
    ) -> None: ...
    def available(self) -> bool: ...
    def poll(self) -> int: ...
    def take(self, takes: bool) -> tuple[int, int, typing.Any]: ...
    def place(self, takes: bool, kinds: list[message.Kind[typing.Any]]) -> Place: ...
    def end(self, place: Place) -> bool: ...
    def wait(self, seconds: float | None) -> bool: ...
    def run_until(self, done: collections.abc.Callable[[], object] | None) -> None: ...
    def barrier(self) -> None: ...
    def reduce(
        self,
        number: str,
        value: typing.Any,
        combine: collections.abc.Callable[[typing.Any, typing.Any], typing.Any],
    ) -> typing.Any: ...
    def event(self) -> tuple[int, str | None, bool, int | None] | None: ...
    def expect(self, first: int, end: int) -> str: ...
    def expect_from(self, first: int, end: int, petition: Petition) -> str: ...
    def petition(self) -> Petition | None: ...
    def expect_no_more(self, first: int, end: int) -> None: ...
    def expel(self, first: int, end: int) -> None: ...
    def has_joined(self, rank: int) -> bool: ...
    def is_first(self) -> bool: ...
    def announce(self) -> None: ...
    def retract(self) -> None: ...
    def begin_atomic(self) -> None: ...
    def end_atomic(self) -> None: ...
    def buffered(self, to: int) -> int: ...
    def diverted(self) -> int: ...
    def diversions(self) -> int: ...
    def is_open(self) -> bool: ...
    def close(self) -> None: ...
