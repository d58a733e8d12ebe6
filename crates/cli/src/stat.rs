//! `upcall stat`: what the bindings of this user's servers have done, the members of its groups,
//! and those who use its objects, by their own count.

use crate::members::{self, UserMembers};
use crate::objects::{self, UserObjects};
use crate::told::{CommandResult, FAINT, STRONG, cell, json, line, plain, share, size};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use upcall::directory::{self, PeerTallies, Reading};

/// Shows what each binding has done: calls, errors, bytes, time in the server, and how the server
/// came to them; what each member of a group has, and what was done with each object.
///
/// SPIN, DONATE, HAND, WAKE, WAIT and NET are shares of the calls: those that the server found by
/// looking, on a processor of its own or on one that the caller gave it; those that woke it, on the
/// caller's processor or elsewhere; those that waited for others to be served; and those that came
/// from another machine. With --json they are numbers of calls: all six together are the calls.
///
/// Calls that came from another machine (NET) are remote, all others local; the last line says how
/// many of each there are in all (LRPC's Table I). Of a client on another machine CLIENT is the
/// address that it comes from, as the server sees it: of a tunnel, the end on its machine.
///
/// Exits with 1 if a NAME that was given is not found, or a server does not answer.
///
/// Servers count in memory that others can only read; looking there asks nothing of them, once they
/// have given it. Times are those of one call in 64, and known to a power of two; they begin when
/// the server takes the request, and end when its reply is sent.
///
/// Members of groups (docs/messages.md) come below: messages SENT and TAKEN, and those that are
/// WAITING to be taken; which share of those sent went by a buffer (BUFFERED), the memory that is
/// HELD by them still, and the member's share of what its group may buffer (LIMIT); how often it
/// was stopped there (STOPS); and connections, queues and messages that it has REFUSED. This asks
/// nothing of them, so it shows those that are stopped, too.
///
/// Objects (docs/objects.md) come at last: CHANGES are operations under the lock, in whatever way
/// they came; URGENT and INVOKED are invocations of the home; AUTO are operations for which the way
/// was chosen by what it takes: under the lock, by a look without it, or urgent; and what one would
/// take each way, in ns (LOCK-NS, LOOK-NS, URG-NS), as it was measured last. Holds count in steps
/// of some hundreds; those that may only look or invoke are not counted.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  upcall stat\n  upcall stat files --procedures\n  upcall stat --interval 1\n  upcall stat --sizes\n  \
    upcall stat --total\n  upcall stat --groups --pairs\n  upcall stat --objects --holds\n  upcall stat --held\n  upcall stat --json | jq '.[] | {name, client, calls}'\n  \
    upcall stat --groups --json | jq '.[] | select(.stopped_s) | {group, rank, stopped_for}'"
)]
#[expect(clippy::struct_excessive_bools, reason = "switches of a command line")]
pub struct StatArgs {
    /// Only bindings to these names, of this machine's servers; members of groups with these
    /// names; and objects.
    names: Vec<String>,
    /// Show the calls of each procedure.
    #[arg(short, long)]
    procedures: bool,
    /// Show how many calls carried how many bytes, of all bindings together (LRPC's Figure 1).
    #[arg(short, long)]
    sizes: bool,
    /// Show local and remote calls of all bindings together, in place of each binding; with --json
    /// one object.
    #[arg(short, long, conflicts_with_all = ["procedures", "sizes"])]
    total: bool,
    /// Show only the members of groups; with --json an object for each.
    #[arg(short, long, conflicts_with_all = ["procedures", "sizes", "total"])]
    groups: bool,
    /// Show only objects; with --json an object for each.
    #[arg(short, long, conflicts_with_all = ["procedures", "sizes", "total", "groups"])]
    objects: bool,
    /// Show only what the clients of each server hold in it, and may hold; with --json an object
    /// for each kind.
    #[arg(long, conflicts_with_all = ["procedures", "sizes", "total", "groups", "objects", "interval"])]
    held: bool,
    /// Show for each object what each process has done that may write it.
    #[arg(long, conflicts_with = "total")]
    holds: bool,
    /// Show for each member of a group what it has sent to whom.
    #[arg(long, conflicts_with = "total")]
    pairs: bool,
    /// Count for so many seconds, and show that in place of what was done since the binding was
    /// made.
    #[arg(short, long, value_name = "SECONDS", value_parser = seconds)]
    interval: Option<Duration>,
    /// Print a JSON array with one object for each binding; with --groups for each member of a
    /// group, with --objects for each object.
    #[arg(long)]
    json: bool,
}

