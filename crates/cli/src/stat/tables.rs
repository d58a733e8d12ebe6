//! The tables of bindings, of sizes of calls, and of what servers hold for their clients.

use super::StatArgs;
use super::bindings::{BindingRow, ServerBindings, Total, sum};
use crate::exit::CommandError;
use crate::output::{
    Columns, FAINT, STRONG, cell, counted, line, print_json, println, share, size,
};
use serde::Serialize;
use upcall::directory;

/// What all clients of a server hold of one kind of resource.
#[derive(Serialize)]
pub struct HeldAmount {
    server: u32,
    names: Vec<String>,
    kind: &'static str,
    held: u64,
    most: u64,
    refused: u64,
}

/// What the clients of a server hold, if the server exports one of `names` or `names` is empty.
pub fn held(server: &ServerBindings, names: &[String]) -> Vec<HeldAmount> {
    if !names.is_empty() && !server.procedures.keys().any(|name| server.is_named(name, names)) {
        return Vec::new();
    }
    let exported: Vec<String> = server.procedures.keys().map(|name| server.full(name)).collect();
    let kinds = directory::HELD.into_iter().zip(server.counts.holdings());
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

pub fn held_table(rows: &[HeldAmount]) -> String {
    let heads = ["SERVER", "KIND", "HELD", "AT MOST", "REFUSED", "NAMES"].map(String::from);
    let cells = rows.iter().map(|row| {
        let names = cell(&row.names.join(", "));
        let [held, most, refused] = [row.held, row.most, row.refused].map(|of| of.to_string());
        let server = if row.server == 0 { "-".into() } else { row.server.to_string() };
        [server, row.kind.to_string(), held, most, refused, names]
    });
    let cells: Vec<_> = cells.collect();
    let columns =
        Columns::new(cells.iter().chain([&heads]), [true, false, true, true, true, false]);
    let mut out = format!("{FAINT}{}{FAINT:#}\n", columns.line(&heads));
    cells.iter().for_each(|row| out += &format!("{}\n", columns.line(row)));
    out
}

pub fn total(total: &Total, as_json: bool) -> Result<(), CommandError> {
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

pub fn table(rows: &[BindingRow], args: &StatArgs) -> String {
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
        row.server(),
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
pub fn sizes(rows: &[BindingRow]) -> String {
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
    use super::super::bindings::below;
    use super::*;
    use crate::expect::ExpectArgs;
    use crate::output::tests::{STEERING, is_clean};
    use std::collections::BTreeMap;

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
            made: false,
            holds: false,
            pairs: false,
            interval: None,
            expect: ExpectArgs::default(),
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
