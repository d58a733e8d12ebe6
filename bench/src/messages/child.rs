//! The children's side: what a system of messages has to provide, and the protocol that all of them
//! speak.
//!
//! ```text
//! EXE bench-messages SYSTEM sender|receiver --cpu N --placement two-cores|one-core --dir DIR
//! ```
//! Both are started at once, confine themselves to their processor, and find each other by files in
//! DIR only, where `memory` is the pair's (see `raw`). The receiver does what the sender's messages
//! tell it to, waits for them as the system waits, and has nothing to do with the harness. The
//! sender prints `ready` when messages go both ways, reads commands, one a line, and answers each
//! with one line:
//!
//! | command | answer |
//! |---|---|
//! | `CASE MILLIS`, but for `rate-8` | `{"p50_ns":…,"p99_ns":…,"p999_ns":…,"p9999_ns":…,"mean_ns":…,"count":…}` |
//! | `rate-8 MILLIS` | `{"calls":…,"elapsed_ns":…}` |
//! | `processes` | `{"sender":…,"receiver":…}`: their process ids |
//! | `quit` | none; both end |
//!
//! Any command may be answered `{"error":"…"}`, and a case by `{"unsupported":true}`. A child dies
//! with who started it.

use std::ffi::OsString;
use std::fs;
use std::io::{self, BufRead, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Signal, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};

use super::case::BURST;
use super::driver;
use super::raw::Gate;
use crate::case::Placement;
use crate::child::{Outcome, answer_line, entry, exit};
use crate::place;

/// Which of the two a child is. Either may send to the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Who is told what to do.
    Sender,
    /// Who takes the messages.
    Receiver,
}

impl Side {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Side::Sender => "sender",
            Side::Receiver => "receiver",
        }
    }

    /// The one that this one sends to.
    pub fn other(self) -> Side {
        match self {
            Side::Sender => Side::Receiver,
            Side::Receiver => Side::Sender,
        }
    }
}

/// Where and how this child runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Which of the two it is.
    pub side: Side,
    /// Its processor.
    pub cpu: usize,
    /// Where the two run.
    pub placement: Placement,
    /// A directory of this pair alone, removed by the harness: sockets and the like go here.
    pub dir: PathBuf,
}

/// Longest time for the two to find each other.
const MEETING: Duration = Duration::from_secs(10);

impl Place {
    /// With what the names of files in /dev/shm must begin, for a system that has no other place
    /// for its shared memory. The harness removes them with `dir`.
    pub fn shared_memory_prefix(&self) -> String {
        crate::pair::shared_memory_prefix(&self.dir)
    }

    /// Whether the two have one processor together, so that who waits by looking had better let the
    /// other run between looks.
    pub fn yields(&self) -> bool {
        self.placement == Placement::OneCore
    }

    /// Where the memory of the pair is.
    pub(super) fn memory(&self) -> PathBuf {
        self.dir.join(MEMORY)
    }

    /// Leaves something for the other side to find by [`found`](Self::found), whole or not at all.
    ///
    /// # Errors
    /// The directory cannot be written to.
    pub fn leave(&self, name: &str, bytes: &[u8]) -> Outcome<()> {
        let hidden = self.dir.join(format!(".{name}"));
        fs::write(&hidden, bytes)?;
        Ok(fs::rename(hidden, self.dir.join(name))?)
    }

    /// What the other side has left; waits for it, for some seconds.
    ///
    /// # Errors
    /// It has left nothing by then.
    pub fn found(&self, name: &str) -> Outcome<Vec<u8>> {
        let path = self.dir.join(name);
        self.until(|| path.exists())?;
        Ok(fs::read(path)?)
    }

