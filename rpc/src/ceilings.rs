//! What clients hold in a server, counted, and the most that they may.
//!
//! A client brings the memory that its calls travel in, but the server maps it, keeps a descriptor for each of its bells, and holds its objects and the results that it has not fetched. Each
//! of these has a ceiling for one client and one for all of them; and a client that holds as much as is left for others gets no more (dynamic thresholds: Choudhury and Hahne, 1998). So one that takes all
//! it can get leaves half, and *n* of them one part in *n* + 1: nobody can keep others from binding. Calls under way have the same rule, in `transfer/src/idle/stacks.rs`.
//!
//! A client is a process here, however many channels and bindings it has.
//!
//! Source: LRPC, sections 3.1 and 3.2, bounds A-stacks by the interface and E-stacks by their supply; the rest is ours.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Amounts of what clients hold in a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Amounts {
    /// Descriptors: two for a connection, one for its channel, one for each of the client's virtual processors that calls.
    pub descriptors: usize,
    /// Mappings: two for a channel, one for the A-stacks of a binding, one for each segment.
    pub mappings: usize,
    /// Bytes that are mapped. The pages are the client's as a rule: the server's are those that it writes to first.
    pub bytes: usize,
    /// Objects that clients have handles of.
    pub objects: usize,
    /// Bytes of results that were larger than the client's room for them, and were not fetched yet. A client that has none may leave one of any length.
    pub results: usize,
}

/// The most that clients may hold in a server. What goes beyond is refused to the client that asks, which is told so; nobody else notices.
///
/// | | one client | all clients |
/// |---|---|---|
/// | calls that run or wait in the server | half of what is free | 8192 |
/// | descriptors | 512 | three quarters of the process's (`ulimit -n`) |
/// | mappings | 8192 | three quarters of the process's (`vm.max_map_count`) |
/// | bytes mapped | 64 GiB | 16 TiB |
/// | objects | 1 048 576 | 16 777 216 |
/// | bytes of results not fetched | 1 GiB | 4 GiB |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ceilings {
    /// Calls that have begun in the server and not ended, of all clients. Each has a stack of 64 KiB (an E-stack); others wait in their lanes. They are divided among the server's processors.
    pub calls: usize,
    /// What one client may hold.
    pub client: Amounts,
    /// What all of them together may.
    pub all: Amounts,
}

impl Default for Ceilings {
    /// As the table says.
    fn default() -> Self {
        let three_quarters = |of: usize| of / 4 * 3;
        Self {
            calls: 8192,
            client: Amounts { descriptors: 512, mappings: 8192, bytes: 64 << 30, objects: 1 << 20, results: 1 << 30 },
            all: Amounts {
                descriptors: three_quarters(upcall_os::socket::most_descriptors()),
                mappings: three_quarters(upcall_os::memory::most_mappings()),
                bytes: 16 << 40,
                objects: 1 << 24,
                results: 4 << 30,
            },
        }
    }
}

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Descriptors,
    Mappings,
    Bytes,
    Objects,
    Results,
}

const KINDS: usize = 5;

impl Kind {
    fn of(self, amounts: &Amounts) -> usize {
        match self {
            Self::Descriptors => amounts.descriptors,
            Self::Mappings => amounts.mappings,
            Self::Bytes => amounts.bytes,
            Self::Objects => amounts.objects,
            Self::Results => amounts.results,
        }
    }
}

/// A client would hold more than it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Over {
    kind: Kind,
    /// What it holds, with what it asked for.
    own: usize,
    most: usize,
    /// What is left for others would be less than it holds.
    crowded: bool,
}

impl fmt::Display for Over {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { own, most, .. } = self;
        let what = match self.kind {
            Kind::Descriptors => "descriptors",
            Kind::Mappings => "mappings",
            Kind::Bytes => "mapped bytes",
            Kind::Objects => "objects",
            Kind::Results => "bytes of results that were not fetched",
        };
        if self.crowded {
            return write!(f, "this process would hold {own} {what} in it, more than would be left of {most} for others");
        }
        write!(f, "this process would hold {own} {what} in it, and may hold {most}")
    }
}

/// What all clients of a server hold.
#[derive(Debug)]
pub(crate) struct Ledger {
    ceilings: Ceilings,
    held: [AtomicUsize; KINDS],
    accounts: Mutex<HashMap<u32, Weak<Account>>>,
}

/// What one client holds.
#[derive(Debug)]
pub(crate) struct Account {
    ledger: Arc<Ledger>,
    held: [AtomicUsize; KINDS],
}

impl Ledger {
    pub(crate) fn new(mut ceilings: Ceilings) -> Arc<Self> {
        // A handle has 32 bits for the place of its object.
        ceilings.client.objects = ceilings.client.objects.min(u32::MAX as usize);
        Arc::new(Self { ceilings, held: Default::default(), accounts: Mutex::default() })
    }

