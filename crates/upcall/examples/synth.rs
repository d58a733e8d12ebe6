//! synth-N: N requests to other members, then a wait for all N acknowledgements, again and again.
//! How many messages are buffered? (UDM, section 5.2 and Figure 7.)
//!
//! ```text
//! synth [NAME=NUMBER …]                              by itself: each member is a thread
//! upcall job run --group 2 -- synth [NAME=NUMBER …]  as a job: each process is a member
//! ```
//!
//! The arguments, with their defaults:
//!
//! - `n` (100): requests in a batch.
//! - `groups` (100): batches of each producer.
//! - `interval` (2000): ns from one request to the next, on average.
//! - `handler` (1000): ns for which a request occupies its receiver.
//! - `bytes` (8): size of a request.
//! - `producers` (0: all): number of members that send to the others, counted from the first.
//! - `away` (0) and `slice` (10000000): ns for which consumers do not poll at the beginning of each
//!   slice, as if the kernel scheduled them late, and the length of a slice.
//! - `timeout` (200000): ns for which a sender waits for room before its messages are buffered.
//! - `members` (2): number of threads.
//!
//! Several intervals, separated by commas, are tried one after another:
//!
//! ```text
//! synth n=1000 interval=5000,10000,20000 handler=10000 bytes=8000 producers=1 \
//!       away=200000 slice=7000000 timeout=50000
//! ```
#![forbid(unsafe_code)]

use std::cell::Cell;
use std::error::Error;
use std::rc::Rc;
use std::time::{Duration, Instant};
use upcall::message::{Group, GroupBuilder, Handlers, JoinError, Kind, Rank};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// The members' work. Times are in ns.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Number of requests in a batch.
    pub n: u64,
    /// Number of batches of each producer.
    pub groups: u64,
    /// Time from one request to the next, on average.
    pub interval: u64,
    /// Time for which a request occupies its receiver.
    pub handler: u64,
    /// Size of a request.
    pub bytes: usize,
    /// Number of producers, counted from the first member; the others consume. If 0, all do both.
    pub producers: usize,
    /// Time for which consumers do not poll at the beginning of each slice.
    pub away: u64,
    /// Length of a slice.
    pub slice: u64,
    /// Time for which a sender waits for room before its messages are buffered.
    pub timeout: u64,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            n: 100,
            groups: 100,
            interval: 2000,
            handler: 1000,
            bytes: 8,
            producers: 0,
            away: 0,
            slice: 10_000_000,
            timeout: 200_000,
        }
    }
}

/// The result of a run.
#[derive(Clone, Copy, Debug)]
pub struct Ran {
    /// Number of requests of all members, which is also the number of acknowledgements.
    pub requests: u64,
    /// Number of messages that went through a buffer.
    pub buffered: u64,
    /// Time from when all members were ready until all were done.
    pub time: Duration,
}

fn spin(time: Duration) {
    let begun = Instant::now();
    while begun.elapsed() < time {
        std::hint::spin_loop();
    }
}

/// A pseudo-random number generator.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((u128::from(self.0 >> 32) * u128::from(limit)) >> 32) as u64
    }
}

/// Time slices, at the beginning of which a consumer does not poll.
struct Slices {
    length: Duration,
    away: Duration,
    next: Cell<Instant>,
}

impl Slices {
    fn look(&self) {
        if !self.away.is_zero() && Instant::now() >= self.next.get() {
            spin(self.away);
            self.next.set(Instant::now() + self.length - self.away);
        }
    }
}

/// A member, and the acknowledgements that it has received.
struct Member {
    group: Group,
    request: Kind<[u8]>,
    over: Kind<()>,
    answered: Rc<Cell<u64>>,
    ended: Rc<Cell<usize>>,
    slices: Slices,
}

