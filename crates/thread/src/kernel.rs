//! The records of kernel threads that are not virtual processors, yet wait, join and lock.
//!
//! Each blocks itself on a futex. Such a thread has a record like any other, taken when it first
//! blocks and given back when it ends. Records are never freed (see `record`), so a late waker
//! touches no freed memory.

use crate::beacon;
use crate::extra::Extra;
use crate::number;
use crate::record::{REF, Rec, Record};
use std::cell::Cell;
use std::sync::Mutex;
use std::sync::atomic::Ordering;

pub(crate) const WAITING: u32 = 0;
const WOKEN: u32 = 1;

static FREE: Mutex<Vec<Rec>> = Mutex::new(Vec::new());

struct Mine(Rec);

impl Drop for Mine {
    fn drop(&mut self) {
        if let Some(extra) = self.0.extra() {
            ENDING.set(Some(self.0));
            extra.locals.end();
            ENDING.set(None);
        }
        if self.0.release() {
            self.0.retire();
            reuse(self.0);
        }
    }
}

#[cfg(any(miri, upcall_kernel_threads))]
thread_local! {
    /// The record that `take` returns.
    static ADOPTED: Cell<Option<Rec>> = const { Cell::new(None) };
}

thread_local! {
    static MINE: Mine = Mine(take());
    /// The record while `MINE` is dropped: the thread's own values may still need it.
    static ENDING: Cell<Option<Rec>> = const { Cell::new(None) };
}

fn free() -> std::sync::MutexGuard<'static, Vec<Rec>> {
    FREE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// A record that belongs to no thread.
pub(crate) fn fresh_record() -> Rec {
    free().pop().unwrap_or_else(|| {
        let new: Rec = Box::leak(Box::new(Record::blank()));
        beacon::add_kernel_record(new);
        new
    })
}

/// A record for a future thread, with room for its packet.
#[cfg(any(miri, upcall_kernel_threads))]
pub(crate) fn record_with_packet(layout: std::alloc::Layout) -> Rec {
    let rec = fresh_record();
    // SAFETY: a packet has a size, since it has a place for the result.
    let packet = unsafe { std::alloc::alloc(layout) };
    if packet.is_null() {
        std::alloc::handle_alloc_error(layout);
    }
    rec.packet.set(packet);
    rec
}

/// Frees the packet, if there is one, of a record that is reused.
#[cfg(any(miri, upcall_kernel_threads))]
fn free_packet(rec: Rec) {
    let packet = rec.packet.replace(std::ptr::null_mut());
    if !packet.is_null() {
        let table = rec.table.get().expect("a packet comes with its table");
        // SAFETY: `record_with_packet` allocated it with this layout; closure and result are gone,
        // and no reader is left.
        unsafe { std::alloc::dealloc(packet, table.layout) };
    }
}

/// Makes `rec` the record of the calling kernel thread, which has none yet.
#[cfg(any(miri, upcall_kernel_threads))]
pub(crate) fn adopt(rec: Rec) {
    ADOPTED.set(Some(rec));
    assert!(std::ptr::eq(mine(), rec), "a kernel thread adopts a record before it blocks");
}

fn take() -> Rec {
    #[cfg(any(miri, upcall_kernel_threads))]
    if let Some(rec) = ADOPTED.take() {
        return rec;
    }
    let rec = fresh_record();
    rec.word.store(REF, Ordering::Relaxed);
    rec.token.store(0, Ordering::Relaxed);
    rec.id.set(number::draw());
    if let Some(name) = std::thread::current().name() {
        rec.extra_or_new(|| Extra::named(name.into()));
    }
    rec
}

/// Reuses a kernel thread's record whose last reference is gone.
pub(crate) fn reuse(rec: Rec) {
    #[cfg(any(miri, upcall_kernel_threads))]
    free_packet(rec);
    free().push(rec);
}

/// The record of the calling kernel thread.
pub(crate) fn mine() -> Rec {
    MINE.try_with(|mine| mine.0).unwrap_or_else(|_| {
        // The thread's thread-locals are being dropped, and one of them waits. A record taken here
        // is never given back.
        ENDING.get().unwrap_or_else(|| {
            let rec = take();
            ENDING.set(Some(rec));
            rec
        })
    })
}

pub(crate) fn wake(rec: Rec) {
    rec.futex.word.store(WOKEN, Ordering::Release);
    rec.futex.wake();
}
