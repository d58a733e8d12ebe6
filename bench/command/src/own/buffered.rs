//! Both sides' time for a message where none is buffered and where all are (UDM, Table 5; D15).

use super::common::{BURST, MANY, joining, well};
use std::time::{Duration, Instant};
use upcall::message::{Group, Handlers, Kind};
use upcall_bench::child::Outcome;
use upcall_bench::lab::{Gate, Lab, OVER};
use upcall_bench::messages::own::child::{Finding, Task};
use upcall_bench::stats::{Clock, Summary};

/// Size of a segment, in words.
const SEGMENT: u64 = (1 << 20) / 8;

/// Duration above which a burst does not count, in nanoseconds: its side had lost its processor.
/// Mapping a segment and giving it back takes a fraction of this.
const LOST: f64 = 300_000.0;

/// Names and timeouts of the groups: never divert, and always divert.
const TIMEOUTS: [(&str, Option<Duration>); 2] =
    [("direct", None), ("buffered", Some(Duration::ZERO))];

pub fn measure(lab: &mut Lab<Task>) -> Outcome<Vec<Finding>> {
    let (none, four) = (with::<0>(lab)?, with::<4>(lab)?);
    Ok(none.into_iter().chain(four).collect())
}

/// Number of bursts of one window: as many as fill a segment with messages of this number of words.
const fn window(words: usize) -> u64 {
    SEGMENT.div_ceil(BURST * (1 + words as u64))
}

/// Returns `true` if a burst goes to the group with buffers. Windows alternate between the two
/// groups.
fn is_buffered(burst: u64, words: usize) -> bool {
    (burst / window(words)) % 2 == 1
}

/// A member of a group whose messages have N words.
struct Member<const N: usize> {
    group: Group,
    kind: Kind<[u64; N]>,
}

/// Joins both groups.
fn members<const N: usize>(task: &Task, rank: usize) -> Outcome<[Member<N>; 2]> {
    let member = |(name, timeout): (&str, Option<Duration>)| {
        let mut handlers = Handlers::new();
        let kind = handlers.kind("words");
        Outcome::Ok(Member {
            group: joining(task, &format!("{name}-{N}"), 2, rank)
                .timeout(timeout)
                .join(handlers)?,
            kind,
        })
    };
    Ok([member(TIMEOUTS[0])?, member(TIMEOUTS[1])?])
}

/// Measures both groups with messages of N words. Each side takes the ticks of every burst; both
/// sides' ticks are combined into windows.
#[expect(clippy::too_many_lines, reason = "both sides of a measurement stand together")]
fn with<const N: usize>(lab: &mut Lab<Task>) -> Outcome<Vec<Finding>> {
    let (task, clock) = (lab.task, Clock::calibrated());
    // The first window of each group warms up.
    let least = 4 * window(N);
    let sender = |gate: &Gate| {
        let members = members::<N>(&task, 0)?;
        let mut ticks = Vec::with_capacity(MANY);
        let begun = Instant::now();
        while ticks.len() < least as usize || begun.elapsed() < task.time {
            for _ in 0..window(N) {
                let burst = ticks.len() as u64;
                let Member { group, kind } = &members[usize::from(is_buffered(burst, N))];
                let before = clock.read();
                for message in 0..BURST {
                    group.send(1, *kind, &[burst ^ message; N])?;
                }
                ticks.push(clock.read().wrapping_sub(before));
                gate.open(2 * burst + 1);
                gate.wait(2 * burst + 2)?;
            }
        }
        gate.open(OVER);
        let [never, always] = members.each_ref().map(|member| member.group.diverted());
        if never > 0 || always == 0 {
            return Err(format!(
                "{never} messages were buffered in the group that never diverts, and {always} in \
                the group that always does"
            )
            .into());
        }
        Ok(ticks)
    };
    let receiver = |gate: &Gate| {
        let members = members::<N>(&task, 1)?;
        let (mut ticks, mut sum, mut right) = (Vec::with_capacity(MANY), 0_u64, 0_u64);
        loop {
            let burst = ticks.len() as u64;
            if gate.wait(2 * burst + 1)? == OVER {
                break;
            }
            let group = &members[usize::from(is_buffered(burst, N))].group;
            let (mut taken, before) = (0, clock.read());
            while taken < BURST {
                let one = || {
                    group.receive(|message| {
                        (0..N).filter_map(|at| message.word(at)).fold(0, u64::wrapping_add)
                    })
                };
                while let Ok(words) = one() {
                    sum = sum.wrapping_add(words);
                    taken += 1;
                }
                if taken < BURST {
                    gate.check()?;
                }
            }
            ticks.push(clock.read().wrapping_sub(before));
            right = (0..BURST)
                .fold(right, |sum, message| sum.wrapping_add((burst ^ message) * N as u64));
            gate.open(2 * burst + 2);
        }
        members.iter().try_for_each(|member| well(&member.group))?;
        if sum == right {
            Ok(ticks)
        } else {
            Err(format!("the sum of the words is {sum}; expected {right}").into())
        }
    };
    let Some((sent, received)) = lab.both(sender, receiver)? else { return Ok(Vec::new()) };
    let ns = |ticks: &[u64]| ticks.iter().map(|&ticks| clock.ns(ticks)).collect::<Vec<f64>>();
    let (sent, received) = (ns(&sent), ns(&received));
    let sum: Vec<f64> = sent
        .iter()
        .zip(&received)
        .map(
            |(sent, received)| {
                if sent.max(*received) > LOST { f64::INFINITY } else { sent + received }
            },
        )
        .collect();
    let findings = TIMEOUTS.into_iter().enumerate().flat_map(|(which, (name, _))| {
        [("", &sum), ("-sender", &sent), ("-receiver", &received)].map(|(side, all)| {
            let found = Summary::of_nanoseconds(windows(all, window(N) as usize, which));
            Finding::times(&format!("{name}-{N}{side}"), found)
        })
    });
    Ok(findings.collect())
}

/// Returns the mean time of a message in each window of one of the two groups, without the first.
fn windows(bursts: &[f64], length: usize, which: usize) -> Vec<f64> {
    let own = bursts.chunks_exact(length).skip(which).step_by(2).skip(1);
    own.map(|window| {
        let kept = window.iter().filter(|ns| **ns < LOST);
        kept.clone().sum::<f64>() / (kept.count() as u64 * BURST) as f64
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_fills_a_segment() {
        assert_eq!((window(0), window(4)), (2048, 410));
        assert_eq!(
            [0, 2047, 2048, 4095, 4096].map(|burst| is_buffered(burst, 0)),
            [false, false, true, true, false]
        );
    }

    #[test]
    fn windows_are_those_of_one_group_without_what_was_lost() {
        let bursts: Vec<f64> =
            [1.0, 2.0, 3.0, 4.0, 5.0, 6.0].iter().flat_map(|ns| [ns * 64.0; 3]).collect();
        let mut bursts = bursts;
        bursts[6] = 5e6;
        assert_eq!(
            (windows(&bursts, 3, 0), windows(&bursts, 3, 1)),
            (vec![3.0, 5.0], vec![4.0, 6.0])
        );
    }
}
