//! What a null message costs a member in C and in Python, compared to one in Rust. Each language
//! runs alone (a send, a poll of the null handler), and then as a pair of processes that poll (one
//! way). They take turns, so that all see the same machine. Next to each pair is the round-trip
//! time of a cache line between the same two processors.
//!
//! `messages LIBRARY [PACKAGE]`: the shared library of C, and the folder of Python's package with
//! its engine.
#![forbid(unsafe_code)]

use std::cell::Cell;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use upcall::Pacing;
use upcall::message::{GroupBuilder, Handlers};

const BATCH: u64 = 1000;
const ROUNDS: usize = 200;
const PINGS: u64 = 100_000;
const TURNS: usize = 7;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[1..] {
        ["line", rank] => line(rank == "0"),
        [name, size, rank] => member(name, size.parse()?, rank.parse()?),
        [library] => measure(Path::new(library), None),
        [library, package] => measure(Path::new(library), Some(Path::new(package))),
        _ => Err("give the shared library, and the folder of the package for Python".into()),
    }
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn member(name: &str, size: usize, rank: usize) -> Result<(), Box<dyn Error>> {
    let taken = Rc::new(Cell::new(0_u64));
    let (mut handlers, here) = (Handlers::new(), taken.clone());
    let null = handlers.kind::<()>("null");
    handlers.on(null, move |_, _, ()| here.set(here.get() + 1));
    let group = GroupBuilder::new(name, size).rank(rank).pacing(Pacing::Poll).join(handlers)?;
    let take = |until: u64| {
        while taken.get() < until {
            group.poll();
        }
    };
    if size == 1 {
        let (mut sends, mut polls) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let start = Instant::now();
            for _ in 0..BATCH {
                group.send(0, null, &())?;
            }
            let middle = Instant::now();
            take(taken.get() + BATCH);
            sends.push((middle - start).as_nanos() as f64 / BATCH as f64);
            polls.push(middle.elapsed().as_nanos() as f64 / BATCH as f64);
        }
        println!("send {:.1} poll {:.1}", median(&mut sends), median(&mut polls));
        return Ok(());
    }
    let mut start = Instant::now();
    for number in 1..=PINGS {
        if number == PINGS / 2 {
            start = Instant::now();
        }
        if rank == 0 {
            group.send(1, null, &())?;
        }
        take(number);
        if rank == 1 {
            group.send(0, null, &())?;
        }
    }
    if rank == 0 {
        println!("one way {:.1}", start.elapsed().as_nanos() as f64 / PINGS as f64);
    }
    Ok(())
}

/// The round-trip time of a cache line between two threads, each on a processor of its own.
fn line(_: bool) -> Result<(), Box<dyn Error>> {
    static LINE: AtomicU64 = AtomicU64::new(0);
    let follow = |odd: u64| {
        for number in (odd..2 * PINGS).step_by(2) {
            while LINE.load(Ordering::Acquire) != number {
                std::hint::spin_loop();
            }
            LINE.store(number + 1, Ordering::Release);
        }
    };
    // Each thread pins itself, by its own number.
    let pin = |processor: &str| {
        let thread = std::fs::read_link("/proc/thread-self")?;
        let number = thread.file_name().unwrap_or_default().to_owned();
        Command::new("taskset")
            .args(["-pc", processor])
            .arg(number)
            .stdout(Stdio::null())
            .status()
            .map(drop)
    };
    let ready = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        scope.spawn(|| (pin("1").ok(), ready.wait(), follow(1)));
        pin("0").ok();
        ready.wait();
        let start = Instant::now();
        follow(0);
        println!("line {:.1}", start.elapsed().as_nanos() as f64 / PINGS as f64);
    });
    Ok(())
}

fn measure(library: &Path, package: Option<&Path>) -> Result<(), Box<dyn Error>> {
    let (folder, here) = (tempfile::tempdir()?, Path::new(env!("CARGO_MANIFEST_DIR")));
    for name in ["libupcall.so", "libupcall.so.0"] {
        std::os::unix::fs::symlink(library.canonicalize()?, folder.path().join(name))?;
    }
    let c = folder.path().join("messages");
    let mut gcc = Command::new("gcc");
    gcc.args(["-std=gnu11", "-O2", "-I"])
        .arg(here.join("include"))
        .arg(here.join("examples/messages.c"))
        .arg("-o")
        .arg(&c);
    gcc.arg("-L").arg(folder.path()).args(["-lupcall", "-Wl,-rpath"]).arg(folder.path());
    if !gcc.status()?.success() {
        return Err("the program in C cannot be built".into());
    }
    let mut languages: Vec<(&str, Vec<PathBuf>)> =
        vec![("Rust", vec![std::env::current_exe()?]), ("C", vec![c])];
    if package.is_some() {
        languages
            .push(("Python", vec!["python3".into(), here.join("../python/examples/messages.py")]));
    }
    let start = |program: &[PathBuf], arguments: &[&str], processor: &str| {
        let mut command = Command::new("taskset");
        command.args(["-c", processor]).args(program).args(arguments).stdout(Stdio::piped());
        if let Some(package) = package {
            command.env("PYTHONPATH", package);
        }
        command.spawn()
    };
    for turn in 0..TURNS {
        for (language, program) in &languages {
            let name = format!("messages-{}-{turn}-{language}", std::process::id());
            let alone = start(program, &[&name, "1", "0"], "0")?.wait_with_output()?;
            let other = start(program, &[&name, "2", "1"], "1")?;
            let pair = start(program, &[&name, "2", "0"], "0")?.wait_with_output()?;
            other.wait_with_output()?;
            let line = Command::new(std::env::current_exe()?).args(["line", "0"]).output()?;
            let said = |output: &std::process::Output| {
                String::from_utf8_lossy(&output.stdout).trim().to_owned()
            };
            println!(
                "{language}: {}, {}, {} ns there and back",
                said(&alone),
                said(&pair),
                said(&line)
            );
        }
    }
    Ok(())
}
