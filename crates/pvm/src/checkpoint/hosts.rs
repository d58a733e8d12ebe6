//! The hosts of a checkpoint, and where its tasks go on.
//!
//! A machine may go on with fewer hosts than it had, with more, or with other ones. A host is the
//! same one if it has the same name, with one exception: if the former home is not there, the new
//! home takes its place, unless that was another host of the machine.
//!
//! ```text
//! the host is there       its tasks run in its processes, if possible at the same places in it
//! the host is not there   its tasks run in the processes that have the fewest tasks
//! ```
//! A host that is there keeps its number. For the tasks, a host that is not there has ended, and a
//! new one has joined: they get the notices that they have asked for.

use crate::hosts::{MOST_NUMBER, MachineHosts, SpawnPlace};
use crate::tid::{MOST_PROCESSES, Tid};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use upcall_message::Rank;

/// Maximum length of a host's name, in bytes.
const LONGEST: usize = 64;

/// A host of a machine that was checkpointed. The first one is its home.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedHost {
    pub(crate) name: String,
    /// Number of its processes.
    pub(crate) processes: u32,
    /// Its number, as [`MachineHosts::short_number`] has it.
    pub(crate) number: u32,
    /// Whether it had left, or had not joined.
    pub(crate) has_ended: bool,
}

/// The hosts of a machine.
pub(crate) fn saved_hosts(
    hosts: &MachineHosts,
    has_ended: impl Fn(usize) -> bool,
) -> Vec<SavedHost> {
    let one = |host: usize| SavedHost {
        name: hosts.name(host).into(),
        processes: hosts.ranks(host).len() as u32,
        number: hosts.short_number(host),
        has_ended: has_ended(host),
    };
    (0..hosts.count()).map(one).collect()
}

/// Whether a machine can have had hosts that were read from a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SavedHostsAre {
    Possible,
    Impossible,
}

/// Checks hosts that were read from a file.
pub(crate) fn checked(hosts: &[SavedHost]) -> SavedHostsAre {
    let mut numbers = BTreeSet::new();
    let mut is_sound = |host: &SavedHost| {
        !host.name.is_empty()
            && host.name.len() <= LONGEST
            && !host.name.contains(char::is_control)
            && (1..=MOST_PROCESSES).contains(&host.processes)
            && (1..=MOST_NUMBER).contains(&host.number)
            && numbers.insert(host.number)
    };
    let is_possible = hosts.first().is_some_and(|home| !home.has_ended)
        && hosts.len() <= MOST_PROCESSES as usize
        && hosts.iter().all(&mut is_sound)
        && hosts.iter().map(|host| host.processes).sum::<u32>() <= MOST_PROCESSES;
    if is_possible { SavedHostsAre::Possible } else { SavedHostsAre::Impossible }
}

/// The numbers, as tasks see them, of the hosts of a machine that goes on.
#[derive(Debug, Default)]
pub(crate) struct RestoredHosts {
    /// Hosts that are there as before.
    pub(crate) known: BTreeSet<i32>,
    /// Hosts that were not there before.
    pub(crate) added: Vec<i32>,
}

/// What has become of the hosts of a checkpoint in the machine that goes on.
#[derive(Debug)]
pub(crate) struct CheckpointHosts<'a> {
    saved: &'a [SavedHost],
    /// The index now of each host that is there.
    now: Vec<Option<usize>>,
    hosts: MachineHosts,
}

impl<'a> CheckpointHosts<'a> {
    /// The same hosts, as far as `hosts` has them.
    pub(crate) fn new(saved: &'a [SavedHost], hosts: MachineHosts) -> Self {
        let by_name = |host: &SavedHost| {
            let named = (0..hosts.count()).find(|now| hosts.name(*now) == host.name);
            named.filter(|_| !host.has_ended)
        };
        let mut now = saved.iter().map(by_name).collect::<Vec<_>>();
        if now.first() == Some(&None) && !now.contains(&Some(0)) {
            now[0] = Some(0);
        }
        let taken = saved.iter().map(|host| host.number).collect::<Vec<_>>();
        let mut numbers = vec![None; hosts.count()];
        for (host, at) in saved.iter().zip(&now) {
            at.iter().for_each(|at| numbers[*at] = Some(host.number));
        }
        Self { saved, now, hosts: hosts.numbered_as(&numbers, &taken) }
    }

