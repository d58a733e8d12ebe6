//! `upcall stat`: what the bindings of this user's servers, the members of its groups and the users
//! of its objects have done, by their own count.

use crate::exit::{CommandError, CommandResult, Exit};
use crate::members::{self, MemberActivity, UserMembers};
use crate::names::{did_you_mean, some_seconds};
use crate::objects::{self, ObjectActivity, UserObjects};
use crate::output::{
    Columns, FAINT, STRONG, cell, counted, line, print, print_json, println, report, report_all,
    share, size,
};
use crate::servers::{SilentServer, SilentServers, ask_all};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;
use upcall::directory::{self, PeerTallies, Reading};

/// Shows what bindings, members of groups and objects have done.
///
/// For each binding these are calls, errors, bytes, and time in the server. The command reads the
/// memory in which servers, members and homes count.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = long_help())]
#[expect(clippy::struct_excessive_bools, reason = "switches of a command line")]
pub struct StatArgs {
    /// Names of exports, groups and objects on this machine; all without a name.
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Show the calls of each procedure.
    #[arg(short, long)]
    procedures: bool,
    /// Show how many calls of all bindings carried how many bytes (LRPC's Figure 1).
    #[arg(short, long)]
    sizes: bool,
    /// Show only the sums of local and remote calls.
    #[arg(short, long, conflicts_with_all = ["procedures", "sizes"])]
    total: bool,
    /// Show only the members of groups.
    #[arg(short, long, conflicts_with_all = ["procedures", "sizes", "total"])]
    groups: bool,
    /// Show only objects.
    #[arg(short, long, conflicts_with_all = ["procedures", "sizes", "total", "groups"])]
    objects: bool,
    /// Show only what the clients of each server hold in it, and may hold.
    #[arg(
        long,
        conflicts_with_all = ["procedures", "sizes", "total", "groups", "objects", "interval"]
    )]
    held: bool,
    /// Show for each object what each process with write access has done.
    #[arg(long, conflicts_with = "total")]
    holds: bool,
    /// Show for each member of a group what it has sent to each other member.
    #[arg(long, conflicts_with = "total")]
    pairs: bool,
    /// Count for this time, and show that in place of everything since the binding was made.
    #[arg(short, long, value_name = "SECONDS", value_parser = some_seconds)]
    interval: Option<Duration>,
    /// Print JSON: an array with one object for each binding, or for each row of the table that
    /// another option asks for; with --total one object.
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  upcall stat
  upcall stat files --procedures
  upcall stat --interval 1
  upcall stat --json | jq '.[] | {name, client, calls}'";

const COLUMNS: &str = "\
Columns of bindings:
  CLIENT, SERVER     processes; the address of a client on another machine
  CALLS, ERRORS      calls, and those of them that ended without a result
  IN, OUT            bytes of arguments and of results
  P50, P99           time in the server that half and 99% of the calls stay below, as a power of
                     two; one call in 64 is measured, from its request to its reply
  SPIN DONATE HAND   shares of calls that the server found by polling; by polling on a processor
  WAKE WAIT NET      that the caller gave it; by waking on the caller's processor, or elsewhere;
                     after other calls; and from another machine

Columns of members (docs/reference/messages.md):
  SENT, TAKEN, WAITING   messages
  BUFFERED           share of the sent messages that went by a buffer
  HELD, LIMIT        memory of buffered messages, and its maximum for this member
  STOPS, REFUSED     how often the member was stopped at its limit; connections, queues and
                     messages that it refused

Columns of objects (docs/reference/objects.md):
  CHANGES            operations under the lock
  URGENT, INVOKED    urgent and ordinary invocations of the home
  AUTO %LOCK %LOOK %URG    operations for which `auto` chose the way, and the share of each way
  LOCK-NS LOOK-NS URG-NS   what one of them takes each way, as measured last, in ns";

