//! What this process knows of its place among hosts: its group's terms, its identity, and how its
//! bridge is woken.

use super::losses::Losses;
use super::pass::{PassIssuer, Passes};
use super::room::WINDOW;
use crate::Rank;
use crate::member::Member;
use crate::place::{MachineKey, MemberPlace};
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use upcall_net::frame::MOST_BODY;
use upcall_net::identity::{Fingerprint, HostStore, IdentityError};
use upcall_net::{LOST_AFTER, Protection, ProvedClient, Wire, WireTerms, own_store};
use upcall_os::atomic::{AtomicBool, Ordering};
use upcall_sched::post::Post;

/// Default time for which a pair goes on after a cut.
const PATIENCE: Duration = Duration::from_secs(30);

/// Maximum time for which a pair goes on after a cut.
pub(super) const LONGEST_PATIENCE: Duration = Duration::from_secs(30 * 24 * 3600);

/// Time after which memory is tried for again.
pub(super) const AGAIN: Duration = Duration::from_millis(10);

/// Maximum length of a message, in bytes.
pub(super) const LONGEST: usize = MOST_BODY - 8;

/// How a group crosses to other hosts.
#[derive(Clone, Debug)]
pub(crate) struct AcrossHosts {
    /// Time for which a pair goes on after a cut.
    pub(crate) patience: Duration,
    /// Time after which a host that gives no sign of life is cut off.
    pub(crate) lost_after: Duration,
    /// For tests: members with different numbers behave as if they were on different hosts.
    pub(crate) apart: u64,
}

impl Default for AcrossHosts {
    fn default() -> Self {
        Self { patience: PATIENCE, lost_after: LOST_AFTER, apart: 0 }
    }
}

/// Maximum length of a message to another host, for members that may buffer `share` bytes each.
pub(crate) fn most(share: u64) -> usize {
    usize::try_from(share).unwrap_or(LONGEST).max(WINDOW as usize).min(LONGEST)
}

/// What a group agrees on about members on other hosts.
#[derive(Clone, Debug)]
pub(super) struct BridgeTerms {
    /// The name of the group.
    pub(super) name: String,
    /// Time for which a pair goes on after a cut.
    pub(super) patience: Duration,
    /// Time after which a host that gives no sign of life is cut off.
    pub(super) lost_after: Duration,
    /// Maximum length of a message, in bytes.
    pub(super) most: usize,
    /// Number of members that may join after the group has formed.
    pub(super) room: usize,
    /// The kinds of messages, each with its signature.
    pub(super) kinds: Vec<(String, String)>,
    /// Number of the batch of late members, which counts as a machine of its own. For tests; see
    /// [`MachineKey`](crate::place::MachineKey).
    pub(super) apart: u64,
}

/// See the module.
pub(super) struct BridgeHome {
    pub(super) terms: BridgeTerms,
    pub(super) member: Weak<Member>,
    /// Where the bridge's thread waits.
    post: Post,
    news: AtomicBool,
    /// The members that this one has lost.
    pub(super) losses: Losses,
    /// The identity of this host, unless all members are on this machine.
    store: Option<Arc<HostStore>>,
    /// The key of this machine, once it is known.
    machine: OnceLock<MachineKey>,
    /// Makes the passes, in the leader of a group that grows.
    issuer: OnceLock<PassIssuer>,
    /// What the leader has given to this member, in a group that grows.
    passes: OnceLock<Passes>,
}

impl BridgeHome {
    pub(super) fn new(
        member: &Arc<Member>,
        terms: BridgeTerms,
        post: Post,
        store: Option<Arc<HostStore>>,
    ) -> Arc<Self> {
        let (member, news) = (Arc::downgrade(member), AtomicBool::new(false));
        let (machine, issuer, passes) = (OnceLock::new(), OnceLock::new(), OnceLock::new());
        let losses = Losses::default();
        Arc::new(Self { terms, member, post, news, losses, store, machine, issuer, passes })
    }

    /// The key of this machine, by this member's folder. It stays the same.
    ///
    /// # Errors
    /// See [`MachineKey::of`].
    pub(super) fn machine(&self, folder: &Path) -> io::Result<MachineKey> {
        match self.machine.get() {
            Some(key) => Ok(*key),
            None => {
                let key = MachineKey::of(folder, self.terms.apart)?;
                Ok(*self.machine.get_or_init(|| key))
            }
        }
    }

