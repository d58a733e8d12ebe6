"""Imports modules, and converts blocks of arguments to objects and back.

Argument: a file with a line for each: module, interface, procedure, block; or a module alone.
"""

import importlib
import sys
import typing

from upcall import _upcall

engine: typing.Any = _upcall
kinds: dict[tuple[str, str], typing.Any] = {}
count = modules = 0
with open(sys.argv[1]) as lines:
    for line in lines:
        stem, *rest = line.split()
        module = importlib.import_module(stem)
        if not rest:
            modules += 1
            for public in module.__all__:
                assert getattr(module, public) is not None
            continue
        interface, procedure, block = rest
        if (stem, interface) not in kinds:
            classes = [one for one in vars(module).values() if isinstance(one, type)]
            found = [one for one in classes if vars(one).get("_upcall_id") == interface]
            kinds[stem, interface] = found[0]._upcall_kind  # type: ignore[attr-defined]
        kind = kinds[stem, interface]
        number = engine._procedures(kind).index(procedure)
        values = engine._decode(kind, number, bytes.fromhex(block), False)
        again = engine._encode(kind, number, values, False)
        assert again.hex() == block, (
            f"{stem} {interface} {procedure}: {values}\n{block}\n{again.hex()}"
        )
        assert engine._decode(kind, number, again, False) == values
        count += 1
print(f"{modules} modules, {count} values")