pub fn seconds(text: &str) -> Result<Duration, String> {
    let given = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    given.filter(|given| !given.is_zero()).ok_or_else(|| "give seconds, such as 2 or 0.5".into())
}

/// What one binding has done.
#[derive(Clone, Default, Serialize)]
pub struct BindingRow {
    pub name: String,
    pub interface: String,
    pub server: u32,
    /// Its process; 0 on another machine.
    pub client: u32,
    /// Where it comes from then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<SocketAddr>,
    pub calls: u64,
    /// Of these, those from this machine, and from others.
    pub local: u64,
    pub remote: u64,
    /// With an interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calls_per_s: Option<f64>,
    pub refused: u64,
    pub panicked: u64,
    pub unknown: u64,
    /// How the server came to the calls: see `upcall::directory::Arrival`. With the remote ones
    /// they are the calls.
    pub spins: u64,
    pub donations: u64,
    pub hand_offs: u64,
    pub wakes: u64,
    pub waits: u64,
    pub bytes_in: u64,
    pub bytes_out: u64,
    /// The powers of two that so many calls stay below.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p50_below_ns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99_below_ns: Option<u64>,
    /// Calls by the power of two of their bytes.
    pub sizes: Vec<u64>,
    pub procedures: BTreeMap<String, u64>,
}

impl BindingRow {
    /// Calls that ended otherwise than with a result.
    pub fn errors(&self) -> u64 {
        // The server's word, of which nothing is believed.
        self.refused.saturating_add(self.panicked).saturating_add(self.unknown)
    }

