//! The tables of the suite `rpc`: an overview for each placement, every figure of each setting, and
//! idle and killed systems.

use crate::case::{BINDS, Case, Gap, Mode, Placement, SETTINGS, THREADS};
use crate::record::{Record, hand_off};
use crate::report::{Properties, Report};
use crate::table::{ABSENT, Kind, Table, figure, hundredths, thousands};

/// The names of the tables.
pub(super) const TABLES: [&str; 17] = [
    "summary",
    "latency-two-cores-polling",
    "latency-one-core-polling",
    "latency-two-cores-parked",
    "latency-one-core-parked",
    "latency-unpinned-parked",
    "rates-two-cores-polling",
    "rates-one-core-polling",
    "rates-two-cores-parked",
    "rates-one-core-parked",
    "calls-two-cores",
    "calls-one-core",
    "pauses-two-cores",
    "pauses-one-core",
    "pauses-unpinned",
    "idle",
    "properties",
];

/// Makes the tables with figures of `report`.
pub(super) fn tables(report: &Report) -> Vec<Table> {
    let mut tables: Vec<Table> = summary(&report.records).into_iter().collect();
    for (placement, mode) in SETTINGS {
        let records: Vec<&Record> =
            report.records.iter().filter(|r| (r.placement, r.mode) == (placement, mode)).collect();
        tables.extend(latency(&records, placement, mode));
        tables.extend(throughput(&records, placement, mode));
    }
    for placement in [Placement::TwoCores, Placement::OneCore, Placement::Unpinned] {
        tables.extend(calls(&report.records, placement));
        tables.extend(pauses(&report.records, placement));
    }
    tables.extend(idle(report));
    tables.extend(properties(report));
    tables
}

/// Returns the name of the table of a kind and setting.
fn named(kind: &str, setting: &[&str]) -> &'static str {
    let name = [&[kind], setting].concat().join("-");
    TABLES.into_iter().find(|known| *known == name).unwrap_or("")
}

fn latency(records: &[&Record], placement: Placement, mode: Mode) -> Option<Table> {
    let times = ["p50 ns", "p99 ns", "p99.9 ns", "p99.99 ns", "mean ns"];
    let name = named("latency", &[placement.name(), mode.name()]);
    let mut table = Table::new(name, format!("{placement}, server {mode}"))
        .names(["call", "system"])
        .figures(times)
        .figures(["/ limit", "/ upcall", "line ns"]);
    for case in Case::ALL.map(Case::name).into_iter().chain(BINDS) {
        let of_case: Vec<&Record> = records.iter().copied().filter(|r| r.case == case).collect();
        let p50 = |name: &str| of_case.iter().find(|r| r.system == name).map(|r| r.p50_ns);
        let (limit, upcall) = (p50("limit"), p50("upcall"));
        let mut name = case;
        for record in ordered(&of_case) {
            let times = [Some(record.p50_ns), Some(record.p99_ns), record.p999_ns, record.p9999_ns];
            let times = times.into_iter().chain([Some(record.mean_ns)]).map(figure);
            let ratios = [limit, upcall].map(|to| ratio(record.p50_ns, to));
            let figures = times.chain(ratios).chain([figure(record.line_ns)]);
            table.row(Kind::of(&record.system), [name, &shown(record, &of_case)], figures);
            name = "";
        }
    }
    table.if_any()
}

/// Returns the name of a record's system. That of `limit` also names the hand-off that it copies.
fn shown(record: &Record, records: &[&Record]) -> String {
    match hand_off(record, records.iter().copied()).filter(|_| record.system == "limit") {
        Some(by) => format!("limit ({by})"),
        None => record.system.clone(),
    }
}

/// Orders records, with the limit first and without the hand-off that it copies.
fn ordered<'a>(records: &[&'a Record]) -> Vec<&'a Record> {
    let limit = records.iter().find(|r| r.system == "limit");
    let is_copied = |r: &Record| limit.is_some_and(|limit| hand_off(limit, [r]).is_some());
    let rest = records.iter().filter(|r| r.system != "limit" && !is_copied(r));
    limit.into_iter().chain(rest).copied().collect()
}

fn throughput(records: &[&Record], placement: Placement, mode: Mode) -> Option<Table> {
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
    let title =
        format!("{placement}, server {mode}: thousand null calls a second by calls at once");
    let mut table = Table::new(named("rates", &[placement.name(), mode.name()]), title)
        .names(["system"])
        .figures(THREADS.map(|n| format!("t{n}")));
    for system in systems {
        table.row(Kind::of(system), [system], THREADS.map(|n| figure(find(system, n))));
    }
    table.if_any()
}

/// The null calls of the summary: in words, with placement, mode and case.
const SUMMARY: [(&str, Placement, Mode, Case); 3] = [
    ("on a core each; the server polls", Placement::TwoCores, Mode::Polling, Case::Null),
    ("on a core each; the server sleeps", Placement::TwoCores, Mode::Parked, Case::Null),
    (
        "not pinned; after a pause of 1 ms",
        Placement::Unpinned,
        Mode::Parked,
        Case::NullGap(Gap::Ms1),
    ),
];

