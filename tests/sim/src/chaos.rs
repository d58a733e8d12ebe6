//! Two to eight domains that send, take, are inattentive, sleep, are stopped and die, at random and
//! from a seed.
//!
//! A run goes through stages. In `ANYTHING` each domain does what its dice decide, and trouble
//! strikes. After a number of steps, in `DRAIN`, there is no more trouble, and the domains take
//! what is there until none can go on: then nothing may be left. In `LAST` each sends one more
//! message to all others, with which it goes home, and takes what arrives. In `ASLEEP` each falls
//! asleep once more: then no segment may take memory. What has to hold all the time is in
//! [`ledger`](crate::ledger), and how long a message may take, in [`member`](crate::member).

use crate::Rank;
use crate::bag::{Bag, File};
use crate::dice::{Dice, mixed};
use crate::engine::{self, Cpu, Failure, Setup};
use crate::ledger::{Ledger, Summary};
use crate::member::{Member, Outcome, Parts};
use crate::slices::Slices;
use crate::state::{FOREVER, Life, State};
use crate::trouble::Trouble;
use std::sync::{Arc, Weak};
use std::time::Duration;
use upcall_message::proto::flow;
use upcall_os::lock::KernelMutex;
use upcall_shm::station::StationLine;

const ANYTHING: u32 = 0;
const DRAIN: u32 = 1;
const LAST: u32 = 2;
const ASLEEP: u32 = 3;

/// A member leaves its group once in this many actions.
const LEAVES: u64 = 3000;

/// Number of attempts to send a last message.
const TRIES: u32 = 1000;

/// A run fails after this many times the steps that it should have.
const PATIENCE: u64 = 60;

/// What a seed makes of a run.
#[derive(Clone, Debug)]
struct Plan {
    seed: u64,
    steps: u64,
    count: usize,
    /// Number of words of home, and of each segment.
    home: usize,
    segment: usize,
    timeout: Option<Duration>,
    /// There is no memory once in this many times.
    short: u64,
    /// Number of bytes that each member may buffer.
    share: u64,
    /// Whether members wait for room. They do not if they might wait for a member that is stopped
    /// for ever. Members that wait for each other are notified.
    waits: bool,
    /// The member that gets most messages.
    flooded: Option<Rank>,
    slices: Vec<Option<Slices>>,
    trouble: Trouble,
}

impl Plan {
    fn new(seed: u64, steps: u64, few_segments: bool, dice: &Dice) -> Self {
        let count = 2 + dice.below(7) as usize;
        let home = dice.one_of(&[4, 8, 16, 16, 32, 64]);
        let limited = dice.once_in(3);
        let timeout = match dice.below(16) {
            0 => Some(0),
            // A member that always diverts depends most on its share.
            _ if limited && dice.once_in(4) => Some(0),
            1 | 2 => None,
            _ => Some(20 + dice.magnitude(10_000)),
        };
        let slice = 1000 << dice.below(6);
        let shared = dice.once_in(4);
        let slices = |rank: Rank| {
            let own =
                Slices { length: slice, of: 2, own: rank as u64 % 2, skew: rank as u64 * 100 };
            shared.then_some(own)
        };
        let calm = dice.once_in(6);
        let trouble = Trouble {
            dice: Dice::new(dice.any()),
            every: if calm { steps } else { 20 + dice.magnitude(400) },
            next: 1,
            until: steps,
            deaths: dice.below(count as u64 - 1),
            stops_for_ever: if timeout.is_some() { dice.below(2) } else { 0 },
        };
        let segment = home << dice.below(3);
        let limit = count as u64 * dice.magnitude(6 * 8 * segment as u64);
        let share = if limited { flow::share(limit, count) } else { u64::MAX };
        let diverts_always = timeout.is_some() && !few_segments && share == u64::MAX;
        Self {
            seed,
            steps,
            count,
            home,
            segment,
            timeout: timeout.map(Duration::from_nanos),
            short: dice.one_of(&[0, 0, 3, 20]),
            share,
            waits: diverts_always || trouble.stops_for_ever == 0 && dice.once_in(2),
            flooded: dice.once_in(2).then(|| dice.below(count as u64) as Rank),
            slices: (0..count).map(slices).collect(),
            trouble,
        }
    }
}