    /// Waits until `met`, for some seconds.
    ///
    /// # Errors
    /// It did not come to be.
    pub fn until(&self, mut met: impl FnMut() -> bool) -> Outcome<()> {
        let begun = Instant::now();
        while !met() {
            if begun.elapsed() > MEETING {
                return Err(format!(
                    "the {} has not come within {MEETING:?}",
                    self.side.other().name()
                )
                .into());
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

/// The file in a pair's directory that its memory is reached by.
pub(super) const MEMORY: &str = "memory";

/// A system under test. One value of `Entry` for each goes into the table given to [`child_main`].
pub trait System {
    /// The name in records and on the command line.
    const NAME: &'static str;
    /// Messages of one burst: so many are taken while the receiver does not look.
    const BURST: usize = BURST;
    /// Words of the longest message that is taken then.
    const UNWATCHED: usize = 16;
    /// One of the two ends.
    type End: End;

    /// Joins with the other side. Both sides are in here at once.
    ///
    /// # Errors
    /// Whatever prevents it.
    fn join(place: &Place) -> Outcome<Self::End>;
}

/// An end: it sends to the other one, and receives from it.
pub trait End {
    /// Sends a message of so many words: not more than 16. Where the system cannot take it, waits
    /// until it can. It may be changed as soon as this returns.
    ///
    /// # Errors
    /// A send that failed, as for the rest of these.
    fn send_words<const N: usize>(&mut self, handler: u16, words: &[u64; N]) -> Outcome<()>;

    /// The same for a longer one, of whole words.
    fn send_bytes(&mut self, handler: u16, bytes: &[u8]) -> Outcome<()>;

    /// Waits until a message is there, as the system waits, and runs the handler with it; and with
    /// those behind it that are there as well, if the system takes several at once.
    fn receive<H: Handler>(&mut self, handler: &mut H) -> Outcome<()>;
}

/// What is done with messages.
pub trait Handler {
    /// Takes one.
    fn message(&mut self, handler: u16, payload: &impl Payload);
}

/// What a message brings, as far as possible where it lies.
pub trait Payload {
    /// Its length in bytes, whole words.
    fn len(&self) -> usize;

    /// Whether there is none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A word of it.
    ///
    /// # Panics
    /// It is none of the payload's.
    fn word(&self, at: usize) -> u64;

    /// The sum of its words.
    fn checksum(&self) -> u64;
}

impl Payload for &[u8] {
    #[inline]
    fn len(&self) -> usize {
        (**self).len()
    }

    #[inline]
    fn word(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.as_chunks::<8>().0[at])
    }

    #[inline]
    fn checksum(&self) -> u64 {
        crate::payload::checksum(self)
    }
}

/// The process ids of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Processes {
    /// Of the sender.
    pub sender: u32,
    /// Of the receiver.
    pub receiver: u32,
}

/// A row of the table of systems.
#[derive(Clone, Copy)]
pub struct Entry {
    name: &'static str,
    run: fn(&Place) -> Outcome<()>,
}

impl Entry {
    /// The row of system `S`.
    pub const fn of<S: System>() -> Entry {
        Entry { name: S::NAME, run: both::<S> }
    }
}

/// Runs this process as a child of the harness. `args` are those after `bench-messages`; `systems`
/// is what this program can be. Errors go to standard error, which the harness shows.
pub fn child_main(args: impl IntoIterator<Item = OsString>, systems: &[Entry]) -> ExitCode {
    exit(run(args, systems))
}

const USAGE: &str =
    "bench-messages SYSTEM sender|receiver --cpu N --placement two-cores|one-core --dir DIR";

fn run(args: impl IntoIterator<Item = OsString>, systems: &[Entry]) -> Outcome<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let args: Vec<String> =
        args.into_iter().map(|arg| arg.to_string_lossy().into_owned()).collect();
    let [system, side, cpu_flag, cpu, placement_flag, placement, dir_flag, dir] = &args[..] else {
        return Err(format!("usage: {USAGE}").into());
    };
    let system = entry(systems, "system", system, |system| system.name)?;
    let side = [Side::Sender, Side::Receiver].into_iter().find(|known| known.name() == side);
    let (Some(side), ["--cpu", "--placement", "--dir"]) =
        (side, [&cpu_flag[..], placement_flag, dir_flag])
    else {
        return Err(format!("usage: {USAGE}").into());
    };
    let cpu = cpu.parse().map_err(|_| format!("--cpu {cpu}: not a number; usage: {USAGE}"))?;
    let place = Place { side, cpu, placement: placement.parse()?, dir: PathBuf::from(dir) };
    place::pin(place.cpu)?;
    (system.run)(&place)
}

fn both<S: System>(place: &Place) -> Outcome<()> {
    let gate = Gate::open(&place.memory()).map_err(|error| no_memory(&place.memory(), &error))?;
    let mut end = S::join(place)?;
    if place.side == Side::Receiver {
        return driver::receive(&mut end, &gate);
    }
    let mut sender = driver::Sender::new(end, gate, S::BURST, S::UNWATCHED)?;
    println!("ready");
    for line in commands() {
        if line == "quit" {
            break;
        }
        writeln!(io::stdout(), "{}", answer_line(&line, sender.command(&line)))?;
    }
    sender.quit()
}

/// How long a sender has to end by itself.
const GRACE: Duration = Duration::from_millis(1500);

/// The harness's commands. When there are no more of them the process has some time to end: who has
/// started it may be another one than the harness, and live on, while this one waits for a message.
fn commands() -> mpsc::IntoIter<String> {
    let (say, said) = mpsc::channel();
    thread::spawn(move || {
        io::stdin().lock().lines().map_while(Result::ok).try_for_each(|line| say.send(line)).ok();
        drop(say);
        thread::sleep(GRACE);
        std::process::exit(1);
    });
    said.into_iter()
}

fn no_memory(path: &Path, error: &io::Error) -> String {
    format!("no memory of the pair at {}: {error}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_are_told() {
        let told = |line: &str| {
            run(line.split(' ').map(OsString::from), &super::super::SYSTEMS)
                .unwrap_err()
                .to_string()
        };
        assert!(told("limit").contains("usage: bench-messages"));
        assert!(
            told("corba sender --cpu 0 --placement one-core --dir d").contains("it can be: limit")
        );
        assert!(told("limit queen --cpu 0 --placement one-core --dir d").contains("usage:"));
        assert!(
            told("limit sender --cpu x --placement one-core --dir d")
                .contains("--cpu x: not a number")
        );
        assert!(
            told("limit sender --cpu 0 --placement far --dir d").contains("no placement `far`")
        );
        assert!(
            told("limit sender --cpu 0 --placement one-core --dir d")
                .contains("no memory of the pair at d/memory")
        );
    }

    #[test]
    fn bytes_are_a_payload() {
        let bytes: Vec<u8> = [5_u64, 7].iter().flat_map(|word| word.to_le_bytes()).collect();
        let payload = &bytes[..];
        assert_eq!(
            (payload.word(0), payload.word(1), payload.checksum(), Payload::len(&payload)),
            (5, 7, 12, 16)
        );
        assert!(Payload::is_empty(&&bytes[..0]));
    }

    #[test]
    fn what_is_left_is_found() {
        let dir = std::env::temp_dir().join(format!("upcall-messages-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        let place =
            Place { side: Side::Sender, cpu: 0, placement: Placement::OneCore, dir: dir.clone() };
        place.leave("address", b"here").unwrap();
        assert_eq!(place.found("address").unwrap(), b"here");
        fs::remove_dir_all(dir).unwrap();
    }
}
