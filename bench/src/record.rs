//! The record: one JSON object for each case, system, placement and mode.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::case::{Mode, Placement};
use crate::found::Found;
use crate::stats::{Summary, median};

/// One figure of the report: medians over the rounds.
///
/// In the throughput cases `null-tN`, single calls are not timed: `mean_ns` is the mean time that
/// one of the N calls is outstanding (N × time ÷ calls), `p50_ns` the median of that over the
/// rounds, and `p99_ns` its worst round. In `idle-N` of the suite `pvm` the times are the processor
/// time that N waiting tasks use, in nanoseconds per second, and `per_s` is 0; so are those of
/// `idle` in the suite `hosts`, of an idle connection. In `links` the times are the processor time
/// of a run by its messages. In `urpc` the times are of the calls that one of the N threads times,
/// `per_s` is of all N threads while none times its calls, and `mean_ns` is N ÷ `per_s`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The suite: `rpc`, `threads`, `urpc`, `lrpc`, `messages`, `homed`, `cache`, `pvm`,
    /// `hosts` or `links`.
    pub suite: String,
    /// The call, the thread operation, or the part of a call.
    pub case: String,
    /// The system: `upcall`, `limit`, or a peer. In `urpc` also `upcall-polling` (see
    /// [`crate::urpc`]). In `homed` the method by which an operation was run
    /// ([`crate::homed::case::way`]).
    pub system: String,
    /// Where the two processes ran. Always `one-core` in `threads`, and for the parts of a call in
    /// `urpc`, which have one process on one processor. For the calls of `urpc`, `one-core` if the
    /// server has no processor of its own.
    pub placement: Placement,
    /// How the server waited. Always `polling` in `threads`, which has no server and where no
    /// thread waits in the kernel for another process. In `urpc`, `parked` if the server has no
    /// processor of its own, so that it sleeps whenever it is idle.
    pub mode: Mode,
    /// In `urpc`, for calls: the number of processors of client and server, as in `1,0`
    /// ([`crate::urpc::config::Config`]). In `lrpc`: [`crate::lrpc::CONFIGS`] or
    /// [`crate::lrpc::SPARES`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<String>,
    /// Median time of a call, or of an operation.
    pub p50_ns: f64,
    /// 99th percentile.
    pub p99_ns: f64,
    /// 99.9th percentile; absent in throughput cases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p999_ns: Option<f64>,
    /// 99.99th percentile; present if each turn has at least 20 000 samples of single calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p9999_ns: Option<f64>,
    /// Mean.
    pub mean_ns: f64,
    /// Calls or operations per second.
    pub per_s: f64,
    /// Number of calls measured in all rounds; in `threads`, samples of several operations each.
    pub samples: u64,
    /// Cache-line round trip between the two processors, probed before and after each turn; null on
    /// a machine with one processor.
    pub line_ns: Option<f64>,
    /// Peak memory of the process, in KiB (VmHWM); in the cases `alive-…` and the suite `links`
    /// only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_kib: Option<u64>,
    /// Memory of one thread that is alive, in bytes, in the cases `alive-…`: the growth of the
    /// process from before its thread system began to its peak, divided by the number of threads.
    /// In `links` it is the same growth by links. In `idle-…` of the suite `pvm` the proportional
    /// set sizes of all processes, including a daemon's, divided by the number of tasks. Memory
    /// that the kernel keeps for itself is not included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_each: Option<f64>,
    /// Median time of an operation in the first round of a process, when all memory came from the
    /// kernel; in the cases `alive-…` only, where the other times are of repetitions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_ns: Option<f64>,
    /// Number of messages that were buffered, in all rounds; in `synth-…` and `tpuz-…` of the suite
    /// `messages` only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buffered: Option<u64>,
    /// Time of the same message without writing and checking its payload, which the other figures
    /// include. In `one-way-…` of the suite `pvm` only, as is `memcpy_ns`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bare_ns: Option<f64>,
    /// Time of a copy of the same number of bytes within the cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memcpy_ns: Option<f64>,
    /// Time of a sweep of the same blocks by one task, which copies their borders itself; in
    /// `laplace-…` and `balance-…` of the suite `pvm`. There, in `moving-messages`, the time of a
    /// message to a task that stays, and in `processor-away` of a sweep if only the processor's
    /// time were lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alone_ns: Option<f64>,
    /// Time for which tasks stood still while their machine was saved, in whole milliseconds; in
    /// `checkpoint-…` of the suite `pvm` only. There `memcpy_ns` is the time of a plain write of as
    /// many bytes, until they are on the disk, and `bytes_each` the size of the file by tasks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause_ns: Option<f64>,
    /// Processor time of the client's process a call, in the suite `hosts` only; in `idle` per
    /// second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_cpu_ns: Option<f64>,
    /// Processor time of the server's process a call, as `client_cpu_ns`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_cpu_ns: Option<f64>,
}

