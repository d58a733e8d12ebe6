"""Arguments and results: what is taken, what is refused and in which words, what is copied."""

import array
import gc
import hashlib
import inspect
import logging
import mmap
import os
import sys
import tempfile
import threading
import typing

import upcall
from common import every, name, raises
from every import Deep, Error, Every, Mode, Numbers, Point, ShapeCircle, ShapeDot
from upcall import errors

seen: list[upcall.Bytes] = []
file = tempfile.TemporaryFile()


def take(data: upcall.Bytes) -> bytes:
    seen[:] = [data]
    assert "memory" not in dir(data) and not isinstance(data, bytes)
    raises(TypeError, lambda: memoryview(data))  # type: ignore[arg-type]
    view: typing.Any = data
    for read in (lambda: view[0], lambda: view[1:2], lambda: list(view)):
        assert "call bytes(data) first" in str(raises(TypeError, read))
    data.write_to(file)
    parts = hashlib.sha256()
    for chunk in data.chunks(1000):
        parts.update(chunk)
    assert parts.digest() == hashlib.sha256(bytes(data)).digest()
    if len(data) >= 10:
        assert bytes(data.part(2, 5)) == bytes(data)[2:7]
    raises(IndexError, lambda: data.part(len(data), 1))
    return bytes(data)[::-1]


def bind(name: str) -> None:
    if name == "no exception":
        raise Error.BUSY  # type: ignore[misc]
    if name == "of another type":
        raise upcall.Err(7)


def fail() -> None:
    raise Error.BUSY  # type: ignore[misc]


logged: list[logging.LogRecord] = []


