//! The tables of the suite `threads`: a row for each case, a column for each system.

use super::case::Case;
use crate::report::{Idle, Report};
use crate::table::{ABSENT, Kind, Table, figure};

/// The names of the tables.
pub(super) const TABLES: [&str; 7] =
    ["operations", "table-i", "yields", "alive", "alive-first", "memory", "idle"];

/// Makes the tables with figures of `report`.
pub(super) fn tables(report: &Report) -> Vec<Table> {
    let found = Found { report, systems: systems(report) };
    let of_table = |case| Case::TABLE.contains(&case);
    let is_yield = |case| matches!(case, Case::Yield(_));
    let compared = [
        found.compared("operations", "one processor, ns an operation (median)", of_table),
        found.compared("yields", "threads that yield in turn, ns a yield (median)", is_yield),
        found.compared(
            "alive",
            "threads alive at once, again, ns a thread (median)",
            Case::is_alive,
        ),
    ];
    let find = |case: &str, system: &str| {
        report.records.iter().find(|r| r.case == case && r.system == system)
    };
    let first =
        found.plain("alive-first", "threads alive, the first time, ns a thread", |case, system| {
            find(case, system)?.first_ns
        });
    let memory = found.plain("memory", "memory of threads alive, KiB a thread", |case, system| {
        find(case, system)?.bytes_each.map(|bytes| bytes / 1024.0)
    });
    let [operations, yields, alive] = compared;
    let table_i = found.papers();
    let all = [operations, table_i, yields, alive, first, memory, found.idle()];
    all.into_iter().flatten().collect()
}

/// A report, and its systems.
struct Found<'a> {
    report: &'a Report,
    systems: Vec<&'a str>,
}

impl<'a> Found<'a> {
    fn p50(&self, case: &str, system: &str) -> Option<f64> {
        let record = self.report.records.iter().find(|r| r.case == case && r.system == system);
        record.map(|record| record.p50_ns)
    }

    /// Creates a table with a column for each system.
    fn table(&self, name: &'static str, title: &str) -> Table {
        let columns = self.systems.iter().map(|&system| (system, Kind::of(system)));
        Table::new(name, title).names([""]).columns(columns)
    }

    /// Makes a table of medians of the cases that `of` selects, which compares Upcall's with the
    /// best peer's, with a procedure call, and with the paper's.
    fn compared(
        &self,
        name: &'static str,
        title: &str,
        of: impl Fn(Case) -> bool,
    ) -> Option<Table> {
        let one_call = self.p50(&Case::ProcedureCall.name(), "upcall");
        let mut table = self.table(name, title).figures(["best peer / ours"]);
        if one_call.is_some() {
            table = table.figures(["× call", "URPC's"]);
        }
        for case in cases(self.report).into_iter().filter(|case| Case::named(case).is_some_and(&of))
        {
            let ours = self.p50(case, "upcall");
            let peers = self.systems.iter().filter(|system| !["upcall", "limit"].contains(*system));
            let best = peers.filter_map(|system| self.p50(case, system)).min_by(f64::total_cmp);
            let ratio = best.zip(ours).map(|(best, ours)| best / ours);
            let ratio = ratio.map_or(ABSENT.to_owned(), |ratio| format!("{ratio:.1}"));
            let times = one_call.zip(ours).map(|(call, ours)| ours / call);
            let calls = [times, paper(case)].map(multiple);
            let calls = calls.into_iter().filter(|_| one_call.is_some());
            let figures = self.systems.iter().map(|&system| figure(self.p50(case, system)));
            table.row(Kind::Plain, [case], figures.chain([ratio]).chain(calls));
        }
        table.if_any()
    }

    /// Makes the paper's table, with Upcall's figures in the same unit.
    fn papers(&self) -> Option<Table> {
        let one_call = self.p50(&Case::ProcedureCall.name(), "upcall");
        let title = "Table I: an operation, ns (median) and procedure calls; the paper's, µs";
        let heads = ["upcall, ns", "× call", "URPC, µs", "× call", "Taos, µs", "× call"];
        let mut table = Table::new("table-i", title).names(["operation"]).figures(heads);
        for case in Case::TABLE {
            let ours = self.p50(&case.name(), "upcall");
            let (Some(ours), Some(us), Some(times)) = (ours, case.paper_us(), case.paper()) else {
                continue;
            };
            let of_call = one_call.map(|call| ours / call);
            let papers = [(us.0, times.0), (us.1, times.1)];
            let papers = papers.map(|(us, times)| [format!("{us}"), figure(Some(times))]).concat();
            let figures = [figure(Some(ours)), figure(of_call)].into_iter().chain(papers);
            table.row(Kind::Ours, [case.name()], figures);
        }
        table.if_any()
    }

