"""The member in Python of bindings/c/examples/messages.rs.

Arguments: the group's name, its size, a rank. Alone it prints the time of a send and a poll of a
null message, in ns; with another member, the time of a message one way.
"""

import statistics
import sys
import time

from upcall import message

BATCH, ROUNDS, PINGS = 1000, 50, 20_000

name, size, rank = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
taken = 0
handlers = message.Handlers()
null = handlers.kind("null")


@handlers.on(null)
def on_null(group: message.Group, sender: int, value: None) -> None:
    global taken
    taken += 1


with message.join(name, size, handlers, rank=rank, pacing=message.Pacing.POLL) as group:
    now = time.perf_counter_ns
    if size == 1:
        sends, polls = [], []
        for _ in range(ROUNDS):
            start = now()
            for _ in range(BATCH):
                group.send(0, null)
            middle = now()
            until = taken + BATCH
            while taken < until:
                group.poll()
            sends.append((middle - start) / BATCH)
            polls.append((now() - middle) / BATCH)
        print(f"send {statistics.median(sends):.1f} poll {statistics.median(polls):.1f}")
    else:
        start = 0
        for number in range(1, PINGS + 1):
            if number == PINGS // 2:
                start = now()
            if rank == 0:
                group.send(1, null)
            while taken < number:
                group.poll()
            if rank == 1:
                group.send(0, null)
        if rank == 0:
            print(f"one way {(now() - start) / PINGS:.1f}")
