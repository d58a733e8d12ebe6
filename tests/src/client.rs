//! A client that a test controls: it reads one command a line and writes one reply a line.

use crate::deadline::{Giver, close_deadlines, deadlines};
use crate::dice::Dice;
use crate::donors::{beside_a_long_call, turns};
use crate::everywhere::everywhere;
use crate::interfaces::trial::{Thing, Trial};
use crate::interfaces::{changed, older, other, small};
use crate::latch::{Holders, full_class};
use crate::now;
use crate::outcome::{Outcome, done, same, say, show};
use crate::party::Said;
use crate::relay;
use crate::scenario::scenario;
use crate::without_kernel::{to_server_without_kernel, without_kernel};
use rustix::fs::OFlags;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::error::Error;
use std::io::{self, BufRead, PipeReader, Read};
use std::os::fd::AsRawFd;
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use upcall::thread::mpsc;
use upcall::{BindError, CallError, Pacing, policy};
use upcall_os::lock::KernelMutex;
use upcall_os::process::{Bounds, bind};

#[derive(Default)]
struct Client {
    trial: Option<Trial>,
    small: Option<small::Small>,
    more: Vec<small::Small>,
    things: Vec<Thing>,
    holders: Option<Holders>,
    /// Bindings to several servers, by name.
    several: Vec<Trial>,
    copy: Option<ForkedCopy>,
}

/// A forked copy of this process that is idle: it waits in a write to a full pipe before it becomes
/// another program.
struct ForkedCopy {
    pipe: PipeReader,
    parent: JoinHandle<io::Result<ExitStatus>>,
}

impl ForkedCopy {
    /// Starts the fork.
    fn begin() -> io::Result<Self> {
        let (pipe, writer) = io::pipe()?;
        let flags = rustix::fs::fcntl_getfl(&writer)?;
        rustix::fs::fcntl_setfl(&writer, flags | OFlags::NONBLOCK)?;
        while rustix::io::write(&writer, &[0; 4096]).is_ok() {}
        rustix::fs::fcntl_setfl(&writer, flags)?;
        let mut command = Command::new("true");
        bind(&mut command, Bounds { cgroup: Some(writer.into()), ..Bounds::default() });
        Ok(Self { pipe, parent: std::thread::spawn(move || command.status()) })
    }

    /// Lets the copy become the other program, and waits for its end.
    fn end(mut self) -> Outcome {
        self.pipe.read_exact(&mut [0; 1 << 15])?;
        let status = self.parent.join().map_err(|_| "the parent panicked")??;
        if status.success() { done() } else { Err(status.to_string().into()) }
    }
}

/// Obeys the commands on standard input until it ends.
pub fn run() {
    let mut client = Client::default();
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let words: Vec<&str> = line.split_whitespace().collect();
        say(client.obey(&words));
    }
}

/// Calls without a pause until the server has done `ms` milliseconds of other work. Reports how
/// many milliseconds that took, and the number of calls.
fn nulls_beside_work(trial: &Trial, ms: u64) -> Outcome {
    let (start, mut calls) = (Instant::now(), 0);
    trial.work_aside(ms as u32)?;
    while trial.marks()?.1 == 0 {
        (0..100).try_for_each(|_| trial.null())?;
        calls += 100;
        if start.elapsed() > Duration::from_secs(50) {
            return Err("the server does nothing else while it is called".into());
        }
    }
    show([start.elapsed().as_millis() as u64, calls])
}

/// Test bytes, and their sum as the server computes it.
fn pattern(len: usize, dice: u64) -> (Vec<u8>, u64) {
    let mut data = vec![dice as u8; len];
    data.iter_mut().step_by(4096).enumerate().for_each(|(page, byte)| *byte ^= page as u8);
    let sum = crate::object::sum(data.as_slice().into());
    (data, sum)
}

fn pacing(word: &str) -> Pacing {
    match word {
        "poll" => Pacing::Poll,
        _ => Pacing::Sleep,
    }
}

impl Client {
    fn trial(&self) -> Result<&Trial, Box<dyn Error>> {
        self.trial.as_ref().ok_or_else(|| "not bound".into())
    }

