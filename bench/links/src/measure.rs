//! Times of calls, and the processor time that they take.

use std::time::{Duration, Instant};

/// An error, each of which ends the trial.
pub type Failure = Box<dyn std::error::Error>;
pub type Outcome = Result<(), Failure>;

/// Length of the argument of a null call, in bytes.
pub const SMALL: usize = 64;
/// Length of a large argument, in bytes.
pub const LARGE: usize = 1 << 20;
/// Length of a reply, in bytes.
pub const REPLY: usize = 64;
/// Number of null calls for each call with a large argument.
pub const FEWER: usize = 50;

/// A request: the length of its argument, and the argument.
pub fn request(len: usize) -> Vec<u8> {
    let mut request = (len as u32).to_le_bytes().to_vec();
    request.resize(4 + len, 7);
    request
}

/// The times of a series of calls. The first calls, a tenth of them all, do not count.
pub struct Times {
    untimed: usize,
    times: Vec<Duration>,
    cpu: u64,
}

impl Times {
    pub fn of(calls: usize) -> Self {
        Self { untimed: calls / 10 + 1, times: Vec::with_capacity(calls), cpu: 0 }
    }

    /// Number of calls to make, with those that do not count.
    pub fn calls(&self) -> usize {
        self.untimed + self.times.capacity()
    }

    /// Notes a call that began at `began`, and has ended now.
    pub fn note(&mut self, began: Instant) {
        if self.untimed > 0 {
            self.untimed -= 1;
            self.cpu = cpu();
        } else {
            self.times.push(began.elapsed());
        }
    }

    /// Prints a line about the calls that were noted.
    pub fn print(mut self, what: &str) {
        let spent = cpu() - self.cpu;
        self.times.sort_unstable();
        let calls = self.times.len();
        let at = |part: usize| self.times[calls * part / 100].as_secs_f64() * 1e6;
        println!(
            "{what}: {calls} calls, p50 {:.1} us, p99 {:.1} us, CPU {:.1} us a call",
            at(50),
            at(99),
            spent as f64 / 1e3 / calls as f64,
        );
    }
}

/// Makes one call after another, and prints their times.
pub fn measure(what: &str, calls: usize, mut call: impl FnMut()) {
    let mut times = Times::of(calls);
    for _ in 0..times.calls() {
        let began = Instant::now();
        call();
        times.note(began);
    }
    times.print(what);
}

/// The processor time of all threads of this process, in nanoseconds.
fn cpu() -> u64 {
    let threads = std::fs::read_dir("/proc/self/task").expect("the threads of this process");
    let of_thread = |thread: std::io::Result<std::fs::DirEntry>| {
        let text = std::fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<u64>().ok()
    };
    threads.filter_map(of_thread).sum()
}
