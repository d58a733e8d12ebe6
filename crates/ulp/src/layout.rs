// The layout that the host and the images share. The crate includes it, and build.rs makes a C
// header of it.

/// Address of the first slot. The kernel puts no mapping of its own choice at 1 to 20 TiB, unless a
/// large limit of the stack leaves it no other room ([`arena`](crate::arena)).
#[cfg(not(upcall_asan))]
pub const FIRST: u64 = 1 << 40;
/// Address of the first slot with AddressSanitizer, which has its own memory at up to 16 TiB.
#[cfg(upcall_asan)]
pub const FIRST: u64 = 17 << 40;
/// End of the last slot.
pub const LAST: u64 = FIRST + (14 << 40);
/// Size and alignment of a slot, in bytes.
pub const SLOT: u64 = 1 << 30;
pub const PAGE: u64 = 4096;

/// Address of the first arena. Arenas have the blocks of messages, and begin where slots end.
pub const ARENAS: u64 = LAST;
/// Size and alignment of an arena, in bytes.
pub const ARENA: u64 = 16 << 30;
/// Maximum number of arenas of a machine.
pub const ARENA_COUNT: u64 = 256;

/// The entry of the auxiliary vector from which an image learns that it runs in a slot.
pub const AUXILIARY: u64 = 0x5550;

/// Number of different pages and lines at which stacks, programs and heaps begin, by the slot's
/// number. What lies at the same place in each slot falls into the same sets of caches and TLBs,
/// and each set has only a few ways.
pub const PAGES: u64 = 128;
pub const LINES: u64 = 55;
pub const LINE: u64 = 64;

/// Size of what is unused at the beginning of a slot, below the stack, in bytes.
pub const BELOW: u64 = 4 << 20;
/// The stack ends, and the image begins, at a multiple of this in the slot, apart from these pages.
/// So what a program uses most lies within 2 MiB, for which the processor reads one page of its
/// page tables.
pub const MIDDLE: u64 = 2 << 20;

/// Size of the list of a program's maps, in bytes. It is the end of what is mapped for the heap.
pub const RANGES: u64 = 1 << 20;

/// Number of lines of the table, including those of the library above. They lie just above the
/// stack. The constants below are indices of words.
pub const TABLE_LINES: u64 = 29;
/// From here on, words that seldom change, except for the number of letters.
pub const TABLE_GATE: u64 = 0;
/// The number that `getpid` returns.
pub const TABLE_PID: u64 = 1;
pub const TABLE_HEAP: u64 = 2;
pub const TABLE_HEAP_END: u64 = 3;
/// The host's process. A process made from it by vfork has its memory too, and must not ask.
pub const TABLE_PROCESS: u64 = 4;
/// Number of letters.
pub const TABLE_COUNT: u64 = 5;
/// The ULP's pending signals, one bit each, from signal 1.
pub const TABLE_SIGNALS: u64 = 6;
/// The function that reads the clock, as `clock_gettime(2)`; 0 if there is none.
pub const TABLE_CLOCK: u64 = 7;
/// A line of an answer, in addition to the word that the gate returns.
pub const TABLE_REPLY: u64 = 8;
pub const REPLY_WORDS: u64 = 8;
/// Letters: what a ULP reports to the host without needing an answer. The host reads them when the
/// ULP asks for something, since no other ULP runs before that.
pub const TABLE_LETTERS: u64 = 16;
pub const LETTERS: u64 = 8;
pub const LETTER_WORDS: u64 = 4;
/// What the ULP does with signals, in bits as above: those that are blocked, have a handler, are
/// ignored, and that it waits for itself.
pub const TABLE_BLOCKED: u64 = 48;
pub const TABLE_HANDLED: u64 = 49;
pub const TABLE_IGNORED: u64 = 50;
pub const TABLE_WAITED: u64 = 51;
/// The ULP's number in the library above, for debuggers.
pub const TABLE_TASK: u64 = 52;
/// The image's handler of interrupts, once it can be interrupted ([`ASK_INTERRUPTED`]), and the
/// range of the library's own code, during which no signal handler runs.
pub const TABLE_INTERRUPTED: u64 = 53;
pub const TABLE_CODE: u64 = 54;
pub const TABLE_CODE_END: u64 = 55;
/// The ULP's descriptors: an entry of 32 bits for each of its lowest numbers, two in a word. The
/// entries of higher numbers are in a list of all, at the end of the heap ([`TABLE_HEAP_END`]). The
/// list takes memory only where it is touched.
///
/// An entry is 0 if the number is not open. Otherwise it is `(descriptor + 1) * 2` for a descriptor
/// of the process's, and 1 more if children inherit it.
pub const TABLE_FILES: u64 = 56;
pub const NEAR_FILES: u64 = 28;
/// Two numbers of 32 bits: all descriptors below the first are open, and none from the second on.
pub const TABLE_FILES_RANGE: u64 = 70;
/// The host's record of which of the process's descriptors belong to which ULP.
pub const TABLE_OWNERS: u64 = 71;
/// Maximum number of descriptors of a ULP, and of a process with ULPs.
pub const FILES: u64 = 1 << 20;
/// The host's instruction that makes system calls: an image makes none itself.
pub const TABLE_CALL: u64 = 72;
/// The image's handler of system calls that its program makes itself, once they are caught.
pub const TABLE_CAUGHT: u64 = 73;
/// Nanoseconds of processor time that the ULP has used, as far as interrupts have shown. The host
/// adds to it at each interrupt.
pub const TABLE_TIME: u64 = 74;
/// The number that `getppid` returns.
pub const TABLE_PARENT: u64 = 75;
/// The lowest address of the stack.
pub const TABLE_STACK: u64 = 76;
/// Number of the program's children that it has not waited for.
pub const TABLE_CHILDREN: u64 = 77;
/// Nanoseconds that the program's clocks are ahead of the kernel's: those that go on while it moves
/// to another kernel (`CLOCK_MONOTONIC` and its kin), and `CLOCK_BOOTTIME`. Both wrap around.
pub const TABLE_AHEAD: u64 = 78;
pub const TABLE_BOOT_AHEAD: u64 = 79;
/// Words that the library above keeps for each ULP where they are found at once: zeros at first,
/// `LIBRARY_LINES` lines to the table's end.
pub const TABLE_LIBRARY: u64 = 80;
pub const LIBRARY_LINES: u64 = 19;

