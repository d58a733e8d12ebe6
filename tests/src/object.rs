//! The server's side of the interfaces: objects that are counted, marks around work.

use crate::interfaces::{latch, small, trial};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};
use upcall::Bytes;
use upcall::thread::{Condvar, Mutex};

/// Counts and settings of a server.
#[derive(Debug, Default)]
pub struct Counts {
    made: AtomicU64,
    dropped: AtomicU64,
    begun: AtomicU64,
    ended: AtomicU64,
    computed: AtomicU64,
    wary: AtomicBool,
    mortal: AtomicBool,
}

impl Counts {
    /// Permits clients from now on to forbid the serving thread all system calls.
    pub fn be_mortal(&self) {
        self.mortal.store(true, SeqCst);
    }

    /// Caps from now on what calls request, for servers with clients that request anything.
    pub fn be_wary(&self) {
        self.wary.store(true, SeqCst);
    }

    fn bounded<T: Into<u64>>(&self, asked: T, most: u64) -> u64 {
        if self.wary.load(SeqCst) { asked.into() % (most + 1) } else { asked.into() }
    }

    fn time(&self, ms: u32) -> Duration {
        Duration::from_millis(self.bounded(ms, 2))
    }
}

/// Keeps the processor for `time`.
pub(crate) fn compute(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {}
}

/// The implementation.
#[derive(Debug, Default)]
pub struct Object(pub Arc<Counts>);

struct Thing {
    number: u64,
    counts: Arc<Counts>,
    end: End,
}

/// How the drop of an object ends.
#[derive(Debug, Clone, Copy)]
enum End {
    Well,
    /// With a panic.
    Panic,
    /// After this many milliseconds.
    Late(u32),
}

impl Object {
    fn thing(&self, number: u64, end: End) -> Arc<dyn trial::ServeThing> {
        self.0.made.fetch_add(1, SeqCst);
        Arc::new(Thing { number, counts: self.0.clone(), end })
    }
}

impl trial::ServeThing for Thing {
    fn number(&self) -> u64 {
        self.number
    }
}

impl Drop for Thing {
    fn drop(&mut self) {
        if let End::Late(ms) = self.end {
            upcall::thread::sleep(Duration::from_millis(ms.into()));
        }
        self.counts.dropped.fetch_add(1, SeqCst);
        assert!(!matches!(self.end, End::Panic), "brittle");
    }
}

impl trial::Serve for Object {
    fn null(&self) {}
    fn forbid_kernel(&self) {
        // The filter ends the process at the next system call, so a hostile client must not install
        // it.
        assert!(self.0.mortal.load(SeqCst), "only of a server that was started for it");
        crate::without_kernel::forbid_here().expect("a filter for this thread");
    }
    fn add(&self, a: u32, b: u32) -> u32 {
        a.wrapping_add(b)
    }
    fn echo(&self, text: &str) -> String {
        text.into()
    }
    fn reverse(&self, data: Bytes<'_>) -> Vec<u8> {
        let mut bytes = data.to_vec();
        bytes.reverse();
        bytes
    }
    fn sum(&self, data: Bytes<'_>) -> u64 {
        sum(data)
    }
    fn length(&self, data: Bytes<'_>) -> u64 {
        data.len() as u64
    }
    fn total(&self, numbers: &[u64]) -> u64 {
        numbers.iter().fold(0, |sum, number| sum.wrapping_add(*number))
    }
    fn make(&self, len: u64, value: u8) -> Vec<u8> {
        vec![value; self.0.bounded(len, 300_000) as usize]
    }
    fn open(&self, number: u64) -> Arc<dyn trial::ServeThing> {
        self.thing(number, End::Well)
    }
    fn open_brittle(&self) -> Arc<dyn trial::ServeThing> {
        self.thing(0, End::Panic)
    }
    fn things(&self) -> (u64, u64) {
        (self.0.made.load(SeqCst), self.0.dropped.load(SeqCst))
    }
    fn nap(&self, ms: u32) {
        upcall::thread::sleep(self.0.time(ms));
    }
    fn work(&self, ms: u32) {
        self.0.begun.fetch_add(1, SeqCst);
        upcall::thread::sleep(self.0.time(ms));
        self.0.ended.fetch_add(1, SeqCst);
    }
    fn work_aside(&self, ms: u32) {
        let (counts, time) = (self.0.clone(), self.0.time(ms));
        counts.begun.fetch_add(1, SeqCst);
        drop(upcall::thread::spawn(move || {
            upcall::thread::sleep(time);
            counts.ended.fetch_add(1, SeqCst);
        }));
    }
    fn compute(&self, ms: u32) -> (u64, u64) {
        let number = self.0.computed.fetch_add(1, SeqCst);
        compute(Duration::from_millis(self.0.bounded(ms, 0)));
        (number, upcall_os::processor::current() as u64)
    }
    fn marks(&self) -> (u64, u64) {
        (self.0.begun.load(SeqCst), self.0.ended.load(SeqCst))
    }
    fn fail(&self, text: &str) {
        panic!("{text}")
    }
    fn limited(&self, _text: &str, _numbers: &[u32]) {}
    fn open_slow(&self, ms: u32) -> Arc<dyn trial::ServeThing> {
        self.thing(0, End::Late(self.0.time(ms).as_millis() as u32))
    }
}

