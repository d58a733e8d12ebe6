//! What debuggers see: the place of each ULP's program.
//!
//! So breakpoints, backtraces and variables work in all of them.
//!
//! A debugger finds what a process has loaded in lists that the dynamic linker keeps for it:
//! `r_debug` of `<link.h>`. Since glibc 2.35 that is the first in a chain, with a list for each of
//! glibc's namespaces (`dlmopen`), which gdb follows since version 13. Each ULP appears here as a
//! namespace of its own, with one program in it:
//!
//! ```text
//! DT_DEBUG ─► glibc's ─r_next─► ULP ─r_next─► ULP ─r_next─► (glibc's of dlmopen)
//!               │ r_map          │ r_map       │
//!               ▼                ▼             ▼
//!        the host, libraries   its program   its program    l_addr: the ULP's base
//!                                                           l_name: its file
//! ```
//! So gdb looks for a variable first in the ULP whose frame it shows; in one list for all it would
//! take the first of that name. glibc itself finds its namespaces in another way (`dl_iterate_phdr`
//! and `dlsym` see no ULPs), and follows this chain only to append to it.
//!
//! A debugger that attaches, or reads a core file, reads the chain then. A debugger that is already
//! attached has a breakpoint in `_dl_debug_state` (`r_brk`), at which it reads the chain again.
//! That function is called when a ULP is about to run after the chain has changed, once for all
//! changes, and only if the breakpoint is set. Without a debugger, a ULP costs its place in a list.
//!
//! When a program goes, gdb forgets what it knows of it, but not the addresses of its own
//! breakpoints for `next` and `finish` (`_Unwind_DebugHook` and the like, in each program). It
//! looks these up again only when it has read a program's symbols, and fails when it writes to
//! memory that is unmapped. So a chain from which ULPs were taken has one more namespace, with the
//! dynamic linker in it ([`NamespaceChain::pulse`]). Its address is a different one each time,
//! which gdb corrects, and gdb has its symbols already.
//!
//! Alternatives: gdb's JIT interface takes whole object files with final addresses, so each ULP
//! would need a relocated copy of its symbols and debug information. A script within the host's
//! file runs only where the user has allowed it (`auto-load safe-path`).
//!
//! Where the dynamic linker was built with SystemTap's probes (Debian's was not), gdb stops at
//! those, and not in `_dl_debug_state`. It then learns of ULPs when it attaches, and when the host
//! loads or unloads a library.

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
    /// Whether a change is in progress; 0 if not.
    state: u32,
    linker: u64,
    next: AtomicPtr<Namespace>,
}

/// The public part of `struct link_map`, which is its beginning.
#[repr(C)]
#[derive(Debug)]
struct LinkMap {
    base: u64,
    name: *const libc::c_char,
    /// Address of the dynamic section, by which gdb checks that it has the right file.
    dynamic: u64,
    next: *const LinkMap,
    previous: *const LinkMap,
}

const _: () = assert!(size_of::<Namespace>() == 48 && size_of::<LinkMap>() == 40);

/// The `version` that has `next`.
const EXTENDED: u32 = 2;

/// Registers the place of a program with debuggers, for as long as it lives.
#[derive(Debug)]
pub(crate) struct DebugRegistration(NonNull<LinkMapEntry>);

// SAFETY: only the holder of the lock uses the entry.
unsafe impl Send for DebugRegistration {}
// SAFETY: as above; a shared reference gives no access to it.
unsafe impl Sync for DebugRegistration {}

/// What a debugger sees of a ULP. Its address does not change.
struct LinkMapEntry {
    namespace: Namespace,
    map: LinkMap,
    /// Neighbours in the chain, if they are ULPs. For the holder of the lock.
    newer: AtomicPtr<LinkMapEntry>,
    older: AtomicPtr<LinkMapEntry>,
    _name: Option<Arc<CStr>>,
}

/// The chain, which only the holder of this lock may change.
static CHAIN: Mutex<NamespaceChain> = Mutex::new(NamespaceChain {
    first: None,
    newest: ptr::null_mut(),
    pulse: ptr::null_mut(),
    pulses: 0,
});

struct NamespaceChain {
    /// glibc's own namespace, after which ULPs are inserted; `Some(None)` if the chain cannot be
    /// extended.
    first: Option<Option<&'static Namespace>>,
    newest: *mut LinkMapEntry,
    /// The namespace that is not a ULP's, and the number of those so far.
    pulse: *mut LinkMapEntry,
    pulses: u64,
}

// SAFETY: the holder of the lock may use what this points to in any thread.
unsafe impl Send for NamespaceChain {}
// SAFETY: through a shared reference only atomic fields are written.
unsafe impl Sync for Namespace {}

