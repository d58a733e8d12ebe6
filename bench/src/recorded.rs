//! The record file of a suite: what its runs measured, and when, where and how.
//!
//! The pages of the documentation are written from these files. A run of a part of a suite replaces
//! only the records that it measured again. So a file has a list of runs, each with the records
//! that no later run has replaced.
//!
//! Notes and failures are texts that name no record. Those of a run stay until all of the run is
//! replaced, even if everything that they concern was measured again.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};
use std::{env, fmt};

use serde::{Deserialize, Serialize};

use crate::case::{Mode, Placement};
use crate::place;
use crate::record::{Record, hand_off, name_best_limits};
use crate::report::{Idle, Properties, Report};

/// The part of a suite's run that no later run has replaced.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RecordedRun {
    /// When, where and how the run measured.
    pub head: RunHead,
    /// Its records, without copies of limits under the name `limit`.
    pub records: Vec<Record>,
    /// Its costs of idle systems.
    pub idle: Vec<Idle>,
    /// Its properties of systems.
    pub properties: Vec<Properties>,
    /// Its notes.
    pub notes: Vec<String>,
    /// What could not be measured, with the reason.
    pub failures: Vec<String>,
}

/// When, where and how a run measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunHead {
    /// Day on which the run began, in UTC: `2026-11-28`.
    pub date: String,
    /// Model of the processor.
    pub processor: String,
    /// Number of processors that the run could use.
    pub processors: usize,
    /// Version of the kernel.
    pub kernel: String,
    /// How the program was compiled: `release` or `dev`.
    pub profile: String,
    /// Version of Upcall.
    pub version: String,
    /// Commit of the source folder when the run began, with `-dirty` if something outside of `docs`
    /// was changed. `None` if it cannot be found out.
    pub commit: Option<String>,
    /// The command line, without options that say where output goes.
    pub command: String,
}

/// Why a record file cannot be used.
#[derive(Debug)]
pub enum RecordedError {
    /// The file could not be read or written.
    File(PathBuf, io::Error),
    /// The content is not that of a record file.
    Content(PathBuf, serde_json::Error),
}

impl fmt::Display for RecordedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RecordedError::File(path, error) => write!(f, "{}: {error}", path.display()),
            RecordedError::Content(path, error) => write!(
                f,
                "{} is not a record file: {error}; restore it, or remove it and measure again \
                (upcall-bench SUITE --record DIR)",
                path.display()
            ),
        }
    }
}

impl std::error::Error for RecordedError {}

/// Returns the path of a suite's record file in a folder.
pub fn path(dir: &Path, suite: &str) -> PathBuf {
    dir.join(format!("{suite}.json"))
}