class Keeps(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        logged.append(record)


logging.getLogger("upcall").addHandler(Keeps())

server = every(
    bytes=take,
    add=lambda a, b: a + b,
    total=lambda values: sum(values),
    get_deep=lambda d: d,
    get_shape=lambda s: None if s == ShapeDot() else s,
    get_numbers=lambda n: n,
    fixed=lambda data: data,
    names=lambda all: ["not", 7],
    find=lambda many: "no variant",
    alive=lambda: -1,
    bind=bind,
    fail=fail,
    bare=lambda: "not None, and nobody cares",
)

with upcall.start(name("values"), server):
    client = Every(name("values"))

    # Any object with a buffer.
    file_of_zeros = mmap.mmap(-1, 8192)
    buffers: list[typing.Any] = [
        b"abc",
        bytearray(b"abc"),
        memoryview(b"xabcx")[1:4],
        array.array("B", b"abc"),
        file_of_zeros,
        b"",
        b"x" * 100_000,
    ]
    for data in buffers:
        before = os.fstat(file.fileno()).st_size
        assert client.bytes(data) == bytes(data)[::-1]
        file.seek(before)
        assert file.read() == bytes(data)
        raises(errors.Closed, lambda: bytes(seen[-1]))
    # The owner of a buffer may change it again after the call.
    grows = bytearray(5000)
    client.bytes(grows)
    grows.append(1)
    assert "bytes, or another contiguous buffer, is expected, and str was given" in str(
        raises(TypeError, lambda: client.bytes("text"))  # type: ignore[arg-type]
    )
    raises(TypeError, lambda: client.bytes(memoryview(b"abcd")[::2]))
    raises(TypeError, lambda: client.bytes([1, 2]))  # type: ignore[arg-type]
    assert client.fixed(bytearray(32)) == bytes(32)
    assert "32 bytes are expected, and 31 were given" in str(
        raises(ValueError, lambda: client.fixed(bytes(31)))
    )

    # Numbers.
    assert (
        client.total([1, 2])
        == client.total((1, 2))
        == client.total(range(3))
        == client.total(array.array("Q", [1, 2]))
        == 3
    )
    assert client.total(array.array("Q", range(1000))) == 499_500
    assert client.total(array.array("I", [1, 2])) == 3, "another element: one by one"
    assert client.add(2**32 - 2, 1) == 2**32 - 1 and client.add(True, 1) == 2
    for wrong, said in [
        (-1, "argument `a`: -1 is no u32"),
        (2**32, "argument `a`: 4294967296 is no u32"),
        (2**70, "is no u32"),
    ]:
        assert said in str(raises(ValueError, lambda: client.add(wrong, 1)))
    for odd, said in [
        ("1", "u32 is expected, and str was given"),
        (1.0, "float was given"),
        (None, "NoneType was given"),
    ]:
        assert said in str(raises(TypeError, lambda: client.add(odd, 1)))  # type: ignore[arg-type]

    class Number:
        def __index__(self) -> int:
            return 7

    class Odd:
        def __index__(self) -> int:
            raise KeyError("of its own")

    assert client.add(Number(), 1) == 8  # type: ignore[arg-type]
    raises(KeyError, lambda: client.add(Odd(), 1))  # type: ignore[arg-type]
    assert "add() misses the argument `b`" in str(
        raises(TypeError, lambda: client.add(1))  # type: ignore[call-arg]
    )
    assert "takes 2 arguments, and 3 were given" in str(
        raises(TypeError, lambda: client.add(1, 2, 3))  # type: ignore[call-arg]
    )
    assert "total() takes 1 argument, and 2 were given" in str(
        raises(TypeError, lambda: client.total([1], 2))  # type: ignore[call-arg]
    )
    assert "null() takes 0 arguments, and 1 was given" in str(
        raises(TypeError, lambda: client.null(1))  # type: ignore[call-arg]
    )
    assert "has no parameter c" in str(
        raises(TypeError, lambda: client.add(1, c=2))  # type: ignore[call-arg]
    )
    assert "two values for a" in str(
        raises(TypeError, lambda: client.add(1, a=2))  # type: ignore[misc,call-arg]
    )

    # The texts say where in a value the mistake is.
    good = Deep(
        "n",
        [Point(1, 2)],
        None,
        [[1, 2]] * 3,
        (1, "x"),
        upcall.Ok(1),
        upcall.Ok(None),
        Mode(0),
        [],
        b"",
        [],
        [],
    )
    assert client.get_deep(good) == good

    def with_(**changes: typing.Any) -> Deep:
        import dataclasses

        return dataclasses.replace(good, **changes)

    wrongs: list[tuple[dict[str, typing.Any], typing.Any, str]] = [
        (
            {"points": [Point(1, 2), 3]},
            TypeError,
            "argument `d`.points[1]: Point is expected, and int was given",
        ),
        (
            {"points": [Point(1, typing.cast(float, "2"))]},
            TypeError,
            "argument `d`.points[0].y: f32 is expected, and str was given",
        ),
        (
            {"grid": [[1, 2]]},
            ValueError,
            "argument `d`.grid: 3 elements are expected, and 1 were given",
        ),
        (
            {"pair": (1,)},
            ValueError,
            "argument `d`.pair: a tuple of 2 is expected, and one of 1 was given",
        ),
        (
            {"outcome": 5},
            TypeError,
            "argument `d`.outcome: Ok(..) or Err(..) is expected, and int was given",
        ),
        (
            {"outcome": upcall.Err(5)},
            TypeError,
            "argument `d`.outcome.value: str is expected, and int was given",
        ),
        ({"mode": 1}, TypeError, "argument `d`.mode: Mode is expected, and int was given"),
        (
            {"names": "text"},
            TypeError,
            "argument `d`.names: a sequence is expected, and str was given",
        ),
        (
            {"names": ["\udc00"]},
            ValueError,
            "argument `d`.names[0]: the string has surrogates, which are not text",
        ),
        ({"letters": ["ab"]}, ValueError, "argument `d`.letters[0]: 'ab' is no char"),
        ({"truths": [1]}, TypeError, "argument `d`.truths[0]: bool is expected, and int was given"),
        ({"maybe": 3}, TypeError, "argument `d`.maybe: str is expected, and int was given"),
    ]
    for changes, kind, said in wrongs:
        assert said in str(raises(kind, lambda: client.get_deep(with_(**changes)))), said
    assert client.get_shape(ShapeDot()) is None and client.get_shape(ShapeCircle(1)) == ShapeCircle(
        1.0
    )

    # The results of a server's object are checked, too.
    assert "TypeError: the result of names()" in str(
        raises(errors.Panicked, lambda: client.names([]))
    )
    assert "TypeError: the error of bind(): str is expected, and int was given" in str(
        raises(errors.Panicked, lambda: client.bind_("of another type"))
    )
    raises(errors.Panicked, lambda: client.find(1))
    raises(errors.Panicked, lambda: client.alive())
    assert (
        client.bind_("fine") is None  # type: ignore[func-returns-value]
        and client.bare() is None  # type: ignore[func-returns-value]
    )

    # An error of the interface is raised in an `Err`; where the interface has none, `Err` is not
    # proposed. The proposal quotes the server's source, so it is in the server's log alone.
    no_exception = "TypeError: exceptions must derive from BaseException"
    advice = "Write `raise upcall.Err(Error.BUSY)` for an error of the interface."
    error = raises(errors.Panicked, lambda: client.bind_("no exception"))
    assert error.message == no_exception, error
    assert advice in logging.Formatter().format(logged[-1])
    error = raises(errors.Panicked, client.fail)
    assert error.message == no_exception, error
    assert advice not in logging.Formatter().format(logged[-1])

    # Help.
    assert str(inspect.signature(Every.add)) == "(self, /, a, b)" and "add" in dir(client)
    assert "Returns a node after the given number of milliseconds." in (
        inspect.getdoc(Every.late) or ""
    )

    # Results and arguments leak nothing.
    value = with_(names=["a" * 100] * 50, raw=bytes(10_000))
    payload, text = bytearray(100_000), "t" * 10_000

    def many(times: int) -> None:
        for _ in range(times):
            client.get_deep(value)
            client.bytes(payload)
            raises(upcall.CallError, lambda: client.names([]))
            raises(errors.TooLong, lambda: client.bind_(text))
            raises(TypeError, lambda: client.get_deep(with_(points=[1])))
            client.add(5, 6)

    logging.getLogger("upcall").setLevel(logging.CRITICAL)
    # Python's own caches fill at first.
    many(120)
    gc.collect()
    counts = [sys.getrefcount(one) for one in (value, payload, text, value.raw, Deep, Point)]
    # A leak grows each time; Python's caches and the memory of threads come and go.
    growth = []
    for _ in range(5):
        blocks = sys.getallocatedblocks()
        many(300)
        gc.collect()
        growth.append(sys.getallocatedblocks() - blocks)
        if growth[-1] < 60:
            break
    assert min(growth) < 60, growth
    after = [sys.getrefcount(one) for one in (value, payload, text, value.raw, Deep, Point)]
    assert all(b - a < 20 for a, b in zip(counts, after)), (counts, after)
    payload.append(0)

    # Several threads share a client.
    def work() -> None:
        for number in range(300):
            assert client.add(number, 1) == number + 1
            if number % 50 == 0:
                assert client.bytes(bytes([number % 256]) * 3000) == bytes([number % 256]) * 3000

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    numbers = Numbers(1, 2, 3, 4, 5, 6, 7, 8, 1e300, 1e300, False, "x")
    assert client.get_numbers(numbers).i == float("inf")
file.close()
print("ok")
