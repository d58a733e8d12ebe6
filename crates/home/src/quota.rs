//! What guests may hold in the process of their homes.
//!
//! A guest connects before the home's policy is asked, and brings memory and doorbells when it
//! invokes. All of that takes descriptors and addresses of the home's process. So one ledger counts
//! what the guests of all homes in this process hold, by the rule of a server
//! ([`upcall_sched::quota`]): no process, and no user but the home's own and root, holds more
//! than is left for others. The total for all guests is a server's default. There is no other
//! ceiling for one process: it may have any number of handles as long as others can have some.
//!
//! The places of an object are divided among users by the same rule
//! ([`HomeObject`](crate::object::HomeObject)).

use crate::lane;
use std::sync::{Arc, LazyLock};
use upcall_os::socket::Peer;
use upcall_sched::quota::{Holding, Over, QuotaAccount, QuotaKind, QuotaLedger, Quotas};

/// Number of descriptors that a connection takes: its own, that of the guest's process, and the one
/// by which the clerk learns of that process's end.
const OF_CONNECTION: usize = 3;

/// Number of descriptors that a lane takes: its memory, the doorbells of both sides, and the
/// guest's station.
const OF_LANE: usize = 4;

/// Number of mappings that a lane takes: itself, and the guest's station.
const MAPPINGS_OF_LANE: usize = 2;

static LEDGER: LazyLock<Arc<QuotaLedger>> = LazyLock::new(|| {
    let quotas = Quotas::default();
    QuotaLedger::new(Quotas { client: quotas.all, ..quotas }, None)
});

/// The account of a guest's process, and what its connection holds.
#[derive(Debug)]
pub(crate) struct PeerQuota {
    account: Arc<QuotaAccount>,
    _connection: Holding,
}

/// The account of a guest's link from another host, or from this one by TCP.
pub(crate) fn of_link(peer: &Peer) -> Arc<QuotaAccount> {
    LEDGER.account(None, peer.user())
}

/// What a lane holds, until this is dropped.
#[derive(Debug)]
pub(crate) struct OfLane {
    _held: [Holding; 4],
}

impl PeerQuota {
    /// Counts the connection of a guest.
    pub(crate) fn of_connection(peer: &Peer) -> Result<Self, Over> {
        let account = LEDGER.account(peer.process(), Some(peer.uid));
        let connection = account.hold(QuotaKind::Descriptors, OF_CONNECTION)?;
        Ok(Self { account, _connection: connection })
    }

    /// Counts a lane.
    pub(crate) fn of_lane(&self) -> Result<OfLane, Over> {
        let held = [
            self.account.hold(QuotaKind::Descriptors, OF_LANE)?,
            self.account.hold(QuotaKind::Mappings, MAPPINGS_OF_LANE)?,
            self.account.hold(QuotaKind::Bytes, lane::ALL)?,
            self.account.hold(QuotaKind::Unfilled, lane::ALL - lane::LONGEST)?,
        ];
        Ok(OfLane { _held: held })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use upcall_os::socket::own_user;

    #[test]
    fn lanes_of_one_guest_have_a_ceiling() {
        // A peer without a process number counts as a process of its own.
        let peer = Peer { gid: 0, ..Peer::of_user(own_user()) };
        let quota = PeerQuota::of_connection(&peer).unwrap();
        let lanes: Vec<OfLane> = std::iter::from_fn(|| quota.of_lane().ok()).collect();
        let all = Quotas::default().all;
        let most = (all.descriptors / OF_LANE).min(all.unfilled / (lane::ALL - lane::LONGEST)) / 2;
        assert!(
            (1..=most).contains(&lanes.len()),
            "{} lanes, at most {most} were permitted",
            lanes.len()
        );
        let why = quota.of_lane().unwrap_err().to_string();
        assert!(why.contains("more than would be left"), "{why}");
        // A lane that is refused counts nothing.
        for _ in 0..1000 {
            quota.of_lane().unwrap_err();
        }
        let other = PeerQuota::of_connection(&peer).unwrap();
        other.of_lane().unwrap();
        drop(lanes);
        quota.of_lane().unwrap();
    }
}