    /// The number of bytes that this process copies in one call with `len` bytes; nothing in builds
    /// that do not count. The memory that the call needs is allocated before.
    fn copies_of(&self, len: u64, call: impl Fn(&Trial, &[u8]) -> Outcome) -> Outcome {
        let (trial, (data, _)) = (self.trial()?, pattern(len as usize, 7));
        let before = upcall_shm::span::copied();
        call(trial, &data)?;
        Ok(copied_since(before))
    }

    #[expect(clippy::too_many_lines, reason = "one arm for each command")]
    fn obey(&mut self, words: &[&str]) -> Outcome {
        let number =
            |at: usize| words.get(at).and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
        match words.first().copied().unwrap_or_default() {
            "bind" => return self.bind(words[1], words.get(3).copied().unwrap_or("trial")),
            // Binds to a server of one of these users, or of any user.
            "bind-expecting" => {
                self.trial = Some(match words.get(2) {
                    Some(&"any") => Trial::expect(policy::any_user()).bind(words[1])?,
                    _ => Trial::expect(policy::users([number(2) as u32])).bind(words[1])?,
                });
            }
            "pace" => self.trial()?.set_pacing(pacing(words[1])),
            "add-on-thread" => {
                let (trial, a, b) = (self.trial()?.clone(), number(2) as u32, number(3) as u32);
                let sum = upcall::thread::processors(1, pacing(words[1]))?
                    .run(move || trial.add(a, b))??;
                return show([sum.into()]);
            }
            "nulls-on-thread" => {
                let (trial, calls) = (self.trial()?.clone(), number(2));
                upcall::thread::processors(1, pacing(words[1]))?
                    .run(move || (0..calls).try_for_each(|_| trial.null()))??;
            }
            "bind-more" => {
                let small = small::Small::bind(words[1])?;
                same(small.add(2, 3)?, 5)?;
                self.more.push(small);
            }
            "unbind" => *self = Self::default(),
            // Binds the server's small interface up to this many times. Reports the number of
            // bindings, and the error that ended it.
            "bind-until" => {
                for more in 0..number(2) {
                    match small::Small::bind(words[1]) {
                        Ok(small) => self.more.push(small),
                        Err(error) => {
                            return Ok(vec![more.to_string(), error.to_string().replace(' ', "_")]);
                        }
                    }
                }
                return show([number(2)]);
            }
            "bind-latch" => self.holders = Some(Holders::bind(words[1])?),
            "stay-by"
            | "crowd"
            | "hold"
            | "hold-bytes"
            | "hold-bytes-and-grow"
            | "holds-ended"
            | "came-in"
            | "inside"
            | "let-out" => {
                return self.holders.as_ref().ok_or("no latch")?.obey(words);
            }
            "bind-time" => return bind_time(words[1], number(2)),
            "bind-beside" => return bind_beside(words[1], words[2], number(3)),
            "bind-storm" => return bind_storm(words[1]),
            "bind-several" => {
                for name in words[1].split(',') {
                    self.several.push(Trial::bind(name)?);
                }
            }
            // Makes calls to several servers, 13 of 16 to one of them.
            "nulls-mostly" => {
                let mut others =
                    (0..self.several.len()).filter(|&at| at as u64 != number(1)).cycle();
                for call in 0..number(2) {
                    let at = if call % 16 < 13 {
                        number(1) as usize
                    } else {
                        others.next().ok_or("one server only")?
                    };
                    self.several[at].null()?;
                }
            }
            "counts" => return counts(words[1]),
            "null" => self.trial()?.null()?,
            "nulls" => (0..number(1))
                .try_for_each(|_| self.trial()?.null().map_err(Into::<Box<dyn Error>>::into))?,
            "nulls-beside-work" => return nulls_beside_work(self.trial()?, number(1)),
            "add" => return show([self.trial()?.add(number(1) as u32, number(2) as u32)?.into()]),
            "echo" => {
                let text = "ü".repeat(number(1) as usize / 2);
                return same(self.trial()?.echo(&text)?, text);
            }
            "sum" => {
                let (data, sum) = pattern(number(1) as usize, 7);
                return same(self.trial()?.sum(&data)?, sum);
            }
            "copies-of-length" => {
                return self.copies_of(number(1), |trial, data| {
                    same(trial.length(data)?, data.len() as u64)
                });
            }
            "copies-of-reverse" => {
                return self.copies_of(number(1), |trial, data| {
                    same(trial.reverse(data)?, data.iter().rev().copied().collect())
                });
            }
            "copies-of-echo" => {
                return self.copies_of(number(1), |trial, data| {
                    let text: String = data.iter().map(|byte| char::from(byte & 0x7f)).collect();
                    same(trial.echo(&text)?, text)
                });
            }
            "total" => return show([self.trial()?.total(&vec![3; number(1) as usize])?]),
            "make" => return same(self.trial()?.make(number(1), 9)?, vec![9; number(1) as usize]),
            "open" => {
                for i in 0..number(1) {
                    self.things.push(self.trial()?.open(i)?);
                }
            }
            // As often as it takes: the result of a call that is aborted is dropped.
            "open-until" => {
                while self.things.len() < number(1) as usize {
                    match self.trial()?.open(0) {
                        Err(CallError::Aborted { .. }) => {}
                        thing => self.things.push(thing?),
                    }
                }
            }
            "open-brittle" => self.things.push(self.trial()?.open_brittle()?),
            "open-slow" => self.things.push(self.trial()?.open_slow(number(1) as u32)?),
            "drop-things" => self.things.clear(),
            "numbers" => {
                let numbers =
                    self.things.iter().map(|thing| thing.number().map(|number| number.to_string()));
                return Ok(numbers.collect::<Result<_, _>>()?);
            }
            "add-small" => {
                for small in self.small.iter().chain(&self.more) {
                    same(small.add(2, 3)?, 5)?;
                }
            }
            "things" => {
                return self.trial()?.things().map_err(Into::into).and_then(|(a, b)| show([a, b]));
            }
            "work" => self.trial()?.work(number(1) as u32)?,
            "fork" => self.copy = Some(ForkedCopy::begin()?),
            "end-fork" => return self.copy.take().ok_or("no copy")?.end(),
            // Makes this many calls of work that takes no time.
            "works" => {
                for _ in 0..number(1) {
                    self.trial()?.work(0)?;
                }
            }
            "tries" => return self.tries(words[1], number(2)),
            "work-by" => {
                self.trial()?
                    .with_deadline(Some(Duration::from_millis(number(2))))
                    .work(number(1) as u32)?;
            }
            "marks" => {
                return self.trial()?.marks().map_err(Into::into).and_then(|(a, b)| show([a, b]));
            }
            "fail" => self.trial()?.fail(words[1])?,
            "limited" => self
                .trial()?
                .limited(&"x".repeat(number(1) as usize), &vec![1; number(2) as usize])?,
            "storm" => return storm(self.trial()?, number(1) as usize, number(2) as usize),
            "server-without-kernel" => return to_server_without_kernel(self.trial()?, number(1)),
            "without-kernel" => {
                return without_kernel(self.trial()?, number(1), number(2) as usize);
            }
            "deadlines" => {
                let giver = Giver::new(words.get(4) == Some(&"words"));
                return deadlines(
                    self.trial()?,
                    number(1) as usize,
                    number(2) as usize,
                    Duration::from_millis(number(3)),
                    &giver,
                );
            }
            "full-class" => return full_class(words[1]),
            "close-deadlines" => {
                let giver = Giver::new(words.get(4) == Some(&"words"));
                let length = Duration::from_millis(number(3));
                return close_deadlines(
                    self.trial()?,
                    number(1) as usize,
                    number(2) as usize,
                    length,
                    &giver,
                );
            }
            "deadline" => {
                self.trial = Some(
                    self.trial()?
                        .with_deadline((number(1) > 0).then_some(Duration::from_millis(number(1)))),
                );
            }
            "shapes" => return crate::shapes::call(words[1], &words[2..]),
            "scenario" => return scenario(words[1], words.get(2) == Some(&"user-level")),
            "go" => return relay::go(words),
            "marks-of" => return relay::marks(words[1]),
            "everywhere" => {
                return everywhere(words[1], Duration::from_millis(number(2)), number(3) as usize);
            }
            "turns" => {
                return turns(
                    self.trial()?,
                    number(1) as usize,
                    number(2) as usize,
                    [number(3), number(4), number(5)].map(Duration::from_millis),
                );
            }
            "beside-a-long-call" => return beside_a_long_call(self.trial()?, number(1) as u32),
            // "honest 1000 small" makes only calls that need no memory beside their A-stacks.
            "honest" => {
                let kinds = if words.get(2) == Some(&"small") { 2 } else { u64::MAX };
                return honest(self.trial()?, Duration::from_millis(number(1)), kinds);
            }
            "beside" => return beside(self.trial()?, words[1]),
            "crossings" => return Ok(crossings()),
            "endure" => {
                let end = Instant::now() + Duration::from_millis(number(2));
                return endure(words[1], Enough::At(end));
            }
            "endure-binds" => return endure(words[1], Enough::Binds(number(2))),
            "refuse-memory" | "permit-memory" => return ration(words),
            "spare-descriptors" => return spare_descriptors(number(1)),
            "sum-without-memory" => return sum_without_memory(self.trial()?, number(1) as usize),
            other => return Err(format!("unknown command {other:?}").into()),
        }
        done()
    }

