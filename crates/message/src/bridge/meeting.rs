//! How the members of a group over several hosts find each other.
//!
//! All give the same address. The member that can listen there leads; the others connect to it and
//! apply, as they do on one host ([`crate::forming`]). Each member also listens by itself, so that
//! those of other hosts can open a pair with it: of two members the one with the lower rank
//! connects. A member is one only when all its pairs are open.

use super::admission;
use super::applying::{Application, ApplicationResult};
use super::gate::BridgeGate;
use super::home::{AcrossHosts, BridgeHome, BridgeTerms, LONGEST_PATIENCE, identity};
use super::inward::PairLost;
use super::opening::{self, NotOpened};
use super::pair::{FarPair, Pairs};
use super::pass::Passes;
use super::petitioning::protection_at;
use super::requests::{FarRequest, LateWelcome, read_welcome};
use super::thread::Bridge;
use crate::Rank;
use crate::error::JoinError;
use crate::forming::FormingTimeout;
use crate::invitation::InvitedRanks;
use crate::kinds::Handlers;
use crate::member::{Member, Roster};
use crate::place::{MachineKey, MemberPlace};
use crate::wire::{self, Lacks, Listed, VERSION, Welcome};
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use upcall_directory::names;
use upcall_net::link::LinkSide;
use upcall_net::{NoConnection, Protection};
use upcall_os::fault::{Point, point};
use upcall_sched::post::Post;

/// Minimum time for which a pair goes on after a cut. Without any, its session would end with its
/// connection.
const SHORTEST_PATIENCE: Duration = Duration::from_millis(1);

/// Time between two looks for a leader.
const LOOK: Duration = Duration::from_millis(20);

/// A process that meets the other members.
pub(crate) struct GroupMeeting<'a> {
    pub(crate) name: &'a str,
    /// Number of members, without the room for more.
    pub(crate) size: usize,
    /// Number of members that may join after the group has formed.
    pub(crate) room: usize,
    pub(crate) rank: Option<Rank>,
    /// The members that join together with this one after the group has formed.
    pub(crate) late: Option<InvitedRanks>,
    /// The address at which the members meet.
    pub(crate) address: &'a str,
    pub(crate) crossing: &'a AcrossHosts,
    /// Time for which it waits for the others.
    pub(crate) within: Duration,
    /// Maximum length of a message, in bytes.
    pub(crate) most: usize,
    pub(crate) member: &'a Arc<Member>,
    pub(crate) handlers: &'a Handlers,
}

/// The answer to an application.
enum ApplicationAnswer {
    Reply(Vec<u8>),
    /// None, for this reason.
    Again(String),
}

/// The result of asking a leader.
enum LeaderFound {
    Formed(Arc<Roster>),
    /// No group yet, for this reason.
    Again(String),
}

