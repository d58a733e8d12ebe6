// What the host and the images agree on. Read by the crate, and by build.rs, which makes a C header of it.

/// Where the first slot begins: 1 to 15 TiB is free whatever the kernel's limits and personality (DESIGN.md, decision 8).
pub const FIRST: u64 = 1 << 40;
/// Where the last one ends.
pub const LAST: u64 = 15 << 40;
/// A slot's length, and what it is aligned at.
pub const SLOT: u64 = 1 << 30;
pub const PAGE: u64 = 4096;

/// The entry of the auxiliary vector that tells an image that it runs in a slot.
pub const AUXILIARY: u64 = 0x5550;

/// Stacks, programs and heaps begin at so many different pages and lines, by the slot's number: what lies at the same place in each slot falls into the same sets of caches and TLBs, of which each has a few ways.
pub const PAGES: u64 = 128;
pub const LINES: u64 = 58;
pub const LINE: u64 = 64;

/// Where the stack ends and the image begins, but for these pages. So what a program uses most lies within 2 MiB, for which the processor has one page of its tables to read.
pub const MIDDLE: u64 = 12 << 20;

/// The table, in words; in the lines above the stack, which are so many.
pub const TABLE_LINES: u64 = 6;
/// What changes seldom, but for the letters' number.
pub const TABLE_GATE: u64 = 0;
pub const TABLE_NUMBER: u64 = 1;
pub const TABLE_HEAP: u64 = 2;
pub const TABLE_HEAP_END: u64 = 3;
/// The host's process: one that was made of it by vfork has its memory, too, and must not ask.
pub const TABLE_PROCESS: u64 = 4;
/// How many letters lie there.
pub const TABLE_COUNT: u64 = 5;
/// Its number as the library above has it, for debuggers.
pub const TABLE_TASK: u64 = 6;
/// The function that reads the clock, as `clock_gettime(2)`; 0: there is none.
pub const TABLE_CLOCK: u64 = 7;
/// A line of an answer, beside the word that the gate returns.
pub const TABLE_REPLY: u64 = 8;
pub const REPLY_WORDS: u64 = 8;
/// What a ULP tells the host, and need not be answered: letters, which are read when it asks for something, as nobody else runs before that.
pub const TABLE_LETTERS: u64 = 16;
pub const LETTERS: u64 = 8;
pub const LETTER_WORDS: u64 = 4;

/// In the note by which an image is known: it goes up when anything here changes.
pub const VERSION: u64 = 3;
pub const NOTE: u64 = 1;

/// What an image asks for: to end.
pub const ASK_EXIT: u64 = 0;
/// To let others run.
pub const ASK_YIELD: u64 = 1;
/// To sleep for so many nanoseconds.
pub const ASK_SLEEP: u64 = 2;
/// To be told when a descriptor is ready for these events, as `poll(2)` has them.
pub const ASK_READY: u64 = 3;
/// From here up it is what the library above says.
pub const ASK_OWN: u64 = 16;
