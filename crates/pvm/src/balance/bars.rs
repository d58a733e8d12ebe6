//! What has kept tasks from moving to other hosts: until when they do not try again.
//!
//! | what was found | who stays away from the host |
//! |---|---|
//! | another version of the program, or too old a processor | all tasks of the program |
//! | no memory, descriptors or files, or another folder | the task |
//! | the task is pinned | the task, from all other hosts |
//! | no answer in time, or the end of the process | all tasks |
//!
//! Each bar lasts for [`BARRED`], and twice as long if the same is found again. That of all tasks
//! lasts for [`LONGEST_OF_ALL`] at most. If the host reports no loads then, it is out of
//! reach, or stands still. Then the bar ends as soon as all of its processes report loads again. A
//! host that has always reported is slow, and the bar stays.

use super::HostIndex;
use crate::moves::{NotMoved, Refusal};
use crate::tid::Tid;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Time for which a refusal counts that is found for the first time.
pub(crate) const BARRED: Duration = Duration::from_secs(30);
/// The longest time for which a refusal counts.
const LONGEST: Duration = Duration::from_secs(3600);
/// The longest time for which a host without an answer counts as that.
const LONGEST_OF_ALL: Duration = Duration::from_secs(960);
/// Maximum number of bars. Beyond it, refusals are forgotten: a task tries again too soon.
const MOST: usize = 4096;

/// What stays away from a host.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum BarredKey {
    /// A task, from all hosts but its own.
    Pinned(Tid),
    /// A task, from this host.
    Task(Tid, HostIndex),
    /// All tasks of a program.
    Program(String, HostIndex),
    /// All tasks.
    Host(HostIndex),
}

#[derive(Clone, Copy, Debug)]
struct Bar {
    until: Instant,
    lasts: Duration,
    /// Whether the host has reported no loads since.
    was_silent: bool,
}

/// Whether the processes of a host report loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HostReports {
    All,
    /// One of them does not.
    NotAll,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Bars(BTreeMap<BarredKey, Bar>);

impl Bars {
    /// Notes why a task was not moved to another host.
    pub(crate) fn note(
        &mut self,
        (tid, program): (Tid, &str),
        to: HostIndex,
        why: &NotMoved,
        now: Instant,
    ) {
        let key = match why {
            NotMoved::Refused(Refusal::Program | Refusal::Processor) => {
                BarredKey::Program(program.into(), to)
            }
            NotMoved::Refused(_) => BarredKey::Task(tid, to),
            NotMoved::Pinned(_) => BarredKey::Pinned(tid),
            NotMoved::TimedOut | NotMoved::Lost => BarredKey::Host(to),
            _ => return,
        };
        // What has been over for as long as it has lasted is forgotten.
        self.0.retain(|_, bar| bar.until + bar.lasts > now);
        let before = self.0.get(&key).map(|bar| bar.lasts);
        if before.is_some() || self.0.len() < MOST {
            let longest = match key {
                BarredKey::Host(_) => LONGEST_OF_ALL,
                _ => LONGEST,
            };
            let lasts = before.map_or(BARRED, |lasts| (lasts * 2).min(longest));
            self.0.insert(key, Bar { until: now + lasts, lasts, was_silent: false });
        }
    }

    /// Notes in a round whether hosts report loads.
    pub(crate) fn note_reports(&mut self, reports: impl Fn(HostIndex) -> HostReports) {
        self.0.retain(|key, bar| {
            let BarredKey::Host(host) = key else { return true };
            match reports(*host) {
                HostReports::All => !bar.was_silent,
                HostReports::NotAll => {
                    bar.was_silent = true;
                    true
                }
            }
        });
    }

    /// Notes that a task has moved to a host.
    pub(crate) fn moved(&mut self, tid: Tid, program: &str, to: HostIndex) {
        self.0.remove(&BarredKey::Pinned(tid));
        self.0.remove(&BarredKey::Task(tid, to));
        self.0.remove(&BarredKey::Program(program.into(), to));
        self.0.remove(&BarredKey::Host(to));
    }

    /// Forgets a task that has ended.
    pub(crate) fn forget(&mut self, tid: Tid) {
        self.0.retain(|key, _| match key {
            BarredKey::Pinned(of) | BarredKey::Task(of, _) => *of != tid,
            BarredKey::Program(..) | BarredKey::Host(_) => true,
        });
    }

