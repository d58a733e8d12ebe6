"""Messages between the members of a group, with handlers.

A process joins a group and becomes one of its members, identified by rank. Members in Rust, C and
Python can form one group::

    from upcall import message

    handlers = message.Handlers()
    token = handlers.kind("token", "u64")

    @handlers.on(token)
    def _(group: message.Group, sender: int, hops: int) -> None:
        group.send((group.rank + 1) % group.size, token, hops + 1)

    with message.join("ring", 4, handlers) as group:  # four processes run this; each gets a rank
        if group.rank == 0:
            group.send(1, token, 1)
        group.run_until()  # until another member ends

A group belongs to the thread that joined it: on any other thread every method raises `OtherThread`.
While a method waits, other threads of the program run, and Ctrl-C ends the wait.
"""

from __future__ import annotations

from upcall import _upcall
from upcall._client import Pacing
from upcall._events import Event
from upcall._group import Group, Handlers, Kind, Message
from upcall._joining import Invitation, Terms, bounds
from upcall._upcall import Petition, Place
from upcall.errors import (
    BadGroup,
    ExpectError,
    Full,
    GivenUp,
    GroupError,
    Growing,
    HostNotProved,
    Incomplete,
    InHandler,
    JoinError,
    MemberEnded,
    MemberViolation,
    MessageTooLong,
    NoBuffer,
    NoJob,
    NoMembership,
    NoQueue,
    NoRoom,
    NoSuchRank,
    NothingThere,
    NotLeader,
    NoUpcalls,
    NotTakenIn,
    OtherThread,
    Overflow,
    Parted,
    QueueRefused,
    RankTaken,
    ReceiverEnded,
    ReceiverViolation,
    RunError,
    SendError,
    StillViewed,
    Unhandled,
    Unsent,
)

__all__ = [
    "BadGroup",
    "Event",
    "ExpectError",
    "Full",
    "GivenUp",
    "Group",
    "GroupError",
    "Growing",
    "Handlers",
    "HostNotProved",
    "InHandler",
    "Incomplete",
    "Invitation",
    "JoinError",
    "Kind",
    "MemberEnded",
    "MemberViolation",
    "Message",
    "MessageTooLong",
    "NoBuffer",
    "NoJob",
    "NoMembership",
    "NoQueue",
    "NoRoom",
    "NoSuchRank",
    "NotLeader",
    "NotTakenIn",
    "NothingThere",
    "NoUpcalls",
    "OtherThread",
    "Overflow",
    "Pacing",
    "Parted",
    "Petition",
    "Place",
    "QueueRefused",
    "RankTaken",
    "ReceiverEnded",
    "ReceiverViolation",
    "RunError",
    "SendError",
    "StillViewed",
    "Unhandled",
    "Unsent",
    "join",
    "join_job",
    "join_late",
    "petition",
]

# Tracebacks and pickles name the module that programs import these from.
for _public in (Event, Group, Handlers, Invitation, Kind, Message):
    _public.__module__ = __name__


def join(
    name: str,
    size: int,
    handlers: Handlers,
    *,
    rank: int | None = None,
    patience: float = 60.0,
    pacing: Pacing = Pacing.ADAPTIVE,
    timeout: float | None = 0.0002,
    limit: int | None = None,
    across: str | None = None,
    lost_after: float | None = None,
    reconnect_within: float | None = None,
    room: int = 0,
) -> Group:
    """Joins a group of `size` processes that all give this name.

    Returns when all others have joined.

    With `across` the group has members on several hosts. Only processes of hosts that this user
    trusts become members, and on one host only those of this user. Messages between hosts are
    encrypted. A member on another host is used like any other, with these differences:

    - A message to it has at most 256 MiB, and at most its share of the limit, or 1 MiB if that is
      more (`MessageTooLong`).
    - If this process is killed, messages to it that have not left this host are lost. `Group.leave`
      waits until the other hosts have all messages.
    - If its host cannot be reached, messages to it wait for `reconnect_within`. Then it has ended,
      for this member.

    Args:
        rank: asks for a rank; by default the member gets a rank that no other member asked for.
        patience: how long to wait for the other members, in seconds.
        pacing: how the member waits for messages.
        timeout: the atomicity timeout, in seconds: how long a sender waits for room in the queue of
            a receiver that takes nothing, before it goes on in a buffer. At 0 all messages are
            buffered; with `None` none are, and senders wait.
        limit: maximum number of bytes that the group buffers; by default a quarter of the machine's
            memory.
        across: the address at which members on several hosts meet, HOST:PORT; all give the same. It
            belongs to one of their hosts: the first member there that can listen at it takes in the
            others. HOST is the name under which the other hosts trust that host (`upcall host
            trust`), or all members are on one machine, at a loopback address.
        lost_after: time, in seconds, after which a host that gives no sign of life is cut off: from
            a second to 12 hours, by default 5 s. The host's kernel gives the signs, so a host with
            a stopped process is not cut off. No effect in a group on one host.
        reconnect_within: how long, in seconds, a member on a host that is cut off may be out of
            reach before it has ended: at most 30 days, by default 30 s. Of two members the shorter
            time holds. No effect in a group on one host.
        room: number of members that may join after the group has formed (`join_late`), in a group
            across hosts, which may all be on one machine. Their ranks follow those of the first
            members, and `Group.size` counts them from the start. All first members leave the same
            room, and member 0, which asks for that rank, takes in the others (`Group.expect`). Such
            a group has no barriers and reductions (`Growing`).

    Raises:
        JoinError: see its classes.
        HostNotProved: one of the hosts is not trusted, or has not proved to be the trusted one.
        ValueError: what a kind carries is not a signature, a time is not a number of seconds, or
            the limit is not a number of bytes.
    """
    terms = Terms(name, size, rank, patience, pacing.value, timeout, limit)
    terms = terms._replace(across=across, lost_after=lost_after, reconnect_within=reconnect_within)
    return Group(handlers, terms._replace(room=room))


