//! The tables of the suite `homed`: Table 1, Figures 3 to 5, throughput, slowdown and break-even,
//! beside the paper's numbers, and a comparison with the aims.

use super::case::{
    CALLERS, CHAINS, Hot, Op, SLOWED, chain, slowdown, slowdown_caller, slowdown_quiet, way,
};
use super::paper::{
    BreakEven, ORDINARY, R, SLOWDOWN, TABLE_1, URGENT, break_even, columns, columns_of_the_paper,
    figure_3, figure_4, figure_5, found,
};
use crate::record::Record;
use crate::report::Report;
use crate::table::{Aim, Kind, Table, aims, figure, hundredths, ratio};

/// The names of the tables.
pub(super) const TABLES: [&str; 9] = [
    "table-1",
    "table-1-p99",
    "table-1-1993",
    "figures-3-to-5",
    "throughput-counter",
    "throughput-queue",
    "slowdown",
    "break-even",
    "aims",
];

/// Columns of Table 1, with their heads.
const COLUMNS: [(&str, &str); 13] = [
    (way::BARE, "bare"),
    (way::LOCAL_UNLOCKED, "unlocked"),
    (way::LOCAL, "local"),
    (way::ACCESS_UNLOCKED, "acc. unl."),
    (way::ACCESS, "access"),
    (way::READ, "read"),
    (way::BULK, "bulk"),
    (way::URGENT, "urgent"),
    (way::AUTO, "auto"),
    (way::URGENT_COMPUTING, "computing"),
    (way::URGENT_BACKGROUND, "backgr."),
    (way::INVOKE, "invoke"),
    (way::INVOKE_BACKGROUND, "backgr."),
];

/// Makes the tables with figures of `report`.
pub(super) fn tables(report: &Report) -> Vec<Table> {
    let records = &report.records[..];
    let mut tables = Vec::new();
    let of = "Table 1: an operation by each way, ns";
    if let Some(medians) = operations(records, "table-1", &format!("{of} (medians)"), |r| r.p50_ns)
    {
        let title = format!("{of} (99th percentiles)");
        let rare = operations(records, "table-1-p99", &title, |r| r.p99_ns);
        tables.extend([medians].into_iter().chain(rare).chain([papers_operations()]));
    }
    let rest = [
        figures(records),
        throughput(records, "throughput-counter", Hot::Counter),
        throughput(records, "throughput-queue", Hot::Queue),
        slowdowns(records),
        chains(records),
        ratios(records),
    ];
    tables.extend(rest.into_iter().flatten());
    tables
}

fn operations(
    records: &[Record],
    name: &'static str,
    title: &str,
    of: fn(&Record) -> f64,
) -> Option<Table> {
    let mut table = Table::new(name, title)
        .names([""])
        .figures(COLUMNS.map(|(_, head)| head))
        .figures(["line"]);
    for case in Op::ALL.into_iter().flat_map(|op| [op.name(), op.dirty()]) {
        let of_case: Vec<&Record> = records.iter().filter(|record| record.case == case).collect();
        let Some(first) = of_case.first() else { continue };
        let find = |system: &str| of_case.iter().find(|record| record.system == system);
        let ways = COLUMNS.map(|(way, _)| find(way).map(|record| of(record)));
        table.row(Kind::Plain, [&case], ways.into_iter().chain([first.line_ns]).map(figure));
    }
    table.if_any()
}

/// Makes the table of the paper's figures.
fn papers_operations() -> Table {
    let heads = ["local", "unlocked", "access", "unlocked", "invocation", "unlocked"];
    let mut table = Table::new("table-1-1993", "Table 1 in 1993, µs").names([""]).figures(heads);
    for (op, us) in TABLE_1 {
        table.row(Kind::Paper, [op.name()], us.map(|us| figure(Some(us))));
    }
    table
}

fn figures(records: &[Record]) -> Option<Table> {
    let title = "Figures 3 to 5, percent: locking of local (LA), access (RA), invocation (RI); \
        remote of access with locks (L), without (NL); invocation to access, locks in access only \
        (RA), in both (B), in neither (N); the paper's below";
    let heads = ["3: LA", "RA", "RI", "4: L", "NL", "5: RA", "B", "N"];
    let mut table = Table::new("figures-3-to-5", title).names([""]).figures(heads);
    for op in Op::ALL.into_iter().filter(|op| columns(records, *op)[0].is_some()) {
        let all =
            |columns| [&figure_3(columns)[..], &figure_4(columns), &figure_5(columns)].concat();
        let cells = |columns| all(columns).into_iter().map(figure);
        table.row(Kind::Ours, [op.name()], cells(columns(records, op)));
        if let Some(paper) = columns_of_the_paper(op) {
            table.row(Kind::Paper, ["1993"], cells(paper));
        }
    }
    table.if_any()
}

