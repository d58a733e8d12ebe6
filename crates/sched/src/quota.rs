//! Accounts of what peers hold in a process, and the limits on it.
//!
//! A client brings the memory that its calls travel in, but the server maps it, keeps a descriptor
//! for each of its doorbells, and holds its objects and the results that it has not fetched. The
//! same goes for a guest and the home of an object. Each of these has a ceiling for one client and
//! one for all clients together; and a client that holds as much as is left for others gets no more
//! (dynamic thresholds: Choudhury and Hahne, 1998). A client that takes all it can get leaves half,
//! and *n* such clients leave one part in *n* + 1: no client can keep others from binding. Calls
//! under way follow the same rule, in `crates/sched/src/idle/stacks.rs`.
//!
//! A client is a process here, however many channels and bindings it has, in any PID namespace.
//! Where the kernel cannot identify the process, each connection is a client of its own.
//!
//! A user can start many processes. So the rule holds once more for the user that they run as: all
//! clients of one user together hold no more than is left for others. Two users are exempt, because
//! they can end the server anyway: the server's own user, and root. Clients from the network
//! without a known user are exempt too.
//!
//! Source: LRPC, sections 3.1 and 3.2, bounds A-stacks by the interface and E-stacks by their
//! supply; the rest is ours.

use crate::aside::{AccountQueue, AsideWork};
use crate::server::ChannelOwner;
use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::ops::Deref;
use std::sync::{Arc, Weak};
use upcall_os::atomic::{AtomicU64, AtomicUsize, Ordering};
use upcall_os::lock::KernelMutex;
use upcall_os::process::{Identity, is_known_user};
use upcall_os::socket::own_user;
use upcall_shm::region::RegionView;
use upcall_shm::tally::{self, Holdings};

/// Default limit on the values of one call's arguments, in bytes, for an interface that sets none.
pub const DEFAULT_VALUES: u64 = 16 << 20;

/// Memory per object that the default quotas assume, in bytes: its handle, and a small value.
const OBJECT: usize = 128;

/// Amounts of what clients hold in a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Number of descriptors: two for a connection, one for its channel, one for each of the
    /// client's virtual processors that calls.
    pub descriptors: usize,
    /// Number of mappings: two for a channel, one for the A-stacks of a binding, one for each
    /// segment.
    pub mappings: usize,
    /// Mapped bytes. The pages are the client's as a rule; the server is charged only for those
    /// that it is the first to write to.
    pub bytes: usize,
    /// Number of objects that clients have handles of.
    pub objects: usize,
    /// Bytes of results that did not fit the client's memory for them and have not been fetched
    /// yet. A client that has none may leave a single longer result, if as much is left for others.
    pub results: usize,
    /// Bytes that the arguments of calls under way take as values in the server's own memory:
    /// strings, and lists that are copied. The interface limits what one call may take
    /// (`upcall::Limits::values`).
    pub values: usize,
    /// Bytes of shared memory from a client that did not promise pages for all of them: A-stacks,
    /// lanes, stations. The server may be the first to touch such a page, and is then charged for
    /// it.
    pub unfilled: usize,
}

/// Limits on what clients may hold in a server.
///
/// A client is a process. All clients of one user, other than the server's own user and root,
/// together hold no more than is left for others. A request beyond a limit is refused to the client
/// that makes it.
///
/// | | one client | all clients |
/// |---|---|---|
/// | calls that run or wait in the server | half of what is free | 8192 |
/// | descriptors | 512 | three quarters of the process's (`ulimit -n`) |
/// | mappings | 8192 | three quarters of the process's (`vm.max_map_count`) |
/// | bytes mapped | 64 GiB | 16 TiB |
/// | objects | half of all, 1 048 576 at most | one for each KiB of memory, 16 777 216 at most |
/// | bytes of results not fetched | half of all, 1 GiB at most | one eighth of memory |
/// | bytes of argument values | half of all, 256 MiB at most | one eighth of memory |
/// | bytes of memory that may lack pages | half of all, 64 MiB at most | one eighth of memory |
///
/// Memory is the machine's, or the limit of the process's control group if that is less. An eighth
/// is at least 16 MiB. If an interface permits larger values for one call, the limits on values are
/// raised to that size for one client and to twice that size for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quotas {
    /// Calls of all clients that have begun in the server and not ended. Each has a stack (an
    /// E-stack, 1 MiB of addresses of which it takes what it uses); further calls wait in their
    /// lanes. The number is divided among the server's processors.
    pub calls: usize,
    /// Limits for one client.
    pub client: Quota,
    /// Limits for all clients together.
    pub all: Quota,
}

