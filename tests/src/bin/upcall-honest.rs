//! An honest member of a group, for tests with hostile members. It reads one command a line and
//! writes one reply a line. It sends numbers to each member in order. On receipt it counts numbers
//! that are missing, doubled or out of order as wrong, and it keeps the events of each member.
#![forbid(unsafe_code)]

use std::cell::RefCell;
use std::hint::black_box;
use std::io::BufRead;
use std::rc::Rc;
use std::time::{Duration, Instant};
use upcall::message::{
    Event, Group, GroupBuilder, Handlers, Kind, Pacing, Rank, RunError, SendError,
};
use upcall_tests::outcome::say;
use upcall_tests::party::structure_of;

type Outcome = Result<Vec<String>, Box<dyn std::error::Error>>;

/// Longest wait for the other members to join, and for the next number of one of them. A test waits
/// for a minute, so this is shorter: the member reports what is missing before the test gives up.
const PATIENCE: Duration = Duration::from_secs(50);

struct Honest {
    group: Group,
    number: Kind<[u64; 2]>,
    text: Kind<str>,
    seen: Rc<RefCell<Seen>>,
    /// By rank: the next number to send.
    next: Vec<u64>,
}

#[derive(Default)]
struct Seen {
    /// By rank: how many numbers were taken, and how many of those were not the expected one.
    taken: Vec<u64>,
    wrong: Vec<u64>,
    events: Vec<Event>,
}

fn main() {
    // The program does not outlive its test.
    if let Err(error) =
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
    {
        eprintln!("upcall-honest: cannot be set to end with its test: {error}");
    }
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    // On a virtual processor the handlers run by themselves.
    let before = words.len();
    words.retain(|word| word != "virtual");
    if words.len() == before {
        return run(&words);
    }
    let done = upcall::thread::processors(1, Pacing::Adaptive)
        .and_then(|processors| processors.run(|| run(&words)));
    if let Err(error) = done {
        say(Err(error.into()));
    }
}

fn run(words: &[String]) {
    let mut honest = match Honest::join(words) {
        Ok(honest) => honest,
        Err(error) => return say(Err(error)),
    };
    say(Ok(vec![honest.group.rank().to_string()]));
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let words: Vec<&str> = line.split_whitespace().collect();
        say(honest.obey(&words));
    }
}

/// The outcome of a step, in one word.
fn ended(step: Result<String, RunError>) -> String {
    step.unwrap_or_else(|error| structure_of(&error))
}

/// Arguments: GROUP SIZE RANK [OPTIONS], where a rank of `-` is any rank. `main` handles the option
/// `virtual`.
impl Honest {
    fn join(words: &[String]) -> Result<Self, Box<dyn std::error::Error>> {
        let [name, size, rank, options @ ..] = words else {
            return Err("GROUP SIZE RANK [OPTIONS]".into());
        };
        let size: usize = size.parse()?;
        let mut joining = GroupBuilder::new(name, size).within(PATIENCE);
        if rank != "-" {
            joining = joining.rank(rank.parse()?);
        }
        for option in options {
            joining = match option.split_once('=').unwrap_or((option, "")) {
                ("within", ms) => joining.within(Duration::from_millis(ms.parse()?)),
                ("sleep", _) => joining.pacing(Pacing::Sleep),
                _ => return Err(format!("unknown option {option:?}").into()),
            };
        }
        let mut handlers = Handlers::new();
        let number: Kind<[u64; 2]> = handlers.kind("number");
        let text: Kind<str> = handlers.kind("text");
        let words: Kind<[u64]> = handlers.kind("words");
        let nested: Kind<()> = handlers.kind("nested");
        let seen = Rc::new(RefCell::new(Seen {
            taken: vec![0; size],
            wrong: vec![0; size],
            events: Vec::new(),
        }));
        handlers.on(number, {
            let seen = seen.clone();
            move |_, from, [number, twice]| {
                let mut seen = seen.borrow_mut();
                if (number, twice) != (seen.taken[from], number.wrapping_mul(2)) {
                    seen.wrong[from] += 1;
                }
                seen.taken[from] += 1;
            }
        });
        // A sender that has made a queue long may put long messages into it. All of each message is
        // readable.
        handlers.on(text, |_, _, text| {
            black_box(text.bytes().map(u64::from).sum::<u64>());
        });
        handlers.on(words, |_, _, words| {
            black_box(words.iter().fold(0, |all, word| all | word));
        });
        // The poll inside the handler takes waiting messages and notices what happened during the
        // sleep.
        handlers.on(nested, |group, _, ()| {
            std::thread::sleep(Duration::from_millis(300));
            group.poll();
        });
        Ok(Self { group: joining.join(handlers)?, number, text, seen, next: vec![0; size] })
    }

