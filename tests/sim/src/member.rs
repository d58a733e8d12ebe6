//! A member of a group, on a virtual processor of the simulator: the other driver of the message
//! core.
//!
//! All decisions are the product's own: the queues, the attempt to send and what follows it, whose
//! message is next and when a sender is forgotten (`upcall_message::proto`), the sleep
//! (`upcall_sched::sleep`), and the line where a receiver publishes that it sleeps
//! (`upcall_shm::station`). This driver uses a virtual clock, doorbells and news of the engine in
//! place of the kernel's. It reports to the ledger what is sent and taken.

use crate::Rank;
use crate::bag::{Bag, File};
use crate::dice::Dice;
use crate::engine::Cpu;
use crate::ledger::{Ledger, Message};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use upcall_message::proto::flow::{Buffers, Pause};
use upcall_message::proto::receive_queue::{BorrowedQueue, ReceiveQueue};
use upcall_message::proto::receiving::{self, Forgotten, Ran, Receiving, Senders};
use upcall_message::proto::send_queue::{Attempt, Obstacle, SendQueue};
use upcall_message::proto::sending::{self, Sending, Sent};
use upcall_os::atomic::{AtomicU64, Ordering};
use upcall_os::headroom::Headroom;
use upcall_sched::sleep::{self, Sleeps};
use upcall_shm::direct::{Arrived, Draft};
use upcall_shm::station::StationLine;

/// Cost of a load or a store of one shared word, in ns.
const ACCESS: u64 = 3;
/// Cost of one more probe, in ns.
const SPIN: u64 = 20;
/// Maximum cost of a probe, in ns: a sender that waits for room backs off more and more.
const LONGEST_SPIN: u64 = 320;
/// Cost of the fence that affects all processors, in ns.
const FENCE: u64 = 200;
/// Cost of a ring of the doorbell, in ns.
const RING: u64 = 100;
/// Pause before the next attempt of a sender that is kept by more than one receiver's pace, in ns.
const PAUSE: u64 = 1000;
/// Length of a sleep while the receiver has taken nothing for long, in ns.
const NAP: u64 = 1_000_000;
/// Maximum time of a send that does not wait, in ns.
const SEND: u64 = 5000;

/// The outcome of a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The message is launched.
    Taken,
    /// The message was described and dropped.
    Dropped,
    /// There is no room now.
    Full,
    /// There is no memory now.
    NoMemory,
    /// The receiver has ended.
    Ended,
}

/// The way to another member.
#[derive(Debug)]
struct Link<const S: u64> {
    file: Arc<File>,
    queue: SendQueue<Bag<S>>,
    /// The last sleep of the receiver for which this member rang.
    rung: AtomicU64,
    /// Since when there is no room, and the receiver's progress when messages were last diverted.
    refused: Option<u64>,
    diverted_at: Option<u64>,
}

/// The parts of a member.
#[derive(Clone, Debug)]
pub struct Parts<const S: u64> {
    /// Its processor.
    pub cpu: Cpu,
    /// The source of its decisions.
    pub dice: Dice,
    /// By receiver: the queue to it.
    pub out: Vec<Option<Bag<S>>>,
    /// By sender: the queue from it.
    pub from: Vec<Option<Bag<S>>>,
    /// By member: its line of the station.
    pub lines: Arc<[StationLine]>,
    /// The atomicity timeout.
    pub timeout: Option<Duration>,
    /// Number of bytes that it may buffer.
    pub share: u64,
    /// Time that its handlers take, in ns.
    pub handler: u64,
}

/// A member of a group. See the module.
#[derive(Debug)]
pub struct Member<const S: u64> {
    /// Its processor.
    pub cpu: Cpu,
    /// The source of its decisions.
    pub dice: Dice,
    links: Vec<RefCell<Option<Link<S>>>>,
    senders: Senders<Bag<S>>,
    lines: Arc<[StationLine]>,
    timeout: Option<Duration>,
    share: u64,
    handler: u64,
    /// The senders from which it takes nothing more.
    forgotten: RefCell<Vec<Rank>>,
}

