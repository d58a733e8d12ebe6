//! Threads in every state, waiting for everything a thread can wait for, to be inspected.
//!
//! Run `cargo run -p upcall-thread --example waiting [MORE]` in one terminal, and
//! `upcall threads PID` in another.
//!
//! The program prints "ready", ends when it reads a line or the end of its input, and then prints
//! how many threads have ended. `MORE` threads wait for one more mutex.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use upcall_thread as thread;
use upcall_thread::{Builder, Condvar, JoinHandle, Mutex, Processors, Semaphore, mpsc};

static HELD: Mutex<u32> = Mutex::new(0);
static CROWDED: Mutex<u32> = Mutex::new(0);
static OPEN: Mutex<bool> = Mutex::new(false);
static OPENED: Condvar = Condvar::new();
static PERMITS: Semaphore = Semaphore::new(0);
static COMPUTING: AtomicBool = AtomicBool::new(false);
static STOP: AtomicBool = AtomicBool::new(false);

fn stopped() -> bool {
    STOP.load(Ordering::Relaxed)
}

#[inline(never)]
fn waits_for_mutex(mutex: &Mutex<u32>) {
    *mutex.lock() += 1;
}

#[inline(never)]
fn waits_for_condition() {
    let mut open = OPEN.lock();
    while !*open {
        open = OPENED.wait(open);
    }
}

#[inline(never)]
fn waits_for_channel(receiver: &mpsc::Receiver<u32>) {
    assert_eq!(receiver.recv(), Ok(1));
}

#[inline(never)]
fn waits_for_permit() {
    drop(PERMITS.acquire());
}

#[inline(never)]
fn waits_for_thread(other: JoinHandle<()>) {
    other.join().expect("no panic");
}

#[inline(never)]
fn waits_for_work() {
    thread::blocking(|| {
        while !stopped() {
            std::thread::sleep(Duration::from_millis(5));
        }
    });
}

#[inline(never)]
fn sleeps() {
    while !stopped() {
        thread::sleep(Duration::from_millis(5));
    }
}

#[inline(never)]
fn parks() {
    while !stopped() {
        thread::park();
    }
}

#[inline(never)]
fn gives_way() {
    while !stopped() {
        thread::yield_now();
    }
}

/// Occupies its processor: nothing else runs there in the meantime.
#[inline(never)]
fn computes() {
    COMPUTING.store(true, Ordering::Relaxed);
    while !stopped() {
        std::hint::spin_loop();
    }
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
    Builder::new().name(name).spawn(body).expect("memory for a stack")
}

fn run(more: usize) -> usize {
    let (sender, receiver) = mpsc::channel();
    let (held, crowded) = (HELD.lock(), CROWDED.lock());
    let parked = spawn("parked", parks);
    let to_unpark = parked.thread();
    let mut threads = vec![
        spawn("mutex", || waits_for_mutex(&HELD)),
        spawn("condition", waits_for_condition),
        spawn("channel", move || waits_for_channel(&receiver)),
        spawn("permit", waits_for_permit),
        spawn("join", move || waits_for_thread(parked)),
        spawn("work", waits_for_work),
        spawn("asleep", sleeps),
        spawn("ready", gives_way),
        spawn("ended", || ()),
    ];
    threads.extend((0..more).map(|_| thread::spawn(|| waits_for_mutex(&CROWDED))));
    // Each thread runs until it waits.
    while threads.iter().filter(|thread| thread.is_finished()).count() == 0 {
        thread::yield_now();
    }
    thread::sleep(Duration::from_millis(20));
    let computing = spawn("computing", computes);
    threads.push(spawn("not started", || ()));
    computing.join().expect("no panic");

    drop((held, crowded));
    *OPEN.lock() = true;
    OPENED.notify_all();
    sender.send(1).expect("the receiver waits");
    PERMITS.release(1);
    to_unpark.unpark();
    let count = threads.len();
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    count
}

/// Runs the whole example. When a line is read, the threads stop waiting.
pub fn show(more: usize) {
    // A kernel thread of its own, since the virtual processor is busy.
    let outside = std::thread::spawn(|| {
        while !COMPUTING.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
        let kernel = std::thread::Builder::new()
            .name("kernel".into())
            .spawn(|| waits_for_mutex(&HELD))
            .expect("a kernel thread");
        std::thread::sleep(Duration::from_millis(20));
        println!("ready");
        let _ = std::io::stdin().read_line(&mut String::new());
        STOP.store(true, Ordering::Relaxed);
        kernel.join().expect("no panic");
    });
    let ended = Processors::new().count(1).run(|| run(more)).expect("a virtual processor");
    outside.join().expect("no panic");
    println!("{ended} threads have ended");
}

fn main() {
    show(std::env::args().nth(1).map_or(0, |count| count.parse().expect("a number of threads")));
}
