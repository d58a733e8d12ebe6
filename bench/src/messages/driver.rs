//! What the two sides do in each case, the same for every system.
//!
//! The receiver is told by messages what comes next, so that it never waits for anything but messages, and waits for them as the system does. Beside the system is one word, the
//! [`Gate`], by which the two take turns where the receiver is not to look while the sender sends.

use std::time::{Duration, Instant};

use super::case::{Case, LONGEST};
use super::child::{End, Handler, Payload, Processes};
use super::raw::Gate;
use crate::child::Outcome;
use crate::found::Throughput;
use crate::payload::{expected, fill};
use crate::stats::{Clock, Summary};

/// The handlers.
mod handler {
    /// What is measured.
    pub const DATA: u16 = 0;
    /// What to do next, and a number.
    pub const COMMAND: u16 = 1;
    /// That it is over, and a number.
    pub const END: u16 = 2;
    /// What was found.
    pub const REPLY: u16 = 3;
}

/// What the receiver is to do.
mod task {
    pub const QUIT: u64 = 0;
    pub const TELL_PROCESS: u64 = 1;
    /// These begin by a reply without anything.
    pub const FIRST_WITH_MESSAGES: u64 = TAKE_BURSTS;
    pub const TAKE_BURSTS: u64 = 2;
    pub const ECHO: u64 = 3;
    pub const TAKE_STREAM: u64 = 4;
}

/// Words of what the two tell each other.
const WORDS: usize = 7;

/// What one tells the other.
type Letter = [u64; WORDS];

/// The gate, when there are no more bursts.
const OVER: u64 = u64::MAX;

/// Difference between two words of a payload.
const STEP: u64 = 0x9e37_79b9;

/// So many are done before the clock is looked at.
const PART: usize = 64;

/// So many single times are kept, at most.
const MOST: usize = 1 << 17;

/// Takes a letter.
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
        found => Err(format!("{found:?} and {} more where handler {handler} was to come", letters.others).into()),
    }
}

fn words<const N: usize>(words: [u64; N]) -> Letter {
    std::array::from_fn(|at| words.get(at).copied().unwrap_or(0))
}

