"""The client of the test of languages, which does what those in C and Rust do.

Arguments: the names of `every` and `more`, and what to do.
"""

import importlib
import sys
import threading
import time
import typing

import upcall
from expect import raises
from upcall import errors


def deep(m: typing.Any) -> typing.Any:
    return m.Deep(
        name="deep",
        points=[m.Point(1.0, -2.0), m.Point(0.5, 4.0)],
        maybe="maybe",
        grid=[[1, 2], [3, 4], [5, 6]],
        pair=(7, "pair"),
        outcome=upcall.Err("outcome"),
        nothing=upcall.Err(None),
        mode=m.Mode.READ | m.Mode.APPEND_ONLY,
        names=["a", "", "ccc"],
        raw=bytes(n % 256 for n in range(5000)),
        letters=["ß", "\U0001f600"],
        truths=[True, False, True],
    )


def values(m: typing.Any, every: typing.Any) -> None:
    assert every.null() is None
    assert every.add(2, 3) == 5 and every.add(b=4, a=3) == 7
    numbers = m.Numbers(1, 2, 3, 2**64 - 1, -1, -2, -3, -(2**63), 1.5, -2.5, True, "\U0001f600")
    assert every.get_numbers(numbers) == numbers
    assert every.get_deep(deep(m)) == deep(m)
    for shape in [
        m.ShapeDot(),
        m.ShapeCircle(0.25),
        m.ShapePolygon([m.Point(1, 2)]),
        m.ShapeNamed(deep(m)),
        m.ShapeSmall(9),
    ]:
        assert every.get_shape(shape) == shape
    for length in [0, 3, 900, 100_000, 3_000_000, 100_000]:
        data = bytes([7]) * length
        assert every.bytes(data) == data
    assert every.fixed(bytes([9] * 32)) == bytes([9] * 32) and every.total([1, 2, 3]) == 6


def wrong(m: typing.Any, every: typing.Any, names: list[str]) -> None:
    assert raises(upcall.Err, lambda: every.bind_("x")).value == "x"
    error = raises(errors.TooLong, lambda: every.bind_("x" * 101))
    assert (error.length, error.limit) == (101, 100) and "nothing was sent" in str(error)
    assert raises(upcall.Err, every.bare).value is None
    assert raises(upcall.Err, every.node_root).value is m.Error.NOT_FOUND
    assert raises(errors.Panicked, every.fail).message == "as asked"
    assert "nobody-has-this-name" in str(
        raises(errors.NoSuchName, lambda: m.Every("nobody-has-this-name"))
    )
    typo = raises(errors.NoSuchName, lambda: m.Every(names[0] + "x"))
    assert f'Did you mean "{names[0]}"?' in str(typo), str(typo)
    raises(errors.BadName, lambda: m.Every("there is no such name"))
    assert "test:every/more" in str(raises(errors.WrongInterface, lambda: m.Every(names[1])))
    assert (
        isinstance(error, upcall.CallError)
        and isinstance(error, upcall.Error)
        and isinstance(error, ValueError)
    )


def objects(m: typing.Any, every: typing.Any, names: list[str]) -> None:
    node = m.Node(every, "leaf", color=m.Color.BLUE)
    assert (node.name(), node.color()) == ("leaf", m.Color.BLUE)
    assert node.same(node) is True
    children = node.children()
    assert len(children) == 3 and node.same(children[1]) is False
    third = children.pop()
    given = children[0]
    assert node.adopt(given) == 5
    assert "given away" in str(raises(upcall.Closed, given.name))
    del children, given
    assert every.alive() == 2
    family = every.swap(m.Family(parent=node, label="ab", child=third))
    raises(upcall.Closed, lambda: every.swap(m.Family(node, "ab", None)))
    assert family.label == "abab" and family.child.name() == "leaf"
    assert every.names([family.parent, family.child]) == ["child", "leaf"]
    match every.find(100):
        case m.FoundMany(nodes):
            assert len(nodes) == 100 and every.alive() == 102
            with nodes[0] as first:
                assert first.name() == "many"
            raises(upcall.Closed, first.name)
            assert every.alive() == 101
            del nodes, first
        case other:
            raise AssertionError(other)
    assert every.find(0) == m.FoundNone() and every.find(1).value.name() == "one"
    del family, node, third
    assert every.alive() == 0, every.alive()

    # Another binding: its resources are foreign.
    second = m.Every.bind(names[0])
    foreign = m.Node(second, "second", m.Color.RED)
    own = m.Node(every, "first", m.Color.RED)
    raises(errors.ForeignHandle, lambda: own.same(foreign))
    raises(errors.ForeignHandle, lambda: own.adopt(foreign))
    assert foreign.name() == "second"

    # An interface that carries this one.
    more = m.More(names[1])
    carried = m.Every(more)
    raises(TypeError, lambda: m.More(every))
    old = m.Node(carried, "old", m.Color.GREEN)
    assert more.rename(old, "new").name() == "new"
    raises(errors.ForeignHandle, lambda: more.rename(own, "foreign"))
    del old, own, foreign
    assert every.alive() == 0


def terms(every: typing.Any) -> None:
    start = time.monotonic()
    error = raises(upcall.CallAborted, lambda: every.with_deadline(0.05).late(400))
    assert (
        error.sent is True and isinstance(error, TimeoutError) and time.monotonic() - start < 0.35
    )
    # In time, with a deadline that a busy machine meets: the slot has less room then.
    hasty = every.with_deadline(30)
    values(sys.modules[type(every).__module__], hasty)
    assert hasty.with_deadline(None).add(1, 1) == 2
    token = upcall.CancelToken()
    given = every.with_cancel(token)
    threading.Timer(0.05, token.cancel).start()
    raises(upcall.CallAborted, lambda: given.late(400))
    assert token.is_cancelled
    raises(upcall.CallAborted, given.null)
    assert given.without_cancel().add(1, 2) == 3
    # The nodes of late replies were dropped.
    for _ in range(500):
        if every.alive() == 0 and time.monotonic() - start > 1:
            return
        time.sleep(0.01)
    raise AssertionError("late nodes are not let go of")


def memory(every: typing.Any) -> None:
    """Calls to a server whose quota for kept results is below 80 KB."""
    error = raises(errors.NoMemory, lambda: every.find(10_000))
    assert error.sent is True and "has run" in str(error), error
    # More bytes than one call may have as values.
    error = raises(errors.NoMemory, lambda: every.total([0] * 3_000_000))
    assert error.sent is False and "did not run" in str(error), error


def die(every: typing.Any) -> None:
    assert every.is_open
    pid = every.server_pid
    error = raises(upcall.CallFailed, every.die)
    assert (
        error.server_pid == pid
        and error.name == sys.argv[1]
        and "ended" in error.why
        and "bind again" in str(error)
    )
    raises(upcall.CallFailed, every.null)
    assert not every.is_open


def main() -> None:
    names, what = sys.argv[1:3], sys.argv[3]
    if what in ("learn", "wit"):
        every = upcall.bind(names[0], wit=sys.argv[4] if what == "wit" else None)
        assert upcall.bind(names[0], wit=sys.argv[4] if what == "wit" else None).__class__ is type(
            every
        )
        m: typing.Any = sys.modules[type(every).__module__]
    else:
        m = importlib.import_module("every")
        every = m.Every(names[0])
    if what == "die":
        return die(every)
    if what == "memory":
        return memory(every)
    values(m, every)
    if what == "wit":
        return
    wrong(m, every, names)
    objects(m, every, names)
    terms(every)


main()
