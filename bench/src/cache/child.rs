//! The child's side of the suite `cache`: what a store has to provide, and the protocol of all
//! stores.
//!
//! ```text
//! EXE bench-cache STORE server|client ENTRIES DIR
//! ```
//! The server serves a table through files in DIR, until its standard input ends or it is killed.
//! The client connects, which takes as long as the server takes to start. It puts ENTRIES entries
//! of 100 bytes into the table, under the [keys](super::entries::Keys) of this machine, and prints
//! `ready`. Then it reads commands, one a line, and answers each with one line:
//!
//! | command | answer |
//! |---|---|
//! | `time CASE WAY MILLIS` | the summary of an operation |
//!
//! A summary is `{"p50_ns":…,"p99_ns":…,"p999_ns":…,"p9999_ns":…,"mean_ns":…,"count":…}`. Any
//! command may be answered `{"error":"…"}`. A child dies with the harness, however the harness
//! ends; so does a program that it becomes by `exec`. The harness confines children to processors.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::process::{Signal, set_parent_process_death_signal};

use super::case::Case;
use super::entries::{Keys, Random, VALUE, value};
use crate::child::{Outcome, Ready, answer_lines, entry, exit};
use crate::stats::{Clock, Summary};

/// Location and size of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Directory for the sockets and other files of this run only. The harness removes it.
    pub dir: PathBuf,
    /// Number of entries of the table.
    pub entries: usize,
}

/// A store. The table passed to [`child_main`] has one `Entry` for each store.
pub trait Store {
    /// Name on the command line.
    const NAME: &'static str;
    /// The method by which a client fills the table, and the case, which sets the number of entries
    /// at once.
    const FILL: (&'static str, Case);
    /// The client.
    type Client: Client;

    /// Runs the server, until the end of its input or forever.
    ///
    /// # Errors
    /// The server cannot run.
    fn serve(place: &Place, ready: Ready) -> Outcome<()>;

    /// Connects to the server. The caller retries for some time, since the server may still be
    /// starting.
    ///
    /// # Errors
    /// The client cannot connect.
    fn connect(place: &Place) -> Outcome<Self::Client>;
}

/// A client that operates on the table.
pub trait Client {
    /// Prepares what can be prepared before timing begins. Each step of this batch is run
    /// afterwards, in order.
    ///
    /// # Errors
    /// The method does not exist.
    fn prepare(&mut self, way: &str, batch: &Batch) -> Outcome<()>;

    /// Runs the operations of a step and checks the answers: every byte of a value is examined.
    ///
    /// # Errors
    /// An operation failed or a value is wrong.
    fn step(&mut self, batch: &Batch, step: usize) -> Outcome<()>;
}

/// Operations to run, in contiguous memory, so that finding the next key takes no time.
#[derive(Debug)]
pub struct Batch {
    /// The operation.
    pub case: Case,
    numbers: Vec<usize>,
    keys: String,
    ends: Vec<usize>,
    values: Vec<u8>,
}

impl Batch {
    fn new(case: Case, keys: &Keys, numbers: Vec<usize>, version: u64) -> Batch {
        let mut batch =
            Batch { case, numbers, keys: String::new(), ends: vec![0], values: Vec::new() };
        for &number in &batch.numbers {
            batch.keys.push_str(keys.get(number));
            batch.ends.push(batch.keys.len());
            if case.puts() {
                batch.values.extend(value(number, version));
            }
        }
        batch
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.numbers.len()
    }

    /// Returns `true` if there are no entries.
    pub fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }

    /// Returns the number of steps. A step has the case's number of operations at once; the last
    /// may have fewer.
    pub fn steps(&self) -> usize {
        self.len().div_ceil(self.case.depth())
    }

    /// Returns the entries of a step.
    pub fn step(&self, step: usize) -> std::ops::Range<usize> {
        let depth = self.case.depth();
        step * depth..((step + 1) * depth).min(self.len())
    }

    /// Returns the number of an entry's key, by which its value can be checked.
    pub fn number(&self, at: usize) -> usize {
        self.numbers[at]
    }

