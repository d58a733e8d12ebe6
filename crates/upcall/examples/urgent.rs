//! The cost of an operation on an object with its home in another process, by each way, compared to
//! a call to a server there, a bare spin lock, and the round trip of a cache line:
//! `cargo run --release -p upcall --example urgent`.
//!
//! This process runs on the first processor that it may use, the other process on the second. The
//! ways take turns, and medians are reported, since the host of a virtual machine moves the
//! processors about.

use std::hint::black_box;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;
use upcall::home::{DataError, Homed, Operation, Operations, Place};
use upcall::{Pacing, Server};
use upcall_os::processor::CpuSet;

upcall::interface!(
    "package example:urgent;
    interface calls {
        null: func();
        add: func(more: u64) -> u64;
    }"
);

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

const TURNS: usize = 9;

/// Counts up.
struct Add;

impl Operation for Add {
    type Of = u64;
    type Args<'a> = u64;
    type Reply = u64;
    const NAME: &'static str = "add";

    fn run(number: Place<'_, u64>, more: u64) -> Result<u64, DataError> {
        number.update(|number| number.wrapping_add(more))
    }
}

/// The same operation by calls.
#[derive(Default)]
struct Answers(AtomicU64);

impl calls::Serve for Answers {
    fn null(&self) {}

    fn add(&self, more: u64) -> u64 {
        let sum = self.0.load(Ordering::Relaxed).wrapping_add(more);
        self.0.store(sum, Ordering::Relaxed);
        sum
    }
}

fn main() -> Outcome<()> {
    let mut words = std::env::args().skip(1);
    match (words.next().as_deref(), words.next()) {
        (Some("home"), Some(name)) => {
            let home = Homed::<u64>::create(&name).with(|_| Ok(()))?;
            let _served = home.serve_in_background(Operations::new().operation::<Add>())?;
            until_told()
        }
        (Some("server"), Some(name)) => {
            let server = Server::new()
                .export(&name, calls::export(Answers::default()))
                .pacing(Pacing::Poll)
                .start()?;
            until_told()?;
            server.stop();
            Ok(())
        }
        _ => measure(),
    }
}

fn until_told() -> Outcome<()> {
    println!("ready");
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// Another process, on the second processor, until this is dropped.
struct Other(Child);

impl Other {
    fn start(what: &str, name: &str, [first, second]: [usize; 2]) -> Outcome<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args([what, name]).stdin(Stdio::piped()).stdout(Stdio::piped());
        CpuSet::only(second).confine()?;
        let child = command.spawn();
        CpuSet::only(first).confine()?;
        let mut other = Self(child?);
        let mut line = String::new();
        BufReader::new(other.0.stdout.take().ok_or("no output")?).read_line(&mut line)?;
        if line.trim() == "ready" {
            Ok(other)
        } else {
            Err(format!("the {what} did not begin").into())
        }
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// Nanoseconds per operation: the median of several batches.
fn time(rounds: u32, mut one: impl FnMut()) -> f64 {
    median((0..11).map(|_| {
        let begun = Instant::now();
        (0..rounds).for_each(|_| one());
        begun.elapsed().as_nanos() as f64 / f64::from(rounds)
    }))
}

fn median(all: impl IntoIterator<Item = f64>) -> f64 {
    let mut all = all.into_iter().collect::<Vec<_>>();
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

/// The round trip of a cache line.
fn line([first, second]: [usize; 2]) -> f64 {
    #[repr(align(128))]
    struct Line(AtomicU64);
    const TRIPS: u64 = 20_000;
    let line = Line(AtomicU64::new(0));
    let goes = |from: u64| {
        for trip in 0..TRIPS {
            while line.0.load(Ordering::Acquire) != 2 * trip + from {}
            line.0.store(2 * trip + from + 1, Ordering::Release);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _ = CpuSet::only(second).confine();
            goes(1);
        });
        let timer = scope.spawn(|| {
            let _ = CpuSet::only(first).confine();
            let begun = Instant::now();
            goes(0);
            begun.elapsed().as_nanos() as f64 / TRIPS as f64
        });
        timer.join().unwrap_or(f64::NAN)
    })
}

const WHAT: [&str; 9] = [
    "line",
    "null call",
    "add call",
    "urgent add",
    "access there",
    "look there",
    "spin lock",
    "access at home",
    "access there, nothing",
];

fn turn(number: usize, cpus: [usize; 2]) -> Outcome<[f64; 9]> {
    let name = |what: &str| format!("urgent-{what}-{}-{number}", std::process::id());
    let line = line(cpus);
    let [null, add] = {
        let _server = Other::start("server", &name("server"), cpus)?;
        let calls = calls::Calls::bind(&name("server"))?;
        calls.set_pacing(Pacing::Poll);
        calls.add(1)?;
        [
            time(20_000, || calls.null().unwrap()),
            time(20_000, || _ = black_box(calls.add(black_box(1)).unwrap())),
        ]
    };
    let _home = Other::start("home", &name("home"), cpus)?;
    let away = Homed::<u64>::find(&name("home"))?;
    away.urgent::<Add>(1)?;
    let urgent = time(20_000, || _ = black_box(away.urgent::<Add>(black_box(1)).unwrap()));
    let access = time(200_000, || _ = black_box(away.perform::<Add>(black_box(1)).unwrap()));
    let look = time(200_000, || _ = black_box(away.read(|number| number.get()).unwrap()));
    let lock = AtomicBool::new(false);
    let spin = time(200_000, || {
        let lock = black_box(&lock);
        while lock.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
            std::hint::spin_loop();
        }
        black_box(());
        lock.store(false, Ordering::Release);
    });
    let own = Homed::<u64>::create(&name("own")).with(|_| Ok(()))?;
    let nothing = |of: &Homed<u64>| {
        let done = of.access(|_| {
            black_box(());
            Ok(())
        });
        done.unwrap();
    };
    let at_home = time(200_000, || nothing(black_box(&own)));
    let there = time(200_000, || nothing(black_box(&away)));
    Ok([line, null, add, urgent, access, look, spin, at_home, there])
}

fn measure() -> Outcome<()> {
    let cpus = CpuSet::allowed()?.iter().take(2).collect::<Vec<_>>();
    let cpus: [usize; 2] = cpus.try_into().map_err(|_| "two processors are needed")?;
    let mut turns = Vec::new();
    println!("ns: {}", WHAT.join(", "));
    for number in 0..TURNS {
        turns.push(turn(number, cpus)?);
        println!("{}", turns[number].map(|ns| format!("{ns:7.1}")).join(" "));
        std::io::stdout().flush()?;
    }
    let of = |at: usize| median(turns.iter().map(|turn| turn[at]));
    let ratio = |at: usize, to: usize| median(turns.iter().map(|turn| turn[at] / turn[to]));
    println!(
        "medians: {}",
        (0..WHAT.len())
            .map(|at| format!("{} {:.1}", WHAT[at], of(at)))
            .collect::<Vec<_>>()
            .join(", ")
    );
    println!(
        "turn by turn: urgent {:.2} × a null call and {:.2} × an add call; an access of nothing \
        {:.2} × a spin lock at home, {:.2} × elsewhere",
        ratio(3, 1),
        ratio(3, 2),
        ratio(7, 6),
        ratio(8, 6)
    );
    Ok(())
}
