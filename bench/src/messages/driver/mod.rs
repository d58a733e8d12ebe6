//! The work of the two sides in each case, the same for every system.
//!
//! The receiver ([`receiver`]) gets its commands as messages, so that it only ever waits for
//! messages, and waits for them as the system does. Independent of the system there is one word,
//! the [`Gate`](super::raw::Gate), by which the two take turns where the receiver must not poll
//! while the sender ([`sender`]) sends. This module has the shared parts: letters, which carry
//! commands and findings, and the balls of a ping-pong.

mod receiver;
mod sender;

use super::case::LONGEST;
use super::child::{End, Handler, Payload};
use crate::child::Outcome;
use crate::payload::{expected, fill};

pub(super) use self::receiver::receive;
pub(super) use self::sender::Sender;

/// The handlers.
mod handler {
    /// A measured message.
    pub const DATA: u16 = 0;
    /// The next task, and a number.
    pub const COMMAND: u16 = 1;
    /// The end of a task, and a number.
    pub const END: u16 = 2;
    /// A finding.
    pub const REPLY: u16 = 3;
}

/// Tasks of the receiver.
mod task {
    pub const QUIT: u64 = 0;
    pub const TELL_PROCESS: u64 = 1;
    /// The receiver answers tasks from this one on with an empty reply before they begin.
    pub const FIRST_WITH_MESSAGES: u64 = TAKE_BURSTS;
    pub const TAKE_BURSTS: u64 = 2;
    pub const ECHO: u64 = 3;
    pub const TAKE_STREAM: u64 = 4;
}

/// Number of words of a letter.
const WORDS: usize = 7;

/// A command or a finding.
type Letter = [u64; WORDS];

/// Value of the gate after the last burst.
const OVER: u64 = u64::MAX;

/// Difference between two words of a payload.
const STEP: u64 = 0x9e37_79b9;

/// Maximum number of samples.
const MOST: usize = 1 << 17;

/// A handler that keeps letters.
#[derive(Default)]
struct Letters {
    found: Option<(u16, Letter)>,
    others: usize,
}

impl Handler for Letters {
    fn message(&mut self, handler: u16, payload: &impl Payload) {
        let is_letter = payload.len() == WORDS * 8 && self.found.is_none();
        match is_letter {
            true => self.found = Some((handler, std::array::from_fn(|at| payload.word(at)))),
            false => self.others += 1,
        }
    }
}

fn letter(end: &mut impl End, handler: u16) -> Outcome<Letter> {
    let mut letters = Letters::default();
    while letters.found.is_none() && letters.others == 0 {
        end.receive(&mut letters)?;
    }
    match letters.found {
        Some((found, letter)) if found == handler && letters.others == 0 => Ok(letter),
        found => Err(format!(
            "expected a message for handler {handler}, found {found:?} and {} more",
            letters.others
        )
        .into()),
    }
}

fn words<const N: usize>(words: [u64; N]) -> Letter {
    std::array::from_fn(|at| words.get(at).copied().unwrap_or(0))
}

/// A ping, or a pong.
#[derive(Default)]
struct Ball {
    /// The first word.
    seed: u64,
    came: bool,
    over: bool,
    wrong: u64,
}

impl Handler for Ball {
    #[inline(always)]
    fn message(&mut self, handler: u16, payload: &impl Payload) {
        self.came = true;
        if handler != handler::DATA {
            self.over = true;
            return;
        }
        if payload.is_empty() {
            return;
        }
        self.seed = payload.word(0);
        if payload.len() > 8 && payload.checksum() != expected(payload.len(), self.seed) {
            self.wrong += 1;
        }
    }
}

/// Sends a ball with this number of bytes.
#[inline(always)]
fn throw(end: &mut impl End, seed: u64, bytes: &mut [u8]) -> Outcome<()> {
    match bytes.len() {
        0 => end.send_words(handler::DATA, &[]),
        8 => end.send_words(handler::DATA, &[seed]),
        _ => {
            fill(bytes, seed);
            end.send_bytes(handler::DATA, bytes)
        }
    }
}

#[inline(always)]
fn catch(end: &mut impl End, ball: &mut Ball) -> Outcome<()> {
    ball.came = false;
    while !ball.came {
        end.receive(ball)?;
    }
    Ok(())
}

fn payload(bytes: usize) -> Outcome<Vec<u8>> {
    if bytes > LONGEST || !bytes.is_multiple_of(8) {
        return Err(format!("messages of {bytes} bytes are not supported").into());
    }
    Ok(vec![0; bytes])
}

