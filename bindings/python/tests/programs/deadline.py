"""What a procedure sees of the time for which its caller waits."""

import asyncio
import threading
import time

import upcall
from common import every, name, raises
from every import Every

#: Deadline of calls that end long before it, and longest wait for what surely happens, in seconds.
LIMIT = 60.0

seen: list[float | None] = []
outlasted = threading.Event()
#: Set when the caller of `outlast` has left: until then a result would still reach it.
left = threading.Event()


def look() -> None:
    seen.append(upcall.deadline())


def aside(values: list[int]) -> int:
    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    return 0


def outlast() -> int:
    end = time.monotonic() + LIMIT
    while upcall.deadline() != 0.0 and time.monotonic() < end:
        time.sleep(0.001)
    left.wait(LIMIT)
    outlasted.set()
    return 0


async def look_on_loop() -> None:
    look()


async def aside_on_loop(values: list[int]) -> int:
    await asyncio.create_task(look_on_loop())
    await asyncio.to_thread(look)
    return aside(values)


async def outlast_on_loop() -> int:
    end = time.monotonic() + LIMIT
    while upcall.deadline() != 0.0 and time.monotonic() < end:
        await asyncio.sleep(0.001)
    await asyncio.to_thread(left.wait, LIMIT)
    outlasted.set()
    return 0


def check(client: Every, *aside_seen: bool) -> None:
    """Checks a server. `aside_seen`: whether a procedure's threads and tasks see the deadline."""
    limited = client.with_deadline(LIMIT)
    limited.null()
    client.null()
    limited.total([])
    first, second, *others = seen
    seen.clear()
    assert type(first) is float and 0 < first <= LIMIT, first
    assert second is None, second
    assert [other is not None for other in others] == list(aside_seen), others
    # A call that the server has runs to its end, although its caller has left.
    outlasted.clear()
    left.clear()
    while not raises(upcall.CallAborted, client.with_deadline(0.02).alive).sent:
        pass
    left.set()
    assert outlasted.wait(LIMIT)


methods = {"null": look, "total": aside, "alive": outlast}
on_loop = {"null": look_on_loop, "total": aside_on_loop, "alive": outlast_on_loop}
with (
    upcall.start(name("waits"), every(**methods), listen="127.0.0.1:0") as running,
    upcall.start(name("waits-on-loop"), every(**on_loop)),
):
    check(Every(name("waits")), False)
    check(Every(f"tcp://{running.addresses[0]}/{name('waits')}"), False)
    # A task and `to_thread` have the procedure's context, another thread has not.
    check(Every(name("waits-on-loop")), True, True, False)
assert upcall.deadline() is None
print("ok")
