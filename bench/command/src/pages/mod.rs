//! `upcall-bench pages`: the tables and figures of the documentation's pages, from record files.

pub mod known;
mod markers;

use crate::plot;
use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use self::known::{Known, NOTES, SUITES};
use self::markers::MarkerError;
use upcall_bench::recorded::{self, RecordedRun, RunHead};
use upcall_bench::table::markdown::{self, wrapped};

/// Folder of record files within that of the pages.
const RECORDS: &str = "records";
/// Folder of figures within that of the pages.
const FIGURES: &str = "figures";

/// The folder of the pages in a repository, and the page at its top, for readers who have seen
/// nothing else.
const IN_REPOSITORY: &str = "docs/performance";
const README: &str = "../../README.md";

/// What stands in place of a table that no run has measured.
const NOTHING: &str = "not measured yet\n";

/// Whether pages and figures are rewritten, or compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Rewrites them.
    Write,
    /// Reports those that differ.
    Check,
}

/// How much stands between the markers of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Extent {
    /// The table with its title and notes, and the runs from which it is.
    Whole,
    /// The table alone, where the text links a page that has the rest.
    Bare,
}

/// A marker of a page that is not understood.
#[derive(Debug)]
struct PageError {
    page: PathBuf,
    error: MarkerError,
}

impl fmt::Display for PageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.page.display(), self.error)
    }
}

impl Error for PageError {}

/// A file that could not be read or written.
fn failed(path: &Path) -> impl Fn(io::Error) -> Box<dyn Error> {
    let path = path.display().to_string();
    move |error| format!("{path}: {error}").into()
}

/// Rewrites the pages and figures in a folder from the record files in it, or compares them, and
/// prints what differs.
///
/// # Errors
/// A marker or a record file is not understood, or a file cannot be read or written.
pub fn run(dir: &Path, action: Action) -> Result<ExitCode, Box<dyn Error>> {
    let records = Records::read(&dir.join(RECORDS))?;
    let mut differences = Vec::new();
    for (path, extent) in pages(dir)? {
        let text = fs::read_to_string(&path).map_err(failed(&path))?;
        let page = markers::page(&text, |suite, table| records.table(suite, table, extent))
            .map_err(|error| PageError { page: path.clone(), error })?;
        if !page.changed.is_empty() && action == Action::Write {
            fs::write(&path, &page.text).map_err(failed(&path))?;
        }
        let table = |(suite, table)| format!("{}: table {table} of {suite}", path.display());
        differences.extend(page.changed.into_iter().map(table));
    }
    differences.extend(records.figures(&dir.join(FIGURES), action)?);
    let verb = match action {
        Action::Write => "written",
        Action::Check => "differs from its records",
    };
    differences.iter().for_each(|what| eprintln!("{what}: {verb}"));
    if action == Action::Write || differences.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("run upcall-bench pages {}", dir.display());
    Ok(ExitCode::FAILURE)
}

/// Returns the pages of a folder, in the order of their names. The README comes last, if this is
/// the folder of a repository.
fn pages(dir: &Path) -> Result<Vec<(PathBuf, Extent)>, Box<dyn Error>> {
    let mut pages = Vec::new();
    for entry in fs::read_dir(dir).map_err(failed(dir))? {
        let path = entry.map_err(failed(dir))?.path();
        if path.extension().is_some_and(|extension| extension == "md") {
            pages.push((path, Extent::Whole));
        }
    }
    pages.sort_by(|one, other| one.0.cmp(&other.0));
    let readme = dir.join(README);
    if dir.ends_with(IN_REPOSITORY) && readme.exists() {
        pages.push((readme, Extent::Bare));
    }
    Ok(pages)
}

