"""Clients and servers of different users.

Arguments: what to do, as which user, with which supplementary groups. Started by root.
"""

import asyncio

# Found while this process is still root: the other users may be unable to read where Python is.
import concurrent.futures.thread  # noqa: F401
import os
import sys

import upcall
import upcall.aio
from common import every, raises
from every import Every
from upcall import errors

ONE, OTHER, THIRD = 61001, 61002, 61003

what, user, *groups = sys.argv[1:]
os.setgroups([int(group) for group in groups])
os.setresgid(int(user), int(user), int(user))
os.setresuid(int(user), int(user), int(user))

served = every(add=lambda a, b: a + b)


def serves_other() -> None:
    with upcall.start("every", served, admits=upcall.User(OTHER), mode=0o666):
        print("ready", flush=True)
        sys.stdin.read()


def serves_group() -> None:
    # The umask has no effect.
    os.umask(0o777)
    with upcall.start(
        "every", served, admits=[upcall.User(0), upcall.Group(ONE)], mode=0o660, group=ONE
    ):
        print("ready", flush=True)
        sys.stdin.read()


def refuses(expect: object, *parts: str) -> None:
    for make in (Every, upcall.bind):
        error = raises(errors.WrongUser, lambda: make("every", expect=expect))
        assert isinstance(error, PermissionError) and all(part in str(error) for part in parts), (
            error
        )


def accepts(expect: object) -> None:
    for make in (Every, Every.bind, upcall.bind):
        with make("every", expect=expect) as client:
            assert client.add(2, 3) == 5

    async def main() -> None:
        for view in [
            await upcall.aio.bind("every", Every, expect=expect),
            await upcall.aio.bind("every", expect=expect),
        ]:
            async with view:
                assert await view.add(2, 3) == 5

    asyncio.run(main())


def expects_one() -> None:
    refuses(None, "the peer is user 61001", "user 61002 or root")
    refuses(upcall.User(THIRD), "accepted is user 61003")
    refuses([upcall.User(THIRD), upcall.Group(THIRD)], "accepted is user 61003; ", "group 61003")
    refuses([], "no process is accepted")
    refuses(lambda user, group, process: False, "its policy does not admit it")
    accepts(upcall.User(ONE))
    accepts(upcall.Group(ONE))
    accepts([upcall.User(THIRD), upcall.Group(ONE)])
    accepts(upcall.ANY_USER)
    asked = []
    accepts(lambda *told: asked.append(told) or True)
    assert asked and all(told[:2] == (ONE, ONE) and told[2] > 0 for told in asked), asked
    # An exception of a policy leaves the bind.
    error = raises(ZeroDivisionError, lambda: Every("every", expect=lambda *told: 1 // 0))
    assert "division" in str(error)
    raises(ZeroDivisionError, lambda: upcall.bind("every", expect=lambda *told: 1 // 0))
    # What one binding accepts does not count for another.
    with Every("every", expect=upcall.User(ONE)) as client:
        refuses(None, "user 61002 or root")
        raises(TypeError, lambda: Every(client, expect=upcall.User(ONE)))
    # Nothing listens there, so it is not known whose server it would be.
    raises(errors.Unreachable, lambda: Every("tcp://127.0.0.1:9/every", expect=upcall.User(ONE)))


def is_refused() -> None:
    error = raises(errors.Denied, lambda: Every("every", expect=upcall.ANY_USER))
    assert "the peer is user 61003, accepted is user 61002" in str(error)


def is_admitted() -> None:
    accepts(upcall.User(ONE))


def is_kept_out() -> None:
    error = raises(errors.Denied, lambda: Every("every", expect=upcall.ANY_USER))
    assert "may not connect" in str(error) and "mode and group" in str(error)


def says_it_wrong() -> None:
    assert upcall.User("root") == upcall.User(0) and upcall.Group("root") == upcall.Group(0)
    assert repr(upcall.User(7)) == "User(7)" and {upcall.Group(7), upcall.Group(7)} == {
        upcall.Group(7)
    }
    for make, what in ((upcall.User, "user"), (upcall.Group, "group")):
        assert what in str(
            raises(ValueError, lambda: make("no-such-name"))
        ) and "no-such-name" in str(raises(ValueError, lambda: make("no-such-name")))
        raises(ValueError, lambda: make(-1))
        raises(ValueError, lambda: make(2**32 - 1))
        raises(TypeError, lambda: make(None))
        raises(TypeError, lambda: make(True))
    for wrong in ("svc", 1001, [1001], 1.5):
        raises(TypeError, lambda: Every("every", expect=wrong))
        raises(TypeError, lambda: upcall.start("wrong", served, admits=wrong))
    raises(TypeError, lambda: Every("every", expects=upcall.User(ONE)))
    raises(ValueError, lambda: upcall.start("wrong", served, mode=0o1777))
    raises(ValueError, lambda: upcall.start("wrong", served, group="no-such-group"))
    # A group that this user does not have.
    error = raises(
        upcall.ServeError, lambda: upcall.start("wrong", served, group="root", mode=0o660)
    )
    assert "not a member of group `root`" in str(error)


globals()[what.replace("-", "_")]()
