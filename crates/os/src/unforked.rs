//! Descriptors that a forked child does not keep.
//!
//! A child of `fork` has a copy of each descriptor. If the parent is killed, a socket of it stays
//! open until the child ends, and the peer does not notice the death. An [`Unforked`] socket is the
//! parent's alone. In the child its number leads to a socket whose peer has closed: reads find the
//! end, and writes fail. The number stays taken, so values that the child has copied close nothing
//! else.
//!
//! # Limits
//! The C library replaces the descriptors after its `fork` (`pthread_atfork`). It does not if the
//! program makes the system call itself. A child that executes a program needs no replacement: the
//! kernel closes these descriptors then. If another thread forks between the creation of a
//! descriptor and [`Unforked::new`], the child keeps the descriptor.

use crate::lock::KernelMutex;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, Ordering};

/// Number of places of a block.
const BLOCK: usize = 64;

/// A place that is free.
const FREE: i32 = -1;

/// Places for the numbers of descriptors. Blocks are never freed.
///
/// A child reads them without a lock: the threads that hold locks at the time of the fork do not
/// exist there.
struct UnforkedBlock {
    places: [AtomicI32; BLOCK],
    next: OnceLock<Box<UnforkedBlock>>,
}

static PLACES: UnforkedBlock = UnforkedBlock::new();

/// The socket that a child gets in place of each descriptor, once the handler is set.
static CLOSED: OnceLock<OwnedFd> = OnceLock::new();

impl UnforkedBlock {
    const fn new() -> Self {
        Self { places: [const { AtomicI32::new(FREE) }; BLOCK], next: OnceLock::new() }
    }

    /// Puts the number of a descriptor into a free place.
    fn put(&'static self, number: i32) -> &'static AtomicI32 {
        let mut block = self;
        loop {
            let free = block.places.iter().find(|place| {
                let put = place.compare_exchange(FREE, number, Ordering::SeqCst, Ordering::SeqCst);
                put.is_ok()
            });
            match free {
                Some(place) => return place,
                None => block = block.next.get_or_init(|| Box::new(Self::new())),
            }
        }
    }
}

/// Sets the handler, if it is not set yet.
fn prepare() -> io::Result<()> {
    static PREPARES: KernelMutex<()> = KernelMutex::new(());
    let _alone = PREPARES.lock();
    if CLOSED.get().is_some() {
        return Ok(());
    }
    let (closed, peer) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    drop(peer);
    // SAFETY: the handler makes system calls on numbers that it reads from atomics, which is
    // allowed in a child of a process with several threads.
    match unsafe { libc::pthread_atfork(None, None, Some(replace_all)) } {
        0 => {
            let _ = CLOSED.set(closed);
            Ok(())
        }
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// Replaces all descriptors, in a child.
extern "C" fn replace_all() {
    let Some(closed) = CLOSED.get() else { return };
    let mut block = Some(&PLACES);
    while let Some(UnforkedBlock { places, next }) = block {
        for place in places {
            let number = place.load(Ordering::SeqCst);
            if number != FREE {
                // SAFETY: the number is that of an open descriptor, whose place is freed before it
                // is closed. The kernel puts a copy of `closed` there.
                unsafe { libc::dup3(closed.as_raw_fd(), number, libc::O_CLOEXEC) };
            }
        }
        block = next.get().map(|next| &**next);
    }
}

/// A descriptor's place, which is freed before the descriptor is closed.
#[derive(Debug)]
struct UnforkedPlace(&'static AtomicI32);

impl Drop for UnforkedPlace {
    fn drop(&mut self) {
        self.0.store(FREE, Ordering::SeqCst);
    }
}

/// A socket that forked children do not keep; see the module.
#[derive(Debug)]
pub struct Unforked<S> {
    // Dropped in this order.
    _place: UnforkedPlace,
    socket: S,
}

impl<S: AsFd> Unforked<S> {
    /// Takes a socket over.
    ///
    /// # Errors
    /// There is no descriptor or no memory left.
    pub fn new(socket: S) -> io::Result<Self> {
        prepare()?;
        let place = UnforkedPlace(PLACES.put(socket.as_fd().as_raw_fd()));
        Ok(Self { _place: place, socket })
    }
}

impl<S> Deref for Unforked<S> {
    type Target = S;

    fn deref(&self) -> &S {
        &self.socket
    }
}

impl<S: AsFd> AsFd for Unforked<S> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
