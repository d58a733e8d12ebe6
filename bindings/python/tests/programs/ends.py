"""Ends of processes: interrupts, forks, exits with calls under way.

Arguments: what to do, and a name.
"""

import asyncio
import os
import signal
import sys
import threading
import time

import upcall
import upcall.aio
from common import every, node, raises
from every import Color, Every, Node, ServeNode

what, name = sys.argv[1:]


def slow(milliseconds: int) -> ServeNode:
    time.sleep(milliseconds / 1000)
    return node(name=lambda: "late")


def add(a: int, b: int) -> int:
    if a == 2**32 - 1:
        time.sleep(1.2)
        return 0
    return a + b


def serve() -> None:
    """Serves until it is interrupted."""

    def ready() -> None:
        while True:
            try:
                return print("ready", flush=True) if Every(name) else None
            except upcall.BindError:
                time.sleep(0.01)

    threading.Thread(target=ready).start()
    upcall.serve(
        name, every(late=slow, add=add, new_node=lambda name, color: node(name=lambda: name))
    )
    raises(upcall.BindError, lambda: Every(name))
    print("served")


def serve_async() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        task = asyncio.create_task(upcall.aio.serve(name, every(add=lambda a, b: a + b)))
        loop.add_signal_handler(signal.SIGINT, task.cancel)
        while True:
            try:
                await upcall.aio.bind(name, Every)
                break
            except upcall.BindError:
                await asyncio.sleep(0.01)
        print("ready", flush=True)
        try:
            await task
        except asyncio.CancelledError:
            print("served")

    asyncio.run(main())


def fork() -> None:
    client = Every(name)
    leaf = Node(client, "x", Color.RED)
    assert client.add(1, 2) == 3
    child = os.fork()
    if child == 0:
        try:
            for call in [
                lambda: client.add(1, 2),
                leaf.name,
                lambda: Every(name),
                lambda: upcall.bind(name),
                lambda: upcall.start("n", every()),
            ]:
                error = raises(upcall.Forked, call)
                assert "forked" in str(error)
            leaf.close()
            del leaf, client
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(1)
        # A normal exit, with all destructors.
        sys.exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0, status
    assert client.add(2, 2) == 4 and leaf.name() == "x", (
        "the child has let go of nothing that is its parent's"
    )


def fork_first() -> None:
    """A child that forks before upcall is used may use it, and so may its parent."""
    child = os.fork()
    assert Every(name).add(1, 2) == 3
    if child == 0:
        sys.exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def exit_calling() -> None:
    """Ends while daemon threads are in calls, which end soon after."""
    client = Every(name)
    for wait in [1, 20, 50, 100, 200, 500]:
        threading.Thread(target=client.late, args=(wait,), daemon=True).start()

    def busy() -> None:
        while True:
            client.add(1, 2)

    for _ in range(3):
        threading.Thread(target=busy, daemon=True).start()
    time.sleep(0.1)


def exit_serving() -> None:
    """Ends as a server that was not stopped, with calls under way."""
    running = upcall.start(name + "-short", every(late=slow, add=lambda a, b: a + b), processors=2)
    client = Every(name + "-short")

    def quiet() -> None:
        try:
            while True:
                client.late(50)
        except BaseException:
            pass

    for _ in range(4):
        threading.Thread(target=quiet, daemon=True).start()
    time.sleep(0.1)
    globals()["kept"] = running


def exit_async() -> None:
    """Ends while calls of a loop that is closed are under way."""
    client = Every(name)

    async def main() -> None:
        tasks = [asyncio.create_task(client.aio.late(200)) for _ in range(10)]
        await asyncio.sleep(0.05)
        globals()["kept"] = tasks

    asyncio.run(main())


def interrupted() -> None:
    """Ctrl-C in calls that do not end soon."""
    client = Every(name)
    client.set_pacing(upcall.Pacing.SLEEP)
    handled: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, frame: handled.append(client.add(number, 0)))
    for call in [
        lambda: client.late(1200),
        lambda: client.add(2**32 - 1, 1),
        lambda: client.with_deadline(30).late(1200),
    ]:
        threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGUSR1)).start()
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        start = time.monotonic()
        raises(KeyboardInterrupt, call)
        took = time.monotonic() - start
        assert 0.2 < took < 1.0, took
    assert handled == [signal.SIGUSR1] * 3, (
        "a handler that does not raise gives up nothing, and may call"
    )
    assert client.add(1, 2) == 3


{
    "serve": serve,
    "serve-async": serve_async,
    "fork": fork,
    "fork-first": fork_first,
    "exit-calling": exit_calling,
    "exit-serving": exit_serving,
    "exit-async": exit_async,
    "interrupted": interrupted,
}[what]()
