"""Servers: servers that are not kept, and missing resources.

With the argument `nowhere`, there is no usable folder of names.
"""

import gc
import sys

import upcall
from common import every, name, raises
from every import Every
from upcall import errors
from upcall.message import Handlers, join

server = every(add=lambda a, b: a + b)

if sys.argv[1:] == ["nowhere"]:
    raises(errors.NoExport, lambda: upcall.start("nowhere", server))
    raises(errors.NoResource, lambda: Every("nowhere"))
    raises(errors.NoMembership, lambda: join("nowhere", 2, Handlers()))
    sys.exit()

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
