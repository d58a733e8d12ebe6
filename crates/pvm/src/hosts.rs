//! The hosts of a machine.
//!
//! # Design
//! - A machine has the host on which it was started, its *home*, those of [`StartHosts`], and those
//!   that come while it runs ([`changes`]). Each host has the processes of a range of ranks; the
//!   home has rank 0. Neither a rank nor the number of a host is given twice.
//! - The first process starts one process on each other host, the host's *leader*, by a command
//!   such as `ssh` ([`commands`]), with a [`MemberOrder`]. The leader starts the other processes of
//!   its host, as the first process does at home ([`processes`](crate::processes)).
//! - All processes are one group, whose members on other hosts are reached over links
//!   (`GroupBuilder::across`), with room for those of hosts that come (`GroupBuilder::room_for`).
//!   A host has ended when all of its processes have.
//! - A host comes in these steps, so that no process gets a message from a host that it does not
//!   know, and no task starts before all processes know its host:
//!   1. The first process gives the host a name, ranks and arenas. It sends the table of all hosts
//!      to all processes, which confirm it.
//!   2. The host's processes are started, or the host asks for its order by itself
//!      ([`joining`](crate::joining)). With the order comes an invitation ([`invited`]), without
//!      which no process joins. The processes join the group together.
//!   3. When all of them have joined, and all processes have confirmed the table, the host is part
//!      of the machine.
//!
//!   If one of its processes ends before that, or time is over, the host does not join.
//! - A host goes when the first process ends its processes.
//! - Tasks see a host by a number, as PVM's daemons have one: `0x40000` for the home, `0x80000` for
//!   the next one, and so on. It is no task's id. A machine that goes on from a checkpoint keeps
//!   the numbers of the hosts that it still has (`MachineHosts::numbered_as`).
//!
//! - Two processes may lose each other while both reach the first one. Then that one ends one of
//!   them ([`Partitions`]): no task goes on whose messages are lost.
//!
//! # What is promised between hosts
//! Messages of two tasks arrive in the order in which they were sent, and the notice of a task's
//! end after its last message to the receiver ([`LateMessage`](crate::remote::LateMessage)). Other
//! messages keep no common order between hosts, as with PVM's daemons ([`causal`](crate::causal)).

pub(crate) mod changes;
mod commands;
mod invited;
mod order;
mod partitions;

pub(crate) use commands::{HostComes, HostLaunches, HostRecruiter, end_with_input};
pub(crate) use invited::{input_for, read_invitation};
pub(crate) use order::MemberOrder;
pub(crate) use partitions::Partitions;

use crate::error;
use crate::tid::MOST_PROCESSES;
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
    /// Number of processes that hosts may bring which come later. `None`: 16, or as many as are
    /// possible.
    pub room: Option<usize>,
    /// The token by which hosts join by themselves. `None`: none does.
    pub token: Option<String>,
}

/// Default number of processes of hosts that come later.
const ROOM: usize = 16;

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
pub(crate) struct MachineHosts {
    all: Vec<MachineHost>,
    /// Number of processes that there is room for.
    most: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct MachineHost {
    name: String,
    ranks: Range<Rank>,
    /// Its number, without the bits of tasks. From 1.
    number: u32,
}

/// Maximum number of a host, as PVM has it.
pub(crate) const MOST_NUMBER: u32 = (1 << 12) - 1;

/// The name of this host, as PVM has it. The kernel's may have any bytes; what no host's name may
/// have is an underscore here.
pub(crate) fn own_name() -> String {
    named(rustix::system::uname().nodename().to_bytes())
}

fn named(nodename: &[u8]) -> String {
    let bytes = nodename.iter().take(LONGEST).map(|byte| char::from(*byte));
    let mut name = bytes.map(|one| if is_plain(one) { one } else { '_' }).collect::<String>();
    if !is_name(&name) {
        name.replace_range(..name.len().min(1), "_");
    }
    name
}

/// Returns `true` if a host can have this name. A name with a hyphen first would be
/// an option for the command that starts processes there.
fn is_name(name: &str) -> bool {
    let is_special = name.is_empty() || name == "." || name.starts_with('-');
    !is_special && name.len() <= LONGEST && name.chars().all(is_plain)
}

impl MachineHosts {
    /// The hosts with these names and numbers of processes. The first one is the home.
    ///
    /// # Errors
    /// A name is none, or is that of two hosts.
    pub(crate) fn new(all: impl IntoIterator<Item = (String, usize)>) -> Result<Self, BadHost> {
        let mut hosts = Self { all: Vec::new(), most: 0 };
        for (name, processes) in all {
            if hosts.all.iter().any(|host| host.name == name) {
                return Err(BadHost(format!("two hosts of the machine have the name {name}")));
            }
            hosts.most += processes;
            hosts.add(name, processes)?;
        }
        Ok(hosts)
    }

