"""Policies of hosts, and when a silent server on one is lost.

This user trusts an identity by the name 127.0.0.1, which is its own.
"""

import asyncio
import os
import pickle

import upcall
import upcall.aio
from common import every, name, raises
from every import Every
from upcall import errors

seen: list[tuple[str | None, int, int, int]] = []


def sees(user: int, group: int, process: int) -> bool:
    seen.append((upcall.peer_host(), user, group, process))
    return True


def calls(at: str, **terms: object) -> None:
    for make in (Every, Every.bind, upcall.bind):
        with make(at, **terms) as client:  # type: ignore[operator]
            assert client.add(2, 3) == 5


one = every(add=lambda a, b: a + b)
nobody = 2**32 - 1
assert upcall.peer_host() is None
with upcall.start(name("hosts"), one, admits=sees, listen="127.0.0.1:0") as running:
    far = f"tcp://{running.addresses[0]}/{name('hosts')}"
    calls(far)
    assert seen and set(seen) == {("127.0.0.1", nobody, nobody, 0)}, seen
    seen.clear()
    calls(name("hosts"))
    assert set(seen) == {(None, os.getuid(), os.getgid(), os.getpid())}, seen
    assert upcall.peer_host() is None
    # A client chooses the hosts whose servers it accepts.
    calls(far, expect=upcall.Host("127.0.0.1"))
    calls(far, expect=[upcall.User(0), upcall.Host("ws1"), upcall.Host("127.0.0.1")])
    calls(far, expect=lambda *told: upcall.peer_host() == "127.0.0.1")
    error = raises(errors.WrongUser, lambda: Every(far, expect=upcall.Host("ws1")))
    assert "the peer is on the host 127.0.0.1, accepted is host ws1" in str(error)
    raises(errors.WrongUser, lambda: Every(name("hosts"), expect=upcall.Host("127.0.0.1")))
    # Clients share a connection if they have the same time after which its server is lost.
    seen.clear()
    with Every(far), Every(far, lost_after=5), Every(far, lost_after=None):
        assert len(seen) == 1, seen
        with Every.bind(far, lost_after=2.0):
            assert len(seen) == 2, seen

        async def main() -> None:
            async with await upcall.aio.bind(far, Every, lost_after=3) as client:
                assert await client.add(4, 5) == 9 and len(seen) == 3

        asyncio.run(main())
    raises(TypeError, lambda: Every(far, lost_after="5"))
    raises(ValueError, lambda: Every(far, lost_after=-1))

# A server chooses the hosts that it admits.
hosts = [upcall.Host("ws1"), upcall.Host("127.0.0.1")]
with upcall.start(name("hosts"), one, admits=hosts, listen="127.0.0.1:0") as running:
    calls(f"tcp://{running.addresses[0]}/{name('hosts')}")
    raises(errors.Denied, lambda: Every(name("hosts")))
with upcall.start(name("hosts"), one, admits=hosts[0], listen="127.0.0.1:0") as running:
    far = f"tcp://{running.addresses[0]}/{name('hosts')}"
    error = raises(errors.Denied, lambda: Every(far))
    assert "the peer is on the host 127.0.0.1, accepted is host ws1" in str(error)

assert pickle.loads(pickle.dumps(hosts)) == hosts and repr(hosts[0]) == "Host(name='ws1')"
raises(TypeError, lambda: upcall.Host(7))  # type: ignore[arg-type]
raises(TypeError, lambda: upcall.start("wrong", one, admits="ws1"))  # type: ignore[arg-type]
