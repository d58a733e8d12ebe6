//! Members that join a group after it has formed, over links of this host.

mod guard;

use guard::guarded;
use std::cell::RefCell;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;
use upcall_message::{
    Event, ExpectError, Group, GroupBuilder, Handlers, Invitation, JoinError, Kind, RunError,
    SendError, petition, petition_interruptible,
};

/// Maximum time of a wait, within the maximum time of a test.
const GUARD: Duration = Duration::from_secs(40);

/// Where the members of a test's group meet.
struct Meeting {
    name: String,
    address: String,
    size: usize,
    room: usize,
    /// What the member that takes in others has given out.
    invitations: Mutex<Vec<(Range<usize>, Invitation)>>,
}

impl Meeting {
    /// A name and a loopback address that no other test has.
    fn new(size: usize, room: usize) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let (process, number) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let address = format!("127.{}.{}.{number}:7412", 1 + (process >> 8) % 250, process & 0xFF);
        let name = format!("late-{process}-{number}");
        Self { name, address, size, room, invitations: Mutex::default() }
    }

    fn first(&self, rank: usize) -> LateMember {
        let joining = GroupBuilder::new(&self.name, self.size).rank(rank).across(&self.address);
        LateMember::join(joining.room_for(self.room).apart(rank as u64)).unwrap()
    }

    /// Joins as a late member, with the invitation that this test was given last for these ranks.
    fn late(&self, rank: usize, ranks: Range<usize>) -> Result<LateMember, JoinError> {
        let invitation = self.invitation(&ranks);
        self.late_with(rank, ranks, invitation)
    }

    fn late_with(
        &self,
        rank: usize,
        ranks: Range<usize>,
        invitation: Invitation,
    ) -> Result<LateMember, JoinError> {
        let total = self.size + self.room;
        let joining = GroupBuilder::new(&self.name, total).rank(rank).across(&self.address);
        LateMember::join(joining.late(ranks, invitation))
    }

    /// Expects these members.
    fn expect(&self, group: &Group, ranks: Range<usize>) -> Result<(), ExpectError> {
        let invitation = group.expect(ranks.clone())?;
        self.invitations.lock().unwrap().push((ranks, invitation));
        Ok(())
    }

    /// The last invitation of these ranks, or another one.
    fn invitation(&self, ranks: &Range<usize>) -> Invitation {
        let all = self.invitations.lock().unwrap();
        let last = all.iter().rev().find(|(of, _)| of == ranks);
        let none = || Invitation::of_text(&"0".repeat(Invitation::TEXT)).unwrap();
        last.map_or_else(none, |(_, invitation)| invitation.clone())
    }
}

/// A member of a test's group.
struct LateMember {
    group: Group,
    word: Kind<u64>,
    events: RefCell<Vec<Event>>,
}

impl LateMember {
    fn join(joining: GroupBuilder) -> Result<Self, JoinError> {
        let mut handlers = Handlers::new();
        let word = handlers.kind::<u64>("word");
        let group = joining.within(GUARD).upcalls(false).join(handlers)?;
        Ok(Self { group, word, events: RefCell::default() })
    }

    fn send(&self, to: usize, word: u64) -> Result<(), SendError> {
        self.group.send(to, self.word, &word)
    }

    /// The next message: sender and word.
    fn next(&self) -> (usize, u64) {
        loop {
            let word = self.word;
            let read = |message: &upcall_message::Message<'_, '_>| {
                Some((message.from(), message.get(word).unwrap()))
            };
            if let Ok(Some(found)) = self.group.receive_or_leave(read) {
                return found;
            }
            assert!(self.group.wait(Some(GUARD)), "no message comes to {}", self.group.rank());
            self.events.borrow_mut().extend(std::iter::from_fn(|| self.group.event()));
        }
    }

    /// Waits for an event.
    fn until(&self, event: &Event) {
        loop {
            self.group.poll();
            self.events.borrow_mut().extend(std::iter::from_fn(|| self.group.event()));
            if self.events.borrow().contains(event) {
                return;
            }
            assert!(self.group.wait(Some(GUARD)), "no {event:?} comes to {}", self.group.rank());
        }
    }
}