    /// Makes `count` calls of work that takes no time, each by a new binding if the last one is
    /// broken. Reports the numbers of those that returned, and of those that failed.
    fn tries(&mut self, name: &str, count: u64) -> Outcome {
        let (mut returned, mut failed) = (0, 0);
        while returned + failed < count {
            match self.trial.as_ref().filter(|trial| trial.is_open()) {
                None => self.trial = Trial::bind(name).ok(),
                Some(trial) => match trial.work(0) {
                    Ok(()) => returned += 1,
                    Err(CallError::Failed(_)) => failed += 1,
                    Err(error) => return Err(error.into()),
                },
            }
        }
        show([returned, failed])
    }

    fn bind(&mut self, name: &str, what: &str) -> Outcome {
        let start = Instant::now();
        let name = if name == "EMPTY" { "" } else { name };
        match what {
            "trial" => self.trial = Some(Trial::bind(name)?),
            "small" => {
                let small = small::Small::bind(name)?;
                same(small.add(2, 3)?, 5)?;
                self.small = Some(small);
            }
            "changed" => drop(changed::trial::Trial::bind(name)?),
            "older" => {
                same(older::trial::Trial::bind(name)?.add(2, 3)?, 5)?;
            }
            "other" => drop(other::other::Other::bind(name)?),
            other => return Err(format!("unknown interface {other:?}").into()),
        }
        show([start.elapsed().as_micros() as u64])
    }
}

