//! Kernel threads that are not virtual processors, and yet wait, join and lock: each blocks itself by futex.
//!
//! Such a thread has a record like any other, taken when it first blocks and given back when it ends. Records are never
//! freed (see `record`), so a late waker touches no freed memory.

use crate::record::{REF, Rec, Record};
use crate::shared::draw_numbers;
use crate::waiter::{Ticket, Waited, Waiter, handed_back};
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::Instant;

const WAITING: u32 = 0;
const WOKEN: u32 = 1;

static FREE: Mutex<Vec<Rec>> = Mutex::new(Vec::new());

struct Mine(Rec);

impl Drop for Mine {
    fn drop(&mut self) {
        if self.0.release() {
            reuse(self.0);
        }
    }
}

thread_local! {
    static MINE: Mine = Mine(take());
}

fn free() -> std::sync::MutexGuard<'static, Vec<Rec>> {
    FREE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn take() -> Rec {
    let rec = free().pop().unwrap_or_else(|| Box::leak(Box::new(Record::blank())));
    rec.word.store(REF, Ordering::Relaxed);
    rec.token.store(0, Ordering::Relaxed);
    rec.id.set(draw_numbers(1));
    let name = std::thread::current().name().map(Box::from);
    // SAFETY: the record was just made or taken from the free list, so nobody else reads its name.
    unsafe { rec.name.get().write(name) };
    rec
}

/// The last reference to a kernel thread's record is gone.
pub(crate) fn reuse(rec: Rec) {
    free().push(rec);
}

/// The record of the calling kernel thread.
pub(crate) fn mine() -> Rec {
    MINE.with(|mine| mine.0)
}

pub(crate) fn wake(rec: Rec) {
    rec.futex.word.store(WOKEN, Ordering::Release);
    rec.futex.wake();
}

fn wait(me: Rec) {
    while me.futex.word.load(Ordering::Acquire) == WAITING {
        me.futex.wait(WAITING, None);
    }
    me.blocking.set(false);
}

#[cold]
pub(crate) fn block_unless(publish: impl FnOnce(Waiter) -> Option<Waiter>) {
    let me = mine();
    me.futex.word.store(WAITING, Ordering::Relaxed);
    if !handed_back(me, publish) {
        wait(me);
    }
}

#[cold]
pub(crate) fn block_until(deadline: Option<Instant>, publish: impl FnOnce(Ticket)) -> Waited {
    let me = mine();
    let number = draw_numbers(1);
    me.futex.word.store(WAITING, Ordering::Relaxed);
    me.ticket.store(number, Ordering::Release);
    let ticket = Ticket { rec: me, number };
    handed_back(me, |waiter| {
        waiter.into_record();
        publish(ticket);
        None
    });
    while let Some(at) = deadline
        && me.futex.word.load(Ordering::Acquire) == WAITING
    {
        if Instant::now() >= at {
            if ticket.draw() {
                me.blocking.set(false);
                return Waited::TimedOut;
            }
            break;
        }
        me.futex.wait(WAITING, deadline);
    }
    wait(me);
    Waited::Woken
}
