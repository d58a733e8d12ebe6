//! How the members of a group over several hosts find each other.
//!
//! All give the same address. The member that can listen there leads; the others connect to it and
//! apply, as they do on one host ([`crate::forming`]). Each member also listens by itself, so that
//! those of other hosts can open a pair with it: of two members the one with the lower rank
//! connects. A member is one only when all its pairs are open.

use super::applying::{Application, ApplicationResult};
use super::gate::BridgeGate;
use super::home::{AcrossHosts, BridgeHome, BridgeTerms, LONGEST_PATIENCE, identity};
use super::opening::{self, NotOpened};
use super::pair::{FarPair, Pairs};
use super::requests::FarRequest;
use super::thread::Bridge;
use crate::Rank;
use crate::error::JoinError;
use crate::forming::FormingTimeout;
use crate::kinds::Handlers;
use crate::member::{Member, Roster};
use crate::place::{MachineKey, MemberPlace};
use crate::wire::{self, Lacks, VERSION, Welcome};
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use upcall_directory::names;
use upcall_net::link::LinkSide;
use upcall_net::{NoConnection, Protection};
use upcall_sched::post::Post;

/// Minimum time for which a pair goes on after a cut. Without any, its session would end with its
/// connection.
const SHORTEST_PATIENCE: Duration = Duration::from_millis(1);

/// Time between two looks for a leader.
const LOOK: Duration = Duration::from_millis(20);