    fn obey(&mut self, words: &[&str]) -> Outcome {
        match words {
            // Sends `count` numbers to one member. Reports how many were sent, and the error that
            // ended it.
            ["send", to, count] => {
                let to = to.parse()?;
                let (mut sent, mut failed) = (0_u64, None);
                for _ in 0..count.parse()? {
                    if let Err(error) = self.send(to) {
                        failed = Some(error);
                        break;
                    }
                    sent += 1;
                }
                self.poll();
                let failed = failed.map_or(String::new(), |error| structure_of(&error));
                Ok(vec![sent.to_string(), failed])
            }
            // Sends `count` long texts to one member. Reports the error that ended it.
            ["pour", to, count] => {
                let (to, long) = (to.parse()?, "x".repeat(12_000));
                let sent: Result<(), _> = (0..count.parse()?)
                    .try_for_each(|_: u64| self.group.send(to, self.text, &long));
                Ok(vec![sent.map_or_else(|error| structure_of(&error), |()| String::new())])
            }
            // Sends `count` numbers to one member and takes as many from it at the same time.
            // Reports the longest time without any, in ms.
            ["exchange", with, count] => self.exchange(with.parse()?, count.parse()?),
            // Polls and waits for `ms` ms. Reports the number of rounds, and how much longer it
            // took.
            ["endure", ms] => self.endure(Duration::from_millis(ms.parse()?)),
            // Waits until `count` numbers were taken from one member. Reports how the wait ended.
            ["await", from, count] => {
                let (from, count): (Rank, u64) = (from.parse()?, count.parse()?);
                let awaited = self.group.run_until(|| self.seen.borrow().taken[from] >= count);
                Ok(vec![ended(awaited.map(|()| "held".into()))])
            }
            // Waits for `ms` ms. Reports whether a message was there, and whether the time was
            // over.
            ["wait", ms] => {
                let (start, time) = (Instant::now(), Duration::from_millis(ms.parse()?));
                let is_there = self.group.wait(Some(time));
                Ok(vec![is_there.to_string(), (start.elapsed() >= time).to_string()])
            }
            // Report how a barrier ended, or a reduction, which adds numbers.
            ["barrier"] => Ok(vec![ended(self.group.barrier().map(|()| "held".into()))]),
            ["reduce", number] => {
                let reduced = self.group.reduce(number.parse()?, u64::wrapping_add);
                Ok(vec![ended(reduced.map(|sum| sum.to_string()))])
            }
            // Reports on a member: numbers taken, wrong ones, and its events.
            ["about", rank] => {
                self.poll();
                let (rank, seen): (Rank, _) = (rank.parse()?, self.seen.borrow());
                let mut words = vec![seen.taken[rank].to_string(), seen.wrong[rank].to_string()];
                words.extend(seen.events.iter().filter_map(|event| match event {
                    Event::Ended { rank: of } if *of == rank => Some("ended".into()),
                    Event::Violation { rank: of, what } if *of == rank => {
                        Some(format!("violation:{}", what.replace(' ', "-")))
                    }
                    _ => None,
                }));
                Ok(words)
            }
            _ => Err(format!("unknown command {words:?}").into()),
        }
    }

    fn send(&mut self, to: Rank) -> Result<(), SendError> {
        let number = self.next[to];
        self.group.send(to, self.number, &[number, number.wrapping_mul(2)])?;
        self.next[to] += 1;
        Ok(())
    }

    fn poll(&self) -> usize {
        let done = self.group.poll();
        while let Some(event) = self.group.event() {
            self.seen.borrow_mut().events.push(event);
        }
        done
    }

    fn exchange(&mut self, with: Rank, count: u64) -> Outcome {
        let (until, mut sent) = (self.seen.borrow().taken[with] + count, 0);
        let (mut last, mut longest, mut before) = (Instant::now(), Duration::ZERO, 0);
        loop {
            let taken = self.seen.borrow().taken[with];
            if taken != before {
                (longest, last, before) = (longest.max(last.elapsed()), Instant::now(), taken);
            }
            if sent == count && taken >= until {
                return Ok(vec![longest.as_millis().to_string()]);
            }
            if last.elapsed() > PATIENCE {
                return Err(format!(
                    "sent {sent}, taken {taken} of {until}; {:?}",
                    self.seen.borrow().events
                )
                .into());
            }
            if sent < count {
                self.send(with)?;
                sent += 1;
            }
            if self.poll() == 0 && sent == count {
                self.group.wait(Some(Duration::from_millis(100)));
            }
        }
    }

    fn endure(&self, time: Duration) -> Outcome {
        let (start, mut rounds) = (Instant::now(), 0_u64);
        while let Some(left) = time.checked_sub(start.elapsed()) {
            self.poll();
            self.group.wait(Some(left));
            rounds += 1;
        }
        self.poll();
        Ok(vec![rounds.to_string(), (start.elapsed() - time).as_millis().to_string()])
    }
}