/// One turn of one system: its measurement, and the line before and after.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Turn<T> {
    /// The measurement.
    pub found: T,
    /// `line_ns` before and after; NaN on a machine with one processor.
    pub lines: (f64, f64),
}

/// The name and setting of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Label<'a> {
    /// The suite.
    pub suite: &'a str,
    /// The case.
    pub case: &'a str,
    /// The system.
    pub system: &'a str,
    /// Where the processes ran.
    pub placement: Placement,
    /// How the server waits.
    pub mode: Mode,
}

impl Label<'_> {
    /// Makes the record of a latency case.
    pub fn latency(&self, turns: &[Turn<Summary>]) -> Record {
        let over = |figure: fn(&Summary) -> f64| {
            median(&turns.iter().map(|t| figure(&t.found)).collect::<Vec<_>>())
        };
        let mean_ns = over(|s| s.mean_ns);
        let rare: Option<Vec<f64>> = turns.iter().map(|turn| turn.found.p9999_ns).collect();
        let record = self.record(
            [over(|s| s.p50_ns), over(|s| s.p99_ns), mean_ns],
            Some(tenths(over(|s| s.p999_ns))),
            1e9 / mean_ns,
            turns.iter().map(|t| t.found.count).sum(),
            &turns.iter().map(|t| t.lines).collect::<Vec<_>>(),
        );
        Record { p9999_ns: rare.map(|rare| tenths(median(&rare))), ..record }
    }

    /// Makes the record of a throughput case of `callers` callers.
    pub fn throughput(&self, callers: usize, turns: &[Turn<crate::child::Throughput>]) -> Record {
        let each: Vec<f64> =
            turns.iter().map(|t| t.found.elapsed_ns as f64 / t.found.calls.max(1) as f64).collect();
        let outstanding: Vec<f64> = each.iter().map(|ns| ns * callers as f64).collect();
        let mean = outstanding.iter().sum::<f64>() / outstanding.len() as f64;
        let worst = outstanding.iter().copied().fold(0.0, f64::max);
        self.record(
            [median(&outstanding), worst, mean],
            None,
            1e9 / median(&each),
            turns.iter().map(|t| t.found.calls).sum(),
            &turns.iter().map(|t| t.lines).collect::<Vec<_>>(),
        )
    }

    /// Makes the record of the times, or of the rates of `callers` callers, that `of` extracts from
    /// each turn. Returns `None` without findings.
    pub fn found<T>(
        &self,
        callers: usize,
        turns: &[Turn<T>],
        of: impl Fn(&T) -> Option<Found>,
    ) -> Option<Record> {
        let (mut times, mut rates) = (Vec::new(), Vec::new());
        for &Turn { ref found, lines } in turns {
            match of(found) {
                Some(Found::Times(found)) => times.push(Turn { found, lines }),
                Some(Found::Rate(found)) => rates.push(Turn { found, lines }),
                None => {}
            }
        }
        match (times.is_empty(), rates.is_empty()) {
            (true, true) => None,
            (false, true) => Some(self.latency(&times)),
            (_, false) => Some(self.throughput(callers, &rates)),
        }
    }

    fn record(
        &self,
        [p50_ns, p99_ns, mean_ns]: [f64; 3],
        p999_ns: Option<f64>,
        per_s: f64,
        samples: u64,
        lines: &[(f64, f64)],
    ) -> Record {
        let lines: Vec<f64> = lines.iter().flat_map(|&(before, after)| [before, after]).collect();
        let line_ns = median(&lines);
        Record {
            suite: self.suite.to_owned(),
            case: self.case.to_owned(),
            system: self.system.to_owned(),
            placement: self.placement,
            mode: self.mode,
            config: None,
            p50_ns: tenths(p50_ns),
            p99_ns: tenths(p99_ns),
            p999_ns,
            p9999_ns: None,
            mean_ns: tenths(mean_ns),
            per_s: tenths(per_s),
            samples,
            line_ns: line_ns.is_finite().then(|| tenths(line_ns)),
            peak_kib: None,
            bytes_each: None,
            first_ns: None,
            buffered: None,
            bare_ns: None,
            memcpy_ns: None,
            alone_ns: None,
            pause_ns: None,
            client_cpu_ns: None,
            server_cpu_ns: None,
        }
    }
}

pub(crate) fn tenths(x: f64) -> f64 {
    (x * 10.0).round() / 10.0
}

