//! What debuggers are told: where each ULP's program lies, so that breakpoints, backtraces and
//! variables work in all of them.
//!
//! A debugger finds what a process has loaded in lists that the dynamic linker keeps for it:
//! `r_debug` of `<link.h>`. Since glibc 2.35 that is the first of a chain, of a list for each of
//! its namespaces (`dlmopen`), which gdb follows since version 13. Each ULP is here as a namespace
//! of its own, with one program in it:
//!
//! ```text
//! DT_DEBUG ─► glibc's ─r_next─► ULP ─r_next─► ULP ─r_next─► (glibc's of dlmopen)
//!               │ r_map          │ r_map       │
//!               ▼                ▼             ▼
//!        the host, libraries   its program   its program       l_addr: the ULP's base; l_name: its file
//! ```
//! So gdb looks for a variable in the ULP whose frame it shows, before it looks elsewhere; in one
//! list of all it would take the first of that name. glibc itself finds its namespaces otherwise
//! (`dl_iterate_phdr` and `dlsym` see no ULPs), and follows this chain only to put one at its end.
//!
//! A debugger that attaches, or reads a core file, reads the chain then. One that is there already
//! has a breakpoint in `_dl_debug_state` (`r_brk`), at which it reads it again. That is called when
//! a ULP is about to run after the chain has changed, once for all changes, and only where the
//! breakpoint is seen there: without a debugger, a ULP costs its place in a list.
//!
//! At an end gdb forgets what it knows of the program, but not where its own breakpoints for `next`
//! and `finish` are (`_Unwind_DebugHook` and the like, in each program): these it looks for anew
//! only where it has read a program's symbols, and fails when it writes into memory that is not
//! there. So a chain from which ULPs were taken has one more namespace, with the dynamic linker in
//! it ([`NamespaceChain::pulse`]): another one each time, by an address that gdb puts right, and
//! whose symbols it has.
//!
//! Why not otherwise: gdb's JIT interface takes whole object files with final addresses, so each
//! ULP would need a relocated copy of its symbols and debug information; a script within the host's
//! file is run only where the user has said that it may (`auto-load safe-path`).
//!
//! Where the dynamic linker was built with SystemTap's probes (Debian's was not), gdb stops at
//! those, and not in `_dl_debug_state`: it learns of ULPs when it attaches, and when the host loads
//! or unloads a library.

use std::ffi::CStr;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, Ordering::Relaxed, Ordering::Release};
use std::sync::{Arc, Mutex, PoisonError};

/// `struct r_debug_extended`, as glibc and debuggers know it.
#[repr(C)]
#[derive(Debug)]
struct Namespace {
    version: AtomicU32,
    map: *const LinkMap,
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
struct LinkMap {
    base: u64,
    name: *const libc::c_char,
    /// Where its dynamic section is, by which gdb sees whether it has the right file.
    dynamic: u64,
    next: *const LinkMap,
    previous: *const LinkMap,
}

const _: () = assert!(size_of::<Namespace>() == 48 && size_of::<LinkMap>() == 40);

/// The version that has `next`.
const EXTENDED: u32 = 2;

/// That a program lies somewhere, as long as this lives.
#[derive(Debug)]
pub(crate) struct DebugRegistration(NonNull<LinkMapEntry>);

// SAFETY: the entry is used by whoever holds the lock alone.
unsafe impl Send for DebugRegistration {}
// SAFETY: as above; nothing can be done with a reference to it.
unsafe impl Sync for DebugRegistration {}

/// What a debugger sees of a ULP. It stays where it is.
struct LinkMapEntry {
    namespace: Namespace,
    map: LinkMap,
    /// Before and behind it in the chain, as far as they are ULPs. By who holds the lock.
    newer: AtomicPtr<LinkMapEntry>,
    older: AtomicPtr<LinkMapEntry>,
    _name: Option<Arc<CStr>>,
}

/// Who may change the chain.
static CHAIN: Mutex<NamespaceChain> = Mutex::new(NamespaceChain {
    first: None,
    newest: ptr::null_mut(),
    pulse: ptr::null_mut(),
    pulses: 0,
});

struct NamespaceChain {
    /// glibc's, behind which ULPs are put; `Some(None)` if it has none that goes on.
    first: Option<Option<&'static Namespace>>,
    newest: *mut LinkMapEntry,
    /// What is not a ULP, and how many there were.
    pulse: *mut LinkMapEntry,
    pulses: u64,
}

// SAFETY: whoever holds the lock may use what this points to in any thread.
unsafe impl Send for NamespaceChain {}
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

/// What libraries' bases are multiples of, or it is a multiple of that.
const ALIGNED: u64 = 2 << 20;

impl DebugRegistration {
    /// A program of this file, at this base; its dynamic section is so far behind that. `None`:
    /// nothing here tells debuggers anything.
    pub(crate) fn new(file: &Arc<CStr>, base: u64, dynamic: u64) -> Option<Self> {
        let mut chain = CHAIN.lock().unwrap_or_else(PoisonError::into_inner);
        let first = (*chain.first.get_or_insert_with(linkers))?;
        let map = LinkMap {
            base,
            name: file.as_ptr(),
            dynamic: base + dynamic,
            next: ptr::null(),
            previous: ptr::null(),
        };
        UNTOLD.fetch_max(BEGINNINGS, Relaxed);
        Some(Self(chain.put(first, map, Some(file.clone()))))
    }
}

impl Drop for DebugRegistration {
    fn drop(&mut self) {
        let mut chain = CHAIN.lock().unwrap_or_else(PoisonError::into_inner);
        chain.take(self.0);
        UNTOLD.store(ENDS, Relaxed);
    }
}

impl NamespaceChain {
    /// Puts one in, right behind the first.
    fn put(
        &mut self,
        first: &Namespace,
        map: LinkMap,
        name: Option<Arc<CStr>>,
    ) -> NonNull<LinkMapEntry> {
        let next = first.next.load(Relaxed).into();
        let namespace =
            Namespace { version: EXTENDED.into(), map: ptr::null(), state: 0, next, ..*first };
        let (newer, older) = (AtomicPtr::default(), self.newest.into());
        let entry = Box::leak(Box::new(LinkMapEntry { namespace, map, newer, older, _name: name }));
        entry.namespace.map = &raw const entry.map;
        let entry = NonNull::from(entry);
        if let Some(older) = NonNull::new(self.newest) {
            // SAFETY: what is in the chain lives until it is taken out, for which the lock is
            // needed.
            unsafe { older.as_ref() }.newer.store(entry.as_ptr(), Relaxed);
        }
        self.newest = entry.as_ptr();
        // SAFETY: a place within the entry, which lives.
        let namespace = unsafe { &raw mut (*entry.as_ptr()).namespace };
        first.next.store(namespace, Release);
        first.version.store(EXTENDED, Release);
        entry
    }

