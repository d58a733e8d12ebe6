//! The report of the suite `threads`: a row for each case, a column for each system.

use std::io::{self, Write};

use super::case::Case;
use crate::report::{Idle, Report};
use crate::table::{BOLD, DIM, Paint, remarks, thousands};

/// Column widths of a name, and of a figure.
const NAME: usize = 24;
const FIGURE: usize = 12;

/// Prints the whole `report`.
///
/// # Errors
/// `out` cannot be written.
pub fn print(report: &Report, out: &mut impl Write, colour: bool) -> io::Result<()> {
    let paint = Paint { colour };
    let systems = systems(report);
    if !systems.is_empty() {
        operations(report, &systems, out, &paint)?;
        writeln!(out)?;
    }
    remarks(out, &paint, &report.notes, &report.failures)
}

/// Returns the systems with figures in the order of the records: Upcall, the floor, the peers.
fn systems(report: &Report) -> Vec<&str> {
    let mut systems: Vec<&str> = Vec::new();
    for name in report
        .idle
        .iter()
        .map(|idle| idle.system)
        .chain(report.records.iter().map(|record| record.system.as_str()))
    {
        if !systems.contains(&name) {
            systems.push(name);
        }
    }
    // `limit` has no idle figures, so it appears late.
    systems.sort_by_key(|system| match *system {
        "upcall" => 0,
        "limit" => 1,
        _ => 2,
    });
    systems
}

/// Returns the cases with figures, in the order of their measurement.
fn cases(report: &Report) -> Vec<&str> {
    let mut cases: Vec<&str> = Vec::new();
    for record in &report.records {
        if !cases.contains(&record.case.as_str()) {
            cases.push(&record.case);
        }
    }
    cases
}

/// Returns the paper's figure for its threads, in procedure calls.
fn paper(name: &str) -> Option<f64> {
    Case::named(name)?.paper().map(|(urpc, _)| urpc)
}

fn operations(
    report: &Report,
    systems: &[&str],
    out: &mut impl Write,
    paint: &Paint,
) -> io::Result<()> {
    let find = |case: &str, system: &str| {
        report.records.iter().find(|r| r.case == case && r.system == system)
    };
    let p50 = |case: &str, system: &str| find(case, system).map(|record| record.p50_ns);
    let one_call = p50(&Case::ProcedureCall.name(), "upcall");
    let cases = cases(report);

    writeln!(
        out,
        "\n{}",
        paint.text(
            BOLD,
            "one processor, ns an operation (median); in brackets the best peer's as \
            a multiple of ours"
        )
    )?;
    let heads: String = systems.iter().map(|&system| head(system)).collect();
    let calls = if one_call.is_some() {
        format!("{:>10}{:>8}", "× call", "URPC's")
    } else {
        String::new()
    };
    writeln!(out, "{}", paint.text(DIM, &format!("{:<NAME$}{heads}{calls}", "operation")))?;
    for &case in &cases {
        let peers = systems.iter().filter(|system| !["upcall", "limit"].contains(*system));
        let best = peers.filter_map(|system| p50(case, system)).min_by(f64::total_cmp);
        let ratio = best.zip(p50(case, "upcall")).map(|(best, ours)| best / ours);
        let figures = systems.iter().map(|&system| figure(system, p50(case, system), ratio, paint));
        let figures: String = figures.collect();
        let times = one_call.zip(p50(case, "upcall")).map(|(call, ours)| ours / call);
        let calls = match one_call {
            Some(_) => format!("{:>10}{:>8}", multiple(times), multiple(paper(case))),
            None => String::new(),
        };
        writeln!(out, "{case:<NAME$}{figures}{}", paint.text(DIM, &calls))?;
    }
    for case in &cases {
        row(out, paint, systems, &format!("{case}, first"), |system| find(case, system)?.first_ns)?;
    }
    let kib = |case: &str, system: &str| find(case, system)?.bytes_each.map(|bytes| bytes / 1024.0);
    for case in &cases {
        row(out, paint, systems, &format!("{case}, KiB each"), |system| kib(case, system))?;
    }
    let idle = |of: fn(&Idle) -> f64| {
        move |system: &str| report.idle.iter().find(|idle| idle.system == system).map(of)
    };
    row(out, paint, systems, "1000 asleep, CPU µs/s", idle(|idle| idle.cpu_ns_per_s / 1e3))?;
    row(
        out,
        paint,
        systems,
        "1000 asleep, peak MiB",
        idle(|idle| idle.memory_kib[0] as f64 / 1024.0),
    )
}