impl GroupMeeting<'_> {
    /// Becomes a member, and opens the pairs with members on other hosts.
    pub(crate) fn meet(&self, left: &mut FormingTimeout) -> Result<Arc<Roster>, JoinError> {
        let address = self.address;
        let at = self.find_address(left)?;
        let store = identity(at).map_err(|why| self.not_proved(address, why))?;
        let post = Post::take().map_err(|error| JoinError::Resource {
            what: "a place for the bridge to wait for messages".into(),
            error,
        })?;
        let late = self.late.as_ref();
        let terms = BridgeTerms {
            room: self.room,
            kinds: self.handlers.kinds.clone(),
            name: self.name.into(),
            patience: self.crossing.patience.clamp(SHORTEST_PATIENCE, LONGEST_PATIENCE),
            lost_after: self.crossing.lost_after,
            most: self.most,
            apart: late.map_or(self.crossing.apart, |late| late.ranks.start as u64 + 1),
        };
        let home = BridgeHome::new(self.member, terms, post, store);
        let gate = BridgeGate::new(&home);
        let found = match late {
            None => self.find_others(&home, &gate, at, left),
            Some(_) => self.find_group(&home, &gate, at, left),
        };
        let formed = found.and_then(|roster| {
            self.cross(&home, &gate, (&roster, at), left)?;
            Ok(roster)
        });
        formed.inspect_err(|_| gate.shut())
    }

    /// Finds the address at which the members meet. A name may become known only when its host is
    /// there, as in clusters.
    fn find_address(&self, left: &mut FormingTimeout) -> Result<SocketAddr, JoinError> {
        let address = self.address;
        loop {
            let found = address.to_socket_addrs();
            let error = match found.map(|mut all| all.next()) {
                Ok(Some(at)) => return Ok(at),
                Ok(None) => io::ErrorKind::NotFound.into(),
                Err(error) => error,
            };
            let is_malformed = error.kind() == io::ErrorKind::InvalidInput;
            if is_malformed || left.is_over(Instant::now()) {
                let what = format!("finding the address {address}, which is to be HOST:PORT");
                return Err(JoinError::Resource { what, error });
            }
            if self.handlers.is_interrupted() {
                return Err(JoinError::Interrupted);
            }
            std::thread::sleep(left.slice());
        }
    }

    fn find_others(
        &self,
        home: &BridgeHome,
        gate: &Arc<BridgeGate>,
        at: SocketAddr,
        left: &mut FormingTimeout,
    ) -> Result<Arc<Roster>, JoinError> {
        if self.room > 0 && self.rank != Some(0) {
            return self.find_group(home, gate, at, left);
        }
        let forming = &self.member.forming;
        loop {
            // Before it listens: applicants may come as soon as it does.
            forming.begin_to_lead(self.size, self.rank, self.handlers.kinds.clone())?;
            let is_here = match admission::open(gate, at) {
                Ok(address) => return self.lead(home, gate, address, left),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => true,
                Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => false,
                Err(error) => {
                    let what = format!("listening at {}", self.address);
                    return Err(JoinError::Resource { what, error });
                }
            };
            forming.begin_to_follow();
            let protection = match is_here {
                true => Protection::Clear,
                false => Protection::choose(self.address, at)
                    .map_err(|why| self.not_proved(self.address, why))?,
            };
            match self.follow(home, gate, (at, protection), left)? {
                LeaderFound::Formed(roster) => return Ok(roster),
                LeaderFound::Again(found) if left.is_over(Instant::now()) => {
                    return Err(self.incomplete(&found));
                }
                LeaderFound::Again(_) => std::thread::sleep(LOOK.min(left.slice())),
            }
            if self.handlers.is_interrupted() {
                return Err(JoinError::Interrupted);
            }
        }
    }

    fn lead(
        &self,
        home: &BridgeHome,
        gate: &BridgeGate,
        address: SocketAddr,
        left: &mut FormingTimeout,
    ) -> Result<Arc<Roster>, JoinError> {
        if self.room > 0 {
            home.issues_passes(self.rank.unwrap_or_default()).map_err(|error| {
                let what = "random bytes for the passes of further members".into();
                JoinError::Resource { what, error }
            })?;
        }
        gate.begins_to_lead();
        let machine = self.machine(home)?;
        let place = MemberPlace { machine, address, identity: home.own_identity(address) };
        let interrupted = || self.handlers.is_interrupted();
        let member = (&**self.member, Some(place));
        self.member.forming.lead(self.size, member, left, interrupted).map_err(|there| {
            match self.handlers.is_interrupted() {
                true => JoinError::Interrupted,
                false => self.incomplete(&format!("{there} of {} are there", self.size)),
            }
        })
    }

    /// Applies at the leader, and waits for its answer.
    fn follow(
        &self,
        home: &BridgeHome,
        gate: &Arc<BridgeGate>,
        (at, protection): (SocketAddr, Protection),
        left: &mut FormingTimeout,
    ) -> Result<LeaderFound, JoinError> {
        let again = |why: String| Ok(LeaderFound::Again(why));
        let address = self.address;
        let application = match Application::connect(at, &protection) {
            Ok(application) => application,
            Err(NoConnection::NotProved(error)) => {
                return Err(self.not_proved(address, error.to_string()));
            }
            Err(NoConnection::NoKey(error)) => return Err(no_key(error)),
            Err(error) => return again(format!("nobody takes in members at {address}: {error}")),
        };
        let resource =
            |error| JoinError::Resource { what: "asking to become a member".into(), error };
        let own = application.own().map_err(resource)?;
        // The leader knows an applicant that has lost its connection by its address.
        let listens = match gate.address().filter(|listens| listens.ip() == own.ip()) {
            Some(listens) => listens,
            None => admission::open(gate, SocketAddr::new(own.ip(), 0)).map_err(resource)?,
        };
        let request = self.request(home, listens.port())?;
        self.late_point(Point::LateMemberFinds);
        application.ask(&wire::pack(&request).map_err(resource)?);
        self.late_point(Point::LateMemberAsked);
        let not_all = || format!("not all of {} are there", self.size);
        let bytes = match self.answer(&application, left, not_all)? {
            ApplicationAnswer::Reply(bytes) => bytes,
            ApplicationAnswer::Again(why) => return again(why),
        };
        let leader = home.identity_of(application.wire());
        match self.late {
            None => {
                let (welcome, key) = read_welcome(&bytes).map_err(|why| self.refused(why))?;
                if let Some(own) = key {
                    home.has_passes(Passes { own, shown: Vec::new() });
                }
                self.welcomed(welcome, (at, leader))
            }
            Some(_) => {
                let welcome = wire::unpack(&bytes).map_err(|why| self.refused(why))?;
                self.admitted(home, welcome, (at, leader))
            }
        }
    }

    /// A point of the path of a late member.
    fn late_point(&self, at: Point) {
        if self.late.is_some() {
            point(at);
        }
    }

    /// Waits for the answer to an application.
    fn answer(
        &self,
        application: &Application,
        left: &mut FormingTimeout,
        found: impl Fn() -> String,
    ) -> Result<ApplicationAnswer, JoinError> {
        loop {
            match application.wait(left.rest()) {
                Some(ApplicationResult::Reply(bytes)) => {
                    return Ok(ApplicationAnswer::Reply(bytes));
                }
                Some(ApplicationResult::Parted(why)) => return Err(self.refused(why)),
                Some(ApplicationResult::Ended(why)) => {
                    let why = format!("the member that takes in the others is gone: {why}");
                    return Ok(ApplicationAnswer::Again(why));
                }
                None if self.handlers.is_interrupted() => return Err(JoinError::Interrupted),
                None if left.is_over(Instant::now()) => return Err(self.incomplete(&found())),
                None => {}
            }
        }
    }

    /// The request to become a member, which listens at this port.
    fn request(&self, home: &BridgeHome, port: u16) -> Result<FarRequest, JoinError> {
        let socket = self.member.socket.file_name().unwrap_or_default().to_string_lossy().into();
        let (version, group, kinds) = (VERSION, self.name.into(), self.handlers.kinds.clone());
        let (process, machine) = (self.member.own, self.machine(home)?);
        let rank = self.rank.map(|rank| rank as u32);
        Ok(match &self.late {
            None => {
                let (size, room) = (self.size as u32, self.room as u32);
                FarRequest::Apply {
                    version,
                    group,
                    size,
                    room,
                    rank,
                    kinds,
                    process,
                    socket,
                    machine,
                    port,
                }
            }
            Some(late) => {
                let invitation = late.invitation.clone();
                let (rank, total) = (rank.unwrap_or_default(), self.size as u32);
                FarRequest::ApplyLate {
                    version,
                    group,
                    rank,
                    total,
                    kinds,
                    process,
                    socket,
                    machine,
                    port,
                    invitation,
                }
            }
        })
    }

    /// The key of this machine.
    fn machine(&self, home: &BridgeHome) -> Result<MachineKey, JoinError> {
        home.machine(self.member.folder()).map_err(|error| JoinError::Resource {
            what: "random bytes for the key of this machine".into(),
            error,
        })
    }

    /// Finds the leader, which is another member, and joins its group.
    fn find_group(
        &self,
        home: &BridgeHome,
        gate: &Arc<BridgeGate>,
        at: SocketAddr,
        left: &mut FormingTimeout,
    ) -> Result<Arc<Roster>, JoinError> {
        let protection =
            protection_at(self.address, at).map_err(|why| self.not_proved(self.address, why))?;
        loop {
            match self.follow(home, gate, (at, protection.clone()), left)? {
                LeaderFound::Formed(roster) => return Ok(roster),
                LeaderFound::Again(found) if left.is_over(Instant::now()) => {
                    return Err(self.incomplete(&found));
                }
                LeaderFound::Again(_) => std::thread::sleep(LOOK.min(left.slice())),
            }
            if self.handlers.is_interrupted() {
                return Err(JoinError::Interrupted);
            }
        }
    }

    /// Checks and keeps the list of the members so far. `leader`: its address and its proved
    /// identity.
    fn admitted(
        &self,
        home: &BridgeHome,
        welcome: LateWelcome,
        (address, identity): (SocketAddr, Option<String>),
    ) -> Result<LeaderFound, JoinError> {
        let (group, mut members) = match welcome {
            LateWelcome::Refused(reason) => return Err(self.refused(reason)),
            LateWelcome::Admitted { group, members, key: own, passes: shown } => {
                home.has_passes(Passes { own, shown });
                (group, members)
            }
        };
        let batch = self.late.as_ref().map(|late| late.ranks.clone()).unwrap_or_default();
        let rank = self.rank.unwrap_or_default();
        let socket = self.member.socket.file_name().and_then(|name| name.to_str());
        let own = members
            .get(rank)
            .and_then(Option::as_ref)
            .is_some_and(|own| Some(&*own.socket) == socket && own.process.may_be(self.member.own));
        let is_sound = |(rank, one): (Rank, &Option<Listed>)| match one {
            None => !batch.contains(&rank),
            Some(one) => {
                one.place.is_some() && (!batch.contains(&rank) || names::is_member(&one.socket))
            }
        };
        if members.len() != self.size || !own || !members.iter().enumerate().all(is_sound) {
            return Err(self.refused("a list of members that cannot be true".into()));
        }
        for place in members.iter_mut().flatten().flat_map(|one| &mut one.place) {
            if place.address == address {
                place.identity.clone_from(&identity);
            }
        }
        let members = members.into_iter().enumerate().map(|(rank, one)| match one {
            Some(one) if batch.contains(&rank) => one,
            Some(one) => one.elsewhere(),
            None => Listed::absent(),
        });
        let members = members.collect();
        let roster = Roster { group, rank, members, grows: true, pids: OnceLock::new() };
        Ok(LeaderFound::Formed(self.member.forming.formed(roster, self.member)))
    }

    /// Checks and keeps the list of members. `leader`: its address and its proved identity.
    fn welcomed(
        &self,
        welcome: Welcome,
        (address, identity): (SocketAddr, Option<String>),
    ) -> Result<LeaderFound, JoinError> {
        let (group, rank, mut members) = match welcome {
            Welcome::Refused(reason) => return Err(self.refused(reason)),
            Welcome::Lacks(Lacks { lack, .. }) => {
                let why = format!("the member that takes in the others lacks {lack} for this one");
                return Ok(LeaderFound::Again(why));
            }
            Welcome::Formed { group, rank, members } => (group, rank as usize, members),
        };
        let socket = self.member.socket.file_name().and_then(|name| name.to_str());
        let own = members
            .get(rank)
            .is_some_and(|own| Some(&*own.socket) == socket && own.process.may_be(self.member.own));
        let asked = self.rank.is_none_or(|asked| asked == rank);
        let plain = members.iter().all(|one| names::is_member(&one.socket) && one.place.is_some());
        if members.len() != self.size || !own || !asked || !plain {
            return Err(self.refused("a list of members that cannot be true".into()));
        }
        // Of the leader this member knows by itself who it is.
        for place in members.iter_mut().flat_map(|one| &mut one.place) {
            if place.address == address {
                place.identity.clone_from(&identity);
            }
        }
        let roster = Roster { group, rank, members, grows: false, pids: OnceLock::new() };
        Ok(LeaderFound::Formed(self.member.forming.formed(roster, self.member)))
    }

    /// Opens the pairs with members on other hosts.
    fn cross(
        &self,
        home: &Arc<BridgeHome>,
        gate: &Arc<BridgeGate>,
        (roster, at): (&Arc<Roster>, SocketAddr),
        left: &mut FormingTimeout,
    ) -> Result<(), JoinError> {
        let pairs: Pairs = roster
            .members
            .iter()
            .enumerate()
            .map(|(rank, listed)| {
                let place = roster.place_elsewhere(rank).cloned();
                if place.is_none() && listed.place.is_some() {
                    return None;
                }
                // A late member connects to those that were there before it.
                let came_before =
                    self.late.as_ref().is_some_and(|late| !late.ranks.contains(&rank));
                let side = match place.is_some() && (came_before || roster.rank < rank) {
                    true => LinkSide::Client,
                    false => LinkSide::Server,
                };
                Some(FarPair::new(rank, place, side, home))
            })
            .collect();
        gate.formed(roster, &pairs);
        self.late_point(Point::LateMemberAdmitted);
        if pairs.iter().all(Option::is_none) {
            gate.shut();
            return Ok(());
        }
        let relists = |left: &mut _| self.relist(home, gate, (at, &pairs), left);
        let started = self.open_all(roster, &pairs, left, relists).and_then(|()| {
            Bridge::start(home, gate, pairs.clone()).map_err(|error| JoinError::Resource {
                what: "a kernel thread for members on other hosts".into(),
                error,
            })
        });
        let bridge =
            started.inspect_err(|_| pairs.iter().flatten().for_each(|pair| pair.hang_up()))?;
        let _ = self.member.bridge.set(bridge);
        Ok(())
    }

    fn open_all(
        &self,
        roster: &Roster,
        pairs: &Pairs,
        left: &mut FormingTimeout,
        relists: impl Fn(&mut FormingTimeout) -> Result<(), JoinError>,
    ) -> Result<(), JoinError> {
        for pair in pairs.iter().flatten().filter(|pair| !pair.is_dormant()) {
            loop {
                let opened = match pair.side {
                    LinkSide::Client => opening::open(pair, roster, left.slice()),
                    LinkSide::Server => opening::await_client(pair, left.slice()),
                };
                match opened {
                    Ok(true) => {
                        self.late_point(Point::LateMemberOpened);
                        break;
                    }
                    // The leader may expel a member that does not answer.
                    Ok(false) if self.late.is_some() && pair.side == LinkSide::Client => {
                        relists(left)?;
                    }
                    Ok(false) => {}
                    Err(NotOpened::NoKey(error)) => return Err(no_key(error)),
                    Err(NotOpened::Refused(why)) => {
                        let rank = pair.rank;
                        let why = format!("no pair with member {rank} could be opened: {why}");
                        return Err(self.not_proved(&shown_address(pair), why));
                    }
                }
                if self.handlers.is_interrupted() {
                    return Err(JoinError::Interrupted);
                }
                if left.is_over_after(Instant::now(), opening::ATTEMPT) {
                    let (rank, address) = (pair.rank, shown_address(pair));
                    return Err(self.incomplete(&format!(
                        "there is no connection with member {rank} at {address}"
                    )));
                }
            }
        }
        Ok(())
    }

    /// Asks the leader again for the members, and counts those as ended that it lists no more.
    fn relist(
        &self,
        home: &BridgeHome,
        gate: &BridgeGate,
        (at, pairs): (SocketAddr, &Pairs),
        left: &mut FormingTimeout,
    ) -> Result<(), JoinError> {
        let resource = |error| JoinError::Resource { what: "asking for the members".into(), error };
        let protection =
            protection_at(self.address, at).map_err(|why| self.not_proved(self.address, why))?;
        // Without a connection or an answer, the next attempt is as good.
        let Ok(application) = Application::connect(at, &protection) else { return Ok(()) };
        let Some(listens) = gate.address() else { return Ok(()) };
        let request = self.request(home, listens.port())?;
        application.ask(&wire::pack(&request).map_err(resource)?);
        let none = || "the member that takes in the others does not answer".to_string();
        let bytes = match self.answer(&application, left, none)? {
            ApplicationAnswer::Reply(bytes) => bytes,
            ApplicationAnswer::Again(_) => return Ok(()),
        };
        match wire::unpack(&bytes).map_err(|why| self.refused(why))? {
            LateWelcome::Refused(why) => Err(self.refused(why)),
            LateWelcome::Admitted { members, .. } => {
                let is_gone = |pair: &&Arc<FarPair>| {
                    pair.side == LinkSide::Client
                        && members.get(pair.rank).is_some_and(Option::is_none)
                };
                pairs.iter().flatten().filter(is_gone).for_each(|pair| pair.over(PairLost::Gone));
                Ok(())
            }
        }
    }

    fn incomplete(&self, found: &str) -> JoinError {
        let after = self.within;
        JoinError::Incomplete { name: self.name.into(), after, found: found.into() }
    }

    fn refused(&self, reason: String) -> JoinError {
        JoinError::Refused { name: self.name.into(), reason }
    }

    fn not_proved(&self, address: &str, why: String) -> JoinError {
        JoinError::NotProved { address: address.into(), why }
    }
}

fn no_key(error: io::Error) -> JoinError {
    JoinError::Resource { what: "random bytes for the key of a session".into(), error }
}

/// The address of a pair, for reports.
fn shown_address(pair: &FarPair) -> String {
    pair.address().map_or_else(|| "an unknown address".into(), |address| address.to_string())
}
