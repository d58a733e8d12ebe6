//! The locks with which an object's lock is compared: a mutex of the C library and a plain spin
//! lock, each with the same data behind it, in memory shared by processes that trust each other.
//!
//! As in [`crate::raw`], nothing here defends against a hostile peer, and only the comparison may
//! use it.
//!
//! ```text
//! 0        the mutex, initialised by the creator of the memory before it is shared
//! 128      the spin lock: 0, or 1 while it is held
//! 256      data: atomics, so that they need no lock to be sound
//! ```

use std::cell::UnsafeCell;
use std::fs::OpenOptions;
use std::hint::spin_loop;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Number of places in the ring.
const PLACES: usize = 16;

#[repr(C, align(128))]
struct Mutex(UnsafeCell<libc::pthread_mutex_t>);

#[repr(C, align(128))]
struct Spin(AtomicU32);

/// The data behind either lock.
#[repr(C, align(128))]
pub struct Data {
    counter: AtomicU64,
    put: AtomicU64,
    taken: AtomicU64,
    ring: [AtomicU64; PLACES],
}

#[repr(C)]
struct Layout {
    mutex: Mutex,
    spin: Spin,
    data: Data,
}

const LEN: usize = 4096;
const _: () = assert!(size_of::<Layout>() <= LEN);

impl Data {
    /// Increments the counter. The caller holds the lock.
    #[inline(always)]
    pub fn count(&self) -> u64 {
        let number = self.counter.load(Relaxed) + 1;
        self.counter.store(number, Relaxed);
        number
    }

    /// Puts a value into a queue and takes one out. The caller holds the lock.
    #[inline(always)]
    pub fn pass(&self, value: u64) -> u64 {
        let put = self.put.load(Relaxed);
        self.ring[put as usize % PLACES].store(value, Relaxed);
        self.put.store(put + 1, Relaxed);
        let taken = self.taken.load(Relaxed);
        let first = self.ring[taken as usize % PLACES].load(Relaxed);
        self.taken.store(taken + 1, Relaxed);
        first
    }
}

/// A mapping of the memory.
pub struct Bare {
    layout: NonNull<Layout>,
}

// SAFETY: the mapping is not bound to a thread; it contains atomics, and a mutex for threads of
// several processes.
unsafe impl Send for Bare {}
// SAFETY: as above.
unsafe impl Sync for Bare {}

impl Bare {
    /// Creates the memory. The descriptor is for the other processes, which [open](Self::open) it.
    ///
    /// # Errors
    /// The kernel has no memory or descriptors left.
    pub fn create() -> io::Result<(Bare, OwnedFd)> {
        let file = memfd_create("upcall-bench", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, LEN as u64)?;
        let bare = Bare::map(&file)?;
        let mut shared = MaybeUninit::<libc::pthread_mutexattr_t>::uninit();
        // SAFETY: the place is writable.
        told(unsafe { libc::pthread_mutexattr_init(shared.as_mut_ptr()) })?;
        // SAFETY: initialised above.
        told(unsafe {
            libc::pthread_mutexattr_setpshared(shared.as_mut_ptr(), libc::PTHREAD_PROCESS_SHARED)
        })?;
        // SAFETY: the memory is not shared yet, and the attributes are initialised.
        told(unsafe { libc::pthread_mutex_init(bare.layout().mutex.0.get(), shared.as_ptr()) })?;
        // SAFETY: initialised above, and not used again.
        told(unsafe { libc::pthread_mutexattr_destroy(shared.as_mut_ptr()) })?;
        Ok((bare, file))
    }

    /// Opens the memory of another process, by the process and its descriptor.
    ///
    /// # Errors
    /// The process or the descriptor does not exist.
    pub fn open(process: u32, number: i32) -> io::Result<Bare> {
        let path = format!("/proc/{process}/fd/{number}");
        let file = OpenOptions::new().read(true).write(true).open(Path::new(&path))?;
        let found = file.metadata()?.len();
        if found != LEN as u64 {
            return Err(io::Error::other(format!(
                "{path}: {found} bytes where {LEN} were expected"
            )));
        }
        Bare::map(&file)
    }

    fn map(file: &impl AsFd) -> io::Result<Bare> {
        // SAFETY: no address is requested, so no mapping in use is replaced; the mapping lives
        // until drop.
        let base = unsafe {
            mmap(
                std::ptr::null_mut(),
                LEN,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                file,
                0,
            )
        }?;
        let layout =
            NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mapped at address zero"))?;
        Ok(Bare { layout })
    }

    #[inline(always)]
    fn layout(&self) -> &Layout {
        // SAFETY: mapped as long as `self`, aligned as a page, large enough; it contains only
        // atomics, and a mutex in a cell.
        unsafe { self.layout.as_ref() }
    }

    /// Runs `body` under the mutex.
    #[inline(always)]
    pub fn with_mutex<R>(&self, body: impl FnOnce(&Data) -> R) -> R {
        let mutex = self.layout().mutex.0.get();
        // SAFETY: `create` initialised the mutex before the memory was shared.
        unsafe { libc::pthread_mutex_lock(mutex) };
        let result = body(&self.layout().data);
        // SAFETY: as above; this thread holds the mutex.
        unsafe { libc::pthread_mutex_unlock(mutex) };
        result
    }

    /// Runs `body` under the spin lock.
    #[inline(always)]
    pub fn with_spin<R>(&self, body: impl FnOnce(&Data) -> R) -> R {
        let lock = &self.layout().spin.0;
        while lock.compare_exchange_weak(0, 1, Acquire, Relaxed).is_err() {
            while lock.load(Relaxed) != 0 {
                spin_loop();
            }
        }
        let result = body(&self.layout().data);
        lock.store(0, Release);
        result
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this length; every borrow of it has ended. The mutex needs
        // no destruction, since it has no state outside the memory.
        unsafe { munmap(self.layout.as_ptr().cast(), LEN) }.ok();
    }
}

/// Returns the number of a descriptor, by which another process of the same user opens it.
pub fn number(file: &OwnedFd) -> u64 {
    file.as_raw_fd() as u64
}

fn told(error: i32) -> io::Result<()> {
    if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_locks_keep_others_out() {
        let (bare, file) = Bare::create().unwrap();
        let other = Bare::open(std::process::id(), file.as_raw_fd()).unwrap();
        let add = |bare: &Bare, by_mutex: bool| {
            (0..10_000).for_each(|_| {
                _ = if by_mutex {
                    bare.with_mutex(Data::count)
                } else {
                    bare.with_spin(Data::count)
                }
            });
        };
        for (by_mutex, all) in [(true, 20_000), (false, 40_000)] {
            std::thread::scope(|scope| {
                scope.spawn(|| add(&other, by_mutex));
                add(&bare, by_mutex);
            });
            assert_eq!(bare.with_mutex(Data::count), all + 1);
            bare.with_mutex(|data| data.counter.fetch_sub(1, Relaxed));
        }
        assert_eq!(
            (other.with_spin(|data| data.pass(7)), bare.with_mutex(|data| data.pass(8))),
            (7, 8)
        );
    }

    #[test]
    fn another_size_is_refused() {
        let file = memfd_create("small", MemfdFlags::CLOEXEC).unwrap();
        let told = Bare::open(std::process::id(), file.as_raw_fd());
        assert!(told.is_err_and(|error| error.to_string().contains("0 bytes")));
    }
}