fn throughput(records: &[Record], name: &'static str, hot: Hot) -> Option<Table> {
    let per_s = |system: &str, callers| {
        let case = hot.record(callers);
        let record = records.iter().find(|r| r.case == case && r.system == system);
        record.map(|record| record.per_s / 1e6)
    };
    let title = format!(
        "{}: million operations a second by processes; and at home by itself, ns",
        hot.name()
    );
    let mut table = Table::new(name, title).names([""]).figures(CALLERS).figures(["alone, ns"]);
    let ways = [way::ACCESS, way::URGENT, way::MUTEX, way::SPIN];
    if ways.iter().all(|way| CALLERS.iter().all(|&callers| per_s(way, callers).is_none())) {
        return None;
    }
    for way in ways {
        let figures = CALLERS.map(|callers| hundredths(per_s(way, callers)));
        let alone = found(records, &hot.alone(), if way == way::ACCESS { way::LOCAL } else { way });
        let kind = if [way::ACCESS, way::URGENT].contains(&way) { Kind::Ours } else { Kind::Plain };
        table.row(kind, [way], figures.into_iter().chain([figure(alone)]));
    }
    table.if_any()
}

fn slowdowns(records: &[Record]) -> Option<Table> {
    let title = "a home that computes: what it loses for an operation, and what that takes its \
        caller, ns; percent";
    let mut table =
        Table::new("slowdown", title).names([""]).figures(["home", "caller", "percent"]);
    if SLOWED.iter().all(|&op| found(records, &slowdown(op), way::ACCESS).is_none()) {
        return None;
    }
    for op in SLOWED {
        for way in [
            way::ACCESS,
            way::URGENT_COMPUTING,
            way::URGENT_COMPUTING_PAUSED,
            way::URGENT_SIGNAL,
            way::URGENT_SIGNAL_PAUSED,
            way::INVOKE,
        ] {
            let [home, caller] =
                [slowdown(op), slowdown_caller(op)].map(|case| found(records, &case, way));
            let percent = home.zip(caller).map(|(home, caller)| 100.0 * home / caller);
            let name = format!("{}, {way}", op.name());
            table.row(Kind::Plain, [name], [home, caller, percent].map(figure));
        }
        let steps = [way::BARE, way::URGENT_COMPUTING, way::URGENT_SIGNAL, way::INVOKE];
        let steps = steps.map(|way| figure(found(records, &slowdown_quiet(op), way)));
        let [bare, polls, signals, processor] = steps;
        table.notes.push(format!(
            "{}: a step while no caller asks takes {bare} ns, with a poll {polls}, while signals \
            may come {signals}, with a virtual processor's safe point {processor}.",
            op.name()
        ));
    }
    let paper = SLOWDOWN
        .map(|(home, all)| format!("{home} ms of {all}, {:.0} %", 100.0 * home / all))
        .join("; urgent ");
    table.notes.push(format!("1993: by access {paper}."));
    table.if_any()
}

fn chains(records: &[Record]) -> Option<Table> {
    let evens = [("urgent", way::URGENT), ("ordinary", way::INVOKE)];
    let evens = evens
        .into_iter()
        .filter_map(|(name, way)| Some((name, break_even(records, way)?)))
        .collect::<Vec<_>>();
    let (_, first) = evens.first()?;
    let title = "break-even: a walk over n lines that the home has written, ns";
    let mut table = Table::new("break-even", title).names([""]).figures(CHAINS);
    for way in [way::LOCAL, way::ACCESS, way::READ, way::BULK, way::URGENT, way::AUTO, way::INVOKE]
    {
        let walks = CHAINS.map(|lines| found(records, &chain(lines), way));
        table.row(Kind::Plain, [way], walks.map(figure));
    }
    table.notes.push(format!(
        "R = {:.1} ({:.1} ns to {:.2}); break-even by (R - 1) n = C, with k locks saved:",
        first.r, first.remote_ns, first.local_ns
    ));
    for (name, even) in &evens {
        let crossing = match even.crossing {
            None => format!("more than {}", CHAINS[CHAINS.len() - 1]),
            Some(n) if n < 1.0 => "less than 1".to_owned(),
            Some(n) => format!("{n:.1}"),
        };
        let BreakEven { c, formula, lock, whole, .. } = even;
        table.notes.push(format!(
            "{name}: C = {c:.0}, n = {formula:.1} - {lock:.1} k, with one lock {whole:.1}; found \
            {crossing}."
        ));
    }
    table.notes.push(format!(
        "1993: R = {R:.0}; urgent {} µs, n = {}; ordinary {} µs, n = {} - 7 k.",
        URGENT.0, URGENT.1, ORDINARY.0, ORDINARY.1
    ));
    table.if_any()
}

