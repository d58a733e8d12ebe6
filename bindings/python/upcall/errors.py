"""Exceptions. Their texts say what was tried, what was found, and what to do.

The errors of a call are those of Rust's `CallError` and the codes of C's `upcall_status`, one class
each.
"""

from __future__ import annotations


class Error(Exception):
    """The base class of all exceptions of the runtime."""


class Closed(Error):
    """A client, a resource, or the data of a call was used after its end."""


class Forked(Error):
    """This process was forked from one that used upcall."""


class BindError(Error):
    """Binding failed."""


class BadName(BindError, ValueError):
    """The name is not well-formed."""


class NoSuchName(BindError):
    """No server exports the name."""


class ServerGone(BindError):
    """The server has ended, no longer exports the name, or closed the connection early."""


class NoAnswer(BindError, TimeoutError):
    """The server does not answer: it is stopped, or another program listens there."""


class WrongUser(BindError, PermissionError):
    """The server runs as another user."""


class Denied(BindError, PermissionError):
    """The server refuses this client."""


class QuotaReached(BindError):
    """This client has reached its limit in the server."""


class WrongVersion(BindError):
    """Client and server speak different versions of Upcall's protocol."""


class WrongInterface(BindError):
    """The name belongs to another interface."""


class Mismatch(BindError):
    """Procedures have other types in the server than in this program."""


class NoResource(BindError):
    """The folder of names is not usable, or a resource is missing, here or in the server."""


class BrokenProtocol(BindError):
    """The server violated the protocol."""


class Unreachable(BindError, ConnectionError):
    """There is no connection to a server on another machine.

    No program listens at the address, the listener is not an Upcall server, or the connection was
    lost.
    """


class NotThere(BindError):
    """The server on another machine does not export the name."""


class NotProved(BindError, PermissionError):
    """The host of the server is not trusted, or has not proved to be the trusted one.

    Nothing was sent to it.
    """


class CallError(Error):
    """A call did not return its procedure's result."""


class CallFailed(CallError, ConnectionError):
    """No reply will arrive: the server has ended, for example.

    The procedure may or may not have run.
    """

    #: The reason.
    why: str
    #: The name that was bound.
    name: str
    #: The server's process ID; 0 on another machine.
    server_pid: int


class CallAborted(CallError, TimeoutError):
    """The deadline passed before the reply arrived, or the call was cancelled.

    The server continues; the result is dropped when it arrives.
    """

    #: Whether the server has the request: then the procedure may have run, or may still run.
    sent: bool


class TooLong(CallError, ValueError):
    """An argument is longer than the interface permits. Nothing was sent."""

    #: The argument's length, in bytes or elements.
    length: int
    #: The maximum length.
    limit: int


class ForeignHandle(CallError, ValueError):
    """A resource of another binding was given. Nothing was sent."""


class Refused(CallError):
    """The server refused the arguments, or its result exceeds the interface's limits."""


class NoSuchHandle(CallError):
    """The server no longer knows the resource."""


class Panicked(CallError):
    """The procedure failed in the server: a panic, or an exception. The server continues."""

    #: Up to 4096 bytes of the server's text.
    message: str


class Revoked(CallError):
    """The server revoked the binding."""


class NoSuchProcedure(CallError):
    """The server has no such procedure."""


class Malformed(CallError):
    """The server's reply violates the interface."""


class NoMemory(CallError, MemoryError):
    """There is no memory for the arguments or the result."""

    #: Whether the procedure has run, and the server did not keep its result. If false, the
    #: procedure may have run unless the text says that it did not.
    sent: bool


class ServeError(Error):
    """A name could not be served."""


class NameTaken(ServeError):
    """The name is already exported."""

    #: The process that exports it, which may be this one.
    server_pid: int


class NoExport(ServeError, OSError):
    """The folder of names is not usable, or the kernel refused an operation.

    A descriptor, memory or an address to listen at may be missing.
    """


class Unprotected(ServeError, ValueError):
    """Other hosts can reach the address to listen at, and this host has no identity for them."""


class GroupError(Error):
    """The base class of exceptions about groups and their messages."""


