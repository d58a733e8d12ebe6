//! The child's side of the suite `hosts`: what a system has to provide, and the protocol.
//!
//! ```text
//! EXE bench-hosts SYSTEM server|client CPU ADDRESS DIR
//! ```
//! Each child confines itself to its processor. ADDRESS is the server's, with a port that belongs
//! to the system, as do the nine ports after it. DIR is the run's folder, in which a system puts
//! files that its two sides exchange beforehand. `UPCALL_HOSTS` is the folder of the host's
//! identity. A server prints `ready` and serves until its standard input ends. A client connects,
//! makes a call, prints `ready`, and answers each command with one line:
//!
//! | command | answer |
//! |---|---|
//! | `time null\|in-1m\|message-round MILLIS` | times of calls |
//! | `small COUNT BYTES` | times of null calls; beside arguments of that length unless it is 0 |
//! | `connect COUNT` | times of a bind and its first call |
//! | `resume COUNT` | the same with a ticket |
//! | `messages BYTES COUNT BATCHES` | times of a message, of batches of that many messages |
//! | `quit` | none; the client ends |
//!
//! Times are `{"times":{"p50_ns":…,…},"calls":…}` with the number of all calls or binds that the
//! command made, also those that were not timed; 0 if it made others beside them. Any command may
//! be answered `{"error":"…"}`. A child dies with the harness, however the harness ends.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::process::{Signal, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};

use super::case::MIB;
use crate::child::{Outcome, Ready, answer_lines, entry, exit};
use crate::payload::{expected, fill};
use crate::place;
use crate::stats::{Clock, Summary};

/// Location of a pair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The server's address.
    pub server: SocketAddr,
    /// The run's folder.
    pub dir: PathBuf,
}

/// How a connection begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ticket {
    /// Both sides prove themselves.
    None,
    /// With a ticket of an earlier connection, which proved them.
    Earlier,
}

/// A system. The table passed to [`child_main`] has one `Entry` for each system.
pub trait System {
    /// Name in records and on the command line.
    const NAME: &'static str;
    /// The client.
    type Client: ClientSide;

    /// Serves until [`crate::child::Stop`] requests the end, or forever.
    ///
    /// # Errors
    /// The server cannot run.
    fn serve(place: &Place, ready: Ready) -> Outcome<()>;

    /// Connects to that server.
    ///
    /// # Errors
    /// The client cannot connect.
    fn connect(place: &Place) -> Outcome<Self::Client>;
}

/// A client.
pub trait ClientSide: Sized {
    /// Calls `null`.
    ///
    /// # Errors
    /// The call failed, as for all methods of this trait.
    fn null(&mut self) -> Outcome<()>;

    /// Passes bytes to the server, which reads all of them. Returns their checksum.
    fn bytes_in(&mut self, data: &[u8]) -> Outcome<u64>;

    /// Runs `small` while the same server gets `data` again and again.
    ///
    /// Returns the number of times that it got them, and the checksum of the last time.
    fn beside(
        &mut self,
        data: &[u8],
        small: &mut dyn FnMut(&mut Self) -> Outcome<()>,
    ) -> Outcome<(u64, u64)>;

    /// Sends a message of 8 bytes to a member of a group at the server, and waits for its answer.
    ///
    /// # Errors
    /// The system has no groups.
    fn message_round(&mut self) -> Outcome<()> {
        Err("it has no groups".into())
    }

    /// Sends `data` to that member as a message, `count` times, and waits until all are taken.
    /// Returns the checksum of all messages.
    ///
    /// # Errors
    /// The system has no groups.
    fn messages(&mut self, _data: &[u8], _count: u64) -> Outcome<u64> {
        Err("it has no groups".into())
    }

    /// Closes the connection, and prepares another one. Returns the time of a bind and its first
    /// call, without the preparation.
    fn reconnect(&mut self, ticket: Ticket) -> Outcome<Duration>;
}

/// The answer to a command.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Told {
    /// Times of single calls.
    pub times: Summary,
    /// Number of calls that took processor time.
    pub calls: u64,
}

/// A row of the table of systems.
#[derive(Clone, Copy)]
pub struct Entry {
    name: &'static str,
    serve: fn(&Place, Ready) -> Outcome<()>,
    client: fn(&Place) -> Outcome<()>,
}

impl Entry {
    /// The row of system `S`.
    pub const fn of<S: System>() -> Entry {
        Entry { name: S::NAME, serve: S::serve, client: client::<S> }
    }
}

/// Runs this process as a child of the harness.
///
/// `args` are the arguments after `bench-hosts`; `systems` lists the systems that this program
/// provides. Errors go to standard error, which the harness shows.
pub fn child_main(args: impl IntoIterator<Item = OsString>, systems: &[Entry]) -> ExitCode {
    exit(run(args, systems))
}

