//! Members on several hosts, as it seems, in a process that is refused memory.

mod guard;

use guard::guarded;
use std::sync::Barrier;
use std::time::Duration;
use upcall_message::{GroupBuilder, Handlers};
use upcall_net::bodies;
use upcall_os::ration::{self, Rationed};

#[global_allocator]
static ALLOCATOR: Rationed = Rationed;

/// Maximum time of a wait, within the maximum time of a test.
const GUARD: Duration = Duration::from_secs(40);

/// Length of the messages, in bytes.
const LONG: usize = 3 << 20;

/// Minimum size of an allocation that may be refused, in bytes: only messages need so much.
const LEAST: usize = 200 << 10;

/// A long message that only one member sends.
fn long(rank: usize) -> Vec<u8> {
    (0..LONG).map(|at| (at.wrapping_mul(rank + 7) >> 3) as u8).collect()
}

/// Two members exchange long messages, while the allocation with this number is refused. Returns
/// `true` if there was one.
fn exchange(nth: usize) -> bool {
    let address = format!("127.{}.{}.9:7412", 1 + std::process::id() % 250, nth);
    let name = format!("memory-{}-{nth}", std::process::id());
    let (ready, arrived) = (Barrier::new(2), Barrier::new(2));
    let outcome = guarded(2, |guard| {
        let member = |rank: usize| {
            let joining = GroupBuilder::new(&name, 2);
            let joining = joining.rank(rank).across(&address).apart(rank as u64).upcalls(false);
            let mut handlers = Handlers::new();
            let data = handlers.kind::<[u8]>("data");
            let group = joining.reconnect_within(4 * GUARD).join(handlers).unwrap();
            let (own, theirs) = (long(rank), long(1 - rank));
            if ready.wait().is_leader() {
                // What the last exchange has left would be used first.
                (0..2).for_each(|_| bodies::age());
                ration::refuse(nth, LEAST);
            }
            ready.wait();
            group.send(1 - rank, data, &own).unwrap();
            while !group.available() {
                assert!(group.wait(Some(GUARD)) || group.available(), "nothing comes");
                assert_eq!(group.event(), None);
            }
            let outcome = arrived.wait().is_leader().then(ration::lift);
            arrived.wait();
            let message = group.receive(|message| message.get(data)).unwrap();
            assert!(message == Some(theirs), "member {rank} has another message");
            assert_eq!(group.event(), None);
            group.barrier().unwrap();
            outcome
        };
        std::thread::scope(|scope| {
            let all = [0, 1].map(|rank| scope.spawn(move || guard.member(rank, || member(rank))));
            all.map(|one| one.join().unwrap())
        })
    });
    outcome.iter().flatten().any(|outcome| outcome.refused)
}

/// Each of both sides waits for memory, and blames no one.
#[test]
fn a_message_for_which_there_is_no_memory_arrives_later() {
    let refused = (1..).take_while(|&nth| exchange(nth)).count();
    // The receivers' bodies grow in several steps.
    assert!(refused > 6, "{refused} allocations");
}