    /// Returns the key of an entry.
    pub fn key(&self, at: usize) -> &str {
        &self.keys[self.ends[at]..self.ends[at + 1]]
    }

    /// Returns the value to put.
    ///
    /// # Panics
    /// The case puts nothing.
    pub fn value(&self, at: usize) -> &[u8] {
        &self.values[at * VALUE..][..VALUE]
    }
}

/// A row of the table of stores.
#[derive(Clone, Copy)]
pub struct Entry {
    name: &'static str,
    serve: fn(&Place, Ready) -> Outcome<()>,
    client: fn(&Place) -> Outcome<()>,
}

impl Entry {
    /// The row of store `S`.
    pub const fn of<S: Store>() -> Entry {
        Entry { name: S::NAME, serve: S::serve, client: client::<S> }
    }
}

/// Runs this process as a child of the harness.
///
/// `args` are the arguments after `bench-cache`; `stores` lists the stores that this program
/// provides. Errors go to standard error, which the harness shows.
pub fn child_main(args: impl IntoIterator<Item = OsString>, stores: &[Entry]) -> ExitCode {
    exit(run(args, stores))
}

const USAGE: &str = "bench-cache STORE server|client ENTRIES DIR";

fn run(args: impl IntoIterator<Item = OsString>, stores: &[Entry]) -> Outcome<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let args: Vec<String> =
        args.into_iter().map(|arg| arg.to_string_lossy().into_owned()).collect();
    let [store, role, entries, dir] = &args[..] else {
        return Err(format!("usage: {USAGE}").into());
    };
    let store = entry(stores, "store", store, |store| store.name)?;
    let entries = entries.parse().ok().filter(|entries| *entries > 0);
    let entries =
        entries.ok_or_else(|| format!("ENTRIES: not a number above 0; usage: {USAGE}"))?;
    let place = Place { dir: dir.into(), entries };
    match role.as_str() {
        "server" => (store.serve)(&place, Ready::new()),
        "client" => (store.client)(&place),
        other => Err(format!("`{other}` is neither server nor client; usage: {USAGE}").into()),
    }
}

/// Maximum time for a server to start.
const UP: Duration = Duration::from_secs(10);

/// Number of entries prepared at once while the table is filled.
const PART: usize = 1 << 14;

/// Number of operations from which the number that fills the time is estimated.
const TRIED: usize = 256;

/// Minimum and maximum number of operations that are timed one by one.
const COUNTS: [usize; 2] = [1024, 1 << 16];

