//! The results of the paper's experiments: Figure 7's shares, and Table 6 beside the paper's
//! figures.

use std::io::{self, Write};

use super::paper::{
    CYCLE_NS, GROUPS, HANDLER, INTERVALS, Row, SCHEDULES, TABLE_6, figure_7, multiple, percent,
    table_6, table_6_alone, table_6_other,
};
use crate::record::Record;
use crate::table::{BOLD, DIM, Paint, thousands};

/// Column widths of a name, and of a figure.
const NAME: usize = 26;
const FIGURE: usize = 10;

/// Prints the results in these records.
///
/// # Errors
/// `out` cannot be written.
pub(in crate::messages) fn print(
    records: &[Record],
    out: &mut impl Write,
    paint: &Paint,
) -> io::Result<()> {
    shares(records, out, paint)?;
    workloads(records, true, out, paint)?;
    workloads(records, false, out, paint)
}

fn shares(records: &[Record], out: &mut impl Write, paint: &Paint) -> io::Result<()> {
    let rows = GROUPS.into_iter().flat_map(|group| [true, false].map(|real| (group, real)));
    let rows = rows.map(|(group, real)| {
        let name = format!("synth-{group}{}", if real { "" } else { ", simulated" });
        (name, INTERVALS.map(|interval| percent(records, &figure_7(real, group, interval))))
    });
    let rows: Vec<_> = rows.filter(|(_, shares)| shares.iter().any(Option::is_some)).collect();
    if rows.is_empty() {
        return Ok(());
    }
    let us = HANDLER as f64 * CYCLE_NS / 1e3;
    let head = format!(
        "percent of messages buffered, by send interval in cycles (handler {HANDLER}; for real \
        {us:.0} µs)"
    );
    writeln!(out, "\n{}", paint.text(BOLD, &head))?;
    let heads = INTERVALS.map(|interval| format!("{interval:>FIGURE$}")).concat();
    writeln!(out, "{}", paint.text(DIM, &format!("{:<NAME$}{heads}", "")))?;
    for (name, shares) in rows {
        let cells = shares.map(|share| {
            format!("{:>FIGURE$}", share.map_or("-".to_owned(), |share| format!("{share:.2}")))
        });
        writeln!(out, "{name:<NAME$}{}", cells.concat())?;
    }
    Ok(())
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

fn workloads(
    records: &[Record],
    real: bool,
    out: &mut impl Write,
    paint: &Paint,
) -> io::Result<()> {
    let there = |row: &&Row| {
        SCHEDULES
            .iter()
            .any(|schedule| records.iter().any(|r| r.case == table_6(real, row.other, schedule)))
    };
    let rows: Vec<_> = TABLE_6.iter().filter(there).collect();
    let alone = records.iter().find(|record| record.case == table_6_alone(real));
    if let Some(alone) = alone {
        let text = match real {
            true => {
                format!("Tpuz alone: {} million messages a second", thousands(1e3 / alone.p50_ns))
            }
            false => {
                let cycles = alone.p50_ns * alone.samples as f64 / 1e6;
                format!(
                    "Tpuz alone, simulated on four processors: {cycles:.1} million cycles, {} \
                    messages",
                    alone.samples
                )
            }
        };
        writeln!(out, "\n{}", paint.text(BOLD, &text))?;
    }
    if rows.is_empty() {
        return Ok(());
    }
    let heads = ["gang", "paper", "co", "paper"].map(|head| format!("{head:>FIGURE$}")).concat();
    let head =
        format!("{:<NAME$}{heads}   messages buffered, batch; gang; co", "run time to batch's");
    writeln!(out, "{}", paint.text(DIM, &head))?;
    for row in rows {
        let ours = |schedule| {
            multiple(records, real, row.other, schedule)
                .map_or("-".to_owned(), |found| format!("{found:.3}"))
        };
        let cells =
            [ours("gang"), format!("{:.3}", row.gang.0), ours("co"), format!("{:.3}", row.co.0)];
        let cells = cells.map(|cell| format!("{cell:>FIGURE$}")).concat();
        let shares =
            SCHEDULES.map(|schedule| buffered(records, real, row.other, schedule)).join("; ");
        writeln!(
            out,
            "{:<NAME$}{cells}   {shares}",
            format!("Tpuz beside {}{}", row.other, if real { "" } else { ", sim." })
        )?;
    }
    Ok(())
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

    fn told(records: &[Record]) -> String {
        let mut out = Vec::new();
        print(records, &mut out, &Paint { colour: false }).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn shares_and_multiples_are_told_beside_the_papers() {
        let text = told(&[
            record("synth-100-500", 1000, 1, 125),
            record("synth-simulated-100-500", 1000, 1, 110),
            record("tpuz-alone", 1000, 100_000, 0),
            record("tpuz-tpuz-batch", 1000, 200_000, 0),
            record("tpuz-tpuz-co", 1000, 220_000, 50),
            record("tpuz-tpuz-co-other", 1000, 220_000, 60),
            record("tpuz-simulated-null-batch", 1000, 200_000, 0),
            record("tpuz-simulated-null-gang", 1000, 203_000, 7),
        ]);
        assert!(
            text.contains("12.50")
                && text.contains("synth-100, simulated")
                && text.contains("11.00"),
            "{text}"
        );
        assert!(text.contains("alone: 10.0 million") && text.contains("1.100     1.059"), "{text}");
        assert!(text.contains("5.00 % / 6.00 %") && !text.contains("beside null "), "{text}");
        assert!(
            text.contains("beside null, sim.")
                && text.contains("1.015     1.009")
                && text.contains("0.70 %"),
            "{text}"
        );
        assert_eq!(told(&[]), "");
    }
}