impl Default for Quotas {
    /// Returns the limits of the table above.
    fn default() -> Self {
        let three_quarters = |of: usize| of / 4 * 3;
        let share =
            usize::try_from(upcall_os::headroom::limit() / 8).unwrap_or(usize::MAX).max(16 << 20);
        let half = |most: usize| (share / 2).min(most);
        let objects = (share / OBJECT).min(1 << 24);
        Self {
            calls: 8192,
            client: Quota {
                descriptors: 512,
                mappings: 8192,
                bytes: 64 << 30,
                objects: (objects / 2).min(1 << 20),
                results: half(1 << 30),
                values: half(256 << 20),
                unfilled: half(64 << 20),
            },
            all: Quota {
                descriptors: three_quarters(upcall_os::socket::most_descriptors()),
                mappings: three_quarters(upcall_os::memory::most_mappings()),
                bytes: 16 << 40,
                objects,
                results: share,
                values: share,
                unfilled: share,
            },
        }
    }
}

impl Quotas {
    /// Raises the limits on values for an interface that permits `values` bytes for one call.
    ///
    /// They change only if that is more than the default. A server does this for each interface
    /// that it exports.
    #[must_use]
    pub fn with_values(mut self, values: u64) -> Self {
        if values > DEFAULT_VALUES {
            let values = usize::try_from(values).unwrap_or(usize::MAX);
            self.client.values = self.client.values.max(values);
            self.all.values = self.all.values.max(values.saturating_mul(2));
        }
        self
    }
}

/// A kind of resource that is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaKind {
    /// See [`Quota::descriptors`].
    Descriptors,
    /// See [`Quota::mappings`].
    Mappings,
    /// See [`Quota::bytes`].
    Bytes,
    /// See [`Quota::objects`].
    Objects,
    /// See [`Quota::results`].
    Results,
    /// See [`Quota::values`].
    Values,
    /// See [`Quota::unfilled`].
    Unfilled,
}

const KINDS: usize = 7;

const _: () = assert!(KINDS <= tally::KINDS);

/// Names of the kinds for `upcall stat`, in the order of `PeerTallies::holdings`.
pub const HELD: [&str; KINDS] = [
    "descriptors",
    "mappings",
    "mapped bytes",
    "objects",
    "unfetched result bytes",
    "value bytes",
    "unfilled bytes",
];

impl QuotaKind {
    const ALL: [Self; KINDS] = [
        Self::Descriptors,
        Self::Mappings,
        Self::Bytes,
        Self::Objects,
        Self::Results,
        Self::Values,
        Self::Unfilled,
    ];

    fn of(self, amounts: &Quota) -> usize {
        match self {
            Self::Descriptors => amounts.descriptors,
            Self::Mappings => amounts.mappings,
            Self::Bytes => amounts.bytes,
            Self::Objects => amounts.objects,
            Self::Results => amounts.results,
            Self::Values => amounts.values,
            Self::Unfilled => amounts.unfilled,
        }
    }
}

/// The error of a client that would exceed a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Over {
    kind: QuotaKind,
    /// What the client, or its user, would hold with the request granted.
    own: usize,
    /// The limit that `bound` refers to: for one client, or for all together.
    pub most: usize,
    /// The bound that would be crossed.
    pub bound: QuotaBound,
}

/// The bound that a client, or its user, would cross.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaBound {
    /// The limit for one client.
    Client,
    /// What is left for others would be less than this client holds.
    Crowded,
    /// What is left for others would be less than all clients of this user hold.
    CrowdedByUser(u32),
}

impl fmt::Display for Over {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { own, most, .. } = self;
        let what = match self.kind {
            QuotaKind::Descriptors => "descriptors",
            QuotaKind::Mappings => "mappings",
            QuotaKind::Bytes => "mapped bytes",
            QuotaKind::Objects => "objects",
            QuotaKind::Results => "bytes of results that were not fetched",
            QuotaKind::Values => "bytes of arguments as values",
            QuotaKind::Unfilled => "bytes of shared memory that may have no pages",
        };
        match self.bound {
            QuotaBound::Client => {
                write!(f, "this process would hold {own} {what} in it, and may hold {most}")
            }
            QuotaBound::Crowded => {
                write!(
                    f,
                    "this process would hold {own} {what} in it, more than would be left of {most} \
                     for others"
                )
            }
            QuotaBound::CrowdedByUser(user) => write!(
                f,
                "the processes of user {user} would hold {own} {what} in it, more than would be \
                 left of {most} for others"
            ),
        }
    }
}

