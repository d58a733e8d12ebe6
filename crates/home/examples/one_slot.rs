//! Measures Psyche's single slot for all requesters beside lanes: the round-trip time of a request,
//! and how often a request has to be sent again.
//!
//! Psyche's home has one location for a pointer to a request. A requester whose pointer was
//! overwritten sends it again after a time-out (`crates/shm/src/one_slot.rs`). In Upcall each
//! requester has a line of its own, and nothing is ever sent again.
//!
//! The example measures the slot with several time-outs, Upcall's lines in the same way (*lane*),
//! and a whole urgent invocation (*urgent*, with its lock, its encoding and its sleep). All run
//! between threads of one process: a home that polls, alone on its processor, and requesters on the
//! others. `one_slot --help` lists the options; docs/performance/objects.md has figures.
#![forbid(unsafe_code)]

use serde_json::json;
use std::error::Error;
use std::io::{IsTerminal, Write, stderr};
use std::sync::atomic::{
    AtomicBool, AtomicU64, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};
use upcall_home::{DataError, Homed, Operation, Operations, Place};
use upcall_os::processor::CpuSet;
use upcall_shm::one_slot::{OneSlot, WORDS};
use upcall_shm::single::{SingleCaller, SingleServer};
use upcall_shm::slot::{NO_ASTACK, Slot, SlotMessage, ValueLocation as At};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const MOST: usize = 8;
const REQUESTERS: [usize; 4] = [1, 2, 4, MOST];

/// How a request gets to the home.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// By the single slot; sent again after this time.
    Slot(Duration),
    /// By a line of the requester's own.
    Lane,
    /// By an urgent invocation.
    Urgent,
}

impl Way {
    fn name(self) -> String {
        match self {
            Self::Slot(after) => format!("slot, {} µs", after.as_micros()),
            Self::Lane => "lane".into(),
            Self::Urgent => "urgent".into(),
        }
    }
}

/// Checks that each request is run once.
///
/// A requester numbers its requests, independent of how they are sent. The home must find each of
/// them once and in order, and counts others as wrong.
struct Once {
    asked: [AtomicU64; MOST],
    done: [AtomicU64; MOST],
    wrong: AtomicU64,
}

static ONCE: Once = Once {
    asked: [const { AtomicU64::new(0) }; MOST],
    done: [const { AtomicU64::new(0) }; MOST],
    wrong: AtomicU64::new(0),
};

impl Once {
    /// The number of a requester's next request.
    fn ask(&self, number: usize) -> u64 {
        let next = self.asked[number].load(Relaxed) + 1;
        self.asked[number].store(next, Relaxed);
        next
    }

    /// The operation, which takes a little longer than `ns`.
    fn run(&self, number: usize, turn: u64, ns: u64) -> u64 {
        let Some(done) = self.done.get(number) else { return 0 };
        if done.load(Relaxed) + 1 != turn {
            self.wrong.fetch_add(1, Relaxed);
        }
        done.store(turn, Relaxed);
        if ns > 0 {
            let begun = Instant::now();
            while (begun.elapsed().as_nanos() as u64) < ns {
                std::hint::spin_loop();
            }
        }
        turn
    }

    /// The number of requests, if each was run once.
    fn check(&self) -> Outcome<u64> {
        let sum = |of: &[AtomicU64]| of.iter().map(|one| one.load(Acquire)).sum::<u64>();
        let (asked, done, wrong) = (sum(&self.asked), sum(&self.done), self.wrong.load(Acquire));
        let each = (0..MOST).all(|at| self.asked[at].load(Acquire) == self.done[at].load(Acquire));
        if each && wrong == 0 {
            Ok(asked)
        } else {
            Err(format!(
                "of {asked} requests {done} were run, and {wrong} more than once or out of turn"
            )
            .into())
        }
    }
}

impl Operation for Once {
    type Of = u64;
    type Args<'a> = (usize, u64, u64);
    type Reply = u64;
    const NAME: &'static str = "once";

    fn run(
        number: Place<'_, u64>,
        (requester, turn, ns): (usize, u64, u64),
    ) -> Result<u64, DataError> {
        number.update(|number| number + 1)?;
        Ok(ONCE.run(requester, turn, ns))
    }
}

/// Number of polls of a requester before it reads the clock, and of readings before it yields.
const LOOKS: u32 = 32;
const TURNS: u32 = 4;

/// Waits until `there` returns `true`, and calls `again` each time that `after` has passed.
fn wait(mut there: impl FnMut() -> bool, after: Duration, mut again: impl FnMut()) {
    let (mut since, mut turns) = (Instant::now(), 0_u32);
    loop {
        for _ in 0..LOOKS {
            if there() {
                return;
            }
            std::hint::spin_loop();
        }
        if since.elapsed() >= after {
            again();
            since = Instant::now();
        }
        turns += 1;
        if turns.is_multiple_of(TURNS) {
            thread::yield_now();
        }
    }
}