    /// The hosts that the machine has now.
    pub(crate) fn hosts(&self) -> &MachineHosts {
        &self.hosts
    }

    /// The numbers of hosts, for notices.
    pub(crate) fn restored(&self) -> RestoredHosts {
        let known = self.now.iter().flatten().map(|host| self.hosts.number(*host)).collect();
        RestoredHosts { known, added: self.added() }
    }

    /// The hosts that are not there, although they had not ended: index and name.
    pub(crate) fn gone(&self) -> impl Iterator<Item = (usize, &str)> {
        let all = self.saved.iter().zip(&self.now).enumerate();
        all.filter(|(_, (host, now))| now.is_none() && !host.has_ended)
            .map(|(at, (host, _))| (at, &*host.name))
    }

    /// The numbers of the hosts that were not there before.
    fn added(&self) -> Vec<i32> {
        let all = (0..self.hosts.count()).filter(|host| !self.now.contains(&Some(*host)));
        all.map(|host| self.hosts.number(host)).collect()
    }

    /// The place now that a task has asked for.
    pub(crate) fn place(&self, place: SpawnPlace) -> SpawnPlace {
        let now = |host: u32| self.now.get(host as usize).copied().flatten();
        match place {
            SpawnPlace::On(host) => {
                now(host).map_or(SpawnPlace::Nowhere, |host| SpawnPlace::On(host as u32))
            }
            SpawnPlace::Except(host) => {
                now(host).map_or(SpawnPlace::Any, |host| SpawnPlace::Except(host as u32))
            }
            place @ (SpawnPlace::Any | SpawnPlace::Nowhere) => place,
        }
    }

    /// The host of a process, and the process's place within it. `None`: no host had it.
    fn place_of(&self, rank: Rank) -> Option<(usize, usize)> {
        let mut start = 0;
        for (host, saved) in self.saved.iter().enumerate() {
            let end = start + saved.processes as usize;
            if rank < end {
                return Some((host, rank - start));
            }
            start = end;
        }
        None
    }

    /// The index of the host in which a task ran.
    pub(crate) fn host_of(&self, rank: Rank) -> Option<usize> {
        self.place_of(rank).map(|(host, _)| host)
    }

