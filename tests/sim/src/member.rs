//! A member of a group, as in `upcall_message` but for what is bound to processes: `send`, `poll`
//! and `wait` are `Group`'s, `look` is `Ringer::launched`, and the sleep is that of `Post`, each in
//! the order of steps that it has there.
//!
//! The queue, the patience and the announcement are the product's own.

use crate::Rank;
use crate::bag::{Bag, File};
use crate::dice::Dice;
use crate::engine::Cpu;
use crate::ledger::Ledger;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use upcall_message::flow::{Buffers, Flow, NoRoom, Unsent};
use upcall_os::atomic::{AtomicU32, Ordering};
use upcall_os::headroom::Headroom;
use upcall_sched::sleep;
use upcall_shm::direct::{Incoming, Outgoing, Refused, Unreadable};

/// A load or a store of one word that is shared.
const ACCESS: u64 = 3;
/// One more look for what is waited for.
const SPIN: u64 = 20;
/// The longest of them: who waits for room gives way more and more.
const LONGEST_SPIN: u64 = 320;
/// The fence for all.
const FENCE: u64 = 200;
/// A ring of the doorbell.
const RING: u64 = 100;
/// How long a sender waits that is kept by more than one receiver's patience, before it tries
/// again.
const PAUSE: u64 = 1000;
/// What a send takes that waits for nothing, at most.
const SEND: u64 = 5000;
/// So many messages of one sender are run before the others have their turn.
const BATCH: usize = 64;

/// Where a receiver says that it sleeps.
#[derive(Debug, Default)]
pub struct Line {
    asleep: AtomicU32,
    sleeps: AtomicU64,
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// It is launched.
    Taken,
    /// It was described and dropped.
    Dropped,
    /// There is no room now.
    Full,
    /// There is no memory now.
    NoMemory,
    /// The receiver has ended.
    Ended,
}

/// What a sender does that has found no room.
enum Try {
    Again,
    Later,
    /// Later, however long the timeout is.
    Pause,
    Not(Sent),
}

#[derive(Debug)]
struct Link<const S: u64> {
    file: Arc<File>,
    queue: Outgoing<Bag<S>>,
    flow: Flow,
    /// The last of the receiver's sleeps that it rang for.
    rung: AtomicU64,
    /// Since when it was refused, and what the receiver had told when it diverted last: what its
    /// patience goes by.
    refused: Option<u64>,
    diverted_at: Option<u64>,
}

/// What a member has buffered, as a message to another one needs it, in bytes.
struct Share {
    segment: u64,
    here: u64,
    elsewhere: u64,
    share: u64,
}

impl Buffers for Share {
    fn segment(&self) -> u64 {
        self.segment
    }

    fn here(&self) -> u64 {
        self.here
    }

    fn elsewhere(&self) -> u64 {
        self.elsewhere
    }

    fn share(&self) -> u64 {
        self.share
    }

    fn low(&self) -> Option<Headroom> {
        None
    }
}

#[derive(Debug)]
struct Inbound<const S: u64> {
    from: Rank,
    queue: Incoming<Bag<S>>,
    ended: bool,
}

impl<const S: u64> Inbound<S> {
    fn waits(&mut self) -> bool {
        self.queue.waits() && (!matches!(self.queue.peek(), Ok(None)) || self.queue.waits())
    }
}

/// What a member is made of.
#[derive(Clone, Debug)]
pub struct Parts<const S: u64> {
    /// Its processor.
    pub cpu: Cpu,
    /// What decides what it does.
    pub dice: Dice,
    /// By receiver: the queue to it.
    pub out: Vec<Option<Bag<S>>>,
    /// By sender: the queue from it.
    pub from: Vec<Option<Bag<S>>>,
    /// By member.
    pub lines: Arc<[Line]>,
    /// The atomicity timeout.
    pub timeout: Option<Duration>,
    /// What it may buffer, in bytes.
    pub share: u64,
    /// What its handlers take, in ns.
    pub handler: u64,
}

/// See the module.
#[derive(Debug)]
pub struct Member<const S: u64> {
    /// Its processor.
    pub cpu: Cpu,
    /// What decides what it does.
    pub dice: Dice,
    links: Vec<Option<Link<S>>>,
    inbound: Vec<Inbound<S>>,
    lines: Arc<[Line]>,
    timeout: Option<Duration>,
    share: u64,
    handler: u64,
}

fn nanos(time: Duration) -> u64 {
    time.as_nanos() as u64
}

