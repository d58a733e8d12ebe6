//! The receiver.

use super::{Ball, Letter, MOST, OVER, catch, handler, letter, payload, task, throw, words};
use crate::child::Outcome;
use crate::messages::child::{End, Handler, Payload};
use crate::messages::raw::Gate;
use crate::stats::{Clock, Summary};

/// Runs the sender's tasks until the sender ends it.
///
/// # Errors
/// A receive or a send failed, or a message was malformed.
pub(in crate::messages) fn receive(end: &mut impl End, gate: &Gate) -> Outcome<()> {
    let clock = Clock::calibrated();
    loop {
        let [task, number, ..] = letter(end, handler::COMMAND)?;
        if task >= task::FIRST_WITH_MESSAGES {
            // The messages after this reply belong to the task.
            end.send_words(handler::REPLY, &words([]))?;
        }
        let reply = match task {
            task::QUIT => words([]),
            task::TELL_PROCESS => words([std::process::id().into()]),
            task::TAKE_BURSTS => take_bursts(end, gate, number, &clock)?,
            task::ECHO => echo(end, number as usize)?,
            task::TAKE_STREAM => take_stream(end)?,
            _ => return Err(format!("there is no task {task}").into()),
        };
        end.send_words(handler::REPLY, &reply)?;
        if task == task::QUIT {
            return Ok(());
        }
    }
}

/// Counts messages, and adds their words.
#[derive(Default)]
struct Taken {
    count: u64,
    sum: u64,
}

impl Handler for Taken {
    #[inline(always)]
    fn message(&mut self, handler: u16, payload: &impl Payload) {
        for at in 0..payload.len() / 8 {
            self.sum = self.sum.wrapping_add(payload.word(at));
        }
        self.count += u64::from(handler == handler::DATA);
    }
}

/// Takes a burst of `burst` messages in each odd turn of the gate.
fn take_bursts<E: End>(end: &mut E, gate: &Gate, burst: u64, clock: &Clock) -> Outcome<Letter> {
    let (mut taken, mut turn) = (Taken::default(), 1);
    let mut samples = Vec::with_capacity(MOST);
    while gate.wait(turn, OVER) != OVER {
        let until = taken.count + burst;
        let begun = clock.read();
        while taken.count < until {
            end.receive(&mut taken)?;
        }
        if samples.len() < MOST {
            samples.push(clock.read().wrapping_sub(begun));
        }
        gate.set(turn + 1);
        turn += 2;
    }
    let each = samples.iter().map(|&ticks| clock.ns(ticks) / burst as f64).collect::<Vec<_>>();
    let found = (!each.is_empty()).then(|| Summary::of_nanoseconds(each)).ok_or("no burst came")?;
    let Summary { p50_ns, p99_ns, p999_ns, mean_ns, count, .. } = found;
    let [p50, p99, p999, mean] = [p50_ns, p99_ns, p999_ns, mean_ns].map(f64::to_bits);
    Ok(words([taken.count, taken.sum, p50, p99, p999, mean, count]))
}

fn echo<E: End>(end: &mut E, bytes: usize) -> Outcome<Letter> {
    let mut payload = payload(bytes)?;
    let (mut ball, mut count) = (Ball::default(), 0);
    loop {
        catch(end, &mut ball)?;
        if ball.over {
            return Ok(words([count, ball.wrong]));
        }
        count += 1;
        throw(end, ball.seed.wrapping_add(1), &mut payload)?;
    }
}

/// A stream of consecutive numbers.
#[derive(Default)]
pub(super) struct Stream {
    pub(super) next: u64,
    pub(super) sum: u64,
    pub(super) disorder: u64,
    over: bool,
}

impl Handler for Stream {
    #[inline(always)]
    fn message(&mut self, handler: u16, payload: &impl Payload) {
        if handler != handler::DATA {
            self.over = true;
            return;
        }
        let word = payload.word(0);
        self.disorder += u64::from(word != self.next);
        self.sum = self.sum.wrapping_add(word);
        self.next += 1;
    }
}

fn take_stream(end: &mut impl End) -> Outcome<Letter> {
    let mut stream = Stream::default();
    while !stream.over {
        end.receive(&mut stream)?;
    }
    Ok(words([stream.next, stream.sum, stream.disorder]))
}
