//! The second table: each figure beside its aim.

use crate::record::Record;
use crate::table::{Kind, Table, figure, hundredths, thousands};

/// A row: its text, its records, and its aim.
enum Row {
    /// Time of a record, in nanoseconds.
    Time(&'static str, &'static str, Option<f64>),
    /// Ratio of the times of two records.
    Ratio(&'static str, [&'static str; 2], f64),
    /// Reduction of the rate from one record to another, in percent, by the median windows.
    Less(&'static str, [&'static str; 2], f64),
    /// Rate in millions per second, by the median time.
    Rate(&'static str, &'static str),
    /// A number of events.
    Count(&'static str, &'static str),
}

const ROWS: [Row; 39] = [
    Row::Time("atomic section, 1 other has sent something, ns", "section-1", Some(2.0)),
    Row::Time("the same, 7 others", "section-7", Some(2.0)),
    Row::Time("the same, 30 others", "section-30", Some(2.0)),
    Row::Time("a look whether something waits, 1 other, ns", "available-1", None),
    Row::Time("the same, 7 others", "available-7", None),
    Row::Time("the same, 30 others", "available-30", None),
    Row::Time("receive and run a null handler by poll, ns", "poll-0", Some(10.0)),
    Row::Time("receive of a null message, ns", "poll-0-by-receive", None),
    Row::Time("direct, 0 words, both sides, ns", "direct-0", None),
    Row::Time("  sender", "direct-0-sender", None),
    Row::Time("  receiver", "direct-0-receiver", None),
    Row::Time("buffered, 0 words, both sides, ns", "buffered-0", None),
    Row::Time("  sender", "buffered-0-sender", None),
    Row::Time("  receiver", "buffered-0-receiver", None),
    Row::Ratio("buffered to direct, 0 words", ["buffered-0", "direct-0"], 2.5),
    Row::Time("direct, 4 words, both sides, ns", "direct-4", None),
    Row::Time("  sender", "direct-4-sender", None),
    Row::Time("  receiver", "direct-4-receiver", None),
    Row::Time("buffered, 4 words, both sides, ns", "buffered-4", None),
    Row::Time("  sender", "buffered-4-sender", None),
    Row::Time("  receiver", "buffered-4-receiver", None),
    Row::Ratio("buffered to direct, 4 words", ["buffered-4", "direct-4"], 2.5),
    Row::Time("divert: the send that goes to a segment, ns", "divert", None),
    Row::Time("  the take that follows it there", "divert-take", None),
    Row::Time("  the send that goes home", "divert-home", None),
    Row::Time("  the take that follows it, and leaves the segment", "divert-leave", None),
    Row::Time("divert and back, in all", "divert-and-back", Some(20_000.0)),
    Row::Rate("A to B, nothing buffered for C, million/s", "stopped-nothing"),
    Row::Rate("A to B, C stopped with its buffers full, million/s", "stopped-buffered"),
    Row::Less("percent that A to B lose by it", ["stopped-buffered", "stopped-nothing"], 5.0),
    Row::Time("send to handler, receiver polls, ns", "upcall-polled", None),
    Row::Time("send to upcall, receiver idle", "upcall-idle", None),
    Row::Time("send to upcall, receiver asleep", "upcall-asleep", None),
    Row::Time("send to upcall, three threads yield", "upcall-busy", None),
    Row::Time("send to upcall, a safe point each µs", "upcall-computing", None),
    Row::Time("send to upcall by signal, no safe points", "upcall-signal", None),
    Row::Rate("exactly once and in order, million/s", "exactly-once"),
    Row::Count("messages of them that were diverted", "exactly-once-diverted"),
    Row::Count("diversions", "exactly-once-diversions"),
];

/// Makes the table of these records.
pub(in crate::messages) fn table(records: &[Record]) -> Option<Table> {
    let mut table = Table::new("upcall", "upcall alone, two-cores (medians)")
        .names([""])
        .figures(["found", "p99", "aim", "line ns"]);
    for (row, line) in ROWS.iter().filter_map(|row| Some((row, line(row, records)?))) {
        let Line { what, found, p99, aim, line_ns } = line;
        let kind = match aim {
            None => Kind::Plain,
            Some(aim) if found <= aim => Kind::Met,
            Some(_) => Kind::Missed,
        };
        // Ratios and percents have two decimals, and the times of records one.
        let exact = matches!(row, Row::Ratio(..) | Row::Less(..));
        let shown = if exact { hundredths(Some(found)) } else { figure(Some(found)) };
        let aim = aim.map_or(String::new(), |aim| format!("≤ {}", thousands(aim)));
        table.row(kind, [what], [shown, figure(p99), aim, figure(line_ns)]);
    }
    table.if_any()
}

