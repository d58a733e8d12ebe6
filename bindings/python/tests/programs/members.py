"""The member in Python of the tests of languages.

The same as bindings/c/tests/members/member.rs and member.c. Arguments: the group's name and size, a
rank, and what to do.
"""

import gc
import itertools
import operator
import os
import signal
import struct
import sys
import threading
import time
import typing

from expect import raises
from upcall import Closed, Forked, message

ROUNDS = 40
FACTOR = 0x9E3779B97F4A7C15

name, size, rank, what = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]


def values(number: int, sender: int, to: int) -> list[typing.Any]:
    size = [100_000, 3_000_000][number] if number < 2 else number
    return [
        None,
        number,
        (-number, number % 2 == 1, number * 0.5, number * -0.25),
        [number, sender, to, 0, 65535],
        [at * FACTOR % 2**64 for at in range(number)],
        f"{number} ß from {sender}",
        (bytes((at + sender) % 256 for at in range(256)) * (size // 256 + 1))[:size],
    ]


following = [0] * size
asked = False
handlers = message.Handlers()
kinds: list[message.Kind[typing.Any]] = [
    handlers.kind("null"),
    handlers.kind("number", "u64"),
    handlers.kind("small", "(i32, bool, f32, f64)"),
    handlers.kind("array", "[u16; 5]"),
    handlers.kind("words", "words"),
    handlers.kind("text", str),
    handlers.kind("bytes", bytes),
]
plain = handlers.kind("plain", str)
go = handlers.kind("go")


def on(kind: int) -> None:
    @handlers.on(kinds[kind])
    def _(group: message.Group, sender: int, value: typing.Any) -> None:
        number = following[sender]
        following[sender] += 1
        assert number % len(kinds) == kind, (number, kind)
        assert value == values(number // len(kinds), sender, group.rank)[kind], (
            number,
            kind,
            str(value)[:100],
        )


for kind in range(len(kinds)):
    on(kind)


@handlers.on(go)
def _(group: message.Group, sender: int, value: None) -> None:
    global asked
    asked = True


def each_to_each() -> None:
    with message.join(name, size, handlers, rank=rank, patience=40) as group:
        assert (group.rank, group.size) == (rank, size) and group.process(rank) == os.getpid()
        for number in range(ROUNDS):
            for to in range(size):
                for kind, value in zip(kinds, values(number, rank, to)):
                    group.send(to, kind, value)
            group.poll()
        group.run_until(lambda: all(number == ROUNDS * len(kinds) for number in following))
        assert group.reduce(rank + 1, operator.add, "u64") == size * (size + 1) // 2
        assert group.reduce(-float(rank), min) == -(size - 1)
        group.barrier()

        # A member that still waits in the barrier could not get past a message without a handler,
        # so the receiver asks for that message.
        before = (rank - 1) % size
        group.send(before, go)
        while not asked:
            group.poll()
            group.wait(0.001)
        group.send((rank + 1) % size, plain, f"9 ß from {rank}")
        while True:
            try:
                seen = group.peek()
                break
            except message.NothingThere:
                assert list(group.events()) == []
                group.wait()
        assert group.receive() == seen == (before, plain, f"9 ß from {before}")
        group.barrier()
    raises(Closed, group.poll)


def survive() -> None:
    with message.join(name, size, handlers, rank=rank, patience=40) as group:
        group.barrier()
        print("ready", flush=True)
        # Two members are killed, and member 0 leaves. Once this member knows that all three have
        # ended, its barrier fails with MemberEnded, even if another survivor gave it up first.
        lost = {0, size - 2, size - 1}
        ended: set[int] = set()
        # Other survivors may leave before this one knows of all three.
        while not ended >= lost:
            group.poll()
            for event in group.events():
                assert event.violation is None
                ended.add(event.rank)
            if not ended >= lost:
                group.wait(20)
        raises(message.ReceiverEnded, lambda: group.send(size - 1, go))
        assert raises(message.MemberEnded, group.barrier).rank != rank


def differs() -> None:
    others = message.Handlers()
    others.kind("null")
    others.kind("number", int)
    error = raises(
        message.JoinError, lambda: message.join(name, size, others, rank=rank, patience=30)
    )
    assert isinstance(error, (message.NotTakenIn, message.Incomplete))
    print(error)


def violated() -> None:
    """The other member sends a malformed number; this member polls for it, or receives it."""
    others = message.Handlers()
    number = others.kind("number", "u64")
    if what == "polls":

        @others.on(number)
        def _(group: message.Group, sender: int, value: int) -> None:
            raise AssertionError(value)

    with message.join(name, 2, others, rank=1) as group:
        events: list[message.Event] = []
        while not events:
            group.wait(20)
            if what == "polls":
                group.poll()
            else:
                raises(message.NothingThere, group.receive)
            events += group.events()
        assert events[0].rank == 0 and '"number"' in (events[0].violation or "")


class Bang(Exception):
    pass


def computes_until(done: typing.Callable[[], bool]) -> None:
    ends = time.monotonic() + 30
    while not done():
        assert time.monotonic() < ends, "no handler runs"
        sum(range(100))


def interrupted() -> None:
    """This member computes, and the other one interrupts it, in the end by a malformed number."""
    others = message.Handlers()
    number, lie = others.kind("number", "u64"), others.kind("lie", "u64")
    others.kind("text", str)
    others.kind("long", "[u64; 9]")
    heard: list[int] = []
    within = False

    @others.on(number)
    def _(group: message.Group, sender: int, value: int) -> None:
        nonlocal within
        assert value == len(heard) and not within
        within = True
        heard.append(value)
        sum(range(100))
        group.send(sender, number, value)
        within = False

    @others.on(lie)
    def _(group: message.Group, sender: int, value: int) -> None:
        raise AssertionError(value)

    with message.join(name, 2, others, rank=1) as group:
        group.barrier()
        with group.upcalls(), group.upcalls():
            computes_until(lambda: len(heard) == 300)
            events: list[message.Event] = []

            def is_told() -> bool:
                events.extend(group.events())
                return bool(events)

            computes_until(is_told)
        assert '"lie"' in (events[0].violation or "") and len(heard) == 300


def by_themselves(
    known: message.Handlers, small: message.Kind[typing.Any], boom: message.Kind[int]
) -> None:
    with message.join(name, 1, known) as group:

        def bangs() -> None:
            with group.upcalls():
                group.send(0, boom, 0)
                computes_until(lambda: False)

        raises(Bang, bangs)
        raises(Bang, bangs)
        kept_off = 0

        def bangs_after_a_section() -> None:
            nonlocal kept_off
            with group.atomic():
                group.send(0, boom, 0)
                for _ in range(100_000):
                    kept_off += 1
            computes_until(lambda: False)

        with group.upcalls():
            raises(Bang, bangs_after_a_section)
            assert kept_off == 100_000
            # A message without a handler waits, and does not notify again and again.
            group.send(0, small, (1, [2, 3], 4.0))
            before = time.process_time()
            time.sleep(0.3)
            assert time.process_time() - before < 0.1
            assert group.receive().value == (1, [2, 3], 4.0)
        # No handler runs any more.
        group.send(0, boom, 0)
        for _ in range(100_000):
            pass
        raises(Bang, group.poll)
    group = message.join(name, 1, known)
    with group.upcalls():
        group.leave()
    raises(Closed, lambda: group.upcalls().__enter__())
    assert signal.getsignal(signal.SIGURG) == signal.SIG_DFL
    with message.join(name, 1, known) as group:
        own = signal.signal(signal.SIGURG, lambda *_: None)
        assert "SIGURG" in str(raises(message.NoUpcalls, lambda: group.upcalls().__enter__()))
        signal.signal(signal.SIGURG, own)

    def elsewhere() -> None:
        with message.join(name, 1, known) as group:
            assert "main thread" in str(
                raises(message.OtherThread, lambda: group.upcalls().__enter__())
            )

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()


def alone() -> None:
    known = message.Handlers()
    boom = known.kind("boom", int)
    small = known.kind("small", "(i32, [u8; 2], f32)")
    text, data, words, unit, flag, wide = (
        known.kind("text", str),
        known.kind("data", bytes),
        known.kind("words", "words"),
        known.kind("unit"),
        known.kind("flag", bool),
        known.kind("wide", tuple[int, float]),
    )
    assert (boom.carries, wide.carries, unit.carries, flag.carries) == (
        "i64",
        "(i64, f64)",
        "()",
        "bool",
    )
    raises(ValueError, lambda: known.kind("text", bytes))
    raises(TypeError, lambda: known.kind("odd", dict))
    ran: list[int] = []

    @known.on(boom)
    def _(group: message.Group, sender: int, number: int) -> None:
        ran.append(number)
        if number == 0:
            raise Bang
        if number == 1:
            raises(message.InHandler, group.leave)
            group.send(0, boom, 2)
            assert group.poll() == 1

    with message.join(name, 1, known) as group:
        # A handler that raises: its message was taken, and later messages wait.
        for number in [0, 1]:
            group.send(0, boom, number)
        raises(Bang, group.poll)
        assert ran == [0] and group.poll() == 1 and ran == [0, 1, 2]
        group.send(0, boom, 0)
        raises(Bang, lambda: group.run_until(lambda: False))

        def refuses() -> object:
            raise Bang

        raises(Bang, lambda: group.run_until(refuses))

        # A payload that does not fit its kind: nothing is sent.
        for kind, value, wrong in [
            (boom, 2**63, ValueError),
            (boom, "1", TypeError),
            (boom, 1.5, TypeError),
            (boom, True, TypeError),
            (boom, None, TypeError),
            (small, (2**31, [0, 0], 0.0), ValueError),
            (small, (0, [0, 256], 0.0), ValueError),
            (small, (0, [0], 0.0), ValueError),
            (small, (0, [0, 0], 1e300), ValueError),
            (small, (0, [0, 0]), ValueError),
            (small, (0, b"00", 0.0), TypeError),
            (small, 7, TypeError),
            (text, b"x", TypeError),
            (text, "\ud800", ValueError),
            (data, "x", TypeError),
            (words, [-1], ValueError),
            (words, "x", TypeError),
            (unit, 1, TypeError),
            (flag, 1, TypeError),
            (wide, (1, "x"), TypeError),
        ]:
            raises(wrong, lambda: group.send(0, kind, value))
        assert not group.available
        for none in [1, -1, 2**70]:
            assert f"no rank {none} in a group of 1" in str(
                raises(message.NoSuchRank, lambda: group.send(none, unit))
            )
            raises(message.NoSuchRank, lambda: group.try_send(none, unit))
            raises(message.NoSuchRank, lambda: group.buffered(none))
            assert group.process(none) is None
        bad: typing.Any = "0"
        raises(TypeError, lambda: group.send(bad, unit))
        raises(ValueError, lambda: group.send(0, kinds[0], None))
        raises(message.NothingThere, group.receive)
        raises(message.NothingThere, group.peek)
        assert not group.wait(0.001)
        raises(ValueError, lambda: group.wait(-1))

        for kind, value, found in [
            (
                small,
                (-5, (1, 255), 0.1),
                (-5, [1, 255], struct.unpack("f", struct.pack("f", 0.1))[0]),
            ),
            (data, memoryview(b"abc"), b"abc"),
            (data, bytearray(3_000_000), bytes(3_000_000)),
            (words, range(3), [0, 1, 2]),
            (words, [2**64 - 1], [2**64 - 1]),
            (text, "", ""),
            (unit, None, None),
            (flag, True, True),
            (wide, (1, 2), (1, 2.0)),
        ]:
            assert group.try_send(0, kind, value)
            assert group.available and group.wait(5)
            assert group.peek() == (0, kind, found) == group.receive(), (kind, value)

        # No handler.
        group.send(0, text, "x")
        error = raises(message.Unhandled, group.run_until)
        assert (error.rank, error.kind) == (0, "text") and group.receive().value == "x"

        with group.atomic(), group.atomic():
            group.send(0, boom, 5)
        assert group.poll() == 1
        assert group.reduce(7, max) == 7 and group.reduce(2**64 - 1, max, "u64") == 2**64 - 1
        raises(ValueError, lambda: group.reduce(2**64, max, "u64"))
        raises(ValueError, lambda: group.reduce(1, max, "u7"))
        # Three megabytes did not go the direct way.
        assert (
            group.buffered(0) == 0
            and group.diverted > 0
            and group.diversions > 0
            and "member 0 of 1" in repr(group)
        )

        # Another thread.
        found_there: list[BaseException] = []

        def elsewhere() -> None:
            calls: list[typing.Callable[[], object]] = [
                group.poll,
                group.receive,
                group.wait,
                group.barrier,
                group.leave,
                lambda: group.available,
                lambda: group.send(0, unit),
            ]
            for call in calls:
                found_there.append(raises(message.OtherThread, call))

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        assert len(found_there) == 7 and group.rank == 0

        # Other threads run while it waits.
        counted = itertools.count()
        stop = threading.Event()

        def count() -> None:
            while not stop.is_set():
                next(counted)

        thread = threading.Thread(target=count)
        thread.start()
        group.wait(0.1)
        assert next(counted) > 1000
        stop.set()
        thread.join()

        # Ctrl-C.
        waits: list[typing.Callable[[], object]] = [group.wait, group.run_until]
        for wait in waits:
            main = threading.main_thread().ident
            assert main is not None
            threading.Timer(0.1, signal.pthread_kill, [main, signal.SIGINT]).start()
            start = time.monotonic()
            raises(KeyboardInterrupt, wait)
            assert time.monotonic() - start < 20

        # A signal handler that uses the group while it waits, and does not raise.
        def on_alarm(*_: object) -> None:
            raises(message.InHandler, group.leave)
            group.send(0, boom, 7)
            assert group.poll() == 1 and not group.wait(0)

        signal.signal(signal.SIGALRM, on_alarm)
        waits = [lambda: group.wait(0.7), lambda: group.run_until(lambda: ran[-1] == 7)]
        for wait in waits:
            ran.append(-1)
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            start = time.monotonic()
            assert not wait() and ran[-1] == 7
        assert time.monotonic() - start < 20

        child = os.fork()
        if child == 0:
            raises(Forked, group.poll)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        group.send(0, boom, 6)
        assert group.poll() == 1

    raises(Closed, lambda: group.send(0, unit))
    group.leave()
    threading.Timer(0.3, os.kill, [os.getpid(), signal.SIGINT]).start()
    raises(KeyboardInterrupt, lambda: message.join(name, 2, known))
    for none in [0, -1, 1025, 2**70]:
        assert f"members, not {none}" in str(
            raises(message.BadGroup, lambda: message.join(name, none, known))
        )
    for none in [1, -1, 2**70]:
        assert f"no rank {none} in a group of 1" in str(
            raises(message.BadGroup, lambda: message.join(name, 1, known, rank=none))
        )
    raises(ValueError, lambda: message.join(name, 1, known, limit=-1))
    raises(ValueError, lambda: message.join(name, 1, known, timeout=-1))
    raises(ValueError, lambda: message.join(name, 1, known, patience=float("inf")))
    raises(message.BadGroup, lambda: message.join("no/name", 1, known))
    raises(message.Incomplete, lambda: message.join(name, 2, known, patience=0.01))
    raises(message.NoJob, lambda: message.join_job(known))
    many = message.Handlers()
    for number in range(200):
        many.kind(f"{number:01000}")
    raises(message.BadGroup, lambda: message.join(name, 1, many))
    bad = message.Handlers()
    bad.kind("bad", "u46")
    assert "u46" in str(raises(ValueError, lambda: message.join(name, 1, bad)))
    # All messages go through the buffer.
    with message.join(name, 1, known, timeout=0) as group:
        group.send(0, boom, 5)
        assert group.poll() == 1 and group.diverted == 1 and group.diversions == 1
    by_themselves(known, small, boom)
    # A group that is not left ends with its object.
    message.join(name, 1, known)
    gc.collect()


{
    "all": each_to_each,
    "survive": survive,
    "differs": differs,
    "alone": alone,
    "polls": violated,
    "receives": violated,
    "interrupts": interrupted,
}[what]()
