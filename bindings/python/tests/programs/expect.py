"""The check that an exception is raised."""

import typing


def raises(kind: type[BaseException], call: typing.Callable[[], object]) -> typing.Any:
    try:
        found = call()
    except kind as error:
        return error
    raise AssertionError(f"{found!r} and no {kind.__name__}")
