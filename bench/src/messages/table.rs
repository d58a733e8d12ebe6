//! The report of the suite `messages`: the cost of a message for either side, its time in transit,
//! and a comparison with the aims.

use std::io::{self, Write};

use super::case::{BYTES, Case, WORDS};
use super::contender::OURS;
use super::own;
use crate::case::Placement::{self, OneCore, TwoCores};
use crate::record::Record;
use crate::report::Report;
use crate::table::{BOLD, DIM, GREEN, Paint, RED, remarks, thousands};

/// Column widths of a name, and of a figure.
const NAME: usize = 16;
const FIGURE: usize = 11;

/// Prints the whole `report`.
///
/// # Errors
/// `out` cannot be written.
pub fn print(report: &Report, out: &mut impl Write, colour: bool) -> io::Result<()> {
    let (paint, found) = (Paint { colour }, Found(&report.records));
    sides(&found, out, &paint)?;
    for placement in [TwoCores, OneCore] {
        one_way(&found, placement, out, &paint)?;
    }
    idle(report, out, &paint)?;
    aims(&found, out, &paint)?;
    own::table::print(&report.records, out, &paint)?;
    own::paper_table::print(&report.records, out, &paint)?;
    writeln!(out)?;
    remarks(out, &paint, &report.notes, &report.failures)
}

/// Access to records.
struct Found<'a>(&'a [Record]);

impl<'a> Found<'a> {
    fn record(&self, system: &str, placement: Placement, case: Case) -> Option<&'a Record> {
        let name = case.name();
        self.0.iter().find(|record| {
            record.system == system && record.placement == placement && record.case == name
        })
    }

    fn p50(&self, system: &str, case: Case) -> Option<f64> {
        self.record(system, TwoCores, case).map(|record| record.p50_ns)
    }

    fn per_s(&self, system: &str) -> Option<f64> {
        self.record(system, TwoCores, Case::Rate).map(|record| record.per_s)
    }

    /// Returns the systems with records of one of these cases.
    fn systems(&self, placement: Placement, cases: impl Fn(Case) -> bool) -> Vec<&'a str> {
        let names: Vec<_> = Case::all().filter(|case| cases(*case)).map(Case::name).collect();
        let mut systems: Vec<&str> = Vec::new();
        for record in self
            .0
            .iter()
            .filter(|record| record.placement == placement && names.contains(&record.case))
        {
            if !systems.contains(&record.system.as_str()) {
                systems.push(&record.system);
            }
        }
        systems
    }

    /// Returns the sender's cost of an additional word, in ns: the slope of the least-squares line
    /// through the cases.
    fn slope(&self, system: &str) -> Option<f64> {
        let points = WORDS
            .iter()
            .filter_map(|&words| Some((words as f64, self.p50(system, Case::Send(words))?)));
        let points: Vec<(f64, f64)> = points.collect();
        if points.len() < 2 {
            return None;
        }
        let mean =
            |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / points.len() as f64;
        let (x, y) = (mean(|point| point.0), mean(|point| point.1));
        let both: f64 = points.iter().map(|point| (point.0 - x) * (point.1 - y)).sum();
        Some(both / points.iter().map(|point| (point.0 - x).powi(2)).sum::<f64>())
    }
}

fn cell(figure: Option<f64>) -> String {
    format!("{:>FIGURE$}", figure.map_or("-".to_owned(), thousands))
}

/// Formats a figure with two decimals: small figures are close to their bars.
fn precise(figure: Option<f64>) -> String {
    format!("{:>FIGURE$}", figure.map_or("-".to_owned(), |figure| format!("{figure:.2}")))
}

fn heads<'a>(heads: impl IntoIterator<Item = &'a str>) -> String {
    let heads: String = heads.into_iter().map(|head| format!("{head:>FIGURE$}")).collect();
    format!("{:<NAME$}{heads}", "")
}