/// Sends a request. Returns the reply, and how often the request was sent again.
type Ask<'a> = Box<dyn FnMut(u64) -> Outcome<(u64, u64)> + 'a>;

/// What all threads of a turn share.
struct Turn {
    way: Way,
    ns: u64,
    slot: OneSlot,
    lanes: Vec<Arc<Slot>>,
    object: String,
    over: AtomicBool,
    asking: AtomicUsize,
}

impl Turn {
    fn of(way: Way, requesters: usize, ns: u64, object: &str) -> Self {
        Self {
            way,
            ns,
            slot: OneSlot::new(requesters),
            lanes: (0..requesters).map(|_| Arc::default()).collect(),
            object: object.into(),
            over: AtomicBool::new(false),
            asking: AtomicUsize::new(requesters),
        }
    }

    fn asks(&self, number: usize) -> Outcome<Ask<'_>> {
        let (ns, slot) = (self.ns, &self.slot);
        Ok(match self.way {
            Way::Slot(after) => Box::new(move |turn| {
                let (mut words, mut again) = ([0; WORDS], 0);
                [words[0], words[1]] = [turn, ns];
                slot.send(number, &words);
                wait(
                    || slot.is_received(number),
                    after,
                    || {
                        slot.resend(number);
                        again += 1;
                    },
                );
                let mut reply = None;
                let there = || {
                    reply = slot.take(number);
                    reply.is_some()
                };
                wait(there, Duration::MAX, || ());
                Ok((reply.map_or(0, |words| words[0]), again))
            }),
            Way::Lane => {
                let caller = SingleCaller::new(self.lanes[number].clone());
                Box::new(move |turn| {
                    caller.send(&image(turn, ns));
                    let mut reply = SlotMessage::new(0, 0, NO_ASTACK);
                    wait(|| caller.take(&mut reply), Duration::MAX, || ());
                    Ok((reply.values[0], 0))
                })
            }
            Way::Urgent => {
                let away = Homed::<u64>::find(&self.object)?;
                Box::new(move |turn| Ok((away.urgent::<Once>((number, turn, ns))?, 0)))
            }
        })
    }

    /// The home: polls until all requesters are done.
    fn serve(&self, home: &Homed<u64>, begin: &Barrier) -> Outcome<()> {
        let servers =
            self.lanes.iter().map(|lane| SingleServer::new(lane.clone())).collect::<Vec<_>>();
        let serving = (self.way == Way::Urgent)
            .then(|| home.serve(Operations::new().operation::<Once>()))
            .transpose();
        // A thread that fails to begin does not keep the others waiting.
        begin.wait();
        let serving = serving?;
        while self.asking.load(Acquire) > 0 {
            if let Some(serving) = &serving {
                serving.poll();
            } else if self.way == Way::Lane {
                for (number, server) in servers.iter().enumerate() {
                    let mut request = SlotMessage::new(0, 0, NO_ASTACK);
                    if server.take_alone(&mut request) {
                        let [turn, ns, ..] = request.values;
                        server.reply(&image(ONCE.run(number, turn, ns), 0));
                    }
                }
            } else {
                self.slot.look(|number, mut words| {
                    words[0] = ONCE.run(number, words[0], words[1]);
                    words
                });
            }
        }
        Ok(())
    }

    /// A requester. Returns the time of each request, in ns, and how often requests were sent
    /// again.
    fn ask(&self, number: usize, begin: &Barrier) -> Outcome<(Vec<u32>, u64)> {
        let asks = self.asks(number);
        begin.wait();
        let (mut ask, mut took, mut again) = (asks?, Vec::with_capacity(1 << 16), 0);
        let mut once = || -> Outcome<(u32, u64)> {
            let turn = ONCE.ask(number);
            let begun = Instant::now();
            let (reply, again) = ask(turn)?;
            let took = begun.elapsed().as_nanos().min(u128::from(u32::MAX)) as u32;
            if reply != turn {
                return Err(format!("the reply is {reply}, but {turn} was expected").into());
            }
            Ok((took, again))
        };
        // The first request also opens what there is to open.
        once()?;
        while !self.over.load(Relaxed) {
            let (ns, more) = once()?;
            took.push(ns);
            again += more;
        }
        Ok((took, again))
    }

    /// Runs the turn for this time.
    fn go(&self, home: &Homed<u64>, time: Duration) -> Outcome<Found> {
        let requesters = self.lanes.len();
        let (begin, seats) = (&Barrier::new(requesters + 2), Seats::find()?);
        thread::scope(|scope| {
            let serves = scope.spawn({
                let (seats, home) = (seats.clone(), home.try_clone()?);
                move || {
                    let confined = seats.home.confine();
                    self.serve(&home, begin).and(confined.map_err(Into::into))
                }
            });
            let asks = (0..requesters).map(|number| {
                let seats = seats.clone();
                scope.spawn(move || {
                    let confined = seats.others.confine();
                    let done = self.ask(number, begin);
                    self.asking.fetch_sub(1, Release);
                    confined?;
                    done
                })
            });
            let asks = asks.collect::<Vec<_>>();
            begin.wait();
            let begun = Instant::now();
            thread::sleep(time);
            self.over.store(true, Relaxed);
            let mut found = Found::default();
            for asks in asks {
                let (took, again) = asks.join().map_err(|_| "a requester has panicked")??;
                found.ns.extend(took);
                found.again += again;
            }
            found.per_s.push(found.ns.len() as f64 / begun.elapsed().as_secs_f64());
            serves.join().map_err(|_| "the home has panicked")??;
            Ok(found)
        })
    }
}

