//! What bindings have done, as their servers count it.

use crate::expect::ExpectArgs;
use crate::ls::{MOST_FROM_OTHERS, MOST_IN_OTHERS};
use crate::output::share;
use crate::servers::ask_all;
use serde::Serialize;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use upcall::BindError;
use upcall::directory::{self, FarCounts, PeerTallies, Reading};
use upcall::policy::{self, Policy};

/// What one binding has done.
#[derive(Clone, Default, Serialize)]
pub struct BindingRow {
    pub name: String,
    pub interface: String,
    /// The server's process; 0 on another machine.
    pub server: u32,
    /// The client's process on the server's machine; 0 on another one.
    pub client: u32,
    /// The address of a client on another machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<SocketAddr>,
    pub calls: u64,
    /// Calls from this machine, and from others.
    pub local: u64,
    pub remote: u64,
    /// With an interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calls_per_s: Option<f64>,
    pub refused: u64,
    pub panicked: u64,
    pub unknown: u64,
    /// How calls reached the server: see `upcall::directory::Arrival`. The sum of these and
    /// `remote` is `calls`.
    pub spins: u64,
    pub donations: u64,
    pub hand_offs: u64,
    pub wakes: u64,
    pub waits: u64,
    pub bytes_in: u64,
    pub bytes_out: u64,
    /// The power of two that half and 99% of the calls stay below.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p50_below_ns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99_below_ns: Option<u64>,
    /// Calls by the power of two of their bytes, from no byte on.
    pub sizes: Vec<u64>,
    pub procedures: BTreeMap<String, u64>,
}

impl BindingRow {
    /// Calls that ended without a result.
    pub fn errors(&self) -> u64 {
        // A server may claim any numbers.
        self.refused.saturating_add(self.panicked).saturating_add(self.unknown)
    }

    /// How calls reached the server, in the order of the columns.
    pub fn came(&self) -> [u64; 6] {
        [self.spins, self.donations, self.hand_offs, self.wakes, self.waits, self.remote]
    }

    /// The server's process, or `-` on another machine.
    pub fn server(&self) -> String {
        match self.server {
            0 => "-".into(),
            process => process.to_string(),
        }
    }

    /// The client's process, `-` if its number is not visible, or its address on another machine.
    pub fn client(&self) -> String {
        match self.address {
            Some(address) => address.to_string(),
            // In a PID namespace that the server cannot see.
            None if self.client == 0 => "-".into(),
            None => self.client.to_string(),
        }
    }
}

/// Where the counts of a server come from.
pub enum CountSource {
    /// Memory of a server on this machine, which is read.
    Here(PeerTallies),
    /// The last answer of a server on another machine.
    There(FarCounts),
}

impl CountSource {
    fn read(&self) -> Vec<Reading> {
        match self {
            Self::Here(tallies) => tallies.read(),
            Self::There(counts) => counts.bindings.clone(),
        }
    }

    /// Number of bindings that the server does not count.
    pub fn uncounted(&self) -> u64 {
        match self {
            Self::Here(tallies) => tallies.uncounted(),
            Self::There(counts) => counts.uncounted,
        }
    }

    /// The calls that the server itself has made to other machines, and their bytes of arguments
    /// and of results. Not known of a server on another machine.
    pub fn made(&self) -> [u64; 3] {
        match self {
            Self::Here(tallies) => tallies.made(),
            Self::There(_) => [0; 3],
        }
    }

    /// For each kind of what clients hold: the number, the maximum, and how often more was refused.
    pub fn holdings(&self) -> impl Iterator<Item = [u64; 3]> + use<> {
        match self {
            Self::Here(tallies) => tallies.holdings().into_iter(),
            Self::There(counts) => counts.holdings.into_iter(),
        }
    }
}

/// One server, and the counts of its bindings at the start of an interval.
pub struct ServerBindings {
    /// `tcp://HOST:PORT` of a server on another machine.
    at: Option<String>,
    /// 0 on another machine.
    pub pid: u32,
    pub counts: CountSource,
    /// By exported name.
    pub procedures: BTreeMap<String, Vec<String>>,
    before: Vec<Reading>,
}