    /// Returns `true` if nothing is barred.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns `true` if a task of this program stays away from a host, which is not its own.
    pub(crate) fn is_barred(&self, tid: Tid, program: &str, to: HostIndex, now: Instant) -> bool {
        let keys = [
            BarredKey::Pinned(tid),
            BarredKey::Task(tid, to),
            BarredKey::Program(program.into(), to),
            BarredKey::Host(to),
        ];
        keys.iter().any(|key| self.0.get(key).is_some_and(|bar| now < bar.until))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::moves::Pin;

    fn barred(bars: &Bars, now: Instant) -> Vec<(u32, &'static str, HostIndex)> {
        let all = [(1, "a", 1), (1, "a", 2), (2, "a", 1), (2, "a", 2), (3, "b", 1), (3, "b", 2)];
        let is_barred = |(number, program, host): &(u32, &str, HostIndex)| {
            bars.is_barred(Tid::new(0, *number), program, *host, now)
        };
        all.into_iter().filter(is_barred).collect()
    }

    #[test]
    fn a_refusal_keeps_away_those_whom_it_concerns() {
        let now = Instant::now();
        let found = |why: NotMoved| {
            let mut bars = Bars::default();
            bars.note((Tid::new(0, 1), "a"), 1, &why, now);
            barred(&bars, now)
        };
        let program = NotMoved::Refused(Refusal::Program);
        assert_eq!(found(program), [(1, "a", 1), (2, "a", 1)]);
        assert_eq!(found(NotMoved::Refused(Refusal::Processor)), [(1, "a", 1), (2, "a", 1)]);
        assert_eq!(found(NotMoved::Refused(Refusal::Folder)), [(1, "a", 1)]);
        assert_eq!(found(NotMoved::Pinned(Pin::Wish)), [(1, "a", 1), (1, "a", 2)]);
        assert_eq!(found(NotMoved::TimedOut), [(1, "a", 1), (2, "a", 1), (3, "b", 1)]);
        assert_eq!(found(NotMoved::UnderWay), []);
    }

    #[test]
    fn a_refusal_that_is_found_again_lasts_twice_as_long() {
        let (mut bars, mut now, tid) = (Bars::default(), Instant::now(), Tid::new(0, 1));
        for factor in [1, 2, 4, 8] {
            bars.note((tid, "a"), 1, &NotMoved::Refused(Refusal::Folder), now);
            now += BARRED * factor;
            assert_eq!(barred(&bars, now - Duration::from_millis(1)), [(1, "a", 1)], "{factor}");
            assert_eq!(barred(&bars, now), [], "{factor}");
        }
        // If it is not found for a while, it begins with the shortest time again.
        now += BARRED * 9;
        bars.note((tid, "a"), 1, &NotMoved::Refused(Refusal::Folder), now);
        assert_eq!(barred(&bars, now + BARRED), []);
        bars.note((tid, "a"), 2, &NotMoved::Refused(Refusal::Folder), now);
        bars.moved(tid, "a", 2);
        assert_eq!(barred(&bars, now), [(1, "a", 1)]);
        bars.forget(tid);
        assert!(bars.is_empty());
    }

    #[test]
    fn a_host_without_an_answer_is_tried_again_when_it_answers_and_after_minutes_at_most() {
        let (mut bars, mut now, tid) = (Bars::default(), Instant::now(), Tid::new(0, 1));
        let all = [(1, "a", 1), (2, "a", 1), (3, "b", 1)];
        for factor in [1, 2, 4, 8, 16, 32, 32, 32] {
            bars.note((tid, "a"), 1, &NotMoved::TimedOut, now);
            // A host that reports is slow. That changes nothing.
            bars.note_reports(|_| HostReports::All);
            now += BARRED * factor;
            assert_eq!(barred(&bars, now - Duration::from_millis(1)), all, "{factor}");
            assert_eq!(barred(&bars, now), [], "{factor}");
        }
        bars.note((tid, "a"), 1, &NotMoved::TimedOut, now);
        bars.note((tid, "a"), 2, &NotMoved::Lost, now);
        let two =
            |of_one: HostReports| move |host| if host == 1 { of_one } else { HostReports::All };
        bars.note_reports(two(HostReports::NotAll));
        assert_eq!(barred(&bars, now).len(), 6);
        bars.note_reports(two(HostReports::All));
        assert_eq!(barred(&bars, now), [(1, "a", 2), (2, "a", 2), (3, "b", 2)]);
        // It begins with the shortest time again.
        bars.note((tid, "a"), 1, &NotMoved::TimedOut, now);
        assert_eq!(barred(&bars, now + BARRED), []);
        // Another reason is none of the host's.
        bars.note((tid, "a"), 1, &NotMoved::Refused(Refusal::Folder), now);
        bars.note_reports(|_| HostReports::NotAll);
        bars.note_reports(|_| HostReports::All);
        assert_eq!(barred(&bars, now), [(1, "a", 1)]);
    }

    #[test]
    fn the_number_of_refusals_that_are_kept_is_bounded() {
        let (mut bars, now) = (Bars::default(), Instant::now());
        for number in 0..2 * MOST as u32 {
            let (tid, program) = (Tid::new(0, number + 1), number.to_string());
            bars.note((tid, &program), 1, &NotMoved::Refused(Refusal::Program), now);
        }
        assert_eq!(bars.0.len(), MOST);
    }
}