/// Reads a record file. A file that does not exist has no runs.
///
/// # Errors
/// [`RecordedError`].
pub fn read(path: &Path) -> Result<Vec<RecordedRun>, RecordedError> {
    match fs::read_to_string(path) {
        Ok(text) => serde_json::from_str(&text)
            .map_err(|error| RecordedError::Content(path.to_owned(), error)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(RecordedError::File(path.to_owned(), error)),
    }
}

/// Writes a record file, whose folder is created if needed. A file of that name has its former
/// content until the new one is complete.
///
/// # Errors
/// [`RecordedError`].
pub fn write(runs: &[RecordedRun], path: &Path) -> Result<(), RecordedError> {
    let failed = |error| RecordedError::File(path.to_owned(), error);
    let text = text(runs).map_err(|error| RecordedError::Content(path.to_owned(), error))?;
    fs::create_dir_all(path.parent().unwrap_or(Path::new("."))).map_err(failed)?;
    let new = path.with_extension(format!("new-{}", std::process::id()));
    let written = fs::write(&new, text).and_then(|()| fs::rename(&new, path));
    written.map_err(|error| {
        fs::remove_file(&new).ok();
        failed(error)
    })
}

/// Formats runs as JSON, with a line for each record.
fn text(runs: &[RecordedRun]) -> Result<String, serde_json::Error> {
    fn list<T: Serialize>(name: &str, all: &[T]) -> Result<String, serde_json::Error> {
        let lines: Result<Vec<_>, _> = all.iter().map(serde_json::to_string).collect();
        let lines = lines?.iter().map(|line| format!("\n  {line}")).collect::<Vec<_>>();
        Ok(format!(" \"{name}\": [{}]", lines.join(",")))
    }
    let run = |run: &RecordedRun| -> Result<String, serde_json::Error> {
        let parts = [
            format!(" \"head\": {}", serde_json::to_string(&run.head)?),
            list("records", &run.records)?,
            list("idle", &run.idle)?,
            list("properties", &run.properties)?,
            list("notes", &run.notes)?,
            list("failures", &run.failures)?,
        ];
        Ok(format!("{{\n{}\n}}", parts.join(",\n")))
    };
    let runs: Result<Vec<_>, _> = runs.iter().map(run).collect();
    Ok(format!("[{}]\n", runs?.join(",\n")))
}

/// Adds a run. Former runs lose the records that it measured again, and a run that has nothing left
/// is dropped.
pub fn merge(former: Vec<RecordedRun>, new: RecordedRun) -> Vec<RecordedRun> {
    type Name<'a> = (&'a str, &'a str, Placement, Mode, Option<&'a str>);
    fn name(record: &Record) -> Name<'_> {
        let Record { case, system, placement, mode, config, .. } = record;
        (case, system, *placement, *mode, config.as_deref())
    }
    let records: BTreeSet<Name<'_>> = new.records.iter().map(name).collect();
    let idle: BTreeSet<_> = new.idle.iter().map(|idle| (&idle.system, idle.mode)).collect();
    let properties: BTreeSet<_> = new.properties.iter().map(|one| &one.system).collect();
    let mut runs: Vec<RecordedRun> = former;
    for run in &mut runs {
        run.records.retain(|record| !records.contains(&name(record)));
        run.idle.retain(|one| !idle.contains(&(&one.system, one.mode)));
        run.properties.retain(|one| !properties.contains(&one.system));
    }
    let is_left = |run: &RecordedRun| {
        !(run.records.is_empty() && run.idle.is_empty() && run.properties.is_empty())
    };
    runs.retain(is_left);
    runs.push(new);
    runs
}

/// Returns a report with all that the runs have.
pub fn report<'a>(runs: impl IntoIterator<Item = &'a RecordedRun>) -> Report {
    let mut report = Report::default();
    for run in runs {
        report.records.extend(run.records.iter().cloned());
        report.idle.extend(run.idle.iter().cloned());
        report.properties.extend(run.properties.iter().cloned());
        report.notes.extend(run.notes.iter().cloned());
        report.failures.extend(run.failures.iter().cloned());
    }
    name_best_limits(&mut report.records);
    report
}

impl RecordedRun {
    /// Makes the run that measured `report`.
    pub fn of(report: &Report, head: RunHead) -> RecordedRun {
        let is_copy = |record: &Record| {
            record.system == "limit" && hand_off(record, &report.records).is_some()
        };
        RecordedRun {
            head,
            records: report.records.iter().filter(|record| !is_copy(record)).cloned().collect(),
            idle: report.idle.clone(),
            properties: report.properties.clone(),
            notes: report.notes.clone(),
            failures: report.failures.clone(),
        }
    }
}

impl RunHead {
    /// Describes the run that this process begins, and the machine on which it runs.
    pub fn now() -> RunHead {
        let model = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = model.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let words = env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |past| past.as_secs());
        RunHead {
            date: date(seconds / 86_400),
            processor: model.map_or("unknown processor", |(_, model)| model.trim()).to_owned(),
            processors: place::allowed().map_or(0, |cpus| cpus.len()),
            kernel: kernel.trim().to_owned(),
            profile: if cfg!(debug_assertions) { "dev" } else { "release" }.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            commit: commit(Path::new(env!("CARGO_MANIFEST_DIR"))),
            command: command(words),
        }
    }
}