/// The receiver: does what it is told until it is told to end.
///
/// # Errors
/// A receive or a send that failed, or a message that made no sense.
pub(super) fn receive(end: &mut impl End, gate: &Gate) -> Outcome<()> {
    let clock = Clock::calibrated();
    loop {
        let [task, number, ..] = letter(end, handler::COMMAND)?;
        if task >= task::FIRST_WITH_MESSAGES {
            // What comes after this is for the task.
            end.send_words(handler::REPLY, &words([]))?;
        }
        let reply = match task {
            task::QUIT => words([]),
            task::TELL_PROCESS => words([std::process::id().into()]),
            task::TAKE_BURSTS => take_bursts(end, gate, number, &clock)?,
            task::ECHO => echo(end, number as usize)?,
            task::TAKE_STREAM => take_stream(end)?,
            _ => return Err(format!("task {task} is none").into()),
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

/// Takes a burst of so many messages when the gate is open, in each odd turn.
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
    let Summary { p50_ns, p99_ns, p999_ns, mean_ns, count } = found;
    let [p50, p99, p999, mean] = [p50_ns, p99_ns, p999_ns, mean_ns].map(f64::to_bits);
    Ok(words([taken.count, taken.sum, p50, p99, p999, mean, count]))
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

/// Sends a ball with so many bytes.
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

fn payload(bytes: usize) -> Outcome<Vec<u8>> {
    if bytes > LONGEST || !bytes.is_multiple_of(8) {
        return Err(format!("no message is of {bytes} bytes").into());
    }
    Ok(vec![0; bytes])
}

/// Numbers that come one after another.
#[derive(Default)]
struct Stream {
    next: u64,
    sum: u64,
    disorder: u64,
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

/// The sender, and what it needs to measure.
pub(super) struct Sender<E> {
    end: E,
    gate: Gate,
    clock: Clock,
    seed: u64,
    /// Messages of a burst, and words of the longest one.
    burst: u64,
    unwatched: usize,
}

impl<E: End> Sender<E> {
    /// When this returns, messages have gone both ways.
    ///
    /// # Errors
    /// They do not.
    pub fn new(end: E, gate: Gate, burst: usize, unwatched: usize) -> Outcome<Sender<E>> {
        let mut sender = Sender { end, gate, clock: Clock::calibrated(), seed: 1, burst: burst as u64, unwatched };
        sender.processes()?;
        Ok(sender)
    }

    /// Answers a line of the harness.
    ///
    /// # Errors
    /// What the harness is to be told.
    pub fn command(&mut self, line: &str) -> Outcome<String> {
        match line.split_ascii_whitespace().collect::<Vec<_>>()[..] {
            ["processes"] => Ok(serde_json::to_string(&self.processes()?)?),
            [case, millis] => {
                let time = Duration::from_millis(millis.parse()?);
                match case.parse()? {
                    Case::Send(words) if words > self.unwatched => Ok(r#"{"unsupported":true}"#.to_owned()),
                    Case::Rate => Ok(serde_json::to_string(&self.rate(time)?)?),
                    case => Ok(serde_json::to_string(&self.measure(case, time)?)?),
                }
            }
            _ => Err("not a command".into()),
        }
    }

    /// Both sides end.
    ///
    /// # Errors
    /// The receiver does not answer.
    pub fn quit(mut self) -> Outcome<()> {
        self.tell(task::QUIT, 0).map(drop)
    }

    /// Has the receiver do that next; its first reply.
    fn tell(&mut self, task: u64, number: usize) -> Outcome<Letter> {
        self.end.send_words(handler::COMMAND, &words([task, number as u64]))?;
        self.reply()
    }

    fn reply(&mut self) -> Outcome<Letter> {
        letter(&mut self.end, handler::REPLY)
    }

    fn processes(&mut self) -> Outcome<Processes> {
        let [receiver, ..] = self.tell(task::TELL_PROCESS, 0)?;
        Ok(Processes { sender: std::process::id(), receiver: receiver as u32 })
    }

    fn measure(&mut self, case: Case, time: Duration) -> Outcome<Summary> {
        match case {
            Case::Send(0) => Ok(self.bursts::<0>(time, false)?.0),
            Case::Send(1) => Ok(self.bursts::<1>(time, false)?.0),
            Case::Send(2) => Ok(self.bursts::<2>(time, false)?.0),
            Case::Send(4) => Ok(self.bursts::<4>(time, false)?.0),
            Case::Send(8) => Ok(self.bursts::<8>(time, false)?.0),
            Case::Send(16) => Ok(self.bursts::<16>(time, false)?.0),
            Case::SendPolled => Ok(self.bursts::<0>(time, true)?.0),
            Case::Receive => Ok(self.bursts::<0>(time, false)?.1),
            Case::OneWay(bytes) => self.one_way(bytes, time),
            Case::Send(_) | Case::Rate => Err(format!("{case} is not measured like this").into()),
        }
    }

    /// Bursts, each after the one before was taken: the time of one message for the sender, and for the receiver. `polled` says whether the receiver looks meanwhile.
    fn bursts<const N: usize>(&mut self, time: Duration, polled: bool) -> Outcome<(Summary, Summary)> {
        self.gate.set(0);
        self.tell(task::TAKE_BURSTS, self.burst as usize)?;
        let Sender { end, gate, clock, seed, burst, .. } = self;
        let mut samples = vec![1; MOST]; // not zero: the pages must be there before the time begins
        let (mut done, mut sum, mut turn) = (0, 0_u64, 1);
        let begun = Instant::now();
        while done < MOST && (done == 0 || begun.elapsed() < time) {
            if polled {
                gate.set(turn);
                until_it_looks();
            }
            let before = clock.read();
            for message in 0..*burst {
                let first = seed.wrapping_add(message);
                let words = std::array::from_fn(|at| first.wrapping_add(STEP.wrapping_mul(at as u64)));
                end.send_words::<N>(handler::DATA, &words)?;
            }
            samples[done] = clock.read().wrapping_sub(before);
            if !polled {
                gate.set(turn);
            }
            gate.wait(turn + 1, turn + 1);
            (done, turn) = (done + 1, turn + 2);
            sum = sum.wrapping_add(sum_of_burst(*seed, *burst, N as u64));
            *seed = seed.wrapping_add(*burst);
        }
        gate.set(OVER);
        let [taken, found, p50, p99, p999, mean, count] = self.reply()?;
        check("messages", taken, done as u64 * self.burst)?;
        check("their sum", found, sum)?;
        let each = samples[..done].iter().map(|&ticks| self.clock.ns(ticks) / self.burst as f64).collect();
        let [p50_ns, p99_ns, p999_ns, mean_ns] = [p50, p99, p999, mean].map(f64::from_bits);
        Ok((Summary::of_nanoseconds(each), Summary { p50_ns, p99_ns, p999_ns, mean_ns, count }))
    }

    /// Half of a ping-pong: for half of the time with a time stamp each, then without.
    fn one_way(&mut self, bytes: usize, time: Duration) -> Outcome<Summary> {
        let mut payload = payload(bytes)?;
        self.tell(task::ECHO, bytes)?;
        let Sender { end, clock, seed, .. } = self;
        let (mut ball, mut strayed) = (Ball::default(), 0_u64);
        let mut one = || {
            *seed = seed.wrapping_mul(5).wrapping_add(1);
            throw(end, *seed, &mut payload)?;
            catch(end, &mut ball)?;
            strayed += u64::from(bytes > 0 && ball.seed != seed.wrapping_add(1));
            Outcome::Ok(())
        };
        let mut samples = vec![1; MOST];
        let (begun, mut timed) = (Instant::now(), 0);
        while timed < MOST && (timed == 0 || begun.elapsed() < time / 2) {
            let part = timed..(timed + PART).min(MOST);
            timed = part.end;
            clock.time_each(&mut samples[part], &mut one)?;
        }
        let (begun, mut untimed) = (Instant::now(), 0);
        while untimed == 0 || begun.elapsed() < time / 2 {
            (0..PART).try_for_each(|_| one())?;
            untimed += PART;
        }
        let mean_ns = begun.elapsed().as_nanos() as f64 / untimed as f64;
        self.end.send_words(handler::END, &words([]))?;
        let [count, wrong, ..] = self.reply()?;
        check("messages", count, (timed + untimed) as u64)?;
        check("wrong ones", wrong + ball.wrong + strayed + u64::from(ball.over), 0)?;
        let trip = Summary::of(&mut samples[..timed], &self.clock, mean_ns);
        Ok(Summary {
            p50_ns: trip.p50_ns / 2.0,
            p99_ns: trip.p99_ns / 2.0,
            p999_ns: trip.p999_ns / 2.0,
            mean_ns: trip.mean_ns / 2.0,
            count: trip.count,
        })
    }

    fn rate(&mut self, time: Duration) -> Outcome<Throughput> {
        self.tell(task::TAKE_STREAM, 0)?;
        let (begun, mut sent) = (Instant::now(), 0_u64);
        while sent == 0 || begun.elapsed() < time {
            for _ in 0..4 * PART {
                self.end.send_words(handler::DATA, &[sent])?;
                sent += 1;
            }
        }
        self.end.send_words(handler::END, &words([]))?;
        let [count, sum, disorder, ..] = self.reply()?;
        let found = Throughput::new(count, begun.elapsed());
        check("messages", count, sent)?;
        check("their sum", sum, sent.wrapping_mul(sent.wrapping_sub(1)) / 2)?;
        check("messages out of order", disorder, 0)?;
        Ok(found)
    }
}

/// A receiver that sees the gate open is looking at the queue by then.
fn until_it_looks() {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_micros(2) {
        std::hint::spin_loop();
    }
}

/// The sum of the words of a burst of so many messages that begins with that one.
fn sum_of_burst(seed: u64, messages: u64, words: u64) -> u64 {
    let of_seeds = seed.wrapping_mul(messages).wrapping_add(messages * (messages - 1) / 2).wrapping_mul(words);
    of_seeds.wrapping_add(STEP.wrapping_mul(words * words.saturating_sub(1) / 2).wrapping_mul(messages))
}

fn check(what: &str, found: u64, right: u64) -> Outcome<()> {
    if found == right { Ok(()) } else { Err(format!("{what}: {found} where {right} is right").into()) }
}

#[cfg(test)]
mod tests {
    use super::super::child::{Place, Side, System};
    use super::super::floor::Floor;
    use super::super::raw;
    use super::*;
    use crate::case::Placement;
    use std::os::fd::AsRawFd;
    use std::path::PathBuf;

    #[test]
    fn sums_of_bursts_are_right() {
        for words in [0, 1, 2, 16] {
            let all = (0..64).flat_map(|message| (0..words).map(move |at| 7 + message + STEP * at));
            assert_eq!(sum_of_burst(7, 64, words), all.sum::<u64>(), "{words}");
        }
    }

    /// A sender and a receiver in two threads. The floor yields, as both may have one processor.
    fn with_sender<T>(body: impl FnOnce(&mut Sender<<Floor as System>::End>) -> T) -> T {
        let file = raw::create().unwrap();
        let dir = std::env::temp_dir().join(format!("upcall-driver-{}-{}", std::process::id(), file.as_raw_fd()));
        std::fs::create_dir(&dir).unwrap();
        let memory = PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()));
        std::os::unix::fs::symlink(memory, dir.join(super::super::child::MEMORY)).unwrap();
        let place = |side| Place { side, cpu: 0, placement: Placement::OneCore, dir: dir.clone() };
        let found = std::thread::scope(|scope| {
            let receiver = scope.spawn(|| {
                let place = place(Side::Receiver);
                receive(&mut Floor::join(&place).unwrap(), &Gate::open(&place.memory()).unwrap()).unwrap();
            });
            let place = place(Side::Sender);
            let mut sender = Sender::new(Floor::join(&place).unwrap(), Gate::open(&place.memory()).unwrap(), 64, 8).unwrap();
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
        // What is wrong is told when both have ended.
        let cases = Case::all().map(Case::name);
        let answers = with_sender(|sender| {
            let lines = cases.map(|case| format!("{case} 2")).chain(["processes".to_owned()]);
            let wrong = ["", "send-0", "send-0 x", "send-3 1", "stop"].map(str::to_owned);
            lines
                .chain(wrong)
                .map(|line| (line.clone(), sender.command(&line).map_err(|error| error.to_string())))
                .collect::<Vec<_>>()
        });
        let (own, all) = (std::process::id(), Case::all().count());
        for (line, answer) in &answers[..all] {
            let answer = answer.as_ref().unwrap_or_else(|error| panic!("{line}: {error}"));
            match line.as_str() {
                "send-16 2" => assert_eq!(answer, r#"{"unsupported":true}"#),
                "rate-8 2" => assert!(serde_json::from_str::<Throughput>(answer).unwrap().calls > 0),
                _ => assert!(serde_json::from_str::<Summary>(answer).unwrap().count > 0, "{line}: {answer}"),
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