fn sides(found: &Found<'_>, out: &mut impl Write, paint: &Paint) -> io::Result<()> {
    let systems = found.systems(TwoCores, |case| !matches!(case, Case::OneWay(_)));
    if systems.is_empty() {
        return Ok(());
    }
    writeln!(
        out,
        "\n{}",
        paint.text(
            BOLD,
            "two-cores: ns of the sender for a message of N words, and of the receiver (medians)"
        )
    )?;
    let words = WORDS.map(|words| words.to_string());
    let rest = ["a word", "0 polled", "p99 of 0", "receive 0", "p99", "million/s"];
    writeln!(out, "{}", paint.text(DIM, &heads(words.iter().map(String::as_str).chain(rest))))?;
    for system in systems {
        let sends: String =
            WORDS.iter().map(|&words| cell(found.p50(system, Case::Send(words)))).collect();
        let p99 = |case| cell(found.record(system, TwoCores, case).map(|record| record.p99_ns));
        let ends = [
            precise(found.slope(system)),
            cell(found.p50(system, Case::SendPolled)),
            p99(Case::Send(0)),
            cell(found.p50(system, Case::Receive)),
            p99(Case::Receive),
            cell(found.per_s(system).map(|per_s| per_s / 1e6)),
        ];
        writeln!(
            out,
            "{}",
            row(paint, system, &format!("{system:<NAME$}{sends}{}", ends.concat()))
        )?;
    }
    Ok(())
}

fn row(paint: &Paint, system: &str, text: &str) -> String {
    let ours = OURS.iter().any(|ours| ours.name == system);
    paint.row(if ours { "upcall" } else { system }, text)
}

fn one_way(
    found: &Found<'_>,
    placement: Placement,
    out: &mut impl Write,
    paint: &Paint,
) -> io::Result<()> {
    let systems = found.systems(placement, |case| matches!(case, Case::OneWay(_)));
    if systems.is_empty() {
        return Ok(());
    }
    writeln!(
        out,
        "\n{}",
        paint.text(BOLD, &format!("{placement}: ns on the way of a message of N bytes (median)"))
    )?;
    let bytes = BYTES.map(|bytes| bytes.to_string());
    writeln!(
        out,
        "{}",
        paint.text(
            DIM,
            &heads(bytes.iter().map(String::as_str).chain(["p99 of 0", "line", "0 / line"]))
        )
    )?;
    for system in systems {
        let record = |bytes| found.record(system, placement, Case::OneWay(bytes));
        let times: String =
            BYTES.iter().map(|&bytes| cell(record(bytes).map(|record| record.p50_ns))).collect();
        let line = record(0).and_then(|record| record.line_ns).filter(|_| placement == TwoCores);
        let ends = [
            cell(record(0).map(|record| record.p99_ns)),
            cell(line),
            precise(to_line(record(0)).filter(|_| line.is_some())),
        ];
        writeln!(
            out,
            "{}",
            row(paint, system, &format!("{system:<NAME$}{times}{}", ends.concat()))
        )?;
    }
    Ok(())
}

/// Converts a time to round trips of a line.
fn to_line(record: Option<&Record>) -> Option<f64> {
    let record = record?;
    Some(record.p50_ns / record.line_ns?)
}

fn idle(report: &Report, out: &mut impl Write, paint: &Paint) -> io::Result<()> {
    if report.idle.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n{}", paint.text(BOLD, "nothing is sent, and the receiver waits"))?;
    let heads =
        format!("{:<NAME$}{:>16}{:>16}{:>16}", "", "CPU µs/s", "sender KiB", "receiver KiB");
    writeln!(out, "{}", paint.text(DIM, &heads))?;
    for idle in &report.idle {
        let cpu = format!("{:.1}", idle.cpu_ns_per_s / 1e3);
        let memory: String = idle.memory_kib.iter().map(|kib| format!("{kib:>16}")).collect();
        let text = format!("{:<NAME$}{cpu:>16}{memory}", idle.system);
        writeln!(out, "{}", row(paint, idle.system, &text))?;
    }
    Ok(())
}

/// A figure with an aim.
struct Aim {
    what: &'static str,
    found: Option<f64>,
    bar: f64,
    /// `true` if more is better.
    more: bool,
}

fn aims_of(found: &Found<'_>, system: &str) -> Vec<Aim> {
    let ratio = |a: Option<f64>, b: Option<f64>| a.zip(b).map(|(a, b)| a / b);
    let null = found.p50(system, Case::OneWay(0));
    let aim = |what, found, bar, more| Aim { what, found, bar, more };
    let all = vec![
        aim("send of a null message, ns", found.p50(system, Case::Send(0)), 12.0, false),
        aim("and a word more, ns", found.slope(system), 0.5, false),
        aim(
            "one way to the line's round trip",
            to_line(found.record(system, TwoCores, Case::OneWay(0))),
            0.65,
            false,
        ),
        aim(
            "one way: UCX's active messages to it",
            ratio(found.p50("ucx-am", Case::OneWay(0)), null),
            1.2,
            true,
        ),
        aim("receive of a null message, ns", found.p50(system, Case::Receive), 10.0, false),
        aim(
            "million messages of 8 bytes a second",
            found.per_s(system).map(|per_s| per_s / 1e6),
            30.0,
            true,
        ),
        aim(
            "the same, to UCX's active messages",
            ratio(found.per_s(system), found.per_s("ucx-am")),
            3.0,
            true,
        ),
    ];
    all.into_iter().filter(|aim| aim.found.is_some()).collect()
}