/// Changes that a debugger has not been notified of.
static UNTOLD: AtomicU8 = AtomicU8::new(NOTHING);
const NOTHING: u8 = 0;
const BEGINNINGS: u8 = 1;
/// ULPs have ended: their addresses may not be reused before the debugger knows.
const ENDS: u8 = 2;

/// The instruction that debuggers write where they want to stop.
const BREAKPOINT: u8 = 0xCC;

/// A multiple of the alignment of libraries' bases.
const ALIGNED: u64 = 2 << 20;

impl DebugRegistration {
    /// Registers a program with this file and base.
    ///
    /// `dynamic` is the offset of its dynamic section from the base. Returns `None` if debuggers
    /// cannot be notified here.
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
    /// Inserts an entry right after the first.
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
            // SAFETY: an entry in the chain lives until it is taken out, which takes the lock.
            unsafe { older.as_ref() }.newer.store(entry.as_ptr(), Relaxed);
        }
        self.newest = entry.as_ptr();
        // SAFETY: a field of the entry, which is alive.
        let namespace = unsafe { &raw mut (*entry.as_ptr()).namespace };
        first.next.store(namespace, Release);
        first.version.store(EXTENDED, Release);
        entry
    }

    /// Takes out an entry that is in the chain.
    fn take(&mut self, taken: NonNull<LinkMapEntry>) {
        // SAFETY: `put` made it from a box. What points to it is changed below, before it is
        // dropped.
        let entry = unsafe { Box::from_raw(taken.as_ptr()) };
        let [newer, older] =
            [&entry.newer, &entry.older].map(|one| NonNull::new(one.load(Relaxed)));
        let [above, below] = [newer, older].map(|one| one.map_or(ptr::null_mut(), NonNull::as_ptr));
        // SAFETY: as in `put`, for another entry.
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

    /// Replaces the namespace that is not a ULP's; see the module comment.
    fn pulse(&mut self, first: &Namespace) {
        if let Some(pulse) = NonNull::new(self.pulse) {
            self.take(pulse);
        }
        self.pulse = ptr::null_mut();
        // SAFETY: this is the dynamic linker's own list of what it has loaded. Another thread may
        // load something just now, which is appended.
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

/// Notifies a debugger of this process of changes, before a ULP runs.
#[inline]
pub(crate) fn tell() {
    if UNTOLD.load(Relaxed) != NOTHING {
        tell_all();
    }
}

/// Notifies a debugger of ends, before a program is mapped, perhaps in place of an ended one.
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
    // SAFETY: the first byte of a function of the dynamic linker, which is never unmapped.
    // Volatile, since a debugger writes there.
    if unsafe { first.changed.read_volatile() } != BREAKPOINT {
        return;
    }
    if ends {
        chain.pulse(first);
    }
    // SAFETY: `_dl_debug_state` takes nothing, returns nothing and does nothing: it exists for
    // debuggers to stop in.
    let changed = unsafe { std::mem::transmute::<*const u8, extern "C" fn()>(first.changed) };
    changed();
}

/// glibc's own namespace, if others can be put after it.
fn linkers() -> Option<&'static Namespace> {
    if !is_extended() {
        return None;
    }
    // Found as debuggers find it: by the entry of the program's dynamic section that the dynamic
    // linker has filled in. SAFETY: reads values that the kernel has given.
    let [headers, count] = [libc::AT_PHDR, libc::AT_PHNUM].map(|of| unsafe { libc::getauxval(of) });
    let headers = NonNull::new(headers as *mut libc::Elf64_Phdr)?;
    // SAFETY: these are the program's headers, `count` of them, which are never unmapped.
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
    // SAFETY: the address is valid by the System V ABI, and the layout follows from glibc's
    // version. It is never unmapped, and once the program has begun only fields that are atomic
    // here change.
    unsafe { address.as_ref() }.filter(|first| !first.changed.is_null())
}

const DT_DEBUG: u64 = 21;

/// Returns `true` if glibc's `r_debug` is a chain, as it is since 2.35.
#[cfg(target_env = "gnu")]
fn is_extended() -> bool {
    // SAFETY: returns a string that is never freed.
    let version = unsafe { libc::gnu_get_libc_version() };
    // SAFETY: the string ends with a zero byte.
    let version = unsafe { CStr::from_ptr(version) }.to_string_lossy();
    let mut parts = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    (parts.next(), parts.next()) >= (Some(2), Some(35))
}

#[cfg(not(target_env = "gnu"))]
fn is_extended() -> bool {
    false
}
