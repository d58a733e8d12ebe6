//! The tables of the suite `pvm`: one for each of the paper's figures, with the paper's own below,
//! and each figure that has an aim.

use super::bars;
use super::case::{
    BALANCES, BYTES, Case, IDLES, LAPLACES, MOVES, PAPERS, RINGS, SAVES, STARTS, SWITCHES, mflops,
};
use super::contender::{Contender, OURS, PEERS};
use super::paper::{FIGURE_2, FIGURE_3, FIGURE_5, FIGURE_6, FIGURE_7, SEQUENTIAL, hop_ns};
use crate::case::Placement::{self, TwoCores};
use crate::record::Record;
use crate::report::Report;
use crate::table::{Kind, Table, aims, figure, hundredths, ratio, thousands};

/// The names of the tables.
pub(super) const TABLES: [&str; 12] = [
    "figure-2",
    "figure-3",
    "figure-3-bare",
    "figure-5",
    "figure-7",
    "start",
    "idle",
    "moves",
    "saves",
    "laplace-paper",
    "balance",
    "aims",
];

/// Makes the tables with figures of `report`.
pub(super) fn tables(report: &Report) -> Vec<Table> {
    let records = &report.records[..];
    let all = [
        switches(records),
        one_way(records),
        bare(records),
        ring(records),
        laplace(records),
        start(records),
        idle(records),
        moves(records),
        saves(records),
        paper(records),
        balance(records),
        aims("aims", "what is aimed at", None, &bars::all(records)),
    ];
    all.into_iter().flatten().collect()
}

/// Returns the median of a case, of Upcall or of the machine, on one processor.
pub(super) fn here(records: &[Record], system: &str, case: Case) -> Option<f64> {
    at(records, system, Placement::OneCore, case).map(|record| record.p50_ns)
}

/// The record of a case.
pub(super) fn at<'a>(
    records: &'a [Record],
    system: &str,
    placement: Placement,
    case: Case,
) -> Option<&'a Record> {
    let name = case.name();
    records.iter().find(|record| {
        record.system == system && record.placement == placement && record.case == name
    })
}

fn multiple(ratio: Option<f64>) -> String {
    match ratio {
        None => String::new(),
        Some(ratio) if ratio < 9.95 => format!("× {ratio:.2}"),
        Some(ratio) => format!("× {}", thousands(ratio.round())).replace(".0", ""),
    }
}

fn switches(records: &[Record]) -> Option<Table> {
    let call = here(records, "limit", Case::ProcedureCall);
    let limits =
        [("procedure call", Case::ProcedureCall), ("two processes, by pipes", Case::SwitchProcess)];
    let limits =
        limits.map(|(name, case)| (name.to_owned(), here(records, "limit", case), Kind::Plain));
    let own = SWITCHES.map(|ulps| {
        (format!("ULPs, {ulps}"), here(records, "upcall", Case::Switch(ulps)), Kind::Ours)
    });
    let mut table = Table::new("figure-2", "Figure 2: from one to the next")
        .names([""])
        .figures(["ns", "× call"]);
    for (name, ns, kind) in limits.into_iter().chain(own) {
        if let Some(ns) = ns {
            table.row(kind, [name], [Some(ns), call.map(|call| ns / call)].map(figure));
        }
    }
    let [call, ulp, process] = FIGURE_2;
    table.notes.push(format!(
        "1994: a call {call} µs, ULPs {ulp} µs (× {:.2}), processes {process:.0} µs (× {:.0}).",
        ulp / call,
        process / call
    ));
    table.if_any()
}

/// Returns the contenders that have a row in the tables, once each.
fn rows() -> impl Iterator<Item = (Contender, String)> {
    let all = OURS.into_iter().chain(PEERS);
    all.filter(|one| one.takes_part(Case::Ring(2))).map(|one| {
        let place = if one.placement == Placement::TwoCores { ", two cores" } else { "" };
        (one, format!("{}{place}", one.name))
    })
}

/// Adds a row of a figure of each case for all contenders that have it. Rows of others are followed
/// by multiples of Upcall's figures.
fn matrix<const N: usize>(
    records: &[Record],
    cases: [Case; N],
    of: fn(f64) -> f64,
    table: &mut Table,
) {
    for (one, name) in rows() {
        let found = cases
            .map(|case| at(records, one.name, one.placement, case).map(|record| of(record.p50_ns)));
        if found.iter().all(Option::is_none) {
            continue;
        }
        table.row(Kind::of(one.name), [name], found.map(figure));
        if one.name != "upcall" {
            let ours = cases.map(|case| here(records, "upcall", case).map(of));
            let ratios = found.into_iter().zip(ours).map(|(found, ours)| ratio(found, ours));
            let ratios: Vec<_> = ratios.map(multiple).collect();
            if ratios.iter().any(|ratio| !ratio.is_empty()) {
                table.row(Kind::Derived, ["  to upcall"], ratios);
            }
        }
    }
}

