//! The effect of a member that takes nothing on two others: A (0) sends to B (1) continuously,
//! while C (2) is stopped and D (3) has sent it more than any queue holds.

use super::common::{MANY, joining, well};
use std::thread;
use std::time::Instant;
use upcall::message::{Group, Handlers, Kind};
use upcall_bench::child::Outcome;
use upcall_bench::lab::{Gate, Lab, OVER};
use upcall_bench::messages::own::child::{Finding, Task};
use upcall_bench::stats::{Clock, Summary, median};

/// Number of messages of a sample, and minimum number of samples of a phase.
const WINDOW: u64 = 4096;
const LEAST: u64 = 8;

/// Size of a message of D's, in bytes.
const BLOCK: usize = 8000;

/// The turns of a cycle. A and B are active in each even turn: first with nothing buffered, then
/// with full buffers, and again with nothing buffered.
mod turn {
    pub const FILL: u64 = 1;
    pub const MEASURE_FULL: u64 = 2;
    pub const DRAIN: u64 = 3;
    pub const LAST: u64 = 4;
    /// Number of turns of a cycle.
    pub const ALL: u64 = 6;
}

/// Maximum number of cycles, and the ratio above which a cycle is discarded: its two times with
/// nothing buffered differ because the host has moved the processors, or others have used them.
const TRIES: u64 = 4;
const ALIKE: f64 = 1.15;

/// A member of the group, with its kinds of messages.
struct Member {
    group: Group,
    number: Kind<u64>,
    end: Kind<()>,
    block: Kind<[u8]>,
}

fn member(task: &Task, rank: usize) -> Outcome<Member> {
    let mut handlers = Handlers::new();
    let (number, end, block) =
        (handlers.kind("number"), handlers.kind("end"), handlers.kind("block"));
    Ok(Member { group: joining(task, "stopped", 4, rank).join(handlers)?, number, end, block })
}

pub fn measure(lab: &mut Lab<Task>) -> Outcome<Vec<Finding>> {
    let (task, clock) = (lab.task, Clock::calibrated());
    let first = |gate: &Gate| {
        thread::scope(|scope| {
            let filler = scope.spawn(|| gate.guard(|| fill(&task, gate)));
            let done = gate.guard(|| send(&task, gate));
            filler.join().unwrap_or_else(|_| Err("D panicked".into())).and(done)
        })
    };
    let second = |gate: &Gate| {
        thread::scope(|scope| {
            let stopped = scope.spawn(|| gate.guard(|| drain(&task, gate)));
            let found = gate.guard(|| receive(&task, gate, &clock));
            stopped.join().unwrap_or_else(|_| Err("C panicked".into())).and(found)
        })
    };
    let Some(((), [nothing, buffered])) = lab.both(first, second)? else { return Ok(Vec::new()) };
    Ok(vec![
        Finding::times("stopped-nothing", nothing),
        Finding::times("stopped-buffered", buffered),
    ])
}

/// Runs A.
fn send(task: &Task, gate: &Gate) -> Outcome<()> {
    let Member { group, number, end, .. } = member(task, 0)?;
    let mut next = 0;
    for cycle in 0..TRIES {
        for turn in (0..=turn::LAST).step_by(2).map(|turn| cycle * turn::ALL + turn) {
            if gate.rest(turn)? == OVER {
                return Ok(());
            }
            let (begun, first) = (Instant::now(), next);
            while next < first + LEAST * WINDOW || begun.elapsed() < task.time {
                for _ in 0..WINDOW {
                    group.send(1, number, &next)?;
                    next += 1;
                }
            }
            group.send(1, end, &())?;
            gate.wait(turn + 1)?;
        }
    }
    Ok(())
}

/// Runs B. Returns the nanoseconds of a message, without and with buffered messages for C.
fn receive(task: &Task, gate: &Gate, clock: &Clock) -> Outcome<[Summary; 2]> {
    let member = member(task, 1)?;
    let mut next = 0;
    for cycle in 0..TRIES {
        let mut phases = Vec::new();
        for turn in (0..=turn::LAST).step_by(2) {
            gate.rest(cycle * turn::ALL + turn)?;
            phases.push(windows(&member, &mut next, gate, clock)?);
            if turn < turn::LAST {
                gate.open(cycle * turn::ALL + turn + 1);
            }
        }
        let medians: Vec<f64> = phases.iter().map(|phase| median(phase)).collect();
        if cycle + 1 < TRIES && medians[0].max(medians[2]) > ALIKE * medians[0].min(medians[2]) {
            gate.open((cycle + 1) * turn::ALL);
            continue;
        }
        well(&member.group)?;
        gate.open(OVER);
        let buffered = phases.remove(1);
        return Ok([phases.concat(), buffered].map(Summary::of_nanoseconds));
    }
    Err("in each cycle, the two times with nothing buffered differed".into())
}

/// Takes A's messages until A ends. Returns the nanoseconds of a message in each window, without
/// the first ones.
fn windows(member: &Member, next: &mut u64, gate: &Gate, clock: &Clock) -> Outcome<Vec<f64>> {
    let Member { group, number, end, .. } = member;
    let mut samples = Vec::with_capacity(MANY);
    let (mut over, mut disorder, mut before) = (false, false, None);
    while !over {
        let taken = group.receive(|message| match message.get(*number) {
            Some(number) => disorder |= std::mem::replace(next, number + 1) != number,
            None => over = message.get(*end).is_some(),
        });
        if taken.is_err() {
            gate.check()?;
        } else if next.is_multiple_of(WINDOW) && !over {
            let now = clock.read();
            let window = before
                .replace(now)
                .map(|before| clock.ns(now.wrapping_sub(before)) / WINDOW as f64);
            samples.extend(window);
        }
    }
    if disorder {
        return Err("messages from A are lost or out of order".into());
    }
    let warm_up = samples.len() / 4;
    samples.drain(..warm_up);
    if samples.is_empty() { Err("B had no time for a sample".into()) } else { Ok(samples) }
}

/// Runs D, which fills the buffers with at least the task's number of mebibytes.
fn fill(task: &Task, gate: &Gate) -> Outcome<()> {
    let Member { group, block, .. } = member(task, 3)?;
    let content = vec![7; BLOCK];
    for turn in (0..TRIES).map(|cycle| cycle * turn::ALL) {
        if gate.rest(turn + turn::FILL)? == OVER {
            return Ok(());
        }
        let mut sent = 0;
        while group.buffered(2) < task.count << 20 {
            group.send(2, block, &content)?;
            sent += 1;
        }
        gate.say(sent);
        gate.open(turn + turn::MEASURE_FULL);
    }
    gate.rest(OVER).map(drop)
}

/// Runs C, which takes nothing until the measurement is done.
fn drain(task: &Task, gate: &Gate) -> Outcome<()> {
    let Member { group, .. } = member(task, 2)?;
    for turn in (0..TRIES).map(|cycle| cycle * turn::ALL) {
        if gate.rest(turn + turn::DRAIN)? == OVER {
            return Ok(());
        }
        let mut taken = 0;
        while group
            .receive(|message| (message.from(), message.size()))
            .is_ok_and(|message| message == (3, BLOCK))
        {
            taken += 1;
        }
        let sent = gate.said();
        if taken != sent {
            return Err(format!("C took {taken} messages, but {sent} were sent").into());
        }
        gate.open(turn + turn::LAST);
    }
    gate.rest(OVER).map(drop)
}
