"""How a process becomes a member of a group."""

from __future__ import annotations

import typing


class Terms(typing.NamedTuple):
    """The terms on which a process joins, as `upcall.message.join` documents them."""

    #: `None`: that of the job that started this process, with its size and rank.
    name: str | None
    size: int
    rank: int | None
    patience: float
    #: The value of an `upcall.Pacing`.
    pacing: int
    timeout: float | None
    limit: int | None
    across: str | None = None
    lost_after: float | None = None
    reconnect_within: float | None = None
