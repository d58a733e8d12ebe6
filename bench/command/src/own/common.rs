//! What the cases share.

use std::time::Duration;
use upcall::message::{Group, GroupBuilder, Pacing};
use upcall_bench::child::Outcome;
use upcall_bench::lab::Gate;
use upcall_bench::messages::own::child::Task;

/// Number of messages of a burst.
pub(super) const BURST: u64 = 64;

/// Initial capacity for samples.
pub(super) const MANY: usize = 1 << 16;

/// Time for a group to form. On a busy machine members that poll take half a minute for it.
pub(super) const FORMING: Duration = Duration::from_secs(300);

/// Returns the builder of a membership in the group of these two processes with this name.
pub(super) fn joining(task: &Task, name: &str, size: usize, rank: usize) -> GroupBuilder {
    let name = format!("bench-own-{name}-{}", task.group);
    GroupBuilder::new(&name, size).rank(rank).pacing(Pacing::Poll).within(FORMING)
}

/// Runs `body` on a virtual processor that is pinned to processor `cpu`.
pub(super) fn on_a_processor<T>(
    cpu: usize,
    pacing: Pacing,
    body: impl FnOnce() -> Outcome<T>,
) -> Outcome<T> {
    upcall::thread::processors(1, pacing)?.pin([cpu]).run(body)?
}

/// Takes messages without payload until `messages` have arrived, and polls once more, like a
/// receiver that takes all waiting messages.
#[inline(always)]
pub(super) fn take(group: &Group, gate: &Gate, messages: u64) -> Outcome<()> {
    let mut taken = 0;
    while taken < messages {
        while group.receive(|_| ()).is_ok() {
            taken += 1;
        }
        if taken < messages {
            gate.check()?;
        }
    }
    if taken == messages {
        Ok(())
    } else {
        Err(format!("{taken} messages were taken, but {messages} were sent").into())
    }
}

/// Fails if something has happened to another member.
pub(super) fn well(group: &Group) -> Outcome<()> {
    group.event().map_or(Ok(()), |event| Err(format!("{event:?}").into()))
}
