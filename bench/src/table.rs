//! The report as aligned tables, with colours on a terminal.

use std::io::{self, Write};

use crate::case::{BINDS, Case, SETTINGS, THREADS};
use crate::record::Record;
use crate::report::{Properties, Report};

pub(crate) const BOLD: &str = "\x1b[1m";
pub(crate) const DIM: &str = "\x1b[2m";
pub(crate) const GREEN: &str = "\x1b[32m";
pub(crate) const RED: &str = "\x1b[31m";
const PLAIN: &str = "\x1b[0m";

/// Prints the whole `report`.
///
/// # Errors
/// `out` cannot be written.
pub fn print(report: &Report, out: &mut impl Write, colour: bool) -> io::Result<()> {
    let paint = Paint { colour };
    for (placement, mode) in SETTINGS {
        let records: Vec<&Record> =
            report.records.iter().filter(|r| (r.placement, r.mode) == (placement, mode)).collect();
        if records.is_empty() {
            continue;
        }
        writeln!(out, "\n{}", paint.text(BOLD, &format!("{placement}, server {mode}")))?;
        latency(&records, out, &paint)?;
        throughput(&records, out, &paint)?;
    }
    idle(report, out, &paint)?;
    properties(report, out, &paint)?;
    remarks(out, &paint, &report.notes, &report.failures)
}

/// Prints notes and failures.
pub(crate) fn remarks(
    out: &mut impl Write,
    paint: &Paint,
    notes: &[String],
    failures: &[String],
) -> io::Result<()> {
    for note in notes {
        writeln!(out, "note: {note}")?;
    }
    for failure in failures {
        writeln!(out, "{}", paint.text(RED, &format!("not measured: {failure}")))?;
    }
    Ok(())
}

/// Text attributes, if colours are enabled.
pub(crate) struct Paint {
    /// `true` if colours are enabled.
    pub colour: bool,
}

impl Paint {
    pub fn text(&self, style: &str, text: &str) -> String {
        if self.colour { format!("{style}{text}{PLAIN}") } else { text.to_owned() }
    }

    pub fn row(&self, system: &str, text: &str) -> String {
        match system {
            "upcall" => self.text(GREEN, text),
            limit if limit.starts_with("limit") => self.text(DIM, text),
            _ => text.to_owned(),
        }
    }
}

fn latency(records: &[&Record], out: &mut impl Write, paint: &Paint) -> io::Result<()> {
    let heads = ["p50 ns", "p99 ns", "p99.9 ns", "p99.99 ns", "mean ns"]
        .map(|head| format!("{head:>12}"))
        .concat();
    let heads = format!("{heads}{:>9}{:>10}{:>9}", "/ limit", "/ upcall", "line ns");
    let mut headed = false;
    for case in Case::ALL.map(Case::name).into_iter().chain(BINDS) {
        let of_case: Vec<&&Record> = records.iter().filter(|r| r.case == case).collect();
        let p50 = |name: &str| of_case.iter().find(|r| r.system == name).map(|r| r.p50_ns);
        let (limit, upcall) = (p50("limit"), p50("upcall"));
        let mut name = case;
        for record in ordered(&of_case) {
            if !headed {
                writeln!(
                    out,
                    "{}",
                    paint.text(DIM, &format!("{:<14}{:<16}{heads}", "call", "system"))
                )?;
                headed = true;
            }
            let rare = [record.p999_ns, record.p9999_ns].map(|ns| ns.unwrap_or(f64::NAN));
            let times = [record.p50_ns, record.p99_ns, rare[0], rare[1], record.mean_ns];
            let times: String = times.iter().map(|&ns| format!("{:>12}", thousands(ns))).collect();
            let ratios = [
                format!("{:>9}", ratio(record.p50_ns, limit)),
                format!("{:>10}", ratio(record.p50_ns, upcall)),
            ];
            let line = thousands(record.line_ns.unwrap_or(f64::NAN));
            let all: Vec<&Record> = of_case.iter().map(|r| **r).collect();
            let system = match hand_off(record, &all).filter(|_| record.system == "limit") {
                Some(by) => format!("limit ({by})"),
                None => record.system.clone(),
            };
            let row = format!("{name:<14}{system:<16}{times}{}{}{line:>9}", ratios[0], ratios[1]);
            writeln!(out, "{}", paint.row(&record.system, &row))?;
            name = "";
        }
    }
    Ok(())
}

/// Orders records, with the limit first and without the hand-off that it copies.
fn ordered<'a>(records: &[&'a &Record]) -> Vec<&'a Record> {
    let limit = records.iter().find(|r| r.system == "limit");
    let is_copied = |r: &Record| limit.is_some_and(|&&limit| hand_off(limit, &[r]).is_some());
    let rest = records.iter().filter(|r| r.system != "limit" && !is_copied(r));
    limit.into_iter().chain(rest).map(|r| **r).collect()
}

/// Returns the name of the bare hand-off among `records` that `limit` copies, if any.
fn hand_off<'a>(limit: &Record, records: &[&'a Record]) -> Option<&'a str> {
    let renamed = |r: &Record| Record { system: limit.system.clone(), ..r.clone() };
    records.iter().find_map(|r| r.system.strip_prefix("limit-").filter(|_| renamed(r) == *limit))
}

