//! The tables of the suite `lrpc`: Tables IV and V and Figure 2, beside the paper's numbers, and a
//! comparison with the aims.

use super::paper::{FIGURE_2, MINIMUM_US, OVERHEAD_US, SRC_RPC_MOST, TESTS, table_iv};
use super::{CONFIGS, HALVES, MIXES, PARTS, SPARES, null};
use crate::case::{Case, Placement};
use crate::record::Record;
use crate::report::Report;
use crate::table::{ABSENT, Aim, Kind, Table, aims, figure, hundredths, ratio};

/// The names of the tables.
pub(super) const TABLES: [&str; 6] =
    ["table-iv", "table-iv-1990", "table-v", "figure-2", "domain-caching", "aims"];

/// Makes the tables with figures of `report`.
pub(super) fn tables(report: &Report) -> Vec<Table> {
    let found = Found(&report.records);
    let tests = tests(&found).map(|tests| [tests, papers_tests()]);
    let rest = [parts(&found), processors(&found), mixes(&found), ratios(&found)];
    tests.into_iter().flatten().chain(rest.into_iter().flatten()).collect()
}

/// Access to records.
pub(super) struct Found<'a>(pub &'a [Record]);

impl<'a> Found<'a> {
    fn test(&self, system: &str, placement: Placement, case: &str) -> Option<&'a Record> {
        self.0.iter().find(|r| r.system == system && r.placement == placement && r.case == case)
    }

    fn p50(&self, system: &str, placement: Placement, case: &str) -> Option<f64> {
        self.test(system, placement, case).map(|record| record.p50_ns)
    }

    fn per_s(&self, system: &str, config: &str, processors: usize) -> Option<f64> {
        let of = |r: &&Record| {
            r.system == system && r.config.as_deref() == Some(config) && r.case == null(processors)
        };
        self.0.iter().find(of).map(|record| record.per_s)
    }

    /// Returns the systems that made the four calls: the paper's two first.
    fn callers(&self) -> Vec<(&'a str, Placement)> {
        let mut callers = Vec::new();
        for record in self.0.iter().filter(|record| record.case == Case::Null.name()) {
            callers.push((record.system.as_str(), record.placement));
        }
        callers
    }

    /// Returns the minimum in ns: a procedure call, two crossings, two switches.
    pub fn minimum(&self) -> Option<[f64; 3]> {
        let part = |name| self.p50("limit", Placement::OneCore, name);
        let (call, crossings) = (part(PARTS[0])?, 2.0 * part(PARTS[1])?);
        Some([call, crossings, part(Case::Null.name())? - crossings])
    }
}

fn tests(found: &Found<'_>) -> Option<Table> {
    let title = "Table IV: one call at a time, ns (median), and p99 of Null";
    let mut table = Table::new("table-iv", title)
        .names(["", "processors"])
        .figures(TESTS.map(Case::name))
        .figures(["null p99", "line"]);
    for (system, placement) in found.callers() {
        let cells = TESTS.iter().map(|test| figure(found.p50(system, placement, test.name())));
        let null = found.test(system, placement, Case::Null.name());
        let ends = [null.map(|r| r.p99_ns), null.and_then(|r| r.line_ns)].map(figure);
        table.row(Kind::of(system), [system, placement.name()], cells.chain(ends));
    }
    table.if_any()
}

/// Makes the table of the paper's figures.
fn papers_tests() -> Table {
    let mut table = Table::new("table-iv-1990", "Table IV in 1990, µs")
        .names([""])
        .figures(TESTS.map(Case::name));
    let mut row = |name: &str, of: fn(super::TableIv) -> f64| {
        let cells = TESTS.map(|test| table_iv(test).map_or(f64::NAN, of));
        table.row(Kind::Paper, [name], cells.map(|us| format!("{us}")));
    };
    row("LRPC/MP", |row| row.lrpc_mp);
    row("LRPC", |row| row.lrpc);
    row("SRC RPC (Taos)", |row| row.taos);
    table
}