    /// The account of process `pid`.
    pub(crate) fn account(self: &Arc<Self>, pid: u32) -> Arc<Account> {
        let mut accounts = self.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(account) = accounts.get(&pid).and_then(Weak::upgrade) {
            return account;
        }
        accounts.retain(|_, account| account.strong_count() > 0);
        let account = Arc::new(Account { ledger: self.clone(), held: Default::default() });
        accounts.insert(pid, Arc::downgrade(&account));
        account
    }
}

impl Account {
    /// Counts `amount` more, unless that is too much.
    pub(crate) fn charge(&self, kind: Kind, amount: usize) -> Result<(), Over> {
        let Ceilings { client, all, .. } = &self.ledger.ceilings;
        let before = self.held[kind as usize].fetch_add(amount, Ordering::Relaxed);
        let (own, most) = (before.saturating_add(amount), kind.of(client));
        let held = self.ledger.held[kind as usize].fetch_add(amount, Ordering::Relaxed).saturating_add(amount);
        let most_of_all = kind.of(all);
        let first = kind == Kind::Results && before == 0;
        let left = most_of_all.saturating_sub(held);
        // Two clients at the same time may each count the other's amount, and both be refused near a ceiling; never more is held than it says.
        if first || own <= most && own <= left {
            return Ok(());
        }
        self.credit(kind, amount);
        let crowded = own <= most;
        Err(Over { kind, own, most: if crowded { most_of_all } else { most }, crowded })
    }

    /// Counts `amount` less.
    pub(crate) fn credit(&self, kind: Kind, amount: usize) {
        self.held[kind as usize].fetch_sub(amount, Ordering::Relaxed);
        self.ledger.held[kind as usize].fetch_sub(amount, Ordering::Relaxed);
    }

    /// Counts `amount` more until what is returned is dropped.
    pub(crate) fn hold(self: &Arc<Self>, kind: Kind, amount: usize) -> Result<Holding, Over> {
        self.charge(kind, amount)?;
        Ok(Holding { account: self.clone(), kind, amount })
    }
}

/// Something that a client holds, counted as long as this lives.
#[derive(Debug)]
pub(crate) struct Holding {
    account: Arc<Account>,
    kind: Kind,
    amount: usize,
}

impl Drop for Holding {
    fn drop(&mut self) {
        self.account.credit(self.kind, self.amount);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    fn ledger(client: usize, all: usize) -> Arc<Ledger> {
        let same = |n| Amounts { descriptors: n, mappings: n, bytes: n, objects: n, results: n };
        Ledger::new(Ceilings { calls: 1, client: same(client), all: same(all) })
    }

    /// An account without company.
    pub(crate) fn account(client: usize) -> Arc<Account> {
        ledger(client, usize::MAX).account(1)
    }

    #[test]
    fn a_client_holds_what_it_may_and_its_share() {
        let ledger = ledger(10, 12);
        let (one, other) = (ledger.account(1), ledger.account(2));
        assert!(Arc::ptr_eq(&one, &ledger.account(1)));
        let held = one.hold(Kind::Mappings, 6).unwrap();
        let over = one.hold(Kind::Mappings, 1).unwrap_err();
        assert_eq!(over.to_string(), "this process would hold 7 mappings in it, more than would be left of 12 for others");
        assert_eq!(
            one.hold(Kind::Mappings, 5).unwrap_err().to_string(),
            "this process would hold 11 mappings in it, and may hold 10"
        );
        let its = other.hold(Kind::Mappings, 3).unwrap();
        assert!(other.hold(Kind::Mappings, 1).is_err());
        drop(held);
        drop(other.hold(Kind::Mappings, 1).unwrap());
        drop(its);
        assert!(ledger.held.iter().all(|held| held.load(Ordering::Relaxed) == 0));
    }

    #[test]
    fn however_many_clients_take_all_they_can_get_there_is_something_left() {
        for clients in 1..20 {
            let ledger = ledger(1000, 1000);
            let accounts: Vec<_> = (0..clients).map(|pid| ledger.account(pid)).collect();
            for _ in 0..1000 {
                accounts.iter().for_each(|account| account.charge(Kind::Bytes, 1).unwrap_or_default());
            }
            let newcomer = ledger.account(clients);
            assert!(newcomer.charge(Kind::Bytes, 1).is_ok(), "beside {clients}");
        }
    }

    #[test]
    fn one_result_may_have_any_length() {
        let account = account(10);
        account.charge(Kind::Results, 1000).unwrap();
        account.charge(Kind::Results, 1).unwrap_err();
        account.credit(Kind::Results, 1000);
        account.charge(Kind::Results, 9).unwrap();
        account.charge(Kind::Results, 2).unwrap_err();
    }

    #[test]
    fn accounts_of_the_gone_are_forgotten() {
        let ledger = ledger(1, 1);
        (0..100).for_each(|pid| drop(ledger.account(pid)));
        assert_eq!(ledger.accounts.lock().unwrap().len(), 1);
    }
}