fn any(records: &[Record], cases: impl IntoIterator<Item = Case>) -> bool {
    cases.into_iter().any(|case| records.iter().any(|record| record.case == case.name()))
}

fn one_way(records: &[Record]) -> Option<Table> {
    let cases = BYTES.map(Case::OneWay);
    if !any(records, cases) {
        return None;
    }
    let title = "Figure 3: one way, packed and unpacked, written and checked, ns by bytes";
    let mut table = Table::new("figure-3", title).names(["bytes"]).figures(BYTES);
    matrix(records, cases, |ns| ns, &mut table);
    for (at, name) in ["1994: PVM, µs", "1994: UPVM, µs"].into_iter().enumerate() {
        let us = FIGURE_3.map(|(_, ms)| figure(Some(1e3 * ms[at])));
        table.row(Kind::Paper, [name], us);
    }
    table.if_any()
}

/// Makes the table of messages without writing and checking.
fn bare(records: &[Record]) -> Option<Table> {
    let cases = BYTES.map(Case::OneWay);
    let title = "Figure 3, neither written nor checked, ns by bytes";
    let mut table = Table::new("figure-3-bare", title).names(["bytes"]).figures(BYTES);
    let figures = |contender: &Contender, of: fn(&Record) -> Option<f64>| {
        cases.map(|case| at(records, contender.name, contender.placement, case).and_then(of))
    };
    for (contender, name) in rows() {
        let bare = figures(&contender, |record| record.bare_ns);
        if bare.iter().any(Option::is_some) {
            table.row(Kind::of(contender.name), [name], bare.map(figure));
        }
        let copies =
            figures(&contender, |r| bars::in_copies(r).filter(|_| r.memcpy_ns > Some(30.0)));
        let copy = figures(&contender, |record| record.memcpy_ns);
        let is_ours = (contender.name, contender.placement) == ("upcall", Placement::OneCore);
        if is_ours && copy.iter().any(Option::is_some) {
            table.row(Kind::Plain, ["a copy"], copy.map(figure));
            table.row(Kind::Plain, ["upcall, in copies"], copies.map(figure));
        }
    }
    table.if_any()
}

fn ring(records: &[Record]) -> Option<Table> {
    let cases = RINGS.map(Case::Ring);
    if !any(records, cases) {
        return None;
    }
    let title = "Figures 5 and 6: a hop in a ring, ns by tasks";
    let mut table = Table::new("figure-5", title).names(["tasks"]).figures(RINGS);
    matrix(records, cases, |ns| ns, &mut table);
    let mut hops = |name: &str, ms: [f64; 8]| {
        let hops = FIGURE_5.iter().zip(ms).map(|((tasks, _), ms)| hop_ns(*tasks, ms) / 1e3);
        // The paper has no ring of 1000.
        let hops = hops.map(Some).chain([None]).map(figure);
        table.row(Kind::Paper, [format!("1994: {name}, µs")], hops);
    };
    for (at, name) in ["PVM", "UPVM"].into_iter().enumerate() {
        hops(name, FIGURE_5.map(|(_, ms)| ms[at]));
    }
    let two = [
        "PVM, 2 nodes, intlv",
        "PVM, 2 nodes, blocks",
        "UPVM, 2 nodes, intlv",
        "UPVM, 2 nodes, blocks",
    ];
    for (at, name) in two.into_iter().enumerate() {
        hops(name, FIGURE_6.map(|(_, ms)| ms[at]));
    }
    table.if_any()
}

