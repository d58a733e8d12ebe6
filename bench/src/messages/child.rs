//! The child's side of the suite `messages`: what a system has to provide, and the protocol of all
//! systems.
//!
//! ```text
//! EXE bench-messages SYSTEM sender|receiver --cpu N --placement two-cores|one-core --dir DIR
//! ```
//! Both children are started at once, confine themselves to their processor, and find each other by
//! files in DIR only, where `memory` is the pair's (see `raw`). The receiver follows commands in
//! the sender's messages, waits for them as the system waits, and has no contact with the harness.
//! The sender prints `ready` when messages go both ways, reads commands, one a line, and answers
//! each with one line:
//!
//! | command | answer |
//! |---|---|
//! | `CASE MILLIS`, except for `rate-8` | a summary |
//! | `rate-8 MILLIS` | `{"calls":…,"elapsed_ns":…}` |
//! | `processes` | `{"sender":…,"receiver":…}`: their process ids |
//! | `quit` | none; both end |
//!
//! A summary is `{"p50_ns":…,"p99_ns":…,"p999_ns":…,"p9999_ns":…,"mean_ns":…,"count":…}`. Any
//! command may be answered `{"error":"…"}`, and a case by `{"unsupported":true}`. A child dies with
//! its parent.

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

/// The side of a child. Either may send to the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The side that receives the harness's commands.
    Sender,
    /// The side that takes the messages.
    Receiver,
}

impl Side {
    /// Returns the name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Side::Sender => "sender",
            Side::Receiver => "receiver",
        }
    }

    /// Returns the other side.
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
    /// The side of this child.
    pub side: Side,
    /// Its processor.
    pub cpu: usize,
    /// Where the two processes run.
    pub placement: Placement,
    /// Directory for the sockets and other files of this pair only. The harness removes it.
    pub dir: PathBuf,
}

/// Maximum time for the two to find each other.
const MEETING: Duration = Duration::from_secs(10);

impl Place {
    /// Returns the prefix for names of files in /dev/shm, for a system that cannot place its shared
    /// memory elsewhere. The harness removes these files with `dir`.
    pub fn shared_memory_prefix(&self) -> String {
        crate::pair::shared_memory_prefix(&self.dir)
    }

    /// Returns `true` if the two share one processor, so that a side that polls should yield
    /// between polls.
    pub fn yields(&self) -> bool {
        self.placement == Placement::OneCore
    }

    /// Path of the pair's memory.
    pub(super) fn memory(&self) -> PathBuf {
        self.dir.join(MEMORY)
    }

    /// Leaves data that the other side reads by [`found`](Self::found). The other side sees all of
    /// it or nothing.
    ///
    /// # Errors
    /// The directory cannot be written.
    pub fn leave(&self, name: &str, bytes: &[u8]) -> Outcome<()> {
        let hidden = self.dir.join(format!(".{name}"));
        fs::write(&hidden, bytes)?;
        Ok(fs::rename(hidden, self.dir.join(name))?)
    }

    /// Waits some seconds for the data that the other side leaves, and returns it.
    ///
    /// # Errors
    /// The other side left nothing in time.
    pub fn found(&self, name: &str) -> Outcome<Vec<u8>> {
        let path = self.dir.join(name);
        self.until(|| path.exists())?;
        Ok(fs::read(path)?)
    }

    /// Waits some seconds until `met` returns `true`.
    ///
    /// # Errors
    /// It did not in time.
    pub fn until(&self, mut met: impl FnMut() -> bool) -> Outcome<()> {
        let begun = Instant::now();
        while !met() {
            if begun.elapsed() > MEETING {
                return Err(format!(
                    "the {} did not connect within {MEETING:?}",
                    self.side.other().name()
                )
                .into());
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

/// Name of the file in a pair's directory that leads to its memory.
pub(super) const MEMORY: &str = "memory";

/// A system under test. The table passed to [`child_main`] has one `Entry` for each system.
pub trait System {
    /// The name in records and on the command line.
    const NAME: &'static str;
    /// Number of messages that the system accepts while the receiver does not poll.
    const BURST: usize = BURST;
    /// Maximum size of such a message, in words.
    const UNWATCHED: usize = 16;
    /// The type of both ends.
    type End: End;

    /// Connects to the other side. Both sides call this at the same time.
    ///
    /// # Errors
    /// The sides cannot connect.
    fn join(place: &Place) -> Outcome<Self::End>;
}

/// An end, which sends to the other end and receives from it.
pub trait End {
    /// Sends a message of at most 16 words. If the system cannot accept it, waits until it can. The
    /// words may be changed as soon as this returns.
    ///
    /// # Errors
    /// The send failed, as for all methods of this trait.
    fn send_words<const N: usize>(&mut self, handler: u16, words: &[u64; N]) -> Outcome<()>;

    /// Sends a longer message, of whole words.
    fn send_bytes(&mut self, handler: u16, bytes: &[u8]) -> Outcome<()>;

    /// Waits for a message as the system waits, and runs the handler with it. Also handles the
    /// messages that are queued behind it, if the system takes several at once.
    fn receive<H: Handler>(&mut self, handler: &mut H) -> Outcome<()>;
}

/// A handler of messages.
pub trait Handler {
    /// Handles a message.
    fn message(&mut self, handler: u16, payload: &impl Payload);
}

/// The payload of a message, in place as far as possible.
pub trait Payload {
    /// Returns its length in bytes, a whole number of words.
    fn len(&self) -> usize;

    /// Returns `true` if the payload is empty.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns a word of the payload.
    ///
    /// # Panics
    /// `at` is out of range.
    fn word(&self, at: usize) -> u64;

    /// Returns the sum of its words.
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

/// Runs this process as a child of the harness.
///
/// `args` are the arguments after `bench-messages`; `systems` lists the systems that this program
/// provides. Errors go to standard error, which the harness shows.
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

/// Time that a sender has to end by itself.
const GRACE: Duration = Duration::from_millis(1500);

/// Returns the harness's commands. After the last one the process is given some time to end: its
/// parent may be a process other than the harness that lives on while this one waits for a message.
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
