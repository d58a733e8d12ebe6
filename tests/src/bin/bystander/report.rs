//! The figures, for people and for programs.

use crate::run::Measured;
use serde::Serialize;
use std::path::Path;
use upcall_bench::case::{Mode, Placement};
use upcall_bench::record::{Label, Record, Turn};
use upcall_bench::stats::{Summary, median};

/// The figures of one system in one case.
#[derive(Debug, Serialize)]
pub struct Figures {
    #[serde(flatten)]
    record: Record,
    max_ns: u64,
    /// Maximum growth of the memory charged to the server, in KiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    grew_kib: Option<u64>,
}

impl Figures {
    /// All figures of a case.
    pub fn of(measured: &Measured, polls: bool) -> Vec<Self> {
        let Measured { case, upcall, sleeper, bare, grew, lines } = measured;
        let line = median(lines);
        let mode = if polls { Mode::Polling } else { Mode::Parked };
        let one = |system, samples: &[u64], grew_kib| {
            let max_ns = samples.iter().copied().max()?;
            let found = Summary::of_durations(&mut samples.to_vec());
            let label = Label {
                suite: "bystander",
                case: case.name,
                system,
                placement: Placement::TwoCores,
                mode,
            };
            Some(Self {
                record: label.latency(&[Turn { found, lines: (line, line) }]),
                max_ns,
                grew_kib,
            })
        };
        let all = [
            one("upcall", upcall, Some(grew / 1024)),
            one("sleeper", sleeper, None),
            one("bare", bare, None),
        ];
        all.into_iter().flatten().collect()
    }
}

fn time(ns: f64) -> String {
    if ns < 1e6 { format!("{:.1} µs", ns / 1e3) } else { format!("{:.2} ms", ns / 1e6) }
}

/// Prints the table.
pub fn print(all: &[Figures]) {
    println!(
        "{:14} {:8} {:>8} {:>10} {:>10} {:>10} {:>10} {:>12}",
        "case", "system", "samples", "median", "99 %", "99.9 %", "longest", "memory"
    );
    for Figures { record, max_ns, grew_kib } in all {
        let times =
            [record.p50_ns, record.p99_ns, record.p999_ns.unwrap_or(f64::NAN), *max_ns as f64]
                .map(time);
        let name = if record.system == "upcall" { &record.case } else { "" };
        let grew = grew_kib.map_or(String::new(), |kib| format!("+{:.1} MiB", kib as f64 / 1024.0));
        let [median, most, nearly_all, longest] = times;
        println!(
            "{name:14} {:8} {:>8} {median:>10} {most:>10} {nearly_all:>10} {longest:>10} \
            {grew:>12}",
            record.system, record.samples
        );
    }
}

/// Writes one JSON object for each case and system; `-` is standard output.
pub fn write(all: &[Figures], path: &str) -> Result<(), Box<dyn std::error::Error>> {
    let lines: Vec<String> = all.iter().map(serde_json::to_string).collect::<Result<_, _>>()?;
    let text = format!("[\n{}\n]\n", lines.join(",\n"));
    if path == "-" {
        print!("{text}")
    } else {
        std::fs::write(Path::new(path), text)?
    }
    Ok(())
}
