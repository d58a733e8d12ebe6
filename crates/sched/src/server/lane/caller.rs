//! The caller on a lane: what its server knows of it, and how it is woken.
//!
//! All of this is the caller's own word. A kernel thread has no station: it sleeps on the lane's
//! word, and its place is known only while it has brought the server to its own CPU.

use super::ServerLane;
use crate::server::client::CallerWake;
use crate::sleep;
use upcall_os::atomic::Ordering;
use upcall_os::doorbell::Doorbell;
use upcall_os::futex::{self, FutexScope};
use upcall_os::processor;
use upcall_os::safe_doorbell::SafeDoorbell;
use upcall_shm::station::{Awake, ProcessorState};

impl ServerLane {
    /// What the caller does, by its own word. A kernel thread does not say.
    pub(crate) fn callers_state(&self) -> Option<ProcessorState> {
        match &self.caller {
            CallerWake::KernelThread => None,
            CallerWake::Processor { vp, .. } => Some(self.client.station.state(*vp)),
        }
    }

    /// Whether the caller may have given processor `cpu` to us: it calls, its word is that it is
    /// there, and it runs nothing.
    pub(crate) fn gave(&self, cpu: u32) -> bool {
        self.callers_place() == Some(cpu)
            && self.callers_state() != Some(ProcessorState::Awake(Awake::Running))
            && self.waits()
    }

    /// The processor that the caller runs on, by its own word. A kernel thread does not say.
    pub(crate) fn callers_place(&self) -> Option<u32> {
        match &self.caller {
            CallerWake::KernelThread => None,
            CallerWake::Processor { vp, .. } => self.client.station.cpu(*vp),
        }
    }

    /// The CPU near which the caller wishes this server to park, by its own word.
    pub(crate) fn wished_cpu(&self) -> Option<u32> {
        self.control.near.load(Ordering::Relaxed).checked_sub(1)
    }

    /// Whether the caller runs on processor `cpu`, where we are: by its own word, or, of a kernel
    /// thread, because it brought us there with its last call.
    pub(crate) fn shares(&self, cpu: u32) -> bool {
        match &self.caller {
            CallerWake::KernelThread => self.donated.load(Ordering::Relaxed),
            CallerWake::Processor { .. } => self.callers_place() == Some(cpu),
        }
    }

    /// Wakes the caller if it seems to sleep: which checks count is said in `wake_check`.
    #[inline]
    pub(super) fn wake_caller(&self) {
        match &self.caller {
            CallerWake::KernelThread => {
                if sleep::seems_asleep(&self.control.sleeper) {
                    self.wake_kernel_thread();
                }
            }
            CallerWake::Processor { vp, doorbell, safe_doorbell } => {
                if let Some(sleep) = self.client.station.sleep(*vp) {
                    self.wake_processor(*vp, sleep, (doorbell, safe_doorbell));
                }
            }
        }
    }

    #[inline(never)]
    fn wake_kernel_thread(&self) {
        sleep::retract(&self.control.sleeper);
        futex::wake(&self.control.sleeper, 1, FutexScope::Shared);
    }

    /// One ring for a sleep is enough (sleep.rs), and on our own processor more are waste, for the
    /// caller cannot run before we rest: with 32 callers on one processor 2.6 million calls a
    /// second in place of 0.55. A caller that wakes on another processor is rung for again until it
    /// is up. That keeps us from falling asleep before it is up, and then the two from sleeping in
    /// turns: 8 million calls a second in place of 0.9.
    #[inline(never)]
    fn wake_processor(
        &self,
        vp: u16,
        sleep: u64,
        (doorbell, safe_doorbell): (&Doorbell, &SafeDoorbell),
    ) {
        if sleep::first_ring(&self.rung, sleep)
            || self.client.station.cpu(vp) != Some(processor::current() as u32)
        {
            safe_doorbell.notify(doorbell);
        }
    }
}