    /// The process of each task, from that in which it ran.
    pub(crate) fn ranks(&self, tasks: impl Iterator<Item = (Tid, Rank)>) -> BTreeMap<Tid, Rank> {
        let mut loads = vec![0_u32; self.hosts.size()];
        let (mut ranks, mut others) = (BTreeMap::new(), Vec::<(Tid, Range<Rank>)>::new());
        for (tid, rank) in tasks {
            let place = self.place_of(rank);
            let host = place.and_then(|(host, at)| Some((self.now[host]?, at)));
            let among = host.map_or(0..self.hosts.size(), |(host, _)| self.hosts.ranks(host));
            let same = host.map(|(_, at)| among.start + at).filter(|rank| among.contains(rank));
            match same {
                Some(rank) => {
                    loads[rank] += 1;
                    ranks.insert(tid, rank);
                }
                None => others.push((tid, among)),
            }
        }
        for (tid, among) in others {
            let rank = among.min_by_key(|rank| loads[*rank]).unwrap_or(0);
            loads[rank] += 1;
            ranks.insert(tid, rank);
        }
        ranks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn saved(all: &[(&str, u32)]) -> Vec<SavedHost> {
        let one = |(at, (name, processes)): (usize, &(&str, u32))| SavedHost {
            name: (*name).into(),
            processes: *processes,
            number: at as u32 + 1,
            has_ended: false,
        };
        all.iter().enumerate().map(one).collect()
    }

    fn now(all: &[(&str, usize)]) -> MachineHosts {
        MachineHosts::new(all.iter().map(|(name, count)| ((*name).into(), *count))).unwrap()
    }

    /// Where tasks go on, two of each process.
    fn ranks(map: &CheckpointHosts<'_>, processes: u32) -> Vec<Rank> {
        let tids = (0..2 * processes).map(|at| (Tid::new(at / 2, at % 2 + 1), at as usize / 2));
        map.ranks(tids).into_values().collect()
    }

    #[test]
    fn tasks_go_on_where_they_were_if_their_host_is_there() {
        let before = saved(&[("a", 2), ("b", 1), ("c", 2)]);
        let same = CheckpointHosts::new(&before, now(&[("a", 2), ("b", 1), ("c", 2)]));
        assert_eq!(ranks(&same, 5), [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]);
        assert_eq!((same.gone().count(), same.added()), (0, vec![]));
        // In another order, with fewer and with more processes.
        let other = CheckpointHosts::new(&before, now(&[("c", 1), ("a", 3), ("b", 2)]));
        assert_eq!(ranks(&other, 5), [1, 1, 2, 2, 4, 4, 0, 0, 0, 0]);
        assert_eq!([0, 1, 2].map(|host| other.hosts().short_number(host)), [3, 1, 2]);
        assert_eq!(other.place(SpawnPlace::On(1)), SpawnPlace::On(2));
        assert_eq!(other.place(SpawnPlace::Except(2)), SpawnPlace::Except(0));
    }

    #[test]
    fn tasks_of_a_host_that_is_gone_go_on_where_the_fewest_are() {
        let before = saved(&[("a", 1), ("b", 2), ("c", 1)]);
        let map = CheckpointHosts::new(&before, now(&[("a", 2), ("d", 1), ("c", 1)]));
        // Those of b go to processes without a task first.
        assert_eq!(ranks(&map, 4), [0, 0, 1, 2, 1, 2, 3, 3]);
        assert_eq!(map.gone().collect::<Vec<_>>(), [(1, "b")]);
        assert_eq!(map.added(), [map.hosts().number(1)]);
        assert_eq!(map.hosts().short_number(1), 4);
        assert_eq!(map.place(SpawnPlace::On(1)), SpawnPlace::Nowhere);
        assert_eq!(map.place(SpawnPlace::Except(1)), SpawnPlace::Any);
        assert_eq!(map.place(SpawnPlace::On(77)), SpawnPlace::Nowhere);
        // A process that no host had.
        assert_eq!(map.ranks([(Tid::new(0, 1), 99)].into_iter()).into_values().next(), Some(0));
    }

    #[test]
    fn another_home_takes_the_place_of_one_that_is_gone() {
        let before = saved(&[("a", 2), ("b", 1)]);
        let map = CheckpointHosts::new(&before, now(&[("x", 2)]));
        assert_eq!(ranks(&map, 3), [0, 0, 1, 1, 0, 1]);
        assert_eq!((map.gone().count(), map.hosts().short_number(0)), (1, 1));
        // Unless it was another host.
        let map = CheckpointHosts::new(&before, now(&[("b", 2)]));
        assert_eq!(ranks(&map, 3), [1, 1, 0, 1, 0, 0]);
        assert_eq!(map.gone().collect::<Vec<_>>(), [(0, "a")]);
        assert_eq!(map.restored().known.into_iter().collect::<Vec<_>>(), [map.hosts().number(0)]);
        assert_eq!(map.hosts().short_number(0), 2);
    }

    #[test]
    fn a_host_that_had_ended_is_a_new_one() {
        let mut before = saved(&[("a", 1), ("b", 1), ("b", 1)]);
        before[1].has_ended = true;
        let map = CheckpointHosts::new(&before, now(&[("a", 1), ("b", 1)]));
        assert_eq!((map.gone().count(), map.added()), (0, vec![]));
        assert_eq!(map.hosts().short_number(1), 3);
        before[2].has_ended = true;
        let map = CheckpointHosts::new(&before, now(&[("a", 1), ("b", 1)]));
        assert_eq!((map.gone().count(), map.added()), (0, vec![map.hosts().number(1)]));
        assert_eq!(map.hosts().short_number(1), 4);
    }

    #[test]
    fn hosts_that_no_machine_has_are_refused() {
        let good = saved(&[("a", 2), ("b", 254)]);
        assert_eq!(checked(&good), SavedHostsAre::Possible);
        assert_eq!(checked(&[]), SavedHostsAre::Impossible);
        let bend: [fn(&mut SavedHost); 7] = [
            |host| host.name.clear(),
            |host| host.name = "x".repeat(65),
            |host| host.name = "a\x1b[2J".into(),
            |host| host.processes = 0,
            |host| host.processes = 255,
            |host| host.number = 1,
            |host| host.number = 0,
        ];
        for (at, bend) in bend.into_iter().enumerate() {
            let mut bent = good.clone();
            bend(&mut bent[1]);
            assert_eq!(checked(&bent), SavedHostsAre::Impossible, "{at}");
        }
        let mut ended = good;
        ended[0].has_ended = true;
        assert_eq!(checked(&ended), SavedHostsAre::Impossible);
    }
}