const JSON: &str = "\
JSON keys of a binding: name, interface, server, client (0 on another machine), address, calls,
local, remote, calls_per_s (with --interval), refused, panicked, unknown, spins, donations,
hand_offs, wakes, waits, bytes_in, bytes_out, p50_below_ns, p99_below_ns, sizes, procedures.
With --groups: group, id, rank, size, process, sent, taken, waiting, buffered, diversions,
held_bytes, limit_bytes, stops, stopped_s, stopped_for, refused, pairs. With --objects: name, home,
bytes, state, holder, changes, urgent, invoked, chosen, would_ns, holds. With --held: server, names,
kind, held, most, refused. With --total: bindings, calls, local, remote, local_share, remote_share.

Exits with 3 if a NAME is not found.";

fn long_help() -> String {
    [EXAMPLES, COLUMNS, JSON].join("\n\n")
}

/// What one binding has done.
#[derive(Clone, Default, Serialize)]
pub struct BindingRow {
    pub name: String,
    pub interface: String,
    pub server: u32,
    /// The client's process; 0 on another machine.
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

/// What all clients of a server hold of one kind of resource.
#[derive(Serialize)]
struct HeldAmount {
    server: u32,
    names: Vec<String>,
    kind: &'static str,
    held: u64,
    most: u64,
    refused: u64,
}

/// What the clients of a server hold, if the server exports one of `names` or `names` is empty.
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
    let heads = ["SERVER", "KIND", "HELD", "AT MOST", "REFUSED", "NAMES"].map(String::from);
    let cells = rows.iter().map(|row| {
        let names = cell(&row.names.join(", "));
        let [server, held, most, refused] =
            [u64::from(row.server), row.held, row.most, row.refused]
                .map(|number| number.to_string());
        [server, row.kind.to_string(), held, most, refused, names]
    });
    let cells: Vec<_> = cells.collect();
    let columns =
        Columns::new(cells.iter().chain([&heads]), [true, false, true, true, true, false]);
    let mut out = format!("{FAINT}{}{FAINT:#}\n", columns.line(&heads));
    cells.iter().for_each(|row| out += &format!("{}\n", columns.line(row)));
    out
}

/// One server, and the counts of its bindings at the start of an interval.
pub struct ServerBindings {
    pub pid: u32,
    tallies: PeerTallies,
    /// By exported name.
    procedures: BTreeMap<String, Vec<String>>,
    before: Vec<Reading>,
}

impl ServerBindings {
    /// Starts an interval.
    pub fn begin(&mut self) {
        self.before = self.tallies.read();
    }

    /// What each binding has done in the interval, or since it was made. The next interval starts
    /// with the same reading, so no call falls between two intervals.
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

/// Calls of several bindings, local and remote (LRPC, Table I: operations that cross machine
/// boundaries).
#[derive(Serialize)]
pub struct Total {
    bindings: usize,
    calls: u64,
    local: u64,
    remote: u64,
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

/// Checks that all names are of this machine. Servers count in memory, which other machines do not
/// share.
///
/// # Errors
/// A name is on another machine.
pub fn is_here(names: &[String], command: &str) -> Result<(), CommandError> {
    let far = |name: &String| {
        name.split_once("://").map(|(_, rest)| {
            (name.clone(), rest.split_once('/').map_or("", |(_, own)| own).to_string())
        })
    };
    let Some((name, own)) = names.iter().find_map(far) else { return Ok(()) };
    let there = format!("upcall {command} {own}");
    Err(CommandError::usage(format_args!(
        "{name:?} is on another machine, and what its server counts is in that machine's memory. \
         Run `{}` there, for example by ssh",
        there.trim_end()
    )))
}

/// What the command has found.
#[derive(Default)]
struct StatSources {
    servers: Vec<ServerBindings>,
    members: UserMembers,
    objects: UserObjects,
    /// Servers that did not answer.
    silent: Vec<SilentServer>,
}

impl StatSources {
    fn new(args: &StatArgs) -> Self {
        let mut found = Self::default();
        if args.shows_groups() {
            found.members.renew();
        }
        if args.shows_objects() {
            found.objects.renew();
        }
        let sockets = if args.shows_servers() { directory::domains() } else { Vec::new() };
        let silent = SilentServers::new("stat", &args.names);
        for (socket, looked) in sockets.iter().zip(ask_all(&sockets, look)) {
            match looked {
                Ok(server) => found.servers.push(server),
                Err(error) => found.silent.push(silent.add(socket, error)),
            }
        }
        found
    }

