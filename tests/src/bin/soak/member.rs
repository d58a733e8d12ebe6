//! Members of a group that number their messages, and verify at each death which messages had to
//! arrive.
//!
//! An epoch is the life of one group. The supervisor kills a member and then raises the epoch.
//! Survivors notice the death, take what is still due, compare it with the senders' own record,
//! leave, and form the group of the next epoch.

use crate::book::{MEMBERS, Messages, Sum, Times};
use crate::client::own_going_on;
use crate::role::{Role, kind, say};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};
use upcall::message::{Event, Group, GroupBuilder, Handlers, Kind, RunError, SendError};
use upcall_tests::dice::Dice;
use upcall_tests::now;
use upcall_tests::party::Said;

/// A number, its product with a constant, the sender, the receiver.
type Data = [u64; 4];

const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
/// Time that members have to form a group before they check whether the epoch has changed.
pub const FORMING: Duration = Duration::from_secs(2);
/// Longest time in which a group has to form, and to end, if all members run.
const LONGEST: Duration = Duration::from_secs(30);

struct Member<'a> {
    role: &'a Role,
    lane: usize,
    epoch: u64,
    group: Group,
    data: Kind<Data>,
    text: Kind<str>,
    began: u64,
    next: [u64; MEMBERS],
    seen: Rc<RefCell<Seen>>,
    gone: [bool; MEMBERS],
    hostile: Option<usize>,
}

/// The kinds of messages, with the type that each carries.
pub const KINDS: [(&str, &str); 2] = [("data", "[u64; 4]"), ("text", "text")];
/// The group with a hostile member. It has no barriers.
const WITH_HOSTILE: usize = 1;
/// The rank of the hostile member.
pub const HOSTILE: usize = MEMBERS - 1;

#[derive(Default)]
struct Seen {
    taken: [u64; MEMBERS],
    wrong: Option<String>,
}

impl Seen {
    /// Takes message `number` from one member to another in the group of this epoch.
    fn take(
        &mut self,
        role: &Role,
        epoch: u64,
        (from, to): (usize, usize),
        (number, good): (u64, bool),
    ) {
        let expected = self.taken[from];
        if (number != expected || !good) && self.wrong.is_none() {
            let broken = if good { "" } else { ", damaged" };
            self.wrong = Some(format!(
                "member {to} took number {number} of member {from} in place of {expected}{broken}"
            ));
        }
        self.taken[from] += 1;
        role.book.messages(epoch, from, to, Messages::Taken).store(self.taken[from], SeqCst);
    }
}

/// Joins one group after another with this rank.
pub fn run(role: &Role, lane: usize, group: usize, rank: usize) {
    say(&Said::Ok(vec!["talks".into()]));
    let ends = role.clone();
    std::thread::spawn(move || {
        ends.until_the_end();
        std::process::exit(0);
    });
    let mut dice = role.dice(lane as u64 + 1);
    loop {
        role.rest();
        let epoch = role.book.epoch(group).load(SeqCst);
        if let Some(member) = Member::join(role, lane, group, epoch, rank) {
            member.live(&mut dice);
        }
        role.book.has_sent(epoch, rank).store(1, SeqCst);
        let since = Instant::now();
        while role.book.epoch(group).load(SeqCst) == epoch && !role.rests() {
            std::thread::sleep(Duration::from_millis(1));
            if since.elapsed() > LONGEST {
                return role.complain(
                    "epoch",
                    format!("member {rank} has left epoch {epoch}, and nothing had happened"),
                );
            }
        }
    }
}