/// Returns `true` if all processes of this user together hold no more than is left for others.
pub fn is_bounded(user: u32) -> bool {
    // An unknown user may appear with the same number as this process's own user.
    let is_own = user == own_user() && is_known_user(user);
    !is_own && user != 0
}

/// What all clients of a server hold.
#[derive(Debug)]
pub struct QuotaLedger {
    quotas: Quotas,
    /// Readable by other processes, if the server has tallies.
    all: Totals,
    accounts: KernelMutex<HashMap<Identity, Weak<QuotaAccount>>>,
    users: KernelMutex<HashMap<u32, Weak<User>>>,
    /// The number of the latest account.
    last: AtomicU64,
}

#[derive(Debug)]
enum Totals {
    Own(Box<Holdings>),
    Shown(RegionView<Holdings>),
}

impl Deref for Totals {
    type Target = Holdings;

    fn deref(&self) -> &Holdings {
        match self {
            Self::Own(holdings) => holdings,
            Self::Shown(holdings) => holdings,
        }
    }
}

/// What one client holds.
#[derive(Debug)]
pub struct QuotaAccount {
    ledger: Arc<QuotaLedger>,
    /// The user whose clients share a bound.
    user: Option<Arc<User>>,
    number: u64,
    held: [AtomicUsize; KINDS],
    aside: AccountQueue,
}

/// What all clients of one user hold.
#[derive(Debug)]
struct User {
    uid: u32,
    held: [AtomicUsize; KINDS],
}

/// Returns the live value of `key`, or a new one if there is none.
fn of_key<K: Hash + Eq, V>(
    all: &mut HashMap<K, Weak<V>>,
    key: K,
    new: impl FnOnce() -> V,
) -> Arc<V> {
    if let Some(value) = all.get(&key).and_then(Weak::upgrade) {
        return value;
    }
    all.retain(|_, value| value.strong_count() > 0);
    let value = Arc::new(new());
    all.insert(key, Arc::downgrade(&value));
    value
}

impl QuotaLedger {
    /// Creates a ledger with these quotas. It counts in `shown`, where others can read, if given.
    pub fn new(mut quotas: Quotas, shown: Option<RegionView<Holdings>>) -> Arc<Self> {
        // A handle has 32 bits for the index of its object.
        quotas.client.objects = quotas.client.objects.min(u32::MAX as usize);
        let all = shown.map_or_else(|| Totals::Own(Box::default()), Totals::Shown);
        for kind in QuotaKind::ALL {
            all.most[kind as usize].store(kind.of(&quotas.all) as u64, Ordering::Relaxed);
        }
        let (accounts, users) = (KernelMutex::default(), KernelMutex::default());
        Arc::new(Self { quotas, all, accounts, users, last: AtomicU64::new(0) })
    }

    /// Returns the account of a new connection.
    ///
    /// It is the account of the process, or a new one if the kernel cannot identify the process.
    pub fn account(
        self: &Arc<Self>,
        process: Option<Identity>,
        user: Option<u32>,
    ) -> Arc<QuotaAccount> {
        let bound = user.filter(|&uid| is_bounded(uid));
        let user = bound.map(|uid| {
            of_key(&mut self.users.lock(), uid, || User { uid, held: Default::default() })
        });
        let new = || {
            let number = self.last.fetch_add(1, Ordering::Relaxed) + 1;
            QuotaAccount {
                ledger: self.clone(),
                user,
                number,
                held: Default::default(),
                aside: AccountQueue::default(),
            }
        };
        match process {
            Some(process) => of_key(&mut self.accounts.lock(), process, new),
            None => Arc::new(new()),
        }
    }
}

impl QuotaAccount {
    /// A number that no other account of this server has.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Runs `work` whose duration the client determines, beside the clerk.
    pub fn aside(&self, work: AsideWork) {
        self.aside.run(work);
    }

    /// Runs `work` after all earlier work [aside](Self::aside); on this thread if none is under
    /// way.
    pub fn after(&self, work: AsideWork) {
        self.aside.after(work);
    }

    /// Returns the owner of a channel, which the stacks of its calls are counted for.
    pub fn owner(&self) -> ChannelOwner {
        ChannelOwner { client: self.number, user: self.user.as_ref().map(|user| user.uid) }
    }