fn parts(found: &Found<'_>) -> Option<Table> {
    let minimum = found.minimum()?;
    let half = |name| found.p50("upcall", Placement::OneCore, name);
    let whole = half(Case::Null.name());
    let title = "Table V: Null on one processor, ns; × procedure calls; LRPC's µs and ×";
    let mut table =
        Table::new("table-v", title).names(["part"]).figures(["ns", "×", "LRPC, µs", "×"]);
    let mut row = |name: &str, ns: Option<f64>, us: Option<f64>| {
        let ours = [ns, ns.map(|ns| ns / minimum[0])].map(figure);
        let paper = us.map_or([ABSENT; 2].map(String::from), |us| {
            [format!("{us}"), format!("{:.1}", us / MINIMUM_US[0])]
        });
        table.row(Kind::Plain, [name], ours.into_iter().chain(paper));
    };
    row("procedure call", Some(minimum[0]), Some(MINIMUM_US[0]));
    row("two kernel crossings", Some(minimum[1]), Some(MINIMUM_US[1]));
    row("two switches", Some(minimum[2]), Some(MINIMUM_US[2]));
    let least: f64 = minimum.iter().sum();
    row("minimum", Some(least), Some(MINIMUM_US.iter().sum()));
    let over = whole.map(|whole| whole - least);
    row("overhead", over, Some(OVERHEAD_US.iter().sum()));
    row("Null", whole, Some(MINIMUM_US.iter().chain(&OVERHEAD_US).sum()));
    row("of it until the procedure", half(HALVES[0]), None);
    row("and after it", half(HALVES[1]), None);
    table.if_any()
}

fn processors(found: &Found<'_>) -> Option<Table> {
    let most = (1..)
        .take_while(|&processors| found.0.iter().any(|record| record.case == null(processors)))
        .last()?;
    let title = "Figure 2: thousand null calls a second by processors that call, each by hand-off \
        on itself";
    let mut table = Table::new("figure-2", title)
        .names(["", "servers"])
        .figures(1..=most)
        .figures(["× of one"]);
    for config in CONFIGS {
        for system in ["limit", "upcall", "unix-socket"] {
            let figures: Vec<_> =
                (1..=most).map(|processors| found.per_s(system, config, processors)).collect();
            if figures.iter().all(Option::is_none) {
                continue;
            }
            let times = figures[0].zip(figures[most - 1]).map(|(one, all)| all / one);
            let cells = figures.iter().map(|rate| figure(rate.map(|per_s| per_s / 1e3)));
            table.row(Kind::of(system), [system, config], cells.chain([hundredths(times)]));
        }
    }
    let [(_, one), (processors, all)] = FIGURE_2;
    table.notes.push(format!(
        "1990: LRPC {:.1} by one and {:.1} by {processors}, × {:.1}; SRC RPC {:.1} by two and \
        more.",
        one / 1e3,
        all / 1e3,
        3.7,
        SRC_RPC_MOST / 1e3
    ));
    table.if_any()
}

fn mixes(found: &Found<'_>) -> Option<Table> {
    let of = |case: &str, config: &str| {
        found.0.iter().find(|r| r.case == case && r.config.as_deref() == Some(config))
    };
    let title = "Domain caching: one client of four servers, ns a call (mean)";
    let mut table =
        Table::new("domain-caching", title).names(["calls"]).figures(SPARES).figures(["ratio"]);
    for (case, _) in MIXES {
        let figures = SPARES.map(|config| of(case, config).map(|record| record.p50_ns));
        if figures.iter().any(Option::is_some) {
            let times = figures[0].zip(figures[1]).map(|(without, with)| without / with);
            table.row(
                Kind::Ours,
                [case],
                figures.map(figure).into_iter().chain([hundredths(times)]),
            );
        }
    }
    table.if_any()
}

