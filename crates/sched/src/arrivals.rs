//! Messages that a virtual processor probes for, beside its lanes.
//!
//! They belong to a group whose member is on that processor, and have handlers to run.
//!
//! Source: UDM, sections 2 and 3.1 (D5 here). There an arrival interrupts the running thread; here
//! it is found at a safe point: when no thread is ready, when one yields, at every 64th choice of
//! the next thread, and where a thread asks ([`safe_point`](upcall_thread::safe_point)). Handlers
//! run on a worker, so a handler that must block becomes a thread at no further cost, and the
//! interrupted thread is just ready.
//!
//! Each such group keeps its own [`Post`]. A processor that is about to sleep announces it at the
//! posts of all its groups and at its own line, makes one fence for all of them, and probes again.
//! The doorbells of each post's senders are in its wake set. So the argument in
//! [`sleep`](crate::sleep) holds for each post as if a processor slept there alone.

use crate::post::Post;
use upcall_thread::Found;

/// Messages that a virtual processor probes for. No method but [`serve`](Self::serve) may block or
/// panic.
pub trait Arrivals {
    /// Probes once. Returns `Work` if handlers are to run, and `Woke` if a thread that waits for
    /// messages was made ready.
    fn look(&self) -> Found;

    /// Returns `true` if a probe would find something.
    fn waits(&self) -> bool;

    /// Does what was put off until the processor sleeps: it is about to.
    fn falls_asleep(&self);

    /// Runs the handlers of the messages that have arrived, on a thread that may block.
    fn serve(&self);

    /// The post at which the senders of these messages notify.
    fn post(&self) -> &Post;
}
