//! Records as a Markdown table, with the machine on which they were taken: the form for documents.

use crate::place;
use crate::record::Record;
use crate::report::{Properties, Report};
use std::fmt::Write;
use std::fs;
use std::io;
use std::path::Path;

/// Writes the records of `report`, and the properties of its systems, as Markdown tables to the
/// file `path`. `-` is standard output.
///
/// # Errors
/// The file cannot be written.
pub fn write(report: &Report, path: &Path) -> io::Result<()> {
    let text = text(&report.records, &machine()) + &properties(&report.properties);
    if path == Path::new("-") {
        print!("{text}");
        return Ok(());
    }
    fs::write(path, text)
}

/// Describes the processor, how many of them this process may use, and the kernel.
fn machine() -> String {
    let model = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = model.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model = model.map_or("unknown processor", |(_, model)| model.trim());
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let count = place::allowed().map_or(0, |cpus| cpus.len());
    format!("{model}, {count} processors, Linux {}", kernel.trim())
}

fn text(records: &[Record], machine: &str) -> String {
    let mut out = format!("Measured on {machine}, with upcall {}.\n\n", env!("CARGO_PKG_VERSION"));
    out += "| case | system | placement | server | median | p99 | p99.99 | mean | per second | \
        line |\n";
    out += "|---|---|---|---|--:|--:|--:|--:|--:|--:|\n";
    for record in records.iter().filter(|record| !is_repeated(record, records)) {
        let case = match &record.config {
            Some(config) => format!("{} ({config})", record.case),
            None => record.case.clone(),
        };
        let [median, p99, mean] = [record.p50_ns, record.p99_ns, record.mean_ns].map(time);
        let [rare, line] =
            [record.p9999_ns, record.line_ns].map(|ns| ns.map_or_else(|| "–".into(), time));
        // Writing to a string does not fail.
        let _ = writeln!(
            out,
            "| {case} | {} | {} | {} | {median} | {p99} | {rare} | {mean} | {} | {line} |",
            record.system,
            record.placement,
            record.mode,
            count(record.per_s),
        );
    }
    out
}

/// Formats the table of properties, if there are any.
fn properties(all: &[Properties]) -> String {
    if all.is_empty() {
        return String::new();
    }
    let row = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let rows: String = all.iter().map(|one| row(&one.row())).collect();
    format!("\n{}|---|---|---|--:|--:|\n{rows}", row(&Properties::HEADS.map(String::from)))
}

/// Returns `true` if the record repeats the best limit's under the name `limit`.
fn is_repeated(record: &Record, records: &[Record]) -> bool {
    let setting = |one: &Record| (one.case.clone(), one.placement, one.mode);
    let is_named = |one: &Record| one.system.starts_with("limit-");
    record.system == "limit"
        && records.iter().any(|one| is_named(one) && setting(one) == setting(record))
}

/// Formats a time with three digits and its unit.
fn time(ns: f64) -> String {
    let units = [("ns", 1.0), ("µs", 1e3), ("ms", 1e6), ("s", 1e9)];
    let fits = units.iter().rev().find(|(_, unit)| ns.abs() >= *unit);
    let (name, unit) = fits.unwrap_or(&units[0]);
    format!("{} {name}", digits(ns / unit))
}

/// Formats a number of events per second with three digits: `1.20 million`.
fn count(per_s: f64) -> String {
    match per_s {
        per_s if per_s >= 1e6 => format!("{} million", digits(per_s / 1e6)),
        per_s if per_s >= 1e3 => format!("{} thousand", digits(per_s / 1e3)),
        _ => digits(per_s),
    }
}

/// Formats a number with three digits.
fn digits(number: f64) -> String {
    let places = match number.abs() {
        number if number >= 99.95 => 0,
        number if number >= 9.995 => 1,
        _ => 2,
    };
    format!("{number:.places$}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::{Mode, Placement};
    use crate::contender::Trust;
    use crate::remains::Remains;

    #[test]
    fn times_and_counts_have_three_digits() {
        let times = [0.4, 9.994, 9.999, 111.4, 999.9, 1234.0, 56_780.0, 2.5e6, 61e9].map(time);
        let expected =
            ["0.40 ns", "9.99 ns", "10.0 ns", "111 ns", "1000 ns", "1.23 µs", "56.8 µs", "2.50 ms"];
        assert_eq!((&times[..8], &*times[8]), (&expected.map(String::from)[..], "61.0 s"));
        assert_eq!([7.0, 5400.0, 1.2e6].map(count), ["7.00", "5.40 thousand", "1.20 million"]);
    }

    #[test]
    fn a_record_is_a_row() {
        let record = Record {
            suite: "rpc".into(),
            case: "null".into(),
            system: "upcall".into(),
            placement: Placement::TwoCores,
            mode: Mode::Parked,
            config: None,
            p50_ns: 6123.0,
            p99_ns: 7000.0,
            p999_ns: None,
            p9999_ns: Some(19_500.0),
            mean_ns: 6200.0,
            per_s: 161_290.0,
            samples: 9,
            line_ns: None,
            peak_kib: None,
            bytes_each: None,
            first_ns: None,
            buffered: None,
            bare_ns: None,
            memcpy_ns: None,
            alone_ns: None,
        };
        let text = text(&[record], "a machine");
        assert!(text.starts_with("Measured on a machine, with upcall "), "{text}");
        let row = "| null | upcall | two-cores | parked | 6.12 µs | 7.00 µs | 19.5 µs | 6.20 µs | \
            161 thousand | – |";
        assert_eq!(text.lines().last(), Some(row));
        let properties = properties(&[Properties {
            system: "unix-socket",
            trust: Trust::Copied,
            left: Remains::default(),
            idle: vec![(Mode::Parked, 0.25)],
        }]);
        let row = "| unix-socket | copied | nothing | - | 0.25 % |";
        assert_eq!((properties.lines().count(), properties.lines().last()), (4, Some(row)));
    }
}