fn aims(found: &Found<'_>, out: &mut impl Write, paint: &Paint) -> io::Result<()> {
    for ours in OURS {
        let aims = aims_of(found, ours.name);
        if aims.is_empty() {
            continue;
        }
        writeln!(out, "\n{}", paint.text(BOLD, &format!("{}, in this run", ours.name)))?;
        writeln!(out, "{}", paint.text(DIM, &format!("{:<40}{:>8}{:>10}", "", "found", "aim")))?;
        for Aim { what, found, bar, more } in aims {
            let found = found.unwrap_or(f64::NAN);
            let (sign, met) = if more { ("≥", found >= bar) } else { ("≤", found <= bar) };
            let text = format!("{what:<40}{found:>8.2}{:>10}", format!("{sign} {bar:.2}"));
            writeln!(out, "{}", paint.text(if met { GREEN } else { RED }, &text))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::Mode;
    use crate::record::{Label, Turn};
    use crate::report::Idle;
    use crate::stats::Summary;

    fn record(case: Case, system: &str, placement: Placement, ns: f64) -> Record {
        let found = Summary { p99_ns: 2.0 * ns, p999_ns: 3.0 * ns, ..Summary::flat(ns, 5) };
        let name = case.name();
        let label =
            Label { suite: "messages", case: &name, system, placement, mode: Mode::Polling };
        label.latency(&[Turn { found, lines: (140.0, 140.0) }])
    }

    #[test]
    fn ours_are_told_with_their_aims() {
        let ours = OURS[0].name;
        let mut records: Vec<_> = WORDS
            .iter()
            .map(|&words| record(Case::Send(words), ours, TwoCores, 6.0 + 0.4 * words as f64))
            .collect();
        records.extend([
            record(Case::OneWay(0), ours, TwoCores, 84.0),
            record(Case::OneWay(0), "ucx-am", TwoCores, 126.0),
            record(Case::OneWay(0), ours, OneCore, 2000.0),
            record(Case::Rate, ours, TwoCores, 20.0),
            record(Case::Rate, "ucx-am", TwoCores, 80.0),
        ]);
        let (cpu_ns_per_s, memory_kib, mode) = (5_000.0, vec![10, 20], Mode::Polling);
        let idle = vec![Idle { system: ours, mode, cpu_ns_per_s, memory_kib }];
        let report = Report {
            records,
            idle,
            notes: vec!["a note".into()],
            failures: vec!["something".into()],
            ..Report::default()
        };
        let mut out = Vec::new();
        print(&report, &mut out, false).unwrap();
        let text = String::from_utf8(out).unwrap();
        let row = |begin: &str| {
            text.lines()
                .find(|line| line.starts_with(begin))
                .unwrap_or_else(|| panic!("{begin}: {text}"))
        };
        let words: Vec<_> = row(ours).split_whitespace().collect();
        assert_eq!(words[1..8], ["6.0", "6.4", "6.8", "7.6", "9.2", "12.4", "0.40"], "{text}");
        assert!(
            row("and a word more").contains("0.40") && row("one way to the line").contains("0.60"),
            "{text}"
        );
        assert!(
            row("one way: UCX").contains("1.50") && row("the same, to UCX").contains("4.00"),
            "{text}"
        );
        assert!(
            text.contains("one-core: ns on the way")
                && text.contains("5.0              10              20"),
            "{text}"
        );
        assert!(
            text.contains("note: a note")
                && text.contains("not measured: something")
                && !text.contains('\x1b'),
            "{text}"
        );
    }

    #[test]
    fn what_is_not_there_is_not_told() {
        let mut out = Vec::new();
        print(
            &Report {
                records: vec![record(Case::OneWay(8), "limit", OneCore, 5.0)],
                ..Report::default()
            },
            &mut out,
            false,
        )
        .unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(
            text.contains("one-core")
                && !text.contains("two-cores")
                && !text.contains("in this run"),
            "{text}"
        );
    }
}