fn ratios(found: &Found<'_>) -> Option<Table> {
    use Placement::OneCore;
    let of = |test: Case| found.p50("upcall", OneCore, test.name());
    let null = of(Case::Null);
    let least = found.minimum().map(|parts| parts.iter().sum());
    let paper = |test| table_iv(test).map(|row| row.lrpc);
    let mut all = vec![
        Aim::at_most("Null by hand-off to the minimum", ratio(null, least), 1.15)
            .paper(ratio(paper(Case::Null), Some(MINIMUM_US.iter().sum()))),
    ];
    for test in &TESTS[1..] {
        let over = of(*test).zip(null).map(|(test, null)| test - null);
        let paper = paper(*test).zip(paper(Case::Null)).map(|(test, null)| (test - null) * 1e3);
        all.push(Aim::at_most(format!("{test} over Null, ns"), over, 100.0).paper(paper));
    }
    let is_peer =
        |system: &str| !system.starts_with("limit") && !["upcall", "unix-socket"].contains(&system);
    let peers = found.callers().into_iter().filter(|(system, _)| is_peer(system));
    let best = peers
        .filter_map(|(system, _)| Some((found.p50(system, OneCore, Case::Null.name())?, system)));
    if let Some((best, system)) = best.min_by(|a, b| a.0.total_cmp(&b.0)) {
        let what = format!("the best peer ({system}) to Null");
        let paper = table_iv(Case::Null).map(|row| row.taos / row.lrpc);
        all.push(Aim::at_least(what, ratio(Some(best), null), 2.5).paper(paper));
    }
    for (system, what) in
        [("grpc", "gRPC in Rust (tonic) to Null"), ("grpc-c++", "gRPC in C++ to Null")]
    {
        let grpc = found.p50(system, OneCore, Case::Null.name());
        all.push(Aim::at_least(what, ratio(grpc, null), 15.0));
    }
    aims("aims", "ratios of this run", Some("LRPC's"), &all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::Mode;
    use crate::record::{Label, Turn};
    use crate::stats::Summary;
    use crate::table::text;

    fn record(case: &str, system: &str, ns: f64, config: Option<&str>) -> Record {
        let found = Summary::flat(ns, 5);
        let label = Label {
            suite: "lrpc",
            case,
            system,
            placement: Placement::OneCore,
            mode: Mode::Parked,
        };
        Record {
            config: config.map(str::to_owned),
            ..label.latency(&[Turn { found, lines: (140.0, 140.0) }])
        }
    }

    #[test]
    fn tables_and_aims_are_told() {
        let mut records = vec![
            record("procedure-call", "limit", 2.0, None),
            record("kernel-crossing", "limit", 200.0, None),
            record("null", "limit", 2_500.0, None),
            record("null", "grpc", 50_000.0, None),
            record("null", "grpc-c++", 40_000.0, None),
            record("null", "unix-socket", 6_000.0, None),
            record("null", "ipc-channel", 9_000.0, None),
            record("null-p1", "upcall", 2_500.0, Some("pairs")),
            record("null-p2", "upcall", 1_250.0, Some("pairs")),
        ];
        for (test, ns) in
            [("null", 2_752.2), ("add", 2_800.0), ("bigin", 2_852.2), ("biginout", 2_900.0)]
        {
            records.push(record(test, "upcall", ns, None));
        }
        let report = Report {
            records,
            notes: vec!["a note".into()],
            failures: vec!["something".into()],
            ..Report::default()
        };
        let text = text::printed(&tables(&report), &report, false);
        let row = |name: &str| text::words(&text, name);
        assert_eq!(
            row("upcall       one-core")[..4],
            ["2 752", "2 800", "2 852", "2 900"].join(" ").split(' ').collect::<Vec<_>>()[..4]
        );
        assert_eq!(row("two switches")[..2], ["2", "100"], "{text}");
        assert_eq!(
            row("Null by hand-off to the minimum"),
            ["1.10", "≤", "1.15", "met", "1.44"],
            "{text}"
        );
        assert_eq!(row("bigin over Null, ns"), ["100", "≤", "100", "met", "35", "000"], "{text}");
        assert!(row("the best peer (ipc-channel) to Null")[0].starts_with("3.27"), "{text}");
        assert!(row("gRPC in Rust (tonic) to Null")[0].starts_with("18.17"), "{text}");
        assert!(row("gRPC in C++ to Null")[0].starts_with("14.53"), "{text}");
        assert_eq!(row("upcall  pairs"), ["400", "800", "2.00"], "{text}");
        assert!(
            text.contains("note: a note")
                && text.contains("not measured: something")
                && !text.contains('\x1b'),
            "{text}"
        );
    }
}
