//! What the cases have in common.

use std::time::Duration;
use upcall::message::{Group, GroupBuilder, Pacing};
use upcall_bench::child::Outcome;
use upcall_bench::lab::Gate;
use upcall_bench::messages::own::child::Task;

/// Messages of a burst.
pub(super) const BURST: u64 = 64;

/// Number of samples for which there is room at first.
pub(super) const MANY: usize = 1 << 16;

/// Time for a group to form. On a busy machine members that poll take half a minute for it.
pub(super) const FORMING: Duration = Duration::from_secs(300);

/// How to become a member of the group of these two processes that has this name.
pub(super) fn joining(task: &Task, name: &str, size: usize, rank: usize) -> GroupBuilder {
    let name = format!("bench-own-{name}-{}", task.group);
    GroupBuilder::new(&name, size).rank(rank).pacing(Pacing::Poll).within(FORMING)
}

/// Runs this on a virtual processor, on that processor.
pub(super) fn on_a_processor<T>(
    cpu: usize,
    pacing: Pacing,
    body: impl FnOnce() -> Outcome<T>,
) -> Outcome<T> {
    upcall::thread::processors(1, pacing)?.pin([cpu]).run(body)?
}

/// Takes messages without payload until so many are there, and looks once more, as who takes all
/// that waits does.
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
        Err(format!("{taken} messages where {messages} were sent").into())
    }
}

/// That nothing has happened to another member.
pub(super) fn well(group: &Group) -> Outcome<()> {
    group.event().map_or(Ok(()), |event| Err(format!("{event:?}").into()))
}