class OtherThread(GroupError, RuntimeError):
    """A thread used a group that belongs to another thread, the one that joined it."""


class InHandler(GroupError, RuntimeError):
    """A group cannot be left in a handler, or in any other callback of one of its methods."""


class NothingThere(GroupError, LookupError):
    """No message waits."""


class StillViewed(GroupError, BufferError):
    """A buffer of a message in place is still exported though its `with` has ended.

    This may be a `memoryview` or a NumPy array. The message is disposed of when the last of its
    buffers has gone.
    """


class NoUpcalls(GroupError, OSError):
    """Handlers cannot run by upcalls here."""


class JoinError(GroupError):
    """The process did not become a member."""


class BadGroup(JoinError, ValueError):
    """The group's name, size, rank or kinds of messages are invalid.

    No group can have that name or size, there is no such rank in it, or the names and signatures of
    the kinds of messages exceed the 150 KB that members can exchange about them.
    """


class Incomplete(JoinError, TimeoutError):
    """Not all members joined in time."""


class NotTakenIn(JoinError):
    """The group refuses this member.

    The version, the size or the kinds of messages differ, or the rank is taken. The text names the
    kind that differs.
    """


class NoJob(JoinError):
    """This process is not a member of a job."""


class HostNotProved(JoinError, PermissionError):
    """The members are on several hosts, and one of these is not proved.

    It is not trusted, or has not proved to be the trusted one. The text names the command by which
    hosts get to trust each other.
    """


class NoMembership(JoinError, OSError):
    """The folder of names is not usable, or a descriptor or memory is missing."""


class SendError(GroupError):
    """A message was not sent, not even in part."""


class NoSuchRank(SendError, IndexError):
    """There is no such member."""


class ReceiverEnded(SendError, ConnectionError):
    """The receiver has ended, or has left the group."""


class MessageTooLong(SendError, ValueError):
    """The message exceeds the maximum length of a message."""


class Full(SendError, BlockingIOError):
    """There is no room yet, or there was none within the time limit of `send`."""


class Overflow(SendError):
    """No buffer space became free within the time limit of `send`.

    This member has used up its share of what the group may buffer, or little memory is left.
    """


class NoBuffer(SendError, MemoryError):
    """There is no memory for a message that does not fit into the queue."""


class ReceiverViolation(SendError):
    """The receiver violates the protocol."""


class NoQueue(SendError, ConnectionError):
    """No queue to the receiver could be opened."""


class QueueRefused(SendError):
    """The receiver lives, but lacks memory or descriptors for the queue.

    The message was not sent. Messages that were sent to the receiver before wait in this process,
    and the next send offers the queue again.
    """


class RunError(GroupError):
    """A wait for other members failed."""


class MemberEnded(RunError, ConnectionError):
    """Another member has ended or left, so what this member waited for may never arrive."""

    #: The member.
    rank: int


class MemberViolation(RunError):
    """Another member violates the protocol."""

    #: The member.
    rank: int


class GivenUp(RunError):
    """Another member has given up a barrier or reduction, and reports that a third one is missing.

    This member cannot confirm that the third one has ended.
    """

    #: The member that reports this.
    by: int
    #: The member that is missing.
    missed: int


class Parted(RunError):
    """Two other members have lost each other, and both live, so no barrier or reduction holds.

    Messages with both go on.
    """

    #: The member with the lower rank.
    one: int
    #: The other member.
    other: int


class Growing(RunError):
    """The group has room for members that join later, so it has no barriers and reductions."""


class Unhandled(RunError):
    """A message without a handler waits, and so do those of its sender behind it."""

    #: The sender.
    rank: int
    #: The name of the kind of message.
    kind: str


class Unsent(RunError):
    """No memory or descriptor is left, here or there, to reach a member that waits for this one.

    A barrier or reduction continues with the next call.
    """

    #: The member.
    rank: int


class ExpectError(GroupError):
    """Members are not expected to join."""


class NoRoom(ExpectError):
    """No member can join this group later: it is on one host, or has no room."""


class NotLeader(ExpectError):
    """Another member takes in those that join later."""


class RankTaken(ExpectError, ValueError):
    """A rank is another member's, or outside the room of the group."""