/// The content of a row.
struct Line {
    what: &'static str,
    found: f64,
    p99: Option<f64>,
    aim: Option<f64>,
    line_ns: Option<f64>,
}

fn line(row: &Row, records: &[Record]) -> Option<Line> {
    let find = |case: &str| records.iter().find(|record| record.case == case);
    let both = |cases: &[&str; 2]| find(cases[0]).zip(find(cases[1]));
    let (what, record, found, p99, aim) = match row {
        Row::Time(what, case, aim) => {
            let record = find(case)?;
            (what, record, record.p50_ns, Some(record.p99_ns), *aim)
        }
        Row::Ratio(what, cases, aim) => {
            let (one, other) = both(cases)?;
            (what, one, one.p50_ns / other.p50_ns, None, Some(*aim))
        }
        Row::Less(what, cases, aim) => {
            let (one, other) = both(cases)?;
            (what, one, 100.0 * (1.0 - other.p50_ns / one.p50_ns), None, Some(*aim))
        }
        Row::Rate(what, case) => {
            let record = find(case)?;
            (what, record, 1e3 / record.p50_ns, None, None)
        }
        Row::Count(what, case) => {
            let record = find(case)?;
            (what, record, record.samples as f64, None, None)
        }
    };
    Some(Line { what, found, p99, aim, line_ns: record.line_ns })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::{Mode, Placement};
    use crate::found::Throughput;
    use crate::messages::own::case::Own;
    use crate::record::{Label, Turn};
    use crate::stats::Summary;

    fn label(case: &str) -> Label<'_> {
        Label {
            suite: "messages",
            case,
            system: "upcall",
            placement: Placement::TwoCores,
            mode: Mode::Polling,
        }
    }

    fn time(case: &str, ns: f64) -> Record {
        let found = Summary { p99_ns: 2.0 * ns, p999_ns: 3.0 * ns, ..Summary::flat(ns, 5) };
        label(case).latency(&[Turn { found, lines: (140.0, 140.0) }])
    }

    fn rate(case: &str, calls: u64) -> Record {
        label(case).throughput(
            1,
            &[Turn { found: Throughput { calls, elapsed_ns: 1_000_000 }, lines: (140.0, 140.0) }],
        )
    }

    #[test]
    fn figures_stand_beside_their_bars() {
        let records = [
            time("section-1", 1.3),
            time("direct-0", 12.0),
            time("buffered-0", 36.0),
            rate("stopped-nothing", 50_000),
            rate("stopped-buffered", 48_000),
            rate("exactly-once-diverted", 1234),
        ];
        let table = table(&records).unwrap();
        let row = |begin: &str| {
            let row = table.rows.iter().find(|row| row.cells[0].starts_with(begin));
            let row = row.unwrap_or_else(|| panic!("{begin}: {table:?}"));
            (row.kind, row.cells[1..].join("|"))
        };
        assert_eq!(row("atomic section, 1"), (Kind::Met, "1.3|2.6|≤ 2.0|140".to_owned()));
        assert_eq!(row("buffered to direct, 0"), (Kind::Missed, "3.00|-|≤ 2.5|140".to_owned()));
        assert_eq!(row("percent").1, "3.85|-|≤ 5.0|140");
        assert_eq!(row("messages of them"), (Kind::Plain, "1 234|-||140".to_owned()));
        assert!(!table.rows.iter().any(|row| row.cells[0].contains("poll")), "{table:?}");
        assert_eq!(super::table(&[]), None);
    }

    #[test]
    fn every_case_is_told() {
        let tells_of = |own: Own| {
            ROWS.iter().any(|row| match row {
                Row::Time(_, case, _) | Row::Rate(_, case) | Row::Count(_, case) => {
                    case.starts_with(own.name())
                }
                Row::Ratio(..) | Row::Less(..) => false,
            })
        };
        assert!(Own::ALL.into_iter().all(|own| own.is_papers() || tells_of(own)));
    }
}
