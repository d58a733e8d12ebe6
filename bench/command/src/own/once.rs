//! Checks that each message arrives once, in order, and whole, although its receiver stops polling
//! at random and messages that it does not take are diverted.
//!
//! Each message has a number and up to seven further words that follow from it, so that messages
//! cross the ends of the memory in all ways. The receiver takes them by `receive`, by `poll`, and
//! after a `peek`. It stops polling every 8192 messages or so, for some hundred microseconds, and
//! the sender's timeout is 20 µs. Now and then a sender that was diverted waits for the receiver,
//! and so returns to the queue.

use super::common::{joining, well};
use std::cell::RefCell;
use std::rc::Rc;
use std::thread;
use std::time::{Duration, Instant};
use upcall::message::{Handlers, Message};
use upcall_bench::child::Outcome;
use upcall_bench::lab::{Gate, Lab, OVER};
use upcall_bench::messages::own::child::{Finding, Task, at};

/// The group's timeout, after which the sender diverts.
const TIMEOUT: Duration = Duration::from_micros(20);

/// Average number of messages between two pauses of the receiver.
const AWAY: u64 = 8192;

/// Maximum time for a sent message to arrive.
const PATIENCE: Duration = Duration::from_secs(20);

/// Number of messages taken between two readings of the clock.
const PART: u64 = 1 << 14;

/// Maximum number of words of a message.
const WORDS: u64 = 8;

/// Returns the number of words of a message.
fn words(number: u64) -> usize {
    (1 + mixed(number) % WORDS) as usize
}

fn mixed(number: u64) -> u64 {
    (number ^ number >> 7).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20
}

/// Returns a word of a message.
fn word(number: u64, at: usize) -> u64 {
    number.wrapping_add((at as u64).wrapping_mul(0xd1b5_4a32_d192_ed03))
}

pub fn check(lab: &mut Lab<Task>) -> Outcome<Vec<Finding>> {
    let task = lab.task;
    let begun = Instant::now();
    // The receiver is in the first process, which reports progress to the harness.
    let found = lab.both(|gate| receive(&task, gate), |gate| send(&task, gate))?;
    let Some(((), (diverted, diversions))) = found else { return Ok(Vec::new()) };
    let time = begun.elapsed();
    Ok(vec![
        Finding::rate("exactly-once", task.count, time),
        Finding::rate("exactly-once-diverted", diverted, time),
        Finding::rate("exactly-once-diversions", diversions, time),
    ])
}

/// Sends the messages. Returns the number of those that went through segments, and of the
/// diversions.
fn send(task: &Task, gate: &Gate) -> Outcome<(u64, u64)> {
    let mut handlers = Handlers::new();
    let numbers = handlers.kind::<[u64]>("numbers");
    let group = joining(task, "once", 2, 0).timeout(Some(TIMEOUT)).join(handlers)?;
    let (mut diverted, mut diversions, mut was, mut random) = (0, 0, false, Random(2));
    for number in 0..task.count {
        let all: [u64; WORDS as usize] = std::array::from_fn(|at| word(number, at));
        group.send(1, numbers, &all[..words(number)])?;
        let is = group.diverted() > diverted;
        diverted += u64::from(is);
        diversions += u64::from(is && !was);
        was = is;
        // Otherwise the sender would stay ahead, and be diverted forever.
        if is && random.next().is_multiple_of(2 * AWAY) {
            while gate.said() < number {
                gate.check()?;
                thread::yield_now();
            }
        }
    }
    gate.open(1);
    gate.rest(OVER)?;
    Ok((diverted, diversions))
}

/// The messages that have arrived.
#[derive(Debug, Default)]
struct Taken {
    next: u64,
    wrong: Option<String>,
}

impl Taken {
    fn add(&mut self, words_there: usize, word_at: impl Fn(usize) -> Option<u64>) {
        let number = self.next;
        let right = words_there == words(number)
            && (0..words_there).all(|at| word_at(at) == Some(word(number, at)));
        if !right && self.wrong.is_none() {
            self.wrong = Some(format!(
                "expected message {number}, found {words_there} words, the first {:?}",
                word_at(0)
            ));
        }
        self.next += 1;
    }