fn laplace(records: &[Record]) -> Option<Table> {
    let cases = LAPLACES.map(Case::Laplace);
    if !any(records, cases) {
        return None;
    }
    let title = "Figure 7: Laplace of 128 x 128, Mflops by tasks";
    let mut table = Table::new("figure-7", title).names(["tasks"]).figures(LAPLACES);
    matrix(records, cases, mflops, &mut table);
    let alone = cases.map(|case| {
        at(records, "upcall", Placement::OneCore, case).and_then(|record| record.alone_ns)
    });
    if alone.iter().any(Option::is_some) {
        let figures = alone.map(|ns| figure(ns.map(mflops)));
        table.row(Kind::Plain, ["one task, in as many blocks"], figures);
    }
    for (at, name) in ["1994: PVM", "1994: UPVM"].into_iter().enumerate() {
        let of = |tasks: usize| match tasks {
            1 => Some(SEQUENTIAL),
            _ => FIGURE_7.iter().find(|(known, _)| *known == tasks).map(|(_, mflops)| mflops[at]),
        };
        table.row(Kind::Paper, [name], LAPLACES.map(|tasks| hundredths(of(tasks))));
    }
    table.if_any()
}

fn start(records: &[Record]) -> Option<Table> {
    let title = "start, until it has sent a message from its main, µs a task by tasks at once";
    let mut table = Table::new("start", title).names(["tasks"]).figures(STARTS);
    matrix(records, STARTS.map(Case::Start), |ns| ns / 1e3, &mut table);
    table.if_any()
}

fn idle(records: &[Record]) -> Option<Table> {
    let title = "tasks that wait for a message: processor time, memory with that of all that runs \
        them";
    let mut table = Table::new("idle", title).names([""]).figures(["tasks", "µs/s", "KiB each"]);
    for (one, name) in rows() {
        for tasks in IDLES {
            let record = at(records, one.name, one.placement, Case::Idle(tasks));
            let Some(record) = record else { continue };
            let kib = record.bytes_each.map(|bytes| bytes / 1024.0);
            let figures = [tasks.to_string(), figure(Some(record.p50_ns / 1e3)), figure(kib)];
            table.row(Kind::of(one.name), [&name], figures);
        }
    }
    table.if_any()
}

fn moves(records: &[Record]) -> Option<Table> {
    let title = "a task that moves between two processes, µs by its memory";
    let mut table = Table::new("moves", title).names([""]).figures(MOVES);
    let mut row = |kind, system, what: String, of: fn(&Record) -> f64| {
        let found = MOVES.map(|size| at(records, system, TwoCores, Case::Move(size)));
        if found.iter().any(Option::is_some) {
            let us = found.map(|record| figure(record.map(|record| of(record) / 1e3)));
            table.row(kind, [what], us);
        }
    };
    for (kind, system, prefix) in [
        (Kind::Ours, "upcall-2", ""),
        (Kind::Plain, "ampi", "ampi, in one process: "),
        (Kind::Plain, "ampi-2", "ampi-2: "),
    ] {
        row(kind, system, format!("{prefix}pause, median"), |record| record.p50_ns);
        row(kind, system, format!("{prefix}pause, 99 %"), |record| record.p99_ns);
        // Ranks of AMPI ask for their moves themselves.
        if kind == Kind::Ours {
            let what = "from request to answer, mean".to_owned();
            row(kind, system, what, |record| record.mean_ns);
        }
    }
    table.if_any()
}

fn saves(records: &[Record]) -> Option<Table> {
    let title = "tasks of 100 KiB that are saved in a file and go on from it, ms by tasks";
    let mut table = Table::new("saves", title).names([""]).figures(SAVES);
    let ms = |ns: Option<f64>| figure(ns.map(|ns| ns / 1e6));
    for (one, name) in rows() {
        let found = |case: fn(usize) -> Case| {
            SAVES.map(|tasks| at(records, one.name, one.placement, case(tasks)))
        };
        let (saved, again) = (found(Case::Checkpoint), found(Case::Restart));
        let mut row = |kind, what: &str, found: [Option<&Record>; 4], of: Of| {
            let figures = found.map(|record| record.and_then(of));
            if figures.iter().any(Option::is_some) {
                table.row(kind, [format!("{name}: {what}")], figures.map(ms));
            }
        };
        row(Kind::Ours, "checkpoint, until it is on the disk", saved, |r| Some(r.p50_ns));
        row(Kind::Ours, "pause of the tasks, in whole ms", saved, |r| r.pause_ns);
        row(Kind::Plain, "a plain write of as many bytes", saved, |r| r.memcpy_ns);
        row(Kind::Ours, "restart, until all have run", again, |r| Some(r.p50_ns));
    }
    table.if_any()
}