    /// This member makes the passes from now on.
    ///
    /// # Errors
    /// The kernel gives no random bytes.
    pub(super) fn issues_passes(&self, own: Rank) -> io::Result<()> {
        let issuer = PassIssuer::new()?;
        self.has_passes(Passes { own: issuer.key_of(own), shown: Vec::new() });
        let _ = self.issuer.set(issuer);
        Ok(())
    }

    /// What makes the passes, in the leader of a group that grows.
    pub(super) fn issuer(&self) -> Option<&PassIssuer> {
        self.issuer.get()
    }

    /// Keeps what the leader has given to this member.
    pub(super) fn has_passes(&self, passes: Passes) {
        let _ = self.passes.set(passes);
    }

    /// What the leader has given to this member, in a group that grows.
    pub(super) fn passes(&self) -> Option<&Passes> {
        self.passes.get()
    }

    /// The identity of this host, unless all members are on this machine.
    pub(super) fn store(&self) -> Option<&Arc<HostStore>> {
        self.store.as_ref()
    }

    /// The identity of the host at the other end of a connection, in hexadecimal digits.
    ///
    /// A connection in the clear is within this machine, so it is this host's.
    pub(super) fn identity_of(&self, wire: &Wire) -> Option<String> {
        let proved = wire.identity().map(|identity| identity.hex());
        proved.or_else(|| self.own_identity(wire.own().ok()?))
    }

    /// The identity that a client has proved.
    pub(super) fn proved(
        &self,
        client: &ProvedClient,
    ) -> Result<Option<Fingerprint>, IdentityError> {
        let Some(store) = &self.store else { return Ok(None) };
        let credentials = store.credentials()?;
        Ok(match client {
            ProvedClient::Host(name) => {
                credentials.trust().host(name).map(|host| host.certificate.fingerprint())
            }
            _ => Some(credentials.fingerprint()),
        })
    }

    /// How the host at a place is proved. In the clear, only if it is this one.
    pub(super) fn protection(&self, place: &MemberPlace) -> Result<Protection, String> {
        let Some(store) = &self.store else { return Ok(Protection::Clear) };
        let Some(identity) = place.identity() else { return Ok(Protection::Clear) };
        let credentials = store.credentials().map_err(|error| error.to_string())?;
        if identity == credentials.fingerprint() {
            return Ok(Protection::Clear);
        }
        let host = credentials.trust().host_of(identity).map(|host| host.name.clone());
        let host = host.ok_or_else(|| {
            format!("its host, {identity}, is not trusted here: see `upcall host trust --help`")
        })?;
        Ok(Protection::Host(store.clone(), credentials, host))
    }

    /// The identity of this host, for members that reach it at `address`.
    pub(super) fn own_identity(&self, address: SocketAddr) -> Option<String> {
        if address.ip().to_canonical().is_loopback() {
            return None;
        }
        let credentials = self.store.as_ref()?.credentials().ok()?;
        Some(credentials.fingerprint().hex())
    }

    /// Time for which a pair goes on after a cut.
    pub(super) fn patience(&self) -> Duration {
        self.terms.patience
    }

    /// How a connection is kept.
    pub(super) fn wire_terms(&self) -> WireTerms {
        WireTerms { lost_after: self.terms.lost_after, host: None }
    }

    pub(super) fn post(&self) -> &Post {
        &self.post
    }

    /// Wakes the bridge's thread.
    pub(super) fn rouse(&self) {
        self.news.store(true, Ordering::Release);
        self.post.rouse();
    }

    /// Returns `true` if the thread was woken since the last [`take_news`](Self::take_news).
    pub(super) fn has_news(&self) -> bool {
        self.news.load(Ordering::Acquire)
    }

    pub(super) fn take_news(&self) {
        self.news.store(false, Ordering::Release);
    }
}

/// The identity of this host, which members at `at` need unless all are on this machine.
///
/// # Errors
/// There is none, and the address is not one of this machine only.
pub(super) fn identity(at: SocketAddr) -> Result<Option<Arc<HostStore>>, String> {
    let found = own_store().and_then(|store| store.credentials().map(|_| store.clone()));
    match found {
        Ok(store) => Ok(Some(store)),
        Err(_) if at.ip().to_canonical().is_loopback() => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}
