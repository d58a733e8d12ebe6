//! The tables of the suite `urpc`: Figures 3 and 4 as numbers, with a row for each T and a column
//! for each configuration, a comparison with the aims, and Table II.

use super::case::{ANCHORS, Part, THREADS, null};
use crate::record::Record;
use crate::report::Report;
use crate::table::{ABSENT, Aim, Kind, Table, aims, figure, ratio, thousands};

/// The names of the tables.
pub(super) const TABLES: [&str; 4] = ["latency", "throughput", "aims", "table-ii"];

/// Makes the tables with figures of `report`.
pub(super) fn tables(report: &Report) -> Vec<Table> {
    let found = Found(&report.records);
    let lines = found.lines();
    let title = "null call by T threads at once: latency, µs (median)";
    let latency = by_threads(&found, &lines, ("latency", title), |r| r.p50_ns / 1e3);
    let latency = latency.map(|table| limits(&found, &lines, table));
    let title = "null call by T threads at once: thousand calls a second, all threads";
    let throughput = by_threads(&found, &lines, ("throughput", title), |r| r.per_s / 1e3);
    [latency, throughput, ratios(&found), parts(&found)].into_iter().flatten().collect()
}

/// A line of the figures: a configuration and a system.
type Line<'a> = (&'a str, &'a str);

/// Access to records.
struct Found<'a>(&'a [Record]);

impl<'a> Found<'a> {
    fn null(&self, config: &str, system: &str, threads: usize) -> Option<&'a Record> {
        let case = null(threads);
        self.0
            .iter()
            .find(|r| r.config.as_deref() == Some(config) && r.system == system && r.case == case)
    }

    fn part(&self, part: Part) -> Option<f64> {
        self.0.iter().find(|record| record.case == part.name()).map(|record| record.p50_ns)
    }

    /// Returns Upcall's lines, by configuration.
    fn lines(&self) -> Vec<Line<'a>> {
        let mut lines: Vec<Line<'_>> = Vec::new();
        for record in self.0.iter().filter(|record| record.system.starts_with("upcall")) {
            if let Some(config) = record.config.as_deref()
                && !lines.contains(&(config, record.system.as_str()))
            {
                lines.push((config, &record.system));
            }
        }
        lines.sort_unstable();
        lines
    }
}

fn heading((config, system): &Line<'_>) -> String {
    if *system == "upcall" { (*config).to_owned() } else { format!("{config} polling") }
}

/// Formats a latency, which may be below 1 µs or above 10.
fn precise(x: Option<f64>) -> String {
    match x {
        None => ABSENT.to_owned(),
        Some(x) if x < 10.0 => format!("{x:.2}"),
        Some(x) => thousands(x),
    }
}

