"""What happens to other members of a group."""

from __future__ import annotations

import typing


class Event(typing.NamedTuple):
    """What happened to another member."""

    rank: int
    #: How the member violated the protocol, after which nothing more is taken from it. `None`: it
    #: has ended, or has left the group, and all its messages were taken first; or one of the next
    #: two holds.
    violation: str | None
    #: Whether the member has joined a group that had room for it; then it has not ended. This event
    #: comes before its first message.
    joined: bool = False
    #: Another member, with a higher rank, that the member has lost, and that has lost it: on
    #: several hosts, the link of the two was cut for too long. Both live, and messages with both go
    #: on, but no barrier or reduction holds any more. This event comes once for each two members.
    parted_from: int | None = None
