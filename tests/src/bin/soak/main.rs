//! Kills and stops processes at random under a mixed load, and checks what they promise each other.
//!
//! 1. All roles are one program: the supervisor starts itself again, once for each role. All share
//!    a memory file, the record ([`book`]), in which each process writes what it does. So the work
//!    of a killed process is still known.
//! 2. Load: servers and their clients ([`server`], [`client`]), a group ([`member`]), a home and
//!    its guests ([`home`]), hostile peers (`upcall_tests::hostile`), and a bystander that calls a
//!    server which is never disturbed.
//! 3. The killer ([`killer`]) draws victims, actions and pauses from a seed; the same seed makes
//!    the same choices.
//! 4. Each request has a number. Its executor notes the number before it replies; its caller notes
//!    how the request ended. An answered request was executed once. A request that failed as not
//!    begun was never executed, and any other at most once. Messages are numbered, too.
//! 5. An error that reports a death is checked against the list of killed processes.
//! 6. The watchdog ([`watch`]) looks for operations that do not return, and for leftovers:
//!    descriptors, mappings, threads, memory, files, processes. It compares two states of rest, one
//!    before and one after the kills.
//! 7. Times are reported, but do not decide: only a wait beyond the patience of the watchdog is a
//!    failure. A wait does not count while the killer has stopped one of its processes, nor until
//!    the kernel has ended a killed one, nor while the machine keeps sleeping threads from running
//!    ([`fair`]).
//! 8. `--plant` puts a fault into the load, which the run has to find. This shows that a run can
//!    fail.
#![forbid(unsafe_code)]

mod book;
mod charged;
mod client;
mod fair;
mod home;
mod killer;
mod member;
mod report;
mod role;
mod server;
mod watch;

use role::Role;
use rustix::process::{Signal, getpid, kill_process};
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use upcall_tests::hostile;

/// Counts what each process has allocated and not freed.
#[global_allocator]
static MEMORY: upcall_os::ration::Rationed = upcall_os::ration::Rationed;

const HELP: &str = "\
Kills and stops processes at random under a mixed load, and checks what they promise each other.

usage: soak [OPTIONS]

options:
  --seconds N    length of the run, warm-up included (60; at least 3)
  --seed N       repeats the killer's choices (from the clock; printed)
  --rate N       kills and stops in a second (10)
  --only PARTS   of calls, group, home, hostile: separated by commas (all)
  --hang N       milliseconds after which a wait is a failure, without the time in which one of its
                 processes is stopped, or was killed and not yet ended by the kernel, or the machine
                 keeps a control thread from running (200)
  --json FILE    writes the summary as JSON; `-` is standard output
  --trace        prints each choice of the killer
  --plant FAULT  puts a fault into the load: lost, doubled, answer, order, claim, hang, leak, memory
                 or file
  --help         this text

examples:
  soak --seconds 10                        a look whether all is well
  soak --seconds 1800 --json soak.json     a long run, with its summary in a file
  soak --seed 7 --only group --trace       the same choices again, for the group alone
  soak --seconds 10 --plant doubled        has to fail

exit status: 0 nothing was found; 1 something was; 2 the arguments make no sense
";

/// The parsed arguments.
#[derive(Clone, Debug)]
struct Options {
    seconds: u64,
    seed: u64,
    rate: u64,
    parts: Vec<String>,
    hang: Duration,
    json: Option<String>,
    trace: bool,
    plant: Option<String>,
}

impl Options {
    const PARTS: [&str; 4] = ["calls", "group", "home", "hostile"];
    const PLANTS: [&str; 9] =
        ["lost", "doubled", "answer", "order", "claim", "hang", "leak", "memory", "file"];