/// Runs about `steps` steps, and returns what was seen: the same again for the same seed and steps.
///
/// # Errors
/// The violation that was found.
pub fn run(seed: u64, steps: u64) -> Result<Summary, Failure> {
    let dice = Dice::new(seed);
    // The fewer places for segments there are, the sooner they are reused.
    match dice.below(3) {
        0 => run_with::<2>(seed, steps, dice),
        1 => run_with::<4>(seed, steps, dice),
        _ => run_with::<{ 1 << 20 }>(seed, steps, dice),
    }
}

fn run_with<const S: u64>(seed: u64, steps: u64, dice: Dice) -> Result<Summary, Failure> {
    let plan = Plan::new(seed, steps, S <= 4, &dice);
    let count = plan.count;
    let file = |at: usize| {
        File::new(plan.home, plan.segment, plan.short, Dice::new(mixed(seed + at as u64)))
    };
    let files: Vec<Arc<File>> = (0..count * count).map(file).collect();
    // Each end is handed over once: it goes with its domain, and the file goes with both ends.
    let known: Vec<Weak<File>> = files.iter().map(Arc::downgrade).collect();
    let ends: Vec<_> =
        files.into_iter().map(|file| KernelMutex::new([Some(file.clone()), Some(file)])).collect();
    let ends = Arc::new(ends);
    let lines: Arc<[StationLine]> = (0..count).map(|_| StationLine::default()).collect();
    let (slices, trouble) = (plan.slices.clone(), Some(plan.trouble.clone()));
    let setup =
        Setup { dice: Dice::new(dice.any()), slices, trouble, most: steps * PATIENCE + 1_000_000 };
    // A sender that stays diverted keeps a segment at hand.
    let kept = usize::from(plan.timeout == Some(Duration::ZERO));
    let title = format!("seed {seed}, {plan:?}");
    let program = move |cpu: Cpu| {
        let own = cpu.rank();
        let bag = |from: Rank, to: Rank, sends: bool| {
            let file = ends[from * count + to].lock()[usize::from(sends)].take()?;
            (from != to).then(|| Bag::<S> { file, cpu: cpu.clone(), sends })
        };
        let out = (0..count).map(|to| bag(own, to, true)).collect();
        let from = (0..count).map(|from| bag(from, own, false)).collect();
        let dice = Dice::new(mixed(plan.seed ^ (own as u64 + 1)));
        let (lines, timeout, share, handler) =
            (lines.clone(), plan.timeout, plan.share, 1 + plan.seed % 64);
        live(
            &Member::new(Parts {
                cpu: cpu.clone(),
                dice,
                out,
                from,
                lines,
                timeout,
                share,
                handler,
            }),
            &plan,
        );
    };
    let quiet = move |state: &mut State, stage: u32| {
        if let Some(stranded) = Ledger::stranded(state) {
            return Err(stranded);
        }
        match stage {
            _ if state.domains.iter().all(|domain| !domain.is_well()) => Ok(None),
            ANYTHING if state.steps() < steps => Ok(Some(ANYTHING)),
            ANYTHING => Ok(Some(DRAIN)),
            DRAIN => Ok(Some(LAST)),
            LAST => Ok(Some(ASLEEP)),
            _ => left_behind(state, &known, kept).map_or(Ok(None), Err),
        }
    };
    match engine::run(setup, program, quiet) {
        Ok(ledger) => Ok(ledger.summary),
        Err(failure) => Err(Failure { report: format!("{title}\n{}", failure.report), ..failure }),
    }
}

