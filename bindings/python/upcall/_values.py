"""Values that WIT has and Python lacks."""

from __future__ import annotations

import dataclasses
import typing

_T = typing.TypeVar("_T")
_E = typing.TypeVar("_E")


class Buffer(typing.Protocol):
    """An object with the buffer protocol.

    For example `bytes`, `bytearray`, `memoryview`, `mmap`, `array.array`, NumPy's arrays.
    """

    def __buffer__(self, flags: int, /) -> memoryview:
        """For type checkers: Python's own classes have this method."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class Some(typing.Generic[_T]):
    """The present case of an option of an option."""

    value: _T


@dataclasses.dataclass(frozen=True, slots=True)
class Ok(typing.Generic[_T]):
    """The good case of a result that is inside another value."""

    value: _T


class Err(Exception, typing.Generic[_E]):
    """The error case of a result.

    If a procedure's result type is `result`, its error is raised as an `Err` on both sides: the
    server raises it, and so does the client's call. Inside another value it is a value like `Ok`.
    It is not an `upcall.Error`: the call itself succeeded.
    """

    __match_args__ = ("value",)

    def __init__(self, value: _E) -> None:
        """Takes the value that the procedure returned as its error."""
        super().__init__(value)
        self.value: _E = value

    def __eq__(self, other: object) -> bool:
        return self.value == other.value if isinstance(other, Err) else NotImplemented

    def __hash__(self) -> int:
        return hash((Err, self.value))

    def __repr__(self) -> str:
        return f"Err(value={self.value!r})"
