//! Measures a parked null call between two users beside the same call within one user.
//!
//! A caller may not move the threads of another user, so the server parks near its caller by itself
//! (`upcall_sched::poller`). Both pairs of processes take turns, round by round, in an order that
//! changes, and each turn has its own processes. The ratio is the median, over the rounds, of two
//! users' time by one user's time in the same round.
#![forbid(unsafe_code)]

use std::error::Error;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use upcall::{Pacing, Server, policy};
use upcall_os::processor::CpuSet;
use upcall_tests::outcome::say;
use upcall_tests::place::{Place, copy_program};

#[allow(missing_docs, reason = "generated; the WIT has the documentation")]
mod interface {
    upcall::interface!(
        r#"
        package upcall:users@1.0.0;

        /// One call.
        interface calls {
            /// Nothing.
            null: func();
        }
        "#
    );
}

use interface::calls;

const HELP: &str = "\
Measures a parked null call between two users beside the same call within one user.

usage: users [OPTIONS]

options:
  --rounds N        rounds; in each, every pair has one turn (20)
  --milliseconds N  length of a turn (200)
  --json FILE       writes the records as JSON; `-` is standard output
  --help            this text

cases:
  null           both sides park at once (the pacing `Sleep`), without a pause between calls
  null-gap-20us, null-gap-200us, null-gap-1ms
                 both sides have the default pacing, with a pause before each call

placements:
  pinned-client  the client on one processor, the server on all
  unpinned       both on all processors

Needs root and `setpriv`, for processes of other users, and two processors.

exit status: 0 measured; 1 not; 2 the arguments make no sense
";

/// Users that need no entry in the system's user database.
const ONE: u32 = 61_001;
const OTHER: u32 = 61_002;

/// Number of calls without a pause between two readings of the clock.
const BATCH: u32 = 16;

/// Each case, and the pause before each call in microseconds.
const CASES: [(&str, u64); 4] =
    [("null", 0), ("null-gap-20us", 20), ("null-gap-200us", 200), ("null-gap-1ms", 1000)];

const PLACEMENTS: [&str; 2] = ["pinned-client", "unpinned"];

/// The parsed arguments.
struct Options {
    rounds: usize,
    milliseconds: u64,
    json: Option<String>,
}

impl Options {
    fn parse(words: &[&str]) -> Result<Self, String> {
        let mut options = Self { rounds: 20, milliseconds: 200, json: None };
        for pair in words.chunks(2) {
            let [word, value] = pair else { return Err(format!("{} takes a value", pair[0])) };
            let number = || match value.parse() {
                Ok(number) if (1..=100_000).contains(&number) => Ok(number),
                _ => Err(format!("{word} takes a number from 1 to 100000, not {value:?}")),
            };
            match *word {
                "--rounds" => options.rounds = number()? as usize,
                "--milliseconds" => options.milliseconds = number()?,
                "--json" => options.json = Some((*value).into()),
                _ => return Err(format!("unknown option {word:?}")),
            }
        }
        Ok(options)
    }
}

/// What the turns of a line have in common.
struct Setting {
    program: &'static str,
    placement: &'static str,
    /// In microseconds.
    pause: u64,
}

struct Answers;

impl calls::Serve for Answers {
    fn null(&self) {}
}

/// Makes calls without a pause park, since by default both sides would poll.
fn pacing(pause: &str) -> Pacing {
    if pause == "0" { Pacing::Sleep } else { Pacing::default() }
}

fn serve(pause: &str) -> Result<(), Box<dyn Error>> {
    let server = Server::new()
        .export("calls", calls::export(Answers))
        .policy(policy::any_user())
        .mode(0o666)
        .pacing(pacing(pause))
        .processors(1);
    let running = server.start()?;
    say(Ok(Vec::new()));
    std::io::stdin().lines().map_while(Result::ok).for_each(drop);
    drop(running);
    Ok(())
}

/// The mean, the median and the 99th percentile of the time of a call, in nanoseconds.
fn call(pause: &str, milliseconds: &str) -> Result<[f64; 3], Box<dyn Error>> {
    let calls = calls::Calls::expect(policy::any_user()).bind("calls")?;
    calls.set_pacing(pacing(pause));
    let (pause, most) =
        (Duration::from_micros(pause.parse()?), Duration::from_millis(milliseconds.parse()?));
    let batch = if pause.is_zero() { BATCH } else { 1 };
    let (begun, mut samples) = (Instant::now(), Vec::new());
    while begun.elapsed() < most {
        if !pause.is_zero() {
            std::thread::sleep(pause);
        }
        let start = Instant::now();
        for _ in 0..batch {
            calls.null()?;
        }
        // The first eighth of the time warms up the caches, and brings the server to the client.
        if begun.elapsed() > most / 8 {
            samples.push(start.elapsed().as_nanos() as f64 / f64::from(batch));
        }
    }
    samples.sort_by(f64::total_cmp);
    let at = |part: f64| samples.get((samples.len() as f64 * part) as usize).copied();
    let mean = samples.iter().sum::<f64>() / samples.len() as f64;
    Ok([Some(mean), at(0.5), at(0.99)].map(|figure| figure.unwrap_or(f64::NAN)))
}