impl<const S: u64> Member<S> {
    /// A member that knows all others.
    pub fn new(parts: Parts<S>) -> Self {
        let Parts { cpu, dice, out, from, lines, timeout, share, handler } = parts;
        let link = |bag: Bag<S>| {
            let file = bag.file.clone();
            let (mut queue, flow) = (Outgoing::new(bag), Flow::new(timeout));
            if flow.is_always_diverted() {
                queue.stay_diverted();
            }
            Link { file, queue, flow, rung: AtomicU64::new(0), refused: None, diverted_at: None }
        };
        let links = out.into_iter().map(|bag| bag.map(link)).collect();
        let inbound = |(from, bag): (Rank, Option<Bag<S>>)| {
            Some(Inbound { from, queue: Incoming::new(bag?), ended: false })
        };
        let inbound = from.into_iter().enumerate().filter_map(inbound).collect();
        Self { cpu, dice, links, inbound, lines, timeout, share, handler }
    }

    /// Its place.
    pub fn rank(&self) -> Rank {
        self.cpu.rank()
    }

    /// The most bytes that a message to a member carries which goes the direct way; `None` if it
    /// has ended.
    pub fn most(&self, to: Rank) -> Option<usize> {
        Some(self.links[to].as_ref()?.queue.most_directly())
    }

    /// `Group::send`, which takes what comes while it waits; and with `waits` false
    /// `Group::try_send`.
    pub fn send(&mut self, to: Rank, len: usize, waits: bool) -> Sent {
        let (mut used, mut spin, mut paused) = (self.cpu.used(), SPIN, false);
        loop {
            if self.cpu.has_news() {
                self.attend();
            }
            let Some(link) = &mut self.links[to] else { return Sent::Ended };
            if link.flow.is_always_diverted()
                && !link.queue.is_diverted()
                && link.queue.divert().is_err()
            {
                return Sent::NoMemory;
            }
            if let Some(sent) = self.try_once(to, len) {
                // Whatever the receiver does, who sends to it is soon free for others.
                if let (Some(timeout), false) = (self.timeout, paused) {
                    let took = self.cpu.used() - used;
                    if took > nanos(timeout) + SEND {
                        self.cpu.fail(format!(
                            "a message to domain {to} took {took} ns with a timeout of {timeout:?}"
                        ));
                    }
                }
                return sent;
            }
            match self.has_no_room(to, waits) {
                Try::Again => continue,
                Try::Later => {}
                Try::Pause => {
                    paused = true;
                    self.cpu.spend(PAUSE);
                }
                Try::Not(sent) => return sent,
            }
            used += self.meanwhile();
            self.cpu.spend(spin);
            spin = LONGEST_SPIN.min(spin * 2);
        }
    }

    /// `Group::has_no_room`, by the same decision.
    fn has_no_room(&mut self, to: Rank, waits: bool) -> Try {
        let (beside, held_beside) = self.beside(to);
        let Some(link) = &mut self.links[to] else { return Try::Not(Sent::Ended) };
        self.cpu.count(|seen| seen.refused += 1);
        let progress = link.queue.progress();
        let (time, now) = (self.cpu.time(), self.cpu.now());
        let waited = time - *link.refused.get_or_insert(time);
        let segment = link.file.segment_bytes();
        let buffers = Share {
            segment,
            here: Self::said(&self.cpu, to, link) * segment,
            elsewhere: beside * segment,
            share: self.share,
        };
        let unsent = Unsent { now, progress, outsized: None };
        let decision = link.flow.without_room(unsent, &buffers);
        if decision != NoRoom::Full
            && link.diverted_at != Some(progress)
            && self.timeout.is_some_and(|least| waited < nanos(least))
        {
            self.cpu.fail(format!("diverts messages to domain {to} after {waited} ns"))
        }
        let stopped = matches!(decision, NoRoom::Overflow { .. });
        self.cpu.count(|seen| seen.stopped += u64::from(stopped));
        if decision == NoRoom::Divert {
            let held = Self::held(&self.cpu, to, &link.file);
            match link.queue.divert() {
                Ok(()) => {
                    if let Some(wrong) =
                        Ledger::check_share(self.share, held_beside + held, held, segment, 0)
                    {
                        self.cpu.fail(wrong);
                    }
                    link.flow.diverted(progress);
                    (link.refused, link.diverted_at) = (None, Some(progress));
                    return Try::Again;
                }
                Err(error) if !waits && error.kind() != io::ErrorKind::StorageFull => {
                    return Try::Not(Sent::NoMemory);
                }
                Err(_) => {}
            }
        }
        if !waits {
            return Try::Not(Sent::Full);
        }
        if decision != NoRoom::Full || self.timeout.is_none() { Try::Pause } else { Try::Later }
    }

