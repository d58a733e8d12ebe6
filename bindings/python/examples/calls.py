"""What a call costs in Python: add(u32, u32) by upcall, multiprocessing pipes, and gRPC.

They take turns, so that all see the same machine. `make bench-python` runs this.

The servers run on the first of two processors, and this client on the second. Upcall's server is in
Rust and polls. While it is not its turn it is stopped, so that it takes no processor time from the
others. Each result is checked. Arguments: the program of upcall's server, and the number of rounds.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import statistics
import struct
import subprocess
import sys
import time
import typing

import upcall
from every import Every

CALLS = {
    "upcall": 20_000,
    "upcall, server in Python": 500,
    "multiprocessing pipes": 1_000,
    "grpcio": 300,
}

Add = typing.Callable[[int, int], int]


def pin(processor: int) -> None:
    os.sched_setaffinity(
        0, {sorted(os.sched_getaffinity(0))[processor % len(os.sched_getaffinity(0))]}
    )


def pipe_server(pipe: typing.Any) -> None:
    pin(0)
    while True:
        try:
            a, b = pipe.recv()
        except EOFError:
            return
        pipe.send(a + b)


def pipes() -> Add:
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    server = multiprocessing.get_context("spawn").Process(
        target=pipe_server, args=(theirs,), daemon=True
    )
    server.start()

    def add(a: int, b: int) -> int:
        ours.send((a, b))
        return typing.cast(int, ours.recv())

    return add


def grpc_server(port: typing.Any) -> None:
    import concurrent.futures

    import grpc

    pin(0)

    def add(request: tuple[int, int], context: typing.Any) -> int:
        return request[0] + request[1]

    handler = grpc.unary_unary_rpc_method_handler(
        add,
        request_deserializer=lambda data: struct.unpack("<II", data),
        response_serializer=lambda n: struct.pack("<I", n),
    )
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("every", {"Add": handler}),)
    )
    port.send(server.add_insecure_port("127.0.0.1:0"))
    server.start()
    server.wait_for_termination()


def grpc() -> Add | None:
    try:
        import grpc
    except ImportError:
        print("grpcio: left out, it is not installed")
        return None
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    multiprocessing.get_context("spawn").Process(
        target=grpc_server, args=(theirs,), daemon=True
    ).start()
    channel = grpc.insecure_channel(f"127.0.0.1:{ours.recv()}")
    call = channel.unary_unary(
        "/every/Add",
        request_serializer=lambda pair: struct.pack("<II", *pair),
        response_deserializer=lambda data: struct.unpack("<I", data)[0],
    )
    return lambda a, b: typing.cast(int, call((a, b)))


def python_server(name: str, ready: typing.Any) -> None:
    sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "tests", "programs"))
    import every

    pin(0)
    server = type(
        "Adds",
        (every.ServeEvery,),
        {m: (lambda self, *_: None) for m in every.ServeEvery.__abstractmethods__},
    )
    server.add = lambda self, a, b: a + b  # type: ignore[attr-defined]
    with upcall.start(name, server()):
        ready.send(True)
        time.sleep(3600)


def by_python() -> Add:
    name = f"calls-python-{os.getpid()}"
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    multiprocessing.get_context("spawn").Process(
        target=python_server, args=(name, theirs), daemon=True
    ).start()
    ours.recv()
    return Every(name).add


def a_round(add: Add, calls: int) -> list[int]:
    now = time.perf_counter_ns
    times = []
    for i in range(calls):
        before = now()
        total = add(i, 1)
        times.append(now() - before)
        if total != i + 1:
            raise AssertionError(f"{i} + 1 = {total}")
    return sorted(times)


def main() -> None:
    program, rounds = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 9
    name = f"calls-{os.getpid()}"
    server = subprocess.Popen([program, name], preexec_fn=lambda: pin(0))
    for _ in range(500):
        try:
            every = Every(name)
            break
        except upcall.BindError:
            time.sleep(0.01)
    every.set_pacing(upcall.Pacing.POLL)
    adds: dict[str, Add | None] = {
        "upcall": every.add,
        "upcall, server in Python": by_python(),
        "multiprocessing pipes": pipes(),
        "grpcio": grpc(),
    }
    pin(1)
    found: dict[str, list[tuple[int, int]]] = {what: [] for what, add in adds.items() if add}
    empty = []
    for number in range(rounds + 1):
        for what in found:
            if what == "upcall":
                server.send_signal(signal.SIGCONT)
                time.sleep(0.01)
            times = a_round(typing.cast(Add, adds[what]), CALLS[what])
            if what == "upcall":
                server.send_signal(signal.SIGSTOP)
            # The first round warms up the caches.
            if number:
                found[what].append((times[len(times) // 2], times[len(times) * 99 // 100]))
        if number:
            times = a_round(int.__add__, 20_000)
            empty.append(times[len(times) // 2])
    server.kill()
    floor = statistics.median(empty)
    print(
        f"add(u32, u32), medians of {rounds} rounds; "
        f"{floor:.0f} ns of each are the clock's and the loop's (int.__add__)"
    )
    middle = {
        what: [statistics.median(part) for part in zip(*times)] for what, times in found.items()
    }
    for what, (p50, p99) in middle.items():
        ratio = p50 / middle["upcall"][0]
        print(
            f"{what:26} p50 {p50 / 1000:8.2f} µs   p99 {p99 / 1000:8.2f} µs   "
            f"{ratio:6.1f} times upcall's"
        )


if __name__ == "__main__":
    main()
