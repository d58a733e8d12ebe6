"""What happens to other members of a group."""

from __future__ import annotations

import typing


class Event(typing.NamedTuple):
    """What happened to another member."""

    rank: int
    #: How the member violated the protocol, after which nothing more is taken from it. `None`: it
    #: has ended, or has left the group, and all its messages were taken first; or it has joined.
    violation: str | None
    #: Whether the member has joined a group that had room for it; then it has not ended. This event
    #: comes before its first message.
    joined: bool = False
