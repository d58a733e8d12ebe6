//! The sender, which measures.

use std::time::{Duration, Instant};

use super::{
    Ball, Letter, MOST, OVER, STEP, catch, check, handler, letter, payload, task, throw, words,
};
use crate::child::Outcome;
use crate::found::Throughput;
use crate::messages::case::Case;
use crate::messages::child::{End, Processes};
use crate::messages::raw::Gate;
use crate::stats::{Clock, Summary};

/// Number of operations between two readings of the clock.
const PART: usize = 64;

/// The sender, with what the measurement needs.
pub(in crate::messages) struct Sender<E> {
    end: E,
    gate: Gate,
    clock: Clock,
    seed: u64,
    /// Number of messages of a burst, and of words of the longest one.
    burst: u64,
    unwatched: usize,
}

impl<E: End> Sender<E> {
    /// Creates the sender. When this returns, messages have gone both ways.
    ///
    /// # Errors
    /// No message arrived.
    pub fn new(end: E, gate: Gate, burst: usize, unwatched: usize) -> Outcome<Sender<E>> {
        let mut sender = Sender {
            end,
            gate,
            clock: Clock::calibrated(),
            seed: 1,
            burst: burst as u64,
            unwatched,
        };
        sender.processes()?;
        Ok(sender)
    }

    /// Answers a line of the harness.
    ///
    /// # Errors
    /// The text for the harness.
    pub fn command(&mut self, line: &str) -> Outcome<String> {
        match line.split_ascii_whitespace().collect::<Vec<_>>()[..] {
            ["processes"] => Ok(serde_json::to_string(&self.processes()?)?),
            [case, millis] => {
                let time = Duration::from_millis(millis.parse()?);
                match case.parse()? {
                    Case::Send(words) if words > self.unwatched => {
                        Ok(r#"{"unsupported":true}"#.to_owned())
                    }
                    Case::Rate => Ok(serde_json::to_string(&self.rate(time)?)?),
                    case => Ok(serde_json::to_string(&self.measure(case, time)?)?),
                }
            }
            _ => Err("not a command".into()),
        }
    }

    /// Ends both sides.
    ///
    /// # Errors
    /// The receiver does not answer.
    pub fn quit(mut self) -> Outcome<()> {
        self.tell(task::QUIT, 0).map(drop)
    }

    /// Gives the receiver its next task, and returns its first reply.
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

    /// Sends bursts, each after the previous one was taken. Returns the time of one message for the
    /// sender, and for the receiver. If `polled` is set, the receiver polls during a burst.
    fn bursts<const N: usize>(
        &mut self,
        time: Duration,
        polled: bool,
    ) -> Outcome<(Summary, Summary)> {
        self.gate.set(0);
        self.tell(task::TAKE_BURSTS, self.burst as usize)?;
        let Sender { end, gate, clock, seed, burst, .. } = self;
        let mut samples = vec![1; MOST]; // not zero: pages must exist before timing begins
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
                let words =
                    std::array::from_fn(|at| first.wrapping_add(STEP.wrapping_mul(at as u64)));
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
        let each =
            samples[..done].iter().map(|&ticks| self.clock.ns(ticks) / self.burst as f64).collect();
        let [p50_ns, p99_ns, p999_ns, mean_ns] = [p50, p99, p999, mean].map(f64::from_bits);
        let received = Summary { p50_ns, p99_ns, p999_ns, p9999_ns: None, mean_ns, count };
        Ok((Summary::of_nanoseconds(each), received))
    }

    /// Measures half of a ping-pong: half of the time with a time stamp each, then without.
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
        Ok(trip.map(|ns| ns / 2.0))
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

/// Waits 2 µs, after which a receiver that has seen the gate open polls the queue.
fn until_it_looks() {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_micros(2) {
        std::hint::spin_loop();
    }
}

/// Returns the sum of the words of a burst that begins with the message `seed`.
pub(super) fn sum_of_burst(seed: u64, messages: u64, words: u64) -> u64 {
    let of_seeds =
        seed.wrapping_mul(messages).wrapping_add(messages * (messages - 1) / 2).wrapping_mul(words);
    of_seeds
        .wrapping_add(STEP.wrapping_mul(words * words.saturating_sub(1) / 2).wrapping_mul(messages))
}