    /// Makes a table without comparisons, of the cases for which a system has a figure.
    fn plain(
        &self,
        name: &'static str,
        title: &str,
        of: impl Fn(&str, &str) -> Option<f64>,
    ) -> Option<Table> {
        let mut table = self.table(name, title);
        for case in cases(self.report) {
            let figures: Vec<_> = self.systems.iter().map(|&system| of(case, system)).collect();
            if figures.iter().any(Option::is_some) {
                table.row(Kind::Plain, [case], figures.into_iter().map(figure));
            }
        }
        table.if_any()
    }

    fn idle(&self) -> Option<Table> {
        if self.report.idle.is_empty() {
            return None;
        }
        let mut table = self.table("idle", "1000 threads asleep");
        let mut row = |name: &str, of: fn(&Idle) -> f64| {
            let find = |&system: &&str| self.report.idle.iter().find(|idle| idle.system == system);
            table.row(Kind::Plain, [name], self.systems.iter().map(|s| figure(find(s).map(of))));
        };
        row("CPU µs/s", |idle| idle.cpu_ns_per_s / 1e3);
        row("peak MiB", |idle| {
            idle.memory_kib.first().map_or(f64::NAN, |&kib| kib as f64 / 1024.0)
        });
        table.if_any()
    }
}

/// Returns the systems with figures in the order of the records: Upcall, the floor, the peers.
fn systems(report: &Report) -> Vec<&str> {
    let mut systems: Vec<&str> = Vec::new();
    for name in report
        .idle
        .iter()
        .map(|idle| idle.system.as_str())
        .chain(report.records.iter().map(|record| record.system.as_str()))
    {
        if !systems.contains(&name) {
            systems.push(name);
        }
    }
    // `limit` has no idle figures, so it appears late.
    systems.sort_by_key(|system| match *system {
        "upcall" => 0,
        "limit" => 1,
        _ => 2,
    });
    systems
}

/// Returns the cases with figures, in the order of their measurement.
fn cases(report: &Report) -> Vec<&str> {
    let mut cases: Vec<&str> = Vec::new();
    for record in &report.records {
        if !cases.contains(&record.case.as_str()) {
            cases.push(&record.case);
        }
    }
    cases
}

/// Returns the paper's figure for its threads, in procedure calls.
fn paper(name: &str) -> Option<f64> {
    Case::named(name)?.paper().map(|(urpc, _)| urpc)
}

fn multiple(times: Option<f64>) -> String {
    times.map_or(ABSENT.to_owned(), |times| format!("{times:.0}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::{Mode, Placement};
    use crate::record::{Label, Record, Turn};
    use crate::stats::Summary;

    fn record(case: &str, system: &str, ns: f64, bytes_each: Option<f64>) -> Record {
        let found = Summary::flat(ns, 5);
        let label = Label {
            suite: "threads",
            case,
            system,
            placement: Placement::OneCore,
            mode: Mode::Polling,
        };
        Record { bytes_each, ..label.latency(&[Turn { found, lines: (140.0, 140.0) }]) }
    }

    #[test]
    fn ours_is_compared_with_the_best_peer_and_the_paper() {
        let report = Report {
            records: vec![
                record("procedure-call", "upcall", 2.0, None),
                record("fork-join", "upcall", 40.0, None),
                record("fork-join", "go", 400.0, None),
                record("fork-join", "limit", 18.0, None),
                record("fork-join", "pthread", 26_000.0, None),
                record("alive-100k", "upcall", 1000.0, Some(2048.0)),
            ],
            idle: vec![Idle {
                system: "upcall".to_owned(),
                mode: Mode::Parked,
                cpu_ns_per_s: 12_300.0,
                memory_kib: vec![1024],
            }],
            ..Report::default()
        };
        let tables = tables(&report);
        let lines = |name: &str| -> Vec<String> {
            let table = tables.iter().find(|table| table.name == name).expect(name);
            let heads = table.heads.iter().map(|head| head.text.clone()).collect();
            let rows = table.rows.iter().map(|row| row.cells.clone());
            [heads].into_iter().chain(rows).map(|cells: Vec<String>| cells.join("|")).collect()
        };
        let operations = [
            "|upcall|limit|go|pthread|best peer / ours|× call|URPC's",
            "procedure-call|2.0|-|-|-|-|1|1",
            "fork-join|40.0|18.0|400|26 000|10.0|20|15",
        ];
        assert_eq!(lines("operations"), operations);
        assert_eq!(lines("table-i")[1], "procedure-call|2.0|1.0|7|1.0|7|1.0");
        assert_eq!(lines("table-i")[2], "fork-join|40.0|20.0|102|14.6|1574|225");
        assert_eq!(lines("alive")[1], "alive-100k|1 000|-|-|-|-|500|-");
        assert_eq!(lines("memory")[1..], ["alive-100k|2.0|-|-|-"]);
        assert_eq!(lines("idle")[1..], ["CPU µs/s|12.3|-|-|-", "peak MiB|1.0|-|-|-"]);
    }
}