    /// Adds `amount` to what the client holds, unless that exceeds a limit.
    pub fn charge(&self, kind: QuotaKind, amount: usize) -> Result<(), Over> {
        let add =
            |held: &[AtomicUsize; KINDS]| held[kind as usize].fetch_add(amount, Ordering::Relaxed);
        let Quotas { client, all, .. } = &self.ledger.quotas;
        let before = add(&self.held);
        let (own, most) = (before.saturating_add(amount), kind.of(client));
        let of_user = self.user.as_ref().map_or(0, |user| add(&user.held).saturating_add(amount));
        let of_all =
            self.ledger.all.held[kind as usize].fetch_add(amount as u64, Ordering::Relaxed);
        let held = (of_all as usize).saturating_add(amount);
        let most_of_all = kind.of(all);
        let left = most_of_all.saturating_sub(held);
        let first = kind == QuotaKind::Results && before == 0;
        // Two clients at the same time may each count the other's amount, and both be refused near
        // a ceiling; the sum never exceeds the ceiling.
        if (first || own <= most) && own <= left && of_user <= left {
            return Ok(());
        }
        self.credit(kind, amount);
        self.ledger.all.refused[kind as usize].fetch_add(1, Ordering::Relaxed);
        Err(match &self.user {
            _ if own > most && !first => Over { kind, own, most, bound: QuotaBound::Client },
            Some(user) if own <= left => Over {
                kind,
                own: of_user,
                most: most_of_all,
                bound: QuotaBound::CrowdedByUser(user.uid),
            },
            _ => Over { kind, own, most: most_of_all, bound: QuotaBound::Crowded },
        })
    }

    /// Subtracts `amount` from what the client holds.
    pub fn credit(&self, kind: QuotaKind, amount: usize) {
        let of_user = self.user.as_ref().map(|user| &user.held);
        for held in [Some(&self.held), of_user].into_iter().flatten() {
            held[kind as usize].fetch_sub(amount, Ordering::Relaxed);
        }
        self.ledger.all.held[kind as usize].fetch_sub(amount as u64, Ordering::Relaxed);
    }

    /// Adds `amount` until the returned [`Holding`] is dropped.
    pub fn hold(self: &Arc<Self>, kind: QuotaKind, amount: usize) -> Result<Holding, Over> {
        self.charge(kind, amount)?;
        Ok(Holding { account: self.clone(), kind, amount })
    }
}

/// Something that a client holds, counted until this is dropped.
#[derive(Debug)]
pub struct Holding {
    account: Arc<QuotaAccount>,
    kind: QuotaKind,
    amount: usize,
}

