//! The table at the end, and its contents as JSON.

use crate::contest::Record;
use crate::proof::hex;
use crate::timing::{OPERATIONS, quantile};
use crate::walk::Sum;
use serde_json::{Value, json};
use std::fmt;
use std::time::Duration;

/// One line: a piece of work by one carrier.
#[derive(Clone, Debug)]
pub struct Row {
    /// `walk` or `stat`.
    pub work: &'static str,
    /// The carrier.
    pub system: &'static str,
    /// Number of calls in one round.
    pub calls: u64,
    /// Number of bytes of files in one round.
    pub bytes: u64,
    /// Time inside calls: the median of the rounds.
    pub seconds: f64,
    /// The median time of all calls.
    pub p50: Duration,
    /// The time that one call of a hundred exceeds.
    pub p99: Duration,
    /// Time relative to that of the first carrier in the same round: the median of the rounds.
    pub ratio: f64,
    /// The calls by operation.
    operations: Vec<PerOperation>,
}

/// The times of the calls for one operation.
#[derive(Clone, Debug)]
struct PerOperation {
    name: &'static str,
    /// Number of calls in one round.
    calls: usize,
    /// Time inside calls in one round, a mean over the rounds.
    total: Duration,
    p50: Duration,
    p99: Duration,
}

/// The client's results.
#[derive(Clone, Debug)]
pub struct Report {
    /// The tree.
    pub root: String,
    /// Number of regular files.
    pub files: u64,
    /// Number of directories, including the root.
    pub directories: u64,
    /// Number of bytes requested in one read.
    pub chunk: u32,
    /// Number of times that each carrier walked the tree.
    pub rounds: u32,
    /// The digest over everything.
    pub sum: Sum,
    /// Numbers of what was not read, by reason.
    pub counts: Vec<(&'static str, u64)>,
    /// The table.
    pub rows: Vec<Row>,
}

/// The rows of the records. The others are compared with the first record.
pub fn rows(records: &[Record]) -> Vec<Row> {
    let Some(first) = records.first() else { return Vec::new() };
    let walk_seconds = |record: &Record| {
        record.walks.iter().map(|(_, s)| s.total().as_secs_f64()).collect::<Vec<_>>()
    };
    let stat_seconds =
        |record: &Record| record.stats.iter().map(|s| s.total.as_secs_f64()).collect::<Vec<_>>();
    let walks = records.iter().filter(|r| !r.walks.is_empty()).map(|record| {
        let calls = record.walk_calls();
        Row {
            work: "walk",
            system: record.name,
            calls: record.walks[0].1.calls(),
            bytes: record.walks[0].0,
            seconds: median(walk_seconds(record)),
            p50: quantile(&calls, 0.5),
            p99: quantile(&calls, 0.99),
            ratio: median(ratios(&walk_seconds(record), &walk_seconds(first))),
            operations: OPERATIONS
                .iter()
                .map(|(operation, name)| {
                    let (calls, rounds) = (record.calls_of(*operation), record.walks.len());
                    PerOperation {
                        name,
                        calls: calls.len() / rounds,
                        total: calls.iter().sum::<Duration>()
                            / u32::try_from(rounds).unwrap_or(u32::MAX),
                        p50: quantile(&calls, 0.5),
                        p99: quantile(&calls, 0.99),
                    }
                })
                .collect(),
        }
    });
    let stats = records.iter().filter(|r| !r.stats.is_empty()).map(|record| {
        let calls = record.stat_calls();
        Row {
            work: "stat",
            system: record.name,
            calls: record.stats[0].each.len() as u64,
            bytes: 0,
            seconds: median(stat_seconds(record)),
            p50: quantile(&calls, 0.5),
            p99: quantile(&calls, 0.99),
            ratio: median(ratios(&stat_seconds(record), &stat_seconds(first))),
            operations: Vec::new(),
        }
    });
    walks.chain(stats).collect()
}

fn ratios(these: &[f64], those: &[f64]) -> Vec<f64> {
    these.iter().zip(those).map(|(a, b)| a / b).collect()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[n / 2],
        n => f64::midpoint(values[n / 2 - 1], values[n / 2]),
    }
}

