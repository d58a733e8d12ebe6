"""Resources inside every kind of value, and interfaces that carry others.

Argument: the WIT file.
"""

import gc
import sys
import typing

import upcall
from common import name, raises
from upcall import errors

m: typing.Any = upcall.load(sys.argv[1])
alive = 0


class Bucket(m.ServeBucket):  # type: ignore[misc]
    def __init__(self, label: str) -> None:
        global alive
        alive += 1
        self.label = label

    def __del__(self) -> None:
        global alive
        alive -= 1

    def name(self) -> str:
        return self.label

    def type_id(self) -> int:
        return 2**64 - 1


class Store(m.ServeStore):  # type: ignore[misc]
    def new_bucket(self, name: str) -> Bucket:
        return Bucket(name)

    def open(self, name: str) -> Bucket:
        raise upcall.Err(m.ServedErrorNoSuch(name) if name else m.ServedErrorBusy(Bucket("busy")))

    def count(self) -> int:
        return alive


class Lock(m.ServeLock):  # type: ignore[misc]
    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket

    def holder(self) -> Bucket:
        return self.bucket

    def give(self, to: Bucket | None) -> Bucket | None:
        before, self.bucket = self.bucket, to or self.bucket
        return before if to else None


class Atomics(m.ServeAtomics):  # type: ignore[misc]
    def __init__(self) -> None:
        # Its own `count`, not that of the interface that it carries.
        self.store = Store()

    def swap(self, p: typing.Any) -> typing.Any:
        return m.ServedPair(
            first=p.second or p.first, label=p.label * 2, second=p.first if p.second else None
        )

    def pick(self, c: typing.Any) -> typing.Any:
        return c

    def names(self, all: list[Bucket]) -> list[str]:
        return [bucket.label for bucket in all]

    def views(self, v: list[typing.Any], box: tuple[int, typing.Any]) -> list[str]:
        views = v + ([box[1]] if box[1] else [])
        return [view.of.label * view.times for view in views]

    def mixed(self, b: typing.Any, last: Bucket) -> list[Bucket]:
        if not b.given:
            raise upcall.Err(last.label)
        return [*b.given, *([b.lent] if b.lent else []), last]

    def compounds(
        self, a: Bucket | None, b: typing.Any, c: tuple[int, Bucket]
    ) -> tuple[Bucket, list[Bucket]]:
        match b:
            case upcall.Ok(bucket):
                return c[1], [one for one in (a, bucket) if one]
            case upcall.Err(why):
                raise upcall.Err(m.ServedErrorNoSuch(why))
        raise AssertionError(b)

    def fixed(self, two: list[Bucket]) -> list[Bucket]:
        return two[::-1]

    def lock_up(self, b: Bucket) -> Lock:
        return Lock(b)

    def count(self) -> int:
        return 7


class Third(m.ServeThird):  # type: ignore[misc]
    def __init__(self) -> None:
        self.atomics = Atomics()
        self.store = self.atomics.store

    def held(self, l: Lock, p: typing.Any) -> int:
        return len(l.bucket.label + p.label)


class Missing(m.ServeThird):  # type: ignore[misc]
    def held(self, l: Lock, p: typing.Any) -> int:
        return 0


said = str(raises(TypeError, lambda: upcall.start(name("carried"), Missing())))
assert "set its attribute `store`" in said or "set its attribute `atomics`" in said, said
with upcall.start(name("carried"), Third()):
    third = m.Third(name("carried"))
    atomics, store = m.Atomics(third), m.Store(third)
    assert (atomics.count(), store.count()) == (7, 0)

    def new(label: str) -> typing.Any:
        return m.Bucket(store, label)

    a, b = new("a"), new("b")
    assert a.name() == "a" and a.type_id() == 2**64 - 1 and store.count() == 2
    pair = atomics.swap(m.Pair(a, "x", b))
    assert (pair.first.name(), pair.label, pair.second.name()) == ("b", "xx", "a")
    raises(upcall.Closed, a.name)
    a, b = pair.second, pair.first
    match atomics.pick(m.ChoiceMany([a, new("c")])):
        case m.ChoiceMany([a, c]):
            assert (a.name(), c.name()) == ("a", "c")
    assert (
        atomics.pick(m.ChoiceNothing()) == m.ChoiceNothing()
        and atomics.pick(m.ChoiceText("t")).value == "t"
    )
    assert atomics.pick(m.ChoicePair(m.Pair(c, "in", None))).value.first.name() == "c"
    assert atomics.names([a, b, a]) == ["a", "b", "a"]
    assert (
        atomics.views([m.View(a, 2)], (1, m.View(b, 1))) == ["aa", "b"]
        and atomics.views([], box=(1, None)) == []
    )
    assert raises(upcall.Err, lambda: atomics.mixed(m.Both([], a), b)).value == "b"
    found = atomics.mixed(m.Both([new("d")], a), b)
    assert [one.name() for one in found] == ["d", "a", "b"]
    # A list with the same resource twice gives nothing away.
    assert "twice" in str(raises(ValueError, lambda: atomics.fixed([a, a]))) and a.name() == "a"
    first, rest = atomics.compounds(new("e"), upcall.Ok(new("f")), (3, new("g")))
    assert [first.name()] + [one.name() for one in rest] == ["g", "e", "f"]
    error = raises(
        upcall.Err, lambda: atomics.compounds(None, upcall.Err("why"), (3, new("h")))
    ).value
    assert error == m.ErrorNoSuch("why")
    assert raises(upcall.Err, lambda: store.open("")).value.value.name() == "busy"
    assert [one.name() for one in atomics.fixed([a, b])] == ["b", "a"]
    lock = atomics.lock_up(new("held"))
    assert (
        lock.holder().name() == "held"
        and lock.give(None) is None
        and lock.give(new("next")).name() == "held"
    )
    assert third.held(lock, m.Pair(new("p"), "label", None)) == len("nextlabel")
    raises(TypeError, lambda: atomics.names([lock]))
    # Another binding's resources are foreign.
    other = m.Bucket(m.Store(m.Third(name("carried"))), "other")
    raises(errors.ForeignHandle, lambda: atomics.names([other]))
    del pair, a, b, c, found, first, rest, error, lock, other
    gc.collect()
    assert store.count() == 0, store.count()
gc.collect()
assert alive == 0
print("ok")