impl<'a> Member<'a> {
    /// Forms the group of an epoch with the other members. Returns `None` if the epoch has passed.
    fn join(role: &'a Role, lane: usize, group: usize, epoch: u64, rank: usize) -> Option<Self> {
        let (book, since) = (&role.book, Instant::now());
        let hostile = (group == WITH_HOSTILE).then_some(HOSTILE);
        loop {
            if book.epoch(group).load(SeqCst) != epoch || role.rests() {
                return None;
            }
            let mut handlers = Handlers::new();
            let (data, text): (Kind<Data>, Kind<str>) =
                (handlers.kind(KINDS[0].0), handlers.kind(KINDS[1].0));
            let seen = Rc::new(RefCell::new(Seen::default()));
            let (here, by) = (seen.clone(), role.clone());
            // Messages from the hostile member are ignored.
            handlers.on(data, move |group, from, [number, product, sender, receiver]| {
                let good = [product, sender, receiver]
                    == [number.wrapping_mul(FACTOR), from as u64, group.rank() as u64];
                if Some(from) != hostile {
                    here.borrow_mut().take(&by, epoch, (from, group.rank()), (number, good));
                }
            });
            let (here, by) = (seen.clone(), role.clone());
            handlers.on(text, move |group, from, text| {
                let (number, rest) = text.split_once(':').unwrap_or(("", ""));
                let number: u64 = number.parse().unwrap_or(u64::MAX);
                let good = rest.len() == length(number) && rest.bytes().all(|byte| byte == b'x');
                if Some(from) != hostile {
                    here.borrow_mut().take(&by, epoch, (from, group.rank()), (number, good));
                }
            });
            book.waits(lane, "join", 0);
            let joined = GroupBuilder::new(&format!("talk.{epoch}"), MEMBERS)
                .rank(rank)
                .within(FORMING)
                .join(handlers);
            book.goes(lane);
            match joined {
                Ok(group) => {
                    book.joined(epoch, rank).store(std::process::id().into(), SeqCst);
                    let (next, gone) = ([0; MEMBERS], [false; MEMBERS]);
                    return Some(Self {
                        role,
                        lane,
                        epoch,
                        group,
                        data,
                        text,
                        began: now(),
                        next,
                        seen,
                        gone,
                        hostile,
                    });
                }
                Err(error) => {
                    book.add(Sum::GroupErrors, 1);
                    if since.elapsed() > LONGEST {
                        role.complain(
                            "join",
                            format!(
                                "member {rank} cannot join epoch {epoch}: {}: {error}",
                                kind(&error)
                            ),
                        );
                        return None;
                    }
                }
            }
        }
    }

    /// Sends, takes, and meets the other members, until a barrier fails because of a death, or all
    /// have agreed to rest.
    ///
    /// A member that stops coming to barriers would leave the others waiting there. So a member
    /// leaves only after a barrier has failed, which all survivors see, or after a round that all
    /// know.
    fn live(mut self, dice: &mut Dice) {
        let own = self.group.rank();
        for round in 1.. {
            let last = self.role.book.last_round(self.epoch);
            // No member has passed this barrier yet, since this one has not reached it.
            if self.role.rests() {
                let _ = last.compare_exchange(0, round, SeqCst, SeqCst);
            }
            if last.load(SeqCst) != 0 && round > last.load(SeqCst) {
                break;
            }
            for to in (0..MEMBERS).filter(|to| *to != own) {
                for _ in 0..dice.below(12) {
                    if self.gone[to] || !self.send(to, dice.below(16) == 0) {
                        break;
                    }
                }
            }
            self.poll();
            if dice.below(4) == 0 {
                std::thread::sleep(Duration::from_micros(dice.below(2000)));
            }
            let goes_on = match self.hostile {
                None => self.meets(round),
                Some(rank) => {
                    !self.gone[rank] && last_epoch(self.role) == self.epoch && !self.role.rests()
                }
            };
            if !goes_on {
                break;
            }
        }
        self.finish();
    }

    /// Returns `true` if a member is known to have been killed, or to have done all that this epoch
    /// requires of it.
    fn may_be_gone(&self, rank: usize) -> bool {
        self.hostile == Some(rank)
            || self.role.book.died(self.process(rank)) != 0
            || self.role.book.has_sent(self.epoch, rank).load(SeqCst) != 0
    }

    fn process(&self, rank: usize) -> u32 {
        self.group.process(rank).unwrap_or(0)
    }

