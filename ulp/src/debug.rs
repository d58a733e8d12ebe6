//! What debuggers are told: where each ULP's program lies, so that breakpoints, backtraces and variables work in all of them.
//!
//! A debugger finds what a process has loaded in lists that the dynamic linker keeps for it: `r_debug` of `<link.h>`. Since glibc 2.35 that is the first of a chain, of a list for each of its namespaces (`dlmopen`), which gdb follows since version 13. Each ULP is here as a namespace of its own, with one program in it:
//!
//! ```text
//! DT_DEBUG ─► glibc's ─r_next─► ULP ─r_next─► ULP ─r_next─► (glibc's of dlmopen)
//!               │ r_map          │ r_map       │
//!               ▼                ▼             ▼
//!        the host, libraries   its program   its program       l_addr: the ULP's base; l_name: its file
//! ```
//! So gdb looks for a variable in the ULP whose frame it shows, before it looks elsewhere; in one list of all it would take the first of that name. glibc itself finds its namespaces otherwise (`dl_iterate_phdr` and `dlsym` see no ULPs), and follows this chain only to put one at its end.
//!
//! A debugger that attaches, or reads a core file, reads the chain then. One that is there already has a breakpoint in `_dl_debug_state` (`r_brk`), at which it reads it again. That is called when a ULP is about to run after the chain has changed, once for all changes, and only where the breakpoint is seen there: without a debugger, a ULP costs its place in a list.
//!
//! Why not otherwise: gdb's JIT interface takes whole object files with final addresses, so each ULP would need a relocated copy of its symbols and debug information; a script within the host's file is run only where the user has said that it may (`auto-load safe-path`).
//!
//! Where the dynamic linker was built with SystemTap's probes (Debian's was not), gdb stops at those, and not in `_dl_debug_state`: it learns of ULPs when it attaches, and when the host loads or unloads a library.

use std::ffi::CStr;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, Ordering::Relaxed, Ordering::Release};
use std::sync::{Arc, Mutex, PoisonError};

/// `struct r_debug_extended`, as glibc and debuggers know it.
#[repr(C)]
#[derive(Debug)]
struct Namespace {
    version: AtomicU32,
    map: *const Map,
    /// A function that is called when something has changed.
    changed: *const u8,
    /// Whether something is being changed just now: 0, no.
    state: u32,
    linker: u64,
    next: AtomicPtr<Namespace>,
}

/// The beginning of `struct link_map`, which is all of it that is public.
#[repr(C)]
#[derive(Debug)]
struct Map {
    base: u64,
    name: *const libc::c_char,
    /// Where its dynamic section is, by which gdb sees whether it has the right file.
    dynamic: u64,
    next: *const Map,
    previous: *const Map,
}

const _: () = assert!(size_of::<Namespace>() == 48 && size_of::<Map>() == 40);

/// The version that has `next`.
const EXTENDED: u32 = 2;

/// That a program lies somewhere, as long as this lives.
#[derive(Debug)]
pub(crate) struct Known(NonNull<Entry>);

// SAFETY: the entry is used by whoever holds the lock alone.
unsafe impl Send for Known {}
// SAFETY: as above; nothing can be done with a reference to it.
unsafe impl Sync for Known {}

/// What a debugger sees of a ULP. It stays where it is.
struct Entry {
    namespace: Namespace,
    map: Map,
    /// Before and behind it in the chain, as far as they are ULPs. By who holds the lock.
    newer: AtomicPtr<Entry>,
    older: AtomicPtr<Entry>,
    _name: Arc<CStr>,
}

/// Who may change the chain.
static CHAIN: Mutex<Chain> = Mutex::new(Chain { first: None, newest: ptr::null_mut() });

struct Chain {
    /// glibc's, behind which ULPs are put; `Some(None)` if it has none that goes on.
    first: Option<Option<&'static Namespace>>,
    newest: *mut Entry,
}

// SAFETY: whoever holds the lock may use what this points to in any thread.
unsafe impl Send for Chain {}
// SAFETY: only what is atomic is written through a reference to it.
unsafe impl Sync for Namespace {}

/// What a debugger has not been told yet.
static UNTOLD: AtomicU8 = AtomicU8::new(NOTHING);
const NOTHING: u8 = 0;
const BEGINNINGS: u8 = 1;
/// These, or these too: their addresses may not be used again before it knows.
const ENDS: u8 = 2;

/// The instruction that debuggers write where they want to stop.
const BREAKPOINT: u8 = 0xCC;

