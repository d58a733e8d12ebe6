"""Servers: mistakes and their texts, servers that are not kept, and missing resources.

With the argument `nowhere`, there is no usable folder of names.
"""

import gc
import sys
import typing

import upcall
from common import every, name, raises
from every import Every, ServeEvery
from upcall import errors
from upcall.message import Handlers, join

server = every(add=lambda a, b: a + b)

if sys.argv[1:] == ["nowhere"]:
    raises(errors.NoExport, lambda: upcall.start("nowhere", server))
    raises(errors.NoResource, lambda: Every("nowhere"))
    raises(errors.NoMembership, lambda: join("nowhere", 2, Handlers()))
    sys.exit()


class English(ServeEvery):
    pass


wrong: list[tuple[typing.Any, typing.Any, str]] = [
    ("greeter", English, "English is a class: pass an object, English()"),
    ({"greeter": English}, None, "English is a class: pass an object, English()"),
    ("greeter", (ServeEvery, English), "English is a class: pass an object, English()"),
    (server, "greeter", "the name comes first, as in serve('greeter', Partial())"),
    (English, "greeter", "the name comes first, as in serve('greeter', English())"),
    (server, None, "the name is missing, as in serve('every', Partial())"),
    (English, None, "the name is missing, as in serve('every', English())"),
    (7, server, "the name is a str, or a mapping from names to objects, not int"),
    ("greeter", object(), "object, which is to serve 'greeter', has no interface"),
]
for served, by, said in wrong:
    for serve in (upcall.start, upcall.serve):
        error = raises(TypeError, lambda: serve(served, by))
        assert str(error).startswith(said), error
octal: typing.Any = "660"
error = raises(TypeError, lambda: upcall.start("greeter", server, mode=octal))
assert str(error) == "the mode of a socket is a number, as 0o660, not '660'", error

# Clients, before anything is bound.
mistaken: typing.Any = "5"
error = raises(TypeError, lambda: Every("nobody", wait=mistaken))
assert str(error) == "`wait` is a number of seconds, and str was given", error
raises(ValueError, lambda: Every("nobody", wait=-1))
mistaken = Every
error = raises(TypeError, lambda: upcall.bind("nobody", mistaken))
assert str(error) == "`upcall.bind` takes no class: write `Every('nobody')`", error

# A server runs although the program keeps nothing of it.
upcall.start(name("dropped"), server)
gc.collect()
assert Every(name("dropped")).add(1, 2) == 3

# A stopped server is not kept.
with upcall.start(name("stopped"), server) as running:
    pass
assert sys.getrefcount(running) == 2
raises(errors.NoSuchName, lambda: Every(name("stopped")))

# The kernel knows no such address.
error = raises(
    upcall.ServeError, lambda: upcall.start(name("nowhere"), server, listen="127.0.0.1:no-port")
)
assert isinstance(error, errors.NoExport) and isinstance(error, OSError)
print("ok")