    /// The hosts, with room for processes of hosts that come later: `more` of them, or as many as
    /// are possible.
    ///
    /// # Errors
    /// A machine cannot have as many.
    pub(crate) fn with_room(mut self, more: Option<usize>) -> Result<Self, BadHost> {
        let (size, most) = (self.size(), MOST_PROCESSES as usize);
        let more = more.unwrap_or_else(|| ROOM.min(most.saturating_sub(size)));
        self.most = size.saturating_add(more);
        if self.most > most {
            return Err(BadHost(format!(
                "the machine has {size} processes on all hosts, and room for {more} more: {most} \
                 in all are possible"
            )));
        }
        Ok(self)
    }

    /// Adds a host. Its name may be that of a host that has ended. Returns its index.
    ///
    /// # Errors
    /// The name is none, or there is no room.
    pub(crate) fn add(&mut self, name: String, processes: usize) -> Result<usize, BadHost> {
        if !is_name(&name) {
            // It may have any length.
            let shown = name.chars().take(LONGEST + 1).collect::<String>();
            return Err(BadHost(format!(
                "{shown:?} is not the name of a host: give 1 to {LONGEST} letters, digits, dots, \
                 hyphens and underscores, and no hyphen first"
            )));
        }
        let start = self.size();
        if processes == 0 || self.most - start < processes {
            return Err(BadHost(format!(
                "there is room for {} more processes, and not for {processes}: start the machine \
                 with more (--room)",
                self.most - start
            )));
        }
        let number = self.free_number(|_| false);
        self.all.push(MachineHost { name, ranks: start..start + processes, number });
        Ok(self.all.len() - 1)
    }

    /// The number for the next host: the one after the highest, or else the lowest free one.
    fn free_number(&self, is_taken: impl Fn(u32) -> bool) -> u32 {
        let is_free = |number: &u32| {
            !self.all.iter().any(|host| host.number == *number) && !is_taken(*number)
        };
        let highest = self.all.iter().map(|host| host.number).max().unwrap_or(0);
        let all = (highest + 1..=MOST_NUMBER).chain(1..=highest);
        // There are fewer hosts than numbers.
        all.into_iter().find(is_free).unwrap_or(MOST_NUMBER)
    }

    /// The hosts with these numbers of a former machine, by index. The hosts without one get
    /// numbers that are not `taken`: no host had them there.
    pub(crate) fn numbered_as(mut self, known: &[Option<u32>], taken: &[u32]) -> Self {
        let highest = taken.iter().copied().max().unwrap_or(0);
        for (host, number) in self.all.iter_mut().zip(known) {
            host.number = number.unwrap_or(0);
        }
        for host in 0..self.all.len() {
            if self.all[host].number == 0 {
                let next = highest.max(self.all.iter().map(|one| one.number).max().unwrap_or(0));
                self.all[host].number = match next {
                    next if next < MOST_NUMBER => next + 1,
                    _ => self.free_number(|number| taken.contains(&number)),
                };
            }
        }
        self
    }