def join_late(
    name: str,
    size: int,
    handlers: Handlers,
    invitation: Invitation,
    *,
    across: str,
    rank: int,
    ranks: range | None = None,
    patience: float = 60.0,
    pacing: Pacing = Pacing.ADAPTIVE,
    timeout: float | None = 0.0002,
    limit: int | None = None,
    lost_after: float | None = None,
    reconnect_within: float | None = None,
) -> Group:
    """Joins a group that has formed, and has room for this member (`join`).

    Returns when all processes of the `ranks` have applied, and this one has a connection with each
    other member. Processes of these ranks reach each other through memory if they share a machine;
    all other members count as members on other hosts.

    Args:
        size: `Group.size` of the other members.
        invitation: what `Group.expect` has returned for the `ranks`.
        across: the address at which the first members met.
        rank: the rank of this member.
        ranks: the ranks that join together; by default this member's alone.

    The other arguments are those of `join`.

    Raises:
        NotTakenIn: the ranks are not expected, or this is not their invitation.
        JoinError: see its classes.
        ValueError: as for `join`, or `ranks` are not consecutive ranks.
    """
    first, end = bounds(range(rank, rank + 1) if ranks is None else ranks)
    terms = Terms(name, size, rank, patience, pacing.value, timeout, limit)
    terms = terms._replace(across=across, lost_after=lost_after, reconnect_within=reconnect_within)
    return Group(handlers, terms._replace(late=(first, end, invitation.text)))


def join_job(
    handlers: Handlers,
    *,
    patience: float = 60.0,
    pacing: Pacing = Pacing.ADAPTIVE,
    timeout: float | None = 0.0002,
    limit: int | None = None,
    lost_after: float | None = None,
    reconnect_within: float | None = None,
) -> Group:
    """Joins the group of the job that this process was started in, with its size and rank there.

    The job is started with `upcall job run --group 4 -- python3 program.py`. A job on several hosts
    also gives the address at which the members meet. The other arguments are those of `join`.

    Raises:
        NoJob: the process was not started in a job.
    """
    terms = Terms(None, 0, None, patience, pacing.value, timeout, limit)
    return Group(handlers, terms._replace(lost_after=lost_after, reconnect_within=reconnect_within))


def petition(across: str, request: bytes, *, patience: float = 60.0) -> bytes:
    """Asks the member of a group that takes in others, and returns its answer.

    Any process may ask, also one without a group. Other threads run while it waits, and Ctrl-C ends
    the wait, except for up to 5 s in which it connects.

    Args:
        across: the address at which the members meet, HOST:PORT.
        request: at most 4 KiB; `Petition.request` in the member.
        patience: how long to wait for the answer, in seconds. If no process listens at the address,
            the function tries again in that time.

    Raises:
        Incomplete: no answer has arrived in time.
        NotTakenIn: the member refuses the request, or does not admit this process.
        HostNotProved: its host is not trusted, or has not proved to be the trusted one. Nothing was
            sent.
        ValueError: `patience` is not a number of seconds.
    """
    return _upcall.petition(across, request, patience)
