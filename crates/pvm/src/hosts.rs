//! The hosts of a machine.
//!
//! # Design
//! - A machine has the host on which it was started, its *home*, and those of [`StartHosts`]. Each
//!   host has the processes of a range of ranks; the home has rank 0. That does not change.
//! - The first process starts one process on each other host, the host's *leader*, by a command
//!   such as `ssh` ([`commands`]), with a [`MemberOrder`]. The leader starts the other processes of
//!   its host, as the first process does at home ([`processes`](crate::processes)).
//! - All processes are one group, whose members on other hosts are reached over links
//!   (`GroupBuilder::across`). A host has ended when all of its processes have.
//! - Tasks see a host by a number, as PVM's daemons have one: `0x40000` for the home, `0x80000` for
//!   the next one, and so on. It is no task's id.
//!
//! - Two processes may lose each other while both reach the first one. Then that one ends one of
//!   them ([`Partitions`]): no task goes on whose messages are lost.
//!
//! # What is promised between hosts
//! Messages of two tasks arrive in the order in which they were sent, and the notice of a task's
//! end after its last message to the receiver ([`LateMessage`](crate::remote::LateMessage)). Other
//! messages keep no common order between hosts, as with PVM's daemons ([`causal`](crate::causal)).

mod commands;
mod order;
mod partitions;

pub(crate) use commands::{HostLaunches, end_with_input};
pub(crate) use order::MemberOrder;
pub(crate) use partitions::Partitions;

use crate::error;
use std::fmt;
use std::ops::Range;
use std::time::Duration;
use upcall_message::Rank;

/// Size of the number of a task within a host, in bits.
const LOCAL: u32 = 18;

/// Maximum length of a host's name.
const LONGEST: usize = 64;

/// How the processes on other hosts are started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostStarter {
    /// By this command, in whose words `{host}` stands for the host's name. The words of the
    /// process's own command follow.
    Command(Vec<String>),
    /// By hand: the commands are printed, and the machine waits until they run.
    ByHand,
}

/// Another host of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartHost {
    /// Its name. Programs see it, and the command that starts processes there gets it.
    pub name: String,
    /// Number of processes there.
    pub processes: usize,
}

/// The other hosts of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartHosts {
    /// The hosts.
    pub hosts: Vec<StartHost>,
    /// The address at which the processes meet, HOST:PORT. HOST is this host, by the name under
    /// which the others trust it.
    pub rendezvous: String,
    /// How processes are started there.
    pub starter: HostStarter,
    /// The command `upcall` on the other hosts: a path, or a name in their PATH.
    pub command: String,
    /// Time for which a host may be out of reach. Then it has ended.
    pub patience: Duration,
}

impl StartHosts {
    /// Default time for which a host may be out of reach.
    pub const PATIENCE: Duration = Duration::from_secs(30);
}

/// Where the processes of a machine with several hosts meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MachineMeeting {
    pub(crate) address: String,
    pub(crate) patience: Duration,
    /// Time for which a process waits for the others.
    pub(crate) within: Duration,
}

/// A text that is not a host's name, or is that of two hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadHost(pub(crate) String);

impl fmt::Display for BadHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadHost {}

/// Where tasks are to start, as their spawner asks for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) enum SpawnPlace {
    #[default]
    Any,
    /// On the host with this index.
    On(u32),
    /// On the other ones.
    Except(u32),
    /// There is no such host.
    Nowhere,
}

/// The hosts of a machine, each with the ranks of its processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MachineHosts(Vec<MachineHost>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct MachineHost {
    name: String,
    ranks: Range<Rank>,
}

/// The name of this host, as PVM has it.
pub(crate) fn own_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

impl MachineHosts {
    /// The hosts with these names and numbers of processes. The first one is the home.
    ///
    /// # Errors
    /// A name is none, or is that of two hosts.
    pub(crate) fn new(all: impl IntoIterator<Item = (String, usize)>) -> Result<Self, BadHost> {
        let mut hosts = Self(Vec::new());
        for (name, processes) in all {
            if name.is_empty() || name == "." || name.len() > LONGEST || !name.chars().all(is_plain)
            {
                return Err(BadHost(format!(
                    "{name:?} is not the name of a host: give 1 to {LONGEST} letters, digits, \
                     dots, hyphens and underscores"
                )));
            }
            if hosts.0.iter().any(|host| host.name == name) {
                return Err(BadHost(format!("two hosts of the machine have the name {name}")));
            }
            let start = hosts.size();
            hosts.0.push(MachineHost { name, ranks: start..start + processes });
        }
        Ok(hosts)
    }

    /// Only this host, with `processes` processes.
    pub(crate) fn home(processes: usize) -> Self {
        Self(vec![MachineHost { name: own_name(), ranks: 0..processes }])
    }

    /// Number of processes on all hosts.
    pub(crate) fn size(&self) -> usize {
        self.0.last().map_or(0, |host| host.ranks.end)
    }

    /// Number of hosts.
    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns `true` if there are several hosts.
    pub(crate) fn are_several(&self) -> bool {
        self.0.len() > 1
    }

