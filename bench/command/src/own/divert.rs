//! The cost of one diversion and of the way back: a full queue, an expired timeout, and a receiver
//! that then takes everything.

use super::common::{MANY, joining, take, well};
use std::time::{Duration, Instant};
use upcall::message::{Handlers, SendError};
use upcall_bench::child::Outcome;
use upcall_bench::lab::{Gate, Lab, OVER};
use upcall_bench::messages::own::child::{Finding, Task};
use upcall_bench::stats::{Clock, Summary};

/// Timeout of the group: so short that it has expired when a sender checks for the second time, but
/// not so short that every message is buffered.
const TIMEOUT: Duration = Duration::from_nanos(1);

/// Number of turns of an iteration.
const TURNS: u64 = 6;

#[expect(clippy::too_many_lines, reason = "both sides of a measurement stand together")]
pub fn measure(lab: &mut Lab<Task>) -> Outcome<Vec<Finding>> {
    let (task, clock) = (lab.task, Clock::calibrated());
    let sender = |gate: &Gate| {
        let mut handlers = Handlers::new();
        let null = handlers.kind::<()>("null");
        let group = joining(&task, "divert", 2, 0).timeout(Some(TIMEOUT)).join(handlers)?;
        let timed = || {
            let before = clock.read();
            group.send(1, null, &())?;
            Outcome::Ok(clock.ns(clock.read().wrapping_sub(before)))
        };
        timed()?;
        gate.wait(1)?;
        let (mut samples, begun) = (Vec::with_capacity(MANY), Instant::now());
        let mut turn = 1;
        while samples.len() < 3 || begun.elapsed() < task.time {
            let direct = timed()?;
            gate.open(turn + 1);
            gate.wait(turn + 2)?;
            let mut filled = 0;
            // From the first refusal on, the timeout has expired.
            while fits(group.try_send(1, null, &()))? && group.buffered(1) == 0 {
                filled += 1;
            }
            if group.buffered(1) > 0 {
                return Err("the message was diverted too early".into());
            }
            let there = timed()?;
            if group.buffered(1) != 1 << 20 {
                return Err("the message was not diverted".into());
            }
            gate.say(filled);
            gate.open(turn + 3);
            gate.wait(turn + 4)?;
            let back = timed()?;
            if group.buffered(1) > 0 {
                return Err("the message did not return to the queue".into());
            }
            gate.open(turn + 5);
            turn += TURNS;
            gate.wait(turn)?;
            samples.push([direct, there, back]);
        }
        gate.open(OVER);
        Ok(samples)
    };
    let receiver = |gate: &Gate| {
        let mut handlers = Handlers::new();
        handlers.kind::<()>("null");
        let group = joining(&task, "divert", 2, 1).join(handlers)?;
        take(&group, gate, 1)?;
        gate.open(1);
        let timed = || {
            let before = clock.read();
            group.receive(|_| ()).map_err(|_| "nothing is there")?;
            Outcome::Ok(clock.ns(clock.read().wrapping_sub(before)))
        };
        let (mut samples, mut turn) = (Vec::with_capacity(MANY), 1);
        while gate.wait(turn + 1)? != OVER {
            let direct = timed()?;
            gate.open(turn + 2);
            gate.wait(turn + 3)?;
            for _ in 0..gate.said() {
                group.receive(|_| ()).map_err(|_| "fewer messages arrived than were sent")?;
            }
            let there = timed()?;
            gate.open(turn + 4);
            gate.wait(turn + 5)?;
            let back = timed()?;
            turn += TURNS;
            gate.open(turn);
            samples.push([direct, there, back]);
        }
        well(&group)?;
        Ok(samples)
    };
    let Some((sent, taken)) = lab.both(sender, receiver)? else { return Ok(Vec::new()) };
    let above = |samples: &[[f64; 3]], which: usize| -> Vec<f64> {
        samples.iter().map(|sample| (sample[which] - sample[0]).max(0.0)).collect()
    };
    let parts = [
        ("divert", above(&sent, 1)),
        ("divert-take", above(&taken, 1)),
        ("divert-home", above(&sent, 2)),
        ("divert-leave", above(&taken, 2)),
    ];
    let sum =
        (0..sent.len()).map(|at| parts.iter().map(|(_, part)| part[at]).sum::<f64>()).collect();
    let all = parts.clone().into_iter().chain([("divert-and-back", sum)]);
    Ok(all.map(|(name, samples)| Finding::times(name, Summary::of_nanoseconds(samples))).collect())
}

/// Returns `true` if there was room.
fn fits(sent: Result<(), SendError>) -> Outcome<bool> {
    match sent {
        Ok(()) => Ok(true),
        Err(SendError::Full) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