/// Runs these members as threads. Each takes two of the process's places to wait for messages.
fn run(members: &[&(dyn Fn() + Sync)]) {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    guarded(members.len(), |guard| {
        thread::scope(|scope| {
            for (at, member) in members.iter().enumerate() {
                scope.spawn(move || guard.member(at, member));
            }
        });
    });
}

/// A signal from one thread of a test to another.
struct Signal(Mutex<Sender<()>>, Mutex<Receiver<()>>);

impl Signal {
    fn new() -> Self {
        let (sender, receiver) = channel();
        Self(Mutex::new(sender), Mutex::new(receiver))
    }

    fn give(&self) {
        self.0.lock().unwrap().send(()).unwrap();
    }

    fn await_it(&self) {
        self.1.lock().unwrap().recv_timeout(GUARD).unwrap();
    }
}

fn joined(rank: usize) -> Event {
    Event::Joined { rank }
}

#[test]
fn two_batches_join_and_all_reach_each_other() {
    let meeting = Meeting::new(2, 3);
    let (expected, second, done) = (Signal::new(), Signal::new(), Signal::new());
    // Each member sends its rank to each of the members that it knows, and gets theirs.
    let exchange = |member: &LateMember, others: &[usize]| {
        others.iter().for_each(|to| member.send(*to, member.group.rank() as u64).unwrap());
        let mut found = (0..others.len()).map(|_| member.next()).collect::<Vec<_>>();
        found.sort_unstable();
        let all = others.iter().map(|rank| (*rank, *rank as u64));
        assert_eq!(found, all.collect::<Vec<_>>(), "member {}", member.group.rank());
    };
    let first = || {
        let member = meeting.first(0);
        assert_eq!(member.group.size(), 5);
        assert!(matches!(member.send(3, 1), Err(SendError::Unreachable { rank: 3, .. })));
        meeting.expect(&member.group, 2..4).unwrap();
        assert_eq!(meeting.expect(&member.group, 3..5), Err(ExpectError::Taken { rank: 3 }));
        assert_eq!(meeting.expect(&member.group, 1..2), Err(ExpectError::Taken { rank: 1 }));
        assert_eq!(meeting.expect(&member.group, 5..6), Err(ExpectError::Taken { rank: 5 }));
        (0..2).for_each(|_| expected.give());
        [2, 3].iter().for_each(|rank| member.until(&joined(*rank)));
        assert_eq!(meeting.expect(&member.group, 2..4), Err(ExpectError::Taken { rank: 2 }));
        meeting.expect(&member.group, 4..5).unwrap();
        second.give();
        member.until(&joined(4));
        exchange(&member, &[1, 2, 3, 4]);
        assert!(matches!(member.group.barrier(), Err(RunError::Growing)));
        assert!(matches!(member.group.reduce(1_u64, |one, _| one), Err(RunError::Growing)));
        let mut items = vec![1_u64];
        assert!(matches!(member.group.broadcast(0, &mut items), Err(RunError::Growing)));
        (0..4).for_each(|_| done.await_it());
        drop(member);
    };
    let other_first = || {
        let member = meeting.first(1);
        assert_eq!(meeting.expect(&member.group, 2..4), Err(ExpectError::NotLeader));
        [2, 3, 4].iter().for_each(|rank| member.until(&joined(*rank)));
        exchange(&member, &[0, 2, 3, 4]);
        done.give();
    };
    let late = |rank: usize| {
        expected.await_it();
        let member = meeting.late(rank, 2..4).unwrap();
        member.until(&joined(4));
        exchange(&member, &[0, 1, 5 - rank, 4]);
        done.give();
    };
    let last = || {
        second.await_it();
        let member = meeting.late(4, 4..5).unwrap();
        exchange(&member, &[0, 1, 2, 3]);
        let is_joined = |event: &Event| matches!(event, Event::Joined { .. });
        assert!(!member.events.borrow().iter().any(is_joined));
        done.give();
    };
    run(&[&first, &other_first, &|| late(2), &|| late(3), &last]);
}

