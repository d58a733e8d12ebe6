"""What programs see of the package: the modules of its names, pickles, and help."""

import pickle
import pydoc
import traceback
import types
import typing

import every
import upcall
import upcall.aio
import upcall.message
from every import Error, Every
from upcall import errors

kinds = (type, types.FunctionType)

# Each class and function is where programs import it from.
for module in (upcall, upcall.aio, upcall.message, errors):
    for each, public in vars(module).items():
        if each in getattr(module, "__all__", [each]) and isinstance(public, kinds):
            assert "._" not in public.__module__, (each, public.__module__)
shown = "".join(traceback.format_exception_only(upcall.Err(Error.BUSY)))
assert shown == "upcall.Err: Error.BUSY\n", shown

values: list[typing.Any] = [
    upcall.Err(Error.BUSY),
    upcall.Ok(1),
    upcall.Some(None),
    upcall.User(0),
    upcall.Group(0),
    upcall.ANY_USER,
    upcall.Pacing.POLL,
    upcall.HandOff.AT_ONCE,
    upcall.serve,
    upcall.Running,
]
for value in values:
    assert pickle.loads(pickle.dumps(value)) == value, value
aborted = upcall.CallAborted("late")
aborted.sent = True
again = pickle.loads(pickle.dumps(aborted))
assert type(again) is upcall.CallAborted and str(again) == "late" and again.sent

# Annotations are still found.
for hinted in (every.ServeEvery, upcall.Some, upcall.Err, upcall.User, upcall.start):
    typing.get_type_hints(hinted)

for told in (upcall, upcall.Err, upcall.Running, upcall.start, errors, every, Every):
    assert len(pydoc.render_doc(told)) > 100
assert "class Err(" in pydoc.plain(pydoc.render_doc(upcall))
print("ok")