    /// The errors of silent servers, apart from those with none of the names that were asked for.
    fn silent(&self, args: &StatArgs) -> impl Iterator<Item = &CommandError> {
        let wanted = |silent: &&SilentServer| {
            args.names.is_empty() || silent.names.iter().any(|name| args.names.contains(name))
        };
        self.silent.iter().filter(wanted).map(|silent| &silent.error)
    }

    fn begin(&mut self) {
        self.servers.iter_mut().for_each(ServerBindings::begin);
        self.members.begin();
        self.objects.begin();
    }
}

/// The rows of all tables.
struct AllRows {
    bindings: Vec<BindingRow>,
    members: Vec<MemberActivity>,
    objects: Vec<ObjectActivity>,
    /// Whether all servers answered that have the names that were asked for.
    complete: bool,
}

impl AllRows {
    fn new(found: &mut StatSources, args: &StatArgs) -> Self {
        let members = found.members.read(&args.names, args.interval);
        let objects = found.objects.read(&args.names, args.interval);
        let bindings = found.servers.iter_mut();
        let bindings = bindings.flat_map(|server| rows(server, &args.names, args.interval));
        let mut bindings: Vec<_> = bindings.collect();
        bindings.sort_by(|a, b| (&a.name, b.calls, a.client).cmp(&(&b.name, a.calls, b.client)));
        let complete = found.silent(args).next().is_none();
        Self { bindings, members, objects, complete }
    }

    /// The errors for names that nothing has. The names of silent servers are not among them.
    fn unknown(&self, found: &StatSources, args: &StatArgs, folder: &Path) -> Vec<CommandError> {
        let exported = found.servers.iter().flat_map(|server| server.procedures.keys());
        let known: BTreeSet<&String> = exported
            .chain(self.bindings.iter().map(|row| &row.name))
            .chain(self.members.iter().map(|row| &row.group))
            .chain(self.objects.iter().map(|row| &row.name))
            .chain(found.silent.iter().flat_map(|silent| &silent.names))
            .collect();
        let unknown = args.names.iter().filter(|name| !known.contains(name));
        unknown.map(|name| args.unknown(name, &known, folder)).collect()
    }

