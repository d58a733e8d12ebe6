//! The table of the suite `links`: time and memory by the number of hosts.

use super::case::Case;
use crate::report::Report;
use crate::table::{Kind, Table, figure};

/// The names of the tables.
pub(super) const TABLES: [&str; 1] = ["growth"];

/// Makes the tables with figures of `report`.
pub(super) fn tables(report: &Report) -> Vec<Table> {
    let title = "simulated hosts: processor time of a run and of a message, and peak memory";
    let heads = ["links", "messages", "ms", "µs a message", "MiB", "KiB a link"];
    let mut table = Table::new(TABLES[0], title).names(["hosts"]).figures(heads);
    for case in Case::ALL {
        let Some(record) = report.records.iter().find(|record| record.case == case.name()) else {
            continue;
        };
        let figures = [
            count(case.links()),
            count(case.messages()),
            figure(Some(record.p50_ns * case.messages() as f64 / 1e6)),
            figure(Some(record.p50_ns / 1e3)),
            figure(record.peak_kib.map(|kib| kib as f64 / 1024.0)),
            figure(record.bytes_each.map(|bytes| bytes / 1024.0)),
        ];
        table.row(Kind::Ours, [count(case.hosts().into())], figures);
    }
    table.if_any().into_iter().collect()
}

/// Formats a number that has no decimals.
fn count(number: u64) -> String {
    if number < 100 { number.to_string() } else { figure(Some(number as f64)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::{Mode, Placement};
    use crate::found::Throughput;
    use crate::record::{Label, Record, Turn};

    #[test]
    fn a_row_has_the_time_of_all_messages() {
        let (placement, mode) = (Placement::OneCore, Mode::Polling);
        let label = Label { suite: "links", case: "hosts-1000", system: "upcall", placement, mode };
        let found = Throughput { calls: 40_000, elapsed_ns: 80_000_000 };
        let record = Record {
            peak_kib: Some(51_200),
            bytes_each: Some(16_384.0),
            ..label.throughput(1, &[Turn { found, lines: (100.0, 100.0) }])
        };
        let report = Report { records: vec![record], ..Report::default() };
        let tables = tables(&report);
        let cells = ["1 000", "2 000", "40 000", "80.0", "2.0", "50.0", "16.0"];
        assert_eq!(tables[0].rows[0].cells, cells);
        assert!(super::tables(&Report::default()).is_empty());
        assert_eq!([count(10), count(100_000)], ["10", "100 000"]);
    }
}