fn nanos(time: Duration) -> u64 {
    time.as_nanos() as u64
}

impl<const S: u64> Member<S> {
    /// Creates a member that knows all others.
    pub fn new(parts: Parts<S>) -> Self {
        let Parts { cpu, dice, out, from, lines, timeout, share, handler } = parts;
        let link = |bag: Bag<S>| Link {
            file: bag.file.clone(),
            queue: SendQueue::new(bag, timeout),
            rung: AtomicU64::new(0),
            refused: None,
            diverted_at: None,
        };
        let links = out.into_iter().map(|bag| RefCell::new(bag.map(link))).collect();
        let mut inbound: Vec<_> = from
            .into_iter()
            .enumerate()
            .filter_map(|(from, bag)| Some(ReceiveQueue::new(from, bag?, ())))
            .collect();
        // The order is as if the senders had sent something one after the other.
        let first = dice.below(inbound.len() as u64) as usize;
        inbound.rotate_left(first);
        let senders = Senders::default();
        inbound.into_iter().for_each(|queue| senders.add(Rc::new(queue)));
        Self {
            cpu,
            dice,
            links,
            senders,
            lines,
            timeout,
            share,
            handler,
            forgotten: RefCell::default(),
        }
    }

    /// Its rank.
    pub fn rank(&self) -> Rank {
        self.cpu.rank()
    }

    /// Maximum number of bytes of a message to a member that goes the direct way; `None` if the
    /// member has ended.
    pub fn most(&self, to: Rank) -> Option<usize> {
        Some(self.links[to].borrow().as_ref()?.queue.outgoing().most_directly())
    }

    /// Sends a message of `len` bytes, and takes what arrives while it waits. If `waits` is false,
    /// sends only if there is room now.
    pub fn send(&self, to: Rank, len: usize, waits: bool) -> Outcome {
        let (used, spin) = (self.cpu.used(), SPIN);
        let (is_kept, was_kept) = (false, false);
        let mut dispatch =
            SendRequest { member: self, to, len, waits, used, spin, is_kept, was_kept };
        match sending::send(&mut dispatch) {
            Ok(sent) => {
                dispatch.check_time();
                sent
            }
            Err(why) => why,
        }
    }

    /// The sum of a value over all links except that to `to`.
    fn sum_beside(&self, to: Rank, of: impl Fn((Rank, &Link<S>)) -> u64) -> u64 {
        let others = (0..self.links.len()).filter(|rank| *rank != to);
        others
            .map(|rank| self.links[rank].borrow().as_ref().map_or(0, |link| of((rank, link))))
            .sum()
    }

    /// The true number of segments for members other than `to`.
    fn held_beside(&self, to: Rank) -> u64 {
        self.sum_beside(to, |(rank, link)| self.held(rank, &link.file))
    }

    /// Number of segments to a member as the queue reports it, which exceeds the true number only
    /// briefly.
    fn said(&self, to: Rank, link: &Link<S>) -> u64 {
        let most = link.file.most_held();
        let said = link.queue.outgoing().buffered();
        if said > most {
            self.cpu.fail(format!(
                "believes that {said} segments are not left by domain {to}, \
                which has left all but {most}"
            ));
        }
        said
    }

    /// Number of segments to a member with messages that it has not taken.
    fn held(&self, to: Rank, file: &File) -> u64 {
        let is_settled = self.cpu.enter(|ledger| ledger.is_settled(self.rank(), to));
        if is_settled { 0 } else { file.held() }
    }

    /// Rings for the receiver of a message if it sleeps, as `Ringer::launched` does.
    fn ring_for(&self, to: Rank, rung: &AtomicU64) {
        let line = &self.lines[to];
        self.cpu.spend(ACCESS);
        sleep::no_fence();
        if sleep::seems_asleep(&line.asleep) {
            self.cpu.spend(ACCESS);
            let number = line.sleeps.load(Ordering::Relaxed);
            if sleep::first_ring(rung, number) {
                self.cpu.spend(RING);
                self.cpu.notify(to);
            }
        }
    }

