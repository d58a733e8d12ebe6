//! Gives memory back on a thread that no other thread waits for.
//!
//! Unmapping or freeing 1 GiB takes the kernel up to 0.2 s, and a peer decides how much there is.
//! So ranges larger than [`PIECE`] are unmapped by the reaper, a kernel thread that exists while
//! there is something to unmap. It works in pieces, since `mmap` in other threads of the process
//! waits for each. The descriptors of large memory files, and large values, go the same way,
//! because the last holder frees the pages.
//!
//! The reaper is not the closer (`closer.rs`), which a peer's file system can hold up for ever.
//! Freeing memory takes a time that is proportional to its size.

use crate::lock::{KernelMutex, MutexGuard};
use std::any::Any;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;

/// Maximum number of bytes that the dropping thread itself unmaps or frees at once.
pub const PIECE: usize = 2 << 20;

/// Maximum number of bytes of memory files that are freed by the thread that closes a message's
/// descriptors. A clerk closes those of many messages in a row.
const FILES: usize = 256 << 10;

/// Length of a range, in bytes, above which pages leave the page table before their mapping goes.
const PAGES_FIRST: usize = 64 << 10;

/// The nice value of the reaper: threads that peers wait for run before it.
const NICE: i32 = 10;

/// A range of this process's address space that nothing refers to any more.
pub(crate) struct AddressRange {
    pub(crate) start: NonNull<u8>,
    pub(crate) len: usize,
}

// SAFETY: an address range belongs to the process, not to a thread.
unsafe impl Send for AddressRange {}

/// A value that is dropped when the memory it accounts for has been given back.
pub(crate) type MemoryCharge = Option<Box<dyn Any + Send + Sync>>;

/// A resource to give back.
pub(crate) enum Waste {
    Range(AddressRange, MemoryCharge),
    File(OwnedFd),
    Value(Box<dyn Any + Send>),
}

struct WasteQueue {
    queue: VecDeque<Waste>,
    /// `true` while a thread empties the queue.
    running: bool,
}

static STATE: KernelMutex<WasteQueue> =
    KernelMutex::new(WasteQueue { queue: VecDeque::new(), running: false });

fn state() -> MutexGuard<'static, WasteQueue> {
    STATE.lock()
}

/// Gives `waste` back soon. If no thread can be started, the caller does it.
pub(crate) fn take(waste: Waste) {
    let mut all = state();
    all.queue.push_back(waste);
    if std::mem::replace(&mut all.running, true) {
        return;
    }
    drop(all);
    let started =
        std::thread::Builder::new().name("upcall-reaper".into()).stack_size(64 << 10).spawn(|| {
            // A thread may always lower its priority.
            let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), NICE);
            empty();
        });
    if started.is_err() {
        empty();
    }
}

fn empty() {
    loop {
        let next = {
            let mut all = state();
            let next = all.queue.pop_front();
            all.running = next.is_some();
            next
        };
        match next {
            Some(Waste::Range(range, held)) => {
                unmap(range);
                let_go(held);
            }
            Some(Waste::File(fd)) => drop(fd),
            Some(Waste::Value(value)) => let_go(value),
            None => return,
        }
    }
}

/// Drops a value. If the drop panics, which is not expected, the other values are still given back.
fn let_go<T>(value: T) {
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(value)));
}

/// Unmaps a range, [`PIECE`] by piece, the last one first.
///
/// The kernel changes the memory map of a process under a lock, and `mmap` in its other threads
/// waits for that lock. The reaper has a low priority, and may have to wait for its processor while
/// it holds the lock. So it first takes the pages out of the page table, which since Linux 6.17
/// needs no lock of the whole map, and holds the lock only for a moment.
pub(crate) fn unmap(AddressRange { start, len }: AddressRange) {
    let mut left = len;
    while left > 0 {
        let piece = if left.is_multiple_of(PIECE) { PIECE } else { left % PIECE };
        left -= piece;
        // SAFETY: `left` is within the range.
        let at = unsafe { start.add(left) }.as_ptr().cast();
        if len > PAGES_FIRST {
            // SAFETY: the owner of the mapping has given up the range, so no access to it follows.
            let _ = unsafe { rustix::mm::madvise(at, piece, rustix::mm::Advice::LinuxDontNeed) };
        }
        // SAFETY: the owner of the mapping has given up the range, of which this part is still
        // mapped.
        let _ = unsafe { rustix::mm::munmap(at, piece) };
    }
}

/// Drops `value`, which holds `bytes` of memory; on the reaper if they are many.
///
/// For values whose size a peer decided, and whose drop only frees memory.
pub fn free<T: Send + 'static>(value: T, bytes: usize) {
    if bytes > PIECE {
        take(Waste::Value(Box::new(value)));
    }
}