impl small::Serve for Object {
    fn add(&self, a: u32, b: u32) -> u32 {
        a.wrapping_add(b)
    }
}

/// Holds calls until they are released.
#[derive(Default)]
pub struct Latch {
    held: Mutex<Held>,
    changed: Condvar,
    /// If there is a gate, handlers block their kernel threads at it.
    blocked: Option<Gate>,
}

/// A gate at which kernel threads wait: the number of threads that may leave.
#[derive(Clone, Debug, Default)]
pub struct Gate(std::sync::Arc<(std::sync::Mutex<u64>, std::sync::Condvar)>);

impl Gate {
    fn pass(&self) {
        let (may_leave, changed) = &*self.0;
        let waiting = may_leave.lock().expect("no panic with the lock");
        let left = changed.wait_while(waiting, |may_leave| *may_leave == 0);
        *left.expect("no panic with the lock") -= 1;
    }

    /// Lets `count` threads leave.
    ///
    /// # Panics
    /// If a thread panicked with the lock.
    pub fn let_out(&self, count: u64) {
        let (may_leave, changed) = &*self.0;
        *may_leave.lock().expect("no panic with the lock") += count;
        changed.notify_all();
    }
}

#[derive(Default)]
struct Held {
    came_in: u64,
    newest: u64,
    inside: u64,
    may_leave: u64,
}

impl std::fmt::Debug for Latch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Latch")
    }
}

impl Latch {
    /// Creates a latch whose handlers block their kernel thread at `gate`.
    pub fn that_blocks(gate: Gate) -> Self {
        Self { blocked: Some(gate), ..Self::default() }
    }

    fn come_in(&self, newest: u64) {
        let mut held = self.held.lock();
        held.came_in += 1;
        held.newest = newest;
        held.inside += 1;
        if let Some(gate) = &self.blocked {
            drop(held);
            gate.pass();
            self.held.lock().inside -= 1;
            return;
        }
        held = self.changed.wait_while(held, |held| held.may_leave == 0);
        held.may_leave -= 1;
        held.inside -= 1;
    }
}

impl latch::Serve for Latch {
    fn null(&self) {}
    fn length(&self, data: Bytes<'_>) -> u64 {
        data.len() as u64
    }
    fn echo(&self, text: &str) -> String {
        text.into()
    }
    fn hold(&self, data: Bytes<'_>) {
        self.come_in(data.len() as u64);
    }
    fn stay(&self) {
        self.come_in(0);
    }
    fn came_in(&self) -> (u64, u64) {
        let held = self.held.lock();
        (held.came_in, held.newest)
    }
    fn inside(&self) -> u64 {
        self.held.lock().inside
    }
    fn let_out(&self, count: u64) {
        if let Some(gate) = &self.blocked {
            return gate.let_out(count);
        }
        self.held.lock().may_leave += count;
        self.changed.notify_all();
    }
}

impl crate::interfaces::other::other::Serve for Object {
    fn add(&self, a: u32, b: u32) -> u32 {
        a.wrapping_add(b)
    }
}

/// The sum of the first word of every page and of the last bytes: enough to see whether the right
/// bytes arrived, and fast without optimisation too.
pub fn sum(data: Bytes<'_>) -> u64 {
    let word = |at: usize| {
        let mut word = [0; 8];
        let len = 8.min(data.len() - at);
        data.part(at, len).and_then(|part| part.copy_to(&mut word[..len]));
        u64::from_le_bytes(word)
    };
    let pages = (0..data.len())
        .step_by(4096)
        .fold(data.len() as u64, |sum, at| sum.wrapping_mul(31).wrapping_add(word(at)));
    pages.wrapping_add(word(data.len().saturating_sub(8)))
}