    /// Runs `handler` for the waiting messages, at most 64 of each member. Returns the number of
    /// messages.
    pub fn poll(&self, handler: &dyn Fn(&Self, Rank)) -> usize {
        self.attend();
        receiving::poll(&Driver { member: self, handler })
    }

    /// Takes the next message of any sender. Returns `false` if nothing waits.
    pub fn receive(&self) -> bool {
        let take = |arrived: Arrived<'_, Bag<S>>, sender: &Rc<ReceiveQueue<Bag<S>>>| {
            self.take(sender.from(), arrived);
        };
        self.attend();
        receiving::next(&self.driver(), take).is_some()
    }

    /// Peeks at the next message, which stays.
    pub fn peek(&self) {
        self.attend();
        let turn = self.senders.turn();
        receiving::next(&self.driver(), |_, _| ());
        self.senders.keep_turn(turn);
    }

    fn driver(&self) -> Driver<'_, S> {
        Driver { member: self, handler: &|_, _| () }
    }

    /// Takes a message, and reads it.
    fn take(&self, from: Rank, arrived: Arrived<'_, Bag<S>>) {
        let (to, cpu) = (self.rank(), &self.cpu);
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
    }

    fn attend(&self) {
        if self.cpu.has_news() {
            for ended in self.cpu.news() {
                *self.links[ended].borrow_mut() = None;
                receiving::ended(&self.driver(), ended);
            }
        }
    }

    /// Waits until a message arrives, for at most `limit` ns, or until the conductor rouses all.
    /// Spins first, and gives memory back before it sleeps, as `Group::wait` does.
    pub fn wait(&self, limit: Option<u64>) {
        receiving::before_wait(&self.driver());
        let ends = limit.map(|limit| self.cpu.now() + Duration::from_nanos(limit));
        let round = self.cpu.round();
        let there = || {
            self.attend();
            self.cpu.round() != round || self.senders.waits()
        };
        let spins = self.dice.below(8);
        for _ in 0..spins {
            if there() {
                return;
            }
            self.cpu.spend(SPIN);
        }
        for link in &self.links {
            link.borrow_mut().iter_mut().for_each(|link| _ = link.queue.shrink());
        }
        sleep::sleep_until(self, ends, there);
    }
}

impl<const S: u64> Sleeps for Member<S> {
    fn announce(&self) -> Option<Duration> {
        let line = &self.lines[self.rank()];
        self.cpu.spend(ACCESS);
        sleep::announce_another(&line.asleep, &line.sleeps);
        self.cpu.spend(FENCE);
        None
    }

    fn retract(&self) {
        self.cpu.spend(ACCESS);
        sleep::retract(&self.lines[self.rank()].asleep);
    }

    fn now(&self) -> Instant {
        self.cpu.now()
    }

    fn sleep(&self, limit: Option<Duration>) {
        self.cpu.sleep(limit.map(nanos));
    }
}

/// A member as the driver of the receiving side of the core.
struct Driver<'a, const S: u64> {
    member: &'a Member<S>,
    handler: &'a dyn Fn(&Member<S>, Rank),
}

impl<const S: u64> Receiving for Driver<'_, S> {
    type Memory = Bag<S>;
    type With = ();

    fn senders(&self) -> &Senders<Bag<S>> {
        &self.member.senders
    }

    fn run(
        &self,
        sender: &Rc<ReceiveQueue<Bag<S>>>,
        _: u16,
        mut queue: BorrowedQueue<'_, Bag<S>>,
    ) -> Ran {
        let Ok(Some(arrived)) = queue.peek() else { return Ran::Violates };
        self.member.take(sender.from(), arrived);
        // The handler can take the messages behind this one.
        drop(queue);
        self.member.cpu.spend(self.member.handler);
        (self.handler)(self.member, sender.from());
        Ran::Handled
    }

    fn forgets(&self, sender: &ReceiveQueue<Bag<S>>, why: Forgotten) {
        let (from, forgotten) = (sender.from(), &self.member.forgotten);
        if why != Forgotten::Ended || forgotten.borrow().contains(&from) {
            self.member.cpu.fail(format!("domain {from} is forgotten: {why:?}"));
        }
        forgotten.borrow_mut().push(from);
    }
}