/// Makes the table for readers who have not chosen a placement or a mode yet: a row for each of
/// `SUMMARY`, and a column for each of three systems.
fn summary(records: &[Record]) -> Option<Table> {
    let systems = ["upcall", "unix-socket", "grpc"];
    let mut table = Table::new("summary", "a call without arguments, µs (median)")
        .names(["client and server"])
        .figures(["Upcall", "Unix socket", "gRPC (tonic)"]);
    for (words, placement, mode, case) in SUMMARY {
        let of = |system| {
            let is = |r: &&Record| {
                (r.placement, r.mode, r.system.as_str()) == (placement, mode, system)
                    && r.case == case.name()
            };
            records.iter().find(is).map(|record| micros(record.p50_ns))
        };
        let found = systems.map(of);
        if found.iter().any(Option::is_some) {
            let figures = found.map(|figure| figure.unwrap_or(ABSENT.to_owned()));
            table.row(Kind::Plain, [words], figures);
        }
    }
    table.if_any()
}

/// Makes the overview of a placement: a row for each system and mode, a column for each call.
fn calls(records: &[Record], placement: Placement) -> Option<Table> {
    if placement == Placement::Unpinned {
        return None;
    }
    let name = named("calls", &[placement.name()]);
    let cases: Vec<Case> = Case::ALL.into_iter().filter(|case| case.gap().is_none()).collect();
    overview(
        name,
        &format!("{placement}: a call, µs (median)"),
        records,
        placement,
        &cases,
        |case| case.name().to_owned(),
    )
}

/// Makes the overview of calls after pauses.
fn pauses(records: &[Record], placement: Placement) -> Option<Table> {
    let parked: Vec<Record> =
        records.iter().filter(|record| record.mode == Mode::Parked).cloned().collect();
    let is_paused = |case: Case| case.gap().is_some();
    let has = |case: &Case| {
        parked.iter().any(|record| record.case == case.name() && record.placement == placement)
    };
    if !Case::ALL.iter().any(|case| is_paused(*case) && has(case)) {
        return None;
    }
    let cases: Vec<Case> =
        Case::ALL.into_iter().filter(|&case| case == Case::Null || is_paused(case)).collect();
    let name = named("pauses", &[placement.name()]);
    let title = format!("{placement}: a null call after a pause of the caller, µs (median)");
    overview(name, &title, &parked, placement, &cases, |case| {
        case.gap().map_or("none".to_owned(), |gap| format!("{gap:?}"))
    })
}

/// Makes a table with a row for each system and mode of a placement, and a column for each case
/// that was measured. Upcall and the limit are first, and the others follow by their first figure.
fn overview(
    name: &'static str,
    title: &str,
    records: &[Record],
    placement: Placement,
    cases: &[Case],
    head: impl Fn(Case) -> String,
) -> Option<Table> {
    let of_placement = |record: &&Record| {
        record.placement == placement && cases.iter().any(|case| case.name() == record.case)
    };
    let records: Vec<&Record> = records.iter().filter(of_placement).collect();
    let find = |system: &str, mode: Mode, case: Case| {
        let is = |r: &&&Record| r.system == system && r.mode == mode && r.case == case.name();
        records.iter().find(is).copied()
    };
    let cases: Vec<Case> = cases
        .iter()
        .copied()
        .filter(|case| records.iter().any(|record| record.case == case.name()))
        .collect();
    let mut table =
        Table::new(name, title).names(["system", "server"]).figures(cases.iter().map(|&c| head(c)));
    for mode in [Mode::Polling, Mode::Parked] {
        let mut systems: Vec<&str> = Vec::new();
        for record in records.iter().filter(|r| r.mode == mode) {
            if !systems.contains(&record.system.as_str()) && !record.system.starts_with("limit-") {
                systems.push(&record.system);
            }
        }
        let first =
            |system: &str| cases.iter().find_map(|&case| Some(find(system, mode, case)?.p50_ns));
        systems.sort_by(|one, other| {
            let key = |system| (!["upcall", "limit"].contains(&system), system == "limit");
            let figure = |system| first(system).unwrap_or(f64::MAX);
            key(*one).cmp(&key(*other)).then(figure(*one).total_cmp(&figure(*other)))
        });
        for system in systems {
            let figures = cases
                .iter()
                .map(|&case| find(system, mode, case))
                .map(|record| record.map_or(ABSENT.to_owned(), |record| micros(record.p50_ns)));
            table.row(Kind::of(system), [system, mode.name()], figures);
        }
    }
    table.if_any()
}

/// Formats a time in µs with three digits.
fn micros(ns: f64) -> String {
    match ns / 1e3 {
        us if us < 9.995 => format!("{us:.2}"),
        us => thousands(us),
    }
}

fn idle(report: &Report) -> Option<Table> {
    let mut table = Table::new("idle", "one client bound, nobody calls")
        .names(["system", "server"])
        .figures(["CPU µs/s", "server KiB", "client KiB"]);
    for idle in &report.idle {
        let memory: Vec<_> = idle.memory_kib.iter().map(|&kib| thousands(kib as f64)).collect();
        let [server, client] =
            [0, 1].map(|at| memory.get(at).cloned().unwrap_or(ABSENT.to_owned()));
        let figures = [format!("{:.1}", idle.cpu_ns_per_s / 1e3), server, client];
        table.row(Kind::of(&idle.system), [idle.system.as_str(), idle.mode.name()], figures);
    }
    table.if_any()
}

