//! The child's side of the suite `rpc`: what a system under test has to provide, and the protocol
//! that all systems speak.
//!
//! ```text
//! EXE bench-child SYSTEM server|client
//!     --cpus N,… --placement two-cores|one-core --mode polling|parked --dir DIR
//! ```
//! Each child confines itself to its processors (one for a client, and usually for a server),
//! connects or serves through files in DIR only, and prints `ready`. The server then serves until
//! its standard input ends. The client reads commands, one a line, and answers each with one line:
//!
//! | command | answer |
//! |---|---|
//! | `latency CASE COUNT MILLIS` | a summary |
//! | `throughput null CALLERS MILLIS` | `{"calls":…,"elapsed_ns":…}`, or unsupported |
//! | `bind ROUNDS` | `{"first":{…},"further":{…}}`, a summary each; or unsupported |
//! | `mix FIRST MILLIS DIR …` | as for `throughput` |
//! | `halves COUNT` | `{"there":{…},"back":{…}}`, a summary each; or unsupported |
//! | `quit` | none; the client ends |
//!
//! A summary is `{"p50_ns":…,"p99_ns":…,"p999_ns":…,"p9999_ns":…,"mean_ns":…,"count":…}`, with
//! `p9999_ns` from 20 000 calls on. The answer `unsupported` is `{"unsupported":true}`. Any command
//! may be answered `{"error":"…"}`. A child dies with the harness, however the harness ends.

use std::error::Error;
use std::ffi::OsString;
use std::io::{self, BufRead, Read, Write};
use std::ops::Range;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Signal, set_parent_process_death_signal};

use crate::case::{BIG, Case, Mode, Placement};
pub use crate::found::{Binds, Halves, Throughput};
use crate::payload::{checksum, expected, fill};
use crate::place::{self, confine};
use crate::stats::{Clock, Summary};

/// The result of a system's functions. The message is shown to the user of the benchmark.
pub type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Where and how this child runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The processors to which this child is confined.
    pub cpus: Vec<usize>,
    /// Where client and server run.
    pub placement: Placement,
    /// How the server waits.
    pub mode: Mode,
    /// Directory for the sockets and other files of this pair only. It is empty at the start, and
    /// the harness removes it.
    pub dir: PathBuf,
}

impl Place {
    /// Returns the prefix for names of files in /dev/shm, for a system that cannot place its shared
    /// memory elsewhere. The harness removes these files with `dir`.
    pub fn shared_memory_prefix(&self) -> String {
        crate::pair::shared_memory_prefix(&self.dir)
    }
}

/// A system under test. The table passed to [`child_main`] has one `Entry` for each system.
pub trait System {
    /// The name in records and on the command line.
    const NAME: &'static str;
    /// The client.
    type Client: ClientSide;

    /// Runs the server. Announces itself by `ready` when clients can connect. Returns when [`Stop`]
    /// requests it, or never.
    ///
    /// # Errors
    /// The server cannot run.
    fn serve(place: &Place, ready: Ready) -> Outcome<()>;

    /// Connects to the server of this pair, which has been announced.
    ///
    /// # Errors
    /// The client cannot connect.
    fn connect(place: &Place) -> Outcome<Self::Client>;
}

/// The calls that every system makes. [`crate::payload::answer`] has the server's answers.
pub trait ClientSide {
    /// Calls `null`.
    ///
    /// # Errors
    /// The call failed, as for all methods of this trait.
    fn null(&mut self) -> Outcome<()>;
    /// Calls `add`.
    fn add(&mut self, a: i32, b: i32) -> Outcome<i32>;
    /// Calls `bigin`, and returns the checksum.
    fn big_in(&mut self, data: &[u8; BIG]) -> Outcome<u64>;
    /// Calls `biginout`.
    fn big_in_out(&mut self, data: &[u8; BIG]) -> Outcome<[u8; BIG]>;
    /// Calls `in-4k`, `in-64k` or `in-1m`, and returns the checksum.
    fn bytes_in(&mut self, data: &[u8]) -> Outcome<u64>;