/// The processors of the home and of the requesters.
#[derive(Clone)]
struct Seats {
    home: CpuSet,
    others: CpuSet,
}

impl Seats {
    fn find() -> Outcome<Self> {
        let all = CpuSet::allowed()?;
        let last = all.iter().last().ok_or("no processor is allowed")?;
        let others = if all.count() > 1 { all.without(last) } else { all };
        Ok(Self { home: CpuSet::only(last), others })
    }
}

/// The measurements of a method, in all rounds.
#[derive(Debug, Default)]
struct Found {
    /// Time of each request.
    ns: Vec<u32>,
    /// Requests per second in each round.
    per_s: Vec<f64>,
    again: u64,
}

impl Found {
    fn add(&mut self, more: Self) {
        self.ns.extend(more.ns);
        self.per_s.extend(more.per_s);
        self.again += more.again;
    }

    fn quantile(&self, percent: usize) -> u32 {
        let mut ns = self.ns.clone();
        let at = ns.len().saturating_sub(1) * percent / 100;
        if ns.is_empty() { 0 } else { *ns.select_nth_unstable(at).1 }
    }
}

fn median(of: &[f64]) -> f64 {
    let mut of = of.to_vec();
    of.sort_by(f64::total_cmp);
    of.get(of.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Round-trip time of a cache line between the home's processor and another one, in ns.
fn line() -> Outcome<f64> {
    const EACH: u64 = 5000;
    let (word, seats) = (&AtomicU64::new(0), Seats::find()?);
    let until = |value| {
        let mut looks = 0_u32;
        while word.load(Acquire) != value {
            looks += 1;
            if looks.is_multiple_of(1 << 14) {
                thread::yield_now();
            }
        }
    };
    thread::scope(|scope| {
        let home = seats.home.clone();
        scope.spawn(move || {
            let _ = home.confine();
            for turn in 0..EACH {
                until(2 * turn + 1);
                word.store(2 * turn + 2, Release);
            }
        });
        let asks = scope.spawn(move || {
            let _ = seats.others.confine();
            let mut begun = Instant::now();
            for turn in 0..EACH {
                if turn == EACH / 5 {
                    begun = Instant::now();
                }
                word.store(2 * turn + 1, Release);
                until(2 * turn + 2);
            }
            begun.elapsed().as_nanos() as f64 / (EACH - EACH / 5) as f64
        });
        asks.join().map_err(|_| "a thread has panicked".into())
    })
}

/// The options on the command line.
struct Plan {
    /// Time of each case in a round.
    time: Duration,
    rounds: usize,
    after: Vec<u64>,
    works: Vec<u64>,
    json: bool,
}

const HELP: &str = "Measures Psyche's single slot for all requesters beside lanes.

Usage: one_slot [--ms N] [--rounds N] [--after LIST] [--work LIST] [--json]

  --ms N        measuring time of each case in a round, ms (40)
  --rounds N    number of rounds, each of all cases (5)
  --after LIST  time-outs after which a request is sent again, µs (2,20,200)
  --work LIST   times that the operation takes at the home, ns (0,2000,20000)
  --json        print records in place of a table
  --help        print this text

Examples:
  cargo run --release -p upcall-home --example one_slot
  cargo run --release -p upcall-home --example one_slot -- --ms 10 --rounds 1
  cargo run --release -p upcall-home --example one_slot -- --after 5 --work 500 --json > slot.json";

impl Plan {
    /// Parses the command line. Returns `None` if it asks for help.
    fn of(mut words: impl Iterator<Item = String>) -> Outcome<Option<Self>> {
        let mut plan = Self {
            time: Duration::from_millis(40),
            rounds: 5,
            after: vec![2, 20, 200],
            works: vec![0, 2000, 20_000],
            json: false,
        };
        while let Some(word) = words.next() {
            let mut numbers = |least: u64| -> Outcome<Vec<u64>> {
                let said = words.next().unwrap_or_default();
                let said = said
                    .split(',')
                    .map(|number| number.parse().ok().filter(|number| *number >= least));
                said.collect::<Option<_>>().ok_or_else(|| {
                    format!("{word} takes numbers of at least {least}; see --help").into()
                })
            };
            match word.as_str() {
                "--ms" => plan.time = Duration::from_millis(numbers(1)?[0]),
                "--rounds" => plan.rounds = numbers(1)?[0] as usize,
                "--after" => plan.after = numbers(1)?,
                "--work" => plan.works = numbers(0)?,
                "--json" => plan.json = true,
                "--help" | "-h" => return Ok(None),
                _ => return Err(format!("unknown option {word}; see --help").into()),
            }
        }
        Ok(Some(plan))
    }

    fn cases(&self) -> Vec<(u64, usize, Way)> {
        let ways = self.after.iter().map(|after| Way::Slot(Duration::from_micros(*after)));
        let ways = ways.chain([Way::Lane, Way::Urgent]).collect::<Vec<_>>();
        let of = |work| REQUESTERS.into_iter().flat_map(move |requesters| [(work, requesters)]);
        let all = self.works.iter().flat_map(|&work| of(work));
        all.flat_map(|(work, requesters)| ways.iter().map(move |&way| (work, requesters, way)))
            .collect()
    }
}

/// Reports progress on standard error: one changing line on a terminal, else one line for each
/// round.
fn say(round: usize, rounds: usize, what: &str) {
    if stderr().is_terminal() {
        eprint!("\r\x1b[Kround {} of {rounds}{what}", round + 1);
        let _ = stderr().flush();
    } else if what.is_empty() {
        eprintln!("round {} of {rounds}", round + 1);
    }
}

fn main() -> Outcome<()> {
    let Some(plan) = Plan::of(std::env::args().skip(1))? else {
        println!("{HELP}");
        return Ok(());
    };
    let home =
        Homed::<u64>::create(&format!("one-slot-{}", std::process::id())).with(|_| Ok(()))?;
    let cases = plan.cases();
    let (mut found, mut lines) =
        (cases.iter().map(|_| Found::default()).collect::<Vec<_>>(), Vec::new());
    for round in 0..plan.rounds {
        say(round, plan.rounds, "");
        lines.push(line()?);
        for (found, &(work, requesters, way)) in found.iter_mut().zip(&cases) {
            say(
                round,
                plan.rounds,
                &format!(": {work} ns, {requesters} requesters, {}", way.name()),
            );
            found.add(Turn::of(way, requesters, work, home.name()).go(&home, plan.time)?);
        }
        lines.push(line()?);
    }
    if stderr().is_terminal() {
        eprint!("\r\x1b[K");
    }
    let all = ONCE.check()?;
    lines.sort_by(f64::total_cmp);
    let line = [lines[0], lines[lines.len() / 2], lines[lines.len() - 1]];
    let mut records = Vec::new();
    if !plan.json {
        println!("a line there and back: {:.0} ns ({:.0} to {:.0})", line[1], line[0], line[2]);
        println!(
            "{:>8} {:>10} {:13} {:>10} {:>10} {:>12} {:>12}",
            "work, ns", "requesters", "way", "median, ns", "p99, ns", "requests/s", "resends/1000"
        );
    }
    for (found, (work, requesters, way)) in found.iter().zip(cases) {
        let (median_ns, p99, per_s) =
            (found.quantile(50), found.quantile(99), median(&found.per_s));
        let again = found.again as f64 * 1000.0 / found.ns.len().max(1) as f64;
        if plan.json {
            let after =
                if let Way::Slot(after) = way { Some(after.as_micros() as u64) } else { None };
            let name = if after.is_some() { "slot".into() } else { way.name() };
            records.push(json!({
                "work_ns": work, "requesters": requesters, "way": name, "after_us": after,
                "requests": found.ns.len(), "median_ns": median_ns, "p99_ns": p99,
                "requests_per_s": per_s, "resends_per_1000": again,
            }));
        } else {
            println!(
                "{work:>8} {requesters:>10} {:13} {median_ns:>10} {p99:>10} \
                 {per_s:>12.0} {again:>12.2}",
                way.name()
            );
        }
    }
    if plan.json {
        println!(
            "{:#}",
            json!({ "line_ns": line, "requests": all, "each_was_run_once": true, "cases": records })
        );
    } else {
        println!("each of {all} requests was run once");
    }
    Ok(())
}

/// A message of two numbers.
fn image(turn: u64, ns: u64) -> SlotMessage {
    let mut image = SlotMessage::new(0, 0, NO_ASTACK);
    [image.values[0], image.values[1]] = [turn, ns];
    image.place(At::Inline, 0, 16);
    image
}
