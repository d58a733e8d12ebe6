"""Values that WIT has and Python has not."""

from __future__ import annotations

import dataclasses
import typing

_T = typing.TypeVar("_T")
_E = typing.TypeVar("_E")


class Buffer(typing.Protocol):
    """What has the buffer protocol: `bytes`, `bytearray`, `memoryview`, `mmap`, `array.array`, NumPy's arrays."""

    def __buffer__(self, flags: int, /) -> memoryview:
        """For those who check types: Python's own classes have it."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class Some(typing.Generic[_T]):
    """What is there, of an option of an option."""

    value: _T


@dataclasses.dataclass(frozen=True, slots=True)
class Ok(typing.Generic[_T]):
    """The good case of a result inside another value."""

    value: _T


class Err(Exception, typing.Generic[_E]):
    """The other case of a result.

    A procedure whose result is one raises it, on both sides: a client gets it raised, a server raises it. Inside another value it is a value like `Ok`. It is no `upcall.Error`: the call itself went well.
    """

    value: _E
    __match_args__ = ("value",)

    def __init__(self, value: _E) -> None:
        """What the procedure returned as its error."""
        super().__init__(value)
        self.value = value

    def __eq__(self, other: object) -> bool:
        return self.value == other.value if isinstance(other, Err) else NotImplemented

    def __hash__(self) -> int:
        return hash((Err, self.value))

    def __repr__(self) -> str:
        return f"Err(value={self.value!r})"