fn throughput(records: &[&Record], out: &mut impl Write, paint: &Paint) -> io::Result<()> {
    let find = |system: &str, callers: usize| {
        let case = format!("null-t{callers}");
        records.iter().find(|r| r.system == system && r.case == case).map(|r| r.per_s / 1e3)
    };
    let mut systems: Vec<&str> = Vec::new();
    for record in
        records.iter().filter(|r| r.case.starts_with("null-t") && !r.system.starts_with("limit-"))
    {
        if !systems.contains(&record.system.as_str()) {
            systems.push(&record.system);
        }
    }
    systems.sort_by_key(|&system| system != "limit");
    if systems.is_empty() {
        return Ok(());
    }
    let heads: String = THREADS.iter().map(|n| format!("{:>9}", format!("t{n}"))).collect();
    writeln!(
        out,
        "{}",
        paint.text(DIM, &format!("{:<24}{heads}", "thousand null calls a second"))
    )?;
    for system in systems {
        let figures: String = THREADS
            .iter()
            .map(|&n| format!("{:>9}", find(system, n).map_or("-".to_owned(), thousands)))
            .collect();
        writeln!(out, "{}", paint.row(system, &format!("{:<10}{system:<18}{figures}", "")))?;
    }
    Ok(())
}

fn idle(report: &Report, out: &mut impl Write, paint: &Paint) -> io::Result<()> {
    if report.idle.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n{}", paint.text(BOLD, "one client bound, nobody calls"))?;
    let heads = format!(
        "{:<14}{:<10}{:>16}{:>16}{:>16}",
        "system", "server", "CPU µs/s", "server KiB", "client KiB"
    );
    writeln!(out, "{}", paint.text(DIM, &heads))?;
    for idle in &report.idle {
        let cpu = format!("{:.1}", idle.cpu_ns_per_s / 1e3);
        let memory: String = idle.memory_kib.iter().map(|kib| format!("{kib:>16}")).collect();
        let row = format!("{:<14}{:<10}{cpu:>16}{memory}", idle.system, idle.mode);
        writeln!(out, "{}", paint.row(idle.system, &row))?;
    }
    writeln!(out)
}

fn properties(report: &Report, out: &mut impl Write, paint: &Paint) -> io::Result<()> {
    if report.properties.is_empty() {
        return Ok(());
    }
    let text = |[system, trust, left, polling, parked]: [&str; 5]| {
        format!("{system:<14}{trust:<14}{left:<44}{polling:>22}{parked:>22}")
    };
    writeln!(out, "{}", paint.text(BOLD, "properties of the systems"))?;
    writeln!(out, "{}", paint.text(DIM, &text(Properties::HEADS)))?;
    for one in &report.properties {
        let row = one.row();
        writeln!(out, "{}", paint.row(one.system, &text(row.each_ref().map(String::as_str))))?;
    }
    writeln!(out)
}

fn ratio(ns: f64, to: Option<f64>) -> String {
    to.filter(|&to| to > 0.0).map_or("-".to_owned(), |to| format!("{:.2}", ns / to))
}

/// Formats a number with grouped thousands; a small one with a decimal.
pub(crate) fn thousands(x: f64) -> String {
    if !x.is_finite() {
        return "-".to_owned();
    }
    if x < 100.0 {
        return format!("{x:.1}");
    }
    let digits = format!("{x:.0}");
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(' ');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::{Mode, Placement};
    use crate::contender::Trust;
    use crate::record::{Label, Turn};
    use crate::remains::Remains;
    use crate::stats::Summary;

    #[test]
    fn numbers_are_readable() {
        assert_eq!(thousands(12.345), "12.3");
        assert_eq!(thousands(123.4), "123");
        assert_eq!(thousands(1_234_567.0), "1 234 567");
        assert_eq!(thousands(f64::NAN), "-");
        assert_eq!(ratio(150.0, Some(100.0)), "1.50");
        assert_eq!(ratio(150.0, None), "-");
    }

    fn record(system: &str, p50_ns: f64) -> Record {
        let found = Summary::flat(p50_ns, 5);
        Label {
            suite: "rpc",
            case: "null",
            system,
            placement: Placement::TwoCores,
            mode: Mode::Polling,
        }
        .latency(&[Turn { found, lines: (140.0, 140.0) }])
    }

    #[test]
    fn the_table_compares_with_limit_and_upcall() {
        let report = Report {
            records: vec![
                record("upcall", 150.0),
                record("limit", 100.0),
                record("iceoryx2", 1500.0),
            ],
            failures: vec!["something".to_owned()],
            properties: vec![Properties {
                system: "upcall",
                trust: Trust::Checked,
                left: Remains { files: 2, shared: (1, 8), sockets: 0 },
                idle: vec![(Mode::Polling, 99.5), (Mode::Parked, 0.0)],
            }],
            ..Report::default()
        };
        let mut out = Vec::new();
        print(&report, &mut out, false).unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[1], "two-cores, server polling");
        assert!(lines[3].starts_with("null          limit"), "{text}");
        assert!(lines[4].contains("upcall") && lines[4].contains("1.50"), "{text}");
        assert!(lines[5].contains("15.00") && lines[5].contains("10.00"), "{text}");
        let words: Vec<&str> = lines[8].split_whitespace().collect();
        let left = ["2", "in", "folders,", "1", "in", "/dev/shm", "(8", "KiB)"];
        assert_eq!(
            words,
            [&["upcall", "checked"][..], &left, &["99.50", "%", "0.00", "%"]].concat()
        );
        assert!(text.contains("not measured: something") && !text.contains('\x1b'), "{text}");
    }
}