/// The number of bytes that this process has copied into and out of shared memory, in all or since
/// `before`; nothing in builds that do not count.
pub fn copied_since(before: Option<u64>) -> Vec<String> {
    let spent = upcall_shm::span::copied().map(|now| now - before.unwrap_or(0));
    spent.iter().map(u64::to_string).collect()
}

/// The number of bytes that this process has read from shared memory as single numbers; nothing in
/// builds that do not count.
pub fn read_singly() -> Vec<String> {
    upcall_shm::span::read_singly().iter().map(u64::to_string).collect()
}

/// The number of times that this process has entered the kernel in calls; nothing in builds that do
/// not count.
pub fn crossings() -> Vec<String> {
    upcall_os::crossings::made().iter().map(u64::to_string).collect()
}

/// The exports of a server on another host, and the local and remote calls that it has counted.
fn counts(server: &str) -> Outcome {
    let far = upcall::directory::FarServer::at(server)?;
    let exports = far.list()?.len() as u64;
    let all = far.read()?.bindings;
    let calls: u64 = all.iter().map(upcall::directory::Reading::calls).sum();
    let remote: u64 = all.iter().map(upcall::directory::Reading::remote).sum();
    show([exports, calls - remote, remote])
}

fn bind_time(name: &str, times: u64) -> Outcome {
    let mut spent = Vec::new();
    for _ in 0..times {
        let start = Instant::now();
        let small = small::Small::bind(name)?;
        spent.push(start.elapsed().as_nanos() as u64);
        small.add(1, 1)?;
    }
    spent.sort_unstable();
    show([spent[spent.len() / 2], spent[spent.len() - 1]])
}