#[test]
fn a_late_member_that_ends_is_lost_once_and_its_rank_stays_unused() {
    let meeting = Meeting::new(1, 2);
    let next = Signal::new();
    let first = || {
        let member = meeting.first(0);
        meeting.expect(&member.group, 1..2).unwrap();
        next.give();
        assert_eq!(member.next(), (1, 7));
        member.until(&Event::Ended { rank: 1 });
        assert_eq!(*member.events.borrow(), [joined(1), Event::Ended { rank: 1 }]);
        assert!(matches!(member.send(1, 1), Err(SendError::Ended { rank: 1 })));
        assert_eq!(meeting.expect(&member.group, 1..2), Err(ExpectError::Taken { rank: 1 }));
        meeting.expect(&member.group, 2..3).unwrap();
        next.give();
        assert_eq!(member.next(), (2, 9));
    };
    let late = || {
        next.await_it();
        meeting.late(1, 1..2).unwrap().send(0, 7).unwrap();
        next.await_it();
        let member = meeting.late(2, 2..3).unwrap();
        // The leader may have listed it just before it has noticed the end.
        let (gone, never) = (|error| matches!(error, SendError::Ended { rank: 1 }), "not joined");
        let sent = member.send(1, 1).unwrap_err();
        assert!(sent.to_string().contains(never) || gone(sent));
        member.send(0, 9).unwrap();
    };
    run(&[&first, &late]);
}

#[test]
fn an_expelled_member_is_lost_on_both_sides_and_later_ones_do_without_it() {
    let meeting = Meeting::new(1, 3);
    let (next, last, done) = (Signal::new(), Signal::new(), Signal::new());
    let first = || {
        let member = meeting.first(0);
        meeting.expect(&member.group, 1..2).unwrap();
        next.give();
        member.until(&joined(1));
        // A rank that no process has asked for is expelled without an event.
        member.group.expel(&(1..3));
        member.until(&Event::Ended { rank: 1 });
        assert_eq!(*member.events.borrow(), [joined(1), Event::Ended { rank: 1 }]);
        for rank in 1..3 {
            assert!(matches!(member.send(rank, 1), Err(SendError::Ended { .. })), "{rank}");
            assert_eq!(meeting.expect(&member.group, rank..4), Err(ExpectError::Taken { rank }));
        }
        meeting.expect(&member.group, 3..4).unwrap();
        last.give();
        assert_eq!(member.next(), (3, 9));
        done.give();
    };
    let expelled = || {
        next.await_it();
        let member = meeting.late(1, 1..2).unwrap();
        member.until(&Event::Ended { rank: 0 });
        done.await_it();
    };
    let later = || {
        last.await_it();
        let member = meeting.late(3, 3..4).unwrap();
        assert!(!member.group.has_joined(1));
        member.send(0, 9).unwrap();
    };
    run(&[&first, &expelled, &later]);
}

#[test]
fn nobody_joins_who_is_not_expected() {
    let meeting = Meeting::new(1, 2);
    let (formed, refused, over) = (Signal::new(), Signal::new(), Signal::new());
    let first = || {
        let member = meeting.first(0);
        formed.give();
        refused.await_it();
        meeting.expect(&member.group, 1..3).unwrap();
        formed.give();
        refused.await_it();
        // One of the two has applied, and the other one does not come.
        member.group.expect_no_more(&(1..3));
        over.await_it();
        meeting.expect(&member.group, 1..3).unwrap();
        assert!(member.group.event().is_none());
    };
    let refusal = |found: Result<LateMember, JoinError>| match found.map(|_| ()) {
        Err(JoinError::Refused { reason, .. }) => reason,
        other => panic!("{other:?}"),
    };
    let late = || {
        formed.await_it();
        let reason = refusal(meeting.late(1, 1..2));
        assert!(reason.contains("no member is expected to join with rank 1"), "{reason}");
        let of = |name: &str, room| {
            let (name, address) = (name.into(), meeting.address.clone());
            Meeting { name, address, size: 1, room, invitations: Mutex::default() }
        };
        let other = of(&meeting.name, 9);
        let reason = refusal(other.late(1, 1..2));
        assert!(reason.contains("other room"), "{reason}");
        let other = of("another", 2);
        let reason = refusal(other.late(1, 1..2));
        assert!(reason.contains("not \"another\""), "{reason}");
        let mut handlers = Handlers::new();
        handlers.kind::<u32>("another kind");
        let joining = GroupBuilder::new(&meeting.name, 3).rank(1).across(&meeting.address);
        let joining = joining.late(1..2, meeting.invitation(&(1..2)));
        let found = joining.within(GUARD).join(handlers);
        assert!(
            matches!(found, Err(JoinError::Refused { reason, .. }) if reason.contains("kinds"))
        );
        refused.give();
        formed.await_it();
        let stranger = Invitation::of_text(&"07".repeat(32)).unwrap();
        let reason = refusal(meeting.late_with(1, 1..3, stranger));
        assert!(reason.contains("does not show the invitation to join with rank 1"), "{reason}");
        thread::scope(|scope| {
            // One of the two is refused, because the other one has applied.
            let (reasons, found) = channel();
            for _ in 0..2 {
                let reasons = reasons.clone();
                let apply = || refusal(meeting.late(1, 1..3));
                scope.spawn(move || reasons.send(apply()).unwrap());
            }
            let next = || found.recv_timeout(GUARD).unwrap();
            let reason = next();
            assert!(reason.contains("rank 1 is taken"), "{reason}");
            refused.give();
            let reason = next();
            assert!(reason.contains("not expected any more"), "{reason}");
        });
        over.give();
    };
    run(&[&first, &late]);
}