/// The record files, by suite.
struct Records(BTreeMap<&'static str, Vec<RecordedRun>>);

impl Records {
    fn read(dir: &Path) -> Result<Records, Box<dyn Error>> {
        let mut all = BTreeMap::new();
        for suite in &SUITES {
            all.insert(suite.name, recorded::read(&recorded::path(dir, suite.name))?);
        }
        Ok(Records(all))
    }

    fn of(&self, suite: &Known) -> &[RecordedRun] {
        self.0.get(suite.name).map(Vec::as_slice).unwrap_or_default()
    }

    /// Returns a table of a suite as Markdown.
    ///
    /// # Errors
    /// There is no such suite or table.
    fn table(&self, suite: &str, table: &str, extent: Extent) -> Result<String, MarkerError> {
        let suite = known::suite(suite)?;
        let name = suite.table(table)?;
        let runs = self.of(suite);
        if name == NOTES {
            return Ok(notes(runs));
        }
        // A run contributes to a table if the table differs without that run.
        let made = |without: Option<usize>| {
            let runs = runs.iter().enumerate().filter(|(at, _)| Some(*at) != without);
            let tables = (suite.tables)(&recorded::report(runs.map(|(_, run)| run)));
            tables.into_iter().find(|table| table.name == name)
        };
        let Some(whole) = made(None) else { return Ok(NOTHING.to_owned()) };
        if extent == Extent::Bare {
            return Ok(markdown::bare(&whole));
        }
        let part = |at: &usize| made(Some(*at)).as_ref() != Some(&whole);
        let sources = (0..runs.len()).filter(part).map(|at| source(&runs[at]));
        let sources = sources.map(|source| wrapped(&source) + "\n");
        Ok([markdown::table(&whole)].into_iter().chain(sources).collect::<Vec<_>>().join("\n"))
    }

    /// Draws or compares the figures of all suites that have records. Returns the figures that
    /// differ.
    fn figures(&self, dir: &Path, action: Action) -> Result<Vec<String>, Box<dyn Error>> {
        let mut differences = Vec::new();
        for suite in SUITES.iter().filter(|suite| !self.of(suite).is_empty()) {
            let records = recorded::report(self.of(suite)).records;
            for figure in suite.drawn(&records)? {
                let path = dir.join(figure.name);
                if fs::read_to_string(&path).is_ok_and(|held| held == figure.text) {
                    continue;
                }
                if action == Action::Write {
                    plot::write(&figure, dir)?;
                }
                differences.push(format!("{}: figure of {}", path.display(), suite.name));
            }
        }
        Ok(differences)
    }
}

/// Formats the notes of runs, and what they could not measure.
fn notes(runs: &[RecordedRun]) -> String {
    let failures = |run: &RecordedRun| {
        run.failures.iter().map(|failure| format!("not measured: {failure}")).collect::<Vec<_>>()
    };
    let all = runs.iter().flat_map(|run| [run.notes.clone(), failures(run)].concat());
    let all: Vec<String> =
        all.map(|note| wrapped(&format!("- {note}")).replace('\n', "\n  ") + "\n").collect();
    match all.is_empty() {
        true if runs.is_empty() => NOTHING.to_owned(),
        true => "None.\n".to_owned(),
        false => all.concat(),
    }
}

/// Says when, where and how a run measured.
fn source(run: &RecordedRun) -> String {
    let RunHead { date, processor, processors, kernel, profile, version, commit, command } =
        &run.head;
    let commit = commit.as_ref().map_or(String::new(), |commit| format!(", commit {commit}"));
    let plural = if *processors == 1 { "" } else { "s" };
    let lines = || run.records.iter().filter_map(|record| record.line_ns);
    let range = lines().reduce(f64::min).zip(lines().reduce(f64::max));
    let line = range.map_or(String::new(), |(least, most)| {
        format!(" A cache line took {least:.0} to {most:.0} ns there and back.")
    });
    format!(
        "Measured on {date} by `{command}` ({processor}, {processors} processor{plural}, Linux \
        {kernel}; upcall {version}{commit}, {profile}).{line}"
    )
}