    fn message(&mut self, message: &Message<'_, '_>) {
        self.add(message.size().div_ceil(8), |at| message.word(at));
    }
}

fn receive(task: &Task, gate: &Gate) -> Outcome<()> {
    let count = task.count;
    let mut handlers = Handlers::new();
    let (numbers, taken) =
        (handlers.kind::<[u64]>("numbers"), Rc::new(RefCell::new(Taken::default())));
    let ours = taken.clone();
    handlers.on(numbers, move |_, _, words| {
        ours.borrow_mut().add(words.len(), |at| words.get(at).copied())
    });
    let group = joining(task, "once", 2, 1).join(handlers)?;
    let mut random = Random(1);
    let (mut said, mut last, mut looked) = (Instant::now(), Instant::now(), 0);
    loop {
        let next = taken.borrow().next;
        if next >= count {
            break;
        }
        let chance = random.next();
        if chance.is_multiple_of(AWAY) {
            away(chance / AWAY);
        }
        let there = match chance >> 58 {
            0 => group.poll() > 0,
            1 => {
                let _ = group.peek(|message| message.size());
                group.receive(|message| taken.borrow_mut().message(message)).is_ok()
            }
            _ => group.receive(|message| taken.borrow_mut().message(message)).is_ok(),
        };
        if there && next < looked + PART {
            continue;
        }
        gate.say(taken.borrow().next);
        // There is an error, or it is time to report progress.
        let now = Instant::now();
        if there {
            (looked, last) = (next, now);
        } else {
            gate.check()?;
            well(&group)?;
            let sent = gate.turn() > 0;
            if sent && now.duration_since(last) > PATIENCE {
                return Err(format!("{count} were sent, but only {next} arrived").into());
            }
        }
        if let Some(wrong) = &taken.borrow().wrong {
            return Err(wrong.clone().into());
        }
        if now.duration_since(said) > Duration::from_millis(500) {
            said = now;
            at(next);
        }
    }
    // The sender may wait for this.
    gate.say(count);
    gate.wait(1)?;
    // No message may arrive twice.
    thread::sleep(Duration::from_millis(10));
    let more = group.available() || group.poll() > 0;
    gate.open(OVER);
    let taken = taken.take();
    match (taken.wrong, more || taken.next != count) {
        (Some(wrong), _) => Err(wrong.into()),
        (None, true) => {
            Err(format!("more messages arrived than the {count} that were sent").into())
        }
        (None, false) => Ok(()),
    }
}

/// Stops polling for 10 to 500 µs, by the bits of `random`; sometimes asleep.
fn away(random: u64) {
    let time = Duration::from_nanos(10_000 + random % 490_000);
    if random & 1 << 40 == 0 {
        thread::sleep(time);
    } else {
        let begun = Instant::now();
        while begun.elapsed() < time {
            std::hint::spin_loop();
        }
    }
}

/// Pseudo-random numbers: splitmix64.
struct Random(u64);

impl Random {
    #[inline]
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_found() {
        let message =
            |number: u64| (0..words(number)).map(|at| word(number, at)).collect::<Vec<_>>();
        let add =
            |taken: &mut Taken, words: &[u64]| taken.add(words.len(), |at| words.get(at).copied());
        let mut taken = Taken::default();
        (0..100).for_each(|number| add(&mut taken, &message(number)));
        assert_eq!((taken.next, &taken.wrong), (100, &None));
        // A message is lost.
        add(&mut taken, &message(101));
        assert!(taken.wrong.unwrap().contains("expected message 100"));
        let mut taken = Taken { next: 100, wrong: None };
        let mut changed = message(100);
        *changed.last_mut().unwrap() ^= 1;
        add(&mut taken, &changed);
        assert!(taken.wrong.is_some());
        let lengths: Vec<_> = (0..1000).map(words).collect();
        assert!((1..=8).all(|words| lengths.contains(&words)), "{lengths:?}");
    }
}