    /// Sends one message. Returns `true` if the receiver is still there.
    fn send(&mut self, to: usize, long: bool) -> bool {
        let (book, own, number) = (&self.role.book, self.group.rank(), self.next[to]);
        let word = |word| book.messages(self.epoch, own, to, word);
        word(Messages::Begun).store(number + 1, SeqCst);
        book.waits(self.lane, "send", self.process(to));
        let sent = if long {
            self.group.send(to, self.text, &format!("{number}:{}", "x".repeat(length(number))))
        } else {
            // A planted fault skips a number.
            let number = number + u64::from(number == 40 && self.role.plants("order"));
            self.group.send(
                to,
                self.data,
                &[number, number.wrapping_mul(FACTOR), own as u64, to as u64],
            )
        };
        book.goes(self.lane);
        match sent {
            Ok(()) => {
                word(Messages::Sent).store(number + 1, SeqCst);
                book.add(Sum::Sent, 1);
                self.next[to] += 1;
                true
            }
            Err(_) if self.hostile == Some(to) => {
                self.gone[to] = true;
                false
            }
            Err(SendError::Ended { .. } | SendError::Unreachable { .. })
                if self.may_be_gone(to) =>
            {
                book.add(Sum::GroupErrors, 1);
                false
            }
            Err(error) => {
                self.role.complain(
                    "send",
                    format!(
                        "member {own} to {to}, process {}: {}: {error}",
                        self.process(to),
                        kind(&error)
                    ),
                );
                false
            }
        }
    }

    /// Runs handlers, and notes which members have ended.
    fn poll(&mut self) -> usize {
        let before = self.seen.borrow().taken.iter().sum::<u64>();
        let done = self.group.poll();
        self.role.book.add(Sum::Taken, self.seen.borrow().taken.iter().sum::<u64>() - before);
        while let Some(event) = self.group.event() {
            match event {
                Event::Ended { rank } => {
                    let died = self.role.book.died(self.process(rank));
                    if died != 0 {
                        // A barrier waits for each living member, including stopped ones.
                        let living = (0..MEMBERS)
                            .map(|rank| self.process(rank))
                            .filter(|pid| self.role.book.died(*pid) == 0);
                        let went_on = living
                            .map(|pid| self.role.book.went_on(pid))
                            .fold(own_going_on(self.role), u64::max);
                        let since = died.max(self.began).max(went_on).min(now());
                        if went_on != u64::MAX {
                            self.role
                                .book
                                .note(Times::MemberAfterDeath, now().saturating_sub(since));
                        }
                    } else if !self.may_be_gone(rank) {
                        let pid = self.process(rank);
                        self.role.complain(
                            "claim",
                            format!(
                                "member {rank}, process {pid}, has ended, by an event, and lives"
                            ),
                        );
                    }
                    self.gone[rank] = true;
                }
                Event::Violation { rank, .. } if self.hostile == Some(rank) => {
                    self.role.book.add(Sum::Violations, 1);
                    self.gone[rank] = true;
                }
                other => self.role.complain("event", format!("{other:?}")),
            }
        }
        if let Some(wrong) = self.seen.borrow_mut().wrong.take() {
            self.role.complain("order", wrong);
        }
        done
    }

    /// Enters a barrier. Returns `true` if the barrier held.
    fn meets(&mut self, round: u64) -> bool {
        let (book, own) = (&self.role.book, self.group.rank());
        book.came(self.epoch, own).store(round, SeqCst);
        let before = self.seen.borrow().taken.iter().sum::<u64>();
        book.waits(self.lane, "barrier", 0);
        let met = self.group.barrier();
        book.goes(self.lane);
        book.add(Sum::Taken, self.seen.borrow().taken.iter().sum::<u64>() - before);
        match met {
            Ok(()) => {
                book.add(Sum::Barriers, 1);
                for rank in 0..MEMBERS {
                    let came = book.came(self.epoch, rank).load(SeqCst);
                    if came < round {
                        self.role.complain(
                            "barrier",
                            format!(
                                "member {own} passed barrier {round}, and {rank} was at {came}"
                            ),
                        );
                    }
                }
                true
            }
            Err(RunError::Lost(Event::Ended { rank })) if self.may_be_gone(rank) => {
                book.add(Sum::GroupErrors, 1);
                self.gone[rank] |= book.died(self.process(rank)) == 0;
                // The event of that death must arrive, too.
                self.wait_for_end(rank);
                false
            }
            Err(error) => {
                self.role.complain(
                    "barrier",
                    format!("member {own}, epoch {}, barrier {round}: {error}", self.epoch),
                );
                false
            }
        }
    }

