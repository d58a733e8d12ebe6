"""Waits: other threads run, calls nest, and deadlines are passed on."""

import signal
import threading
import time

import upcall
from common import every, name, node, raises, until
from every import Color, Every, Node, ServeNode
from upcall import errors

inside = threading.Semaphore(0)
go = threading.Event()
held = threading.Lock()


def late(milliseconds: int) -> ServeNode:
    inside.release()
    go.wait(10)
    return node(name=lambda: "late")


def add(a: int, b: int) -> int:
    # The two servers call each other until `a` is 0: that many calls wait in the two of them, each
    # made by the one before.
    if a == 0:
        return b
    with Every(name("other" if a % 2 else "one")) as next_one:
        return next_one.add(a - 1, b + 1)


def total(values: list[int]) -> int:
    # A Python lock that is held while a call waits.
    with held:
        return other.add(0, sum(values))


def alive() -> int:
    # Later than the caller's deadline: calls on its behalf end with it.
    start = time.monotonic()
    error = raises(upcall.CallAborted, lambda: other.late(0))
    ended.append((time.monotonic() - start, error.sent))
    # The caller's own deadline is at the same moment.
    time.sleep(0.1)
    return 1


ended: list[tuple[float, bool]] = []
methods = {
    "late": late,
    "add": add,
    "total": total,
    "alive": alive,
    "new_node": lambda name, color: node(name=lambda: name),
}
with (
    upcall.start(name("one"), every(**methods)),
    upcall.start(name("other"), every(**methods)) as second,
):
    client, other = Every(name("one")), Every(name("other"))

    # A Python thread runs while a call waits.
    waiting = threading.Thread(target=client.late, args=(0,))
    waiting.start()
    assert inside.acquire(timeout=10)
    count = 0
    end = time.monotonic() + 0.05
    while time.monotonic() < end:
        count += 1
    assert waiting.is_alive() and count > 1000, count
    go.set()
    waiting.join()

    # Nested, to a depth; and many at once. 32 kernel threads, which these are, can have calls to
    # one process under way, and here all are in one process.
    assert add(20, 0) == 20
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(client.add(3, 7))) for _ in range(6)]
    threads += [
        threading.Thread(target=lambda: found.append(client.total([4, 6]))) for _ in range(5)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [10] * 11, found

    # A deadline is passed on.
    go.clear()
    raises(upcall.CallAborted, lambda: client.with_deadline(0.1).alive())
    until(lambda: bool(ended))
    assert ended[0][0] < 2 and ended[0][1] is True, ended
    go.set()

    # Cancelled by a thread.
    go.clear()
    token = upcall.CancelToken()
    threading.Timer(0.05, token.cancel).start()
    raises(upcall.CallAborted, lambda: client.with_cancel(token).late(0))
    go.set()

    # A server that is being stopped lets its calls end.
    go.clear()
    inside = threading.Semaphore(0)
    got: list[object] = []

    def call() -> None:
        try:
            got.append(other.late(0))
        except upcall.CallFailed as error:
            got.append(error)

    waiting = threading.Thread(target=call)
    waiting.start()
    assert inside.acquire(timeout=10)
    threading.Timer(0.05, go.set).start()
    second.stop()
    waiting.join(10)
    assert len(got) == 1
    raises(errors.NoSuchName, lambda: Every(name("other")))
    raises(errors.NoSuchName, lambda: Every.bind(name("other"), wait=0.01))
    raises(errors.NoSuchName, lambda: upcall.bind(name("other"), wait=0.01))
    raises(ValueError, lambda: Every(name("other"), wait=-1))
    raises(upcall.CallFailed, other.null)

    # A signal ends the wait for a server.
    def interrupted() -> None:
        main = threading.main_thread().ident
        assert main is not None
        threading.Timer(0.05, signal.pthread_kill, (main, signal.SIGINT)).start()
        Every(name("other"), wait=60)

    signal.signal(signal.SIGINT, signal.default_int_handler)
    raises(KeyboardInterrupt, interrupted)

    # A client that waits for a server binds when one starts.
    clients: list[Every] = []
    waiting = threading.Thread(target=lambda: clients.append(Every(name("later"), wait=60)))
    waiting.start()
    with upcall.start(name("later"), every()):
        waiting.join(60)
        assert clients[0].is_open and upcall.bind(name("later"), wait=60).is_open
        clients[0].close()

    # Its policy.
    with upcall.start(name("closed"), every(), admits=lambda uid, gid, pid: False):
        raises(errors.Denied, lambda: Every(name("closed")))
    raises(errors.NameTaken, lambda: upcall.start(name("one"), every()))
    raises(TypeError, lambda: upcall.start(name("none"), object()))
    leaf = Node(client, "x", Color.RED)
    client.close()
    raises(upcall.Closed, client.null)
    assert leaf.name() == "x", "a resource outlives the client that made it"
print("ok")