impl Row {
    fn calls_per_second(&self) -> f64 {
        self.calls as f64 / self.seconds
    }

    fn bytes_per_second(&self) -> f64 {
        self.bytes as f64 / self.seconds
    }

    fn cells(&self) -> [String; 8] {
        let moved = self.bytes > 0;
        [
            self.system.to_owned(),
            grouped(self.calls),
            if moved { grouped(self.bytes) } else { "—".to_owned() },
            format!("{:.3}", self.seconds),
            format!("{:.2}", self.p50.as_secs_f64() * 1e6),
            grouped(self.calls_per_second() as u64),
            if moved { grouped((self.bytes_per_second() / 1e6) as u64) } else { "—".to_owned() },
            format!("{:.2}", self.ratio),
        ]
    }

    fn json(&self) -> Value {
        let operations: serde_json::Map<String, Value> = self
            .operations
            .iter()
            .map(|of| {
                let value = json!({
                    "calls": of.calls, "seconds": of.total.as_secs_f64(),
                    "p50_ns": nanos(of.p50), "p99_ns": nanos(of.p99),
                });
                (of.name.to_owned(), value)
            })
            .collect();
        json!({
            "work": self.work,
            "system": self.system,
            "calls": self.calls,
            "bytes": self.bytes,
            "seconds": self.seconds,
            "p50_ns": nanos(self.p50),
            "p99_ns": nanos(self.p99),
            "calls_per_s": self.calls_per_second(),
            "bytes_per_s": self.bytes_per_second(),
            "ratio": self.ratio,
            "operations": operations,
        })
    }
}

fn nanos(length: Duration) -> u64 {
    u64::try_from(length.as_nanos()).unwrap_or(u64::MAX)
}

impl Report {
    /// Everything, for programs.
    pub fn json(&self) -> Value {
        let counts: serde_json::Map<String, Value> =
            self.counts.iter().map(|(what, count)| ((*what).to_owned(), json!(count))).collect();
        json!({
            "root": self.root,
            "files": self.files,
            "directories": self.directories,
            "chunk": self.chunk,
            "rounds": self.rounds,
            "sha256": hex(&self.sum),
            "counts": counts,
            "rows": self.rows.iter().map(Row::json).collect::<Vec<_>>(),
        })
    }
}

const HEAD: [&str; 8] = ["", "calls", "bytes", "seconds", "µs/call", "calls/s", "MB/s", "ratio"];

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cells: Vec<(&str, [String; 8])> =
            self.rows.iter().map(|row| (row.work, row.cells())).collect();
        let mut widths = HEAD.map(|head| head.chars().count());
        for (_, cells) in &cells {
            for (width, cell) in widths.iter_mut().zip(cells) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let line = |first: &str, cells: &[String]| {
            let rest: String = cells
                .iter()
                .zip(&widths[1..])
                .map(|(cell, width)| format!("  {cell:>width$}"))
                .collect();
            format!("{first:<width$}{rest}", width = widths[0] + 2)
        };
        let head = HEAD.map(str::to_owned);
        let mut work = "";
        for (of, row) in &cells {
            if work != *of {
                if !work.is_empty() {
                    writeln!(f)?;
                }
                work = of;
                writeln!(
                    f,
                    "{}",
                    line(if *of == "walk" { "the walk" } else { "stat only" }, &head[1..])
                )?;
            }
            writeln!(f, "{}", line(&format!("  {}", row[0]), &row[1..]))?;
        }
        writeln!(f)?;
        writeln!(
            f,
            "seconds: the time inside calls (digesting is outside), median of {} rounds; µs/call: \
            the median of all calls;",
            self.rounds
        )?;
        write!(
            f,
            "ratio: time against the plain function call in the same round; MB: 10^6 bytes; \
            chunks of {} KiB",
            self.chunk >> 10
        )
    }
}

/// Formats 1234567 as 1 234 567.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped() {
        assert_eq!(
            [0, 12, 123, 1234, 1_234_567].map(grouped),
            ["0", "12", "123", "1 234", "1 234 567"]
        );
    }

    #[test]
    fn medians() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(Vec::new()).is_nan());
    }
}