/// Formats the date that is `days` days after 1970-01-01.
fn date(days: u64) -> String {
    let is_leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    let (mut year, mut left) = (1970, days);
    while left >= 365 + u64::from(is_leap(year)) {
        left -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let lengths = [31, 28 + u64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while left >= lengths[month] {
        left -= lengths[month];
        month += 1;
    }
    format!("{year}-{:02}-{:02}", month + 1, left + 1)
}

/// Returns the command line of these arguments, without the options that say where output goes.
fn command(arguments: impl Iterator<Item = String>) -> String {
    const OUTPUTS: [&str; 3] = ["--json", "--record", "--plot"];
    let mut words = vec!["upcall-bench".to_owned()];
    let mut arguments = arguments;
    while let Some(word) = arguments.next() {
        if OUTPUTS.contains(&word.as_str()) {
            arguments.next();
        } else if !OUTPUTS.iter().any(|output| word.starts_with(&format!("{output}="))) {
            words.push(word);
        }
    }
    words.join(" ")
}

/// Returns the commit of the repository that a folder is in. Changes in `docs` do not count,
/// because a suite's record file is there while the next suite is measured.
fn commit(folder: &Path) -> Option<String> {
    let git = |words: &[&str]| {
        let output = git(folder).args(words).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| text.trim().to_owned())
    };
    let commit = git(&["rev-parse", "--short=10", "HEAD"])?;
    let changes = git(&["status", "--porcelain", "--", ":/", ":(exclude,top)docs"])?;
    Some(commit + if changes.is_empty() { "" } else { "-dirty" })
}

/// Variables by which git would use another repository than that of its folder. A hook of git, for
/// example, has some of them.
const OTHER_REPOSITORY: [&str; 5] =
    ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY"];

/// Returns git for a folder's repository, without inherited variables of another one.
fn git(folder: &Path) -> Command {
    let mut git = Command::new("git");
    git.arg("-C").arg(folder);
    for variable in OTHER_REPOSITORY {
        git.env_remove(variable);
    }
    git
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contender::Trust;
    use crate::record::{Label, Turn};
    use crate::remains::Remains;
    use crate::stats::Summary;

    fn record(case: &str, system: &str, ns: f64) -> Record {
        let (placement, mode) = (Placement::OneCore, Mode::Parked);
        let found = Summary::flat(ns, 5);
        Label { suite: "rpc", case, system, placement, mode }
            .latency(&[Turn { found, lines: (ns, ns) }])
    }

    fn idle(system: &str) -> Idle {
        let (system, mode, memory_kib) = (system.to_owned(), Mode::Parked, vec![7]);
        Idle { system, mode, cpu_ns_per_s: 5.0, memory_kib }
    }

    fn run(records: Vec<Record>, of_idle: &[&str]) -> RecordedRun {
        let idle = of_idle.iter().map(|system| idle(system)).collect();
        RecordedRun::of(&Report { records, idle, ..Report::default() }, RunHead::now())
    }

    /// Returns the names and times of the records of each run.
    fn told(runs: &[RecordedRun]) -> Vec<String> {
        let of = |record: &Record| format!("{} {} {}", record.case, record.system, record.p50_ns);
        let run = |run: &RecordedRun| run.records.iter().map(of).collect::<Vec<_>>().join(", ");
        runs.iter().map(run).collect()
    }

    #[test]
    fn a_run_replaces_what_it_measured_again() {
        let whole =
            run(vec![record("null", "upcall", 1.0), record("add", "upcall", 2.0)], &["upcall"]);
        let part = run(vec![record("add", "upcall", 3.0)], &[]);
        let both = merge(vec![whole.clone()], part.clone());
        assert_eq!(told(&both), ["null upcall 1", "add upcall 3"]);
        // Another configuration is another record.
        let configured = Record { config: Some("pairs".into()), ..record("add", "upcall", 4.0) };
        assert_eq!(merge(both.clone(), run(vec![configured], &[])).len(), 3);
        // The first run has its idle figures until they are replaced, too.
        let null = merge(both, run(vec![record("null", "upcall", 5.0)], &[]));
        assert_eq!(told(&null), ["", "add upcall 3", "null upcall 5"]);
        let all = merge(null, run(vec![], &["upcall"]));
        assert_eq!(told(&all), ["add upcall 3", "null upcall 5", ""]);
        assert_eq!(report(&all).idle, [idle("upcall")]);
    }

    #[test]
    fn a_file_has_what_was_written() {
        let place = std::env::temp_dir().join(format!("upcall-recorded-{}", std::process::id()));
        let file = path(&place.join("records"), "rpc");
        assert_eq!(read(&file).unwrap(), []);
        let properties = Properties {
            system: "upcall".to_owned(),
            trust: Trust::Checked,
            left: Remains { files: 2, shared: (1, 8), sockets: 0 },
            idle: vec![(Mode::Parked, 0.25)],
        };
        let first =
            run(vec![record("null", "upcall", 70.0), record("add", "tarpc", 90.0)], &["upcall"]);
        let first = RecordedRun { properties: vec![properties], ..first };
        let runs = [first, run(vec![record("bigin", "upcall", 3.0)], &[])];
        write(&runs, &file).unwrap();
        let text = fs::read_to_string(&file).unwrap();
        assert_eq!(text.lines().filter(|line| line.contains("\"p50_ns\"")).count(), 3, "{text}");
        assert_eq!(read(&file).unwrap(), runs);
        fs::write(&file, "[").unwrap();
        let error = read(&file).unwrap_err().to_string();
        assert!(error.contains("rpc.json is not a record file"), "{error}");
        // Nothing else is left.
        assert_eq!(fs::read_dir(file.parent().unwrap()).unwrap().count(), 1);
        fs::remove_dir_all(place).unwrap();
    }

    #[test]
    fn the_best_hand_off_of_all_runs_is_the_limit() {
        let mut records =
            vec![record("null", "limit-pipe", 5.0), record("null", "limit-futex", 6.0)];
        name_best_limits(&mut records);
        let whole = run(records, &[]);
        assert_eq!(told(std::slice::from_ref(&whole)), ["null limit-pipe 5, null limit-futex 6"]);
        let part = run(vec![record("null", "limit-pipe", 7.0)], &[]);
        let all = report(&merge(vec![whole], part)).records;
        let limit = all.iter().find(|record| record.system == "limit").unwrap();
        assert_eq!(limit.p50_ns, 6.0);
    }

    #[test]
    fn days_are_dates() {
        let dates = [0, 59, 11_016, 19_782, 20_785].map(date);
        assert_eq!(dates, ["1970-01-01", "1970-03-01", "2000-02-29", "2024-02-29", "2026-11-28"]);
    }

    #[test]
    fn a_command_is_told_without_its_outputs() {
        let words = ["rpc", "--record", "docs", "--case", "null", "--json=x", "--quick"];
        let words = words.map(String::from).into_iter();
        assert_eq!(command(words), "upcall-bench rpc --case null --quick");
    }

    #[test]
    fn git_does_not_inherit_another_repository() {
        let git = git(Path::new("."));
        let removed: Vec<_> = git.get_envs().filter(|(_, value)| value.is_none()).collect();
        for variable in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"] {
            assert!(removed.iter().any(|(name, _)| *name == variable), "{variable}: {removed:?}");
        }
    }

    #[test]
    fn changes_outside_of_docs_are_dirty() {
        let place = std::env::temp_dir().join(format!("upcall-commit-{}", std::process::id()));
        fs::create_dir_all(place.join("docs")).unwrap();
        let git = |words: &[&str]| {
            let mut git = git(&place);
            git.args(["-c", "user.name=a", "-c", "user.email=a@localhost"]);
            git.args(["-c", "commit.gpgsign=false"]);
            assert!(git.args(words).output().unwrap().status.success(), "{words:?}");
        };
        git(&["init", "--quiet"]);
        fs::write(place.join("file"), "1").unwrap();
        git(&["add", "."]);
        git(&["commit", "--quiet", "-m", "a commit"]);
        fs::write(place.join("docs/records"), "1").unwrap();
        let clean = commit(&place.join("docs")).unwrap();
        assert!(!clean.contains("dirty"), "{clean}");
        fs::write(place.join("file"), "2").unwrap();
        assert_eq!(commit(&place), Some(clean + "-dirty"));
        assert_eq!(commit(Path::new("/nowhere")), None);
        fs::remove_dir_all(place).unwrap();
    }
}