    /// The index of the host of a process.
    pub(crate) fn of(&self, rank: Rank) -> usize {
        self.0.iter().position(|host| host.ranks.contains(&rank)).unwrap_or(0)
    }

    /// Returns `true` if two processes are on one host.
    pub(crate) fn are_near(&self, one: Rank, other: Rank) -> bool {
        self.of(one) == self.of(other)
    }

    /// A host's name.
    pub(crate) fn name(&self, host: usize) -> &str {
        self.0.get(host).map_or("", |host| &host.name)
    }

    /// The ranks of the processes of a host.
    pub(crate) fn ranks(&self, host: usize) -> Range<Rank> {
        self.0.get(host).map_or(0..0, |host| host.ranks.clone())
    }

    /// The host with this name; `.` is the host `own`.
    pub(crate) fn named(&self, name: &str, own: usize) -> Option<usize> {
        if name == "." {
            return Some(own);
        }
        self.0.iter().position(|host| host.name == name)
    }

    /// A host's number, as programs see it.
    pub(crate) fn number(host: usize) -> i32 {
        ((host + 1) << LOCAL) as i32
    }

    /// The host with this number.
    pub(crate) fn numbered(&self, number: i32) -> Option<usize> {
        (0..self.count()).find(|host| Self::number(*host) == number)
    }

    /// The ranks in which tasks for a place may start.
    ///
    /// # Errors
    /// PVM's error: there is no such host.
    pub(crate) fn ranks_for(&self, place: SpawnPlace) -> Result<Vec<Rank>, i32> {
        let all = match place {
            SpawnPlace::Any => (0..self.size()).collect(),
            SpawnPlace::On(host) => self.ranks(host as usize).collect(),
            SpawnPlace::Except(host) => {
                let own = self.ranks(host as usize);
                (0..self.size()).filter(|rank| !own.contains(rank)).collect()
            }
            SpawnPlace::Nowhere => Vec::new(),
        };
        Some(all).filter(|all: &Vec<_>| !all.is_empty()).ok_or(error::NO_HOST)
    }

    /// The hosts as one word.
    fn word(&self) -> String {
        let one = |host: &MachineHost| format!("{}:{}", host.name, host.ranks.len());
        self.0.iter().map(one).collect::<Vec<_>>().join(",")
    }

    /// Reads what [`word`](Self::word) has written.
    fn of_word(word: &str) -> Option<Self> {
        let one = |host: &str| {
            let (name, processes) = host.rsplit_once(':')?;
            Some((name.to_owned(), processes.parse().ok().filter(|count| *count > 0)?))
        };
        let all = word.split(',').map(one).collect::<Option<Vec<_>>>()?;
        Self::new(all).ok()
    }
}

/// Returns `true` if a host's name may have this character.
fn is_plain(one: char) -> bool {
    one.is_ascii_alphanumeric() || "._-".contains(one)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts() -> MachineHosts {
        MachineHosts::new([("a".into(), 2), ("b".into(), 1), ("c".into(), 2)]).unwrap()
    }

    #[test]
    fn each_process_belongs_to_a_host() {
        let hosts = hosts();
        assert_eq!((hosts.size(), hosts.count()), (5, 3));
        assert_eq!([0, 1, 2, 3, 4].map(|rank| hosts.of(rank)), [0, 0, 1, 2, 2]);
        assert!(hosts.are_near(3, 4) && !hosts.are_near(1, 2));
        assert_eq!((hosts.named(".", 2), hosts.named("b", 2)), (Some(2), Some(1)));
        assert_eq!(hosts.named("d", 0), None);
        let number = MachineHosts::number(1);
        assert_eq!((number, hosts.numbered(number), hosts.numbered(5)), (0x8_0000, Some(1), None));
        assert_eq!(MachineHosts::of_word(&hosts.word()), Some(hosts));
        assert_eq!(MachineHosts::of_word("a:0"), None);
    }

    #[test]
    fn a_place_names_processes() {
        let hosts = hosts();
        assert_eq!(hosts.ranks_for(SpawnPlace::On(2)), Ok(vec![3, 4]));
        assert_eq!(hosts.ranks_for(SpawnPlace::Except(0)), Ok(vec![2, 3, 4]));
        assert_eq!(hosts.ranks_for(SpawnPlace::Any).map(|all| all.len()), Ok(5));
        assert_eq!(hosts.ranks_for(SpawnPlace::Nowhere), Err(error::NO_HOST));
        let home = MachineHosts::home(2);
        assert_eq!(home.ranks_for(SpawnPlace::Except(0)), Err(error::NO_HOST));
    }

    #[test]
    fn names_are_checked() {
        let of = |names: &[&str]| MachineHosts::new(names.iter().map(|name| ((*name).into(), 1)));
        assert!(of(&["ws1.example.org", "ws-2_b"]).is_ok());
        for wrong in [&["a", "a"][..], &[""], &["."], &["a b"], &["a:b"], &["a,b"]] {
            assert!(of(wrong).is_err(), "{wrong:?}");
        }
    }
}