impl Drop for Holding {
    fn drop(&mut self) {
        self.account.credit(self.kind, self.amount);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger(client: usize, all: usize) -> Arc<QuotaLedger> {
        let same = |n| Quota {
            descriptors: n,
            mappings: n,
            bytes: n,
            objects: n,
            results: n,
            values: n,
            unfilled: n,
        };
        QuotaLedger::new(Quotas { calls: 1, client: same(client), all: same(all) }, None)
    }

    /// The account of a process of the server's own user.
    fn own(ledger: &Arc<QuotaLedger>, process: u64) -> Arc<QuotaAccount> {
        ledger.account(Some(Identity::Pidfd(process)), Some(own_user()))
    }

    /// An account in a ledger without other clients.
    fn account(client: usize) -> Arc<QuotaAccount> {
        ledger(client, usize::MAX).account(None, None)
    }

    #[test]
    fn a_client_holds_what_it_may_and_its_share() {
        let ledger = ledger(10, 12);
        let (one, other) = (own(&ledger, 1), own(&ledger, 2));
        assert!(Arc::ptr_eq(&one, &own(&ledger, 1)));
        let held = one.hold(QuotaKind::Mappings, 6).unwrap();
        let over = one.hold(QuotaKind::Mappings, 1).unwrap_err();
        assert_eq!(
            over.to_string(),
            "this process would hold 7 mappings in it, more than would be left of 12 for others"
        );
        assert_eq!(
            one.hold(QuotaKind::Mappings, 5).unwrap_err().to_string(),
            "this process would hold 11 mappings in it, and may hold 10"
        );
        let its = other.hold(QuotaKind::Mappings, 3).unwrap();
        assert!(other.hold(QuotaKind::Mappings, 1).is_err());
        drop(held);
        drop(other.hold(QuotaKind::Mappings, 1).unwrap());
        drop(its);
        assert!(ledger.all.held.iter().all(|held| held.load(Ordering::Relaxed) == 0));
        assert_eq!(ledger.all.refused[QuotaKind::Mappings as usize].load(Ordering::Relaxed), 3);
        assert_eq!(ledger.all.most[QuotaKind::Mappings as usize].load(Ordering::Relaxed), 12);
    }

    #[test]
    fn however_many_clients_take_all_they_can_get_there_is_something_left() {
        for clients in 1..20 {
            let ledger = ledger(1000, 1000);
            let accounts: Vec<_> = (0..clients).map(|process| own(&ledger, process)).collect();
            for _ in 0..1000 {
                accounts
                    .iter()
                    .for_each(|account| account.charge(QuotaKind::Bytes, 1).unwrap_or_default());
            }
            let newcomer = own(&ledger, clients);
            assert!(newcomer.charge(QuotaKind::Bytes, 1).is_ok(), "beside {clients}");
        }
    }

    #[test]
    fn clients_that_are_not_told_apart_do_not_share_an_account() {
        let ledger = ledger(10, 1000);
        let stranger = Some(own_user() + 1);
        let strangers = [(); 2].map(|()| ledger.account(None, stranger));
        assert_ne!(strangers[0].number(), strangers[1].number());
        for account in &strangers {
            account.charge(QuotaKind::Bytes, 10).unwrap();
            account.charge(QuotaKind::Bytes, 1).unwrap_err();
        }
    }

    #[test]
    fn however_many_processes_a_user_has_they_leave_half_for_others() {
        let ledger = ledger(1000, 1000);
        let stranger = own_user() + 1;
        let take_all = |user: u32| {
            let accounts: Vec<_> = (0..20).map(|_| ledger.account(None, Some(user))).collect();
            (0..1000).for_each(|turn| {
                accounts[turn % 20].charge(QuotaKind::Bytes, 1).unwrap_or_default()
            });
            let over = accounts[0].charge(QuotaKind::Bytes, 1).unwrap_err().to_string();
            let held: usize = accounts
                .iter()
                .map(|account| account.held[QuotaKind::Bytes as usize].load(Ordering::Relaxed))
                .sum();
            (over, held, accounts)
        };
        let (over, held, accounts) = take_all(stranger);
        assert_eq!(held, 500);
        let text = format!(
            "the processes of user {stranger} would hold 501 mapped bytes in it, more than would \
             be left of 1000 for others"
        );
        assert_eq!(over, text);
        let (_, held, others) = take_all(stranger + 1);
        assert_eq!(held, 250);
        // The server's own user is exempt.
        let own = [1, 2].map(|process| own(&ledger, process));
        own[0].charge(QuotaKind::Bytes, 125).unwrap();
        own[1].charge(QuotaKind::Bytes, 62).unwrap();
        drop((accounts, others));
        for user in ledger.users.lock().values() {
            assert!(user.upgrade().is_none());
        }
    }

    #[test]
    fn one_result_may_be_longer_than_a_client_may_leave() {
        let account = account(10);
        account.charge(QuotaKind::Results, 1000).unwrap();
        account.charge(QuotaKind::Results, 1).unwrap_err();
        account.credit(QuotaKind::Results, 1000);
        account.charge(QuotaKind::Results, 9).unwrap();
        account.charge(QuotaKind::Results, 2).unwrap_err();
    }

    #[test]
    fn one_long_result_leaves_as_much_for_others() {
        let ledger = ledger(10, 100);
        let [one, other] = [(); 2].map(|()| ledger.account(None, None));
        let over = one.charge(QuotaKind::Results, 60).unwrap_err();
        assert_eq!((over.own, over.most, over.bound), (60, 100, QuotaBound::Crowded));
        one.charge(QuotaKind::Results, 50).unwrap();
        other.charge(QuotaKind::Results, 50).unwrap_err();
        other.charge(QuotaKind::Results, 25).unwrap();
    }

    #[test]
    fn an_interface_that_permits_more_raises_the_amounts_of_values_only() {
        assert_eq!(Quotas::default().with_values(DEFAULT_VALUES), Quotas::default());
        let raised = Quotas::default().with_values(1 << 40);
        assert_eq!((raised.client.values, raised.all.values), (1 << 40, 1 << 41));
        assert_eq!(raised.client.results, Quotas::default().client.results);
    }

    #[test]
    fn accounts_of_the_gone_are_forgotten() {
        let ledger = ledger(1, 1);
        let stranger = own_user() + 1;
        (0..100).for_each(|process| drop(own(&ledger, process)));
        (0..100).for_each(|user| drop(ledger.account(None, Some(stranger + user))));
        assert_eq!(ledger.accounts.lock().len(), 1);
        assert_eq!(ledger.users.lock().len(), 1);
    }
}
