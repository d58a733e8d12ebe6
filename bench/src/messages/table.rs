//! The tables of the suite `messages`: the cost of a message for either side, its time in transit,
//! and a comparison with the aims.

use super::case::{BYTES, Case, WORDS};
use super::contender::OURS;
use super::own;
use crate::case::Placement::{self, OneCore, TwoCores};
use crate::record::Record;
use crate::report::Report;
use crate::table::{ABSENT, Aim, Kind, Table, aims, figure, hundredths, ratio};

/// The names of the tables.
pub(super) const TABLES: [&str; 9] = [
    "sides",
    "one-way-two-cores",
    "one-way-one-core",
    "idle",
    "aims",
    "upcall",
    "figure-7",
    "table-6",
    "table-6-simulated",
];

/// Makes the tables with figures of `report`.
pub(super) fn tables(report: &Report) -> Vec<Table> {
    let found = Found(&report.records);
    let first = [
        sides(&found),
        one_way(&found, "one-way-two-cores", TwoCores),
        one_way(&found, "one-way-one-core", OneCore),
        idle(report),
        ratios(&found),
        own::table::table(&report.records),
    ];
    first.into_iter().flatten().chain(own::paper_table::tables(&report.records)).collect()
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

fn kind(system: &str) -> Kind {
    if OURS.iter().any(|ours| ours.name == system) { Kind::Ours } else { Kind::of(system) }
}

fn sides(found: &Found<'_>) -> Option<Table> {
    let title =
        "two-cores: ns of the sender for a message of N words, and of the receiver (medians)";
    let rest = ["a word", "0 polled", "p99 of 0", "receive 0", "p99", "million/s"];
    let mut table = Table::new("sides", title).names([""]).figures(WORDS).figures(rest);
    for system in found.systems(TwoCores, |case| !matches!(case, Case::OneWay(_))) {
        let sends = WORDS.iter().map(|&words| figure(found.p50(system, Case::Send(words))));
        let p99 = |case| figure(found.record(system, TwoCores, case).map(|record| record.p99_ns));
        let ends = [
            hundredths(found.slope(system)),
            figure(found.p50(system, Case::SendPolled)),
            p99(Case::Send(0)),
            figure(found.p50(system, Case::Receive)),
            p99(Case::Receive),
            figure(found.per_s(system).map(|per_s| per_s / 1e6)),
        ];
        table.row(kind(system), [system], sends.chain(ends));
    }
    table.if_any()
}

fn one_way(found: &Found<'_>, name: &'static str, placement: Placement) -> Option<Table> {
    let title = format!("{placement}: ns on the way of a message of N bytes (median)");
    let mut table = Table::new(name, title)
        .names([""])
        .figures(BYTES)
        .figures(["p99 of 0", "line", "0 / line"]);
    for system in found.systems(placement, |case| matches!(case, Case::OneWay(_))) {
        let record = |bytes| found.record(system, placement, Case::OneWay(bytes));
        let times = BYTES.iter().map(|&bytes| figure(record(bytes).map(|record| record.p50_ns)));
        let line = record(0).and_then(|record| record.line_ns).filter(|_| placement == TwoCores);
        let ends = [
            figure(record(0).map(|record| record.p99_ns)),
            figure(line),
            hundredths(to_line(record(0)).filter(|_| line.is_some())),
        ];
        table.row(kind(system), [system], times.chain(ends));
    }
    table.if_any()
}

/// Converts a time to round trips of a line.
fn to_line(record: Option<&Record>) -> Option<f64> {
    let record = record?;
    Some(record.p50_ns / record.line_ns?)
}

fn idle(report: &Report) -> Option<Table> {
    let mut table = Table::new("idle", "nothing is sent, and the receiver waits")
        .names([""])
        .figures(["CPU µs/s", "sender KiB", "receiver KiB"]);
    for idle in &report.idle {
        let memory = |at: usize| idle.memory_kib.get(at).map_or(ABSENT.to_owned(), u64::to_string);
        let figures = [format!("{:.1}", idle.cpu_ns_per_s / 1e3), memory(0), memory(1)];
        table.row(kind(&idle.system), [&idle.system], figures);
    }
    table.if_any()
}

fn aims_of(found: &Found<'_>, system: &str) -> Vec<Aim> {
    let null = found.p50(system, Case::OneWay(0));
    let line = to_line(found.record(system, TwoCores, Case::OneWay(0)));
    let ucx = ratio(found.p50("ucx-am", Case::OneWay(0)), null);
    let rate = found.per_s(system);
    vec![
        Aim::at_most("send of a null message, ns", found.p50(system, Case::Send(0)), 12.0),
        Aim::at_most("and a word more, ns", found.slope(system), 0.5),
        Aim::at_most("one way to the line's round trip", line, 0.65),
        Aim::at_least("one way: UCX's active messages to it", ucx, 1.2),
        Aim::at_most("receive of a null message, ns", found.p50(system, Case::Receive), 10.0),
        Aim::at_least("million messages of 8 bytes a second", rate.map(|per_s| per_s / 1e6), 30.0),
        Aim::at_least(
            "the same, to UCX's active messages",
            ratio(rate, found.per_s("ucx-am")),
            3.0,
        ),
    ]
}

fn ratios(found: &Found<'_>) -> Option<Table> {
    let all: Vec<Aim> = OURS.iter().flat_map(|ours| aims_of(found, ours.name)).collect();
    let title = format!("{}, in this run", OURS.map(|ours| ours.name).join(", "));
    aims("aims", &title, None, &all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::Mode;
    use crate::record::{Label, Turn};
    use crate::report::Idle;
    use crate::stats::Summary;
    use crate::table::text;

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
        let idle = vec![Idle { system: ours.to_owned(), mode, cpu_ns_per_s, memory_kib }];
        let report = Report {
            records,
            idle,
            notes: vec!["a note".into()],
            failures: vec!["something".into()],
            ..Report::default()
        };
        let text = text::printed(&tables(&report), &report, false);
        let row = |begin: &str| text::words(&text, begin);
        assert_eq!(row(ours)[..7], ["6.0", "6.4", "6.8", "7.6", "9.2", "12.4", "0.40"], "{text}");
        assert_eq!(row("and a word more, ns")[0], "0.40", "{text}");
        assert_eq!(row("one way to the line's round trip")[0], "0.60", "{text}");
        assert_eq!(row("one way: UCX's active messages to it")[0], "1.50", "{text}");
        assert_eq!(row("the same, to UCX's active messages")[0], "4.00", "{text}");
        assert!(
            text.contains("one-core: ns on the way")
                && text.contains("5.0          10            20"),
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
        let records = vec![record(Case::OneWay(8), "limit", OneCore, 5.0)];
        let report = Report { records, ..Report::default() };
        let text = text::printed(&tables(&report), &report, false);
        assert!(
            text.contains("one-core")
                && !text.contains("two-cores")
                && !text.contains("in this run"),
            "{text}"
        );
    }
}
