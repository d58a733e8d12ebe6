//! Threads as kernel threads, for checkers that cannot follow a switch of stacks: Miri, and
//! ThreadSanitizer (`make miri-threads`, `make tsan`).
//!
//! With `--cfg upcall_kernel_threads`, and always under Miri, [`run`](crate::run) just runs its
//! body and [`spawn`](crate::spawn) starts a kernel thread. Everything above the switch is the same
//! code: records, join, locks and all that waits. What is not there to be checked is the scheduler
//! itself, which has its models.

use crate::kernel;
use crate::record::{REF, Rec, State, Table};
use crate::shared::draw_numbers;
use crate::spawn::{leave_result, say_done};
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::io;
use std::sync::atomic::Ordering;

/// A record for a thread to be, with room for its packet.
pub(crate) fn prepare(layout: Layout) -> Rec {
    let rec = kernel::fresh_record();
    // SAFETY: a packet has a size: the place of the result.
    let packet = unsafe { alloc(layout) };
    if packet.is_null() {
        handle_alloc_error(layout);
    }
    rec.packet.set(packet);
    rec
}

/// Starts the thread whose record and packet have been filled.
pub(crate) fn start(rec: Rec, table: &'static Table, stack_size: Option<usize>) -> io::Result<()> {
    rec.word.store(2 * REF, Ordering::Relaxed);
    rec.token.store(0, Ordering::Relaxed);
    rec.state.set(State::RUNS);
    rec.has_result.set(false);
    rec.id.set(draw_numbers(1));
    let mut builder = std::thread::Builder::new();
    if let Some(size) = stack_size {
        builder = builder.stack_size(size);
    }
    let main = move || {
        kernel::adopt(rec);
        // SAFETY: spawner and runner agree on the packet's type; it is run once, here.
        unsafe { (table.run)(rec.packet.get()) };
        // The thread's own reference goes with its kernel thread's values.
        leave_result(rec);
        say_done(rec);
    };
    // SAFETY: what the packet borrows lives until the thread has ended, by the promise made to
    // `spawn_unchecked`.
    drop(unsafe { builder.spawn_unchecked(main) }?);
    Ok(())
}

/// The record is reused; its packet, if it had one, is not.
pub(crate) fn free_packet(rec: Rec) {
    let packet = rec.packet.replace(std::ptr::null_mut());
    if !packet.is_null() {
        let table = rec.table.get().expect("a packet comes with its table");
        // SAFETY: allocated by `prepare` with this layout; closure and result are gone, and so is
        // whoever could look.
        unsafe { dealloc(packet, table.layout) };
    }
}