fn by_threads(
    found: &Found<'_>,
    lines: &[Line<'_>],
    (name, title): (&'static str, &str),
    of: impl Fn(&Record) -> f64,
) -> Option<Table> {
    let mut table = Table::new(name, title).names(["T \\ C,S"]).figures(lines.iter().map(heading));
    for threads in THREADS {
        let figures: Vec<_> = lines
            .iter()
            .map(|(config, system)| found.null(config, system, threads).map(&of))
            .collect();
        if figures.iter().any(Option::is_some) {
            table.row(Kind::Plain, [threads], figures.into_iter().map(precise));
        }
    }
    table.if_any()
}

/// Adds the row of the machine's limits, with one call at a time.
fn limits(found: &Found<'_>, lines: &[Line<'_>], mut table: Table) -> Table {
    let of = |line: &Line<'_>| found.null(line.0, "limit", 1).map(|record| record.p50_ns / 1e3);
    if lines.iter().any(|line| of(line).is_some()) {
        table.row(Kind::Limit, ["limit"], lines.iter().map(|line| precise(of(line))));
    }
    table
}

/// Extracts a figure from a record.
type Figure = fn(&Record) -> f64;
const P50: Figure = |record| record.p50_ns;
const RATE: Figure = |record| record.per_s;
const PER_CALL: Figure = |record| 1e9 / record.per_s;

fn ratios(found: &Found<'_>) -> Option<Table> {
    let anchor = |threads| {
        ANCHORS.iter().find(|a| a.config.to_string() == "1,1" && a.threads == Some(threads))
    };
    let us = |threads| anchor(threads).and_then(|anchor| anchor.us);
    let per_s = |threads| anchor(threads).and_then(|anchor| anchor.per_s);
    let paper_most = ANCHORS.iter().find(|a| a.config.to_string() == "2,2").and_then(|a| a.per_s);
    let hand_off = found.null("1,0", "limit", 1).map(P50);
    let mut all = Vec::new();
    for system in ["upcall", "upcall-polling"] {
        let of = |config, threads, figure: Figure| found.null(config, system, threads).map(figure);
        let most =
            |config| THREADS.into_iter().filter_map(|t| of(config, t, RATE)).max_by(f64::total_cmp);
        let named = |what: &str| format!("{what}, {system}");
        let throughput = ratio(of("1,1", 2, RATE), of("1,1", 1, RATE));
        let latency = ratio(of("1,1", 2, P50), of("1,1", 1, P50));
        let processors = ratio(most("2,2"), most("1,1"));
        let alone = ratio(of("1,0", 1, P50), hand_off);
        let shared = ratio(of("1,0", 32, PER_CALL), hand_off);
        all.extend([
            Aim::at_least(named("C=S=1: throughput, T=2 to T=1"), throughput, 1.75)
                .paper(ratio(per_s(2), per_s(1))),
            Aim::at_most(named("C=S=1: latency, T=2 to T=1"), latency, 1.2)
                .paper(ratio(us(2), us(1))),
            Aim::at_least(named("throughput, C=S=2 to C=S=1"), processors, 1.8)
                .paper(ratio(paper_most, per_s(2))),
            Aim::at_most(named("S=0, T=1: latency to hand-off"), alone, 1.25),
            Aim::at_most(named("S=0, T=32: time a call to hand-off"), shared, 0.25),
        ]);
    }
    aims("aims", "ratios of this run", Some("URPC's"), &all)
}

/// Makes Table II: a row for each part, columns for client and server.
fn parts(found: &Found<'_>) -> Option<Table> {
    if Part::ALL.into_iter().all(|part| found.part(part).is_none()) {
        return None;
    }
    let unit = found.part(Part::ProcedureCall);
    let title =
        "parts of a null call on one processor, ns (median); × procedure calls; URPC's µs and ×";
    let mut table = Table::new("table-ii", title)
        .names(["part"])
        .figures(["client", "×", "URPC", "×", "server", "×", "URPC", "×"]);
    let side = |ns: Option<f64>, us: f64| {
        let times = ns.zip(unit).map(|(ns, unit)| ns / unit);
        let paper = us / Part::ProcedureCall.paper_us();
        [figure(ns), figure(times), format!("{us}"), format!("{paper:.1}")]
    };
    let rows: [(&str, Part, Part); 4] = [
        ("send", Part::SendClient, Part::SendServer),
        ("poll", Part::PollClient, Part::PollServer),
        ("receive", Part::ReceiveClient, Part::ReceiveServer),
        ("dispatch", Part::DispatchClient, Part::DispatchServer),
    ];
    for (name, client, server) in rows {
        let sides = [client, server].map(|part| side(found.part(part), part.paper_us()));
        table.row(Kind::Ours, [name], sides.concat());
    }
    let sum = |parts: [Part; 4]| {
        let ns = parts.iter().map(|&part| found.part(part)).sum::<Option<f64>>();
        side(ns, parts.iter().map(|part| part.paper_us()).sum())
    };
    let sides = [sum(rows.map(|row| row.1)), sum(rows.map(|row| row.2))];
    table.row(Kind::Ours, ["total"], sides.concat());
    let call = unit.map_or(ABSENT.to_owned(), |ns| format!("{ns:.2} ns"));
    table.notes.push(format!("A procedure call: {call} here, 7 µs on the paper's Firefly."));
    table.if_any()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::{Mode, Placement};
    use crate::record::{Label, Turn};
    use crate::stats::Summary;
    use crate::table::text;

    fn record(case: &str, system: &str, config: Option<&str>, ns: f64, per_s: f64) -> Record {
        let found = Summary::flat(ns, 5);
        let label = Label {
            suite: "urpc",
            case,
            system,
            placement: Placement::OneCore,
            mode: Mode::Polling,
        };
        let record = label.latency(&[Turn { found, lines: (140.0, 140.0) }]);
        Record { config: config.map(str::to_owned), per_s, ..record }
    }

    fn printed(records: Vec<Record>) -> String {
        let report = Report {
            records,
            notes: vec!["a note".into()],
            failures: vec!["something".into()],
            ..Report::default()
        };
        text::printed(&tables(&report), &report, false)
    }

    #[test]
    fn figures_have_threads_down_and_configurations_across() {
        let text = printed(vec![
            record("null-t1", "upcall", Some("1,1"), 200.0, 5e6),
            record("null-t2", "upcall", Some("1,1"), 220.0, 9e6),
            record("null-t1", "upcall-polling", Some("1,1"), 180.0, 5.5e6),
            record("null-t1", "upcall", Some("1,0"), 6_000.0, 166e3),
            record("null-t32", "upcall", Some("1,0"), 9_000.0, 2e6),
            record("null-t1", "limit", Some("1,0"), 5_000.0, 200e3),
        ]);
        let words: Vec<Vec<&str>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(words[2], ["T", "\\", "C,S", "1,0", "1,1", "1,1", "polling"], "{text}");
        assert_eq!(words[3], ["1", "6.00", "0.20", "0.18"], "{text}");
        assert_eq!(words[4], ["2", "-", "0.22", "-"], "{text}");
        assert_eq!(words[6], ["limit", "5.00", "-", "-"], "{text}");
        let row = |what: &str| text::words(&text, &format!("{what}, upcall "));
        assert_eq!(
            row("C=S=1: throughput, T=2 to T=1"),
            ["1.80", "≥", "1.75", "met", "1.73"],
            "{text}"
        );
        assert_eq!(row("C=S=1: latency, T=2 to T=1")[0], "1.10", "{text}");
        assert_eq!(row("S=0, T=1: latency to hand-off")[0], "1.20", "{text}");
        assert_eq!(row("S=0, T=32: time a call to hand-off")[0], "0.10", "{text}");
        assert!(!text.contains("C=S=2") && !text.contains("procedure call"), "{text}");
        assert!(
            text.contains("note: a note")
                && text.contains("not measured: something")
                && !text.contains('\x1b'),
            "{text}"
        );
    }

    #[test]
    fn parts_are_told_in_procedure_calls() {
        let mut records: Vec<_> =
            Part::ALL.iter().map(|part| record(part.name(), "upcall", None, 10.0, 1e8)).collect();
        records[0].p50_ns = 2.0;
        let text = printed(records);
        let row = |name: &str| text::words(&text, name);
        assert_eq!(row("send"), ["10.0", "5.0", "18", "2.6", "10.0", "5.0", "13", "1.9"], "{text}");
        assert_eq!(
            row("total"),
            ["40.0", "20.0", "54", "7.7", "40.0", "20.0", "53", "7.6"],
            "{text}"
        );
    }
}