fn ratios(records: &[Record]) -> Option<Table> {
    let most = CALLERS[CALLERS.len() - 1];
    let per_s = |hot: Hot, system: &str| {
        let case = hot.record(most);
        let record = records.iter().find(|r| r.case == case && r.system == system);
        record.map(|record| record.per_s)
    };
    let mut all = Vec::new();
    for hot in [Hot::Counter, Hot::Queue] {
        let what = format!("{}, {most} processes: access to a pthread mutex", hot.name());
        let found = ratio(per_s(hot, way::ACCESS), per_s(hot, way::MUTEX));
        all.push(Aim::at_least(what, found, 2.0));
    }
    // The queue behind the spin lock is another implementation: it does not validate its content.
    let alone = |way| found(records, &Hot::Counter.alone(), way);
    let what = "counter at home alone, to a spin lock";
    all.push(Aim::at_most(what, ratio(alone(way::LOCAL), alone(way::SPIN)), 1.3));
    aims("aims", "ratios of this run", None, &all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::{Mode, Placement};
    use crate::found::Throughput;
    use crate::record::{Label, Turn};
    use crate::stats::Summary;
    use crate::table::text;

    fn label<'a>(case: &'a str, system: &'a str) -> Label<'a> {
        Label { suite: "homed", case, system, placement: Placement::TwoCores, mode: Mode::Polling }
    }

    fn time(case: &str, system: &str, ns: f64) -> Record {
        let found = Summary { p99_ns: 2.0 * ns, p999_ns: 3.0 * ns, ..Summary::flat(ns, 5) };
        label(case, system).latency(&[Turn { found, lines: (140.0, 140.0) }])
    }

    fn rate(case: &str, system: &str, calls: u64) -> Record {
        label(case, system).throughput(
            8,
            &[Turn { found: Throughput { calls, elapsed_ns: 1_000_000 }, lines: (140.0, 140.0) }],
        )
    }

    #[test]
    fn everything_is_told_beside_the_papers() {
        let mut records = vec![
            time("find-last-5", way::LOCAL, 20.0),
            time("find-last-5", way::LOCAL_UNLOCKED, 15.0),
            time("find-last-5-dirty", way::ACCESS, 400.0),
            time("find-last-5-dirty", way::BULK, 450.0),
            time("find-last-5-dirty", way::URGENT, 505.0),
            rate("throughput-counter-8", way::ACCESS, 30_000),
            rate("throughput-counter-8", way::MUTEX, 10_000),
            time("throughput-counter-alone", way::LOCAL, 6.0),
            time("throughput-counter-alone", way::SPIN, 4.0),
            time("slowdown-find-last-10", way::ACCESS, 10.0),
            time("slowdown-find-last-10-caller", way::ACCESS, 200.0),
            time("slowdown-find-last-10", way::URGENT_SIGNAL_PAUSED, 300.0),
            time("slowdown-find-last-10-caller", way::URGENT_SIGNAL_PAUSED, 900.0),
            time("slowdown-enqueue-dequeue", way::ACCESS, 10.0),
        ];
        for lines in CHAINS {
            let n = f64::from(lines);
            records.extend([
                time(&chain(lines), way::LOCAL, 2.0 * n),
                time(&chain(lines), way::ACCESS, 100.0 + 52.0 * n),
                time(&chain(lines), way::URGENT, 300.0 + 2.0 * n),
                time(&chain(lines), way::INVOKE, 800.0 + 2.0 * n),
            ]);
        }
        let report = Report { records, notes: vec!["a note".into()], ..Report::default() };
        let text = text::printed(&tables(&report), &report, false);
        let row = |name: &str| text::words(&text, name);
        assert_eq!(row("find-last-5-dirty")[4..8], ["400", "-", "450", "505"], "{text}");
        assert_eq!(
            row("counter, 8 processes: access to a pthread mutex"),
            ["3.00", "≥", "2", "met"],
            "{text}"
        );
        assert_eq!(
            row("counter at home alone, to a spin lock"),
            ["1.50", "≤", "1.3", "missed"],
            "{text}"
        );
        assert_eq!(row("find-last-10, access"), ["10.0", "200", "5.0"], "{text}");
        assert_eq!(row("find-last-10, urgent-signal-paused"), ["300", "900", "33.3"], "{text}");
        assert!(text.contains("R = 26.0 (52.0 ns to 2.00)"), "{text}");
        assert!(
            text.contains("urgent: C = 150, n = 6.0 - 2.0 k, with one lock 4.0; found 4.0"),
            "{text}"
        );
        assert!(
            text.contains("ordinary: C = 400, n = 16.0 - 2.0 k, with one lock 14.0; found 14.0"),
            "{text}"
        );
        assert!(
            text.contains("1993: by access 1 ms of 19, 5 %; urgent 17 ms of 22, 77 %"),
            "{text}"
        );
        assert!(text.contains("note: a note") && !text.contains('\x1b'), "{text}");
    }
}
