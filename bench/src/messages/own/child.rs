//! The child's side of Upcall's own cases: its arguments and its answer.
//!
//! ```text
//! EXE bench-own-messages CASE --cpus A,B --millis N --count N [--second PROCESS/DESCRIPTOR/RANK]
//! ```
//! Measures the case once, with a second process that it starts with the last argument (see
//! [`lab`](crate::lab)). A long case prints lines `at N`, the number of messages so far. At the end
//! the child prints a JSON array of [`Finding`]s as one line. Errors go to standard error, with an
//! unsuccessful exit. The child dies with the harness, and the second process with it.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::case::Own;
use crate::child::{Outcome, exit};
use crate::found::Throughput;
use crate::lab::{self, Errand, Lab, Seat};
use crate::messages::Found;
use crate::place;
use crate::stats::Summary;

/// The arguments of a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Task {
    /// The case.
    pub case: Own,
    /// The sender's processor and the receiver's.
    pub cpus: [usize; 2],
    /// Approximate duration of the measurement of each part of the case.
    pub time: Duration,
    /// Number of messages of `exactly-once`, of buffered mebibytes in `stopped`, or of searches of
    /// `tpuz`; 0 for a small search, also in `tpuz-simulated`.
    pub count: u64,
    /// Id of the first process, which is part of the names of groups.
    pub group: u32,
}

impl Errand for Task {
    fn arguments(&self) -> Vec<String> {
        arguments(self)
    }

    fn group(&self) -> u32 {
        self.group
    }

    fn cpus(&self) -> [usize; 2] {
        self.cpus
    }
}

/// A future record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// Name of the record.
    pub case: String,
    /// The figures.
    pub found: Found,
    /// Number of buffered messages, where it is counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buffered: Option<u64>,
}

impl Finding {
    /// Makes a finding of times.
    pub fn times(case: &str, found: Summary) -> Finding {
        Finding { case: case.to_owned(), found: Found::Times(found), buffered: None }
    }

    /// Makes a finding of a rate: `messages` in `time`.
    pub fn rate(case: &str, messages: u64, time: Duration) -> Finding {
        Finding {
            case: case.to_owned(),
            found: Found::Rate(Throughput::new(messages, time)),
            buffered: None,
        }
    }

    /// Makes a finding of a rate, with the number of buffered messages.
    pub fn buffered(case: &str, messages: u64, buffered: u64, time: Duration) -> Finding {
        Finding { buffered: Some(buffered), ..Finding::rate(case, messages, time) }
    }
}

/// Reports the progress of a long check.
pub fn at(messages: u64) {
    println!("at {messages}");
}

/// Parses a line of [`at`].
pub(super) fn read_at(line: &str) -> Option<u64> {
    line.strip_prefix("at ")?.parse().ok()
}

/// Runs this process as a child of the harness. `args` are the arguments after
/// `bench-own-messages`; `measure` runs the task.
pub fn child_main(
    args: impl IntoIterator<Item = OsString>,
    measure: impl FnOnce(&mut Lab<Task>) -> Outcome<Vec<Finding>>,
) -> ExitCode {
    exit(lab::run(|| parse(args), measure))
}

const USAGE: &str =
    "bench-own-messages CASE --cpus A,B --millis N --count N [--second PROCESS/DESCRIPTOR/RANK]";

/// Returns a child's arguments.
pub(super) fn arguments(task: &Task) -> Vec<String> {
    let (cpus, millis, count) =
        (place::list(&task.cpus), task.time.as_millis().to_string(), task.count.to_string());
    [
        "bench-own-messages",
        task.case.name(),
        "--cpus",
        &cpus,
        "--millis",
        &millis,
        "--count",
        &count,
    ]
    .map(str::to_owned)
    .into()
}

/// Parses the task and, in the second process, the seat.
fn parse(args: impl IntoIterator<Item = OsString>) -> Outcome<(Task, Option<Seat>)> {
    let args: Vec<String> =
        args.into_iter().map(|arg| arg.to_string_lossy().into_owned()).collect();
    let words: Vec<_> = args.iter().map(String::as_str).collect();
    let [case, "--cpus", cpus, "--millis", millis, "--count", count, ref rest @ ..] = words[..]
    else {
        return Err(format!("usage: {USAGE}").into());
    };
    let number = |word: &str| {
        word.parse::<u64>().map_err(|_| format!("{word}: not a number; usage: {USAGE}"))
    };
    let cpus = place::numbers(cpus).and_then(|cpus| cpus.try_into().ok());
    let cpus = cpus.ok_or_else(|| format!("--cpus is not two numbers; usage: {USAGE}"))?;
    let seat = Seat::behind(rest, USAGE)?;
    let group = seat.map_or_else(std::process::id, |seat| seat.group);
    Ok((
        Task {
            case: case.parse()?,
            cpus,
            time: Duration::from_millis(number(millis)?),
            count: number(count)?,
            group,
        },
        seat,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_is_understood() {
        let task = Task {
            case: Own::Once,
            cpus: [3, 5],
            time: Duration::from_millis(7),
            count: 11,
            group: 13,
        };
        let first = || arguments(&task).into_iter().skip(1).map(OsString::from);
        let second = first().chain(["--second", "13/17/1"].map(OsString::from));
        assert_eq!(parse(second).unwrap(), (task, Seat::read("13/17/1")));
        assert_eq!(parse(first()).unwrap(), (Task { group: std::process::id(), ..task }, None));
        let told = |line: &str| parse(line.split(' ').map(OsString::from)).unwrap_err().to_string();
        assert!(told("section").contains("usage: bench-own-messages"));
        assert!(told("sections --cpus 0,1 --millis 1 --count 1").contains("no case `sections`"));
        assert!(told("section --cpus 0 --millis 1 --count 1").contains("not two numbers"));
        assert!(told("section --cpus 0,1 --millis x --count 1").contains("x: not a number"));
        assert!(told("section --cpus 0,1 --millis 1 --count 1 --second 5").contains("--second 5"));
    }

    #[test]
    fn findings_are_read_back() {
        let summary = Summary { p99_ns: 2.0, mean_ns: 4.5, ..Summary::flat(1.0, 5) };
        let findings = vec![
            Finding::times("section-1", summary),
            Finding::rate("exactly-once", 8, Duration::from_nanos(9)),
            Finding::buffered("synth-10-250", 8, 0, Duration::from_nanos(9)),
        ];
        let line = serde_json::to_string(&findings).unwrap();
        assert_eq!(serde_json::from_str::<Vec<Finding>>(&line).unwrap(), findings);
        assert_eq!((read_at("at 12"), read_at(&line)), (Some(12), None));
    }
}