    fn parse(words: &[&str]) -> Result<Self, String> {
        let mut options = Self {
            seconds: 60,
            seed: upcall_tests::now(),
            rate: 10,
            parts: Self::PARTS.map(String::from).to_vec(),
            hang: Duration::from_millis(200),
            json: None,
            trace: false,
            plant: None,
        };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            if *word == "--trace" {
                options.trace = true;
                continue;
            }
            if !["--seconds", "--seed", "--rate", "--only", "--hang", "--json", "--plant"]
                .contains(word)
            {
                return Err(format!("unknown option {word:?}"));
            }
            let value = *words.next().ok_or_else(|| format!("{word} takes a value"))?;
            let number = || {
                value.parse::<u64>().map_err(|_| format!("{word} takes a number, not {value:?}"))
            };
            match *word {
                "--seconds" => options.seconds = number()?.max(3),
                "--seed" => options.seed = number()?,
                "--rate" => options.rate = number()?.clamp(1, 1000),
                "--hang" => options.hang = Duration::from_millis(number()?.max(1)),
                "--json" => options.json = Some(value.into()),
                "--only" => options.parts = one_of(value.split(','), &Self::PARTS)?,
                _ => options.plant = one_of([value].into_iter(), &Self::PLANTS)?.pop(),
            }
        }
        Ok(options)
    }

    fn has(&self, part: &str) -> bool {
        self.parts.iter().any(|own| own == part)
    }
}

fn one_of<'a>(words: impl Iterator<Item = &'a str>, known: &[&str]) -> Result<Vec<String>, String> {
    words
        .map(|word| {
            let is_known = known.contains(&word);
            is_known
                .then(|| word.to_string())
                .ok_or_else(|| format!("{word:?} is none of {}", known.join(", ")))
        })
        .collect()
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["--help" | "-h", ..] => {
            print!("{HELP}");
            ExitCode::SUCCESS
        }
        ["role", path, slot, seed, rest @ ..] => play(&[path, slot, seed], rest),
        _ => match Options::parse(&words) {
            Ok(options) => killer::run(&options),
            Err(error) => {
                eprintln!("soak: {error}; see `soak --help`");
                ExitCode::from(2)
            }
        },
    }
}

/// Reports why a role cannot begin.
fn failed(error: &dyn std::fmt::Display) -> ExitCode {
    eprintln!("soak: a role cannot begin: {error}");
    ExitCode::FAILURE
}

fn play(place: &[&str], words: &[&str]) -> ExitCode {
    let role = match Role::enter(place) {
        Ok(role) => role,
        Err(error) => return failed(&error),
    };
    let number = |word: &str| word.parse::<usize>().unwrap_or(0);
    match words {
        ["serve", name, options @ ..] => server::run(&role, name, options),
        ["call", lane, servers @ ..] => client::run(&role, number(lane), &client::known(servers)),
        ["bystander", lane, servers @ ..] => {
            client::stand_by(&role, number(lane), &client::known(servers))
        }
        ["member", lane, group, rank] => {
            member::run(&role, number(lane), number(group), number(rank))
        }
        ["hostile-member", group] => {
            let epoch = role.book.epoch(number(group)).load(SeqCst);
            let folder = match upcall::directory::folder() {
                Ok(folder) => folder,
                Err(error) => return failed(&error),
            };
            let name = format!("talk.{epoch}");
            let (size, rank) = (book::MEMBERS, member::HOSTILE);
            let place = hostile::member::Place {
                folder: &folder,
                group: &name,
                size,
                rank,
                kinds: &member::KINDS,
            };
            let length = Duration::from_millis(50 + role.dice(2).below(600));
            let walked = hostile::member::walk(&place, role.dice(1).any(), length);
            upcall_tests::outcome::say(walked.map(|steps| vec![steps.to_string()]));
            let _ = kill_process(getpid(), Signal::KILL);
        }
        ["home", name] => home::run(&role, name),
        ["guest", lane, name, slot] => home::visit(&role, number(lane), name, number(slot)),
        ["hostile", socket, steps] => {
            upcall_tests::outcome::say(hostile::walk(
                Path::new(socket),
                role.dice(1).any(),
                number(steps) as u64,
            ));
            let _ = kill_process(getpid(), Signal::KILL);
        }
        ["hostile-server", name] => {
            // The server enters its name by hand, which fails while the entry of a killed one is
            // there.
            while upcall::directory::folder().is_ok_and(|folder| folder.join(name).exists()) {
                upcall::directory::sweep();
                std::thread::sleep(Duration::from_millis(2));
            }
            // The same holds for the remains of a server that was killed while it entered its name.
            if let Ok(folder) = upcall::directory::folder() {
                let _ = std::fs::remove_dir_all(folder.join(format!(".{name}")));
            }
            hostile::server::serve(name, role.dice(1).any());
        }
        ["endure"] => upcall_tests::client::run(),
        ["sweep"] => upcall::directory::sweep(),
        _ => role.complain("role", format!("{words:?} is no role")),
    }
    ExitCode::SUCCESS
}
