"""What programs expect that goes wrong."""

import typing


def raises(kind: type[BaseException], call: typing.Callable[[], object]) -> typing.Any:
    try:
        found = call()
    except kind as error:
        return error
    raise AssertionError(f"{found!r} and no {kind.__name__}")
