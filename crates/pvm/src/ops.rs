// The questions that libpvm3 in an image asks the host. This file is part of the crate, and
// build.rs generates a C header from it.

// Questions through the gate, numbered from `ulp::ASK_OWN` (16).
/// Allocates a block of at least this many bytes. The answer is its handle; the reply's words have
/// its address and capacity.
pub const ASK_BLOCK: u64 = 16;
/// Receives a message from a task (-1: any), with a tag (-1: any), in a context, within a number of
/// microseconds (-1: no limit). The answer is 1 with the message in the reply's words, or 0 if none
/// arrived.
pub const ASK_RECEIVE: u64 = 17;
/// Answer to a receive that a signal interrupts so that its handler can run. The reply's first word
/// is the time left, in microseconds.
pub const INTERRUPTED: i64 = -4096;
/// Asks for a service, by number, with a block's handle and the length of its contents. The answer
/// is the service's code; the reply's words describe a block as for a message.
pub const ASK_SYSTEM: u64 = 18;
/// Asks for a service that takes integers and answers with one.
pub const ASK_SHORT: u64 = 19;
/// Only makes the host read the letters.
pub const ASK_FLUSH: u64 = 20;
/// Adds a handle to a block. The answer is the new handle.
pub const ASK_SHARE: u64 = 21;
/// Receives a message into the task's memory, without a time limit: the source, and the tag above;
/// the context; the address; and the length in bytes. The answer is that of `ASK_RECEIVE`, or
/// `IN_PLACE`. Then the contents are in that memory as far as they fit, and the reply's words have
/// no block.
pub const ASK_RECEIVE_INTO: u64 = 22;
pub const IN_PLACE: i64 = 2;
/// Sends a message from the task's memory: the destination, and the tag above; the context; the
/// address; and the length. The answer is 1, or 0 if the message must go in a block.
pub const ASK_SEND_FROM: u64 = 23;

// Offsets, in bytes, of the cache lines that the library needs first. They are relative to its
// per-message data (`upvm_hot`), which lies behind the task's table.
pub const NEAR_SPARES: u64 = 64;
pub const NEAR_FIRST: u64 = 320;
pub const NEAR_SECOND: u64 = 448;

// Doors to the functions that all tasks of a process share (`shared/shared.c`), in this order.
/// Returns the version of the library that the shared functions belong to; see build.rs.
pub const DOOR_VERSION: u64 = 0;
pub const DOOR_INITSEND: u64 = 1;
pub const DOOR_SEND: u64 = 2;
pub const DOOR_CAME: u64 = 3;
pub const DOOR_PACK: u64 = 4;
pub const DOOR_UNPACK: u64 = 5;
pub const DOORS: [&str; 6] = [
    "upvm_shared_version",
    "upvm_shared_initsend",
    "upvm_shared_send",
    "upvm_shared_came",
    "upvm_shared_pack",
    "upvm_shared_unpack",
];
/// Marks a receive for which the host was not asked. No answer of the host has this value.
pub const UNASKED: i64 = -4097;

// Indices of the reply's words.
pub const REPLY_HANDLE: u64 = 0;
pub const REPLY_DATA: u64 = 1;
pub const REPLY_LENGTH: u64 = 2;
pub const REPLY_CAPACITY: u64 = 3;
/// The source in the lower 32 bits, and the tag above.
pub const REPLY_SOURCE: u64 = 4;
/// The context in the lower 32 bits, and the encoding above.
pub const REPLY_CONTEXT: u64 = 5;
/// The wait id in the lower 32 bits, and the destination above.
pub const REPLY_WAIT: u64 = 6;

// Letters have four words. The first has the kind in 8 bits, the handle in the next 24, and the
// wait id above.
/// Sends a block. Second word: the destination, and the tag above. Third: the context, and the
/// encoding above. Fourth: the length in bytes.
pub const LETTER_SEND: u64 = 1;
/// Releases a block.
pub const LETTER_RELEASE: u64 = 2;

/// Number of words of names, of which each tid is one (`places.rs`), and the bit of a word that
/// says that the task is in this process.
pub const NAMES: u64 = 257 << 18;
/// The lowest name. A multiple of it is no name.
pub const NAME_FIRST: u64 = 1 << 18;
pub const NAME_HERE: u64 = 31;

