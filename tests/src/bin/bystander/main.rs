//! Measures what hostile clients of a server cost another client, the bystander.
//!
//! 1. All roles are one program: the supervisor ([`run`]) starts itself again, once for each role.
//!    A server ([`serve`]) has the default quotas. The bystander ([`stand`]) calls or binds at a
//!    steady pace, while hostile clients ([`load`]) make the most expensive requests that the
//!    quotas permit.
//! 2. A case is a load and an operation of the bystander. All cases take turns, round by round,
//!    with the case without a load among them, so that they see the same machine.
//! 3. Two baselines stand beside each case. `sleeper` is the lateness with which the kernel wakes
//!    the bystander from its sleep between two operations. `bare` is a server without the library,
//!    which answers a byte in a pipe between two pieces of a copy, beside programs that compute as
//!    much as the clients of the case. It shows the cost of the kernel's scheduling alone.
//! 4. The growth of the memory charged to the server is read from a control group where the machine
//!    permits one, and otherwise from the server's own account.
#![forbid(unsafe_code)]

mod case;
mod load;
mod report;
mod run;
mod serve;
mod stand;

use case::Case;
use std::process::ExitCode;

const HELP: &str = "\
Measures how late a bystander's calls and binds are while other clients make expensive requests.

usage: bystander [OPTIONS]

options:
  --rounds N     rounds; in each, every case has one turn (5)
  --seconds N    length of a turn (2)
  --only CASES   of the cases below, separated by commas (all but deaths)
  --clients N    clients that die in the case deaths (20)
  --segment MIB  size of each segment in the cases drops and deaths (1024)
  --poll         the server polls in place of parking
  --json FILE    writes the records as JSON; `-` is standard output
  --help         this text

cases (call: what the bystander's calls take; bind: its binds):
";

const EXAMPLES: &str = "
systems: upcall; sleeper and bare are baselines, which the kernel sets (see the source)

examples:
  bystander                                     all cases but deaths, some two minutes
  bystander --only quiet,copied-2 --rounds 20   two clients that send lists of 16 MiB
  bystander --only bind-quiet,deaths --rounds 1 the end of 20 clients with 1 GiB each
  bystander --only deaths --segment 64 --json - the same with less memory, as JSON

exit status: 0 measured; 1 not; 2 the arguments make no sense
";

/// The parsed arguments.
#[derive(Clone, Debug)]
struct Options {
    rounds: usize,
    seconds: u64,
    only: Vec<&'static Case>,
    clients: u64,
    segment: u64,
    poll: bool,
    json: Option<String>,
}

impl Options {
    fn parse(words: &[&str]) -> Result<Self, String> {
        let mut options = Self {
            rounds: 5,
            seconds: 2,
            only: Case::ALL.iter().filter(|case| case.name != "deaths").collect(),
            clients: 20,
            segment: 1024,
            poll: false,
            json: None,
        };
        let mut words = words.iter();
        while let Some(&word) = words.next() {
            if word == "--poll" {
                options.poll = true;
                continue;
            }
            if !["--rounds", "--seconds", "--only", "--clients", "--segment", "--json"]
                .contains(&word)
            {
                return Err(format!("unknown option {word:?}"));
            }
            let value = *words.next().ok_or_else(|| format!("{word} takes a value"))?;
            let number = |most: u64| match value.parse() {
                Ok(number) if (1..=most).contains(&number) => Ok(number),
                _ => Err(format!("{word} takes a number from 1 to {most}, not {value:?}")),
            };
            match word {
                "--rounds" => options.rounds = number(10_000)? as usize,
                "--seconds" => options.seconds = number(600)?,
                "--clients" => options.clients = number(1000)?,
                "--segment" => options.segment = number(1 << 20)?,
                "--json" => options.json = Some(value.into()),
                _ => options.only = value.split(',').map(Case::named).collect::<Result<_, _>>()?,
            }
        }
        Ok(options)
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["--help" | "-h", ..] => {
            print!("{HELP}");
            Case::ALL.iter().for_each(|case| {
                println!("  {:14} {}: {}", case.name, case.what.name(), case.text)
            });
            print!("{EXAMPLES}");
            ExitCode::SUCCESS
        }
        ["role", rest @ ..] => play(rest),
        _ => match Options::parse(&words) {
            Ok(options) => run::run(&options),
            Err(error) => {
                eprintln!("bystander: {error}; see `bystander --help`");
                ExitCode::from(2)
            }
        },
    }
}

/// Runs one role until the supervisor ends it.
fn play(words: &[&str]) -> ExitCode {
    // No role outlives the run, however the run ends.
    let bound =
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    let played = bound.map_err(Into::into).and_then(|()| match words {
        ["serve", rest @ ..] => serve::run(rest.contains(&"poll")),
        ["stand", way] => stand::run(way),
        ["bare", "waits"] => load::wait(),
        ["bare", rest @ ..] => serve::bare(rest.contains(&"busy")),
        ["load", socket, kind, segment] => load::run(socket, kind, segment.parse().unwrap_or(1)),
        _ => Err(format!("{words:?} is no role").into()),
    });
    match played {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bystander: {words:?}: {error}");
            ExitCode::FAILURE
        }
    }
}