    /// Only this host, with `processes` processes.
    pub(crate) fn home(processes: usize) -> Self {
        let home = MachineHost { name: own_name(), ranks: 0..processes, number: 1 };
        Self { all: vec![home], most: processes }
    }

    /// Number of processes on all hosts.
    pub(crate) fn size(&self) -> usize {
        self.all.last().map_or(0, |host| host.ranks.end)
    }

    /// Number of processes that there is room for.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// Number of hosts, with those that have ended.
    pub(crate) fn count(&self) -> usize {
        self.all.len()
    }

    /// Returns `true` if there are several hosts, or may be later.
    pub(crate) fn are_several(&self) -> bool {
        self.all.len() > 1 || self.most > self.size()
    }

    /// Returns `true` if `other` has the same hosts, and perhaps more after them.
    pub(crate) fn go_on_in(&self, other: &Self) -> bool {
        self.most == other.most && other.all.starts_with(&self.all)
    }

    /// The index of the host of a process.
    pub(crate) fn of(&self, rank: Rank) -> usize {
        self.all.iter().position(|host| host.ranks.contains(&rank)).unwrap_or(0)
    }

    /// Returns `true` if two processes are on one host.
    pub(crate) fn are_near(&self, one: Rank, other: Rank) -> bool {
        self.of(one) == self.of(other)
    }

    /// A host's name.
    pub(crate) fn name(&self, host: usize) -> &str {
        self.all.get(host).map_or("", |host| &host.name)
    }

    /// The ranks of the processes of a host.
    pub(crate) fn ranks(&self, host: usize) -> Range<Rank> {
        self.all.get(host).map_or(0..0, |host| host.ranks.clone())
    }

    /// The last host with this name; `.` is the host `own`.
    pub(crate) fn named(&self, name: &str, own: usize) -> Option<usize> {
        if name == "." {
            return Some(own);
        }
        self.all.iter().rposition(|host| host.name == name)
    }

    /// A host's number, as programs see it.
    pub(crate) fn number(&self, host: usize) -> i32 {
        self.all.get(host).map_or(0, |host| (host.number << LOCAL) as i32)
    }

    /// The same, without the bits of tasks.
    pub(crate) fn short_number(&self, host: usize) -> u32 {
        self.all.get(host).map_or(0, |host| host.number)
    }