/// Prints a row without a ratio, if any system has a figure.
fn row(
    out: &mut impl Write,
    paint: &Paint,
    systems: &[&str],
    name: &str,
    of: impl Fn(&str) -> Option<f64>,
) -> io::Result<()> {
    if systems.iter().all(|system| of(system).is_none()) {
        return Ok(());
    }
    let figures: String =
        systems.iter().map(|&system| figure(system, of(system), None, paint)).collect();
    writeln!(out, "{name:<NAME$}{figures}")
}

fn width(system: &str) -> usize {
    // Upcall's figure is followed by the ratio.
    if system == "upcall" { FIGURE + 8 } else { FIGURE }
}

fn head(system: &str) -> String {
    match system {
        "upcall" => format!("{system:>FIGURE$}{:8}", ""),
        _ => format!("{system:>FIGURE$}"),
    }
}

fn figure(system: &str, figure: Option<f64>, ratio: Option<f64>, paint: &Paint) -> String {
    let text = figure.map_or("-".to_owned(), thousands);
    let ratio = ratio
        .filter(|_| system == "upcall" && figure.is_some())
        .map_or(String::new(), |ratio| format!(" ({ratio:.1}×)"));
    let rest = width(system) - FIGURE;
    paint.row(system, &format!("{text:>FIGURE$}{ratio:<rest$}"))
}

fn multiple(times: Option<f64>) -> String {
    times.map_or("-".to_owned(), |times| format!("{times:.0}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::{Mode, Placement};
    use crate::record::{Label, Record, Turn};
    use crate::stats::Summary;

    fn record(case: &str, system: &str, ns: f64, bytes_each: Option<f64>) -> Record {
        let found = Summary::flat(ns, 5);
        let label = Label {
            suite: "threads",
            case,
            system,
            placement: Placement::OneCore,
            mode: Mode::Polling,
        };
        Record { bytes_each, ..label.latency(&[Turn { found, lines: (140.0, 140.0) }]) }
    }

    #[test]
    fn ours_is_compared_with_the_best_peer_and_the_paper() {
        let report = Report {
            records: vec![
                record("procedure-call", "upcall", 2.0, None),
                record("fork-join", "upcall", 40.0, None),
                record("fork-join", "go", 400.0, None),
                record("fork-join", "limit", 18.0, None),
                record("fork-join", "pthread", 26_000.0, None),
                record("alive-100k", "upcall", 1000.0, Some(2048.0)),
            ],
            idle: vec![Idle {
                system: "upcall",
                mode: Mode::Parked,
                cpu_ns_per_s: 12_300.0,
                memory_kib: vec![1024],
            }],
            failures: vec!["something".to_owned()],
            ..Report::default()
        };
        let mut out = Vec::new();
        print(&report, &mut out, false).unwrap();
        let text = String::from_utf8(out).unwrap();
        let words: Vec<Vec<&str>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(
            words[2],
            ["operation", "upcall", "limit", "go", "pthread", "×", "call", "URPC's"],
            "{text}"
        );
        assert_eq!(words[3], ["procedure-call", "2.0", "-", "-", "-", "1", "1"], "{text}");
        assert_eq!(
            words[4],
            ["fork-join", "40.0", "(10.0×)", "18.0", "400", "26", "000", "20", "15"],
            "{text}"
        );
        assert_eq!(words[5], ["alive-100k", "1", "000", "-", "-", "-", "500", "-"], "{text}");
        assert_eq!(words[6], ["alive-100k,", "KiB", "each", "2.0", "-", "-", "-"], "{text}");
        assert_eq!(words[7], ["1000", "asleep,", "CPU", "µs/s", "12.3", "-", "-", "-"], "{text}");
        assert!(text.contains("not measured: something") && !text.contains('\x1b'), "{text}");
    }
}
