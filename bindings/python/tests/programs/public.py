"""What programs see of the package: the modules of its names, pickles, and help.

Argument: the WIT file of the module `every`.
"""

import inspect
import pickle
import pydoc
import sys
import traceback
import types
import typing

import every
import upcall
import upcall.aio
import upcall.message
from every import Error, Every, Node
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
    upcall.message.Invitation("07" * 32),
    upcall.message.Event(1, None, True),
]
for value in values:
    assert pickle.loads(pickle.dumps(value)) == value, value
aborted = upcall.CallAborted("late")
aborted.sent = True
again = pickle.loads(pickle.dumps(aborted))
assert type(again) is upcall.CallAborted and str(again) == "late" and again.sent

# Annotations are still found.
for hinted in (
    every.ServeEvery,
    upcall.Some,
    upcall.Err,
    upcall.User,
    upcall.start,
    upcall.message.Event,
    upcall.message.Handlers.on,
    upcall.message.join,
):
    typing.get_type_hints(hinted)

for told in (upcall, upcall.Err, upcall.Running, upcall.start, errors, every, Every):
    assert len(pydoc.render_doc(told)) > 100
assert "class Err(" in pydoc.plain(pydoc.render_doc(upcall))

# The help of a method has the declaration, in generated and learned modules alike.
learned = vars(upcall.load(sys.argv[1]))
for client, node in ((Every, Node), (learned["Every"], learned["Node"])):
    for method, docs in {
        client.add: "WIT: add: func(a: u32, b: u32) -> u32",
        client.swap: "Returns the family again, with the label twice.\n\n"
        "WIT: swap: func(f: family) -> family",
        client.bind_: "WIT: bind: func(name: string) -> result<_, string>\n\n"
        "Raises:\n    upcall.Err: the procedure returned its error, of the type `string`.",
        client.bare: "WIT: bare: func() -> result\n\n"
        "Raises:\n    upcall.Err: the procedure returned its error.",
        client.node_root: "WIT: root: static func() -> result<own<node>, error>\n\n"
        "Raises:\n    upcall.Err: the procedure returned its error, of the type `error`.",
        node.same: "WIT: same: func(other: borrow<node>) -> bool",
    }.items():
        assert inspect.getdoc(method) == docs, inspect.getdoc(method)
        view = getattr(client if hasattr(client, method.__name__) else node, "_upcall_view")
        assert inspect.getdoc(getattr(view, method.__name__)) == docs
print("ok")
