"""How a process becomes a member of a group: its terms, and the invitation of a late member."""

from __future__ import annotations

import dataclasses
import re
import typing


@dataclasses.dataclass(frozen=True)
class Invitation:
    """The secret with which processes join a group that has formed.

    `Group.expect` returns it, and processes show it (`join_late`). Give them its `text` over a
    channel that no other process reads, such as their standard input; arguments of a command are
    none. Its `repr` does not show the secret.

    Raises:
        ValueError: the text is not that of an invitation.
    """

    #: 64 hexadecimal digits.
    text: str = dataclasses.field(repr=False)

    def __post_init__(self) -> None:
        if not re.fullmatch("[0-9a-f]{64}", self.text):
            raise ValueError("an invitation has 64 hexadecimal digits")


def bounds(ranks: range) -> tuple[int, int]:
    """The first of consecutive ranks, and the end of them."""
    if not isinstance(ranks, range):
        raise TypeError(f"ranks are a range, as range(2, 4), not a {type(ranks).__name__}")
    if ranks.step != 1 or ranks.start < 0 or ranks.stop > 2**32 or not ranks:
        raise ValueError(f"{ranks} are not consecutive ranks")
    return ranks.start, ranks.stop


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
    room: int = 0
    #: The first of the ranks that join together, their end, and the text of their invitation.
    late: tuple[int, int, str] | None = None