/// Binds `name` while `others` clients wait for `mute`, which does not answer. Reports how many of
/// these still waited when the bind was done, the longest wait of one in milliseconds, and their
/// outcomes.
fn bind_beside(mute: &str, name: &str, others: u64) -> Outcome {
    let spent = |start: Instant| start.elapsed().as_millis() as u64;
    std::thread::scope(|scope| {
        let start = Instant::now();
        let waiting: Vec<_> = (0..others)
            .map(|_| {
                scope.spawn(move || {
                    (Trial::bind(mute).err().map(|error| Said::error(&error)), spent(start))
                })
            })
            .collect();
        std::thread::sleep(Duration::from_millis(100));
        Trial::bind(name)?.null()?;
        let still = waiting.iter().filter(|other| !other.is_finished()).count();
        let (mut longest, mut kinds) = (0, Vec::new());
        for other in waiting {
            let (said, took) = other.join().map_err(|_| "a binder panicked")?;
            longest = longest.max(took);
            kinds.push(match said {
                Some(Said::Error { kind, .. }) => kind,
                _ => "bound".into(),
            });
        }
        kinds.sort();
        kinds.dedup();
        Ok([still.to_string(), longest.to_string()].into_iter().chain(kinds).collect())
    })
}

/// Binds, calls and unbinds until that fails. Reports when and how it did.
fn bind_storm(name: &str) -> Outcome {
    let mut said = false;
    loop {
        let tried =
            Trial::bind(name).map_err(Box::<dyn Error>::from).and_then(|trial| Ok(trial.null()?));
        let at = now();
        match tried {
            Ok(()) if !said => {
                say(done());
                said = true;
            }
            Ok(()) => {}
            Err(error) => {
                let Said::Error { kind, .. } = Said::error(&*error) else { return done() };
                return Ok(vec![at.to_string(), kind]);
            }
        }
    }
}

/// Makes one call of a kind that `which` chooses, and checks the result.
pub(crate) fn one_call(trial: &Trial, which: usize, dice: &mut Dice) -> Result<(), Box<dyn Error>> {
    match which % 6 {
        0 => trial.null()?,
        1 => {
            let text = format!("{:x}", dice.any()).repeat(1 + dice.below(40) as usize);
            same(trial.echo(&text)?, text)?;
        }
        2 => {
            let (data, sum) = pattern(1 << 20, dice.any());
            same(trial.sum(&data)?, sum)?;
        }
        3 => {
            let number = dice.any();
            same(trial.open(number)?.number()?, number)?;
        }
        4 => trial.nap(1)?,
        _ => {
            let (len, value) = (dice.below(300_000), dice.any() as u8);
            same(trial.make(len, value)?, vec![value; len as usize])?;
        }
    }
    Ok(())
}

/// When and with which error each caller of a storm ended.
type Ends = Arc<KernelMutex<Vec<(u64, String)>>>;

fn call_until_it_fails(trial: &Trial, number: usize, begun: &AtomicU64, ends: &Ends) {
    let mut dice = Dice::new(number as u64 + 1);
    let mut first = true;
    loop {
        let outcome = one_call(trial, number, &mut dice);
        let at = now();
        if std::mem::take(&mut first) {
            begun.fetch_add(1, Ordering::SeqCst);
        }
        if let Err(error) = outcome {
            let kind = match Said::error(&*error) {
                Said::Error { kind, .. } if kind == "Failed.PeerEnded" || kind == "Failed.Lost" => {
                    kind
                }
                other => other.to_line().replace(' ', "_"),
            };
            return ends.lock().push((at, kind));
        }
    }
}

/// Calls from `kernel` kernel threads and `users` user-level threads until every one has failed.
/// Reports when all have begun, then how many failed, when the last one did, and with which errors.
fn storm(trial: &Trial, kernel: usize, users: usize) -> Outcome {
    let (begun, ends) = (Arc::new(AtomicU64::new(0)), Ends::default());
    std::thread::scope(|scope| -> Result<(), Box<dyn Error>> {
        for number in 0..kernel {
            let (begun, ends) = (&begun, &ends);
            scope.spawn(move || call_until_it_fails(trial, number, begun, ends));
        }
        if users > 0 {
            let processors = upcall::thread::processors(1, Pacing::Adaptive)?;
            let (trial, begun, ends) = (trial.clone(), begun.clone(), ends.clone());
            scope.spawn(move || {
                let run = processors.run(|| {
                    let threads: Vec<_> = (0..users)
                        .map(|number| {
                            let (trial, begun, ends) = (trial.clone(), begun.clone(), ends.clone());
                            upcall::thread::spawn(move || {
                                call_until_it_fails(&trial, number, &begun, &ends)
                            })
                        })
                        .collect();
                    threads.into_iter().for_each(|thread| drop(thread.join()));
                });
                run.unwrap_or_else(|error| panic!("virtual processors: {error}"));
            });
        }
        while begun.load(Ordering::SeqCst) < (kernel + users) as u64 {
            std::thread::sleep(Duration::from_micros(200));
        }
        say(done());
        Ok(())
    })?;
    let ends = ends.lock();
    let mut kinds: Vec<String> = ends.iter().map(|(_, kind)| kind.clone()).collect();
    kinds.sort();
    kinds.dedup();
    let last = ends.iter().map(|(at, _)| *at).max().unwrap_or(0);
    Ok([ends.len().to_string(), last.to_string()].into_iter().chain(kinds).collect())
}