    fn wait_for_end(&mut self, rank: usize) {
        let since = Instant::now();
        self.role.book.waits(self.lane, "finish", self.process(rank));
        while !self.gone[rank] && since.elapsed() < LONGEST {
            if self.poll() == 0 && !self.gone[rank] {
                self.group.wait(Some(Duration::from_millis(10)));
            }
        }
        self.role.book.goes(self.lane);
    }

    /// Takes what is due, and compares it with the senders' records.
    fn finish(mut self) {
        let (role, own, epoch) = (self.role, self.group.rank(), self.epoch);
        role.book.has_sent(epoch, own).store(1, SeqCst);
        let since = Instant::now();
        role.book.waits(self.lane, "finish", 0);
        loop {
            let done = self.poll();
            let open: Vec<usize> =
                (0..MEMBERS).filter(|rank| *rank != own && !self.is_settled(*rank)).collect();
            if open.is_empty() {
                break;
            }
            if since.elapsed() > LONGEST
                && !open
                    .iter()
                    .any(|rank| role.book.was_disturbed(self.process(*rank), 5_000_000_000))
            {
                let states: Vec<String> = open.iter().map(|rank| self.state(*rank)).collect();
                role.complain(
                    "finish",
                    format!("member {own} waits in epoch {epoch} for {}", states.join("; ")),
                );
                break;
            }
            if done == 0 {
                self.group.wait(Some(Duration::from_millis(10)));
            }
        }
        role.book.goes(self.lane);
        for from in (0..MEMBERS).filter(|from| *from != own && self.hostile != Some(*from)) {
            let word = |word| role.book.messages(epoch, from, own, word).load(SeqCst);
            let (begun, sent, taken) =
                (word(Messages::Begun), word(Messages::Sent), self.seen.borrow().taken[from]);
            let killed = role.book.died(self.process(from)) != 0;
            if taken < sent || taken > begun || !killed && taken != sent {
                role.complain(
                    "messages",
                    format!("member {own}, epoch {epoch}: {}", self.state(from)),
                );
            }
        }
        role.book.add(Sum::Epochs, 1);
    }

    /// Returns `true` if all messages that a member has sent were taken.
    fn is_settled(&self, rank: usize) -> bool {
        let (book, own) = (&self.role.book, self.group.rank());
        if self.gone[rank] || self.hostile == Some(rank) {
            return true;
        }
        let sent = || book.messages(self.epoch, rank, own, Messages::Sent).load(SeqCst);
        book.died(self.process(rank)) == 0
            && book.has_sent(self.epoch, rank).load(SeqCst) != 0
            && self.seen.borrow().taken[rank] >= sent()
    }

    fn state(&self, from: usize) -> String {
        let word =
            |word| self.role.book.messages(self.epoch, from, self.group.rank(), word).load(SeqCst);
        let (begun, sent, taken) =
            (word(Messages::Begun), word(Messages::Sent), self.seen.borrow().taken[from]);
        let pid = self.process(from);
        let killed = if self.role.book.died(pid) != 0 { "killed" } else { "alive" };
        format!(
            "member {from} (process {pid}, {killed}) began {begun} and sent {sent}, of which \
            {taken} were taken"
        )
    }
}

fn last_epoch(role: &Role) -> u64 {
    role.book.epoch(WITH_HOSTILE).load(SeqCst)
}

/// Length of the text with this number: some fit into the queue, some do not.
fn length(number: u64) -> usize {
    (number.wrapping_mul(FACTOR) >> 50) as usize + 1
}
