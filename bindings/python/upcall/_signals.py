"""The signal that announces messages to groups."""

from __future__ import annotations

import contextlib
import signal
import types
from collections.abc import Iterator

from upcall import _upcall
from upcall.errors import NoUpcalls


def _heed(number: int, frame: types.FrameType | None) -> None:
    _upcall.heed()


@contextlib.contextmanager
def heeding() -> Iterator[None]:
    """While a signal announces messages to groups."""
    before = signal.getsignal(signal.SIGURG)
    if before not in (signal.SIG_DFL, signal.SIG_IGN, _heed):
        raise NoUpcalls("the program has a handler of its own for SIGURG: poll instead")
    signal.signal(signal.SIGURG, _heed)
    try:
        yield
    finally:
        signal.signal(signal.SIGURG, before)
