//! What the compiler calls before each access to memory, and the tables in which the calling
//! processor notes it.
//!
//! The hooks are instrumented as all else is, but for the first steps of each: they find whether
//! this kernel thread is heard, and from there to the end of the note it is not. So what a hook
//! itself does is not noted, and no hook calls itself for ever.

use crate::turns::{self, Clock};
use std::arch::naked_asm;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// The line of x86-64, in bytes.
pub const LINE: u64 = 64;

/// How many processors are heard.
pub const MOST: usize = 2 * crate::SIDE;

/// So many different pairs of a line and a place in the code are noted for each.
const ROOM: usize = 1 << 14;

/// Whether accesses are noted now.
pub static COUNTING: AtomicBool = AtomicBool::new(false);

/// Whether those who are heard take turns; see [`turns`](crate::turns).
pub static TURNS: AtomicBool = AtomicBool::new(false);

/// Bit i: processor i is heard.
static HEARD: AtomicU64 = AtomicU64::new(0);

static TABLES: [Table; MOST] = [const { Table::new() }; MOST];

/// Memory was asked for, or given back, while accesses were noted: the allocator is not
/// instrumented.
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

/// What one processor touched. Only that one writes, so nothing is locked and nothing waits.
struct Table {
    touches: [Entry; ROOM],
    lost: AtomicU64,
    clock: Clock,
}

struct Entry {
    line: AtomicU64,
    /// The place in the code, times two, plus one for a write.
    site: AtomicU64,
    times: AtomicU64,
}

/// One place in the code touched one line.
#[derive(Clone, Copy, Debug)]
pub struct Touch {
    /// The address of its first byte.
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

/// This kernel thread is not heard, or is in a hook. Not a `thread_local!`: what that calls is
/// instrumented.
#[thread_local]
static mut DEAF: bool = true;

/// From now on the calling kernel thread is heard as `processor`.
pub fn hear_as(processor: usize) {
    if MINE.get().is_none() {
        turns::share_one_processor();
        MINE.set(Some((processor, &TABLES[processor])));
        HEARD.fetch_or(1 << processor, Relaxed);
        // SAFETY: the variable is this kernel thread's, and no reference to it is ever made.
        unsafe { DEAF = false };
    }
}

/// The calling kernel thread is heard no more.
pub fn hear_no_more() {
    // SAFETY: as in `hear_as`.
    unsafe { DEAF = true };
    MINE.set(None);
    turns::share_no_more();
}

/// Forgets who is heard: kernel threads that end do not say so.
pub fn forget() {
    HEARD.store(0, Relaxed);
}

/// Whether all are heard.
pub fn hears_all() -> bool {
    HEARD.load(Relaxed) == (1 << MOST) - 1
}

/// What `processor` touched since the last time. To be asked while nothing is counted.
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

/// How often memory was asked for or given back since the last time.
pub fn take_allocations() -> u64 {
    ALLOCATIONS.swap(0, Relaxed)
}

/// The ordinary part of a hook.
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

/// An access of `size` bytes at `at` follows, after which the code goes on at `code`.
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

/// A hook for accesses of one size: finds where it returns to, and goes on in `heard`.
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

/// Of another size, which comes second.
#[unsafe(no_mangle)]
#[unsafe(naked)]
extern "C" fn __lines_loadN() {
    naked_asm!("mov rdx, [rsp]", "xor ecx, ecx", "jmp {heard}", heard = sym heard)
}

/// Of another size, which comes second.
#[unsafe(no_mangle)]
#[unsafe(naked)]
extern "C" fn __lines_storeN() {
    naked_asm!("mov rdx, [rsp]", "mov ecx, 1", "jmp {heard}", heard = sym heard)
}

/// Asked for before a call that does not return; nothing is to be done.
#[unsafe(no_mangle)]
extern "C" fn __asan_handle_no_return() {}

// The compiler has these called in place of the C library's.

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

/// The system's allocator, which counts how often it is used by those who are heard.
struct Allocator;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

fn allocates() {
    if COUNTING.load(Relaxed) && MINE.get().is_some() {
        ALLOCATIONS.fetch_add(1, Relaxed);
    }
}

// SAFETY: every request goes to the system's allocator as it is.
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