    /// The host with this number.
    pub(crate) fn numbered(&self, number: i32) -> Option<usize> {
        (0..self.count()).find(|host| self.number(*host) == number)
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
    pub(crate) fn word(&self) -> String {
        let mut next = 1;
        let mut one = |host: &MachineHost| {
            let number = match host.number {
                number if number == next => String::new(),
                number => format!("={number}"),
            };
            next = next.max(host.number + 1);
            format!("{}:{}{number}", host.name, host.ranks.len())
        };
        let all = self.all.iter().map(&mut one).collect::<Vec<_>>().join(",");
        format!("{all}/{}", self.most)
    }

    /// Reads what [`word`](Self::word) has written.
    pub(crate) fn of_word(word: &str) -> Option<Self> {
        let (all, most) = word.split_once('/')?;
        let most = most.parse().ok().filter(|most| *most <= MOST_PROCESSES as usize)?;
        let mut hosts = Self { all: Vec::new(), most };
        for host in all.split(',') {
            let (name, processes) = host.rsplit_once(':')?;
            let (processes, number) = match processes.split_once('=') {
                Some((processes, number)) => (processes, Some(number.parse().ok()?)),
                None => (processes, None),
            };
            let host = hosts.add(name.into(), processes.parse().ok()?).ok()?;
            if let Some(number) = number {
                let is_taken = hosts.all[..host].iter().any(|one| one.number == number);
                (!is_taken && (1..=MOST_NUMBER).contains(&number)).then_some(())?;
                hosts.all[host].number = number;
            }
        }
        Some(hosts)
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
        let number = hosts.number(1);
        assert_eq!((number, hosts.numbered(number), hosts.numbered(5)), (0x8_0000, Some(1), None));
        assert_eq!(MachineHosts::of_word(&hosts.word()), Some(hosts));
        for wrong in ["a:0/4", "a:1", "a:1/", "a:3/2", "a:1,b:1/1", "a:1/257", "/4", "a/4"] {
            assert_eq!(MachineHosts::of_word(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn hosts_come_as_far_as_there_is_room() {
        let first = hosts();
        assert!(first.are_several() && !MachineHosts::home(3).are_several());
        let mut more = hosts().with_room(Some(3)).unwrap();
        assert!(MachineHosts::home(1).with_room(None).unwrap().are_several());
        assert!(!first.go_on_in(&more));
        let before = more.clone();
        assert_eq!((more.add("b".into(), 2), more.ranks(3)), (Ok(3), 5..7));
        assert!(more.add("d".into(), 2).is_err() && more.add("d".into(), 0).is_err());
        assert!(more.add("d d".into(), 1).is_err());
        assert!(before.go_on_in(&more) && !more.go_on_in(&before));
        assert_eq!((more.named("b", 0), more.of(6), more.of(1)), (Some(3), 3, 0));
        assert_eq!(MachineHosts::of_word(&more.word()), Some(more));
        assert!(hosts().with_room(Some(252)).is_err());
        assert_eq!(MachineHosts::home(250).with_room(None).unwrap().most(), 256);
    }

    #[test]
    fn hosts_keep_the_numbers_of_another_machine() {
        let hosts = hosts().with_room(Some(2)).unwrap();
        let mut later = hosts.clone().numbered_as(&[Some(3), None, Some(1)], &[1, 2, 3]);
        assert_eq!([0, 1, 2].map(|host| later.short_number(host)), [3, 4, 1]);
        assert_eq!(later.numbered(3 << LOCAL), Some(0));
        later.add("d".into(), 1).unwrap();
        assert_eq!((later.number(3), later.numbered(2 << LOCAL)), (5 << LOCAL, None));
        assert_eq!(MachineHosts::of_word(&later.word()), Some(later));
        let other = hosts.clone().numbered_as(&[Some(4), Some(1), Some(2)], &[]);
        assert_eq!(MachineHosts::of_word(&other.word()), Some(other));
        // If the highest number is taken, a new host gets a free one.
        let last = hosts.numbered_as(&[Some(1), None, None], &[1, 2, MOST_NUMBER]);
        assert_eq!([0, 1, 2].map(|host| last.short_number(host)), [1, 3, 4]);
        assert_eq!(MachineHosts::of_word(&last.word()), Some(last));
        for wrong in ["a:1=0/4", "a:1,b:1=1/4", "a:1=4096/4", "a:1=/4", "a:1=x/4"] {
            assert_eq!(MachineHosts::of_word(wrong), None, "{wrong}");
        }
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
        for wrong in [&["a", "a"][..], &[""], &["."], &["a b"], &["a:b"], &["a,b"], &["-v"]] {
            assert!(of(wrong).is_err(), "{wrong:?}");
        }
        let long = of(&[&"\x1b".repeat(1 << 20)]).unwrap_err().to_string();
        assert!(long.len() < 1000 && !long.contains(char::is_control), "{long}");
    }

    #[test]
    fn a_home_has_a_name_whatever_the_kernel_says() {
        let long = [b'a'; 64];
        for (nodename, name) in [
            (&b"ws1.example.org"[..], "ws1.example.org"),
            (b"my host\n\x1b[2J", "my_host___2J"),
            (b"\xff\xfe", "__"),
            (b"", "_"),
            (b".", "_"),
            (b"-v", "_v"),
            (&long, std::str::from_utf8(&long).unwrap()),
        ] {
            assert_eq!(super::named(nodename), name);
            assert!(MachineHosts::new([(name.into(), 1)]).is_ok(), "{name}");
        }
    }
}
