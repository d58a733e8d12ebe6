//! The tables of the suite `hosts`: the figures of each system, and those with aims.

use super::case::{Case, LIMIT, PEERS, UPCALL};
use crate::record::Record;
use crate::report::Report;
use crate::table::{Aim, Kind, Table, aims, figure, hundredths, ratio};

/// The names of the tables.
pub(super) const TABLES: [&str; 3] = ["calls", "tasks", "aims"];

/// Makes the tables with figures of `report`.
pub(super) fn tables(report: &Report) -> Vec<Table> {
    let records = &report.records;
    [calls(records), tasks(records), aimed(records)].into_iter().flatten().collect()
}

fn find<'a>(records: &'a [Record], case: Case, system: &str) -> Option<&'a Record> {
    records.iter().find(|record| record.case == case.name() && record.system == system)
}

fn calls(records: &[Record]) -> Option<Table> {
    let title =
        "between two hosts: µs a call; × of the limit's median; µs of processor time a call";
    let figures =
        ["p50", "× limit", "p99", "mean", "a second", "client's CPU", "server's CPU", "line, ns"];
    let mut table = Table::new(TABLES[0], title).names(["case", "system"]).figures(figures);
    for case in Case::ALL.into_iter().filter(|case| case.tasks().is_none()) {
        let mut name = case.name();
        let limit = find(records, case, LIMIT.name).map(|limit| limit.p50_ns);
        for record in records.iter().filter(|record| record.case == case.name()) {
            let us = |ns: f64| figure(Some(ns / 1e3));
            let figures = [
                us(record.p50_ns),
                hundredths(ratio(Some(record.p50_ns), limit)),
                us(record.p99_ns),
                us(record.mean_ns),
                figure(Some(record.per_s)),
                figure(record.client_cpu_ns.map(|ns| ns / 1e3)),
                figure(record.server_cpu_ns.map(|ns| ns / 1e3)),
                figure(record.line_ns),
            ];
            table.row(Kind::of(&record.system), [name, record.system.as_str()], figures);
            name = "";
        }
    }
    table.notes.extend(find(records, Case::Idle, UPCALL.name).map(|_| {
        "The figures of idle are of a second without calls, in place of a call.".to_owned()
    }));
    table.if_any()
}

/// PVM's tasks.
fn tasks(records: &[Record]) -> Option<Table> {
    let title = "PVM's tasks on two hosts: µs of a message one way, of a hop, and of a pause";
    let figures = ["p50", "to upcall", "p99", "mean", "line, ns"];
    let mut table = Table::new(TABLES[1], title).names(["case", "system"]).figures(figures);
    for case in Case::ALL.into_iter().filter(|case| case.tasks().is_some()) {
        let mut name = case.name();
        let ours = find(records, case, UPCALL.name).map(|ours| ours.p50_ns);
        for record in records.iter().filter(|record| record.case == case.name()) {
            let us = |ns: f64| figure(Some(ns / 1e3));
            let figures = [
                us(record.p50_ns),
                hundredths(ratio(Some(record.p50_ns), ours)),
                us(record.p99_ns),
                us(record.mean_ns),
                figure(record.line_ns),
            ];
            table.row(Kind::of(&record.system), [name, record.system.as_str()], figures);
            name = "";
        }
    }
    table.notes.extend(find(records, Case::Move, UPCALL.name).map(|_| {
        let name = Case::Move.name();
        format!("The mean of {name} is of the time from the request to the answer.")
    }));
    table.if_any()
}