/// Number of bytes of memory that a file has.
fn held_by(fd: &OwnedFd) -> usize {
    // A block is 512 bytes.
    rustix::fs::fstat(fd)
        .map_or(0, |stat| usize::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512))
}

/// Returns `true` if these memory files together exceed what one thread frees at once.
fn are_large(files: &[OwnedFd]) -> bool {
    files.iter().map(held_by).fold(0, usize::saturating_add) > FILES
}

/// Closes memory files that a peer sent; on the reaper if they have much memory.
pub(crate) fn close(files: Vec<OwnedFd>) {
    if are_large(&files) {
        files.into_iter().for_each(|fd| take(Waste::File(fd)));
    }
}

/// Second descriptors of the memory files that a peer sent.
///
/// While these are open, closing the first ones frees nothing.
#[derive(Debug, Default)]
pub(crate) struct DescriptorCopies(Vec<OwnedFd>);

impl DescriptorCopies {
    /// Keeps memory files that are large together.
    ///
    /// If the descriptor table is full, the thread that closes the first descriptor frees the
    /// memory.
    pub(crate) fn of(files: &[OwnedFd]) -> Self {
        let all = if are_large(files) { files } else { &[] };
        Self(all.iter().filter_map(|fd| fd.try_clone().ok()).collect())
    }
}

impl Drop for DescriptorCopies {
    fn drop(&mut self) {
        self.0.drain(..).for_each(|fd| take(Waste::File(fd)));
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::memory::{Mapping, MemoryFile};
    use std::time::{Duration, Instant};

    fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
        let start = Instant::now();
        while !holds() {
            assert!(start.elapsed() < Duration::from_secs(60), "{what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn is_mapped(name: &str) -> bool {
        std::fs::read_to_string("/proc/self/maps").unwrap().contains(name)
    }

    #[test]
    fn large_mappings_are_unmapped_whole_whatever_their_length() {
        for (at, len) in
            [PIECE, PIECE + 1, 2 * PIECE, 3 * PIECE - 4096, 4096].into_iter().enumerate()
        {
            let name = format!("upcall-reaped-{at}");
            let map = Mapping::shared(&MemoryFile::create(&name, len).unwrap()).unwrap();
            assert!(is_mapped(&name));
            drop(map);
            eventually("it is unmapped", || !is_mapped(&name));
        }
    }

    #[test]
    fn what_counts_a_mapping_goes_when_the_range_is_unmapped() {
        struct Looks(String, std::sync::mpsc::Sender<bool>);
        impl Drop for Looks {
            fn drop(&mut self) {
                let _ = self.1.send(is_mapped(&self.0));
            }
        }
        for len in [PIECE, 8 * PIECE] {
            let (looked, looks) = std::sync::mpsc::channel();
            let name = format!("upcall-counted-{len}");
            let map = Mapping::shared(&MemoryFile::create(&name, len).unwrap()).unwrap();
            drop(map.with(Looks(name, looked)));
            assert!(
                !looks.recv_timeout(Duration::from_secs(60)).unwrap(),
                "{len} bytes were mapped still"
            );
        }
    }

    #[test]
    fn the_caller_does_not_free_what_is_large() {
        let (own, freed_by) = (std::thread::current().id(), std::sync::mpsc::channel());
        struct Tells(std::sync::mpsc::Sender<std::thread::ThreadId>);
        impl Drop for Tells {
            fn drop(&mut self) {
                let _ = self.0.send(std::thread::current().id());
            }
        }
        free(Tells(freed_by.0.clone()), PIECE);
        assert_eq!(freed_by.1.recv().unwrap(), own);
        free(Tells(freed_by.0), PIECE + 1);
        assert_ne!(freed_by.1.recv().unwrap(), own);
    }

    #[test]
    fn large_files_are_kept_until_the_reaper_closes_them() {
        let file = |len| MemoryFile::create("t", len).unwrap();
        let (small, large) = (file(FILES), file(FILES + 4096));
        [&small, &large].into_iter().for_each(|file| file.allocate().unwrap());
        let copy = |file: &MemoryFile| std::os::fd::AsFd::as_fd(file).try_clone_to_owned().unwrap();
        assert_eq!(DescriptorCopies::of(&[copy(&small)]).0.len(), 0);
        assert_eq!(DescriptorCopies::of(&[copy(&large)]).0.len(), 1);
        // Many small files take as long as a large one.
        assert_eq!(
            DescriptorCopies::of(&[copy(&small), copy(&file(4096)), copy(&small)]).0.len(),
            3
        );
    }
}
