//! The child's side of the suite `homed`: its arguments and its answer.
//!
//! ```text
//! EXE bench-homed CASE --cpus A,B --millis N [--second PROCESS/DESCRIPTOR/RANK]
//! ```
//! Measures the case once, as the home. It starts the users of its object with the last argument
//! (see [`lab`](crate::lab)), prints a JSON array of [`Finding`]s as one line, and ends. Errors go
//! to standard error, with an unsuccessful exit. The child dies with the harness, and the other
//! processes with it.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::case::Case;
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
    pub case: Case,
    /// The home's processor and the caller's.
    pub cpus: [usize; 2],
    /// Approximate duration of the measurement of each part of the case.
    pub time: Duration,
    /// Id of the home's process, which is part of the names of objects.
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

    fn others(&self) -> usize {
        self.case.callers()
    }
}

/// A future record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// Name of the record.
    pub case: String,
    /// The method.
    pub system: String,
    /// The figures.
    pub found: Found,
    /// Number of callers, for a rate.
    pub callers: usize,
}

impl Finding {
    /// Makes a finding of times.
    pub fn times(case: &str, system: &str, found: Summary) -> Finding {
        Finding {
            case: case.to_owned(),
            system: system.to_owned(),
            found: Found::Times(found),
            callers: 1,
        }
    }

    /// Makes a finding of a rate of `callers` callers.
    pub fn rate(case: &str, system: &str, callers: usize, found: Throughput) -> Finding {
        Finding {
            case: case.to_owned(),
            system: system.to_owned(),
            found: Found::Rate(found),
            callers,
        }
    }
}

/// Runs this process as a child of the harness. `args` are the arguments after `bench-homed`;
/// `measure` runs the task.
pub fn child_main(
    args: impl IntoIterator<Item = OsString>,
    measure: impl FnOnce(&mut Lab<Task>) -> Outcome<Vec<Finding>>,
) -> ExitCode {
    exit(lab::run(|| parse(args), measure))
}

const USAGE: &str = "bench-homed CASE --cpus A,B --millis N [--second PROCESS/DESCRIPTOR/RANK]";

/// Returns a child's arguments.
pub(super) fn arguments(task: &Task) -> Vec<String> {
    let (cpus, millis) = (place::list(&task.cpus), task.time.as_millis().to_string());
    ["bench-homed", &task.case.name(), "--cpus", &cpus, "--millis", &millis]
        .map(str::to_owned)
        .into()
}

/// Parses the task and, in the other processes, the seat.
fn parse(args: impl IntoIterator<Item = OsString>) -> Outcome<(Task, Option<Seat>)> {
    let args: Vec<String> =
        args.into_iter().map(|arg| arg.to_string_lossy().into_owned()).collect();
    let words: Vec<_> = args.iter().map(String::as_str).collect();
    let [case, "--cpus", cpus, "--millis", millis, ref rest @ ..] = words[..] else {
        return Err(format!("usage: {USAGE}").into());
    };
    let cpus = place::numbers(cpus).and_then(|cpus| cpus.try_into().ok());
    let cpus = cpus.ok_or_else(|| format!("--cpus is not two numbers; usage: {USAGE}"))?;
    let millis = millis.parse().map_err(|_| format!("{millis}: not a number; usage: {USAGE}"))?;
    let seat = Seat::behind(rest, USAGE)?;
    let group = seat.map_or_else(std::process::id, |seat| seat.group);
    Ok((Task { case: case.parse()?, cpus, time: Duration::from_millis(millis), group }, seat))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::homed::case::Hot;

    #[test]
    fn what_is_asked_for_is_understood() {
        let task = Task {
            case: Case::Throughput(Hot::Queue),
            cpus: [3, 5],
            time: Duration::from_millis(7),
            group: 13,
        };
        let first = || arguments(&task).into_iter().skip(1).map(OsString::from);
        let second = first().chain(["--second", "13/17/8"].map(OsString::from));
        assert_eq!(parse(second).unwrap(), (task, Seat::read("13/17/8")));
        assert_eq!(parse(first()).unwrap(), (Task { group: std::process::id(), ..task }, None));
        let told = |line: &str| parse(line.split(' ').map(OsString::from)).unwrap_err().to_string();
        assert!(told("slowdown").contains("usage: bench-homed"));
        assert!(told("slow --cpus 0,1 --millis 1").contains("no case `slow`"));
        assert!(told("slowdown --cpus 0 --millis 1").contains("not two numbers"));
        assert!(told("slowdown --cpus 0,1 --millis x").contains("x: not a number"));
        assert!(told("slowdown --cpus 0,1 --millis 1 --second 5").contains("--second 5"));
    }
}