fn as_user(user: u32) -> Vec<String> {
    ["setpriv", &format!("--reuid={user}"), &format!("--regid={user}"), "--clear-groups"]
        .map(String::from)
        .to_vec()
}

/// Runs one turn: a server of user [`ONE`], and a client. Returns the figures of [`call`].
fn turn(setting: &Setting, client: u32, milliseconds: u64) -> [f64; 3] {
    let place = Place::shared(setting.program, ONE);
    let mut server = place.start_by(&as_user(ONE), &format!("role serve {}", setting.pause));
    server.hear().expect_ok("a server's start");
    let all = CpuSet::allowed().expect("where this program may run");
    if setting.placement == PLACEMENTS[0] {
        // The client inherits this affinity.
        let second = all.iter().nth(1).expect("two processors");
        CpuSet::only(second).confine().expect("one processor");
    }
    let words = format!("role call {} {milliseconds}", setting.pause);
    let mut client = place.start_by(&as_user(client), &words);
    all.confine().expect("all processors");
    let found = client.hear().expect_ok("calls");
    let mut found = found.iter().map(|number| number.parse().expect("a number"));
    [(); 3].map(|()| found.next().expect("three figures"))
}

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples.get(samples.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Measures both pairs in one setting, and prints a line.
fn compare(case: &str, setting: &Setting, options: &Options) -> serde_json::Value {
    let mut found: [Vec<[f64; 3]>; 2] = Default::default();
    for round in 0..options.rounds {
        for which in [round % 2, 1 - round % 2] {
            found[which].push(turn(setting, [ONE, OTHER][which], options.milliseconds));
        }
    }
    let ratio = median(found[0].iter().zip(&found[1]).map(|(one, two)| two[1] / one[1]).collect());
    let of = |which: usize, at: usize| median(found[which].iter().map(|turn| turn[at]).collect());
    let [one, two] = [0, 1].map(|which| [0, 1, 2].map(|at| of(which, at)));
    println!(
        "{case:16}{:15}{:>9.0} ns{:>9.0} ns{ratio:>8.2}{:>10.0} ns{:>10.0} ns{:>9.0} ns{:>9.0} ns",
        setting.placement, one[1], two[1], one[0], two[0], one[2], two[2]
    );
    serde_json::json!({
        "suite": "users", "case": case, "placement": setting.placement, "mode": "parked",
        "one_ns": one[1], "two_ns": two[1], "ratio": ratio, "one_mean_ns": one[0],
        "two_mean_ns": two[0], "one_p99_ns": one[2], "two_p99_ns": two[2],
        "rounds": options.rounds,
    })
}

fn measure(options: &Options) -> Result<(), Box<dyn Error>> {
    if upcall_os::socket::own_user() != 0 {
        return Err("processes of two users can be started by root only: run this as root".into());
    }
    if CpuSet::allowed()?.count() < 2 {
        return Err("two processors are needed".into());
    }
    let folder = tempfile::TempDir::new()?;
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))?;
    let copy = folder.path().join("users");
    copy_program(&std::env::current_exe()?, &copy);
    let program: &'static str = copy.to_string_lossy().into_owned().leak();
    println!(
        "{:16}{:15}{:>12}{:>12}{:>8}{:>13}{:>13}{:>12}{:>12}",
        "case",
        "placement",
        "one user",
        "two users",
        "ratio",
        "mean, one",
        "mean, two",
        "p99, one",
        "p99, two"
    );
    let mut records = Vec::new();
    for (case, pause) in CASES {
        for placement in PLACEMENTS {
            let record = compare(case, &Setting { program, placement, pause }, options);
            records.push(record);
        }
    }
    match options.json.as_deref() {
        Some("-") => println!("{}", serde_json::to_string_pretty(&records)?),
        Some(file) => fs::write(file, serde_json::to_string_pretty(&records)?)?,
        None => {}
    }
    Ok(())
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match words.as_slice() {
        ["--help" | "-h", ..] => {
            print!("{HELP}");
            Ok(())
        }
        ["role", "serve", pause] => serve(pause),
        ["role", "call", pause, milliseconds] => {
            say(call(pause, milliseconds).map(|found| found.map(|one| one.to_string()).to_vec()));
            Ok(())
        }
        _ => match Options::parse(&words) {
            Ok(options) => measure(&options),
            Err(error) => {
                eprintln!("users: {error}; see `users --help`");
                return ExitCode::from(2);
            }
        },
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("users: {error}");
            ExitCode::FAILURE
        }
    }
}
