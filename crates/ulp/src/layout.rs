// What the host and the images agree on. Read by the crate, and by build.rs, which makes a C header
// of it.

/// Where the first slot begins: 1 to 15 TiB is free whatever the kernel's limits and personality
/// (DESIGN.md, decision 8).
pub const FIRST: u64 = 1 << 40;
/// Where the last one ends.
pub const LAST: u64 = 15 << 40;
/// A slot's length, and what it is aligned at.
pub const SLOT: u64 = 1 << 30;
pub const PAGE: u64 = 4096;

/// The entry of the auxiliary vector that tells an image that it runs in a slot.
pub const AUXILIARY: u64 = 0x5550;

/// Stacks, programs and heaps begin at so many different pages and lines, by the slot's number:
/// what lies at the same place in each slot falls into the same sets of caches and TLBs, of which
/// each has a few ways.
pub const PAGES: u64 = 128;
pub const LINES: u64 = 55;
pub const LINE: u64 = 64;

/// Where the stack ends and the image begins, but for these pages. So what a program uses most lies
/// within 2 MiB, for which the processor has one page of its tables to read.
pub const MIDDLE: u64 = 12 << 20;

/// The table, in words; in the lines above the stack, which are so many, those of the library above
/// among them.
pub const TABLE_LINES: u64 = 28;
/// What changes seldom, but for the letters' number.
pub const TABLE_GATE: u64 = 0;
/// The number that `getpid` returns.
pub const TABLE_PID: u64 = 1;
pub const TABLE_HEAP: u64 = 2;
pub const TABLE_HEAP_END: u64 = 3;
/// The host's process: one that was made of it by vfork has its memory, too, and must not ask.
pub const TABLE_PROCESS: u64 = 4;
/// How many letters lie there.
pub const TABLE_COUNT: u64 = 5;
/// Signals that have come for it, and that it has not looked at yet: a bit for each, from 1.
pub const TABLE_SIGNALS: u64 = 6;
/// The function that reads the clock, as `clock_gettime(2)`; 0: there is none.
pub const TABLE_CLOCK: u64 = 7;
/// A line of an answer, beside the word that the gate returns.
pub const TABLE_REPLY: u64 = 8;
pub const REPLY_WORDS: u64 = 8;
/// What a ULP tells the host, and need not be answered: letters, which are read when it asks for
/// something, as nobody else runs before that.
pub const TABLE_LETTERS: u64 = 16;
pub const LETTERS: u64 = 8;
pub const LETTER_WORDS: u64 = 4;
/// What it does with signals, in bits as above: which wait, which have a handler, which are
/// ignored, and which it waits for itself.
pub const TABLE_BLOCKED: u64 = 48;
pub const TABLE_HANDLED: u64 = 49;
pub const TABLE_IGNORED: u64 = 50;
pub const TABLE_WAITED: u64 = 51;
/// Its number as the library above has it, for debuggers.
pub const TABLE_TASK: u64 = 52;
/// The image's handler of interrupts, once it can be interrupted ([`ASK_INTERRUPTED`]); and where
/// the code of the library's own lies, in the midst of which no handler of a signal's runs.
pub const TABLE_INTERRUPTED: u64 = 53;
pub const TABLE_CODE: u64 = 54;
pub const TABLE_CODE_END: u64 = 55;
/// Descriptors that it has opened, a bit for each.
pub const TABLE_DESCRIPTORS: u64 = 56;
pub const DESCRIPTORS: u64 = 1024;
/// What the library above keeps of each ULP where it is found at once: zeros at first, so many
/// lines to the table's end.
pub const TABLE_LIBRARY: u64 = 72;
pub const LIBRARY_LINES: u64 = 19;

/// What an image finds by GS while it runs: where its table is; and functions that all images
/// share, so many at most.
pub const GS_TABLE: u64 = 24;
pub const GS_DOORS: u64 = 64;
pub const DOORS: u64 = 8;

/// In the note by which an image is known: it goes up when anything here changes.
pub const VERSION: u64 = 6;
pub const NOTE: u64 = 1;

/// What an image asks for: to end.
pub const ASK_EXIT: u64 = 0;
/// To let others run.
pub const ASK_YIELD: u64 = 1;
/// To sleep for so many nanoseconds (-1: until a signal comes): 0, or -EINTR.
pub const ASK_SLEEP: u64 = 2;
/// To be told when a descriptor is ready for these events, as `poll(2)` has them, or when so many
/// nanoseconds (-1: any number) are over: 1, 0, or -EINTR.
pub const ASK_READY: u64 = 3;
/// To have a system call run by another thread: the address of its number and six arguments. What
/// that returns, or below 0 this: there is no thread for it.
pub const ASK_ASIDE: u64 = 4;
/// See [`ASK_ASIDE`].
pub const NOT_ASIDE: u64 = 1 << 40;
/// To get SIGALRM after so many nanoseconds (0: never), and then after each so many (0: once), if
/// the third word says so: 0, and in the answer's words how many are left of the time before, and
/// its second.
pub const ASK_TIMER: u64 = 5;
/// To be in the folder of this descriptor: 0, or an error below 0.
pub const ASK_FOLDER: u64 = 6;
/// Nothing: it was interrupted while it computed, and goes on where it was when the host has looked
/// around. 0, or 1: handlers of signals may run before.
pub const ASK_INTERRUPTED: u64 = 7;
/// From here up it is what the library above says.
pub const ASK_OWN: u64 = 16;
