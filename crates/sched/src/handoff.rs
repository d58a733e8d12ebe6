//! Hand-off: the sleeping server's kernel thread is brought to the caller's processor and woken
//! there.
//!
//! Source: LRPC's direct context switch (section 3.2) and URPC's Processor.Donate (section 3.1.2).
//! Linux has no call that gives a processor to a named thread; what comes nearest without privilege
//! is to confine the sleeper to the caller's own processor (allowed between processes of one user),
//! wake it, and sleep. The confining is paid once and remembered. The server undoes it when it
//! prefers a processor of its own.

use crate::placed::Placed;
use upcall_os::processor::{self, Processors};
use upcall_shm::station::PeerStation;

/// When a caller gives its processor to a server that has none (URPC, section 3.1: the policy is
/// optimistic, and a client may force it).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum HandOff {
    /// When it has nothing else to do: a user-level thread's processor runs its other threads
    /// first, for the server may soon have a processor by itself, and one hand-off then serves
    /// all calls that wait. A kernel thread that calls has nothing else to do.
    #[default]
    WhenIdle,
    /// With the call, whatever else there is to do: for calls that must not wait, and those that
    /// start something long in the server. Costs some microseconds of the caller's processor if
    /// the server sleeps; nothing if it runs on another one; a turn if it runs on the caller's own.
    AtOnce,
}

/// Brings one peer's processors to us; remembers what was done.
#[derive(Debug)]
pub struct Donor {
    /// The peer's process, as the kernel named it; 0: not visible from here, so nothing can be
    /// donated.
    pid: u32,
    placed: Placed,
}

impl Donor {
    /// For a peer in the process `pid`.
    pub fn new(pid: u32) -> Self {
        Self { pid, placed: Placed::default() }
    }

    /// Whether the peer's virtual processor was brought to the processor that the caller runs on,
    /// and is still there by its own word.
    #[inline]
    pub fn has_brought(&self, station: &PeerStation, vp: u16) -> bool {
        self.placed.is_any_at(|| processor::current() as u32, || station.cpu(vp))
    }

    /// Confines the peer's sleeping virtual processor to the caller's processor. Returns whether it
    /// will run there. At most a few system calls the first time, one or none later. Harmless
    /// if the peer lies about its thread: only a thread of its own process is moved.
    pub fn bring(&self, station: &PeerStation, vp: u16) -> bool {
        let Some(tid) = station.tid(vp) else { return false };
        let cpu = processor::current();
        // The peer may have moved itself since; it says where it last ran.
        if self.placed.is_at(tid, cpu as u32, station.cpu(vp)) {
            return true;
        }
        if self.pid == 0 || !processor::thread_belongs_to(tid, self.pid) {
            return false;
        }
        let moved = Processors::only(cpu).confine_thread(tid).is_ok();
        self.placed.set(tid, cpu as u32, moved);
        moved
    }
}