impl Known {
    /// A program of this file, at this base; its dynamic section is so far behind that. `None`: nothing here tells debuggers anything.
    pub(crate) fn new(file: &Arc<CStr>, base: u64, dynamic: u64) -> Option<Self> {
        let mut chain = CHAIN.lock().unwrap_or_else(PoisonError::into_inner);
        let first = (*chain.first.get_or_insert_with(linkers))?;
        let map = Map { base, name: file.as_ptr(), dynamic: base + dynamic, next: ptr::null(), previous: ptr::null() };
        let next = first.next.load(Relaxed).into();
        let namespace = Namespace { version: EXTENDED.into(), map: ptr::null(), state: 0, next, ..*first };
        let (newer, older) = (AtomicPtr::default(), chain.newest.into());
        let entry = Box::leak(Box::new(Entry { namespace, map, newer, older, _name: file.clone() }));
        entry.namespace.map = &raw const entry.map;
        let entry = NonNull::from(entry);
        if let Some(older) = NonNull::new(chain.newest) {
            // SAFETY: what is in the chain lives until it is taken out, for which the lock is needed.
            unsafe { older.as_ref() }.newer.store(entry.as_ptr(), Relaxed);
        }
        chain.newest = entry.as_ptr();
        // SAFETY: a place within the entry, which lives.
        let namespace = unsafe { &raw mut (*entry.as_ptr()).namespace };
        first.next.store(namespace, Release);
        first.version.store(EXTENDED, Release);
        UNTOLD.fetch_max(BEGINNINGS, Relaxed);
        Some(Self(entry))
    }
}

impl Drop for Known {
    fn drop(&mut self) {
        let mut chain = CHAIN.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: in the chain, and so it lives.
        let entry = unsafe { self.0.as_ref() };
        let [newer, older] = [&entry.newer, &entry.older].map(|one| one.load(Relaxed));
        let before = match NonNull::new(newer) {
            // SAFETY: as above.
            Some(newer) => {
                let newer = unsafe { newer.as_ref() };
                newer.older.store(older, Relaxed);
                Some(&newer.namespace)
            }
            None => {
                chain.newest = older;
                chain.first.flatten()
            }
        };
        if let Some(older) = NonNull::new(older) {
            // SAFETY: as above.
            unsafe { older.as_ref() }.newer.store(newer, Relaxed);
        }
        if let Some(before) = before {
            before.next.store(entry.namespace.next.load(Relaxed), Release);
        }
        UNTOLD.store(ENDS, Relaxed);
        // SAFETY: made of a box in `new`, and nothing points to it any more.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// A ULP is about to run: whoever debugs this process learns what has changed.
#[inline]
pub(crate) fn tell() {
    if UNTOLD.load(Relaxed) != NOTHING {
        tell_all();
    }
}

/// A program is about to be mapped, maybe where one was that has ended.
pub(crate) fn tell_of_ends() {
    if UNTOLD.load(Relaxed) == ENDS {
        tell_all();
    }
}

#[cold]
fn tell_all() {
    let chain = CHAIN.lock().unwrap_or_else(PoisonError::into_inner);
    UNTOLD.store(NOTHING, Relaxed);
    let Some(changed) = chain.first.flatten().and_then(|first| NonNull::new(first.changed.cast_mut())) else { return };
    // SAFETY: the first byte of a function of the dynamic linker's, which stays; volatile, for a debugger writes there.
    if unsafe { changed.read_volatile() } == BREAKPOINT {
        // SAFETY: `_dl_debug_state` takes nothing, gives nothing and does nothing: it is there for debuggers to stop in.
        let changed = unsafe { std::mem::transmute::<NonNull<u8>, extern "C" fn()>(changed) };
        changed();
    }
}

/// glibc's own namespace, if others can be put behind it.
fn linkers() -> Option<&'static Namespace> {
    if !is_extended() {
        return None;
    }
    // As debuggers find it: by the entry that the dynamic linker has filled in the program's dynamic section.
    // SAFETY: reads values that the kernel has given.
    let [headers, count] = [libc::AT_PHDR, libc::AT_PHNUM].map(|of| unsafe { libc::getauxval(of) });
    let headers = NonNull::new(headers as *mut libc::Elf64_Phdr)?;
    // SAFETY: the program's headers, of which there are so many, and which stay.
    let headers = unsafe { std::slice::from_raw_parts(headers.as_ptr(), count as usize) };
    let own = headers.iter().find(|one| one.p_type == libc::PT_PHDR)?;
    let bias = (headers.as_ptr() as u64).wrapping_sub(own.p_vaddr);
    let dynamic = headers.iter().find(|one| one.p_type == libc::PT_DYNAMIC)?;
    let mut at = bias.wrapping_add(dynamic.p_vaddr) as *const [u64; 2];
    loop {
        // SAFETY: the program's dynamic section, which is loaded; its end is found below.
        match unsafe { at.read() } {
            [0, _] => return None,
            // SAFETY: by the System V ABI, and of this shape by glibc's version; it stays, and nothing of it is changed but what is atomic here, after the program has begun.
            [DT_DEBUG, address] => return unsafe { (address as *const Namespace).as_ref() },
            _ => at = at.wrapping_add(1),
        }
    }
}

const DT_DEBUG: u64 = 21;

/// Whether glibc's `r_debug` goes on: since 2.35.
#[cfg(target_env = "gnu")]
fn is_extended() -> bool {
    // SAFETY: gives a text that stays.
    let version = unsafe { libc::gnu_get_libc_version() };
    // SAFETY: it ends.
    let version = unsafe { CStr::from_ptr(version) }.to_string_lossy();
    let mut parts = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    (parts.next(), parts.next()) >= (Some(2), Some(35))
}

#[cfg(not(target_env = "gnu"))]
fn is_extended() -> bool {
    false
}
