//! Two members lose each other, and a third one keeps both. Members are threads, on hosts of their
//! own as it seems; one of the two ends their pair.

mod guard;

use guard::guarded;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Barrier, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;
use upcall_message::{Event, Group, GroupBuilder, Handlers, Invitation, Kind, RunError, SendError};

/// Maximum time of a wait, within the maximum time of a test.
const GUARD: Duration = Duration::from_secs(40);

/// Where the members of a test's group meet: an address that no other process and no other test
/// uses.
struct Meeting {
    name: String,
    address: String,
    /// By rank: the number of the member's host.
    hosts: Vec<u64>,
    room: usize,
}

impl Meeting {
    fn new(hosts: &[u64], room: usize) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let (process, number) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let address = format!("127.{}.{}.{number}:7413", 1 + (process >> 8) % 250, process & 0xFF);
        Self { name: format!("parted-{process}-{number}"), address, hosts: hosts.into(), room }
    }

    fn size(&self) -> usize {
        self.hosts.len()
    }

    fn first(&self, rank: usize) -> Member {
        let joining = GroupBuilder::new(&self.name, self.size()).rank(rank).across(&self.address);
        Member::join(joining.room_for(self.room).apart(self.hosts[rank]))
    }

    fn late(&self, rank: usize, invitation: Invitation) -> Member {
        let total = self.size() + self.room;
        let joining = GroupBuilder::new(&self.name, total).rank(rank).across(&self.address);
        Member::join(joining.late(rank..rank + 1, invitation))
    }
}

/// A member of a test's group.
struct Member {
    group: Group,
    number: Kind<u64>,
    /// Has no handler.
    plain: Kind<()>,
    /// By rank: number of messages taken, which are numbered.
    taken: Rc<RefCell<Vec<u64>>>,
    /// By rank: number of messages sent.
    sent: RefCell<Vec<u64>>,
    events: RefCell<Vec<Event>>,
}

impl Member {
    fn join(joining: GroupBuilder) -> Self {
        let mut handlers = Handlers::new();
        let (number, plain) = (handlers.kind::<u64>("number"), handlers.kind::<()>("plain"));
        let taken = Rc::new(RefCell::new(Vec::new()));
        let counts = taken.clone();
        handlers.on(number, move |group, from, number| {
            let counts = &mut *counts.borrow_mut();
            counts.resize(group.size(), 0);
            assert_eq!(number, counts[from], "from {from}");
            counts[from] += 1;
        });
        let group = joining.within(GUARD).upcalls(false).join(handlers).unwrap();
        let sent = RefCell::new(vec![0; group.size()]);
        taken.borrow_mut().resize(group.size(), 0);
        Self { group, number, plain, taken, sent, events: RefCell::default() }
    }

    fn send(&self, to: usize) -> Result<(), SendError> {
        let next = &mut self.sent.borrow_mut()[to];
        self.group.send(to, self.number, next)?;
        *next += 1;
        Ok(())
    }

    fn until(&self, what: &str, done: impl Fn(&Self) -> bool) {
        while !done(self) {
            let polled = self.group.poll();
            self.take_events();
            let waits = || self.group.wait(Some(GUARD)) || done(self);
            assert!(polled > 0 || done(self) || waits(), "{what}: member {}", self.group.rank());
        }
    }

    fn take_events(&self) {
        self.events.borrow_mut().extend(std::iter::from_fn(|| self.group.event()));
    }

    /// Waits for an event, which comes once, and is the only one about these members.
    fn until_told(&self, event: &Event) {
        self.until("an event", |member| member.events.borrow().contains(event));
        let count = self.events.borrow().iter().filter(|other| *other == event).count();
        assert_eq!(count, 1, "{event:?}");
    }

    /// Waits until this number of messages of a member were taken.
    fn take(&self, from: usize, count: u64) {
        self.until("messages", |member| member.taken.borrow()[from] >= count);
        assert_eq!(self.taken.borrow()[from], count, "from {from}");
    }

    fn perform(&self, operation: &str) -> Result<(), RunError> {
        let (group, size) = (&self.group, self.group.size());
        match operation {
            "barrier" => group.barrier(),
            "reduce" => group.reduce(1_u64, |a, b| a + b).map(drop),
            "broadcast" => group.broadcast(0, &mut vec![1_u64; 10]),
            "gather" => group.gather(0, &[1_u64]).map(drop),
            "reduce_to" => group.reduce_to(0, &[1_u64], |a, b| a + b).map(drop),
            "all_gather" => group.all_gather(&[1_u64]).map(drop),
            "all_reduce" => group.all_reduce(&mut [1_u64], |a, b| a + b),
            "all_to_all" => group.all_to_all(&vec![vec![1_u64]; size]).map(drop),
            _ => panic!("{operation}"),
        }
    }
}

const OPERATIONS: [&str; 8] = [
    "barrier",
    "reduce",
    "broadcast",
    "gather",
    "reduce_to",
    "all_gather",
    "all_reduce",
    "all_to_all",
];

