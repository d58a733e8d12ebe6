"""A member in Python that reads messages in place, as bindings/c/tests/members/in_place.c does.

Arguments: the group's name and size, a rank, and what to do.
"""

import gc
import hashlib
import io
import os
import struct
import sys
import tempfile
import threading
import time
import typing

from expect import raises
from upcall import Closed, message

LARGE, LITTLE = 64 << 20, 8 << 20

name, size, rank, what = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]


handlers = message.Handlers()
data, number, text = (
    handlers.kind("bytes", bytes),
    handlers.kind("number", "u64"),
    handlers.kind("text", str),
)


def resident() -> int:
    """Resident bytes of this process, including those of files."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) << 10


def is_large(found: message.Place, before: int) -> None:
    assert (found.sender, found.kind, found.size, len(found)) == (0, data, LARGE, LARGE)
    with memoryview(found) as view:
        assert view[0] == 3 and view[-1] == 5 and found.word(LARGE // 8 - 1) >> 56 == 5
    assert resident() < before + LITTLE


def large() -> None:
    """A large message of another process, which leaves early."""
    with message.join(name, 2, handlers, rank=1, patience=40) as group:
        group.barrier()
        group.wait()
        before = resident()
        with group.peek_in_place() as found:
            is_large(found, before)
        # The contrast: it shows that a copy would be noticed.
        copy = group.peek().value
        assert len(copy) == LARGE and resident() > before + LARGE
        del copy
        before = resident()
        with group.receive_in_place() as found:
            print("ready", flush=True)
            time.sleep(0.2)
            assert list(group.events()) == []
            is_large(found, before)
            # To a file and to a hash, from where it lies.
            with tempfile.TemporaryFile(buffering=0) as file:
                assert file.write(found) == LARGE
                assert os.pread(file.fileno(), 2, LARGE - 2) == b"\0\5"
            hashlib.sha256(found).digest()
        # All of it was read, so it is resident where it lies, and nowhere else.
        assert resident() < before + LARGE + LITTLE
        assert group.receive() == (0, number, 7)
        events: list[message.Event] = []
        while not events:
            raises(message.NothingThere, lambda: group.receive_in_place().__enter__())
            events += group.events()
            if not events:
                group.wait(20)
        assert events == [message.Event(0, None)]


def violated() -> None:
    """The other member sends a malformed number."""
    others = message.Handlers()
    others.kind("number", "u64")
    with message.join(name, 2, others, rank=1, patience=40) as group:
        events: list[message.Event] = []
        while not events:
            group.wait(20)
            looking = group.receive_in_place() if what == "receives" else group.peek_in_place()
            raises(message.NothingThere, looking.__enter__)
            events += group.events()
        assert events[0].rank == 0 and '"number"' in (events[0].violation or "")


class Bang(Exception):
    pass


def is_read(group: message.Group) -> None:
    """Words, bytes and text, each read through all kinds of buffers."""
    words = [1, 2**64 - 1, 3]
    group.send(0, wide, words)
    # The first message opens a queue, which this member's clerk accepts.
    assert group.wait(60)
    with group.peek_in_place() as found:
        assert (found.sender, found.kind, found.size, len(found)) == (
            0,
            wide,
            24,
            24,
        ) and "24 bytes from member 0" in repr(found)
        assert [found.word(at) for at in range(3)] == words
        for beyond in [3, -1, 2**61, 2**70]:
            raises(IndexError, lambda: found.word(beyond))
        wrong: typing.Any = "0"
        raises(TypeError, lambda: found.word(wrong))
        with memoryview(found) as view:
            assert (
                view.readonly
                and view.nbytes == 24
                and view.obj is found
                and view.cast("Q").tolist() == words
            )
        with memoryview(found) as view, view.cast("q") as signed:
            assert signed[1] == -1
        assert struct.unpack_from("QQ", found, 8) == (2**64 - 1, 3)
        unreadable: typing.Any = found
        raises(TypeError, lambda: io.BytesIO(bytes(24)).readinto(unreadable))
        # On another thread.
        seen: list[object] = []
        thread = threading.Thread(target=lambda: seen.extend([found.word(2), bytes(found)[:1]]))
        thread.start()
        thread.join()
        assert seen == [3, b"\1"]
    raises(Closed, lambda: found.word(0))
    raises(Closed, lambda: memoryview(found))
    assert found.size == 24 and "over" in repr(found)
    assert group.receive() == (0, wide, words)

    sent: list[tuple[message.Kind[typing.Any], object, bytes]] = [
        (data, b"as is", b"as is"),
        (text, "groß", "groß".encode()),
        (number, 7, struct.pack("Q", 7)),
        (unit, None, b""),
        (data, b"", b""),
    ]
    for kind, value, carried in sent:
        group.send(0, kind, value)
        with group.receive_in_place() as found:
            assert found.kind is kind and bytes(found) == carried and found.size == len(carried)
            assert hashlib.sha256(found).digest() == hashlib.sha256(carried).digest()
            with tempfile.TemporaryFile() as file:
                file.write(found)
                file.seek(0)
                assert file.read() == carried
    raises(message.NothingThere, lambda: group.peek_in_place().__enter__())


def is_in_order(group: message.Group) -> None:
    """Messages that are held, kept or disposed of while the group is in use."""
    for value in range(4):
        group.send(0, number, value)
    with group.peek_in_place() as found:
        assert (
            found.word(0) == 0
            and not group.available
            and group.poll() == 0
            and not group.wait(0.001)
        )
        raises(message.NothingThere, group.receive)
        raises(message.NothingThere, lambda: group.receive_in_place().__enter__())
        group.send(0, number, 4)
    for value in range(2):
        with group.receive_in_place() as found:
            assert found.word(0) == value and not group.available
    assert group.receive().value == 2

    # The message is taken even if the `with` raises.
    def bangs() -> None:
        with group.receive_in_place() as found:
            assert found.word(0) == 3
            raise Bang

    raises(Bang, bangs)
    # A context manager that is dropped ends by itself.
    looking = group.receive_in_place()
    assert looking.__enter__().word(0) == 4 and not group.available
    del looking
    gc.collect()
    raises(message.NothingThere, group.receive)
    # In a handler.
    group.send(0, calls, 1)
    group.send(0, number, 5)
    assert group.poll() == 1 and called == [5] and not group.available


def views_are_told_of(group: message.Group) -> None:
    def keeps_one(peeks: bool) -> memoryview:
        looking = group.peek_in_place() if peeks else group.receive_in_place()
        found = looking.__enter__()
        view = memoryview(found)
        error = raises(message.StillViewed, lambda: looking.__exit__(None, None, None))
        assert (
            isinstance(error, BufferError)
            and isinstance(error, message.GroupError)
            and "release" in str(error)
        )
        raises(Closed, lambda: memoryview(found))
        raises(Closed, lambda: found.word(0))
        return view

    group.send(0, data, b"first" * 100_000)
    group.send(0, number, 2)
    for peeks in [True, False]:
        view = keeps_one(peeks)
        other = view[5:10]
        view.release()
        raises(message.NothingThere, group.receive)
        gc.collect()
        assert not group.available and bytes(other) == b"first"
        if peeks:
            other.release()
        else:
            # On another thread; the next method call notices it.
            threads = [threading.Thread(target=other.release)]
            threads[0].start()
            threads[0].join()
        assert group.available
    assert group.receive() == (0, number, 2)

    # An exception of the `with` is not replaced, although its frame holds a view.
    group.send(0, number, 3)
    group.send(0, number, 4)

    def bangs() -> None:
        with group.receive_in_place() as found:
            view = memoryview(found)
            raise Bang(view)

    error = raises(Bang, bangs)
    raises(message.NothingThere, group.receive)
    error.args[0].release()
    assert group.receive().value == 4
    del error


def outlives(known: message.Handlers) -> list[memoryview]:
    """Views that outlive the group: left, dropped, in a fork, at the interpreter's end."""

    def viewed(group: message.Group) -> memoryview:
        group.send(0, data, bytes([7]) * 1_000_000)
        looking = group.receive_in_place()
        view = memoryview(looking.__enter__())
        raises(message.StillViewed, lambda: looking.__exit__(None, None, None))
        return view

    group = message.join(name, 1, known)
    left = viewed(group)
    group.leave()
    raises(Closed, group.receive)
    assert left[-1] == 7

    group = message.join(name, 1, known)
    group.send(0, number, 1)

    def leaves_within() -> None:
        with group.receive_in_place() as found:
            group.leave()
            assert found.word(0) == 1

    leaves_within()

    dropped = viewed(message.join(name, 1, known))
    gc.collect()
    assert dropped[-1] == 7 == dropped[0]

    elsewhere: list[memoryview] = []
    thread = threading.Thread(target=lambda: elsewhere.append(viewed(message.join(name, 1, known))))
    thread.start()
    thread.join()
    gc.collect()
    assert elsewhere[0][-1] == 7

    child = os.fork()
    if child == 0:
        os._exit(0 if left[-1] == dropped[-1] == elsewhere[0][-1] == 7 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    return [left, dropped, *elsewhere]


called: list[int] = []
wide, unit, calls = (
    handlers.kind("wide", "words"),
    handlers.kind("unit"),
    handlers.kind("calls", "u64"),
)


@handlers.on(calls)
def _(group: message.Group, sender: int, value: int) -> None:
    with group.receive_in_place() as found:
        called.append(found.word(0))


def alone() -> None:
    with message.join(name, 1, handlers) as group:
        for look in [is_read, is_in_order, views_are_told_of]:
            look(group)
            assert not group.available

        def elsewhere() -> None:
            raises(message.OtherThread, lambda: group.receive_in_place().__enter__())
            raises(message.OtherThread, lambda: group.peek_in_place().__enter__())

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
    raises(Closed, lambda: group.receive_in_place().__enter__())
    kept.extend(outlives(handlers))


kept: list[memoryview] = []
if what != "alone":
    # The kinds of the other member.
    handlers = message.Handlers()
    data, number, text = (
        handlers.kind("bytes", bytes),
        handlers.kind("number", "u64"),
        handlers.kind("text", str),
    )
{"alone": alone, "large": large, "receives": violated, "peeks": violated}[what]()
