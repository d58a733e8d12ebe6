//! The caller on a lane: what its server knows of it, and how it is woken.
//!
//! All of this is reported by the caller itself. A kernel thread has no station: it sleeps on the
//! lane's word, and its CPU is known only while it has moved the server there.

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
    /// The caller's activity, as it reports it; `None` for a kernel thread.
    pub(crate) fn callers_state(&self) -> Option<ProcessorState> {
        match &self.caller {
            CallerWake::KernelThread => None,
            CallerWake::Processor { vp, .. } => Some(self.client.station.state(*vp)),
        }
    }

    /// Returns `true` if the caller may have given `cpu` to this server: it calls, reports that it
    /// is there, and runs nothing.
    pub(crate) fn gave(&self, cpu: u32) -> bool {
        self.callers_place() == Some(cpu)
            && self.callers_state() != Some(ProcessorState::Awake(Awake::Running))
            && self.waits()
    }

    /// The CPU that the caller runs on, as it reports it; `None` for a kernel thread.
    pub(crate) fn callers_place(&self) -> Option<u32> {
        match &self.caller {
            CallerWake::KernelThread => None,
            CallerWake::Processor { vp, .. } => self.client.station.cpu(*vp),
        }
    }

    /// The CPU near which the caller wishes this server to park.
    pub(crate) fn wished_cpu(&self) -> Option<u32> {
        self.control.near.load(Ordering::Relaxed).checked_sub(1)
    }

    /// Returns `true` if the caller runs on `cpu`, where this server is. A virtual processor
    /// reports that; a kernel thread is there if it gave its CPU with its last call.
    pub(crate) fn shares(&self, cpu: u32) -> bool {
        match &self.caller {
            CallerWake::KernelThread => self.donated.load(Ordering::Relaxed),
            CallerWake::Processor { .. } => self.callers_place() == Some(cpu),
        }
    }

    /// Wakes the caller if it seems to sleep; `wake_check` argues which checks count.
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

    /// Notifies the caller's processor.
    ///
    /// One notification per sleep is enough (sleep.rs). On this CPU more are waste, because the
    /// caller cannot run before the server rests: with 32 callers on one CPU, 2.6 million calls a
    /// second instead of 0.55. A caller that wakes on another CPU is notified again until it is up.
    /// That keeps the server from falling asleep before then, and so keeps the two from sleeping in
    /// turns: 8 million calls a second instead of 0.9.
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
