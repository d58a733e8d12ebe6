//! The results of the paper's experiments: Figure 7's shares, and Table 6 beside the paper's
//! figures.

use super::paper::{
    CYCLE_NS, GROUPS, HANDLER, INTERVALS, Row, SCHEDULES, TABLE_6, figure_7, multiple, percent,
    table_6, table_6_alone, table_6_other,
};
use crate::record::Record;
use crate::table::{ABSENT, Kind, Table, hundredths, thousands};

/// Makes the tables of the results in these records.
pub(in crate::messages) fn tables(records: &[Record]) -> Vec<Table> {
    let simulated = workloads(records, "table-6-simulated", false);
    [shares(records), workloads(records, "table-6", true), simulated]
        .into_iter()
        .flatten()
        .collect()
}

fn shares(records: &[Record]) -> Option<Table> {
    let us = HANDLER as f64 * CYCLE_NS / 1e3;
    let title = format!(
        "percent of messages buffered, by send interval in cycles (handler {HANDLER}; for real \
        {us:.0} µs)"
    );
    let mut table = Table::new("figure-7", title).names([""]).figures(INTERVALS);
    for (group, real) in GROUPS.into_iter().flat_map(|group| [(group, true), (group, false)]) {
        let name = format!("synth-{group}{}", if real { "" } else { ", simulated" });
        let shares = INTERVALS.map(|interval| percent(records, &figure_7(real, group, interval)));
        if shares.iter().any(Option::is_some) {
            table.row(Kind::Ours, [name], shares.map(hundredths));
        }
    }
    table.if_any()
}

/// Formats the numbers of buffered messages of both jobs, in each run of the workload.
fn buffered(records: &[Record], real: bool, other: &str, schedule: &str) -> String {
    let of = |case: Option<String>| {
        let record = records.iter().find(|record| Some(&record.case) == case.as_ref())?;
        Some(format!("{:.2} %", 100.0 * record.buffered? as f64 / record.samples.max(1) as f64))
    };
    let both = [of(Some(table_6(real, other, schedule))), of(table_6_other(real, other, schedule))];
    both.into_iter().flatten().collect::<Vec<_>>().join(" / ")
}

/// Makes Table 6, of real or of simulated processors.
fn workloads(records: &[Record], name: &'static str, real: bool) -> Option<Table> {
    let place = if real { "for real" } else { "simulated on four processors" };
    let title = format!("Table 6, {place}: run time to batch's; messages buffered");
    let mut table = Table::new(name, title).names([""]).figures([
        "gang",
        "paper",
        "co",
        "paper",
        "buffered, batch",
        "gang",
        "co",
    ]);
    let is_there = |row: &&Row| {
        SCHEDULES
            .iter()
            .any(|schedule| records.iter().any(|r| r.case == table_6(real, row.other, schedule)))
    };
    for row in TABLE_6.iter().filter(is_there) {
        let ours = |schedule| {
            multiple(records, real, row.other, schedule)
                .map_or(ABSENT.to_owned(), |found| format!("{found:.3}"))
        };
        let paper = [row.gang.0, row.co.0].map(|paper| format!("{paper:.3}"));
        let [gang, co] = paper;
        let times = [ours("gang"), gang, ours("co"), co];
        let shares = SCHEDULES.map(|schedule| buffered(records, real, row.other, schedule));
        let name = format!("Tpuz beside {}{}", row.other, if real { "" } else { ", sim." });
        table.row(Kind::Ours, [name], times.into_iter().chain(shares));
    }
    table.notes.extend(alone(records, real));
    // Tpuz alone is a figure, too.
    (!table.rows.is_empty() || !table.notes.is_empty()).then_some(table)
}

/// Describes Tpuz without other jobs.
fn alone(records: &[Record], real: bool) -> Option<String> {
    let alone = records.iter().find(|record| record.case == table_6_alone(real))?;
    Some(match real {
        true => {
            format!("Tpuz alone: {} million messages a second.", thousands(1e3 / alone.p50_ns))
        }
        false => {
            let cycles = alone.p50_ns * alone.samples as f64 / 1e6;
            format!("Tpuz alone: {cycles:.1} million cycles, {} messages.", alone.samples)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::{Mode, Placement};
    use crate::found::Throughput;
    use crate::record::{Label, Turn};

    fn record(case: &str, calls: u64, elapsed_ns: u64, buffered: u64) -> Record {
        let label = Label {
            suite: "messages",
            case,
            system: "upcall",
            placement: Placement::TwoCores,
            mode: Mode::Polling,
        };
        let record = label.throughput(
            1,
            &[Turn { found: Throughput { calls, elapsed_ns }, lines: (140.0, 140.0) }],
        );
        Record { buffered: Some(buffered), ..record }
    }

    #[test]
    fn shares_and_multiples_are_told_beside_the_papers() {
        let tables = tables(&[
            record("synth-100-500", 1000, 1, 125),
            record("synth-simulated-100-500", 1000, 1, 110),
            record("tpuz-alone", 1000, 100_000, 0),
            record("tpuz-tpuz-batch", 1000, 200_000, 0),
            record("tpuz-tpuz-co", 1000, 220_000, 50),
            record("tpuz-tpuz-co-other", 1000, 220_000, 60),
            record("tpuz-simulated-null-batch", 1000, 200_000, 0),
            record("tpuz-simulated-null-gang", 1000, 203_000, 7),
        ]);
        let rows = |name: &str| -> Vec<String> {
            let table = tables.iter().find(|table| table.name == name).expect(name);
            table.rows.iter().map(|row| row.cells.join("|")).collect()
        };
        let shares = rows("figure-7");
        assert!(shares[0].starts_with("synth-100|") && shares[0].contains("12.50"), "{shares:?}");
        assert!(shares[1].starts_with("synth-100, simulated|") && shares[1].contains("11.00"));
        let real = rows("table-6");
        assert_eq!(real.len(), 1, "{real:?}");
        assert!(real[0].contains("|1.100|1.059|") && real[0].contains("5.00 % / 6.00 %"));
        let alone = "Tpuz alone: 10.0 million messages a second.";
        assert_eq!(tables[1].notes, [alone]);
        let simulated = rows("table-6-simulated");
        assert!(simulated[0].starts_with("Tpuz beside null, sim.|1.015|1.009|"), "{simulated:?}");
        assert!(simulated[0].contains("0.70 %"), "{simulated:?}");
        assert_eq!(super::tables(&[]), []);
    }
}
