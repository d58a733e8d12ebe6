//! The servers, members and objects that are watched, and what they do in an interval.

use super::far::WatchedFar;
use crate::expect::ExpectArgs;
use crate::members::{MemberActivity, UserMembers};
use crate::objects::{ObjectActivity, UserObjects};
use crate::stat::{self, AskedServer, BindingRow, ServerBindings};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Instant;
use upcall::BindError;
use upcall::directory;

/// The servers that are read, by socket, and the start of the interval.
#[derive(Default)]
pub struct WatchedServers {
    servers: BTreeMap<PathBuf, ServerBindings>,
    /// Servers that did not hand out their tallies. They are not asked again, because a stopped one
    /// would delay each update.
    silent: BTreeSet<PathBuf>,
    /// Servers that only `--expect` accepts, beyond the number that is asked at once. They are not
    /// asked later either.
    unasked: BTreeSet<PathBuf>,
    /// Servers whose users are not accepted, with the users. They are not asked again either.
    others: BTreeMap<PathBuf, Option<u32>>,
    /// The users whose servers are accepted, beside one's own and root.
    expect: ExpectArgs,
    members: UserMembers,
    objects: UserObjects,
    /// Servers on other machines.
    pub far: WatchedFar,
    /// Whether nothing of this machine is watched.
    pub only_far: bool,
    pub since: Option<Instant>,
}

impl WatchedServers {
    pub fn new(expect: ExpectArgs) -> Self {
        Self { expect, ..Self::default() }
    }

    /// Asks new servers, and forgets those that have ended.
    pub fn renew(&mut self) {
        if self.only_far {
            return;
        }
        self.members.renew();
        self.objects.renew();
        let sockets: BTreeSet<_> = directory::domains().into_iter().collect();
        self.servers.retain(|socket, _| sockets.contains(socket));
        self.silent.retain(|socket| sockets.contains(socket));
        self.unasked.retain(|socket| sockets.contains(socket));
        self.others.retain(|socket, _| sockets.contains(socket));
        let is_known = |socket: &PathBuf| {
            self.servers.contains_key(socket)
                || self.silent.contains(socket)
                || self.unasked.contains(socket)
                || self.others.contains_key(socket)
        };
        let new: Vec<_> = sockets.into_iter().filter(|socket| !is_known(socket)).collect();
        let looked = stat::look_all(&new, &self.expect);
        new.into_iter().zip(looked).for_each(|(socket, looked)| self.add(socket, looked));
    }

    fn add(&mut self, socket: PathBuf, looked: AskedServer) {
        match looked {
            Some(Ok(mut server)) => {
                server.begin();
                self.servers.insert(socket, server);
            }
            Some(Err(BindError::WrongUser { found, .. })) => {
                self.others.insert(socket, found);
            }
            Some(Err(_)) => _ = self.silent.insert(socket),
            None => _ = self.unasked.insert(socket),
        }
    }

    pub fn read(&mut self, names: &[String]) -> IntervalActivity {
        let interval = self.since.map(|since| since.elapsed());
        let (far, far_silent) = self.far.read();
        let here = self.servers.values_mut();
        let here = here.flat_map(|server| stat::rows(server, names, interval));
        let seen = IntervalActivity {
            members: self.members.read(names, interval),
            objects: self.objects.read(names, interval),
            rows: here.chain(far).collect(),
            silent: self.silent.len() + self.members.silent.len() + far_silent,
            unasked: self.unasked.len(),
            unseen: self.objects.silent.len(),
            others: self.others.values().copied().collect(),
        };
        self.since = Some(Instant::now());
        self.renew();
        seen
    }
}

/// What was done in an interval.
#[derive(Default)]
pub struct IntervalActivity {
    pub rows: Vec<BindingRow>,
    pub members: Vec<MemberActivity>,
    pub objects: Vec<ObjectActivity>,
    /// Number of processes whose counts cannot be read.
    pub silent: usize,
    /// Number of servers that were not asked, because there are too many of other users.
    pub unasked: usize,
    /// Number of objects that cannot be read.
    pub unseen: usize,
    /// The user of each server whose user is not accepted; `None` if it has no number here.
    pub others: Vec<Option<u32>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_was_not_asked_is_not_silent() {
        let mut watched = WatchedServers::default();
        watched.add("/a".into(), None);
        watched.add("/b".into(), Some(Err(BindError::ServerGone { name: "b".into() })));
        let paths = |all: &BTreeSet<PathBuf>| all.iter().cloned().collect::<Vec<_>>();
        assert_eq!(paths(&watched.unasked), [PathBuf::from("/a")]);
        assert_eq!(paths(&watched.silent), [PathBuf::from("/b")]);
    }
}