/// A process that meets the other members.
pub(crate) struct GroupMeeting<'a> {
    pub(crate) name: &'a str,
    pub(crate) size: usize,
    pub(crate) rank: Option<Rank>,
    pub(crate) crossing: &'a AcrossHosts,
    /// Time for which it waits for the others.
    pub(crate) within: Duration,
    /// Maximum length of a message, in bytes.
    pub(crate) most: usize,
    pub(crate) member: &'a Arc<Member>,
    pub(crate) handlers: &'a Handlers,
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
        let address = &self.crossing.address;
        let at = self.find_address(left)?;
        let store = identity(at).map_err(|why| self.not_proved(address, why))?;
        let post = Post::take().map_err(|error| JoinError::Resource {
            what: "a place for the bridge to wait for messages".into(),
            error,
        })?;
        let terms = BridgeTerms {
            name: self.name.into(),
            patience: self.crossing.patience.clamp(SHORTEST_PATIENCE, LONGEST_PATIENCE),
            lost_after: self.crossing.lost_after,
            most: self.most,
            apart: self.crossing.apart,
        };
        let home = BridgeHome::new(self.member, terms, post, store);
        let gate = BridgeGate::new(&home);
        let formed = self.find_others(&home, &gate, at, left).and_then(|roster| {
            self.cross(&home, &gate, &roster, left)?;
            Ok(roster)
        });
        formed.inspect_err(|_| gate.shut())
    }

    /// Finds the address at which the members meet. A name may become known only when its host is
    /// there, as in clusters.
    fn find_address(&self, left: &mut FormingTimeout) -> Result<SocketAddr, JoinError> {
        let address = &self.crossing.address;
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
        let forming = &self.member.forming;
        loop {
            // Before it listens: applicants may come as soon as it does.
            forming.begin_to_lead(self.size, self.rank, self.handlers.kinds.clone())?;
            let is_here = match gate.open(at) {
                Ok(address) => return self.lead(home, address, left),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => true,
                Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => false,
                Err(error) => {
                    let what = format!("listening at {}", self.crossing.address);
                    return Err(JoinError::Resource { what, error });
                }
            };
            forming.begin_to_follow();
            let protection = match is_here {
                true => Protection::Clear,
                false => Protection::choose(&self.crossing.address, at)
                    .map_err(|why| self.not_proved(&self.crossing.address, why))?,
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
        address: SocketAddr,
        left: &mut FormingTimeout,
    ) -> Result<Arc<Roster>, JoinError> {
        let machine = self.machine()?;
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
        let address = &self.crossing.address;
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
        let listens = gate.open(SocketAddr::new(own.ip(), 0)).map_err(resource)?;
        application.ask(&wire::pack(&self.request(listens.port())?).map_err(resource)?);
        loop {
            match application.wait(left.slice()) {
                Some(ApplicationResult::Reply(bytes)) => {
                    let welcome = wire::unpack(&bytes).map_err(|why| self.refused(why))?;
                    let leader = home.identity_of(application.wire());
                    return self.welcomed(welcome, (at, leader));
                }
                Some(ApplicationResult::Parted(why)) => return Err(self.refused(why)),
                Some(ApplicationResult::Ended(why)) => {
                    return again(format!("the member that takes in the others is gone: {why}"));
                }
                None if self.handlers.is_interrupted() => return Err(JoinError::Interrupted),
                None if left.is_over(Instant::now()) => {
                    return Err(self.incomplete(&format!("not all of {} are there", self.size)));
                }
                None => {}
            }
        }
    }

    /// The request to become a member, which listens at this port.
    fn request(&self, port: u16) -> Result<FarRequest, JoinError> {
        let socket = self.member.socket.file_name().unwrap_or_default().to_string_lossy();
        Ok(FarRequest::Apply {
            version: VERSION,
            group: self.name.into(),
            size: self.size as u32,
            rank: self.rank.map(|rank| rank as u32),
            kinds: self.handlers.kinds.clone(),
            process: self.member.own,
            socket: socket.into(),
            machine: self.machine()?,
            port,
        })
    }

    /// The key of this machine.
    fn machine(&self) -> Result<MachineKey, JoinError> {
        MachineKey::of(self.member.folder(), self.crossing.apart).map_err(|error| {
            JoinError::Resource { what: "random bytes for the key of this machine".into(), error }
        })
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
        let roster = Roster { group, rank, members, pids: OnceLock::new() };
        Ok(LeaderFound::Formed(self.member.forming.formed(roster, self.member)))
    }

    /// Opens the pairs with members on other hosts.
    fn cross(
        &self,
        home: &Arc<BridgeHome>,
        gate: &Arc<BridgeGate>,
        roster: &Arc<Roster>,
        left: &mut FormingTimeout,
    ) -> Result<(), JoinError> {
        let pairs: Pairs = roster
            .members
            .iter()
            .enumerate()
            .map(|(rank, _)| {
                let place = roster.place_elsewhere(rank)?.clone();
                let side = if roster.rank < rank { LinkSide::Client } else { LinkSide::Server };
                Some(FarPair::new(rank, place, side, home))
            })
            .collect();
        gate.formed(roster, &pairs);
        if pairs.iter().all(Option::is_none) {
            gate.shut();
            return Ok(());
        }
        let started = self.open_all(roster, &pairs, left).and_then(|()| {
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
    ) -> Result<(), JoinError> {
        for pair in pairs.iter().flatten() {
            loop {
                let opened = match pair.side {
                    LinkSide::Client => opening::open(pair, roster, left.slice()),
                    LinkSide::Server => opening::await_client(pair, left.slice()),
                };
                match opened {
                    Ok(true) => break,
                    Ok(false) => {}
                    Err(NotOpened::NoKey(error)) => return Err(no_key(error)),
                    Err(NotOpened::Refused(why)) => {
                        let (address, rank) = (pair.place.address, pair.rank);
                        let why = format!("no pair with member {rank} could be opened: {why}");
                        return Err(self.not_proved(&address.to_string(), why));
                    }
                }
                if self.handlers.is_interrupted() {
                    return Err(JoinError::Interrupted);
                }
                if left.is_over(Instant::now()) {
                    let (rank, address) = (pair.rank, pair.place.address);
                    return Err(self.incomplete(&format!(
                        "there is no connection with member {rank} at {address}"
                    )));
                }
            }
        }
        Ok(())
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