/// Runs `member` with each rank, as threads. Each takes two of the process's places to wait for
/// messages.
fn run(count: usize, member: impl Fn(usize) + Sync) {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    guarded(count, |guard| {
        thread::scope(|scope| {
            for rank in 0..count {
                let member = &member;
                scope.spawn(move || guard.member(rank, || member(rank)));
            }
        });
    });
}

fn ended(rank: usize) -> Event {
    Event::Ended { rank }
}

fn parted(one: usize, other: usize) -> Event {
    Event::Parted { one, other }
}

/// Some members perform the operation again and again when two of them lose each other. It ends for
/// all, also where no message of it goes between the two.
#[test]
fn every_operation_ends_for_all_members_when_two_lose_each_other() {
    for operation in OPERATIONS {
        for (one, other, size) in [(0, 1, 3), (0, 2, 3), (1, 2, 3), (0, 3, 6)] {
            let hosts: Vec<u64> = (0..size as u64).collect();
            let (meeting, over) = (Meeting::new(&hosts, 0), Barrier::new(size));
            run(size, |rank| {
                let member = meeting.first(rank);
                member.perform("barrier").unwrap();
                // A member that has not passed it yet would miss the other one.
                over.wait();
                if rank == other {
                    member.group.expel(&(one..one + 1));
                }
                let error = loop {
                    if let Err(error) = member.perform(operation) {
                        break error;
                    }
                };
                let of_pair = |rank: usize| rank == one || rank == other;
                let is_right = match error {
                    RunError::Parted { one: first, other: second } => {
                        !of_pair(rank) && (first, second) == (one, other)
                    }
                    RunError::GivenUp { missed, .. } => of_pair(missed),
                    RunError::Lost(Event::Ended { rank: missed }) => {
                        of_pair(rank) && missed == one + other - rank
                    }
                    _ => false,
                };
                assert!(is_right, "{operation}, {one} and {other} of {size}: {rank}, {error:?}");
                // Later ones end, too. No member leaves before all have seen that.
                for later in OPERATIONS {
                    member.perform(later).unwrap_err();
                }
                over.wait();
            });
        }
    }
}

/// The third member waits in no operation when it learns of the loss. After that none holds.
#[test]
fn a_member_that_keeps_two_is_told_once_and_goes_on_with_both() {
    const EACH: u64 = 5000;
    for (one, other) in [(0, 1), (0, 2), (1, 2)] {
        let (third, meeting) = (3 - one - other, Meeting::new(&[0, 1, 2], 0));
        let (told, over) = (Barrier::new(3), Barrier::new(3));
        run(3, |rank| {
            let member = meeting.first(rank);
            let others = || (0..3).filter(|to| *to != rank);
            for to in others() {
                (0..EACH).for_each(|_| member.send(to).unwrap());
            }
            others().for_each(|from| member.take(from, EACH));
            member.perform("barrier").unwrap();
            over.wait();
            if rank == other {
                member.group.expel(&(one..one + 1));
            }
            let told_here = match rank == third {
                true => parted(one, other),
                false => ended(one + other - rank),
            };
            member.until_told(&told_here);
            told.wait();
            // What comes first is the error of the third member.
            if rank == third {
                for operation in OPERATIONS {
                    let error = member.perform(operation).unwrap_err();
                    assert_eq!(error, RunError::Parted { one, other }, "{operation}");
                    assert!(error.to_string().contains(&format!("{one} and {other} have lost")));
                }
            } else {
                let error = member.perform("barrier").unwrap_err();
                assert_eq!(error, RunError::Lost(told_here.clone()));
                let sent = member.send(one + other - rank);
                assert!(matches!(sent, Err(SendError::Ended { .. })), "{sent:?}");
            }
            told.wait();
            let friends: Vec<usize> = match rank == third {
                true => vec![one, other],
                false => vec![third],
            };
            for _ in 0..EACH {
                friends.iter().for_each(|to| member.send(*to).unwrap());
            }
            friends.iter().for_each(|from| member.take(*from, 2 * EACH));
            over.wait();
            member.take_events();
            assert_eq!(*member.events.borrow(), [told_here]);
            // A member that leaves is lost to no other one.
            if rank == one {
                return;
            }
            member.until("the end", |member| {
                rank == other || member.events.borrow().contains(&ended(one))
            });
        });
    }
}

/// Member 0 waits, and the others do nothing until it has ended with an error.
#[test]
fn a_wait_ends_when_two_others_lose_each_other() {
    let waits = OPERATIONS.iter().filter(|operation| **operation != "broadcast");
    for wait in waits.chain(&["run_until"]) {
        let (meeting, over) = (Meeting::new(&[0, 1, 2], 0), Barrier::new(3));
        run(3, |rank| {
            let member = meeting.first(rank);
            member.perform("barrier").unwrap();
            over.wait();
            match rank {
                0 => {
                    let error = match *wait {
                        "run_until" => member.group.run_until(|| false),
                        operation => member.perform(operation),
                    };
                    assert_eq!(error, Err(RunError::Parted { one: 1, other: 2 }), "{wait}");
                }
                2 => member.group.expel(&(1..2)),
                _ => {}
            }
            over.wait();
        });
    }
}

