//! `upcall stat`: what the bindings of this user's servers have done, by their own count.

use crate::{Done, FAINT, STRONG};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use upcall::directory::{self, PeerTallies, Reading};

/// Shows what each binding has done: calls, errors, bytes, time in the server, and how the server came to them.
///
/// SPIN, DONATE, HAND, WAKE and WAIT are shares of the calls: those that the server found by looking, on a processor of its own or on one that the caller gave it; those that woke it, on the caller's processor or
/// elsewhere; those that waited for others to be served. With --json they are numbers of calls: all five together are the calls.
///
/// Servers count in memory that others can only read; looking there asks nothing of them, once they have given it. Times are those of one call in 64, and
/// known to a power of two; they begin when the server takes the request, and end when its reply is sent.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  upcall stat\n  upcall stat files --procedures\n  upcall stat --interval 1\n  upcall stat --sizes\n  \
    upcall stat --json | jq '.[] | {name, client, calls}'"
)]
pub struct Args {
    /// Only bindings to these names.
    names: Vec<String>,
    /// Show the calls of each procedure.
    #[arg(short, long)]
    procedures: bool,
    /// Show how many calls carried how many bytes, of all bindings together (LRPC's Figure 1).
    #[arg(short, long)]
    sizes: bool,
    /// Count for so many seconds, and show that in place of what was done since the binding was made.
    #[arg(short, long, value_name = "SECONDS", value_parser = seconds)]
    interval: Option<Duration>,
    /// Print a JSON array with one object for each binding.
    #[arg(long)]
    json: bool,
}

pub fn seconds(text: &str) -> Result<Duration, String> {
    let given = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    given.filter(|given| !given.is_zero()).ok_or_else(|| "give seconds, such as 2 or 0.5".into())
}

/// What one binding has done.
#[derive(Clone, Default, Serialize)]
pub struct Row {
    pub name: String,
    pub interface: String,
    pub server: u32,
    pub client: u32,
    pub calls: u64,
    /// With an interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calls_per_s: Option<f64>,
    pub refused: u64,
    pub panicked: u64,
    pub unknown: u64,
    /// How the server came to the calls: see `upcall::directory::Came`. Together they are the calls.
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

impl Row {
    /// Calls that ended otherwise than with a result.
    pub fn errors(&self) -> u64 {
        // The server's word, of which nothing is believed.
        self.refused.saturating_add(self.panicked).saturating_add(self.unknown)
    }

    /// How the server came to the calls, in the order of the columns.
    pub fn came(&self) -> [u64; 5] {
        [self.spins, self.donations, self.hand_offs, self.wakes, self.waits]
    }
}

/// One server, and its bindings as they were at a moment.
pub struct Server {
    pub pid: u32,
    tallies: PeerTallies,
    /// By exported name.
    procedures: BTreeMap<String, Vec<String>>,
    before: Vec<Reading>,
}

impl Server {
    /// Counts from now on.
    pub fn begin(&mut self) {
        self.before = self.tallies.read();
    }