/// The figures with aims.
fn aimed(records: &[Record]) -> Option<Table> {
    let of = |case, system| find(records, case, system);
    let ours = |case| of(case, UPCALL.name);
    let p50 = |record: Option<&Record>| record.map(|record| record.p50_ns);
    let p99 = |record: Option<&Record>| record.map(|record| record.p99_ns);
    let slowed =
        |system| ratio(p99(of(Case::SmallBesideLarge, system)), p99(of(Case::SmallAlone, system)));
    let rate = ratio(p50(of(Case::In1m, LIMIT.name)), p50(ours(Case::In1m)));
    let per_second = |case| p50(ours(case)).map(|ns| 1e3 / ns);
    let long = ratio(p50(of(Case::Message64k, LIMIT.name)), p50(ours(Case::Message64k)));
    let millis = |case| p50(ours(case)).map(|ns| ns / 1e6);
    let null = |system| ratio(p50(ours(Case::Null)), p50(of(Case::Null, system)));
    let mut all = vec![Aim::at_most("null: × of the time of bare TCP", null(LIMIT.name), 1.5)];
    let callers = PEERS.iter().filter(|peer| peer.takes_part(Case::Null));
    all.extend(callers.map(|peer| {
        Aim::at_most(format!("null: × of the time of {}", peer.name), null(peer.name), 1.0)
    }));
    all.extend([
        Aim::at_most("small-beside-large: p99, × of small-alone", slowed(UPCALL.name), 3.0),
        Aim::at_least("in-1m: × of the rate of TLS over bare TCP", rate, 0.7),
        Aim::at_most("connect: ms", millis(Case::Connect), 5.0),
        Aim::at_most("resume: ms", millis(Case::Resume), 1.0),
        Aim::at_least("message-8: millions a second", per_second(Case::Message8), 1.0),
        Aim::at_least("message-64k: × of the rate of TLS over bare TCP", long, 0.7),
        Aim::at_most("idle: ms of processor time a second", millis(Case::Idle), 0.1),
    ]);
    for case in [Case::PvmOneWay, Case::PvmRing] {
        all.extend(PEERS.iter().filter(|peer| peer.takes_part(case)).map(|peer| {
            let found = ratio(p50(ours(case)), p50(of(case, peer.name)));
            Aim::at_most(format!("{case}: × of the time of {}", peer.name), found, 0.5)
        }));
    }
    let pause = millis(Case::Move);
    all.push(Aim::at_most(format!("{}: pause, ms", Case::Move), pause, 2.0));
    let mut table = aims(TABLES[2], "Figures beside their aims", None, &all)?;
    table.notes.extend(slowed(LIMIT.name).map(|times| {
        format!(
            "Small calls of the limit, which have a connection of their own, have a p99 beside a \
            large argument of {times:.2} × of theirs alone: both share a processor on each side."
        )
    }));
    Some(table)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::{Mode, Placement};
    use crate::record::{Label, Turn};
    use crate::stats::Summary;
    use crate::table::text;

    fn record(case: Case, system: &str, p50_ns: f64, p99_ns: f64) -> Record {
        let (placement, mode) = (Placement::TwoCores, Mode::Parked);
        let found = Summary { p99_ns, ..Summary::flat(p50_ns, 5) };
        let label = Label { suite: "hosts", case: case.name(), system, placement, mode };
        let of_case = label.latency(&[Turn { found, lines: (140.0, 140.0) }]);
        Record { client_cpu_ns: Some(20_000.0), ..of_case }
    }

    #[test]
    fn ours_is_compared_with_the_limit_and_with_the_aims() {
        let records = vec![
            record(Case::Null, "limit", 40_000.0, 90_000.0),
            record(Case::Null, "upcall", 70_000.0, 99_000.0),
            record(Case::SmallAlone, "upcall", 70_000.0, 100_000.0),
            record(Case::SmallAlone, "limit", 40_000.0, 50_000.0),
            record(Case::SmallBesideLarge, "limit", 40_000.0, 225_000.0),
            record(Case::SmallBesideLarge, "upcall", 80_000.0, 250_000.0),
            record(Case::Connect, "upcall", 2e6, 3e6),
            record(Case::PvmRing, "upcall", 30_000.0, 40_000.0),
            record(Case::PvmRing, "pvm", 45_000.0, 90_000.0),
            record(Case::PvmRing, "pvm-direct", 75_000.0, 90_000.0),
            record(Case::Move, "upcall", 1.5e6, 3e6),
        ];
        let report = Report { records, ..Report::default() };
        let text = text::printed(&tables(&report), &report, false);
        let words = text::words(&text, &format!("{:20}upcall", ""));
        assert_eq!(words[..3], ["70.0", "1.75", "99.0"], "{text}");
        let row = |begin: &str| text::words(&text, begin).join(" ");
        assert!(row("null: × of the time of bare TCP").contains("1.75 ≤ 1.5 missed"), "{text}");
        assert!(row("small-beside-large: p99").contains("2.50 ≤ 3 met"), "{text}");
        assert!(row("connect: ms").contains("2.00 ≤ 5 met"), "{text}");
        assert!(row("pvm-ring-24: × of the time of pvm ").contains("0.67 ≤ 0.5 missed"), "{text}");
        assert!(row("pvm-ring-24: × of the time of pvm-direct").contains("0.40 ≤ 0.5 met"));
        assert!(row("move-100k: pause, ms").contains("1.50 ≤ 2 met"), "{text}");
        assert_eq!(row(&format!("{:13}pvm-direct", "")), "75.0 2.50 90.0 75.0 140", "{text}");
        assert!(text.contains("argument of 4.50 × of theirs alone"), "{text}");
        assert!(
            !text.contains("resume") && !text.contains("one-way") && !text.contains("grpc"),
            "{text}"
        );
    }
}
