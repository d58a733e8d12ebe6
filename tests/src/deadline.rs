//! Many callers that abandon calls, by a deadline or a cancel token, and the same callers without
//! either.

use crate::client::one_call;
use crate::dice::Dice;
use crate::interfaces::trial::Trial;
use crate::outcome::{Outcome, say};
use std::error::Error;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use upcall::{CallError, CancelToken, Pacing};
use upcall_os::lock::KernelMutex;

#[derive(Default)]
struct Tally {
    done: AtomicU64,
    sent: AtomicU64,
    unsent: AtomicU64,
    longest_ms: AtomicU64,
    wrong: KernelMutex<Vec<String>>,
}

impl Tally {
    fn first_calls(&self) -> u64 {
        [&self.done, &self.sent, &self.unsent]
            .iter()
            .map(|count| count.load(Ordering::SeqCst))
            .sum()
    }

    /// Returns `true` if at least `count` calls were done, and as many were aborted under way.
    fn has_both(&self, count: u64) -> bool {
        [&self.done, &self.sent].iter().all(|found| found.load(Ordering::SeqCst) >= count)
    }

    fn is_wrong(&self, what: String) {
        self.wrong.lock().push(what);
    }

    /// Makes a call of the kind that `number` chooses twice, first with a limit and then without.
    fn call_twice(&self, trial: &Trial, giver: &Giver, after: Duration, number: usize) {
        let mut dice = Dice::new(number as u64 + 1);
        let start = Instant::now();
        let outcome = one_call(&giver.limit(trial, after), number, &mut dice);
        self.longest_ms.fetch_max(start.elapsed().as_millis() as u64, Ordering::SeqCst);
        self.count(&outcome);
        if let Err(error) = one_call(trial, number, &mut dice) {
            self.is_wrong(error.to_string());
        }
    }

    fn count(&self, outcome: &Result<(), Box<dyn Error>>) {
        let count = match outcome.as_ref().map_err(|error| error.downcast_ref::<CallError>()) {
            Ok(()) => &self.done,
            Err(Some(CallError::Aborted { sent: true })) => &self.sent,
            Err(Some(CallError::Aborted { sent: false })) => &self.unsent,
            Err(_) => {
                self.is_wrong(format!("{outcome:?}"));
                &self.done
            }
        };
        count.fetch_add(1, Ordering::SeqCst);
    }
}

/// What makes calls end early.
#[derive(Clone)]
pub(crate) enum Giver {
    /// A deadline of the call.
    Deadline,
    /// A thread that cancels the tokens when they are due.
    Words(mpsc::Sender<(Instant, CancelToken)>),
}

impl Giver {
    pub(crate) fn new(words: bool) -> Self {
        if !words {
            return Self::Deadline;
        }
        let (giver, given) = mpsc::channel();
        std::thread::spawn(move || {
            let mut due: Vec<(Instant, CancelToken)> = Vec::new();
            loop {
                let now = Instant::now();
                due.extract_if(.., |(at, _)| *at <= now).for_each(|(_, token)| token.cancel());
                let next = due.iter().map(|(at, _)| at.saturating_duration_since(now)).min();
                match given.recv_timeout(next.unwrap_or(Duration::from_secs(1))) {
                    Ok(new) => due.push(new),
                    Err(mpsc::RecvTimeoutError::Timeout) => {}
                    Err(mpsc::RecvTimeoutError::Disconnected) if due.is_empty() => return,
                    Err(mpsc::RecvTimeoutError::Disconnected) => {
                        std::thread::sleep(Duration::from_millis(1))
                    }
                }
            }
        });
        Self::Words(giver)
    }

    fn limit(&self, trial: &Trial, after: Duration) -> Trial {
        match self {
            Self::Deadline => trial.with_deadline(Some(after)),
            Self::Words(giver) => {
                let word = CancelToken::new();
                // The thread lives as long as there are senders of tokens.
                let _ = giver.send((Instant::now() + after, word.clone()));
                trial.with_cancel(&word)
            }
        }
    }
}

