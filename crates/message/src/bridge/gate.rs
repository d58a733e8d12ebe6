//! What a member keeps of those that connect to it: admitted connections, pairs that they open, and
//! late members. [`admission`](super::admission) decides who is admitted.

use super::admitted::{AdmittedWire, AdmittedWires};
use super::home::BridgeHome;
use super::late::LateMembers;
use super::pair::{FarPair, Pairs};
use super::pass::Pass;
use super::requests::{PairReply, answer_of};
use crate::Rank;
use crate::error::ExpectError;
use crate::invitation::{Invitation, InvitedHost};
use crate::member::Roster;
use crate::place::{MachineKey, MemberPlace};
use crate::wire::{GroupId, pack};
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use upcall_net::{LinkTerms, NetworkListener, Wire};
use upcall_os::atomic::{AtomicBool, Ordering};
use upcall_os::lock::KernelMutex;

/// Number of bytes that a request may have beside the kinds of messages, which are those of this
/// member. The reason for refusing other kinds can be given up to this length.
const LEAST_ASKED: usize = 64 << 10;

/// See the module.
pub(crate) struct BridgeGate {
    pub(super) home: Arc<BridgeHome>,
    state: KernelMutex<GateState>,
    pub(super) wires: Arc<AdmittedWires>,
    /// Maximum length of a request, in bytes.
    pub(super) most_asked: usize,
    /// Set in the member that took in the first ones.
    leads: AtomicBool,
    /// Set once this member leaves.
    leaves: AtomicBool,
    pub(super) late: KernelMutex<LateMembers>,
}

#[derive(Default)]
struct GateState {
    listener: Option<NetworkListener>,
    /// Pairs that were opened before this member knew the others.
    early: Vec<EarlyPair>,
    formed: Option<(Arc<Roster>, Pairs)>,
    is_shut: bool,
}

/// A request to open a pair.
pub(super) struct EarlyPair {
    pub(super) wire: Arc<Wire>,
    pub(super) slot: PairSlot,
    pub(super) call: u32,
    pub(super) group: GroupId,
    pub(super) from: u32,
    pub(super) to: u32,
    pub(super) attempt: u32,
    pub(super) port: u16,
    pub(super) most: u64,
    pub(super) pass: Option<Pass>,
}

/// Where the reader of a connection finds its pair, once that is known. `None` within: the
/// connection has ended before.
pub(super) type PairSlot = Arc<OnceLock<Option<Arc<FarPair>>>>;

impl BridgeGate {
    pub(super) fn new(home: &Arc<BridgeHome>) -> Arc<Self> {
        let kinds = pack(&home.terms.kinds).map_or(0, |kinds| kinds.len());
        Arc::new(Self {
            home: home.clone(),
            state: KernelMutex::default(),
            wires: Arc::default(),
            most_asked: kinds + LEAST_ASKED,
            leads: AtomicBool::new(false),
            leaves: AtomicBool::new(false),
            late: KernelMutex::default(),
        })
    }

    /// Terms of the links of admitted connections.
    pub(super) fn link_terms(&self) -> LinkTerms {
        LinkTerms { window: u16::MAX, patience: self.home.terms.patience }
    }

    /// This listener admits members from now on.
    pub(super) fn listens(&self, listener: NetworkListener) {
        self.state.lock().listener = Some(listener);
    }

    /// The address at which it listens.
    pub(super) fn address(&self) -> Option<SocketAddr> {
        self.state.lock().listener.as_ref().map(NetworkListener::address)
    }

    /// Admits no further connection.
    pub(super) fn shut(&self) {
        let mut state = self.state.lock();
        state.is_shut = true;
        let (listener, early) = (state.listener.take(), std::mem::take(&mut state.early));
        let formed = state.formed.take();
        drop(state);
        drop((listener, formed, early));
        self.wires.end_all();
    }

    /// Keeps a connection in view until the gate is shut.
    pub(super) fn admits(&self, wire: &Arc<Wire>, admitted: &Arc<AdmittedWire>) {
        self.wires.add(wire, admitted);
        if self.state.lock().is_shut {
            wire.hang_up();
        }
    }

    /// The others are known from now on.
    pub(super) fn formed(&self, roster: &Arc<Roster>, pairs: &Pairs) {
        let mut state = self.state.lock();
        state.formed = Some((roster.clone(), pairs.clone()));
        let early = std::mem::take(&mut state.early);
        drop(state);
        early.into_iter().for_each(|early| self.open_pair(early, roster, pairs));
    }

    /// This member takes in the others.
    pub(super) fn begins_to_lead(&self) {
        self.leads.store(true, Ordering::Release);
    }

    pub(super) fn leads(&self) -> bool {
        self.leads.load(Ordering::Acquire)
    }

    /// This member leaves: for a client whose pair is refused from now on it has ended.
    pub(super) fn leaves(&self) {
        self.leaves.store(true, Ordering::Release);
    }

