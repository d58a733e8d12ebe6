"""What a kind of message carries: types of Python, and signatures."""

from __future__ import annotations

import contextlib
import typing

_SIGNATURES: dict[object, str] = {
    int: "i64",
    float: "f64",
    bool: "bool",
    str: "text",
    bytes: "bytes",
    None: "()",
    type(None): "()",
}


def signature(carries: object) -> str:
    """The signature of what a kind carries, which is given as a signature or as a type."""
    if isinstance(carries, str):
        return carries
    with contextlib.suppress(TypeError):
        if carries in _SIGNATURES:
            return _SIGNATURES[carries]
    if (
        typing.get_origin(carries) is tuple
        and (parts := typing.get_args(carries))
        and Ellipsis not in parts
    ):
        return f"({', '.join(map(signature, parts))})"
    if typing.get_origin(carries) is typing.Annotated:
        said = [one for one in typing.get_args(carries)[1:] if isinstance(one, str)]
        if said:
            return said[0]
    raise TypeError(
        f"{carries!r} does not say what a message carries: it is int, float, bool, a tuple of "
        'these, str, bytes, None, or a signature as "(u64, [i32; 4])"'
    )