    /// How the server came to the calls, in the order of the columns.
    pub fn came(&self) -> [u64; 6] {
        [self.spins, self.donations, self.hand_offs, self.wakes, self.waits, self.remote]
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

/// What all clients of a server hold of one kind.
#[derive(Serialize)]
struct HeldAmount {
    server: u32,
    names: Vec<String>,
    kind: &'static str,
    held: u64,
    most: u64,
    refused: u64,
}

/// What the clients of a server hold, if it exports one of these names, or all if there are none.
fn held(server: &ServerBindings, names: &[String]) -> Vec<HeldAmount> {
    let exported: Vec<String> = server.procedures.keys().cloned().collect();
    if !names.is_empty() && !exported.iter().any(|name| names.contains(name)) {
        return Vec::new();
    }
    let kinds = directory::HELD.into_iter().zip(server.tallies.holdings());
    let of_kind = |(kind, [held, most, refused]): (&'static str, [u64; 3])| HeldAmount {
        server: server.pid,
        names: exported.clone(),
        kind,
        held,
        most,
        refused,
    };
    kinds.map(of_kind).collect()
}

fn held_table(rows: &[HeldAmount]) -> String {
    let mut out = format!(
        "{FAINT}{:>8}  {:24}{:>16}{:>22}{:>10}  NAMES{FAINT:#}\n",
        "SERVER", "KIND", "HELD", "AT MOST", "REFUSED"
    );
    for HeldAmount { server, names, kind, held, most, refused } in rows {
        let names = plain(&names.join(", "));
        out += &format!("{server:>8}  {kind:24}{held:>16}{most:>22}{refused:>10}  {names}\n");
    }
    out
}

/// One server, and its bindings as they were at a moment.
pub struct ServerBindings {
    pub pid: u32,
    tallies: PeerTallies,
    /// By exported name.
    procedures: BTreeMap<String, Vec<String>>,
    before: Vec<Reading>,
}

impl ServerBindings {
    /// Counts from now on.
    pub fn begin(&mut self) {
        self.before = self.tallies.read();
    }

    /// What each binding has done since the last such moment, or since it was made. The next begins
    /// now, with the same reading: nothing falls between.
    fn take(&mut self) -> Vec<Reading> {
        let now = self.tallies.read();
        let before = std::mem::replace(&mut self.before, now.clone());
        let since = |now: Reading| match before.iter().find(|before| before.id == now.id) {
            Some(before) => now.since(before),
            None => now,
        };
        now.into_iter().map(since).collect()
    }
}

/// Calls of several bindings, by where they came from (LRPC, Table I: operations that cross machine
/// boundaries).
#[derive(Serialize)]
pub struct Total {
    bindings: usize,
    calls: u64,
    local: u64,
    remote: u64,
    /// Shares of the calls, from 0 to 1. None of none.
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

/// That a name is of this machine: what a server counts is in memory, which other machines do not
/// share.
///
/// # Errors
/// It is not.
pub fn is_here(names: &[String], command: &str) -> Result<(), String> {
    let far = |name: &String| {
        name.split_once("://").map(|(_, rest)| {
            (name.clone(), rest.split_once('/').map_or("", |(_, own)| own).to_string())
        })
    };
    let Some((name, own)) = names.iter().find_map(far) else { return Ok(()) };
    let there = format!("upcall {command} {own}");
    Err(format!(
        "{name:?} is on another machine: what its server counts is in that machine's memory, and cannot be read from here; run `{}` there (by ssh, for example)",
        there.trim_end()
    ))
}

pub fn run(args: &StatArgs) -> CommandResult {
    is_here(&args.names, "stat")?;
    let folder = directory::folder()?;
    directory::sweep();
    let (mut silent, mut servers, mut members, mut objects) =
        (Vec::new(), Vec::new(), UserMembers::default(), UserObjects::default());
    if args.shows_groups() {
        members.renew();
    }
    if args.shows_objects() {
        objects.renew();
    }
    for socket in directory::domains().into_iter().filter(|_| args.shows_servers()) {
        match look(socket) {
            Ok(server) => servers.push(server),
            Err(error) => silent.push(error.to_string()),
        }
    }
    if args.held {
        show_held(&servers, args)?;
        silent.iter().for_each(|error| eprintln!("upcall stat: {}", plain(error)));
        return Ok(if silent.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    if let Some(interval) = args.interval {
        servers.iter_mut().for_each(ServerBindings::begin);
        members.begin();
        objects.begin();
        std::thread::sleep(interval);
    }
    let members_rows = members.read(&args.names, args.interval);
    let objects_rows = objects.read(&args.names, args.interval);
    silent.extend(
        members.silent.into_values().chain(objects.silent.into_values().map(|(_, error)| error)),
    );
    let mut rows: Vec<BindingRow> =
        servers.iter_mut().flat_map(|server| rows(server, &args.names, args.interval)).collect();
    rows.sort_by(|a, b| (&a.name, b.calls, a.client).cmp(&(&b.name, a.calls, b.client)));
    if args.groups && args.json {
        println!("{}", json(&members_rows)?);
    } else if args.objects && args.json {
        println!("{}", json(&objects_rows)?);
    } else if args.total {
        total(&Total::of(&rows), args.json)?;
    } else if args.json {
        println!("{}", json(&rows)?);
    } else {
        show_tables(&rows, &members_rows, &objects_rows, args, &folder);
    }
    for server in servers.iter().filter(|server| server.tallies.uncounted() > 0) {
        eprintln!(
            "upcall stat: process {} has made {} bindings that it does not count",
            server.pid,
            server.tallies.uncounted()
        );
    }
    for error in &silent {
        eprintln!("upcall stat: {}", plain(error));
    }
    let exported = servers.iter().flat_map(|server| server.procedures.keys());
    let known: BTreeSet<&String> = exported
        .chain(rows.iter().map(|row| &row.name))
        .chain(members_rows.iter().map(|row| &row.group))
        .chain(objects_rows.iter().map(|row| &row.name))
        .collect();
    let unknown: Vec<&String> = args.names.iter().filter(|name| !known.contains(name)).collect();
    unknown.iter().for_each(|name| args.tell_of_unknown(name, &folder));
    Ok(if silent.is_empty() && unknown.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What servers hold for their clients.
fn show_held(
    servers: &[ServerBindings],
    args: &StatArgs,
) -> Result<(), Box<dyn std::error::Error>> {
    let rows: Vec<HeldAmount> =
        servers.iter().flat_map(|server| held(server, &args.names)).collect();
    if args.json {
        println!("{}", json(&rows)?);
    } else if rows.is_empty() {
        anstream::println!("{FAINT}no server is in {}{FAINT:#}", directory::folder()?.display());
    } else {
        anstream::print!("{}", held_table(&rows));
    }
    Ok(())
}

/// A table for each kind of rows that there are, or a line that says that there are none.
fn show_tables(
    rows: &[BindingRow],
    members: &[members::MemberActivity],
    objects: &[objects::ObjectActivity],
    args: &StatArgs,
    folder: &Path,
) {
    let nobody = match (rows.is_empty(), members.is_empty(), objects.is_empty()) {
        (true, true, _) if args.groups => Some("a member of a group"),
        (true, _, true) if args.objects => Some("the home of an object"),
        (true, true, true) => Some("bound to anything"),
        _ => None,
    };
    if let Some(what) = nobody {
        anstream::println!("{FAINT}nobody is {what} in {}{FAINT:#}", folder.display());
    }
    if !rows.is_empty() {
        anstream::print!("{}", table(rows, args));
        if args.sizes {
            sizes(rows);
        }
    }
    if !members.is_empty() {
        let between = if rows.is_empty() { "" } else { "\n" };
        let table = members::table(members, args.pairs, args.interval.is_some());
        anstream::print!("{between}{table}");
    }
    if !objects.is_empty() {
        let between = if rows.is_empty() && members.is_empty() { "" } else { "\n" };
        anstream::print!("{between}{}", objects::table(objects, args.holds));
    }
}

impl StatArgs {
    /// A name that was looked for among servers, groups and objects, as far as those were looked
    /// at.
    fn tell_of_unknown(&self, name: &str, folder: &Path) {
        let kind = match (self.shows_servers(), self.shows_groups(), self.shows_objects()) {
            (true, true, _) => "server exports, no group and no object has",
            (true, false, _) => "server exports",
            (_, true, _) => "group has",
            _ => "object has",
        };
        eprintln!("upcall stat: no {kind} the name {name:?} in {}", folder.display());
    }

    fn shows_servers(&self) -> bool {
        !self.groups && !self.objects
    }

    fn shows_groups(&self) -> bool {
        self.groups || !self.objects && !self.json && !self.total && !self.held
    }

    fn shows_objects(&self) -> bool {
        self.objects || !self.groups && !self.json && !self.total && !self.held
    }
}

/// Asks a domain for its tallies, and what its procedures are called.
///
/// # Errors
/// It is gone, does not answer, or does not let us.
pub fn look(socket: PathBuf) -> Result<ServerBindings, upcall::BindError> {
    let (peer, tallies) = directory::tallies(&socket)?;
    let (_, exports) = directory::list(&socket)?;
    let names = |export: directory::Exported| {
        (export.name, export.procedures.into_iter().map(|(name, _)| name).collect())
    };
    Ok(ServerBindings {
        pid: peer.pid,
        tallies,
        procedures: exports.into_iter().map(names).collect(),
        before: Vec::new(),
    })
}

/// What its bindings to these names, or to all, have done: since the last such moment
/// ([`ServerBindings::begin`]), so long ago, or since they were made.
pub fn rows(
    server: &mut ServerBindings,
    names: &[String],
    interval: Option<Duration>,
) -> Vec<BindingRow> {
    let wanted = |read: &Reading| names.is_empty() || names.contains(&read.name);
    let rows = server.take().into_iter().filter(wanted).map(|since| {
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
            // The server's word: more may have come from other machines than there are.
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
            name: since.name,
            interface: since.interface,
        }
    });
    rows.collect()
}

/// Of numbers that are a server's word.
fn sum(counts: &[u64]) -> u64 {
    counts.iter().fold(0, |sum, &count| sum.saturating_add(count))
}

/// The power of two that a share of what was counted stays below.
fn below(counts: &[u64], share: f64) -> Option<u64> {
    let all = sum(counts);
    let mut seen = 0_u64;
    let at = counts.iter().position(|&count| {
        seen = seen.saturating_add(count);
        seen > 0 && seen as f64 >= share * all as f64
    })?;
    Some(1 << at)
}

fn total(total: &Total, as_json: bool) -> Result<(), serde_json::Error> {
    if as_json {
        println!("{}", json(total)?);
    } else {
        println!(
            "{} calls of {} bindings: {} ({} and {})",
            total.calls,
            total.bindings,
            total.shares(),
            total.local,
            total.remote
        );
    }
    Ok(())
}

fn table(rows: &[BindingRow], args: &StatArgs) -> String {
    let heads = [
        "NAME",
        "CLIENT",
        "SERVER",
        if args.interval.is_some() { "CALLS/S" } else { "CALLS" },
        "ERRORS",
        "IN",
        "OUT",
        "P50",
        "P99",
        "SPIN",
        "DONATE",
        "HAND",
        "WAKE",
        "WAIT",
        "NET",
    ];
    let cells: Vec<[String; 15]> = rows.iter().map(cells).collect();
    let width = |at: usize| {
        cells.iter().map(|row| row[at].chars().count()).chain([heads[at].len()]).max().unwrap_or(0)
    };
    let widths: [usize; 15] = std::array::from_fn(width);
    let padded = |row: [&str; 15]| {
        // The name to the left, numbers to the right.
        let cells = row.iter().zip(widths).enumerate().map(|(at, (text, width))| {
            if at == 0 { format!("{text:width$}") } else { format!("{text:>width$}") }
        });
        cells.collect::<Vec<_>>().join("  ")
    };
    let mut out = format!("{STRONG}{}{STRONG:#}\n", padded(heads));
    for (row, cells) in rows.iter().zip(&cells) {
        out += &format!("{}\n", padded(std::array::from_fn(|at| cells[at].as_str())));
        if args.procedures {
            let mut procedures: Vec<_> = row.procedures.iter().collect();
            procedures.sort_by_key(|(name, calls)| (std::cmp::Reverse(**calls), *name));
            procedures.iter().for_each(|(name, calls)| {
                out += &format!("  {FAINT}{calls:>12}  {}{FAINT:#}\n", line(name))
            });
        }
    }
    out + &format!("{FAINT}{}{FAINT:#}\n", Total::of(rows).shares())
}

fn cells(row: &BindingRow) -> [String; 15] {
    let [spins, donations, hand_offs, wakes, waits, remote] =
        row.came().map(|calls| share(calls, row.calls));
    let calls = row.calls_per_s.map_or_else(|| row.calls.to_string(), |rate| format!("{rate:.0}"));
    [
        cell(&row.name),
        row.client(),
        row.server.to_string(),
        calls,
        row.errors().to_string(),
        size(row.bytes_in),
        size(row.bytes_out),
        row.p50_below_ns.map_or_else(|| "-".into(), time),
        row.p99_below_ns.map_or_else(|| "-".into(), time),
        spins,
        donations,
        hand_offs,
        wakes,
        waits,
        remote,
    ]
}

/// `< 512 ns`, `< 4.1 µs`.
pub fn time(ns: u64) -> String {
    match ns {
        0..1000 => format!("< {ns} ns"),
        1000..1_000_000 => format!("< {:.1} µs", ns as f64 / 1e3),
        _ => format!("< {:.1} ms", ns as f64 / 1e6),
    }
}

/// Calls by the bytes that they carried.
fn sizes(rows: &[BindingRow]) {
    let most = rows.iter().map(|row| row.sizes.len()).max().unwrap_or(0);
    let counts: Vec<u64> = (0..most)
        .map(|at| {
            rows.iter()
                .filter_map(|row| row.sizes.get(at))
                .fold(0, |sum: u64, &calls| sum.saturating_add(calls))
        })
        .collect();
    let all = sum(&counts).max(1);
    let top = counts.iter().copied().max().unwrap_or(0).max(1);
    anstream::println!("\n{STRONG}bytes of arguments and results{STRONG:#}");
    let mut seen = 0_u64;
    for (at, &count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
        seen = seen.saturating_add(count);
        let bytes = if at == 0 { "none".to_string() } else { format!("< {}", size(1 << at)) };
        let bar = "#".repeat((count as f64 / top as f64 * 40.0).ceil() as usize);
        println!(
            "{bytes:>10}  {:5.1} %  {:5.1} %  {bar}",
            count as f64 / all as f64 * 100.0,
            seen as f64 / all as f64 * 100.0
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::told::tests::{STEERING, is_clean};

    #[test]
    fn shares_are_told_by_the_power_that_they_stay_below() {
        assert_eq!(below(&[0; 32], 0.5), None);
        assert_eq!(below(&[0, 0, 10, 0, 1], 0.5), Some(4));
        assert_eq!(below(&[0, 0, 10, 0, 1], 0.99), Some(16));
        assert_eq!(below(&[3], 0.99), Some(1));
    }

    #[test]
    fn calls_are_told_by_where_they_came_from() {
        let near = BindingRow { client: 7, calls: 900, local: 900, ..BindingRow::default() };
        let address = Some("192.0.2.1:7000".parse().unwrap());
        let far = BindingRow { address, calls: 100, remote: 100, ..BindingRow::default() };
        assert_eq!((near.client().as_str(), far.client().as_str()), ("7", "192.0.2.1:7000"));
        assert_eq!((cells(&near)[14].as_str(), cells(&far)[14].as_str()), ("-", "100%"));
        assert_eq!(Total::of(std::slice::from_ref(&near)).shares(), "100% local, none remote");
        assert_eq!(Total::of(&[]).shares(), "none local, none remote");
        let total = Total::of(&[near.clone(), far]);
        assert_eq!(total.shares(), "90% local, 10% remote");
        let json = serde_json::to_value(total).unwrap();
        assert_eq!(
            json,
            serde_json::json!({ "bindings": 2, "calls": 1000, "local": 900, "remote": 100, "local_share": 0.9, "remote_share": 0.1 })
        );
        let few = BindingRow { calls: 1, remote: 1, ..BindingRow::default() };
        assert_eq!(Total::of(&[near, few]).shares(), "99% local, <1% remote");
    }

    #[test]
    fn names_on_other_machines_are_refused_with_the_way_out() {
        assert_eq!(is_here(&["files".into(), "a.b-c".into()], "stat"), Ok(()));
        for (name, command, way) in [
            ("tcp://far:7000/files", "stat", "`upcall stat files` there"),
            ("tcp://far:7000", "top", "`upcall top` there"),
        ] {
            let error = is_here(&["math".into(), name.into()], command).unwrap_err();
            assert!(
                error.contains(name) && error.contains(way) && error.contains("memory"),
                "{error}"
            );
        }
    }

    /// What a hostile server may have written.
    #[test]
    fn nonsense_is_shown_as_some_numbers() {
        let most = u64::MAX;
        let far = BindingRow { calls: 3, local: 0, remote: most, ..BindingRow::default() };
        assert_eq!(
            Total::of(&[far.clone(), BindingRow { local: most, ..far.clone() }]).shares(),
            "100% local, 100% remote"
        );
        assert_eq!(cells(&far)[14], "99%");
        let row = BindingRow {
            refused: most,
            panicked: most,
            unknown: 1,
            calls: 3,
            spins: most,
            bytes_in: most,
            ..BindingRow::default()
        };
        assert_eq!(row.errors(), most);
        assert_eq!(below(&[most; 32], 0.99), Some(1));
        assert_eq!((cells(&row)[9].as_str(), cells(&row)[5].as_str()), ("99%", "16 EiB"));
        sizes(&[
            BindingRow { sizes: vec![most; 32], ..BindingRow::default() },
            BindingRow { sizes: vec![most; 32], ..BindingRow::default() },
        ]);
    }

    #[test]
    fn nothing_that_a_server_says_steers_the_terminal() {
        let procedures = BTreeMap::from([(STEERING.to_string(), 3)]);
        let row = BindingRow {
            name: STEERING.into(),
            interface: STEERING.into(),
            procedures,
            ..BindingRow::default()
        };
        let args = StatArgs {
            names: Vec::new(),
            procedures: true,
            sizes: false,
            total: false,
            groups: false,
            objects: false,
            held: false,
            holds: false,
            pairs: false,
            interval: None,
            json: false,
        };
        let shown =
            anstream::adapter::strip_str(&table(std::slice::from_ref(&row), &args)).to_string();
        assert!(is_clean(&shown) && shown.matches("a?[2Jb?31mc?d?e?f?g?h").count() == 2, "{shown}");
        let text = json(&[row]).unwrap();
        assert!(
            is_clean(&text)
                && serde_json::from_str::<serde_json::Value>(&text).unwrap()[0]["interface"]
                    == STEERING,
            "{text}"
        );
    }

    #[test]
    fn times_are_told_in_a_unit_that_fits() {
        assert_eq!([512, 4096, 2_097_152].map(time), ["< 512 ns", "< 4.1 µs", "< 2.1 ms"]);
    }
}