/// A message that is being sent.
struct SendRequest<'a, const S: u64> {
    member: &'a Member<S>,
    to: Rank,
    len: usize,
    waits: bool,
    /// The time that the sender had used when the send began, and the time that its handlers have
    /// used since.
    used: u64,
    spin: u64,
    /// Whether more than a full queue and its timeout delays the sender now. `was_kept`: whether
    /// the sender has waited for that.
    is_kept: bool,
    was_kept: bool,
}

impl<const S: u64> Sending for SendRequest<'_, S> {
    type Done = Outcome;
    type Error = Outcome;

    fn attempt(&mut self) -> Result<Sent<Outcome, Outcome>, Outcome> {
        let member = self.member;
        member.attend();
        let link = &mut *member.links[self.to].borrow_mut();
        let Some(link) = link else { return Err(Outcome::Ended) };
        let was_diverted = link.queue.outgoing().is_diverted();
        let progress = link.queue.outgoing().progress();
        let (message, buffers) = (self.next(), Believed { member, to: self.to });
        let refused = Cell::new(0);
        let now = || {
            refused.set(member.cpu.time());
            member.cpu.now()
        };
        let launch = |draft: Draft<'_, Bag<S>>| self.launch(draft, message);
        let attempt = link.queue.attempt((message.handler(), self.len), now, &buffers, launch);
        let is_full = matches!(attempt, Attempt::NoRoom { why: Obstacle::Full, .. });
        if let Attempt::Diverted | Attempt::NoRoom { .. } = attempt {
            let waited = refused.get().saturating_sub(*link.refused.get_or_insert(refused.get()));
            self.check_patience(is_full || link.diverted_at == Some(progress), waited);
        }
        match attempt {
            Attempt::Launched(outcome) => {
                link.refused = None;
                if outcome == Outcome::Taken {
                    self.launched(link, was_diverted);
                }
                Ok(Sent::Done(outcome))
            }
            Attempt::Diverted => {
                (link.refused, link.diverted_at) = (None, link.queue.diverted_at());
                self.check_share(link, was_diverted);
                Ok(Sent::Again)
            }
            Attempt::NoRoom { why, pause } => {
                member.said(self.to, link);
                let is_stopped = matches!(why, Obstacle::Overflow { .. });
                member.cpu.count(|seen| seen.stopped += u64::from(is_stopped));
                self.is_kept = !is_full || member.timeout.is_none();
                let lacks = matches!(why, Obstacle::NoMemory(_));
                Ok(Sent::Later {
                    why: if lacks { Outcome::NoMemory } else { Outcome::Full },
                    pause,
                })
            }
            Attempt::NoMemory(_) => Err(Outcome::NoMemory),
            Attempt::TooLong { .. } | Attempt::Violation => {
                member.cpu.fail(format!("to domain {}: {attempt:?}", self.to))
            }
        }
    }

    fn is_over(&self) -> bool {
        !self.waits
    }

    fn run_handlers(&mut self) -> Result<(), Outcome> {
        let before = self.member.cpu.used();
        self.member.senders.tell();
        let taken = self.member.poll(&|_, _| {});
        self.member.cpu.count(|seen| seen.meanwhile += taken as u64);
        self.used += self.member.cpu.used() - before;
        Ok(())
    }

    fn pause(&mut self, pause: Pause) {
        let cpu = &self.member.cpu;
        if self.is_kept {
            self.was_kept = true;
            cpu.spend(PAUSE);
        }
        if pause == Pause::Long {
            cpu.spend(NAP);
        }
        cpu.spend(self.spin);
        self.spin = LONGEST_SPIN.min(self.spin * 2);
    }
}