/// Both values are at member 0 when it begins: messages without a handler make the others go on.
#[test]
fn a_reduction_does_not_begin_when_two_others_have_lost_each_other() {
    let (meeting, next) = (Meeting::new(&[0, 1, 2], 0), Barrier::new(3));
    run(3, |rank| {
        let member = meeting.first(rank);
        member.perform("barrier").unwrap();
        next.wait();
        if rank == 2 {
            member.group.expel(&(1..2));
        }
        member.until_told(&if rank == 0 { parted(1, 2) } else { ended(3 - rank) });
        if rank == 0 {
            [1, 2].iter().for_each(|to| member.group.send(*to, member.plain, &()).unwrap());
            [1, 2].iter().for_each(|from| member.take(*from, 1));
            let error = member.perform("reduce").unwrap_err();
            assert_eq!(error, RunError::Parted { one: 1, other: 2 });
        } else {
            let error = member.perform("reduce").unwrap_err();
            assert_eq!(error, RunError::Unhandled { rank: 0, kind: "plain".into() });
            member.send(0).unwrap();
        }
        next.wait();
        if rank != 0 {
            member.group.receive(|_| ()).unwrap();
            assert_eq!(member.perform("reduce"), Err(RunError::Lost(ended(3 - rank))));
        }
        next.wait();
    });
}

/// Members 1 and 2 lose each other. Member 0 is on the host of member 1, or member 3 on that of
/// member 2, and learns of the loss from the other one.
#[test]
fn a_member_on_the_host_of_one_of_them_is_told_by_the_other() {
    for hosts in [[0, 0, 1, 2], [1, 2, 0, 0]] {
        let near = if hosts[0] == 0 { 0 } else { 3 };
        let (meeting, over) = (Meeting::new(&hosts, 0), Barrier::new(4));
        run(4, |rank| {
            let member = meeting.first(rank);
            member.perform("barrier").unwrap();
            over.wait();
            over.wait();
            if rank == 2 {
                member.group.expel(&(1..2));
            }
            let told = if [1, 2].contains(&rank) { ended(3 - rank) } else { parted(1, 2) };
            member.until_told(&told);
            over.wait();
            if rank == near {
                let error = member.perform("barrier").unwrap_err();
                assert_eq!(error, RunError::Parted { one: 1, other: 2 });
            }
            over.wait();
            member.take_events();
            assert_eq!(*member.events.borrow(), [told]);
        });
    }
}

/// A member that has lost one of two gets no event of a parting, and one event of each end.
#[test]
fn the_end_of_a_member_is_told_once_and_wins() {
    let (meeting, next) = (Meeting::new(&[0, 1, 2], 0), Barrier::new(3));
    run(3, |rank| {
        let member = meeting.first(rank);
        member.perform("barrier").unwrap();
        next.wait();
        // Member 2 loses member 0 first, and then member 1 does.
        match rank {
            0 => member.until_told(&ended(2)),
            1 => member.until_told(&parted(0, 2)),
            _ => {
                member.group.expel(&(0..1));
                member.until_told(&ended(0));
            }
        }
        next.wait();
        match rank {
            0 => member.until_told(&ended(1)),
            1 => {
                member.group.expel(&(0..1));
                member.until_told(&ended(0));
                member.send(2).unwrap();
                let error = member.perform("barrier").unwrap_err();
                assert_eq!(error, RunError::Lost(ended(0)));
            }
            _ => member.take(1, 1),
        }
        next.wait();
        member.take_events();
        let expected = match rank {
            0 => vec![ended(2), ended(1)],
            1 => vec![parted(0, 2), ended(0)],
            _ => vec![ended(0)],
        };
        assert_eq!(*member.events.borrow(), expected);
        next.wait();
    });
}

/// Members 1 and 2 have lost each other before member 3 joins, which reaches both.
#[test]
fn a_member_that_joins_late_is_told_and_waits_for_nothing() {
    let (meeting, invitation) = (Meeting::new(&[0, 1, 2], 1), OnceLock::new());
    let (expected, over) = (Barrier::new(4), Barrier::new(4));
    run(4, |rank| {
        let member = (rank < 3).then(|| meeting.first(rank));
        if let Some(member) = &member {
            if rank == 2 {
                member.group.expel(&(1..2));
            }
            member.until_told(&if rank == 0 { parted(1, 2) } else { ended(3 - rank) });
            if rank == 0 {
                invitation.set(member.group.expect(3..4).unwrap()).unwrap();
            }
        }
        expected.wait();
        let member = member.unwrap_or_else(|| {
            let member = meeting.late(3, invitation.get().unwrap().clone());
            member.until_told(&parted(1, 2));
            member
        });
        // Members 0 and 3 have all others, and members 1 and 2 have those two.
        let has = |to: &usize| *to != rank && (to + rank != 3 || rank % 3 == 0);
        let friends: Vec<usize> = (0..4).filter(has).collect();
        member.until("a late member", |member| member.group.has_joined(3));
        friends.iter().for_each(|to| member.send(*to).unwrap());
        friends.iter().for_each(|from| member.take(*from, 1));
        assert_eq!(member.perform("barrier"), Err(RunError::Growing));
        over.wait();
    });
}
