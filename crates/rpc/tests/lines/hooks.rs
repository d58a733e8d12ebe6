//! The hooks that the compiler calls before each access to memory, and the tables in which the
//! calling processor records it.
//!
//! The hooks are instrumented like all other code, except for the first steps of each. These check
//! whether this kernel thread is recorded, and turn recording off until the end of the hook. So a
//! hook's own accesses are not recorded, and no hook recurses without end.

use crate::turns::{self, Clock};
use std::arch::naked_asm;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Size of a cache line of x86-64, in bytes.
pub const LINE: u64 = 64;

/// Number of processors that are recorded.
pub const MOST: usize = 2 * crate::SIDE;

/// Maximum number of different pairs of a line and a place in the code that are recorded for each
/// processor.
const ROOM: usize = 1 << 14;

/// Whether accesses are being recorded.
pub static COUNTING: AtomicBool = AtomicBool::new(false);

/// Whether the recorded processors take turns; see [`turns`](crate::turns).
pub static TURNS: AtomicBool = AtomicBool::new(false);

/// Bit i: processor i is recorded.
static HEARD: AtomicU64 = AtomicU64::new(0);

static TABLES: [Table; MOST] = [const { Table::new() }; MOST];

/// Number of allocations and deallocations while accesses were recorded: the allocator is not
/// instrumented.
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

/// The accesses of one processor. Only that processor writes, so there are no locks and no waits.
struct Table {
    touches: [Entry; ROOM],
    lost: AtomicU64,
    clock: Clock,
}

struct Entry {
    line: AtomicU64,
    /// The place in the code times two, plus one for a write.
    site: AtomicU64,
    times: AtomicU64,
}

/// The accesses to one line from one place in the code.
#[derive(Clone, Copy, Debug)]
pub struct Touch {
    /// The address of the line's first byte.
    pub line: u64,
    /// Where the access returns to.
    pub code: u64,
    pub write: bool,
    pub times: u64,
}

impl Table {
    const fn new() -> Self {
        Self {
            touches: [const {
                Entry { line: AtomicU64::new(0), site: AtomicU64::new(0), times: AtomicU64::new(0) }
            }; ROOM],
            lost: AtomicU64::new(0),
            clock: Clock::new(),
        }
    }