    /// What each binding has done since the last such moment, or since it was made. The next begins now, with the same reading: nothing falls between.
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

pub fn run(args: &Args) -> Done {
    directory::sweep();
    let mut silent = Vec::new();
    let mut servers = Vec::new();
    for socket in directory::domains() {
        match look(socket) {
            Ok(server) => servers.push(server),
            Err(error) => silent.push(error.to_string()),
        }
    }
    if let Some(interval) = args.interval {
        servers.iter_mut().for_each(Server::begin);
        std::thread::sleep(interval);
    }
    let mut rows: Vec<Row> = servers.iter_mut().flat_map(|server| rows(server, &args.names, args.interval)).collect();
    rows.sort_by(|a, b| (&a.name, b.calls, a.client).cmp(&(&b.name, a.calls, b.client)));
    if args.json {
        println!("{}", serde_json::to_string_pretty(&rows)?);
    } else if rows.is_empty() {
        anstream::println!("{FAINT}nobody is bound to anything in {}{FAINT:#}", directory::folder().display());
    } else {
        table(&rows, args);
    }
    for server in servers.iter().filter(|server| server.tallies.uncounted() > 0) {
        eprintln!("upcall stat: process {} has made {} bindings that it does not count", server.pid, server.tallies.uncounted());
    }
    for error in &silent {
        eprintln!("upcall stat: {error}");
    }
    Ok(if silent.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Asks a domain for its tallies, and what its procedures are called.
///
/// # Errors
/// It is gone, does not answer, or does not let us.
pub fn look(socket: PathBuf) -> Result<Server, upcall::BindError> {
    let (peer, tallies) = directory::tallies(&socket)?;
    let (_, exports) = directory::list(&socket)?;
    let names = |export: directory::Exported| (export.name, export.procedures.into_iter().map(|(name, _)| name).collect());
    Ok(Server { pid: peer.pid, tallies, procedures: exports.into_iter().map(names).collect(), before: Vec::new() })
}

/// What its bindings to these names, or to all, have done: since the last such moment ([`Server::begin`]), so long ago, or since they were made.
pub fn rows(server: &mut Server, names: &[String], interval: Option<Duration>) -> Vec<Row> {
    let wanted = |read: &Reading| names.is_empty() || names.contains(&read.name);
    let rows = server.take().into_iter().filter(wanted).map(|since| {
        let named = server.procedures.get(&since.name);
        let name = |at: usize| named.and_then(|names| names.get(at)).cloned().unwrap_or_else(|| format!("procedure {at}"));
        let [_, refused, panicked, unknown] = since.outcomes;
        let [spins, donations, hand_offs, wakes, waits] = since.came;
        let calls = since.calls();
        Row {
            server: server.pid,
            client: since.client,
            calls,
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

fn table(rows: &[Row], args: &Args) {
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
    ];
    let cells: Vec<[String; 14]> = rows.iter().map(cells).collect();
    let width = |at: usize| cells.iter().map(|row| row[at].chars().count()).chain([heads[at].len()]).max().unwrap_or(0);
    let widths: [usize; 14] = std::array::from_fn(width);
    let line = |row: [&str; 14]| {
        // The name to the left, numbers to the right.
        let padded = row
            .iter()
            .zip(widths)
            .enumerate()
            .map(|(at, (text, width))| if at == 0 { format!("{text:width$}") } else { format!("{text:>width$}") });
        padded.collect::<Vec<_>>().join("  ")
    };
    anstream::println!("{STRONG}{}{STRONG:#}", line(heads));
    for (row, cells) in rows.iter().zip(&cells) {
        println!("{}", line(std::array::from_fn(|at| cells[at].as_str())));
        if args.procedures {
            let mut procedures: Vec<_> = row.procedures.iter().collect();
            procedures.sort_by_key(|(name, calls)| (std::cmp::Reverse(**calls), *name));
            procedures.iter().for_each(|(name, calls)| anstream::println!("  {FAINT}{calls:>12}  {name}{FAINT:#}"));
        }
    }
    if args.sizes {
        sizes(rows);
    }
}

fn cells(row: &Row) -> [String; 14] {
    let [spins, donations, hand_offs, wakes, waits] = row.came().map(|calls| share(calls, row.calls));
    let calls = row.calls_per_s.map_or_else(|| row.calls.to_string(), |rate| format!("{rate:.0}"));
    [
        row.name.clone(),
        row.client.to_string(),
        row.server.to_string(),
        calls,
        row.errors().to_string(),
        crate::size(row.bytes_in),
        crate::size(row.bytes_out),
        row.p50_below_ns.map_or_else(|| "-".into(), time),
        row.p99_below_ns.map_or_else(|| "-".into(), time),
        spins,
        donations,
        hand_offs,
        wakes,
        waits,
    ]
}

/// `87%`, `<1%`; nothing is `-`.
pub fn share(part: u64, all: u64) -> String {
    match part as f64 / all.max(1) as f64 * 100.0 {
        0.0 => "-".into(),
        share if share < 1.0 => "<1%".into(),
        // Not all, if it is not.
        share => format!("{:.0}%", if part == all { share } else { share.min(99.0) }),
    }
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
fn sizes(rows: &[Row]) {
    let most = rows.iter().map(|row| row.sizes.len()).max().unwrap_or(0);
    let counts: Vec<u64> = (0..most)
        .map(|at| rows.iter().filter_map(|row| row.sizes.get(at)).fold(0, |sum: u64, &calls| sum.saturating_add(calls)))
        .collect();
    let all = sum(&counts).max(1);
    let top = counts.iter().copied().max().unwrap_or(0).max(1);
    anstream::println!("\n{STRONG}bytes of arguments and results{STRONG:#}");
    let mut seen = 0_u64;
    for (at, &count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
        seen = seen.saturating_add(count);
        let bytes = if at == 0 { "none".to_string() } else { format!("< {}", crate::size(1 << at)) };
        let bar = "#".repeat((count as f64 / top as f64 * 40.0).ceil() as usize);
        println!("{bytes:>10}  {:5.1} %  {:5.1} %  {bar}", count as f64 / all as f64 * 100.0, seen as f64 / all as f64 * 100.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_told_by_the_power_that_they_stay_below() {
        assert_eq!(below(&[0; 32], 0.5), None);
        assert_eq!(below(&[0, 0, 10, 0, 1], 0.5), Some(4));
        assert_eq!(below(&[0, 0, 10, 0, 1], 0.99), Some(16));
        assert_eq!(below(&[3], 0.99), Some(1));
    }

    #[test]
    fn shares_of_calls_are_told_in_whole_parts_of_a_hundred() {
        let all = [(0, 0), (0, 9), (1, 1000), (1, 100), (999, 1000), (7, 7)].map(|(part, all)| share(part, all));
        assert_eq!(all, ["-", "-", "<1%", "1%", "99%", "100%"]);
    }

    /// What a hostile server may have written.
    #[test]
    fn nonsense_is_shown_as_some_numbers() {
        let most = u64::MAX;
        let row = Row { refused: most, panicked: most, unknown: 1, calls: 3, spins: most, bytes_in: most, ..Row::default() };
        assert_eq!(row.errors(), most);
        assert_eq!(below(&[most; 32], 0.99), Some(1));
        assert_eq!((cells(&row)[9].as_str(), cells(&row)[5].as_str()), ("99%", "16 EiB"));
        sizes(&[Row { sizes: vec![most; 32], ..Row::default() }, Row { sizes: vec![most; 32], ..Row::default() }]);
    }

    #[test]
    fn times_are_told_in_a_unit_that_fits() {
        assert_eq!([512, 4096, 2_097_152].map(time), ["< 512 ns", "< 4.1 µs", "< 2.1 ms"]);
    }
}