/// Calls with a deadline or a cancel token from `kernel` kernel threads and `users` user-level
/// threads. Reports how many calls were done, how many were aborted after and how many before they
/// were sent, and the longest time of one in milliseconds.
///
/// Then each thread calls without a deadline, even if the server is still busy. In the end reports
/// how many objects were made, once all of them are dropped.
pub(crate) fn deadlines(
    trial: &Trial,
    kernel: usize,
    users: usize,
    after: Duration,
    giver: &Giver,
) -> Outcome {
    let tally = Arc::new(Tally::default());
    let made = std::thread::scope(|scope| -> Result<u64, Box<dyn Error>> {
        for number in 0..kernel {
            let tally = &tally;
            scope.spawn(move || tally.call_twice(trial, giver, after, number));
        }
        let threads = (users > 0).then(|| {
            let (trial, tally, giver) = (trial.clone(), tally.clone(), giver.clone());
            scope.spawn(move || {
                let run = upcall::thread::processors(1, Pacing::Adaptive)?.run(|| {
                    let threads: Vec<_> = (0..users)
                        .map(|number| {
                            let (trial, tally, giver) =
                                (trial.clone(), tally.clone(), giver.clone());
                            upcall::thread::spawn(move || {
                                tally.call_twice(&trial, &giver, after, number)
                            })
                        })
                        .collect();
                    threads.into_iter().for_each(|thread| drop(thread.join()));
                    all_dropped(&trial)
                })?;
                run.map_err(std::io::Error::other)
            })
        });
        while tally.first_calls() < (kernel + users) as u64 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let [done, sent, unsent, longest] =
            [&tally.done, &tally.sent, &tally.unsent, &tally.longest_ms]
                .map(|count| count.load(Ordering::SeqCst));
        say(Ok(vec![done.to_string(), sent.to_string(), unsent.to_string(), longest.to_string()]));
        if let Some(threads) = threads {
            threads.join().map_err(|_| "a scheduler panicked")??;
        }
        Ok(all_dropped(trial)?)
    })?;
    let wrong = tally.wrong.lock();
    if wrong.is_empty() { Ok(vec![made.to_string()]) } else { Err(wrong.join("; ").into()) }
}

/// Number of completed and of aborted calls to wait for, and the longest time to wait for them: on
/// a busy machine a second may bring few.
const ENOUGH: u64 = 120;
const LONGEST: Duration = Duration::from_secs(12);

/// For at least `length`, makes calls with deadlines or cancel tokens that take about as long as
/// the calls do, so that both outcomes occur. Then makes calls without either, and reports how many
/// calls were done, and how many were aborted after and how many before they were sent.
pub(crate) fn close_deadlines(
    trial: &Trial,
    kernel: usize,
    users: usize,
    length: Duration,
    giver: &Giver,
) -> Outcome {
    let tally = Arc::new(Tally::default());
    let start = Instant::now();
    let call = move |trial: &Trial, tally: &Tally, giver: &Giver, number: usize| {
        let mut dice = Dice::new(number as u64 + 1);
        while start.elapsed() < length || !tally.has_both(ENOUGH) && start.elapsed() < LONGEST {
            let after = Duration::from_micros(20 << dice.below(8));
            tally.count(&one_call(&giver.limit(trial, after), dice.below(6) as usize, &mut dice));
        }
    };
    std::thread::scope(|scope| -> Result<(), Box<dyn Error>> {
        for number in 0..kernel {
            let tally = &tally;
            scope.spawn(move || call(trial, tally, giver, number));
        }
        if users > 0 {
            upcall::thread::processors(1, Pacing::Adaptive)?.run(|| {
                let call = |number| {
                    let (trial, tally, giver) = (trial.clone(), tally.clone(), giver.clone());
                    upcall::thread::spawn(move || call(&trial, &tally, &giver, number))
                };
                let threads: Vec<_> = (kernel..kernel + users).map(call).collect();
                threads.into_iter().for_each(|thread| drop(thread.join()));
            })?;
        }
        Ok(())
    })?;
    // Abandoned calls, including those by threads of a scheduler that has ended, delay other calls
    // only briefly.
    for number in 0..200 {
        one_call(trial, number, &mut Dice::new(1))?;
    }
    all_dropped(trial)?;
    let wrong = tally.wrong.lock();
    match wrong.first() {
        Some(wrong) => Err(wrong.clone().into()),
        None => Ok([&tally.done, &tally.sent, &tally.unsent]
            .map(|count| count.load(Ordering::SeqCst).to_string())
            .into()),
    }
}

/// Waits until the server has dropped all objects that it made. Returns their number.
fn all_dropped(trial: &Trial) -> Result<u64, String> {
    let start = Instant::now();
    loop {
        let (made, dropped) = trial.things().map_err(|error| error.to_string())?;
        if made == dropped {
            return Ok(made);
        }
        if start.elapsed() > Duration::from_secs(60) {
            return Err(format!("{made} objects were made, and {dropped} dropped"));
        }
        upcall::thread::sleep(Duration::from_millis(2));
    }
}