impl ServerBindings {
    pub fn new(
        at: Option<String>,
        pid: u32,
        counts: CountSource,
        procedures: BTreeMap<String, Vec<String>>,
    ) -> Self {
        Self { at, pid, counts, procedures, before: Vec::new() }
    }

    /// The name by which a client on this machine binds what the server exports as `name`.
    pub fn full(&self, name: &str) -> String {
        self.at.as_ref().map_or_else(|| name.into(), |at| format!("{at}/{name}"))
    }

    /// Returns `true` if `names` is empty, or names this export or all exports of the server.
    pub fn is_named(&self, name: &str, names: &[String]) -> bool {
        let full = self.full(name);
        let is_server = |name: &String| {
            self.at.as_deref().is_some_and(|at| name.strip_suffix('/').unwrap_or(name) == at)
        };
        names.is_empty() || names.iter().any(|name| *name == full || is_server(name))
    }

    /// What is said of the server.
    pub fn shown(&self) -> String {
        self.at.clone().unwrap_or_else(|| format!("process {}", self.pid))
    }

    /// Starts an interval.
    pub fn begin(&mut self) {
        self.before = self.counts.read();
    }

    /// What each binding has done in the interval, or since it was made. The next interval starts
    /// with the same reading, so no call falls between two intervals.
    fn take(&mut self) -> Vec<Reading> {
        let now = self.counts.read();
        let before = std::mem::replace(&mut self.before, now.clone());
        let since = |now: Reading| match before.iter().find(|before| before.id == now.id) {
            Some(before) => now.since(before),
            None => now,
        };
        now.into_iter().map(since).collect()
    }
}

/// Calls of several bindings, local and remote (LRPC, Table I: operations that cross machine
/// boundaries).
#[derive(Serialize)]
pub struct Total {
    pub bindings: usize,
    pub calls: u64,
    pub local: u64,
    pub remote: u64,
    /// Shares of the calls, from 0 to 1; `None` if there are no calls.
    local_share: Option<f64>,
    remote_share: Option<f64>,
}

impl Total {
    pub fn of(rows: &[BindingRow]) -> Self {
        let all = |count: fn(&BindingRow) -> u64| sum(&rows.iter().map(count).collect::<Vec<_>>());
        let (local, remote) = (all(|row| row.local), all(|row| row.remote));
        let calls = local.saturating_add(remote);
        let part = |of: u64| (calls > 0).then(|| of as f64 / calls as f64);
        Self {
            bindings: rows.len(),
            calls,
            local,
            remote,
            local_share: part(local),
            remote_share: part(remote),
        }
    }

    /// `97% local, 3% remote`.
    pub fn shares(&self) -> String {
        let [local, remote] =
            [self.local, self.remote].map(|calls| match share(calls, self.calls) {
                none if none == "-" => "none".into(),
                some => some,
            });
        format!("{local} local, {remote} remote")
    }
}

/// The answer of a server, or `None` if the server was not asked.
pub type AskedServer = Option<Result<ServerBindings, BindError>>;

/// Asks the servers at these sockets at the same time. Returns the answers in the order of the
/// sockets. Of the servers that only `expect` accepts, at most [`MOST_IN_OTHERS`] are asked.
pub fn look_all(sockets: &[PathBuf], expect: &ExpectArgs) -> Vec<AskedServer> {
    let own = policy::own_user_or_root();
    let answers = ask_all(sockets, |socket| look(socket, &own, directory::MOST_LISTED));
    let mut answers: Vec<AskedServer> = answers.into_iter().map(Some).collect();
    let is_expected = |answer: &AskedServer| match answer {
        Some(Err(BindError::WrongUser { found, .. })) => expect.names(*found),
        _ => false,
    };
    let expected: Vec<usize> = (0..answers.len()).filter(|at| is_expected(&answers[*at])).collect();
    let (asked, rest) = expected.split_at(expected.len().min(MOST_IN_OTHERS));
    rest.iter().for_each(|at| answers[*at] = None);
    let accepts = expect.policy();
    let others: Vec<PathBuf> = asked.iter().map(|at| sockets[*at].clone()).collect();
    let others = ask_all(&others, |socket| look(socket, &*accepts, MOST_FROM_OTHERS));
    asked.iter().zip(others).for_each(|(at, answer)| answers[*at] = Some(answer));
    answers
}

