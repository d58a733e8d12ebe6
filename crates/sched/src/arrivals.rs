//! What else a virtual processor looks at beside lanes: messages of a group whose member
//! is on it, for which handlers are to run.
//!
//! Source: UDM, sections 2 and 3.1 (D5 here). There an arrival interrupts the running thread; here
//! it is found at a safe point: when no thread is ready, when one yields, at every 64th choice of
//! the next thread, and where a thread asks ([`safe_point`](upcall_thread::safe_point)). Handlers
//! run on a worker, so one that must block is a thread by that alone, and who was interrupted is
//! just ready.
//!
//! Each such group keeps its own [`Post`]. A processor that falls asleep announces it at the posts
//! of all its groups as at its own line, makes one fence for all, and looks again; the doorbells of
//! each post's senders are in its wake set. So the argument in [`sleep`](crate::sleep) holds for
//! each post as if a processor slept there alone.

use crate::post::Post;
use upcall_thread::Found;

/// Messages that a virtual processor looks for. All but [`serve`](Self::serve) neither block nor
/// panic.
pub trait Arrivals {
    /// One look: `Work` if handlers are to run, `Woke` if a thread that waits for messages was made
    /// ready.
    fn look(&self) -> Found;

    /// Whether a look would find something.
    fn waits(&self) -> bool;

    /// Its processor is about to fall asleep: what has time until then can be done now.
    fn falls_asleep(&self);

    /// Runs the handlers of what is there, on a thread that may block.
    fn serve(&self);

    /// Where their senders ring.
    fn post(&self) -> &Post;
}