/// Offsets from GS that an image uses while it runs: of its context's address, of the table's
/// address, of the byte that says whether system calls of programs are caught, of the address of
/// the words of names, of the thread's processor time that interrupts have assigned to ULPs and to
/// the host, in nanoseconds, and of the doors, `DOORS` functions at most that all images share.
pub const GS_CURRENT: u64 = 16;
pub const GS_TABLE: u64 = 24;
pub const GS_CATCHES: u64 = 52;
pub const GS_NAMES: u64 = 56;
pub const GS_ASSIGNED: u64 = 128;
pub const GS_DOORS: u64 = 64;
pub const DOORS: u64 = 8;
/// Offset from GS of the signals that the worker's thread has blocked, as the kernel has them.
pub const GS_MASK: u64 = 272;
/// Offset of the last question in a context. Each question replaces it.
pub const CONTEXT_WHAT: u64 = 16;
/// What an image writes there when it reads its processor time. While it is there, no other ULP has
/// run since.
pub const TIMED: u64 = 1 << 60;

/// Version in the note that identifies an image, to be raised when anything here changes.
pub const VERSION: u64 = 9;
pub const NOTE: u64 = 1;

/// Requests of an image. This one: to end.
pub const ASK_EXIT: u64 = 0;
/// To let others run.
pub const ASK_YIELD: u64 = 1;
/// To sleep for a number of nanoseconds (-1: until a signal comes). The answer is 0, or -EINTR.
pub const ASK_SLEEP: u64 = 2;
/// To wait until a descriptor is ready, or a time has passed.
///
/// The arguments are the descriptor, events as in `poll(2)`, and a number of nanoseconds (-1: no
/// limit). The answer is 1, 0, or -EINTR.
pub const ASK_READY: u64 = 3;
/// To have another thread run a system call.
///
/// The argument is the address of the call's number and its six arguments. The answer is the call's
/// result, or the negative of [`NOT_ASIDE`] if there is no thread for it.
pub const ASK_ASIDE: u64 = 4;
/// See [`ASK_ASIDE`].
pub const NOT_ASIDE: u64 = 1 << 40;
/// To set the timer for SIGALRM, if the third word is not 0.
///
/// The first word is a number of nanoseconds (0: never), and the second an interval (0: once). The
/// answer is 0, and its words are the former timer's time left and interval.
pub const ASK_TIMER: u64 = 5;
/// To change to the folder of this descriptor. The answer is 0, or a negative error.
pub const ASK_FOLDER: u64 = 6;
/// Nothing: the ULP was interrupted while it computed, and continues when the host has checked what
/// has arrived. The answer is 0, or 1 if signal handlers may run first.
pub const ASK_INTERRUPTED: u64 = 7;
/// To have this mask for the files that the ULP makes (`umask(2)`). The answer is the former mask.
pub const ASK_UMASK: u64 = 8;
/// Requests from here on are defined by the library above.
pub const ASK_OWN: u64 = 16;