const USAGE: &str = "bench-hosts SYSTEM server|client CPU ADDRESS DIR";

fn run(args: impl IntoIterator<Item = OsString>, systems: &[Entry]) -> Outcome<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let args: Vec<String> =
        args.into_iter().map(|arg| arg.to_string_lossy().into_owned()).collect();
    let [system, role, cpu, server, dir] = &args[..] else {
        return Err(format!("usage: {USAGE}").into());
    };
    let system = entry(systems, "system", system, |system| system.name)?;
    let place = Place { server: server.parse()?, dir: dir.into() };
    place::pin(cpu.parse()?)?;
    match role.as_str() {
        "server" => (system.serve)(&place, Ready::new()),
        "client" => (system.client)(&place),
        _ => Err(format!("usage: {USAGE}").into()),
    }
}

fn client<S: System>(place: &Place) -> Outcome<()> {
    let mut client = S::connect(place)?;
    client.null()?;
    let mut driver = Driver { client, clock: Clock::calibrated(), seed: 1 };
    answer_lines(|line| Ok(serde_json::to_string(&driver.command(line)?)?))
}

/// Number of calls before timing begins.
const TRIED: usize = 24;
/// Minimum and maximum number of timed calls in a turn.
const COUNTS: [usize; 2] = [24, 200_000];
/// Number of small calls after the large argument was begun, before timing begins.
const BEGUN: usize = 50;
/// Maximum time for timed calls, beyond which no more are made.
const LONGEST: Duration = Duration::from_secs(5);
/// Number of calls between two readings of the time for [`LONGEST`].
const PART: usize = 100;

/// A client, with what the measurement needs.
struct Driver<C> {
    client: C,
    clock: Clock,
    seed: u64,
}

impl<C: ClientSide> Driver<C> {
    fn command(&mut self, line: &str) -> Outcome<Told> {
        let words: Vec<_> = line.split_ascii_whitespace().collect();
        match words[..] {
            ["time", "null", millis] => {
                self.time(Duration::from_millis(millis.parse()?), ClientSide::null)
            }
            ["time", "message-round", millis] => {
                self.time(Duration::from_millis(millis.parse()?), ClientSide::message_round)
            }
            ["messages", bytes, count, batches] => {
                self.messages(bytes.parse()?, count.parse()?, batches.parse()?)
            }
            ["time", "in-1m", millis] => {
                let (mut data, mut seed) = (vec![0; MIB], self.seed);
                let told = self.time(Duration::from_millis(millis.parse()?), |client| {
                    seed += 1;
                    fill(&mut data, seed);
                    check(client.bytes_in(&data)?, MIB, seed)
                });
                self.seed = seed;
                told
            }
            ["small", count, "0"] => self.small(count.parse()?),
            ["small", count, bytes] => self.small_beside(count.parse()?, bytes.parse()?),
            ["connect", count] => self.connect(count.parse()?, Ticket::None),
            ["resume", count] => self.connect(count.parse()?, Ticket::Earlier),
            _ => Err("not a command".into()),
        }
    }

    /// Makes calls for about this time, after some that are not timed.
    fn time(
        &mut self,
        time: Duration,
        mut call: impl FnMut(&mut C) -> Outcome<()>,
    ) -> Outcome<Told> {
        let begun = Instant::now();
        for _ in 0..TRIED {
            call(&mut self.client)?;
        }
        let each = begun.elapsed().as_nanos() as usize / TRIED;
        let count = (time.as_nanos() as usize / each.max(1)).clamp(COUNTS[0], COUNTS[1]);
        let times = timed(&self.clock, count, || call(&mut self.client))?;
        Ok(Told { times, calls: TRIED as u64 + times.count })
    }

    fn small(&mut self, count: usize) -> Outcome<Told> {
        for _ in 0..BEGUN {
            self.client.null()?;
        }
        let times = timed(&self.clock, count, || self.client.null())?;
        Ok(Told { times, calls: BEGUN as u64 + times.count })
    }

    fn small_beside(&mut self, count: usize, bytes: usize) -> Outcome<Told> {
        let mut data = vec![0; bytes];
        fill(&mut data, self.seed);
        let (clock, mut found) = (self.clock, None);
        let (large, sum) = self.client.beside(&data, &mut |client| {
            for _ in 0..BEGUN {
                client.null()?;
            }
            found = Some(timed(&clock, count, || client.null())?);
            Ok(())
        })?;
        check(sum, bytes, self.seed)?;
        match found {
            Some(times) if large > 0 => Ok(Told { times, calls: 0 }),
            _ => Err("no large argument arrived".into()),
        }
    }

