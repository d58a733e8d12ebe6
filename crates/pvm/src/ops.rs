// What libpvm3 in an image asks the host for. Read by the crate, and by build.rs, which makes a C
// header of it.

// Questions through the gate, from `ulp::ASK_OWN` (16) upwards.
/// A block of at least this many bytes: its handle; address and capacity in the reply's words.
pub const ASK_BLOCK: u64 = 16;
/// A message from a task (-1: any), with a tag (-1: any), in a context, within microseconds (-1:
/// whenever): 1, and the reply's words; 0: none came.
pub const ASK_RECEIVE: u64 = 17;
/// What a receive is answered that a signal interrupts, for its handler to run: the first of the
/// reply's words says how many microseconds are left.
pub const INTERRUPTED: i64 = -4096;
/// A service, by number, with a block's handle and the length of what is in it: what it answers,
/// and its words as of a message.
pub const ASK_SYSTEM: u64 = 18;
/// A service that takes one integer and answers by one.
pub const ASK_SHORT: u64 = 19;
/// Nothing but that letters are read.
pub const ASK_FLUSH: u64 = 20;
/// One more handle of a block: the handle.
pub const ASK_SHARE: u64 = 21;

// Of what a library uses for each message (`upvm_hot`), behind its table: where lines are that it
// needs first.
pub const NEAR_SPARES: u64 = 64;
pub const NEAR_FIRST: u64 = 320;
pub const NEAR_SECOND: u64 = 448;

// Doors to the functions that all tasks of a process share (`shared/shared.c`), in their order.
/// The first says which library they are of: see build.rs.
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
/// What the host has never answered: it was not asked.
pub const UNASKED: i64 = -4097;

// The reply's words.
pub const REPLY_HANDLE: u64 = 0;
pub const REPLY_DATA: u64 = 1;
pub const REPLY_LENGTH: u64 = 2;
pub const REPLY_CAPACITY: u64 = 3;
/// Its source, and its tag above that (32 bits each).
pub const REPLY_SOURCE: u64 = 4;
/// Its context, and its encoding above that.
pub const REPLY_CONTEXT: u64 = 5;
/// Its wait id, and whom it was sent to above that.
pub const REPLY_WAIT: u64 = 6;

// Letters: four words. The first has the kind in 8 bits, the handle in 24 above that, and the wait
// id above that.
/// Second word: to whom, and the tag above that. Third: context, and encoding above that. Fourth:
/// the length.
pub const LETTER_SEND: u64 = 1;
/// The block is not needed any more.
pub const LETTER_RELEASE: u64 = 2;

// Services. What each takes, and answers, is said where it is in src/services/.
pub const OP_ENROLL: u64 = 1;
pub const OP_LEAVE: u64 = 2;
pub const OP_SPAWN: u64 = 3;
pub const OP_KILL: u64 = 4;
pub const OP_SIGNAL: u64 = 5;
pub const OP_TASKS: u64 = 7;
pub const OP_TASK_STATE: u64 = 8;
pub const OP_HALT: u64 = 9;
pub const OP_OUTPUT: u64 = 10;
pub const OP_OPTION: u64 = 12;
pub const OP_SIBLINGS: u64 = 13;
/// How many tasks are there whose output goes to the one that asks.
pub const OP_OUTPUT_SOURCES: u64 = 14;
/// A descriptor that can be read while a message waits for the task.
pub const OP_DESCRIPTOR: u64 = 15;
/// Whether what the task prints is caught or labelled (1), or goes to the process's streams (0).
pub const OP_OUTPUT_KIND: u64 = 18;
pub const OP_NO_RESETS: u64 = 17;
pub const OP_NOTIFY: u64 = 16;
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

/// The context of what members of a group send each other when they reduce, gather or scatter.
pub const GROUP_CONTEXT: i64 = -4;
/// The context in which output goes to a task whose library prints it (`pvm_catchout`).
pub const OUTPUT_CONTEXT: i64 = -3;
/// A message with output has its task's number, and the number of bytes that follow; or one of
/// these: PVM's own.
pub const OUTPUT_END: i64 = 0;
pub const OUTPUT_NEW: i64 = -2;

/// What a task waits for that has asked for a service, for those who look.
pub fn name(op: u64) -> &'static str {
    match op {
        OP_GROUP_BARRIER => "others at a barrier of a group",
        OP_GROUP_FREEZE => "others to join a group that is to be frozen",
        OP_MAILBOX_GET => "an entry of a mailbox",
        _ => "the machine",
    }
}