fn paper(records: &[Record]) -> Option<Table> {
    let title = "Laplace of the paper's proportions, ms of a sweep by tasks";
    let mut table = Table::new("laplace-paper", title).names(["tasks"]).figures(PAPERS);
    let cases = PAPERS.map(Case::LaplacePaper);
    matrix(records, cases, |ns| ns / 1e6, &mut table);
    let alone = cases.map(|case| {
        at(records, "upcall", Placement::OneCore, case).and_then(|record| record.alone_ns)
    });
    if alone.iter().any(Option::is_some) {
        let figures = alone.map(|ns| figure(ns.map(|ns| ns / 1e6)));
        table.row(Kind::Plain, ["one task, in as many blocks"], figures);
    }
    table.if_any()
}

fn balance(records: &[Record]) -> Option<Table> {
    let title = "16 tasks of Laplace in two processes, µs of a sweep";
    let heads = ["median", "99 %", "mean of all", "% of the ideal", "% by means"];
    let mut table = Table::new("balance", title).names([""]).figures(heads);
    let of = |case| at(records, "upcall-2", TwoCores, case);
    let us = |ns: f64| figure(Some(ns / 1e3));
    let names = ["uneven, distributed by hand", "uneven, not balanced", "uneven, balanced"];
    for (name, how) in names.into_iter().zip(BALANCES) {
        let Some(found) = of(Case::Balance(how)) else { continue };
        let [steady, all] = match bars::of_ideal(records, how) {
            Some(parts) => parts.map(Some),
            None => [None; 2],
        };
        let times = [found.p50_ns, found.p99_ns, found.mean_ns].map(us);
        let [p50, p99, mean] = times;
        table.row(Kind::Ours, [name], [p50, p99, mean, figure(steady), figure(all)]);
    }
    if let Some((found, ideal)) = of(Case::ProcessorAway).and_then(|one| Some((one, one.alone_ns?)))
    {
        let part = figure(Some(100.0 * ideal / found.mean_ns));
        let [p50, p99, mean] = [found.p50_ns, found.p99_ns, found.mean_ns].map(us);
        table.row(
            Kind::Ours,
            ["even, a processor away and back"],
            [p50, p99, mean, figure(None), part],
        );
        table.row(
            Kind::Plain,
            ["if only the processor's time were lost"],
            [None, None, Some(ideal / 1e3), None, None].map(figure),
        );
    }
    table.if_any()
}

