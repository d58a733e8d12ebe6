//! Whether each message arrives once, in order, and whole, though its receiver looks away at random
//! and what it does not take is diverted.
//!
//! Each carries its number and up to seven words more that follow from it, so that messages lie in
//! all ways across the ends of the memory. The receiver takes them by `receive`, by `poll`, and
//! after a look by `peek`; it looks away every 8192 messages or so, for some hundred microseconds,
//! and the sender's patience is 20 µs. Now and then a sender that was diverted waits for it, and
//! goes home by that.

use super::common::{joining, well};
use std::cell::RefCell;
use std::rc::Rc;
use std::thread;
use std::time::{Duration, Instant};
use upcall::message::{Handlers, Message};
use upcall_bench::child::Outcome;
use upcall_bench::lab::{Gate, Lab, OVER};
use upcall_bench::messages::own::child::{Finding, Task, at};

/// The sender's patience.
const TIMEOUT: Duration = Duration::from_micros(20);

/// So often, in messages, the receiver looks away, on the average.
const AWAY: u64 = 8192;

/// So long it may take for a message that was sent to be there.
const PATIENCE: Duration = Duration::from_secs(20);

/// So many messages are taken between two looks at the time.
const PART: u64 = 1 << 14;

/// The most words.
const WORDS: u64 = 8;

/// Words of a message.
fn words(number: u64) -> usize {
    (1 + mixed(number) % WORDS) as usize
}

fn mixed(number: u64) -> u64 {
    (number ^ number >> 7).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20
}

/// A word of a message.
fn word(number: u64, at: usize) -> u64 {
    number.wrapping_add((at as u64).wrapping_mul(0xd1b5_4a32_d192_ed03))
}

pub fn check(lab: &mut Lab<Task>) -> Outcome<Vec<Finding>> {
    let task = lab.task;
    let begun = Instant::now();
    // The receiver knows how far it is, and the first process tells the harness.
    let found = lab.both(|gate| receive(&task, gate), |gate| send(&task, gate))?;
    let Some(((), (diverted, diversions))) = found else { return Ok(Vec::new()) };
    let time = begun.elapsed();
    Ok(vec![
        Finding::rate("exactly-once", task.count, time),
        Finding::rate("exactly-once-diverted", diverted, time),
        Finding::rate("exactly-once-diversions", diversions, time),
    ])
}

/// So many messages went through segments, and so often the sender went there.
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
        // Else it would stay ahead, and be diverted once and for all.
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

/// What has come so far.
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
                "in the place of message {number} came {words_there} words, first {:?}",
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
        // Something is wrong, or time to say how far it is.
        let now = Instant::now();
        if there {
            (looked, last) = (next, now);
        } else {
            gate.check()?;
            well(&group)?;
            let sent = gate.turn() > 0;
            if sent && now.duration_since(last) > PATIENCE {
                return Err(format!("all were sent, and {next} of {count} have come").into());
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
    // Nothing comes twice.
    thread::sleep(Duration::from_millis(10));
    let more = group.available() || group.poll() > 0;
    gate.open(OVER);
    let taken = taken.take();
    match (taken.wrong, more || taken.next != count) {
        (Some(wrong), _) => Err(wrong.into()),
        (None, true) => {
            Err(format!("more than the {count} messages that were sent have come").into())
        }
        (None, false) => Ok(()),
    }
}

/// Looks away: for 10 to 500 µs, by the bits of `random`; now and then asleep.
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

/// Numbers that look random: splitmix64.
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
        // One is lost.
        add(&mut taken, &message(101));
        assert!(taken.wrong.unwrap().contains("in the place of message 100"));
        let mut taken = Taken { next: 100, wrong: None };
        let mut changed = message(100);
        *changed.last_mut().unwrap() ^= 1;
        add(&mut taken, &changed);
        assert!(taken.wrong.is_some());
        let lengths: Vec<_> = (0..1000).map(words).collect();
        assert!((1..=8).all(|words| lengths.contains(&words)), "{lengths:?}");
    }
}
