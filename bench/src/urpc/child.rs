//! The child's side of the suite `urpc`: what the system has to provide, and the protocol.
//!
//! ```text
//! EXE bench-urpc server --config C,S --waits default|polling --cpus N,… --dir DIR
//! EXE bench-urpc client --config C,S --waits default|polling --cpus N,… --dir DIR
//! EXE bench-urpc part PART SAMPLES
//! ```
//! Each child confines itself to its processors. A server prints `ready` and serves until its
//! standard input ends. A client binds, prints `ready`, and answers each command with one line:
//!
//! | command | answer |
//! |---|---|
//! | `calls THREADS MILLIS` | `{"calls":…,"per_s":…,"latency":{"p50_ns":…,…}}` |
//! | `quit` | none; the client ends |
//!
//! Any command may be answered `{"error":"…"}`. A child that measures a part was confined to one
//! processor by its parent, prints its summary as one line, and ends. A child dies with the
//! harness, however the harness ends.

use std::convert::Infallible;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use rustix::process::{Signal, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};

use super::case::{BATCH, Part};
use super::config::Config;
use crate::child::{Outcome, Ready, answer_lines, exit};
use crate::place;
use crate::stats::{Clock, Summary};
use crate::threads::child::next;

/// How idle virtual processors wait, and where they run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waits {
    /// The system's default. Client and server may use all processors of the configuration, and
    /// place themselves.
    Default,
    /// Idle virtual processors poll continuously, as the paper's do. Each is pinned to its own
    /// processor.
    Polling,
}

impl Waits {
    /// Returns the name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Waits::Default => "default",
            Waits::Polling => "polling",
        }
    }
}

/// Where and how this child runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// C and S.
    pub config: Config,
    /// How virtual processors wait.
    pub waits: Waits,
    /// This side's processors.
    pub cpus: Vec<usize>,
    /// Directory of this pair only. The harness removes it.
    pub dir: PathBuf,
}

/// The finding of T threads that called for a time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Calls {
    /// Number of completed calls of all threads while no single calls were timed.
    pub calls: u64,
    /// Calls per second of all threads: the median over [windows](WINDOW) of that time.
    pub per_s: f64,
    /// Calls as one of the threads saw them, which read the clock after each while the others did
    /// not. The mean is that of the untimed calls: T ÷ `per_s`, since each thread always has one
    /// call outstanding.
    pub latency: Summary,
}

/// Minimum length of a window. Other programs take a processor away for some milliseconds at a
/// time, which affects some windows and not most.
pub const WINDOW: Duration = Duration::from_millis(1);

/// The system under test.
pub trait System {
    /// The client.
    type Client: ClientSide;

    /// Serves null calls by the configuration's number of virtual processors, but at least one.
    /// Ends when [`crate::child::Stop`] requests it.
    ///
    /// # Errors
    /// The server cannot run.
    fn serve(setting: &Setting, ready: Ready) -> Outcome<()>;

    /// Binds to that server.
    ///
    /// # Errors
    /// The client cannot bind.
    fn connect(setting: &Setting) -> Outcome<Self::Client>;

    /// Measures a part of a call: fills `samples` with nanoseconds of [`BATCH`] operations each.
    /// The process is confined to one processor.
    ///
    /// # Errors
    /// The measurement failed.
    fn part(part: Part, clock: &Clock, samples: &mut [f64]) -> Outcome<()>;
}

/// A client that makes calls.
pub trait ClientSide {
    /// Makes null calls by `threads` user-level threads on the client's processors: for about
    /// `time` without reading the clock, and for as long while one thread reads it.
    ///
    /// # Errors
    /// A call failed.
    fn calls(&mut self, threads: usize, time: Duration, clock: &Clock) -> Outcome<Calls>;
}

/// Runs this process as a child of the harness. `args` are the arguments after `bench-urpc`. Errors
/// go to standard error, which the harness shows.
pub fn child_main<S: System>(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    exit(run::<S>(args))
}

const USAGE: &str = "bench-urpc server|client --config C,S --waits default|polling --cpus N,… \
    --dir DIR, or bench-urpc part PART SAMPLES";