fn client<S: Store>(place: &Place) -> Outcome<()> {
    let keys = Keys::find(place.entries)?;
    let begun = Instant::now();
    let client = loop {
        match S::connect(place) {
            Ok(client) => break client,
            Err(error) if begun.elapsed() > UP => {
                return Err(format!("no server after {UP:?}: {error}").into());
            }
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    let mut driver =
        Driver { client, keys, clock: Clock::calibrated(), random: Random(1), version: 0 };
    driver.fill(S::FILL)?;
    answer_lines(|line| Ok(serde_json::to_string(&driver.command(line)?)?))
}

/// A client, with what the measurement needs.
struct Driver<C> {
    client: C,
    keys: Keys,
    clock: Clock,
    random: Random,
    version: u64,
}

impl<C: Client> Driver<C> {
    fn fill(&mut self, (way, case): (&str, Case)) -> Outcome<()> {
        for begin in (0..self.keys.len()).step_by(PART) {
            let numbers = (begin..self.keys.len().min(begin + PART)).collect();
            let batch = Batch::new(case, &self.keys, numbers, 0);
            self.client.prepare(way, &batch)?;
            (0..batch.steps()).try_for_each(|step| self.client.step(&batch, step))?;
        }
        Ok(())
    }

    fn command(&mut self, line: &str) -> Outcome<Summary> {
        let words: Vec<_> = line.split_ascii_whitespace().collect();
        let ["time", case, way, millis] = words[..] else { return Err("not a command".into()) };
        let case = Case::named(case).ok_or("no such case")?;
        self.time(case, way, Duration::from_millis(millis.parse()?))
    }

    /// Runs random operations for about this time each: some to warm up, some with a time stamp
    /// each, and as many others without.
    fn time(&mut self, case: Case, way: &str, time: Duration) -> Outcome<Summary> {
        let batch = self.at_random(case, way, TRIED)?;
        let begun = Instant::now();
        self.steps(&batch, 0..batch.steps())?;
        let each = begun.elapsed().as_nanos() as usize / TRIED;
        let count = (time.as_nanos() as usize / each.max(1))
            .clamp(COUNTS[0], COUNTS[1])
            .next_multiple_of(case.depth());
        let batch = self.at_random(case, way, TRIED + 2 * count)?;
        let (warm, count) = (TRIED / case.depth(), count / case.depth());
        self.steps(&batch, 0..warm)?;
        let mut samples = vec![1; count]; // not zero: pages must exist before timing begins
        let mut step = warm;
        self.clock.time_each(&mut samples, || {
            step += 1;
            self.client.step(&batch, step - 1)
        })?;
        let begun = Instant::now();
        self.steps(&batch, warm + count..warm + 2 * count)?;
        let mean_ns = begun.elapsed().as_nanos() as f64 / count as f64;
        let all = Summary::of(&mut samples, &self.clock, mean_ns);
        let p9999_ns = all.p9999_ns.filter(|_| case.depth() == 1);
        Ok(Summary { p9999_ns, ..all }.map(|ns| ns / case.depth() as f64))
    }

    fn at_random(&mut self, case: Case, way: &str, count: usize) -> Outcome<Batch> {
        let numbers = (0..count).map(|_| self.random.below(self.keys.len())).collect();
        self.version += 1;
        let batch = Batch::new(case, &self.keys, numbers, self.version);
        self.client.prepare(way, &batch)?;
        Ok(batch)
    }

    fn steps(&mut self, batch: &Batch, mut steps: std::ops::Range<usize>) -> Outcome<()> {
        steps.try_for_each(|step| self.client.step(batch, step))
    }
}

#[cfg(test)]
mod tests {
    use super::super::entries::check;
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn mistakes_are_told() {
        let told =
            |args: &[&str]| run(args.iter().map(OsString::from), &[]).unwrap_err().to_string();
        assert!(told(&["x"]).contains("usage: bench-cache"));
        assert!(told(&["x", "server", "1", "/tmp"]).contains("no store `x`"));
    }

    /// A table in this process.
    #[derive(Default)]
    struct Plain {
        entries: HashMap<String, Vec<u8>>,
        steps: usize,
    }

    impl Client for Plain {
        fn prepare(&mut self, _: &str, batch: &Batch) -> Outcome<()> {
            assert!(!batch.is_empty());
            Ok(())
        }

        fn step(&mut self, batch: &Batch, step: usize) -> Outcome<()> {
            self.steps += 1;
            for at in batch.step(step) {
                match batch.case.puts() {
                    true => {
                        _ = self.entries.insert(batch.key(at).to_owned(), batch.value(at).to_vec())
                    }
                    false => check(batch.number(at), &self.entries[batch.key(at)])?,
                }
            }
            Ok(())
        }
    }

    #[test]
    fn a_table_is_filled_and_timed() {
        let keys = Keys::find(1003).unwrap();
        let mut driver = Driver {
            client: Plain::default(),
            keys,
            clock: Clock::calibrated(),
            random: Random(1),
            version: 0,
        };
        driver.fill(("", Case::Put16)).unwrap();
        assert_eq!((driver.client.entries.len(), driver.client.steps), (1003, 63));
        for case in Case::ALL {
            let found = driver.command(&format!("time {case} x 1")).unwrap();
            assert!(
                found.count as usize >= COUNTS[0] / case.depth() && found.p50_ns <= found.p99_ns,
                "{case}: {found:?}"
            );
        }
        assert!(driver.command("time rest x 1").is_err() && driver.command("halt").is_err());
    }
}
