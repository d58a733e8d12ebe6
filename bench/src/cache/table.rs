//! The tables of the suite `cache`: the time of each contender in each case, also as a multiple of
//! Upcall's best.

use super::case::Case;
use crate::case::Placement;
use crate::record::Record;
use crate::report::Report;
use crate::table::{ABSENT, Kind, Table, figure};

/// The names of the tables.
pub(super) const TABLES: [&str; 2] = ["two-cores", "one-core"];

/// Minimum time of a peer's get as a multiple of Upcall's (docs/performance/cache.md).
const BAR: f64 = 50.0;

/// Makes the tables with figures of `report`.
pub(super) fn tables(report: &Report) -> Vec<Table> {
    let of = |(placement, name)| operations(&report.records, placement, name);
    let placements = [Placement::TwoCores, Placement::OneCore].into_iter().zip(TABLES);
    placements.filter_map(of).collect()
}

fn operations(records: &[Record], placement: Placement, name: &'static str) -> Option<Table> {
    let records: Vec<&Record> =
        records.iter().filter(|record| record.placement == placement).collect();
    let title =
        format!("{placement}: ns an operation; × of it what the best of ours takes, one at a time");
    let mut table = Table::new(name, title)
        .names(["case", "system"])
        .figures(["p50", "× ours", "p99", "× ours", "p99.9", "mean", "a second", "line"]);
    for case in Case::ALL {
        let mut name = case.name();
        for record in records.iter().filter(|record| record.case == case.name()) {
            let times = |of: fn(&Record) -> f64| {
                let ours = best(&records, case).map(of).filter(|&ours| ours > 0.0);
                ours.map_or(ABSENT.to_owned(), |ours| format!("{:.1}", of(record) / ours))
            };
            let figures = [
                figure(Some(record.p50_ns)),
                times(|record| record.p50_ns),
                figure(Some(record.p99_ns)),
                times(|record| record.p99_ns),
                figure(record.p999_ns),
                figure(Some(record.mean_ns)),
                figure(Some(record.per_s)),
                figure(record.line_ns),
            ];
            table.row(Kind::of(&record.system), [name, record.system.as_str()], figures);
            name = "";
        }
    }
    table.notes = bar(&records);
    table.if_any()
}

/// Returns Upcall's record with the smallest median, for single operations.
fn best<'a>(records: &[&'a Record], case: Case) -> Option<&'a Record> {
    let ours = records.iter().filter(|record| {
        record.case == case.single().name() && record.system.starts_with("upcall")
    });
    ours.copied().min_by(|a, b| a.p50_ns.total_cmp(&b.p50_ns))
}

/// Compares the gets of the peers with the bar.
fn bar(records: &[&Record]) -> Vec<String> {
    let Some(ours) = best(records, Case::Get) else { return Vec::new() };
    let peers = records
        .iter()
        .filter(|record| record.case == Case::Get.name() && !record.system.starts_with("upcall"));
    let told = |record: &&Record| {
        let times = [record.p50_ns / ours.p50_ns, record.p99_ns / ours.p99_ns];
        let reached =
            if times.iter().all(|&times| times >= BAR) { "reached" } else { "not reached" };
        format!(
            "a get by {} takes {:.1} × as long as by {} (p50), {:.1} × (p99): the bar of {BAR} × \
            is {reached}.",
            record.system, times[0], ours.system, times[1]
        )
    };
    peers.map(told).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::Mode;
    use crate::record::{Label, Turn};
    use crate::stats::Summary;
    use crate::table::text;

    fn record(case: &str, system: &str, p50_ns: f64, p99_ns: f64) -> Record {
        let found = Summary { p99_ns, p999_ns: p99_ns, ..Summary::flat(p50_ns, 5) };
        Label { suite: "cache", case, system, placement: Placement::TwoCores, mode: Mode::Parked }
            .latency(&[Turn { found, lines: (140.0, 140.0) }])
    }

    #[test]
    fn peers_are_compared_with_the_best_of_ours() {
        let records = vec![
            record("get", "upcall-access", 700.0, 900.0),
            record("get", "upcall-read", 500.0, 1000.0),
            record("get", "redis", 30_000.0, 50_000.0),
            record("get", "memcached", 20_000.0, 60_000.0),
            record("get-16", "redis", 2_000.0, 5_000.0),
        ];
        let report =
            Report { records, failures: vec!["something".to_owned()], ..Report::default() };
        let text = text::printed(&tables(&report), &report, false);
        let words: Vec<Vec<&str>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(words[3][..4], ["get", "upcall-access", "700", "1.4"], "{text}");
        assert_eq!(words[5][..7], ["redis", "30", "000", "60.0", "50", "000", "50.0"], "{text}");
        assert_eq!(words[7][..5], ["get-16", "redis", "2", "000", "4.0"], "{text}");
        assert!(text.contains(
            "by redis takes 60.0 × as long as by upcall-read (p50), 50.0 × \
            (p99): the bar of 50 × is reached"
        ));
        assert!(
            text.contains("by memcached takes 40.0 ×") && text.contains("is not reached"),
            "{text}"
        );
        assert!(text.contains("not measured: something") && !text.contains('\x1b'), "{text}");
    }
}