fn run<S: System>(args: impl IntoIterator<Item = OsString>) -> Outcome<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let args: Vec<String> =
        args.into_iter().map(|arg| arg.to_string_lossy().into_owned()).collect();
    match &args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["part", part, samples] => {
            let part = Part::ALL.into_iter().find(|known| known.name() == *part);
            let part = part.ok_or_else(|| format!("no such part; usage: {USAGE}"))?;
            measure_part::<S>(
                part,
                samples.parse().map_err(|_| format!("{samples}: not a number; usage: {USAGE}"))?,
            )
        }
        [
            role @ ("server" | "client"),
            "--config",
            config,
            "--waits",
            waits,
            "--cpus",
            cpus,
            "--dir",
            dir,
        ] => {
            let cpus = place::numbers(cpus)
                .ok_or_else(|| format!("--cpus is not a list of numbers; usage: {USAGE}"))?;
            let waits =
                [Waits::Default, Waits::Polling].into_iter().find(|known| known.name() == *waits);
            let waits = waits.ok_or_else(|| format!("no such way to wait; usage: {USAGE}"))?;
            let setting = Setting { config: config.parse()?, waits, cpus, dir: PathBuf::from(dir) };
            // This also applies to its other threads (the clerk, late replies).
            place::confine(&setting.cpus)?;
            match *role {
                "server" => S::serve(&setting, Ready::new()),
                _ => client::<S>(&setting),
            }
        }
        _ => Err(format!("usage: {USAGE}").into()),
    }
}

fn client<S: System>(setting: &Setting) -> Outcome<()> {
    let (mut client, clock) = (S::connect(setting)?, Clock::calibrated());
    answer_lines(|line| command(&mut client, &clock, line))
}

fn command(client: &mut impl ClientSide, clock: &Clock, line: &str) -> Outcome<String> {
    match line.split_ascii_whitespace().collect::<Vec<_>>()[..] {
        ["calls", threads, millis] => {
            let (threads, time) = (threads.parse()?, Duration::from_millis(millis.parse()?));
            if threads == 0 {
                return Err("no thread makes no call".into());
            }
            Ok(serde_json::to_string(&client.calls(threads, time, clock)?)?)
        }
        _ => Err("not a command".into()),
    }
}

fn measure_part<S: System>(part: Part, count: usize) -> Outcome<()> {
    // The first tenth warms up.
    let warm_up = count.div_ceil(10);
    let mut samples = vec![0.0; warm_up + count];
    let clock = Clock::calibrated();
    match part {
        Part::ProcedureCall => procedure_calls(&clock, &mut samples)?,
        part => S::part(part, &clock, &mut samples)?,
    }
    let each: Vec<f64> = samples[warm_up..].iter().map(|ns| ns / BATCH as f64).collect();
    println!("{}", serde_json::to_string(&Summary::of_nanoseconds(each))?);
    Ok(())
}

fn procedure_calls(clock: &Clock, samples: &mut [f64]) -> Outcome<()> {
    let (mut ticks, mut count) = (vec![1; samples.len()], 0);
    clock.time_each(&mut ticks, || {
        (0..BATCH).for_each(|_| count = next(count));
        Ok::<(), Infallible>(())
    })?;
    samples.iter_mut().zip(ticks).for_each(|(sample, ticks)| *sample = clock.ns(ticks));
    if count == (BATCH * samples.len()) as u64 { Ok(()) } else { Err("calls are missing".into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Direct;

    impl ClientSide for Direct {
        fn calls(&mut self, threads: usize, time: Duration, _: &Clock) -> Outcome<Calls> {
            let per_s = threads as f64 / time.as_secs_f64();
            Ok(Calls {
                calls: threads as u64,
                per_s,
                latency: Summary::of_nanoseconds(vec![1.0, 3.0]),
            })
        }
    }

    #[test]
    fn commands_are_answered() {
        let clock = Clock::calibrated();
        let answer = command(&mut Direct, &clock, "calls 3 2").unwrap();
        let found: Calls = serde_json::from_str(&answer).unwrap();
        assert_eq!((found.calls, found.per_s), (3, 1500.0));
        for line in ["", "calls", "calls 1", "calls 0 1", "calls x 1", "stop"] {
            assert!(command(&mut Direct, &clock, line).is_err(), "{line}");
        }
    }

    struct Nothing;

    impl System for Nothing {
        type Client = Direct;
        fn serve(_: &Setting, _: Ready) -> Outcome<()> {
            Ok(())
        }
        fn connect(_: &Setting) -> Outcome<Direct> {
            Ok(Direct)
        }
        fn part(_: Part, _: &Clock, samples: &mut [f64]) -> Outcome<()> {
            samples.fill(BATCH as f64);
            Ok(())
        }
    }

    #[test]
    fn mistakes_are_told() {
        let told = |line: &str| {
            run::<Nothing>(line.split(' ').map(OsString::from)).unwrap_err().to_string()
        };
        assert!(told("queen").contains("usage: bench-urpc"));
        assert!(told("part tail 1").contains("no such part"));
        assert!(told("part send-client x").contains("not a number"));
        assert!(
            told("server --config 9,9 --waits default --cpus 0 --dir d")
                .contains("no configuration `9,9`")
        );
        assert!(
            told("server --config 1,1 --waits idly --cpus 0 --dir d")
                .contains("no such way to wait")
        );
        assert!(
            told("server --config 1,1 --waits default --cpus a --dir d")
                .contains("--cpus is not a list")
        );
    }
}