impl<const S: u64> SendRequest<'_, S> {
    /// The message, as the ledger has it.
    fn next(&self) -> Message {
        let (from, to, len) = (self.member.rank(), self.to, self.len);
        self.member.cpu.enter(|ledger| ledger.next(from, to, len))
    }

    /// Writes and launches a message, or drops it.
    fn launch(&self, draft: Draft<'_, Bag<S>>, message: Message) -> Outcome {
        let (cpu, from, to, len) = (&self.member.cpu, self.member.rank(), self.to, self.len);
        let words: Vec<u64> = (0..len.div_ceil(8)).map(|at| message.word(from, to, at)).collect();
        match self.member.dice.below(4) {
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
        if self.member.dice.once_in(32) {
            cpu.count(|seen| seen.drafts_dropped += 1);
            return Outcome::Dropped;
        }
        cpu.enter(|ledger| ledger.launches(from, to, message));
        cpu.event("launches to, number", to as u64, message.number);
        draft.launch();
        cpu.enter(|ledger| ledger.launched(from, to));
        Outcome::Taken
    }

    /// Rings for the receiver of a launched message if the receiver sleeps.
    fn launched(&self, link: &Link<S>, was_diverted: bool) {
        let (cpu, from, to) = (&self.member.cpu, self.member.rank(), self.to);
        self.member.ring_for(to, &link.rung);
        cpu.check(|state| Ledger::looked(state, from, to));
        let is_diverted = link.queue.outgoing().is_diverted();
        cpu.count(|seen| {
            seen.buffered += u64::from(is_diverted);
            seen.home += u64::from(was_diverted && !is_diverted);
        });
    }

    /// Checks that a sender that diverts, or would if its share allowed it, has waited as long as
    /// it has to.
    fn check_patience(&self, may_be_sooner: bool, waited: u64) {
        let (cpu, to) = (&self.member.cpu, self.to);
        cpu.count(|seen| seen.refused += 1);
        if !may_be_sooner && self.member.timeout.is_some_and(|least| waited < nanos(least)) {
            cpu.fail(format!("diverts messages to domain {to} after {waited} ns"))
        }
    }

    /// Checks that the sender has diverted within its share, by the segments that are not left. The
    /// last of these was opened just now. Another domain may have left some since the sender
    /// decided.
    fn check_share(&self, link: &Link<S>, was_diverted: bool) {
        let (member, to) = (self.member, self.to);
        let held = if was_diverted { member.held(to, &link.file).saturating_sub(1) } else { 0 };
        let (share, segment) = (member.share, link.file.segment_bytes());
        let all = member.held_beside(to) + held;
        if let Some(wrong) = Ledger::check_share(share, all, held, segment, 0) {
            member.cpu.fail(wrong);
        }
    }

    /// Checks that a sender is soon free for other receivers, even if this one takes nothing.
    fn check_time(&self) {
        if let (Some(timeout), false) = (self.member.timeout, self.was_kept) {
            let took = self.member.cpu.used() - self.used;
            if took > nanos(timeout) + SEND {
                self.member.cpu.fail(format!(
                    "a message to domain {} took {took} ns with a timeout of {timeout:?}",
                    self.to
                ));
            }
        }
    }
}

/// What a member has buffered for all receivers but one, as its queues report it.
struct Believed<'a, const S: u64> {
    member: &'a Member<S>,
    to: Rank,
}

impl<const S: u64> Buffers for Believed<'_, S> {
    fn elsewhere(&self) -> u64 {
        let of = |(rank, link): (Rank, &Link<S>)| {
            self.member.said(rank, link) * link.file.segment_bytes()
        };
        self.member.sum_beside(self.to, of)
    }

    fn share(&self) -> u64 {
        self.member.share
    }

    fn low(&self) -> Option<Headroom> {
        None
    }
}