fn check(what: &str, found: u64, right: u64) -> Outcome<()> {
    if found == right {
        Ok(())
    } else {
        Err(format!("{what}: {found} where {right} is expected").into())
    }
}

#[cfg(test)]
mod tests {
    use super::super::case::Case;
    use super::super::child::{Place, Processes, Side, System};
    use super::super::floor::Floor;
    use super::super::raw::{self, Gate};
    use super::receiver::Stream;
    use super::sender::sum_of_burst;
    use super::*;
    use crate::case::Placement;
    use crate::found::Throughput;
    use crate::stats::Summary;
    use std::os::fd::AsRawFd;
    use std::path::PathBuf;

    #[test]
    fn sums_of_bursts_are_right() {
        for words in [0, 1, 2, 16] {
            let all = (0..64).flat_map(|message| (0..words).map(move |at| 7 + message + STEP * at));
            assert_eq!(sum_of_burst(7, 64, words), all.sum::<u64>(), "{words}");
        }
    }

    /// Runs a sender and a receiver in two threads. The floor yields, as both may share a
    /// processor.
    fn with_sender<T>(body: impl FnOnce(&mut Sender<<Floor as System>::End>) -> T) -> T {
        let file = raw::create().unwrap();
        let dir = std::env::temp_dir().join(format!(
            "upcall-driver-{}-{}",
            std::process::id(),
            file.as_raw_fd()
        ));
        std::fs::create_dir(&dir).unwrap();
        let memory = PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()));
        std::os::unix::fs::symlink(memory, dir.join(super::super::child::MEMORY)).unwrap();
        let place = |side| Place { side, cpu: 0, placement: Placement::OneCore, dir: dir.clone() };
        let found = std::thread::scope(|scope| {
            let receiver = scope.spawn(|| {
                let place = place(Side::Receiver);
                receive(&mut Floor::join(&place).unwrap(), &Gate::open(&place.memory()).unwrap())
                    .unwrap();
            });
            let place = place(Side::Sender);
            let mut sender = Sender::new(
                Floor::join(&place).unwrap(),
                Gate::open(&place.memory()).unwrap(),
                64,
                8,
            )
            .unwrap();
            let found = body(&mut sender);
            sender.quit().unwrap();
            receiver.join().unwrap();
            found
        });
        std::fs::remove_dir_all(dir).unwrap();
        found
    }

    #[test]
    fn every_case_is_measured_and_checked() {
        // Findings are asserted after both sides have ended.
        let cases = Case::all().map(Case::name);
        let answers = with_sender(|sender| {
            let lines = cases.map(|case| format!("{case} 2")).chain(["processes".to_owned()]);
            let wrong = ["", "send-0", "send-0 x", "send-3 1", "stop"].map(str::to_owned);
            lines
                .chain(wrong)
                .map(|line| {
                    (line.clone(), sender.command(&line).map_err(|error| error.to_string()))
                })
                .collect::<Vec<_>>()
        });
        let (own, all) = (std::process::id(), Case::all().count());
        for (line, answer) in &answers[..all] {
            let answer = answer.as_ref().unwrap_or_else(|error| panic!("{line}: {error}"));
            match line.as_str() {
                "send-16 2" => assert_eq!(answer, r#"{"unsupported":true}"#),
                "rate-8 2" => {
                    assert!(serde_json::from_str::<Throughput>(answer).unwrap().calls > 0)
                }
                _ => assert!(
                    serde_json::from_str::<Summary>(answer).unwrap().count > 0,
                    "{line}: {answer}"
                ),
            }
        }
        let processes: Processes = serde_json::from_str(answers[all].1.as_ref().unwrap()).unwrap();
        assert_eq!(processes, Processes { sender: own, receiver: own });
        assert!(answers[all + 1..].iter().all(|(_, answer)| answer.is_err()), "{answers:?}");
    }

    #[test]
    fn what_is_wrong_is_found() {
        let mut ball = Ball::default();
        let mut bytes = vec![0; 1000];
        fill(&mut bytes, 3);
        ball.message(handler::DATA, &&bytes[..]);
        assert_eq!((ball.seed, ball.wrong), (3, 0));
        bytes[500] ^= 1;
        ball.message(handler::DATA, &&bytes[..]);
        assert_eq!(ball.wrong, 1);
        let mut stream = Stream::default();
        for word in [0_u64, 2, 1] {
            stream.message(handler::DATA, &&word.to_le_bytes()[..]);
        }
        assert_eq!((stream.next, stream.sum, stream.disorder), (3, 3, 2));
        assert!(check("sum", 1, 2).is_err());
    }
}