// Services. The modules in src/services/ document what each takes and answers.
pub const OP_ENROLL: u64 = 1;
pub const OP_LEAVE: u64 = 2;
pub const OP_SPAWN: u64 = 3;
pub const OP_KILL: u64 = 4;
pub const OP_SIGNAL: u64 = 5;
pub const OP_TASKS: u64 = 7;
pub const OP_TASK_STATE: u64 = 8;
pub const OP_HALT: u64 = 9;
/// Takes output of a task. The answer is 0, or a descriptor for which the task waits afterwards.
pub const OP_OUTPUT: u64 = 10;
/// Takes a line of the library's own, for which the task does not wait.
pub const OP_REPORT: u64 = 11;
pub const OP_OPTION: u64 = 12;
pub const OP_SIBLINGS: u64 = 13;
/// The number of tasks whose output goes to the calling task.
pub const OP_OUTPUT_SOURCES: u64 = 14;
/// A descriptor that is readable while a message waits for the task.
pub const OP_DESCRIPTOR: u64 = 15;
/// Whether the task's output is caught or labelled (1), or goes to the process's streams (0).
pub const OP_OUTPUT_KIND: u64 = 18;
pub const OP_NO_RESETS: u64 = 17;
pub const OP_NOTIFY: u64 = 16;
/// Moves a task (0: the caller) to the process of a rank. The answer comes when the move is over: a
/// code, and the reason in words if the task was not moved.
pub const OP_MIGRATE: u64 = 24;
/// Sets whether the calling task is to stay in its process. The answer is the former value.
pub const OP_PIN: u64 = 25;
/// The rank of the process in which the calling task runs.
pub const OP_PROCESS: u64 = 26;
/// Number of bytes of messages that the host has copied in this process so far, modulo 2^31, for
/// tests. Not implemented in builds without debug assertions.
pub const OP_COPIED: u64 = 27;
/// The machine's hosts: how many there are, and for each its number and its name.
pub const OP_HOSTS: u64 = 28;
/// The number of the host of a task or of a host's number.
pub const OP_TID_TO_HOST: u64 = 29;
/// Adds hosts to the machine: their number, and for each a text. The answer is the number of those
/// that have joined, and for each its number or an error.
pub const OP_ADD_HOSTS: u64 = 30;
/// Removes hosts from the machine, in the same form.
pub const OP_DELETE_HOSTS: u64 = 31;
pub const OP_CONTEXT_NEW: u64 = 20;
pub const OP_CONTEXT_FREE: u64 = 21;
pub const OP_GROUP_JOIN: u64 = 32;
pub const OP_GROUP_LEAVE: u64 = 33;
pub const OP_GROUP_TASK: u64 = 34;
pub const OP_GROUP_INSTANCE: u64 = 35;
pub const OP_GROUP_SIZE: u64 = 36;
pub const OP_GROUP_BARRIER: u64 = 37;
pub const OP_GROUP_FREEZE: u64 = 38;
pub const OP_GROUP_MEMBERS: u64 = 39;
pub const OP_GROUP_LIST: u64 = 40;
pub const OP_MAILBOX_PUT: u64 = 48;
pub const OP_MAILBOX_GET: u64 = 49;
pub const OP_MAILBOX_DELETE: u64 = 50;
pub const OP_MAILBOX_INFO: u64 = 51;

/// The context of the messages that group members exchange to reduce, gather or scatter.
pub const GROUP_CONTEXT: i64 = -4;
/// The context of output that goes to a task whose library prints it (`pvm_catchout`).
pub const OUTPUT_CONTEXT: i64 = -3;
/// An output message has its task's tid, and the number of bytes that follow or one of these marks.
/// The values are PVM's own.
pub const OUTPUT_END: i64 = 0;
pub const OUTPUT_NEW: i64 = -2;

/// Describes, for people, what a task waits for that has asked for service `op`.
pub fn name(op: u64) -> &'static str {
    match op {
        OP_GROUP_BARRIER => "others at a barrier of a group",
        OP_GROUP_FREEZE => "others to join a group that is to be frozen",
        OP_MAILBOX_GET => "an entry of a mailbox",
        OP_MIGRATE => "the end of a move",
        OP_ADD_HOSTS => "hosts to come",
        OP_DELETE_HOSTS => "hosts to go",
        _ => "the machine",
    }
}