    /// Makes null calls by `callers` callers for about `time`, all on this child's processor.
    /// Returns `None` if the system cannot have that many calls outstanding.
    fn throughput(&mut self, callers: usize, time: Duration) -> Option<Outcome<Throughput>>
    where
        Self: Sized,
    {
        (callers == 1).then(|| Throughput::one_caller(self, time))
    }

    /// Times new binds for `rounds` rounds. In each, the first bind finds nothing between client
    /// and server, and some further binds follow. Returns `None` if the system does not distinguish
    /// them.
    fn bind(&mut self, rounds: usize) -> Option<Outcome<Binds>> {
        let _ = rounds;
        None
    }

    /// Makes null calls to several servers for about `time`, one at a time.
    ///
    /// `others` lists the directories of the other pairs. Of 16 calls, `first` go to this pair's
    /// server, and the others go to all servers in turn. Returns `None` if the system does not call
    /// several servers.
    fn mix(
        &mut self,
        others: &[PathBuf],
        first: usize,
        time: Duration,
    ) -> Option<Outcome<Throughput>> {
        let _ = (others, first, time);
        None
    }

    /// Makes null calls whose procedure reports when it ran. Returns `None` if the system has no
    /// such procedure.
    fn halves(&mut self, count: usize, clock: &Clock) -> Option<Outcome<Halves>> {
        let _ = (count, clock);
        None
    }
}

/// Announces to the harness that clients can connect.
#[derive(Debug)]
pub struct Ready(());

/// Reports when the server should stop.
#[derive(Debug, Clone)]
pub struct Stop(Arc<Asked>);

#[derive(Debug, Default)]
struct Asked {
    flag: AtomicBool,
    lock: Mutex<()>,
    came: Condvar,
}

impl Stop {
    /// Returns `true` if the harness has asked the server to end. Cheap enough for a polling loop.
    #[inline]
    pub fn requested(&self) -> bool {
        self.0.flag.load(Relaxed)
    }

    /// Blocks until the harness asks the server to end, for servers whose work is done by other
    /// threads. Uses no CPU, so that idle figures are the server's alone.
    pub fn wait(&self) {
        let mut held = self.0.lock.lock().unwrap_or_else(PoisonError::into_inner);
        while !self.requested() {
            held = self.0.came.wait(held).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn request(&self) {
        // Held while notifying: otherwise `wait` could check before the store and sleep after the
        // notification.
        let _held = self.0.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.0.flag.store(true, Relaxed);
        self.0.came.notify_all();
    }
}

/// Time that a stoppable server has to end by itself.
const GRACE: Duration = Duration::from_millis(1500);

impl Ready {
    pub(crate) fn new() -> Ready {
        Ready(())
    }

    /// Announces a server that needs no cleanup: the process exits when its standard input ends.
    pub fn announce(self) {
        announce();
        thread::spawn(|| {
            until_end_of_input();
            std::process::exit(0);
        });
    }

    /// Announces a server that needs cleanup. When its standard input ends, it has 1.5 s to observe
    /// `Stop` and return.
    pub fn announce_stoppable(self) -> Stop {
        announce();
        let stop = Stop(Arc::default());
        let asked = stop.clone();
        thread::spawn(move || {
            until_end_of_input();
            asked.request();
            thread::sleep(GRACE);
            std::process::exit(0);
        });
        stop
    }
}

fn announce() {
    println!("ready");
}

/// Answers each line of standard input with one line on standard output, until `quit` or the end of
/// input.
pub(crate) fn answer_lines(mut command: impl FnMut(&str) -> Outcome<String>) -> Outcome<()> {
    announce();
    for line in io::stdin().lock().lines() {
        let line = line?;
        if line == "quit" {
            break;
        }
        writeln!(io::stdout(), "{}", answer_line(&line, command(&line)))?;
    }
    Ok(())
}

/// Formats an answer, or an error, as a line.
pub(crate) fn answer_line(line: &str, answer: Outcome<String>) -> String {
    answer.unwrap_or_else(|error| {
        serde_json::json!({ "error": format!("{line}: {error}") }).to_string()
    })
}

/// Replaces this process by another program, which dies with the thread that started this process.
/// Returns only if that failed.
pub fn become_program(command: &mut Command) -> io::Error {
    match set_parent_process_death_signal(Some(Signal::KILL)) {
        Ok(()) => command.exec(),
        Err(error) => error.into(),
    }
}

/// Returns the entry with this name, among the systems that this program provides.
pub(crate) fn entry<'a, E>(
    entries: &'a [E],
    what: &str,
    wished: &str,
    name: impl Fn(&E) -> &'static str,
) -> Outcome<&'a E> {
    let known = || entries.iter().map(&name).collect::<Vec<_>>().join(", ");
    let found = entries.iter().find(|entry| name(entry) == wished);
    let unknown = || format!("this program is no {what} `{wished}`; it can be: {}", known());
    Ok(found.ok_or_else(unknown)?)
}