    /// Takes one out that is in.
    fn take(&mut self, taken: NonNull<LinkMapEntry>) {
        // SAFETY: made of a box in `put`; what points to it is changed below, before it is dropped.
        let entry = unsafe { Box::from_raw(taken.as_ptr()) };
        let [newer, older] =
            [&entry.newer, &entry.older].map(|one| NonNull::new(one.load(Relaxed)));
        let [above, below] = [newer, older].map(|one| one.map_or(ptr::null_mut(), NonNull::as_ptr));
        // SAFETY: as in `put`; another one.
        if let Some(older) = older.map(|one| unsafe { one.as_ref() }) {
            older.newer.store(above, Relaxed);
        }
        // SAFETY: as above.
        let before = match newer.map(|one| unsafe { one.as_ref() }) {
            Some(newer) => {
                newer.older.store(below, Relaxed);
                Some(&newer.namespace)
            }
            None => {
                self.newest = below;
                self.first.flatten()
            }
        };
        if let Some(before) = before {
            before.next.store(entry.namespace.next.load(Relaxed), Release);
        }
    }

    /// See the module.
    fn pulse(&mut self, first: &Namespace) {
        if let Some(pulse) = NonNull::new(self.pulse) {
            self.take(pulse);
        }
        self.pulse = ptr::null_mut();
        // SAFETY: the dynamic linker's own list, of what it has loaded; another thread may load
        // something just now, which comes at its end.
        let mut all = std::iter::successors(unsafe { first.map.as_ref() }, |map| unsafe {
            map.next.as_ref()
        });
        if let Some(linker) = all.find(|map| map.base == first.linker) {
            self.pulses += 1;
            let base = linker.base.wrapping_add(self.pulses * ALIGNED);
            self.pulse = self
                .put(
                    first,
                    LinkMap { base, next: ptr::null(), previous: ptr::null(), ..*linker },
                    None,
                )
                .as_ptr();
        }
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
    let mut chain = CHAIN.lock().unwrap_or_else(PoisonError::into_inner);
    let ends = UNTOLD.swap(NOTHING, Relaxed) == ENDS;
    let Some(first) = chain.first.flatten() else { return };
    // SAFETY: the first byte of a function of the dynamic linker's, which stays; volatile, for a
    // debugger writes there.
    if unsafe { first.changed.read_volatile() } != BREAKPOINT {
        return;
    }
    if ends {
        chain.pulse(first);
    }
    // SAFETY: `_dl_debug_state` takes nothing, gives nothing and does nothing: it is there for
    // debuggers to stop in.
    let changed = unsafe { std::mem::transmute::<*const u8, extern "C" fn()>(first.changed) };
    changed();
}

/// glibc's own namespace, if others can be put behind it.
fn linkers() -> Option<&'static Namespace> {
    if !is_extended() {
        return None;
    }
    // As debuggers find it: by the entry that the dynamic linker has filled in the program's
    // dynamic section. SAFETY: reads values that the kernel has given.
    let [headers, count] = [libc::AT_PHDR, libc::AT_PHNUM].map(|of| unsafe { libc::getauxval(of) });
    let headers = NonNull::new(headers as *mut libc::Elf64_Phdr)?;
    // SAFETY: the program's headers, of which there are so many, and which stay.
    let headers = unsafe { std::slice::from_raw_parts(headers.as_ptr(), count as usize) };
    let own = headers.iter().find(|one| one.p_type == libc::PT_PHDR)?;
    let bias = (headers.as_ptr() as u64).wrapping_sub(own.p_vaddr);
    let dynamic = headers.iter().find(|one| one.p_type == libc::PT_DYNAMIC)?;
    let mut at = bias.wrapping_add(dynamic.p_vaddr) as *const [u64; 2];
    let address = loop {
        // SAFETY: the program's dynamic section, which is loaded; its end is found below.
        match unsafe { at.read() } {
            [0, _] => return None,
            [DT_DEBUG, address] => break address as *const Namespace,
            _ => at = at.wrapping_add(1),
        }
    };
    // SAFETY: by the System V ABI, and of this shape by glibc's version; it stays, and nothing of
    // it is changed but what is atomic here, once the program has begun.
    unsafe { address.as_ref() }.filter(|first| !first.changed.is_null())
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