    fn show(&self, args: &StatArgs, folder: &Path) -> Result<(), CommandError> {
        if args.total {
            total(&Total::of(&self.bindings), args.json)
        } else if !args.json {
            show_tables(self, args, folder)
        } else if args.groups {
            print_json(&self.members)
        } else if args.objects {
            print_json(&self.objects)
        } else {
            print_json(&self.bindings)
        }
    }
}

pub fn run(args: &StatArgs) -> CommandResult {
    is_here(&args.names, "stat")?;
    let folder = directory::folder()?;
    directory::sweep();
    let mut found = StatSources::new(args);
    if args.held {
        show_held(&found, args, &folder)?;
        let unknown = AllRows::new(&mut found, args).unknown(&found, args, &folder);
        return Ok(report_all(found.silent(args).chain(&unknown)));
    }
    if let Some(interval) = args.interval {
        found.begin();
        std::thread::sleep(interval);
    }
    let rows = AllRows::new(&mut found, args);
    let unknown = rows.unknown(&found, args, &folder);
    // There is nothing to show of names that are unknown, or of servers that are silent.
    let silent: BTreeSet<&String> = found.silent.iter().flat_map(|silent| &silent.names).collect();
    let seen = |name: &&String| !silent.contains(name);
    let shown = args.names.iter().filter(seen).count();
    if args.json || args.names.is_empty() || unknown.len() < shown {
        rows.show(args, &folder)?;
    }
    for server in found.servers.iter().filter(|server| server.tallies.uncounted() > 0) {
        report(format_args!(
            "process {} has made {} bindings that it does not count",
            server.pid,
            server.tallies.uncounted()
        ));
    }
    let unseen = found.members.silent.values();
    let unseen = unseen.chain(found.objects.silent.values().map(|(_, error)| error));
    let unseen: Vec<_> = unseen.map(|error| CommandError::new(Exit::Refused, error)).collect();
    Ok(report_all(found.silent(args).chain(&unseen).chain(&unknown)))
}

/// Shows what servers hold for their clients.
fn show_held(found: &StatSources, args: &StatArgs, folder: &Path) -> Result<(), CommandError> {
    let rows: Vec<HeldAmount> =
        found.servers.iter().flat_map(|server| held(server, &args.names)).collect();
    if args.json {
        print_json(&rows)
    } else if rows.is_empty() && args.names.is_empty() && found.silent.is_empty() {
        println(format_args!("{FAINT}no server runs in {}{FAINT:#}", folder.display()))
    } else if rows.is_empty() {
        Ok(())
    } else {
        print(held_table(&rows))
    }
}

/// Shows a table for each kind of rows that there are, or a line that says that there are none.
fn show_tables(all: &AllRows, args: &StatArgs, folder: &Path) -> Result<(), CommandError> {
    let AllRows { bindings, members, objects, complete } = all;
    let none = match (bindings.is_empty(), members.is_empty(), objects.is_empty()) {
        (true, true, _) if args.groups => Some("no process is a member of a group"),
        (true, _, true) if args.objects => Some("no process is the home of an object"),
        (true, true, true) if *complete => Some("no client is bound"),
        _ => None,
    };
    if let Some(none) = none {
        println(format_args!("{FAINT}{none} in {}{FAINT:#}", folder.display()))?;
    }
    if !bindings.is_empty() {
        print(table(bindings, args))?;
        if args.sizes {
            print(sizes(bindings))?;
        }
    }
    if !members.is_empty() {
        let between = if bindings.is_empty() { "" } else { "\n" };
        let table = members::table(members, args.pairs, args.interval.is_some());
        print(format_args!("{between}{table}"))?;
    }
    if !objects.is_empty() {
        let between = if bindings.is_empty() && members.is_empty() { "" } else { "\n" };
        print(format_args!("{between}{}", objects::table(objects, args.holds)))?;
    }
    Ok(())
}

impl StatArgs {
    /// The error for a name that none of the servers, groups and objects has that were looked at.
    fn unknown(&self, name: &str, known: &BTreeSet<&String>, folder: &Path) -> CommandError {
        let kind = match (self.shows_servers(), self.shows_groups(), self.shows_objects()) {
            (true, true, _) => "server exports, no group and no object has",
            (true, false, _) => "server exports",
            (_, true, _) => "group has",
            _ => "object has",
        };
        let advice = did_you_mean(name, known.iter().map(|known| known.as_str()));
        let folder = folder.display();
        let text = format!("no {kind} the name {name:?} in {folder}{advice}");
        CommandError::new(Exit::NotFound, text)
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

/// Asks a server for its tallies and for the names of its procedures.
///
/// # Errors
/// The server has ended, does not answer, or refuses this user.
pub fn look(socket: &Path) -> Result<ServerBindings, upcall::BindError> {
    let (peer, tallies) = directory::tallies(socket)?;
    let (_, exports) = directory::list(socket)?;
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

/// What the bindings to `names`, or all bindings if there are none, have done in the interval that
/// [`ServerBindings::begin`] started, or since they were made.
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
            name: since.name,
            interface: since.interface,
        }
    });
    rows.collect()
}

/// The sum of numbers that a server chose.
fn sum(counts: &[u64]) -> u64 {
    counts.iter().fold(0, |sum, &count| sum.saturating_add(count))
}

/// The power of two that a share of the counted values stays below.
fn below(counts: &[u64], share: f64) -> Option<u64> {
    let all = sum(counts);
    let mut seen = 0_u64;
    let at = counts.iter().position(|&count| {
        seen = seen.saturating_add(count);
        seen > 0 && seen as f64 >= share * all as f64
    })?;
    Some(1 << at)
}

fn total(total: &Total, as_json: bool) -> Result<(), CommandError> {
    if as_json {
        return print_json(total);
    }
    println(format_args!(
        "{} calls of {}: {} ({} and {})",
        total.calls,
        counted(total.bindings, "binding"),
        total.shares(),
        total.local,
        total.remote
    ))
}

fn table(rows: &[BindingRow], args: &StatArgs) -> String {
    let calls = if args.interval.is_some() { "CALLS/S" } else { "CALLS" };
    let heads = [
        "NAME", "CLIENT", "SERVER", calls, "ERRORS", "IN", "OUT", "P50", "P99", "SPIN", "DONATE",
        "HAND", "WAKE", "WAIT", "NET",
    ]
    .map(String::from);
    let cells: Vec<[String; 15]> = rows.iter().map(cells).collect();
    let right = std::array::from_fn(|at| at > 0);
    let columns = Columns::new(cells.iter().chain([&heads]), right);
    let mut out = format!("{STRONG}{}{STRONG:#}\n", columns.line(&heads));
    for (row, cells) in rows.iter().zip(&cells) {
        out += &format!("{}\n", columns.line(cells));
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

/// A table of calls by the bytes that they carried.
fn sizes(rows: &[BindingRow]) -> String {
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
    let mut out = format!("\n{STRONG}bytes of arguments and results{STRONG:#}\n");
    let mut seen = 0_u64;
    for (at, &count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
        seen = seen.saturating_add(count);
        let bytes = if at == 0 { "none".to_string() } else { format!("< {}", size(1 << at)) };
        let bar = "#".repeat((count as f64 / top as f64 * 40.0).ceil() as usize);
        out += &format!(
            "{bytes:>10}  {:5.1} %  {:5.1} %  {bar}\n",
            count as f64 / all as f64 * 100.0,
            seen as f64 / all as f64 * 100.0
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::tests::{STEERING, is_clean};

    #[test]
    fn shares_are_shown_by_the_power_that_they_stay_below() {
        assert_eq!(below(&[0; 32], 0.5), None);
        assert_eq!(below(&[0, 0, 10, 0, 1], 0.5), Some(4));
        assert_eq!(below(&[0, 0, 10, 0, 1], 0.99), Some(16));
        assert_eq!(below(&[3], 0.99), Some(1));
    }

    #[test]
    fn calls_are_shown_as_local_or_remote() {
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
            serde_json::json!({
                "bindings": 2,
                "calls": 1000,
                "local": 900,
                "remote": 100,
                "local_share": 0.9,
                "remote_share": 0.1,
            })
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
            let error = is_here(&["math".into(), name.into()], command).unwrap_err().to_string();
            assert!(
                error.contains(name) && error.contains(way) && error.contains("memory"),
                "{error}"
            );
        }
    }

    /// A hostile server may have written anything.
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
        let wild = BindingRow { sizes: vec![most; 32], ..BindingRow::default() };
        assert!(sizes(&[wild.clone(), wild]).contains("100.0 %"));
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
        let text = crate::output::json(&[row]).unwrap();
        assert!(
            is_clean(&text)
                && serde_json::from_str::<serde_json::Value>(&text).unwrap()[0]["interface"]
                    == STEERING,
            "{text}"
        );
    }

    #[test]
    fn times_are_shown_in_a_unit_that_fits() {
        assert_eq!([512, 4096, 2_097_152].map(time), ["< 512 ns", "< 4.1 µs", "< 2.1 ms"]);
    }
}