/// Makes calls of the first `kinds` kinds from two kernel threads and four user-level threads for
/// `time`, and checks each result. Reports the number of calls and the longest time of one.
fn honest(trial: &Trial, time: Duration, kinds: u64) -> Outcome {
    let end = Instant::now() + time;
    let (calls, worst, failed) = (AtomicU64::new(0), AtomicU64::new(0), KernelMutex::new(None));
    let shared = Arc::new((calls, worst, failed, AtomicBool::new(false)));
    let caller = {
        let shared = shared.clone();
        move |trial: &Trial, seed: u64| {
            let (calls, worst, failed, stop) = &*shared;
            let mut dice = Dice::new(seed);
            while Instant::now() < end && !stop.load(Ordering::Relaxed) {
                let start = Instant::now();
                let which = (dice.any() % kinds) as usize;
                if let Err(error) = one_call(trial, which, &mut dice) {
                    *failed.lock() = Some(format!("call {}: {error}", which % 6));
                    stop.store(true, Ordering::Relaxed);
                }
                calls.fetch_add(1, Ordering::Relaxed);
                worst.fetch_max(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
            }
        }
    };
    std::thread::scope(|scope| {
        for seed in 1..3 {
            let caller = caller.clone();
            scope.spawn(move || caller(trial, seed));
        }
        let (caller, trial) = (caller.clone(), trial.clone());
        scope.spawn(move || {
            let run = upcall::thread::processors(1, Pacing::Adaptive).and_then(|processors| {
                processors.run(|| {
                    let threads: Vec<_> = (3..7)
                        .map(|seed| {
                            let (caller, trial) = (caller.clone(), trial.clone());
                            upcall::thread::spawn(move || caller(&trial, seed))
                        })
                        .collect();
                    threads.into_iter().for_each(|thread| drop(thread.join()));
                })
            });
            run.unwrap_or_else(|error| panic!("virtual processors: {error}"));
        });
    });
    let (calls, worst, failed, _) = &*shared;
    match failed.lock().take() {
        Some(text) => Err(text.into()),
        None => show([calls.load(Ordering::Relaxed), worst.load(Ordering::Relaxed)]),
    }
}

/// Calls an impostor that never answers, from a kernel thread and from a user-level thread, until
/// it hangs up. At the same time other threads of the same virtual processor call the honest
/// server. Reports how many calls those made, and the longest time of one.
fn beside(trial: &Trial, impostor: &str) -> Outcome {
    let impostor = Trial::bind(impostor)?;
    // Time for the impostor to undo what binding did to its doorbell.
    std::thread::sleep(Duration::from_millis(50));
    let (calls, worst, over) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let shared = Arc::new((calls, worst, over));
    let ended = |outcome: Result<(), CallError>| match outcome {
        Err(CallError::Failed(_)) => Ok(()),
        other => Err(format!("a call to the impostor ended with {other:?}")),
    };
    let panicked = |_| "a caller panicked".to_string();
    std::thread::scope(|scope| -> Result<(), Box<dyn Error>> {
        let kernel = scope.spawn(|| ended(impostor.null()));
        let (trial, deaf, shared) = (trial.clone(), impostor.clone(), shared.clone());
        upcall::thread::processors(1, Pacing::Sleep)?.run(move || {
            let callers: Vec<_> = (0..2)
                .map(|_| {
                    let (trial, shared) = (trial.clone(), shared.clone());
                    upcall::thread::spawn(move || -> Result<(), String> {
                        while !shared.2.load(Ordering::Relaxed) {
                            let start = Instant::now();
                            trial.null().map_err(|error| error.to_string())?;
                            shared.0.fetch_add(1, Ordering::Relaxed);
                            shared
                                .1
                                .fetch_max(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
                        }
                        Ok(())
                    })
                })
                .collect();
            let first = upcall::thread::spawn(move || ended(deaf.null()));
            let waited = first.join().map_err(panicked)?;
            shared.2.store(true, Ordering::Relaxed);
            waited?;
            callers.into_iter().try_for_each(|caller| caller.join().map_err(panicked)?)
        })??;
        Ok(kernel.join().map_err(panicked)??)
    })?;
    let (calls, worst, _) = &*shared;
    show([calls.load(Ordering::Relaxed), worst.load(Ordering::Relaxed)])
}

/// When a client of an impostor has endured enough.
#[derive(Clone, Copy)]
enum Enough {
    /// At this moment.
    At(Instant),
    /// After this number of binds, of which one was broken at least.
    Binds(u64),
}

impl Enough {
    fn is_over(self) -> bool {
        matches!(self, Self::At(end) if Instant::now() >= end)
    }

    fn is_reached(self, binds: u64, errors: u64) -> bool {
        match self {
            Self::At(_) => self.is_over(),
            Self::Binds(enough) => binds >= enough && errors > 0,
        }
    }
}

/// Binds to an impostor again and again, and calls until the binding is broken. Wrong results and
/// errors do not matter. Reports the numbers of binds, calls and errors, and the longest time of a
/// call.
fn endure(name: &str, enough: Enough) -> Outcome {
    let (mut binds, mut calls, mut errors, mut worst) = (0, 0, 0, 0);
    let mut dice = Dice::new(now());
    let processor = OneProcessor::start();
    while !enough.is_reached(binds, errors) {
        // On another machine, its list of names is requested too.
        if let Some((server, _)) = name.strip_prefix("tcp://").and_then(|rest| rest.split_once('/'))
        {
            errors += u64::from(upcall::directory::list_far(&format!("tcp://{server}")).is_err());
        }
        let trial = match Trial::bind(name) {
            Ok(trial) => trial,
            Err(BindError::NoSuchName { .. }) if binds > 0 => break,
            Err(_) => {
                errors += 1;
                continue;
            }
        };
        binds += 1;
        let shared = Arc::new((AtomicBool::new(false), KernelMutex::new((0u64, 0u64, 0u64))));
        let caller = {
            let shared = shared.clone();
            move |trial: &Trial, mut dice: Dice| {
                for _ in 0..500 {
                    if shared.0.load(Ordering::Relaxed) || enough.is_over() {
                        break;
                    }
                    let start = Instant::now();
                    let outcome = one_call(trial, dice.any() as usize, &mut dice);
                    let mut counts = shared.1.lock();
                    counts.0 += 1;
                    counts.2 = counts.2.max(start.elapsed().as_nanos() as u64);
                    if let Err(error) = outcome {
                        counts.1 += 1;
                        let failed =
                            matches!(error.downcast_ref::<CallError>(), Some(CallError::Failed(_)));
                        shared.0.fetch_or(failed, Ordering::Relaxed);
                    }
                }
            }
        };
        if binds % 2 == 0 {
            std::thread::scope(|scope| {
                for _ in 0..3 {
                    let (caller, trial, dice) = (&caller, &trial, Dice::new(dice.any()));
                    scope.spawn(move || caller(trial, dice));
                }
            });
        } else {
            let callers: Vec<_> =
                (0..5).map(|_| (caller.clone(), trial.clone(), Dice::new(dice.any()))).collect();
            processor.run(move || {
                let threads: Vec<_> = callers
                    .into_iter()
                    .map(|(caller, trial, dice)| {
                        upcall::thread::spawn(move || caller(&trial, dice))
                    })
                    .collect();
                threads.into_iter().for_each(|thread| drop(thread.join()));
            })?;
        }
        let counts = *shared.1.lock();
        (calls, errors, worst) = (calls + counts.0, errors + counts.1, worst.max(counts.2));
    }
    show([binds, calls, errors, worst])
}

/// A virtual processor that runs one piece of work after another. (Each start of a virtual
/// processor leaves some memory behind.)
struct OneProcessor {
    work: Option<mpsc::Sender<Box<dyn FnOnce() + Send>>>,
    thread: Option<std::thread::JoinHandle<io::Result<()>>>,
}

impl OneProcessor {
    fn start() -> Self {
        let (work, comes) = mpsc::channel::<Box<dyn FnOnce() + Send>>();
        let run = move || {
            upcall::thread::processors(1, Pacing::Adaptive)?.run(|| {
                while let Ok(work) = comes.recv() {
                    work();
                }
            })
        };
        Self { work: Some(work), thread: Some(std::thread::spawn(run)) }
    }

    /// Runs `work`, and waits until it is done.
    fn run(&self, work: impl FnOnce() + Send + 'static) -> Result<(), &'static str> {
        let (done, is_done) = std::sync::mpsc::channel();
        let work = move || {
            work();
            let _ = done.send(());
        };
        let sent = self.work.as_ref().is_some_and(|to| to.send(Box::new(work)).is_ok());
        if sent && is_done.recv().is_ok() { Ok(()) } else { Err("the virtual processor has ended") }
    }
}

impl Drop for OneProcessor {
    fn drop(&mut self) {
        drop(self.work.take());
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
    }
}

/// Limits this process to `spare` more descriptors. 1000 means no limit in practice.
///
/// # Errors
/// The kernel's.
pub fn spare_descriptors(spare: u64) -> Outcome {
    /// The number from which on the limit is not meant to be reached.
    const MANY: u64 = 1000;

    static FILLERS: KernelMutex<Vec<std::fs::File>> = KernelMutex::new(Vec::new());
    let mut fillers = FILLERS.lock();
    fillers.clear();
    // The kernel limits the descriptor's number, not the count. A descriptor with a number beyond
    // the limit could be closed and not be opened again. So the limit is above all open numbers,
    // and the free numbers below are filled.
    let is_open =
        |number: &u64| std::fs::symlink_metadata(format!("/proc/self/fd/{number}")).is_ok();
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(1 << 16);
    let highest = (0..limit).filter(is_open).max().unwrap_or(2);
    let opened = || {
        std::fs::File::open("/dev/null").ok().filter(|filler| filler.as_raw_fd() as u64 <= highest)
    };
    if spare < MANY {
        fillers.extend(std::iter::from_fn(opened));
    }
    let limit = highest + 1 + spare;
    let hard = getrlimit(Resource::Nofile).maximum;
    setrlimit(
        Resource::Nofile,
        Rlimit { current: Some(limit.min(hard.unwrap_or(u64::MAX))), maximum: hard },
    )?;
    show([limit])
}

/// Runs `refuse-memory NTH LEAST`, which refuses the n-th allocation of at least `LEAST` bytes, or
/// `permit-memory`, which ends that and reports the number of such allocations and whether one was
/// refused (1).
///
/// # Errors
/// If the words are neither command.
pub fn ration(words: &[&str]) -> Outcome {
    match words {
        ["refuse-memory", nth, least] => {
            upcall_os::ration::refuse(nth.parse()?, least.parse()?);
            done()
        }
        ["permit-memory"] => {
            let outcome = upcall_os::ration::lift();
            show([outcome.seen as u64, outcome.refused.into()])
        }
        _ => Err(format!("unknown words {words:?}").into()),
    }
}

/// Sums `len` bytes while this process may map only half as many more bytes; then without that
/// limit.
fn sum_without_memory(trial: &Trial, len: usize) -> Outcome {
    let (data, sum) = pattern(len, 7);
    let text = std::fs::read_to_string("/proc/self/statm")?;
    let used =
        text.split_whitespace().next().and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0)
            * 4096;
    let limit = |current| setrlimit(Resource::As, Rlimit { current, maximum: None });
    limit(Some(used + len as u64 / 2))?;
    let refused = trial.sum(&data);
    let small = trial.add(2, 3);
    limit(None)?;
    same(small?, 5)?;
    same(trial.sum(&data)?, sum)?;
    match refused {
        Err(error) => Err(error.into()),
        Ok(_) => done(),
    }
}

/// Leaves this process almost no room for mappings.
///
/// # Errors
/// The kernel's.
pub fn no_more_memory() -> Outcome {
    let text = std::fs::read_to_string("/proc/self/statm")?;
    let used =
        text.split_whitespace().next().and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0)
            * 4096;
    setrlimit(Resource::As, Rlimit { current: Some(used + (16 << 20)), maximum: None })?;
    done()
}