fn properties(report: &Report) -> Option<Table> {
    let mut table = Table::new("properties", "properties of the systems")
        .names(["system", "peer's data", "left by kill -9"])
        .figures(["CPU at rest, polling", "CPU at rest, parked"]);
    for Properties { system, trust, left, idle } in &report.properties {
        let rest = [Mode::Polling, Mode::Parked].map(|mode| {
            let percent = idle.iter().find(|(of, _)| *of == mode);
            percent.map_or(ABSENT.to_owned(), |(_, percent)| format!("{percent:.2} %"))
        });
        table.row(Kind::of(system), [system.clone(), trust.to_string(), left.to_string()], rest);
    }
    table.if_any()
}

fn ratio(ns: f64, to: Option<f64>) -> String {
    hundredths(to.filter(|&to| to > 0.0).map(|to| ns / to))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contender::Trust;
    use crate::record::{Label, Turn};
    use crate::remains::Remains;
    use crate::stats::Summary;
    use crate::table::text;

    fn record(case: &str, system: &str, mode: Mode, p50_ns: f64) -> Record {
        let found = Summary::flat(p50_ns, 5);
        Label { suite: "rpc", case, system, placement: Placement::TwoCores, mode }
            .latency(&[Turn { found, lines: (140.0, 140.0) }])
    }

    /// Returns the rows of a table, each as text with a bar between cells.
    fn rows(report: &Report, name: &str) -> Vec<String> {
        let tables = tables(report);
        let table = tables.iter().find(|table| table.name == name);
        let table = table.unwrap_or_else(|| panic!("no {name}"));
        table.rows.iter().map(|row| row.cells.join("|")).collect()
    }

    #[test]
    fn the_table_compares_with_limit_and_upcall() {
        let null = |system, ns| record("null", system, Mode::Polling, ns);
        let report = Report {
            records: vec![null("upcall", 150.0), null("limit", 100.0), null("iceoryx2", 1500.0)],
            failures: vec!["something".to_owned()],
            properties: vec![Properties {
                system: "upcall".to_owned(),
                trust: Trust::Checked,
                left: Remains { files: 2, shared: (1, 8), sockets: 0 },
                idle: vec![(Mode::Polling, 99.5), (Mode::Parked, 0.0)],
            }],
            ..Report::default()
        };
        let latency = rows(&report, "latency-two-cores-polling");
        assert_eq!(latency[0], "null|limit|100|100|100|-|100|1.00|0.67|140");
        assert_eq!(latency[1], "|upcall|150|150|150|-|150|1.50|1.00|140");
        assert_eq!(latency[2], "|iceoryx2|1 500|1 500|1 500|-|1 500|15.00|10.00|140");
        let properties = rows(&report, "properties");
        assert_eq!(
            properties,
            ["upcall|checked|2 in folders, 1 in /dev/shm (8 KiB)|99.50 %|0.00 %"]
        );
        let text = text::printed(&tables(&report), &report, false);
        assert!(text.contains("not measured: something") && !text.contains('\x1b'), "{text}");
    }

    #[test]
    fn the_summary_has_three_systems_and_the_calls_that_were_measured() {
        let records = vec![
            record("null", "upcall", Mode::Polling, 480.0),
            record("null", "upcall", Mode::Parked, 3_520.0),
            record("null", "grpc", Mode::Parked, 142_000.0),
            record("null", "tarpc", Mode::Parked, 50_000.0),
        ];
        let report = Report { records, ..Report::default() };
        let expected = [
            "on a core each; the server polls|0.48|-|-",
            "on a core each; the server sleeps|3.52|-|142",
        ];
        assert_eq!(rows(&report, "summary"), expected);
    }

    #[test]
    fn the_overview_has_ours_and_the_limit_first() {
        let parked = |case, system, ns| record(case, system, Mode::Parked, ns);
        let records = vec![
            parked("null", "tarpc", 50_000.0),
            parked("null", "unix-socket", 9_000.0),
            parked("in-1m", "unix-socket", 1_336_000.0),
            parked("null", "limit-pipe", 6_000.0),
            parked("null", "limit", 6_000.0),
            parked("null", "upcall", 7_000.0),
            parked("null-gap-200us", "upcall", 8_000.0),
            record("null", "upcall", Mode::Polling, 140.0),
        ];
        let report = Report { records, ..Report::default() };
        let expected = [
            "upcall|polling|0.14|-",
            "upcall|parked|7.00|-",
            "limit|parked|6.00|-",
            "unix-socket|parked|9.00|1 336",
            "tarpc|parked|50.0|-",
        ];
        assert_eq!(rows(&report, "calls-two-cores"), expected);
        assert_eq!(rows(&report, "pauses-two-cores")[0], "upcall|parked|7.00|8.00");
    }
}