/// A figure of a record.
type Of = fn(&Record) -> Option<f64>;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::Mode;
    use crate::record::{Label, Turn};
    use crate::stats::Summary;
    use crate::table::text;

    fn record(case: &str, system: &str, placement: Placement, ns: f64) -> Record {
        let found = Summary { p99_ns: 2.0 * ns, p999_ns: 3.0 * ns, ..Summary::flat(ns, 5) };
        let label = Label { suite: "pvm", case, system, placement, mode: Mode::Parked };
        label.latency(&[Turn { found, lines: (140.0, 140.0) }])
    }

    fn told(records: Vec<Record>) -> String {
        let report = Report {
            records,
            notes: vec!["a note".into()],
            failures: vec!["something".into()],
            ..Report::default()
        };
        text::printed(&tables(&report), &report, false)
    }

    #[test]
    fn everything_is_told_beside_the_papers() {
        let one = |case: &str, system: &str, ns| record(case, system, Placement::OneCore, ns);
        let touched = Record {
            bare_ns: Some(10_000.0),
            memcpy_ns: Some(5_000.0),
            ..one("one-way-100000", "upcall", 30_000.0)
        };
        let text = told(vec![
            one("procedure-call", "limit", 2.0),
            one("switch-process", "limit", 1_600.0),
            one("switch-16", "upcall", 30.0),
            one("one-way-0", "upcall", 120.0),
            one("one-way-0", "pvm-direct", 12_000.0),
            record("one-way-0", "openmpi", Placement::TwoCores, 150.0),
            touched,
            one("ring-24", "upcall", 160.0),
            record("ring-2", "upcall-2", Placement::TwoCores, 110.0),
            record("call-one-way", "upcall", Placement::TwoCores, 100.0),
            one("laplace-1", "upcall", 10_000.0),
            one("laplace-64", "upcall", 10_100.0),
            one("start-1", "upcall", 250_000.0),
            one("start-1", "pvm", 2_000_000.0),
            Record { bytes_each: Some(102_400.0), ..one("idle-1000", "upcall", 0.0) },
        ]);
        let words = |begin: &str| text::words(&text, begin);
        assert_eq!(words("ULPs, 16"), ["30.0", "15.0"], "{text}");
        assert_eq!(words("pvm-direct")[..2], ["12", "000"], "{text}");
        assert!(
            text.contains("× 100") && text.contains("× 1.25") && text.contains("1994: UPVM, µs"),
            "{text}"
        );
        assert_eq!(words("upcall, in copies").last().unwrap(), "2.0", "{text}");
        assert_eq!(words("a hop in a ring of 24, ns"), ["160", "≤", "150", "missed"], "{text}");
        assert_eq!(words("one way, 0 bytes: PVM to ours"), ["100", "≥", "100", "met"], "{text}");
        assert_eq!(words("Laplace, percent lost by 64 tasks"), ["0.99", "≤", "2", "met"], "{text}");
        assert_eq!(
            words("a hop between processes, in one ways of a call"),
            ["1.10", "≤", "2.5", "met"],
            "{text}"
        );
        assert_eq!(words("KiB of a task that waits"), ["100", "≤", "150", "met"], "{text}");
        assert_eq!(words("start of a task: PVM to ours"), ["8.00", "≥", "6", "met"], "{text}");
        assert!(
            text.contains("note: a note")
                && text.contains("not measured: something")
                && !text.contains('\x1b'),
            "{text}"
        );
    }

    #[test]
    fn saves_and_balances_are_told_beside_their_aims() {
        let one = |case: &str, system: &str, ns| record(case, system, Placement::OneCore, ns);
        let text = told(vec![
            Record {
                pause_ns: Some(200e6),
                memcpy_ns: Some(50e6),
                ..one("checkpoint-1000", "upcall", 300e6)
            },
            one("restart-1000", "upcall", 1.2e9),
            one("laplace-paper-1", "upcall", 23e6),
            Record { alone_ns: Some(22e6), ..one("laplace-paper-64", "upcall", 23.23e6) },
            record("balance-ideal", "upcall-2", Placement::TwoCores, 960e3),
            record("balance-off", "upcall-2", Placement::TwoCores, 1600e3),
            record("balance-on", "upcall-2", Placement::TwoCores, 1e6),
            Record {
                alone_ns: Some(950e3),
                ..record("processor-away", "upcall-2", Placement::TwoCores, 1e6)
            },
        ]);
        let words = |begin: &str| text::words(&text, begin);
        assert_eq!(
            words("upcall: a plain write of as many bytes"),
            ["-", "-", "-", "50.0"],
            "{text}"
        );
        assert_eq!(
            words("upcall: pause of the tasks, in whole ms"),
            ["-", "-", "-", "200"],
            "{text}"
        );
        let saved =
            ["checkpoint", "restart"].map(|what| format!("{what} of 1000 tasks of 100 KiB, s"));
        assert_eq!(words(&saved[0]), ["0.30", "≤", "0.5", "met"], "{text}");
        assert_eq!(words(&saved[1]), ["1.20", "≤", "1", "missed"], "{text}");
        let laplace = "Laplace of the paper's proportions, percent lost by 64 tasks to one";
        assert_eq!(
            words(&format!("{laplace} in as")),
            ["many", "blocks", "5.29", "≤", "2", "missed"]
        );
        for (what, found) in [
            (laplace, ["0.99", "≤", "2", "met"]),
            (
                "uneven Laplace with balancing, percent of the best by hand",
                ["96.00", "≥", "95", "met"],
            ),
            (
                "a processor away and back, percent lost besides its time",
                ["5.00", "≤", "3", "missed"],
            ),
        ] {
            assert_eq!(words(what), found, "{text}");
        }
        let found = ["1", "600", "3", "200", "1", "600", "60.0", "60.0"];
        assert_eq!(words("uneven, not balanced"), found, "{text}");
    }

    #[test]
    fn moves_are_told_by_system() {
        let moved = |system: &str, ns| record("move-100k", system, Placement::TwoCores, ns);
        let text = told(vec![moved("upcall-2", 90e3), moved("ampi-2", 300e3)]);
        let words = |begin: &str| text::words(&text, begin);
        assert_eq!(words("pause, median"), ["90.0", "-", "-", "-"], "{text}");
        assert_eq!(words("ampi-2: pause, 99 %"), ["600", "-", "-", "-"], "{text}");
        assert!(!text.contains("ampi, in one process"), "{text}");
    }

    #[test]
    fn what_was_not_measured_is_not_told() {
        let text = told(vec![record("ring-2", "mpich", Placement::TwoCores, 200.0)]);
        assert!(
            text.contains("mpich, two cores")
                && !text.contains("to upcall")
                && !text.contains("aimed at"),
            "{text}"
        );
        assert!(!text.contains("Figure 2") && !text.contains("Figure 7"), "{text}");
    }
}
