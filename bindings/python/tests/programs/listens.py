"""Servers that listen for clients on other machines, and what their policies see."""

import os

import upcall
from common import every, name, raises
from every import Every, More
from upcall import errors

asked: list[tuple[int, int, int]] = []


def admits(user: int, group: int, process: int) -> bool:
    asked.append((user, group, process))
    return len(asked) <= 2


def add(a: int, b: int) -> int:
    return a + b


one = every(add=add)
os.environ["UPCALL_HOSTS"] = "/no-identity"
error = raises(errors.Unprotected, lambda: upcall.start(name("far"), one, listen="0.0.0.0:0"))
assert (
    isinstance(error, upcall.ServeError)
    and "0.0.0.0:0" in str(error)
    and "upcall host init" in str(error)
)
raises(upcall.ServeError, lambda: upcall.start(name("far"), one, listen="no address"))

with upcall.start(name("here"), one) as running:
    assert running.addresses == []

listens = ["127.0.0.1:0", "127.0.0.1:0"]
with upcall.start(name("far"), one, admits=admits, listen=listens) as running:
    first, second = running.addresses
    assert first.startswith("127.0.0.1:") and not first.endswith(":0") and first != second
    with Every(f"tcp://{first}/{name('far')}") as client:
        assert client.add(2, 3) == 5 and client._server_pid() == 0
        assert asked == [(os.getuid(), 2**32 - 1, 0)]
        error = raises(errors.NotThere, lambda: Every(f"tcp://{first}/none"))
        assert (
            isinstance(error, upcall.BindError) and "none" in str(error) and first in str(error)
        )
        raises(errors.WrongInterface, lambda: More(f"tcp://{first}/{name('far')}"))
        raises(errors.BadName, lambda: Every(f"tcp://{first}"))
        # No process listens at this address of RFC 5737, and nothing is sent there.
        error = raises(errors.NotProved, lambda: Every("tcp://198.51.100.1:7000/none"))
        assert isinstance(error, PermissionError) and "upcall host init" in str(error)
        # A client that learns the interface at run time learns it from there.
        learnt = upcall.bind(f"tcp://{first}/{name('far')}")
        assert learnt.add(6, 7) == 13
        learnt.close()
        raises(errors.NotThere, lambda: upcall.bind(f"tcp://{first}/none"))
    # The policy is asked about each connection, at each address.
    with Every(f"tcp://{second}/{name('far')}") as client:
        assert client.add(4, 5) == 9 and asked[1:] == [(os.getuid(), 2**32 - 1, 0)]
        running.stop()
        assert running.addresses == []
        error = raises(upcall.CallFailed, lambda: client.add(1, 1))
        assert error.server_pid == 0 and second in error.why
    error = raises(errors.Unreachable, lambda: Every(f"tcp://{first}/{name('far')}"))
    assert isinstance(error, (upcall.BindError, ConnectionError)) and first in str(error)