/// Once all was taken and all have gone home, returns the segments that still take memory, if there
/// are more than a sender keeps.
fn left_behind(state: &State, files: &[Weak<File>], kept: usize) -> Option<String> {
    let count = state.domains.len();
    files.iter().enumerate().find_map(|(at, file)| {
        let (from, to) = (at / count, at % count);
        let sender = &state.domains[from];
        // A sender that is stopped for ever has not gone home.
        if sender.stopped == FOREVER || !state.domains[to].is_well() {
            return None;
        }
        let most = if sender.life == Life::Lives { kept } else { 0 };
        let used = file.upgrade()?.used();
        (used > most).then(|| {
            format!(
                "all is taken, and {used} segments from domain {from} to domain {to} take memory"
            )
        })
    })
}

fn live<const S: u64>(member: &Member<S>, plan: &Plan) {
    while member.cpu.steps() < plan.steps {
        anything(member, plan);
        if member.dice.once_in(LEAVES) {
            return member.cpu.count(|seen| seen.leaves += 1);
        }
    }
    let mut said = false;
    loop {
        if member.cpu.stage() == LAST && !std::mem::replace(&mut said, true) {
            farewell(member, plan);
        }
        if member.poll(&|_, _| {}) == 0 {
            member.wait(None);
        }
    }
}

fn anything<const S: u64>(member: &Member<S>, plan: &Plan) {
    match member.dice.below(20) {
        0..6 => {
            let to = some_other(member, plan);
            let count = 1 + member.dice.magnitude(if plan.flooded == Some(to) { 64 } else { 8 });
            for _ in 0..count {
                if send(member, plan, to) != Outcome::Taken {
                    break;
                }
            }
        }
        6..15 => {
            let replies = member.dice.below(8);
            let handler = &|member: &Member<S>, from: Rank| {
                if member.dice.below(16) < replies {
                    let _ = send(member, plan, from);
                }
            };
            member.poll(handler);
        }
        15 => {
            let limit = member.dice.magnitude(20_000);
            member.wait(Some(limit));
        }
        16 => member.wait(None),
        17 => member.peek(),
        18 => _ = member.receive(),
        _ => {
            let time = 1 + member.dice.magnitude(4000);
            member.cpu.spend(time);
        }
    }
}

fn some_other<const S: u64>(member: &Member<S>, plan: &Plan) -> Rank {
    let (own, count) = (member.rank(), plan.count);
    match plan.flooded {
        Some(flooded) if flooded != own && !member.dice.once_in(4) => flooded,
        _ => (own + 1 + member.dice.below(count as u64 - 1) as usize) % count,
    }
}

fn send<const S: u64>(member: &Member<S>, plan: &Plan, to: Rank) -> Outcome {
    let Some(most) = member.most(to) else { return Outcome::Ended };
    let len = match member.dice.below(4) {
        0 => 0,
        1 => most,
        _ => member.dice.below(most as u64 + 1) as usize,
    };
    let waits = plan.waits && !member.dice.once_in(4);
    member.send(to, len, waits)
}

/// Sends one last message to each other member, and takes all that arrives during that.
fn farewell<const S: u64>(member: &Member<S>, plan: &Plan) {
    let own = member.rank();
    for to in (0..plan.count).filter(|to| *to != own) {
        // There may be no memory now, and a stopped receiver never frees any.
        let goes = || {
            let sent = member.send(to, 0, plan.waits);
            member.poll(&|_, _| {});
            matches!(sent, Outcome::Taken | Outcome::Ended)
        };
        // All messages are taken, so no sender is blocked for good.
        if !(0..TRIES).any(|_| goes())
            && member
                .cpu
                .check(|state| Ok(state.domains.iter().all(|domain| domain.stopped != FOREVER)))
        {
            member.cpu.fail(format!("nothing goes to domain {to} any more, though all was taken"));
        }
    }
}
