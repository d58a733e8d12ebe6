//! Hand-off: the sleeping server's kernel thread is moved to the caller's CPU and woken there.
//!
//! Source: LRPC's direct context switch (section 3.2) and URPC's Processor.Donate (section 3.1.2).
//! Linux has no call that gives a processor to a named thread. What comes nearest without privilege
//! is to confine the sleeper to the caller's own CPU (allowed between processes of one user), wake
//! it, and sleep. The confining is paid for once and remembered. The server undoes it when it
//! prefers a CPU of its own.
//!
//! # A server that the caller may not move
//! A caller may not move the threads of another user, nor those of a process that it does not see
//! (another PID namespace). Then it writes its CPU into its lane ([`LaneControl::near`]), and the
//! server parks there by itself ([`poller`](crate::poller)). The next call finds the server on the
//! caller's CPU, as the server's station reports. A server that lies gains nothing: the caller
//! yields or sleeps, and waits for its reply as it would anyway.

use crate::placed::Placed;
use std::io;
use upcall_os::atomic::{AtomicBool, Ordering};
use upcall_os::processor::{self, CpuSet};
use upcall_shm::channel::LaneControl;
use upcall_shm::station::PeerStation;

/// When a caller gives its processor to a server that has none.
///
/// The default policy is optimistic, and a client may force the hand-off (URPC, section 3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum HandOff {
    /// When the caller has nothing else to do. A user-level thread's processor runs its other
    /// threads first: the server may soon have a processor by itself, and one hand-off then serves
    /// all calls that wait. A kernel thread that calls has nothing else to do.
    #[default]
    WhenIdle,
    /// With the call, even if the caller's processor has other work: for calls that must not wait,
    /// and those that start something long in the server. Costs some microseconds of the caller's
    /// processor if the server sleeps, nothing if it runs on another CPU, and a turn if it runs on
    /// the caller's own.
    AtOnce,
}

/// Where a server's virtual processor serves the next request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whereabouts {
    /// On the caller's CPU.
    Here,
    /// On another one.
    Elsewhere,
}

/// Moves one peer's virtual processors to the caller's CPU, and remembers where each was put.
#[derive(Debug)]
pub struct Donor {
    /// The peer's process ID as the kernel reports it. 0 if it is not visible from here; then its
    /// processors cannot be moved.
    pid: u32,
    placed: Placed,
    /// Set once the kernel has refused to move one of them.
    refused: AtomicBool,
}

impl Donor {
    /// Creates a donor for a peer in process `pid`.
    pub fn new(pid: u32) -> Self {
        Self { pid, placed: Placed::default(), refused: AtomicBool::new(pid == 0) }
    }

    /// Returns `true` if the peer's virtual processor is on the caller's CPU.
    ///
    /// It was moved there and its station reports that it is still there. If the caller may not
    /// move it, the report alone counts.
    #[inline]
    pub fn has_brought(&self, station: &PeerStation, vp: u16) -> bool {
        self.placed.is_any_at(|| processor::current() as u32, || station.cpu(vp))
            || self.is_refused() && station.cpu(vp) == Some(processor::current() as u32)
    }

    #[inline]
    fn is_refused(&self) -> bool {
        self.refused.load(Ordering::Relaxed)
    }

    /// Confines the peer's sleeping virtual processor to the caller's CPU. If that is not
    /// permitted, asks it in the caller's `lane` to park here.
    ///
    /// Makes at most a few system calls the first time, one or none later. A peer that lies about
    /// its thread does no harm: only a thread of its own process is moved.
    pub fn bring(&self, station: &PeerStation, vp: u16, lane: &LaneControl) -> Whereabouts {
        let cpu = processor::current();
        let said = station.cpu(vp);
        if !self.is_refused() {
            let Some(tid) = station.tid(vp) else { return Whereabouts::Elsewhere };
            // The peer may have moved itself since; its station says where it last ran.
            if self.placed.is_at(tid, cpu as u32, said) {
                return Whereabouts::Here;
            }
            let moved = self.confine(tid, cpu);
            self.placed.set(tid, cpu as u32, moved.is_ok());
            match moved {
                Ok(()) => return Whereabouts::Here,
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    self.refused.store(true, Ordering::Relaxed);
                }
                // The thread has ended, or may not run here for now.
                Err(_) => return Whereabouts::Elsewhere,
            }
        }
        let wish = cpu as u32 + 1;
        if lane.near.load(Ordering::Relaxed) != wish {
            lane.near.store(wish, Ordering::Relaxed);
        }
        if said == Some(cpu as u32) { Whereabouts::Here } else { Whereabouts::Elsewhere }
    }

    /// Confines a thread of the peer's process to `cpu`.
    fn confine(&self, tid: u32, cpu: usize) -> io::Result<()> {
        if processor::thread_belongs_to(tid, self.pid)? {
            CpuSet::only(cpu).confine_thread(tid)
        } else {
            Err(io::ErrorKind::NotFound.into())
        }
    }
}