/// Asks a server for its tallies and for the names of its procedures, if `accepts` accepts it.
/// Reads a list of `most` bytes at most.
///
/// # Errors
/// The server has ended, does not answer, refuses this user, or is not accepted.
fn look(socket: &Path, accepts: &Policy, most: usize) -> Result<ServerBindings, BindError> {
    let (peer, tallies) = directory::tallies_expecting(socket, accepts)?;
    let (_, exports) = directory::list_expecting(socket, accepts, most)?;
    let names = |export: directory::Exported| {
        (export.name, export.procedures.into_iter().map(|(name, _)| name).collect())
    };
    let procedures = exports.into_iter().map(names).collect();
    Ok(ServerBindings::new(None, peer.pid, CountSource::Here(tallies), procedures))
}

/// What the bindings to `names`, or all bindings if there are none, have done in the interval that
/// [`ServerBindings::begin`] started, or since they were made.
pub fn rows(
    server: &mut ServerBindings,
    names: &[String],
    interval: Option<Duration>,
) -> Vec<BindingRow> {
    let read = server.take();
    let server = &*server;
    let wanted = |read: &Reading| server.is_named(&read.name, names);
    let rows = read.into_iter().filter(wanted).map(|since| {
        let named = server.procedures.get(&since.name);
        let name = |at: usize| {
            named
                .and_then(|names| names.get(at))
                .cloned()
                .unwrap_or_else(|| format!("procedure {at}"))
        };
        let [_, refused, panicked, unknown] = since.outcomes;
        let [spins, donations, hand_offs, wakes, waits, remote] = since.came;
        let calls = since.calls();
        BindingRow {
            server: server.pid,
            client: since.client,
            address: since.address,
            calls,
            // A server may claim more remote calls than there are calls.
            local: calls.saturating_sub(remote),
            remote,
            calls_per_s: interval.map(|interval| (calls as f64 / interval.as_secs_f64()).round()),
            refused,
            panicked,
            unknown,
            spins,
            donations,
            hand_offs,
            wakes,
            waits,
            bytes_in: since.bytes[0],
            bytes_out: since.bytes[1],
            p50_below_ns: below(&since.times, 0.5),
            p99_below_ns: below(&since.times, 0.99),
            sizes: since.sizes.to_vec(),
            procedures: since
                .procedures
                .iter()
                .enumerate()
                .filter(|(_, calls)| **calls > 0)
                .map(|(at, &calls)| (name(at), calls))
                .collect(),
            name: server.full(&since.name),
            interface: since.interface,
        }
    });
    rows.collect()
}

/// The sum of numbers that a server chose.
pub fn sum(counts: &[u64]) -> u64 {
    counts.iter().fold(0, |sum, &count| sum.saturating_add(count))
}

/// The power of two that a share of the counted values stays below.
pub fn below(counts: &[u64], share: f64) -> Option<u64> {
    let all = sum(counts);
    let mut seen = 0_u64;
    let at = counts.iter().position(|&count| {
        seen = seen.saturating_add(count);
        seen > 0 && seen as f64 >= share * all as f64
    })?;
    Some(1 << at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_shown_by_the_power_that_they_stay_below() {
        assert_eq!(below(&[0; 32], 0.5), None);
        assert_eq!(below(&[0, 0, 10, 0, 1], 0.5), Some(4));
        assert_eq!(below(&[0, 0, 10, 0, 1], 0.99), Some(16));
        assert_eq!(below(&[3], 0.99), Some(1));
    }
}
