"""A member in Python of a group across hosts, which a test controls.

bindings/c/tests/far/member.c is the same in C. Arguments: the group's name and size, a rank, and
options; or, of a process that is no member, "ask", a request and an address. The member reads one
command a line and writes one reply a line: "ok" with words, or "error" with a class and a text.
Messages to each other member are numbered, and the receiver checks that none is missing, doubled or
out of order.
"""

import operator
import sys
import threading
import typing

from expect import raises
from upcall import Closed, message

#: Longest wait, in seconds. A test waits for longer.
PATIENCE = 50
#: Maximum number of members.
MOST = 8
FACTOR = 0x9E3779B97F4A7C15

name, options = sys.argv[1], dict(option.split("=", 1) for option in sys.argv[3:] if "=" in option)
size, rank = (int(word) if word.isdigit() else 0 for word in sys.argv[2:4])
following = [0] * MOST
taken = [0] * MOST
ended: set[int] = set()
joined: set[int] = set()
parted: set[tuple[int, int]] = set()

handlers = message.Handlers()
data = handlers.kind("data", "[u64; 4]")


@handlers.on(data)
def _(group: message.Group, sender: int, value: list[int]) -> None:
    number = taken[sender]
    taken[sender] += 1
    assert value == [number, number * FACTOR % 2**64, sender, group.rank], (value, number)


def join() -> message.Group:
    terms: dict[str, typing.Any] = {"rank": rank, "patience": PATIENCE}
    if "across" in options:
        terms["across"] = options.pop("across")
    if "room" in options:
        terms["room"] = int(options.pop("room"))
    for option, term in {"lost": "lost_after", "cut": "reconnect_within"}.items():
        if option in options:
            terms[term] = float(options.pop(option)) / 1000
    if "late" in options:
        first, count = map(int, options.pop("late").split(":"))
        # The test writes the invitation in a line.
        invitation = message.Invitation(sys.stdin.readline().strip())
        assert invitation.text not in repr(invitation)
        if count > 1:
            terms["ranks"] = range(first, first + count)
        return message.join_late(name, size, handlers, invitation, **terms)
    assert not options, options
    return message.join(name, size, handlers, **terms)


def take_events(group: message.Group) -> None:
    for event in group.events():
        assert event.violation is None
        if event.parted_from is not None:
            assert (event.rank, event.parted_from) not in parted and not event.joined
            parted.add((event.rank, event.parted_from))
        else:
            (joined if event.joined else ended).add(event.rank)


def until(group: message.Group, done: typing.Callable[[], bool]) -> None:
    while not done():
        polled = group.poll()
        take_events(group)
        if polled == 0 and not done():
            assert group.wait(PATIENCE), "nothing arrives"


def send(group: message.Group, to: int, count: int) -> None:
    for _ in range(count):
        number = following[to]
        group.send(to, data, [number, number * FACTOR % 2**64, rank, to])
        following[to] += 1


def ranks_of(numbers: list[int]) -> range:
    first, count = numbers
    return range(first, first + count)


def await_petition(group: message.Group) -> message.Petition:
    while (petition := group.petition()) is None:
        assert group.wait(PATIENCE), "no petition arrives"
        group.poll()
    return petition


def invite(group: message.Group, ranks: range) -> str:
    """Answers the next petition with an invitation that is valid on its host."""
    petition = await_petition(group)
    invitation = group.expect(ranks, petition)
    petition.answer(invitation.text.encode())
    raises(Closed, lambda: petition.answer(b""))
    raises(Closed, lambda: group.expect(ranks, petition))
    return f"{petition.request.decode()} {petition.host or 'here'}"


def ask(address: str, request: str) -> None:
    try:
        print(f"ok {message.petition(address, request.encode(), patience=PATIENCE).decode()}")
    except (message.JoinError, KeyboardInterrupt) as error:
        print(f"error {type(error).__name__} {error}")


def obey(group: message.Group, command: str, numbers: list[int]) -> object:
    first = numbers[0] if numbers else 0
    match command:
        case "expect":
            return group.expect(ranks_of(numbers)).text
        case "invite":
            return invite(group, ranks_of(numbers))
        case "refuse":
            await_petition(group).refuse("not today")
        case "expect-no-more":
            group.expect_no_more(ranks_of(numbers))
        case "expel":
            group.expel(ranks_of(numbers))
        case "joined":
            until(group, lambda: first in joined)
            return int(group.has_joined(first))
        case "parted":
            until(group, lambda: (first, numbers[1]) in parted)
        case "has-joined":
            return int(group.has_joined(first))
        case "send":
            send(group, first, numbers[1])
        case "take":
            until(group, lambda: taken[first] >= numbers[1] or first in ended)
            return taken[first]
        case "end-of":
            until(group, lambda: first in ended)
            return taken[first]
        case "process":
            return group.process(first) or 0
        case "barrier":
            try:
                group.barrier()
            except message.Parted as error:
                assert f"members {error.one} and {error.other} have lost" in str(error)
                raise
        case "reduce":
            return group.reduce(first, operator.add, "u64")
        case "leave-beside":
            leave_beside(group)
        case _:
            raise AssertionError(command)
    return 0


def leave_beside(group: message.Group) -> None:
    """Leaves while another thread answers each line of the test, until a line `stop`."""

    def answers() -> None:
        while sys.stdin.readline() != "stop\n":
            print("ok beside", flush=True)

    thread = threading.Thread(target=answers)
    thread.start()
    group.leave()
    thread.join()


def main() -> None:
    try:
        group = join()
    except (message.JoinError, ValueError) as error:
        print(f"error {type(error).__name__} {error}", flush=True)
        return
    print(f"ok {group.rank}", flush=True)
    while (line := sys.stdin.readline()) not in ("", "leave\n"):
        command, *words = line.split()
        try:
            done = obey(group, command, [int(word) for word in words])
            print(f"ok {done}", flush=True)
        except (message.GroupError, ValueError) as error:
            print(f"error {type(error).__name__} {error}", flush=True)
    group.leave()
    print("ok left", flush=True)


if name == "ask":
    ask(options["across"], sys.argv[2])
else:
    main()