/// Copies the `limit-*` record with the lowest median of each case under the name `limit`, unless
/// there is such a record: with parked servers the floor is the best hand-off.
pub fn name_best_limits(records: &mut Vec<Record>) {
    let mut best: BTreeMap<(String, Placement, Mode), &Record> = BTreeMap::new();
    for record in records.iter().filter(|record| record.system.starts_with("limit")) {
        let key = (record.case.clone(), record.placement, record.mode);
        let held = best.entry(key).or_insert(record);
        if held.system != "limit" && (record.system == "limit" || record.p50_ns < held.p50_ns) {
            *held = record;
        }
    }
    let named: Vec<Record> = best
        .into_values()
        .filter(|record| record.system != "limit")
        .map(|record| Record { system: "limit".to_owned(), ..record.clone() })
        .collect();
    records.extend(named);
}

/// Returns the name of the bare hand-off among `records` that `limit` copies, if any.
pub(crate) fn hand_off<'a>(
    limit: &Record,
    records: impl IntoIterator<Item = &'a Record>,
) -> Option<&'a str> {
    let renamed = |r: &Record| Record { system: limit.system.clone(), ..r.clone() };
    let copied = |r: &'a Record| r.system.strip_prefix("limit-").filter(|_| renamed(r) == *limit);
    records.into_iter().find_map(copied)
}

/// Writes the records as a JSON array, one record a line, to `path`; `-` is standard output.
///
/// # Errors
/// The file cannot be written.
pub fn write(records: &[Record], path: &Path) -> io::Result<()> {
    let lines: Result<Vec<_>, _> = records.iter().map(serde_json::to_string).collect();
    let text = format!("[\n{}\n]\n", lines?.join(",\n"));
    if path == Path::new("-") {
        io::stdout().write_all(text.as_bytes())
    } else {
        fs::write(path, text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::child::Throughput;

    const LABEL: Label<'static> = Label {
        suite: "rpc",
        case: "null",
        system: "limit",
        placement: Placement::TwoCores,
        mode: Mode::Polling,
    };

    fn turn(p50_ns: f64, line: f64) -> Turn<Summary> {
        let found = Summary {
            p99_ns: 2.0 * p50_ns,
            p999_ns: 3.0 * p50_ns,
            mean_ns: p50_ns + 1.0,
            ..Summary::flat(p50_ns, 10)
        };
        Turn { found, lines: (line, line) }
    }

    #[test]
    fn the_form_is_the_agreed_one() {
        let record = LABEL.latency(&[turn(99.0, 140.0), turn(199.0, 150.0), turn(149.0, 145.0)]);
        let json = serde_json::to_string(&record).unwrap();
        assert_eq!(
            json,
            "{\"suite\":\"rpc\",\"case\":\"null\",\"system\":\"limit\",\
             \"placement\":\"two-cores\",\"mode\":\"polling\",\
             \"p50_ns\":149.0,\"p99_ns\":298.0,\"p999_ns\":447.0,\"mean_ns\":150.0,\
             \"per_s\":6666666.7,\"samples\":30,\"line_ns\":145.0}"
        );
        assert_eq!(serde_json::from_str::<Record>(&json).unwrap(), record);
        let rare = |p9999_ns| {
            let Turn { found, lines } = turn(99.0, 140.0);
            Turn { found: Summary { p9999_ns, ..found }, lines }
        };
        let p9999_ns = |turns: &[_]| LABEL.latency(turns).p9999_ns;
        assert_eq!(p9999_ns(&[rare(Some(500.0)), rare(Some(700.0))]), Some(600.0));
        assert_eq!(p9999_ns(&[rare(Some(500.0)), rare(None)]), None);
    }

    #[test]
    fn throughput_counts_outstanding_time() {
        let turn = |calls| Turn {
            found: Throughput { calls, elapsed_ns: 1_000_000 },
            lines: (140.0, 140.0),
        };
        let record = LABEL.throughput(4, &[turn(1000), turn(2000), turn(1250)]);
        assert_eq!((record.p50_ns, record.p99_ns, record.per_s), (3200.0, 4000.0, 1_250_000.0));
        assert_eq!((record.samples, record.p999_ns), (4250, None));
    }

    #[test]
    fn the_best_hand_off_is_the_limit() {
        let of = |system: &'static str, p50| {
            Label { system, mode: Mode::Parked, ..LABEL }.latency(&[turn(p50, 1.0)])
        };
        let mut records = vec![
            of("limit-futex", 7.0),
            of("limit-pipe", 5.0),
            of("limit-eventfd", 6.0),
            of("upcall", 1.0),
        ];
        name_best_limits(&mut records);
        let limits: Vec<_> =
            records.iter().filter(|r| r.system == "limit").map(|r| r.p50_ns).collect();
        assert_eq!(limits, [5.0]);
        name_best_limits(&mut records);
        assert_eq!(records.len(), 5);
    }
}