impl Member {
    fn join(joining: GroupBuilder, plan: &Plan) -> Outcome<Self> {
        let mut handlers = Handlers::new();
        let (request, done, over) =
            (handlers.kind("request"), handlers.kind::<()>("done"), handlers.kind("over"));
        let (answered, ended) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        let handler = Duration::from_nanos(plan.handler);
        // A request is read in place, not copied. Its place is free when the handler ends.
        handlers.on_message::<[u8]>(request, move |group, request| {
            spin(handler);
            // A member that has ended or violates the protocol needs no answer; the others find out
            // as they wait.
            let _ = group.send(request.from(), done, &());
        });
        handlers.on(done, {
            let answered = answered.clone();
            move |_, _, ()| answered.set(answered.get() + 1)
        });
        handlers.on(over, {
            let ended = ended.clone();
            move |_, _, ()| ended.set(ended.get() + 1)
        });
        let group = joining.timeout(Some(Duration::from_nanos(plan.timeout))).join(handlers)?;
        let consumes = group.rank() >= plan.producers;
        let away = Duration::from_nanos(if consumes { plan.away } else { 0 });
        let slices = Slices {
            length: Duration::from_nanos(plan.slice),
            away,
            next: Cell::new(Instant::now()),
        };
        Ok(Self { group, request, over, answered, ended, slices })
    }

    /// Serves others until `done` returns `true`.
    fn until(&self, done: impl Fn() -> bool) -> Outcome<()> {
        Ok(self.group.run_until(|| {
            self.slices.look();
            done()
        })?)
    }

    fn produce(&self, plan: &Plan) -> Outcome<u64> {
        let (group, rank) = (&self.group, self.group.rank());
        // Sends to the members that only consume, or to all others.
        let least = if plan.producers < group.size() { plan.producers } else { 0 };
        let others: Vec<Rank> = (least..group.size()).filter(|&other| other != rank).collect();
        if others.is_empty() {
            return Err(
                "there is nobody to send to: at least two members, not all of them producers"
                    .into(),
            );
        }
        let (bytes, mut random, mut sent) = (vec![7; plan.bytes], Random(rank as u64 + 1), 0);
        for _ in 0..plan.groups {
            for _ in 0..plan.n {
                let (begun, pause) =
                    (Instant::now(), Duration::from_nanos(random.below(2 * plan.interval.max(1))));
                while begun.elapsed() < pause {
                    group.poll();
                    self.slices.look();
                }
                let to = others[random.below(others.len() as u64) as usize];
                group.send(to, self.request, &bytes)?;
                sent += 1;
            }
            self.until(|| self.answered.get() == sent)?;
        }
        Ok(sent)
    }
}

/// Takes part as a member.
pub fn run(joining: GroupBuilder, plan: &Plan) -> Outcome<Ran> {
    let member = Member::join(joining, plan)?;
    let group = &member.group;
    group.barrier()?;
    let (begun, size) = (Instant::now(), group.size());
    let producers = if plan.producers == 0 { size } else { plan.producers.min(size) };
    let mut requests = 0;
    if group.rank() < producers {
        requests = member.produce(plan)?;
        for other in (0..size).filter(|&other| other != group.rank()) {
            group.send(other, member.over, &())?;
        }
    }
    let others = producers - usize::from(group.rank() < producers);
    member.until(|| member.ended.get() == others)?;
    let sum = |number| group.reduce(number, |a: u64, b| a + b);
    let (requests, buffered) = (sum(requests)?, sum(group.diverted())?);
    Ok(Ran { requests, buffered, time: begun.elapsed() })
}

