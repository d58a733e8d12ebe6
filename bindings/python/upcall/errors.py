"""What can go wrong. Texts say what was tried, what was found, and what to do.

A call's errors are those of Rust's `CallError` and the codes of C's `upcall_status`, one class each.
"""

from __future__ import annotations


class Error(Exception):
    """All that the runtime raises."""


class Closed(Error):
    """A client, a resource, or the data of a call, was used after its end."""


class Forked(Error):
    """This process was forked from one that used upcall."""


class BindError(Error):
    """There is no binding."""


class BadName(BindError, ValueError):
    """The name cannot be one."""


class NoSuchName(BindError):
    """Nobody exports the name."""


class ServerGone(BindError):
    """The server has ended, exports the name no longer, or closed the connection before it answered."""


class NoAnswer(BindError, TimeoutError):
    """The server does not answer: it is stopped, or something else listens there."""


class WrongUser(BindError, PermissionError):
    """The server runs as another user."""


class Denied(BindError, PermissionError):
    """The server refuses this client."""


class Ceiling(BindError):
    """The server takes no more from this client."""


class WrongVersion(BindError):
    """Client and server speak different versions of Upcall's protocol."""


class WrongInterface(BindError):
    """The name is of another interface."""


class Mismatch(BindError):
    """Procedures have other types in the server than in this program."""


class NoResource(BindError):
    """A descriptor, memory, or another resource could not be had."""


class BrokenProtocol(BindError):
    """The server broke the protocol."""


class Unreachable(BindError, ConnectionError):
    """There is no connection to a server on another machine: nobody listens there, it is not one of ours, or the connection was lost."""


class NotThere(BindError):
    """The server on another machine does not export the name."""


class CallError(Error):
    """A call did not return its procedure's result."""


class CallFailed(CallError, ConnectionError):
    """No reply will come: the server has ended, say. The procedure may or may not have run."""

    #: Why.
    why: str
    #: The name that was bound.
    name: str
    #: The server's process; 0 on another machine.
    server_pid: int


class CallAborted(CallError, TimeoutError):
    """The deadline passed before the reply was there, or the call was given up. The server goes on; the result is dropped when it comes."""

    #: Whether the server has the request, so that the procedure may have run, or may still run.
    sent: bool


class TooLong(CallError, ValueError):
    """An argument is longer than the interface permits. Nothing was sent."""

    #: Its bytes or elements.
    length: int
    #: The most permitted.
    limit: int


class ForeignHandle(CallError, ValueError):
    """A resource of another binding was given. Nothing was sent."""


class Refused(CallError):
    """The server refused the arguments, or its result exceeds the interface's limits."""


class NoSuchHandle(CallError):
    """The server does not know the resource any more."""


class Panicked(CallError):
    """The procedure failed in the server: a panic, or an exception. The server goes on."""

    #: In the server's words, the first 32 bytes of them.
    message: str


class Revoked(CallError):
    """The server took the binding back."""


class NoSuchProcedure(CallError):
    """The server has no such procedure."""


class Malformed(CallError):
    """The server's reply is not what the interface says."""


class NoMemory(CallError, MemoryError):
    """No memory for the arguments or the result."""


class ServeError(Error):
    """A name could not be served."""


class NameTaken(ServeError):
    """The name is exported already."""

    #: By this process, if it is another one.
    server_pid: int


class Unprotected(ServeError, ValueError):
    """The address to listen at can be reached from other machines, and nothing would protect what is served there."""


class GroupError(Error):
    """What goes wrong with groups and their messages."""


class OtherThread(GroupError, RuntimeError):
    """A group belongs to the thread that has joined it, and another one has used it."""


class InHandler(GroupError, RuntimeError):
    """A group cannot be left in a handler, or in anything else that one of its methods calls."""


class NothingThere(GroupError, LookupError):
    """No message waits."""


class StillViewed(GroupError, BufferError):
    """Something still looks at a message in place, a `memoryview` or an array of numpy's perhaps, though its `with` has ended. It is disposed of when the last of these has gone."""


class NoUpcalls(GroupError, OSError):
    """Handlers cannot run by themselves here."""


class JoinError(GroupError):
    """The process did not become a member."""


class BadGroup(JoinError, ValueError):
    """No group can have that name or size, or there is no such rank in it, or members cannot tell each other of so many kinds of messages (names and signatures of 150 KB)."""


class Incomplete(JoinError, TimeoutError):
    """Not all members came in time."""


class NotTakenIn(JoinError):
    """Who takes in the members refuses this one: another version, size, or kinds of messages, or its rank is taken. The text says which kind differs."""


class NoJob(JoinError):
    """This process is no member of a job."""


class NoMembership(JoinError, OSError):
    """A descriptor, memory, or another resource could not be had."""


class SendError(GroupError):
    """A message was not sent. Nothing of it was."""


class NoSuchRank(SendError, IndexError):
    """There is no such member."""


class ReceiverEnded(SendError, ConnectionError):
    """The receiver has ended, or has left the group."""


class MessageTooLong(SendError, ValueError):
    """The message is longer than any can be."""


class Full(SendError, BlockingIOError):
    """There is no room yet, or was none for the time that `send` may wait."""


class Overflow(SendError):
    """This member has its share of what the group may buffer in use, or little memory is left, for the time that `send` may wait."""


class NoBuffer(SendError, MemoryError):
    """No memory for what does not fit into the queue."""


class ReceiverViolation(SendError):
    """The receiver does not keep to the protocol."""


class NoQueue(SendError, ConnectionError):
    """No queue to the receiver could be opened."""


class QueueRefused(SendError):
    """The receiver lives, and lacks memory or descriptors for the queue.

    The message was not sent. What was sent to the receiver before waits in this process, and the
    next send offers the queue again.
    """


class RunError(GroupError):
    """Waiting for other members has ended."""


class MemberEnded(RunError, ConnectionError):
    """Another member has ended or left, so what was waited for may never come."""

    #: The member.
    rank: int


class MemberViolation(RunError):
    """Another member does not keep to the protocol."""

    #: The member.
    rank: int


class GivenUp(RunError):
    """Another member has given a barrier or reduction up, and reports that a third one never comes. Nothing here confirms that the third one has ended."""

    #: The member that reports.
    by: int
    #: The member that it misses.
    missed: int


class Unhandled(RunError):
    """A message waits that has no handler, and those of its sender behind it."""

    #: The sender.
    rank: int
    #: The name of the kind of message.
    kind: str


class Unsent(RunError):
    """No memory or descriptor is left, here or there, to reach a member that waits for this one.

    A barrier or reduction goes on with the next call.
    """

    #: The member.
    rank: int