    /// The members and their pairs, once the group has formed.
    pub(super) fn group(&self) -> Option<(Arc<Roster>, Pairs)> {
        self.state.lock().formed.clone()
    }

    /// Expects the members with these ranks from now on, from this host.
    pub(super) fn expect(
        &self,
        ranks: Range<Rank>,
        from: InvitedHost,
    ) -> Result<Invitation, ExpectError> {
        let (roster, pairs) = self.group().ok_or(ExpectError::NoRoom)?;
        if !roster.grows {
            return Err(ExpectError::NoRoom);
        }
        let issuer = self.home.issuer().filter(|_| self.leads()).ok_or(ExpectError::NotLeader)?;
        self.late.lock().expect((ranks, from), &pairs, issuer)
    }

    /// Expects them no more. Those that have applied are refused.
    pub(super) fn expect_no_more(&self, ranks: &Range<Rank>) {
        let applicants = self.late.lock().expect_no_more(ranks);
        applicants
            .into_iter()
            .for_each(|applicant| applicant.refuse("it is not expected any more"));
    }

    /// Ends the pairs with these members, and their applications.
    pub(super) fn expel(&self, ranks: &Range<Rank>) {
        let Some((_, pairs)) = self.group() else { return };
        // First: an applicant that is admitted at this time is listed nowhere, and opens no pair.
        pairs
            .iter()
            .flatten()
            .filter(|pair| ranks.contains(&pair.rank))
            .for_each(|pair| pair.expel());
        let applicants = self.late.lock().expel(ranks);
        applicants.into_iter().for_each(|applicant| applicant.refuse("it was expelled"));
    }

    pub(super) fn opens(&self, early: EarlyPair) {
        let mut state = self.state.lock();
        match &state.formed {
            Some((roster, pairs)) => {
                let (roster, pairs) = (roster.clone(), pairs.clone());
                drop(state);
                self.open_pair(early, &roster, &pairs);
            }
            None => {
                // Those whose connection has ended make room: their clients try again.
                state.early.retain(|early| early.slot.get().is_none());
                match state.early.len() < crate::MOST_MEMBERS && !state.is_shut {
                    true => state.early.push(early),
                    false => early.wire.hang_up(),
                }
            }
        }
    }

    /// Number of pairs that were opened before this member knew the others.
    #[cfg(test)]
    pub(super) fn early(&self) -> usize {
        self.state.lock().early.len()
    }

    fn open_pair(&self, early: EarlyPair, roster: &Roster, pairs: &Pairs) {
        let EarlyPair { wire, slot, call, group, from, to, attempt, port, most, pass } = early;
        let identity = self.home.identity_of(&wire);
        let checked = check_open(identity.as_deref(), (group, from, to), roster, pairs)
            .and_then(|pair| self.check_pass(&pair, pass.as_ref()).map(|()| pair));
        let opened = checked.and_then(|pair| {
            let machine = MachineKey::unknown();
            let address = SocketAddr::new(wire.peer().ip(), port);
            let place = MemberPlace { machine, address, identity };
            let yes = answer_of(call, &PairReply::Yes { most: self.home.terms.most as u64 });
            let yes = yes.ok_or("no answer can be written")?;
            pair.opened(&wire, attempt, (yes, place), || {
                pair.takes(most);
                slot.set(Some(pair.clone())).is_ok()
            })
        });
        if let Err(why) = opened {
            let reply = match self.leaves.load(Ordering::Acquire) {
                true => PairReply::Left,
                false => PairReply::No(why),
            };
            if let Some(no) = answer_of(call, &reply) {
                drop(wire.try_send(0, no));
            }
            wire.hang_up();
        }
    }

    /// Checks that the leader has admitted a late member.
    fn check_pass(&self, pair: &FarPair, pass: Option<&Pass>) -> Result<(), String> {
        let rank = pair.rank;
        let has_pass =
            || self.home.passes().zip(pass).is_some_and(|(own, pass)| own.admit(rank, pass));
        match !pair.joins_late || has_pass() {
            true => Ok(()),
            false => Err(format!("the first member has admitted no member {rank} from there")),
        }
    }
}

/// Finds the pair that a connection may open.
fn check_open(
    identity: Option<&str>,
    (group, from, to): (GroupId, u32, u32),
    roster: &Roster,
    pairs: &Pairs,
) -> Result<Arc<FarPair>, String> {
    if group != roster.group {
        return Err("the pair is of another group".into());
    }
    if to as usize != roster.rank {
        return Err(format!("the pair is for member {to}, and this is member {}", roster.rank));
    }
    let pair = pairs.get(from as usize).and_then(Option::as_ref);
    let pair = pair.ok_or_else(|| format!("there is no member {from} on another host"))?;
    if !pair.is_dormant() && !pair.is_of(identity) {
        return Err(format!("member {from} is on another host than the one that was proved"));
    }
    Ok(pair.clone())
}