#[test]
fn without_an_address_no_member_joins_later() {
    let meeting = Meeting::new(1, 1);
    let builder = || GroupBuilder::new(&meeting.name, 2).rank(0);
    for builder in [builder().room_for(1), builder().late(0..1, meeting.invitation(&(0..1)))] {
        let error = builder.within(GUARD).join(Handlers::new()).unwrap_err();
        assert!(matches!(error, JoinError::NoAddress { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains(&meeting.name) && text.contains("HOST:PORT"), "{text}");
    }
}

#[test]
fn a_late_member_asks_for_a_rank_of_those_that_join_together() {
    let meeting = Meeting::new(1, 2);
    let builder = |size| GroupBuilder::new(&meeting.name, size).across(&meeting.address);
    let late = |builder: GroupBuilder| builder.late(1..3, meeting.invitation(&(1..3)));
    for (builder, said) in [
        (late(builder(3)), "no rank"),
        (late(builder(3)).rank(0), "rank 0"),
        (late(builder(2)).rank(1), "size of the group with its room, 2"),
    ] {
        let error = builder.within(GUARD).join(Handlers::new()).unwrap_err();
        assert!(matches!(error, JoinError::NotAmongLate { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains(said) && text.contains("1..3"), "{text}");
    }
}

#[test]
fn a_petition_is_answered_or_refused() {
    let meeting = Meeting::new(1, 1);
    let (formed, over, done) = (Signal::new(), Signal::new(), Signal::new());
    let first = || {
        let member = meeting.first(0);
        formed.give();
        let next = || loop {
            if let Some(petition) = member.group.petition() {
                return petition;
            }
            assert!(member.group.wait(Some(GUARD)));
            member.group.poll();
        };
        let one = next();
        assert_eq!(one.bytes(), b"a place, please");
        one.answer(b"rank 1");
        let interrupted = next();
        over.give();
        done.await_it();
        drop(interrupted);
        next().refuse("not today");
        drop(next());
        done.await_it();
    };
    let stranger = || {
        formed.await_it();
        let ask = |bytes: &[u8]| petition(&meeting.address, bytes, GUARD);
        assert_eq!(ask(b"a place, please").unwrap(), b"rank 1");
        // It waits without a limit, until the member has the request.
        let is_over = || over.1.lock().unwrap().try_recv().is_ok();
        let found = petition_interruptible(&meeting.address, b"more", Duration::MAX, is_over);
        assert!(matches!(found, Err(JoinError::Interrupted)), "{found:?}");
        done.give();
        for why in ["not today", "has not answered"] {
            let found = ask(b"more");
            assert!(
                matches!(&found, Err(JoinError::Refused { reason, .. }) if reason.contains(why)),
                "{found:?}"
            );
        }
        let long = ask(&[0; 5000]);
        assert!(matches!(long, Err(JoinError::Refused { reason, .. }) if reason.contains("long")));
        done.give();
        // No process listens there.
        let nobody = Meeting::new(1, 1);
        let found = petition(&nobody.address, b"", Duration::ZERO);
        assert!(matches!(found, Err(JoinError::Incomplete { .. })));
    };
    run(&[&first, &stranger]);
}