    /// Times batches of messages. The first batch, which may open the way, is not timed.
    fn messages(&mut self, bytes: usize, count: u64, batches: usize) -> Outcome<Told> {
        let mut data = vec![0; bytes];
        fill(&mut data, self.seed);
        let each = expected(bytes, self.seed);
        let mut samples = Vec::new();
        for batch in 0..=batches {
            let begun = Instant::now();
            let sum = self.client.messages(&data, count)?;
            if batch > 0 {
                samples.push((begun.elapsed().as_nanos() / u128::from(count.max(1))) as u64);
            }
            if sum != each.wrapping_mul(count) {
                return Err("the receiver has summed other bytes".into());
            }
        }
        if samples.is_empty() {
            return Err("a count of 0 has no percentiles".into());
        }
        let calls = count * (1 + batches as u64);
        Ok(Told { times: Summary::of_durations(&mut samples), calls })
    }

    fn connect(&mut self, count: usize, ticket: Ticket) -> Outcome<Told> {
        let mut bind = || {
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>({
                let spent = self.client.reconnect(ticket)?;
                // The server drops the connection before the next one begins.
                std::thread::sleep(Duration::from_millis(1));
                spent.as_nanos() as u64
            })
        };
        // This one brings the ticket for the first of the others.
        bind()?;
        let mut samples = (0..count).map(|_| bind()).collect::<Outcome<Vec<u64>>>()?;
        if samples.is_empty() {
            return Err("a count of 0 has no percentiles".into());
        }
        Ok(Told { times: Summary::of_durations(&mut samples), calls: 1 + count as u64 })
    }
}

/// Times `count` calls, or fewer if they take longer than [`LONGEST`].
fn timed(clock: &Clock, count: usize, mut call: impl FnMut() -> Outcome<()>) -> Outcome<Summary> {
    if count == 0 {
        return Err("a count of 0 has no percentiles".into());
    }
    let mut samples = vec![1; count]; // not zero: pages must exist before timing begins
    let begun = Instant::now();
    let mut done = 0;
    for part in samples.chunks_mut(PART) {
        clock.time_each(part, &mut call)?;
        done += part.len();
        if begun.elapsed() > LONGEST {
            break;
        }
    }
    samples.truncate(done);
    let mean_ns = begun.elapsed().as_nanos() as f64 / done as f64;
    Ok(Summary::of(&mut samples, clock, mean_ns))
}

fn check(found: u64, len: usize, seed: u64) -> Outcome<()> {
    let right = expected(len, seed);
    if found == right {
        return Ok(());
    }
    Err(format!("the server returned the checksum {found:#x} where {right:#x} is right").into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::payload::checksum;

    /// A client that is its own server.
    #[derive(Default)]
    struct Direct {
        binds: Vec<Ticket>,
        wrong: u64,
    }

    impl ClientSide for Direct {
        fn message_round(&mut self) -> Outcome<()> {
            Ok(())
        }

        fn messages(&mut self, data: &[u8], count: u64) -> Outcome<u64> {
            Ok((checksum(data) + self.wrong).wrapping_mul(count))
        }

        fn null(&mut self) -> Outcome<()> {
            Ok(())
        }

        fn bytes_in(&mut self, data: &[u8]) -> Outcome<u64> {
            Ok(checksum(data) + self.wrong)
        }

        fn beside(
            &mut self,
            data: &[u8],
            small: &mut dyn FnMut(&mut Self) -> Outcome<()>,
        ) -> Outcome<(u64, u64)> {
            small(self)?;
            Ok((1, self.bytes_in(data)?))
        }

        fn reconnect(&mut self, ticket: Ticket) -> Outcome<Duration> {
            self.binds.push(ticket);
            Ok(Duration::from_micros(7))
        }
    }

    #[test]
    fn every_command_is_answered_and_its_sums_are_checked() {
        let mut driver = Driver { client: Direct::default(), clock: Clock::calibrated(), seed: 1 };
        for line in [
            "time null 1",
            "time in-1m 1",
            "time message-round 1",
            "messages 8 5 3",
            "small 30 0",
            "connect 3",
            "resume 3",
        ] {
            let told = driver.command(line).unwrap();
            assert!(told.calls > told.times.count && told.times.count >= 3, "{line}: {told:?}");
        }
        assert_eq!(driver.client.binds, [[Ticket::None; 4], [Ticket::Earlier; 4]].concat());
        assert_eq!(driver.command("small 30 4096").unwrap().calls, 0);
        driver.client.wrong = 1;
        for line in
            ["time in-1m 1", "messages 8 5 3", "small 30 4096", "small 0 0", "connect 0", "halt"]
        {
            assert!(driver.command(line).is_err(), "{line}");
        }
    }

    #[test]
    fn mistakes_are_told() {
        let told =
            |args: &[&str]| run(args.iter().map(OsString::from), &[]).unwrap_err().to_string();
        assert!(told(&["x"]).contains("usage: bench-hosts"));
        assert!(told(&["x", "server", "0", "1.2.3.4:5", "/tmp"]).contains("no system `x`"));
    }
}
