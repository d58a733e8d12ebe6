//! Simulates a processor for each recorded thread, on a machine with fewer.
//!
//! On two processors, four polling threads have to wait for each other for milliseconds, and then
//! do what they would never do between two calls: look around, help each other, publish where they
//! are. So they take turns: each runs for some cycles of its own time, then the next, as if they
//! ran side by side at the same speed. A thread's own time is the time between two hooks, less the
//! usual time, which is the hook's, plus a cycle for the access. A turn ends at an access to
//! memory, and the next begins where the thread's last one ended.

use crate::hooks::{MOST, TURNS};
use std::arch::x86_64::_rdtsc;
use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::time::{Duration, Instant};
use upcall_os::processor::CpuSet;

/// Length of a turn, in cycles: about the time for a line to move from one processor to another.
const TURN: u64 = 200;

/// Maximum own time counted between two hooks, in cycles. A longer time was not the thread's own:
/// the kernel had the processor, or the cache held another thread's data.
const LONGEST: u64 = 500;

/// Time without an access to memory after which a processor is passed over.
const PATIENCE: Duration = Duration::from_millis(100);

/// The processor whose turn it is.
static WHOSE: AtomicUsize = AtomicUsize::new(0);

/// Number of turns that were passed over.
static PASSED_OVER: AtomicU64 = AtomicU64::new(0);

/// One processor's own time. Only that processor writes.
pub struct Clock {
    /// The time when it left its last hook.
    left: AtomicU64,
    /// The median time between two hooks.
    usual: AtomicU64,
    /// Own time since its turn began.
    ran: AtomicU64,
}

fn now() -> u64 {
    // SAFETY: every x86-64 processor has the instruction, and Linux lets programs use it.
    unsafe { _rdtsc() }
}

impl Clock {
    pub const fn new() -> Self {
        Self { left: AtomicU64::new(0), usual: AtomicU64::new(0), ran: AtomicU64::new(0) }
    }

    /// Called when `processor`, the clock's owner, enters a hook. Waits for its next turn if this
    /// turn is over.
    pub fn tick(&self, processor: usize) {
        let passed = now().wrapping_sub(self.left.load(Relaxed));
        let usual = self.usual.load(Relaxed);
        self.usual.store(if passed > usual { usual + 1 } else { usual.saturating_sub(1) }, Relaxed);
        let ran = self.ran.load(Relaxed) + 1 + passed.saturating_sub(usual).min(LONGEST);
        self.ran.store(ran, Relaxed);
        if WHOSE.load(Relaxed) != processor || ran >= TURN {
            self.ran.store(0, Relaxed);
            pass_on(processor);
        }
    }

    /// Called when the processor leaves the hook.
    pub fn leave(&self) {
        self.left.store(now(), Relaxed);
    }
}

/// Ends the turn of `processor`, if it is its turn, and waits for the next.
fn pass_on(processor: usize) {
    let _ = WHOSE.compare_exchange(processor, (processor + 1) % MOST, SeqCst, Relaxed);
    let (mut whose, mut since, mut looks) = (WHOSE.load(SeqCst), Instant::now(), 0_u32);
    while whose != processor && TURNS.load(Relaxed) {
        std::thread::yield_now();
        looks = looks.wrapping_add(1);
        let last = std::mem::replace(&mut whose, WHOSE.load(SeqCst));
        if last != whose {
            (since, looks) = (Instant::now(), 0);
        } else if looks.is_multiple_of(64) && since.elapsed() > PATIENCE {
            if WHOSE.compare_exchange(whose, (whose + 1) % MOST, SeqCst, Relaxed).is_ok() {
                PASSED_OVER.fetch_add(1, Relaxed);
            }
            since = Instant::now();
        }
    }
}

thread_local! {
    /// The processors on which the calling kernel thread could run before it took turns.
    static BEFORE: RefCell<Option<CpuSet>> = const { RefCell::new(None) };
}

/// Confines the calling kernel thread to one processor. Turns are passed on much faster there than
/// between two.
pub fn share_one_processor() {
    let before = CpuSet::allowed().expect("the processors");
    before
        .iter()
        .next()
        .map(CpuSet::only)
        .expect("one processor")
        .confine()
        .expect("one processor");
    BEFORE.set(Some(before));
}

/// Undoes `share_one_processor` for the calling kernel thread.
pub fn share_no_more() {
    BEFORE
        .take()
        .into_iter()
        .for_each(|before| before.confine().expect("the processors of before"));
}

/// Takes the number of turns that were passed over since the last call.
pub fn take_passed_over() -> u64 {
    PASSED_OVER.swap(0, Relaxed)
}
