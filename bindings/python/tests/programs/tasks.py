"""asyncio: concurrent calls, cancelled ones, deadlines, and servers with coroutines."""

import asyncio
import threading
import time
import typing

import upcall
import upcall.aio
from common import every, name, node, raises
from every import Color, Deep, Error, Every, Mode, Node, ServeNode
from upcall import errors

alive = 0
running = 0
most = 0


class Leaf:
    def __init__(self) -> None:
        global alive
        alive += 1

    def __del__(self) -> None:
        global alive
        alive -= 1


def leaf(label: str) -> ServeNode:
    made = node(name=lambda: label, color=lambda: Color.RED)
    made.keeps = Leaf()  # type: ignore[attr-defined]
    return made


async def late(milliseconds: int) -> ServeNode:
    global running, most
    running += 1
    most = max(most, running)
    try:
        await asyncio.sleep(milliseconds / 1000)
    finally:
        running -= 1
    return leaf("late")


async def add(a: int, b: int) -> int:
    return a + b


async def bind(name: str) -> None:
    raise upcall.Err(name)


async def fail() -> None:
    raise RuntimeError("in a coroutine")


server = every(
    late=late,
    add=add,
    bind=bind,
    fail=fail,
    bytes=lambda data: data,
    get_deep=lambda d: d,
    new_node=lambda name, color: leaf(name),
    alive=lambda: alive,
    node_root=lambda: (_ for _ in ()).throw(upcall.Err(Error.BUSY)),
)


async def main() -> None:
    view = await upcall.aio.bind(name("tasks"), Every)
    client = Every(name("tasks"))
    assert await view.add(2, 3) == 5 == await client.aio.add(b=2, a=3)
    assert await (await upcall.aio.bind(name("tasks"))).add(1, 1) == 2

    # A hundred calls at once, while the loop continues.
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.005)
            ticks += 1

    ticking = asyncio.create_task(tick())
    threads = threading.active_count()
    start = time.monotonic()
    nodes = await asyncio.gather(*(client.aio.late(200) for _ in range(100)))
    took = time.monotonic() - start
    assert len(nodes) == 100 and took < 8 and ticks > 5, (took, ticks)
    # Of the calls of one processor to one server, 64 are under way at once.
    assert most >= 32, most
    assert threading.active_count() <= threads + 110
    ticking.cancel()
    assert [await one.aio.name() for one in nodes[:3]] == ["late"] * 3
    await nodes[0].aio.close()
    raises(upcall.Closed, nodes[0].name)
    del nodes

    # Values, and failures.
    data = bytes(range(256)) * 1000
    assert await client.aio.bytes(data) == data
    value = Deep(
        "n",
        [],
        "x",
        [[1, 2]] * 3,
        (1, "x"),
        upcall.Ok(1),
        upcall.Err(None),
        Mode.READ,
        ["a"],
        data,
        [],
        [True],
    )
    assert await client.aio.get_deep(value) == value
    cases: list[tuple[typing.Any, typing.Any]] = [
        (lambda: client.aio.bind_("e"), upcall.Err),
        (lambda: client.aio.node_root(), upcall.Err),
        (lambda: client.aio.fail(), errors.Panicked),
        (lambda: client.aio.bind_("x" * 101), errors.TooLong),
        (lambda: client.aio.add(-1, 1), ValueError),
        (lambda: client.aio.add(1), TypeError),  # type: ignore[call-arg]
        (lambda: client.with_deadline(0.05).aio.late(400), upcall.CallAborted),
        (lambda: view.with_deadline(0.05).late(400), upcall.CallAborted),
    ]
    for call, kind in cases:
        try:
            await call()
        except kind:
            continue
        raise AssertionError(kind)
    made = await client.aio.new_node("made", Color.RED)
    assert isinstance(made, Node) and await made.aio.name() == "made" and made.color() is Color.RED
    async with made.aio:
        pass
    raises(upcall.Closed, made.name)

    # Cancelling a task cancels its call at once.
    task = asyncio.create_task(client.aio.late(400))
    await asyncio.sleep(0.05)
    start = time.monotonic()
    task.cancel()
    try:
        await task
        raise AssertionError("it was cancelled")
    except asyncio.CancelledError:
        assert time.monotonic() - start < 0.2
    try:
        await asyncio.wait_for(client.aio.late(400), 0.05)
        raise AssertionError("it was too late")
    except asyncio.TimeoutError:
        pass
    # Their results are dropped when they arrive.
    for _ in range(500):
        if await client.aio.alive() == 0:
            break
        await asyncio.sleep(0.01)
    else:
        raise AssertionError(f"{await client.aio.alive()} are left")


async def serving() -> None:
    """A server on the loop itself."""
    loop = asyncio.get_running_loop()

    async def where(a: int, b: int) -> int:
        assert asyncio.get_running_loop() is loop
        return a * b

    task = asyncio.create_task(upcall.aio.serve(name("on-loop"), every(add=where)))
    while True:
        try:
            view = await upcall.aio.bind(name("on-loop"), Every)
            break
        except upcall.BindError:
            await asyncio.sleep(0.01)
    assert await view.add(6, 7) == 42
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        pass
    raises(errors.NoSuchName, lambda: Every(name("on-loop")))


import logging

logging.getLogger("upcall").setLevel(logging.CRITICAL)
with upcall.start(name("tasks"), server):
    asyncio.run(main())
    # Another loop.
    asyncio.run(main())
asyncio.run(serving())
print("ok")