fn until_end_of_input() {
    let mut bytes = [0; 64];
    while matches!(io::stdin().read(&mut bytes), Ok(1..)) {}
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
/// `args` are the arguments after `bench-child`; `systems` lists the systems that this program
/// provides. Errors go to standard error, which the harness shows.
pub fn child_main(args: impl IntoIterator<Item = OsString>, systems: &[Entry]) -> ExitCode {
    exit(run(args, systems))
}

/// Returns a child's exit code, after writing an error to standard error.
pub(crate) fn exit(outcome: Outcome<()>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: impl IntoIterator<Item = OsString>, systems: &[Entry]) -> Outcome<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let args = Args::parse(args)?;
    let system = entry(systems, "system", &args.system, |system| system.name)?;
    confine(&args.place.cpus)?;
    match args.role {
        Role::Server => (system.serve)(&args.place, Ready(())),
        Role::Client => (system.client)(&args.place),
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Role {
    Server,
    Client,
}

#[derive(Debug, PartialEq, Eq)]
struct Args {
    system: String,
    role: Role,
    place: Place,
}

const USAGE: &str = "bench-child SYSTEM server|client --cpus N,… --mode polling|parked --dir DIR \
    [--placement two-cores|one-core]";

impl Args {
    fn parse(args: impl IntoIterator<Item = OsString>) -> Outcome<Args> {
        let mut args = args.into_iter();
        let mut next = |what: &str| {
            let arg: OsString =
                args.next().ok_or_else(|| format!("{what} is missing; usage: {USAGE}"))?;
            arg.into_string().map_err(|arg| format!("{}: {what} is not text", arg.display()))
        };
        let system = next("SYSTEM")?;
        let role = match next("server|client")?.as_str() {
            "server" => Role::Server,
            "client" => Role::Client,
            other => {
                return Err(
                    format!("`{other}` is neither server nor client; usage: {USAGE}").into()
                );
            }
        };
        let (mut cpus, mut mode, mut dir, mut placement) = (None, None, None, Placement::TwoCores);
        while let Ok(flag) = next("") {
            let value = next(&flag)?;
            match flag.as_str() {
                "--cpus" => {
                    cpus = Some(
                        place::numbers(&value)
                            .ok_or_else(|| format!("--cpus {value}: not a list of numbers"))?,
                    )
                }
                "--mode" => mode = Some(value.parse()?),
                "--placement" => placement = value.parse()?,
                "--dir" => dir = Some(PathBuf::from(value)),
                _ => return Err(format!("unknown option {flag}; usage: {USAGE}").into()),
            }
        }
        let missing = |what: &str| format!("{what} is missing; usage: {USAGE}");
        let place = Place {
            cpus: cpus.ok_or_else(|| missing("--cpus"))?,
            placement,
            mode: mode.ok_or_else(|| missing("--mode"))?,
            dir: dir.ok_or_else(|| missing("--dir"))?,
        };
        Ok(Args { system, role, place })
    }
}

fn client<S: System>(place: &Place) -> Outcome<()> {
    let mut driver = Driver {
        client: S::connect(place)?,
        clock: Clock::calibrated(),
        seed: 1,
        payload: Vec::new(),
    };
    answer_lines(|line| driver.command(line))
}

/// A client, with what the measurement needs.
struct Driver<C> {
    client: C,
    clock: Clock,
    seed: u64,
    payload: Vec<u8>,
}

impl<C: ClientSide> Driver<C> {
    fn command(&mut self, line: &str) -> Outcome<String> {
        let words: Vec<_> = line.split_ascii_whitespace().collect();
        match words[..] {
            ["latency", case, count, millis] => {
                let most = Duration::from_millis(millis.parse()?);
                Ok(serde_json::to_string(&self.latency(case.parse()?, count.parse()?, most)?)?)
            }
            ["throughput", "null", callers, millis] => {
                let time = Duration::from_millis(millis.parse()?);
                match self.client.throughput(callers.parse()?, time) {
                    Some(done) => Ok(serde_json::to_string(&done?)?),
                    None => Ok(r#"{"unsupported":true}"#.to_owned()),
                }
            }
            ["bind", rounds] => match self.client.bind(rounds.parse()?) {
                Some(done) => Ok(serde_json::to_string(&done?)?),
                None => Ok(r#"{"unsupported":true}"#.to_owned()),
            },
            ["mix", first, millis, ref others @ ..] => {
                let (first, time) = (first.parse()?, Duration::from_millis(millis.parse()?));
                let others: Vec<_> = others.iter().map(PathBuf::from).collect();
                match self.client.mix(&others, first, time) {
                    Some(done) => Ok(serde_json::to_string(&done?)?),
                    None => Ok(r#"{"unsupported":true}"#.to_owned()),
                }
            }
            ["halves", count] => match self.client.halves(count.parse()?, &self.clock) {
                Some(done) => Ok(serde_json::to_string(&done?)?),
                None => Ok(r#"{"unsupported":true}"#.to_owned()),
            },
            _ => Err("not a command".into()),
        }
    }

    /// Makes `count` calls with a time stamp each, then as many without. Makes fewer if either part
    /// exceeds `most`, as happens when other programs have the processors.
    ///
    /// Filling and checking the payload are inside the measured time: they belong to the exchange,
    /// and are the same in every system.
    fn latency(&mut self, case: Case, count: usize, most: Duration) -> Outcome<Summary> {
        self.payload.clear();
        self.payload.resize(case.bytes(), 0);
        match case {
            Case::Null => self.measure(count, most, |client, _, _| client.null()),
            Case::NullGap(_) => self.after_gaps(count, most, case.gap().unwrap_or_default()),
            Case::Add => self.measure(count, most, |client, _, seed| {
                let (a, b) = (seed as i32, (seed >> 7) as i32);
                check(client.add(a, b)?, a.wrapping_add(b))
            }),
            Case::BigIn => self.measure(count, most, |client, data, seed| {
                fill(data, seed);
                check(client.big_in(big(data)?)?, expected(BIG, seed))
            }),
            Case::BigInOut => self.measure(count, most, |client, data, seed| {
                fill(data, seed);
                let out = client.big_in_out(big(data)?)?;
                check(checksum(&out), expected(BIG, expected(BIG, seed)))
            }),
            Case::In4k | Case::In64k | Case::In1m => {
                self.measure(count, most, |client, data, seed| {
                    fill(data, seed);
                    check(client.bytes_in(data)?, expected(data.len(), seed))
                })
            }
        }
    }

    /// Makes null calls, each after a sleep of `gap`, which is not measured. Makes fewer than
    /// `count` if they take longer than `most`. The mean is of the same calls.
    fn after_gaps(&mut self, count: usize, most: Duration, gap: Duration) -> Outcome<Summary> {
        // By default the kernel's timers are exact to 50 µs only.
        rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1))?;
        let begun = Instant::now();
        let mut samples = Vec::with_capacity(count);
        while samples.len() < count && (samples.len() < LEAST || begun.elapsed() < most) {
            thread::sleep(gap);
            let before = self.clock.read();
            self.client.null()?;
            samples.push(self.clock.read().wrapping_sub(before));
        }
        let sum: u64 = samples.iter().sum();
        let mean_ns = self.clock.ns(sum) / samples.len() as f64;
        Ok(Summary::of(&mut samples, &self.clock, mean_ns))
    }

    #[inline(always)]
    fn measure(
        &mut self,
        count: usize,
        most: Duration,
        mut call: impl FnMut(&mut C, &mut [u8], u64) -> Outcome<()>,
    ) -> Outcome<Summary> {
        if count == 0 {
            return Err("a count of 0 has no percentiles".into());
        }
        let Driver { client, clock, seed, payload } = self;
        let mut one = || {
            *seed = seed.wrapping_mul(5).wrapping_add(1);
            call(client, payload, *seed)
        };
        let mut samples = vec![1; count]; // not zero: pages must exist before timing begins
        let timed = in_parts(count, most, |part| clock.time_each(&mut samples[part], &mut one))?;
        samples.truncate(timed);
        let begun = Instant::now();
        let done = in_parts(count, most, |mut part| part.try_for_each(|_| one()))?;
        let mean_ns = begun.elapsed().as_nanos() as f64 / done as f64;
        Ok(Summary::of(&mut samples, clock, mean_ns))
    }
}

/// Minimum number of calls after gaps.
const LEAST: usize = 4;

/// Runs steps 0 to `count` in parts, until all are done or `most` has passed.
///
/// The clock is read between parts only, which is too rarely to affect the figures. Returns the
/// number of steps done; the first part is always run.
#[inline(always)]
fn in_parts(
    count: usize,
    most: Duration,
    mut run: impl FnMut(Range<usize>) -> Outcome<()>,
) -> Outcome<usize> {
    const PARTS: usize = 64;
    let begun = Instant::now();
    let mut done = 0;
    while done < count && (done == 0 || begun.elapsed() < most) {
        let end = count.min(done + count.div_ceil(PARTS));
        run(done..end)?;
        done = end;
    }
    Ok(done)
}

fn big(data: &[u8]) -> Outcome<&[u8; BIG]> {
    Ok(data.try_into()?)
}

fn check<T: PartialEq + std::fmt::Debug>(found: T, right: T) -> Outcome<()> {
    if found == right {
        Ok(())
    } else {
        Err(format!("a wrong answer: {found:?}; expected {right:?}").into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::payload::answer;

    fn parse(line: &str) -> Result<Args, String> {
        Args::parse(line.split(' ').map(OsString::from)).map_err(|error| error.to_string())
    }

    #[test]
    fn arguments_are_read() {
        let args = parse("limit server --cpus 3,4 --mode parked --dir /tmp/x --placement one-core")
            .unwrap();
        assert_eq!((args.system.as_str(), args.role), ("limit", Role::Server));
        let place = Place {
            cpus: vec![3, 4],
            placement: Placement::OneCore,
            mode: Mode::Parked,
            dir: PathBuf::from("/tmp/x"),
        };
        assert_eq!(args.place, place);
        assert_eq!(
            parse("a client --cpus 0 --mode polling --dir d").unwrap().place.placement,
            Placement::TwoCores
        );
    }

    #[test]
    fn bad_arguments_say_what_is_wrong() {
        for (line, says) in [
            ("limit", "server|client is missing"),
            ("limit queen", "`queen` is neither"),
            ("limit server --cpus 1,x", "--cpus 1,x: not a list of numbers"),
            ("limit server --cpus", "--cpus is missing"),
            ("limit server --cpus 0 --mode idle", "no mode `idle`; known: polling, parked"),
            ("limit server --cpus 0 --mode polling", "--dir is missing"),
            ("limit server --color red", "unknown option --color"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(says), "{line}: {error}");
        }
    }

    /// A system in the same process, with right or wrong answers.
    struct Direct {
        error: u64,
    }

    impl ClientSide for Direct {
        fn null(&mut self) -> Outcome<()> {
            Ok(())
        }
        fn add(&mut self, a: i32, b: i32) -> Outcome<i32> {
            Ok(answer::add(a, b))
        }
        fn big_in(&mut self, data: &[u8; BIG]) -> Outcome<u64> {
            Ok(answer::bytes_in(data) + self.error)
        }
        fn big_in_out(&mut self, data: &[u8; BIG]) -> Outcome<[u8; BIG]> {
            Ok(answer::big_in_out(data))
        }
        fn bytes_in(&mut self, data: &[u8]) -> Outcome<u64> {
            Ok(answer::bytes_in(data))
        }
    }

    fn driver(error: u64) -> Driver<Direct> {
        Driver {
            client: Direct { error },
            clock: Clock::calibrated(),
            seed: 1,
            payload: Vec::new(),
        }
    }

    #[test]
    fn every_case_is_measured_and_checked() {
        for case in Case::ALL {
            let answer = driver(0).command(&format!("latency {case} 10 10000")).unwrap();
            let summary: Summary = serde_json::from_str(&answer).unwrap();
            assert_eq!(summary.count, 10);
        }
        // More calls than fit in a millisecond: a part that has begun is finished, and the rest is
        // skipped.
        let answer = driver(0).command("latency in-1m 256 1").unwrap();
        let summary: Summary = serde_json::from_str(&answer).unwrap();
        assert!((4..256).contains(&summary.count), "{summary:?}");
        let error = driver(1).command("latency bigin 10 10000").unwrap_err().to_string();
        assert!(error.contains("a wrong answer"), "{error}");
    }

    #[test]
    fn throughput_of_one_caller_is_the_default() {
        let answer = driver(0).command("throughput null 1 2").unwrap();
        let done: Throughput = serde_json::from_str(&answer).unwrap();
        assert!(done.calls > 0 && done.elapsed_ns >= 2_000_000);
        assert_eq!(driver(0).command("throughput null 2 2").unwrap(), r#"{"unsupported":true}"#);
    }

    #[test]
    fn binds_are_told_apart() {
        let mut standing = 0;
        let binds = Binds::time(3, || {
            standing += 1;
            thread::sleep(Duration::from_millis(if standing % 5 == 1 { 4 } else { 1 }));
            Ok(())
        });
        let binds = binds.unwrap();
        assert_eq!((standing, binds.first.count, binds.further.count), (15, 3, 12));
        assert!(binds.first.p50_ns >= 4e6 && binds.further.p50_ns >= 1e6, "{binds:?}");
        assert!(Binds::time(0, || Ok(())).is_err());
        assert_eq!(driver(0).command("bind 1").unwrap(), r#"{"unsupported":true}"#);
    }

    #[test]
    fn a_stop_wakes_who_waits() {
        let stop = Stop(Arc::default());
        assert!(!stop.requested());
        thread::scope(|scope| {
            scope.spawn(|| stop.wait());
            stop.request();
        });
        stop.wait();
        assert!(stop.requested());
    }

    #[test]
    fn nonsense_is_an_error() {
        for line in [
            "",
            "latency",
            "latency null",
            "latency null 1",
            "latency null 0 1",
            "latency none 1 1",
            "throughput add 1 1",
            "stop",
        ] {
            assert!(driver(0).command(line).is_err(), "{line}");
        }
    }
}