    /// `Group::run_handlers_meanwhile`. The time that it took.
    fn meanwhile(&mut self) -> u64 {
        let before = self.cpu.used();
        let taken = self.poll(&mut |_, _| {});
        self.inbound.iter_mut().for_each(|inbound| inbound.queue.tell());
        self.cpu.count(|seen| seen.meanwhile += taken as u64);
        self.cpu.used() - before
    }

    /// Segments for others than `to`: as far as the queues say, and in truth.
    fn beside(&self, to: Rank) -> (u64, u64) {
        let others = self.links.iter().enumerate().filter(|(rank, _)| *rank != to);
        let of = |(rank, link): (Rank, &Option<Link<S>>)| {
            link.as_ref().map(|link| {
                (Self::said(&self.cpu, rank, link), Self::held(&self.cpu, rank, &link.file))
            })
        };
        others.filter_map(of).fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1))
    }

    /// The same as far as the queue says, which is not for long more than is true.
    fn said(cpu: &Cpu, to: Rank, link: &Link<S>) -> u64 {
        let most = link.file.most_held();
        let said = link.queue.buffered();
        if said > most {
            cpu.fail(format!("believes that {said} segments are not left by domain {to}, which has left all but {most}"));
        }
        said
    }

    /// Segments to a member with messages that it has not taken.
    fn held(cpu: &Cpu, to: Rank, file: &File) -> u64 {
        if cpu.enter(|ledger| ledger.is_settled(cpu.rank(), to)) { 0 } else { file.held() }
    }

    /// Describes and launches a message; `None` if there is no room.
    fn try_once(&mut self, to: Rank, len: usize) -> Option<Sent> {
        let (from, cpu) = (self.cpu.rank(), &self.cpu);
        let link = self.links[to].as_mut()?;
        let was_diverted = link.queue.is_diverted();
        let message = cpu.enter(|ledger| ledger.next(from, to, len));
        let described = link.queue.describe(message.handler(), len);
        let draft = match described {
            Ok(draft) => draft,
            Err(Refused::Full) => return None,
            Err(refused) => cpu.fail(format!("to domain {to}: {refused}")),
        };
        let words: Vec<u64> = (0..len.div_ceil(8)).map(|at| message.word(from, to, at)).collect();
        match self.dice.below(4) {
            0 => draft.put_all(&words),
            1 => {
                let bytes: Vec<u8> =
                    words.iter().flat_map(|word| word.to_le_bytes()).take(len).collect();
                if draft.room().copy_in(0, &bytes).is_none() {
                    cpu.fail(format!(
                        "{len} bytes do not fit into the message that is to have them"
                    ));
                }
            }
            _ => words.iter().enumerate().for_each(|(at, word)| draft.put(at, *word)),
        }
        if self.dice.once_in(32) {
            cpu.count(|seen| seen.drafts_dropped += 1);
            return Some(Sent::Dropped);
        }
        cpu.enter(|ledger| ledger.launches(from, to, message));
        cpu.event("launches to, number", to as u64, message.number);
        draft.launch();
        cpu.enter(|ledger| ledger.launched(from, to));
        link.flow.fits();
        link.refused = None;
        Self::look(cpu, &link.rung, &self.lines[to], to);
        cpu.check(|state| Ledger::looked(state, from, to));
        let is_diverted = link.queue.is_diverted();
        cpu.count(|seen| {
            seen.buffered += u64::from(is_diverted);
            seen.home += u64::from(was_diverted && !is_diverted);
        });
        Some(Sent::Taken)
    }

    /// `Ringer::launched`.
    fn look(cpu: &Cpu, rung: &AtomicU64, line: &Line, to: Rank) {
        cpu.spend(ACCESS);
        sleep::no_fence();
        if sleep::seems_asleep(&line.asleep) {
            cpu.spend(ACCESS);
            let number = line.sleeps.load(Ordering::Relaxed);
            if sleep::first_ring(rung, number) {
                cpu.spend(RING);
                cpu.notify(to);
            }
        }
    }

    /// `Group::poll`: at most 64 messages of each member. Returns how many there were.
    pub fn poll(&mut self, handler: &mut dyn FnMut(&mut Self, Rank)) -> usize {
        if self.cpu.has_news() {
            self.attend();
        }
        let mut senders: Vec<Rank> = self.inbound.iter().map(|inbound| inbound.from).collect();
        let first = self.dice.below(senders.len() as u64) as usize;
        senders.rotate_left(first);
        senders.into_iter().map(|from| self.poll_one(from, handler)).sum()
    }

    fn poll_one(&mut self, from: Rank, handler: &mut dyn FnMut(&mut Self, Rank)) -> usize {
        for done in 0..BATCH {
            // A handler that sends may have forgotten it.
            let Some(at) = self.inbound.iter().position(|inbound| inbound.from == from) else {
                return done;
            };
            match self.take(at) {
                Some(true) => {
                    self.cpu.spend(self.handler);
                    handler(self, from);
                }
                Some(false) => {
                    self.nothing_there(from);
                    return done;
                }
                None => return done,
            }
        }
        BATCH
    }

    /// Takes a message, and reads it; `None` if its memory cannot be mapped now.
    fn take(&mut self, at: usize) -> Option<bool> {
        let (to, cpu, inbound) = (self.cpu.rank(), &self.cpu, &mut self.inbound[at]);
        let from = inbound.from;
        let arrived = match inbound.queue.peek() {
            Ok(Some(arrived)) => arrived,
            Ok(None) => return Some(false),
            Err(Unreadable::Memory(_)) => {
                cpu.count(|seen| seen.without_memory += 1);
                return None;
            }
            Err(Unreadable::Violation(violation)) => {
                cpu.fail(format!("from domain {from}: {violation}"))
            }
        };
        let (handler, len) = (arrived.handler(), arrived.len());
        let message = cpu.check(|state| state.ledger.taken(from, to, handler, len));
        cpu.event("takes from, number", from as u64, message.number);
        for at in 0..len.div_ceil(8) {
            let mask = if at == len / 8 { (1 << (len % 8 * 8)) - 1 } else { u64::MAX };
            let (found, put) = (arrived.word(at), message.word(from, to, at));
            if found.map(|found| found & mask) != Some(put & mask) {
                cpu.fail(format!(
                    "word {at} of {message:?} of domain {from} is {found:x?}, not {put:x}"
                ));
            }
        }
        arrived.dispose();
        Some(true)
    }

    /// `Group::peek`, but for turns: the next message of some member is looked at.
    pub fn peek(&mut self) {
        let at = self.dice.below(self.inbound.len() as u64) as usize;
        if let Some(inbound) = self.inbound.get_mut(at)
            && let Err(Unreadable::Violation(violation)) = inbound.queue.peek()
        {
            self.cpu.fail(format!("from domain {}: {violation}", self.inbound[at].from));
        }
    }

    fn nothing_there(&mut self, from: Rank) {
        let Some(at) = self.inbound.iter().position(|inbound| inbound.from == from) else { return };
        self.inbound[at].queue.tell();
        if self.inbound[at].ended && matches!(self.inbound[at].queue.peek(), Ok(None)) {
            self.inbound.swap_remove(at);
        }
    }

    fn attend(&mut self) {
        for ended in self.cpu.news() {
            self.links[ended] = None;
            if let Some(inbound) = self.inbound.iter_mut().find(|inbound| inbound.from == ended) {
                inbound.ended = true;
            }
            self.nothing_there(ended);
        }
    }

    /// `Group::wait`: until a message is there, for `limit` ns at most, or the conductor rouses
    /// all.
    pub fn wait(&mut self, limit: Option<u64>) {
        self.inbound.iter_mut().for_each(|inbound| inbound.queue.tell());
        let (begin, round) = (self.cpu.time(), self.cpu.round());
        for _ in 0..self.dice.below(8) {
            if self.there(round) {
                return;
            }
            self.cpu.spend(SPIN);
        }
        for link in self.links.iter_mut().flatten() {
            link.queue.shrink();
        }
        let (lines, own) = (self.lines.clone(), self.cpu.rank());
        let line = &lines[own];
        loop {
            self.cpu.spend(ACCESS);
            sleep::announce_another(&line.asleep, &line.sleeps);
            self.cpu.spend(FENCE);
            let found = self.there(round);
            let left = limit.map(|limit| (begin + limit).saturating_sub(self.cpu.time()));
            if found || left == Some(0) {
                self.cpu.spend(ACCESS);
                return sleep::retract(&line.asleep);
            }
            self.cpu.sleep(left);
            self.cpu.spend(ACCESS);
            sleep::retract(&line.asleep);
            if self.there(round) {
                return;
            }
        }
    }

    fn there(&mut self, round: u64) -> bool {
        if self.cpu.has_news() {
            self.attend();
        }
        self.cpu.round() != round || self.inbound.iter_mut().any(Inbound::waits)
    }
}