    fn note(&self, line: u64, site: u64) {
        let start = (line ^ site.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        for step in 0..ROOM / 2 {
            let entry = &self.touches[(start as usize + step) % ROOM];
            if entry.times.load(Relaxed) == 0 {
                entry.line.store(line, Relaxed);
                entry.site.store(site, Relaxed);
            } else if entry.line.load(Relaxed) != line || entry.site.load(Relaxed) != site {
                continue;
            }
            return entry.times.store(entry.times.load(Relaxed) + 1, Relaxed);
        }
        self.lost.store(self.lost.load(Relaxed) + 1, Relaxed);
    }
}

thread_local! {
    /// The number of the calling processor, and its table.
    static MINE: Cell<Option<(usize, &'static Table)>> = const { Cell::new(None) };
}

/// This kernel thread is not recorded, or is in a hook. Not a `thread_local!`, whose code is
/// instrumented.
#[thread_local]
static mut DEAF: bool = true;

/// Starts recording the calling kernel thread as `processor`.
pub fn hear_as(processor: usize) {
    if MINE.get().is_none() {
        turns::share_one_processor();
        MINE.set(Some((processor, &TABLES[processor])));
        HEARD.fetch_or(1 << processor, Relaxed);
        // SAFETY: the variable is this kernel thread's, and no reference to it is ever made.
        unsafe { DEAF = false };
    }
}

/// Stops recording the calling kernel thread.
pub fn hear_no_more() {
    // SAFETY: as in `hear_as`.
    unsafe { DEAF = true };
    MINE.set(None);
    turns::share_no_more();
}

/// Forgets which processors are recorded: kernel threads do not deregister when they end.
pub fn forget() {
    HEARD.store(0, Relaxed);
}

/// Returns `true` if all processors are recorded.
pub fn hears_all() -> bool {
    HEARD.load(Relaxed) == (1 << MOST) - 1
}

/// Takes what `processor` touched since the last call. To be called while nothing is recorded.
pub fn take(processor: usize) -> Vec<Touch> {
    let table = &TABLES[processor];
    assert_eq!(
        table.lost.swap(0, Relaxed),
        0,
        "processor {processor} touched more than its table holds: make ROOM larger"
    );
    let entries = table.touches.iter().filter(|entry| entry.times.load(Relaxed) != 0);
    let touches = entries.map(|entry| {
        let (line, site) = (entry.line.load(Relaxed) * LINE, entry.site.load(Relaxed));
        Touch { line, code: site >> 1, write: site & 1 != 0, times: entry.times.swap(0, Relaxed) }
    });
    touches.collect()
}

/// Takes the number of allocations and deallocations since the last call.
pub fn take_allocations() -> u64 {
    ALLOCATIONS.swap(0, Relaxed)
}

/// The instrumented part of a hook.
#[inline(never)]
fn note(at: u64, size: u64, code: u64, write: bool) {
    let Some((processor, table)) = MINE.get() else { return };
    if TURNS.load(Relaxed) {
        table.clock.tick(processor);
    }
    if COUNTING.load(Relaxed) {
        for line in at / LINE..=(at + size.max(1) - 1) / LINE {
            table.note(line, code << 1 | u64::from(write));
        }
    }
    table.clock.leave();
}

/// Records an access of `size` bytes at `at`, which is about to happen; the code continues at
/// `code`.
#[sanitize(address = "off")]
extern "C" fn heard(at: u64, size: u64, code: u64, write: u32) {
    // SAFETY: the variable is this kernel thread's, and no reference to it is ever made.
    if unsafe { DEAF } {
        return;
    }
    // SAFETY: as above.
    unsafe { DEAF = true };
    note(at, size, code, write != 0);
    // SAFETY: as above.
    unsafe { DEAF = false };
}

/// A hook for accesses of one size: finds its return address, and continues in `heard`.
macro_rules! hooks {
    ($($name:ident: $size:literal, $write:literal;)*) => {
        $(
            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            extern "C" fn $name() {
                naked_asm!(
                    "mov esi, {size}",
                    "mov rdx, [rsp]",
                    "mov ecx, {write}",
                    "jmp {heard}",
                    size = const $size,
                    write = const $write,
                    heard = sym heard,
                )
            }
        )*
    };
}

hooks! {
    __lines_load1: 1, 0;
    __lines_load2: 2, 0;
    __lines_load4: 4, 0;
    __lines_load8: 8, 0;
    __lines_load16: 16, 0;
    __lines_store1: 1, 1;
    __lines_store2: 2, 1;
    __lines_store4: 4, 1;
    __lines_store8: 8, 1;
    __lines_store16: 16, 1;
}

/// A load of another size, which is the second argument.
#[unsafe(no_mangle)]
#[unsafe(naked)]
extern "C" fn __lines_loadN() {
    naked_asm!("mov rdx, [rsp]", "xor ecx, ecx", "jmp {heard}", heard = sym heard)
}

/// A store of another size, which is the second argument.
#[unsafe(no_mangle)]
#[unsafe(naked)]
extern "C" fn __lines_storeN() {
    naked_asm!("mov rdx, [rsp]", "mov ecx, 1", "jmp {heard}", heard = sym heard)
}

/// Called before a function that does not return; does nothing.
#[unsafe(no_mangle)]
extern "C" fn __asan_handle_no_return() {}

// The compiler calls these instead of the C library's functions.

unsafe extern "C" {
    fn memmove(to: *mut u8, from: *const u8, len: usize) -> *mut u8;
    fn memset(to: *mut u8, byte: i32, len: usize) -> *mut u8;
}

#[unsafe(no_mangle)]
#[unsafe(naked)]
extern "C" fn __lines_memcpy() {
    naked_asm!("mov rcx, [rsp]", "jmp {copy}", copy = sym copy)
}

#[unsafe(no_mangle)]
#[unsafe(naked)]
extern "C" fn __lines_memmove() {
    naked_asm!("mov rcx, [rsp]", "jmp {copy}", copy = sym copy)
}

#[unsafe(no_mangle)]
#[unsafe(naked)]
extern "C" fn __lines_memset() {
    naked_asm!("mov rcx, [rsp]", "jmp {fill}", fill = sym fill)
}

/// # Safety
/// As `memmove`.
#[sanitize(address = "off")]
unsafe extern "C" fn copy(to: *mut u8, from: *const u8, len: usize, code: u64) -> *mut u8 {
    if len > 0 {
        heard(from as u64, len as u64, code, 0);
        heard(to as u64, len as u64, code, 1);
    }
    // SAFETY: the caller's promise.
    unsafe { memmove(to, from, len) }
}

/// # Safety
/// As `memset`.
#[sanitize(address = "off")]
unsafe extern "C" fn fill(to: *mut u8, byte: i32, len: usize, code: u64) -> *mut u8 {
    if len > 0 {
        heard(to as u64, len as u64, code, 1);
    }
    // SAFETY: the caller's promise.
    unsafe { memset(to, byte, len) }
}

/// The system's allocator, which counts its uses by recorded kernel threads.
struct Allocator;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

fn allocates() {
    if COUNTING.load(Relaxed) && MINE.get().is_some() {
        ALLOCATIONS.fetch_add(1, Relaxed);
    }
}

// SAFETY: every request is passed unchanged to the system's allocator.
unsafe impl std::alloc::GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: std::alloc::Layout) -> *mut u8 {
        allocates();
        // SAFETY: the caller's promise.
        unsafe { std::alloc::System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: std::alloc::Layout) {
        allocates();
        // SAFETY: the caller's promise.
        unsafe { std::alloc::System.dealloc(at, layout) }
    }
}