/// Parses the command line: a plan for each interval, and the number of members if this is not a
/// job.
fn plans(words: impl Iterator<Item = String>) -> Outcome<(Vec<Plan>, usize)> {
    let (mut plan, mut intervals, mut members) = (Plan::default(), Vec::new(), 2);
    for word in words {
        let unknown =
            || format!("{word}: not NAME=NUMBER with a name of those at the top of this program");
        let (name, number) = word.split_once('=').ok_or_else(unknown)?;
        if name == "interval" {
            intervals = number
                .split(',')
                .map(str::parse)
                .collect::<Result<_, _>>()
                .map_err(|_| unknown())?;
            continue;
        }
        let number: u64 = number.parse().map_err(|_| unknown())?;
        match name {
            "n" => plan.n = number,
            "groups" => plan.groups = number,
            "handler" => plan.handler = number,
            "bytes" => plan.bytes = number as usize,
            "producers" => plan.producers = number as usize,
            "away" => plan.away = number,
            "slice" => plan.slice = number.max(plan.away),
            "timeout" => plan.timeout = number,
            "members" => members = number as usize,
            _ => return Err(unknown().into()),
        }
    }
    if intervals.is_empty() {
        intervals.push(plan.interval);
    }
    Ok((intervals.into_iter().map(|interval| Plan { interval, ..plan.clone() }).collect(), members))
}

/// Runs all plans; the first member prints the results.
fn member(joining: &GroupBuilder, is_first: bool, plans: &[Plan]) -> Outcome<()> {
    for plan in plans {
        let Ran { requests, buffered, time } = run(joining.clone(), plan)?;
        if is_first {
            let (name, percent) =
                (format!("synth-{}", plan.n), 100.0 * buffered as f64 / requests.max(1) as f64);
            println!(
                "{name}, each {} ns: {requests} requests in {time:.3?}, {buffered} messages \
                buffered ({percent:.2} %)",
                plan.interval
            );
        }
    }
    Ok(())
}

fn main() -> Outcome<()> {
    let (plans, members) = plans(std::env::args().skip(1))?;
    match GroupBuilder::from_environment() {
        Ok(joining) => {
            member(&joining, std::env::var("UPCALL_RANK").is_ok_and(|rank| rank == "0"), &plans)
        }
        Err(JoinError::NoJob { found: None, .. }) => {
            let name = format!("synth-{}", std::process::id());
            let joining = |rank| GroupBuilder::new(&name, members).rank(rank);
            let plans = &plans;
            std::thread::scope(|scope| {
                let start = |rank| scope.spawn(move || member(&joining(rank), rank == 0, plans));
                let all: Vec<_> = (0..members).map(start).collect();
                all.into_iter().try_for_each(|one| {
                    one.join().unwrap_or_else(|_| Err("a member panicked".into()))
                })
            })
        }
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn together(members: usize, plan: &Plan) -> Ran {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name =
            format!("synth-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let one = |rank: usize| run(GroupBuilder::new(&name, members).rank(rank), plan).unwrap();
        let all: Vec<Ran> = std::thread::scope(|scope| {
            let start = |rank| {
                let one = &one;
                scope.spawn(move || one(rank))
            };
            let started: Vec<_> = (0..members).map(start).collect();
            started.into_iter().map(|member| member.join().unwrap()).collect()
        });
        assert!(
            all.iter()
                .all(|ran| (ran.requests, ran.buffered) == (all[0].requests, all[0].buffered))
        );
        all[0]
    }

    #[test]
    fn requests_are_counted_and_those_that_are_buffered() {
        let plan = Plan { n: 10, groups: 5, interval: 100, handler: 100, ..Plan::default() };
        assert_eq!(together(3, &plan).requests, 150);
        // Without a wait for room, all messages are buffered.
        let always = together(2, &Plan { producers: 1, timeout: 0, ..plan });
        assert_eq!((always.requests, always.buffered >= 100), (50, true), "{always:?}");
    }

    #[test]
    fn plans_are_understood() {
        let read = |line: &str| plans(line.split(' ').map(String::from));
        let (plans, members) = read("n=10 interval=5,7 members=4 bytes=16").unwrap();
        assert_eq!(
            (plans.len(), plans[1].interval, plans[1].n, plans[1].bytes, members),
            (2, 7, 10, 16, 4)
        );
        assert!(read("n").is_err() && read("speed=3").unwrap_err().to_string().contains("speed=3"));
    }
}
