//! What all suites share: their options, and the path from options to a report.

use std::path::PathBuf;

use crate::case::Placement;
pub use crate::error::RunError;
use crate::interrupted::Interrupted;
use crate::output;
pub use crate::peers::{NoPeer, Peer, Peers, UnknownPeer};
use crate::record::Record;
use crate::recorded::{self, RecordedRun, RunHead};
use crate::report::busy;
pub use crate::report::{Idle, Report};
pub use crate::run::Run;
use crate::scratch::Scratch;
use crate::table::{Table, text};

/// A suite of benchmarks. Its fields are the options that are specific to it.
pub trait Suite {
    /// Name in records and on the command line.
    const NAME: &'static str;
    /// Options of the command line that only some suites have, besides the suite's own.
    const OFFERS: &'static [Offer];
    /// Names of the tables.
    const TABLES: &'static [&'static str];
    /// `true` if a report notes that other programs were running.
    const SAYS_BUSY: bool = true;
    /// The systems that take part only on request.
    type Peer: Peer;

    /// Returns the names of all cases that can be selected.
    fn cases(&self) -> Vec<String>;

    /// Returns the names of all systems that can be selected.
    fn systems(&self) -> Vec<String> {
        Vec::new()
    }

    /// Measures the part of the suite that `run.only` selects, with `peers`, and adds the findings
    /// to `run.report`.
    ///
    /// # Errors
    /// [`RunError`]. A single failure is in the report and does not stop the rest.
    fn measure(&self, peers: Vec<Self::Peer>, run: &mut Run<'_>) -> Result<(), RunError>;

    /// Returns the tables of a report that have figures.
    fn tables(report: &Report) -> Vec<Table>;

    /// Returns `true` if a file of records for this part of the suite contains the record.
    fn is_filed(_record: &Record, _only: &Only) -> bool {
        true
    }
}

/// An option of the command line, with its help text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offer {
    /// `--system`.
    System(&'static str),
    /// `--case`.
    Case(&'static str),
    /// `--placement`.
    Placement(&'static str),
    /// `--plot`.
    Plot(&'static str),
}

/// The part of a suite to measure, and the files for its records.
#[derive(Debug, Clone)]
pub struct Options<P> {
    /// The program that runs the children of this crate and of Upcall: normally this one.
    pub exe: PathBuf,
    /// The peers that take part.
    pub peers: Peers<P>,
    /// File for the records as a JSON array. `-` is standard output, and omits the table.
    pub json: Option<PathBuf>,
    /// Folder for the suite's record file, from which the pages of the documentation are written.
    pub record: Option<PathBuf>,
    /// `true` for a shorter run, to try the suite and not for figures.
    pub quick: bool,
    /// The part of the suite to measure.
    pub only: Only,
}

impl<P> Options<P> {
    /// Returns the options for the whole suite without peers and without files. `exe` is the
    /// program that runs the children.
    pub fn of(exe: PathBuf) -> Options<P> {
        let (peers, only) = (Peers::None, Only::default());
        Options { exe, peers, json: None, record: None, quick: false, only }
    }
}

/// A part of a suite. An empty list selects everything.
#[derive(Debug, Clone, Default)]
pub struct Only {
    /// Systems by name.
    pub systems: Vec<String>,
    /// Cases by name.
    pub cases: Vec<String>,
    /// Placements.
    pub placements: Vec<Placement>,
}

impl Only {
    /// Returns `true` if the system takes part.
    pub fn system(&self, name: &str) -> bool {
        self.systems.is_empty() || self.systems.iter().any(|system| system == name)
    }

    /// Returns `true` if the case is measured.
    pub fn case(&self, name: &str) -> bool {
        self.cases.is_empty() || self.cases.iter().any(|case| case == name)
    }

    /// Returns `true` if this placement is measured.
    pub fn placement(&self, placement: Placement) -> bool {
        self.placements.is_empty() || self.placements.contains(&placement)
    }

    /// Returns `true` if everything is selected.
    pub fn is_all(&self) -> bool {
        self.systems.is_empty() && self.cases.is_empty() && self.placements.is_empty()
    }

    fn check(&self, suite: &impl Suite) -> Result<(), RunError> {
        RunError::unless_known("case", &self.cases, suite.cases())?;
        RunError::unless_known("system", &self.systems, suite.systems())
    }
}

/// Runs a suite.
///
/// Shows progress on standard error, prints tables on standard output, and writes the records as
/// `options` say. Leaves no process and no file behind.
///
/// # Errors
/// [`RunError`]. A single failure is in the report's `failures` and does not stop the rest.
pub fn run<S: Suite>(suite: &S, options: &Options<S::Peer>) -> Result<Report, RunError> {
    options.only.check(suite)?;
    let recorded = options.record.as_ref().map(|dir| recorded::path(dir, S::NAME));
    if let Some(path) = &recorded {
        // A file that cannot be read is reported before the measurement.
        recorded::read(path)?;
    }
    // The source may change while the suite runs.
    let recorded = recorded.map(|path| (path, RunHead::now()));
    let interrupted = Interrupted::watch().map_err(RunError::System)?;
    let scratch = Scratch::make()?;
    let note = busy().filter(|_| S::SAYS_BUSY);
    let mut run = Run::new(options, &scratch.dir, &interrupted.flag)?;
    suite.measure(options.peers.meant(), &mut run)?;
    run.progress.clear();
    let mut report = run.report;
    if report.is_empty() {
        return Err(RunError::Nothing);
    }
    report.notes.extend(note);
    let json = options.json.as_deref();
    output::asides(json, &report.notes, &report.failures);
    let tables = S::tables(&report);
    debug_assert!(tables.iter().all(|table| S::TABLES.contains(&table.name)), "{tables:?}");
    output::table(json, |out, colour| text::print(&tables, &report, out, colour))?;
    let filed = report.records.iter().filter(|record| S::is_filed(record, &options.only));
    output::records(json, &filed.cloned().collect::<Vec<_>>())?;
    if let Some((path, head)) = recorded {
        // Another run may have written the file since the first reading.
        let former = recorded::read(&path)?;
        recorded::write(&recorded::merge(former, RecordedRun::of(&report, head)), &path)?;
    }
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::Cache;
    use crate::homed::Homed;
    use crate::hosts::Hosts;
    use crate::messages::Messages;
    use crate::pvm::Pvm;
    use crate::rpc::Rpc;
    use crate::threads::Threads;
    use crate::urpc::Urpc;

    /// Returns the error texts for a case and for a system that the suite does not have.
    fn told(suite: &impl Suite) -> [String; 2] {
        let wish = || vec!["corba".to_owned()];
        let case = Only { cases: wish(), ..Only::default() };
        let system = Only { systems: wish(), ..Only::default() };
        assert!(Only::default().check(suite).is_ok());
        [case, system].map(|only| only.check(suite).unwrap_err().to_string())
    }

    #[test]
    fn names_that_are_none_are_told_with_those_that_are() {
        let [case, system] = told(&Rpc::default());
        assert!(case.contains("no case `corba`; there are null, ") && case.contains("null-t32"));
        assert!(system.contains("no system `corba`") && system.contains("upcall, unix-socket"));
        let [case, system] = told(&Threads::default());
        assert!(case.contains("fork-join") && case.contains("alive-1m"), "{case}");
        assert!(system.contains("there are upcall, limit, boost-fiber"), "{system}");
        let [case, system] = told(&Hosts { introduce: |_, _| Ok(()), upcall: PathBuf::new() });
        assert!(case.contains("small-beside-large") && case.contains("pvm-ring-24"), "{case}");
        assert!(
            system.contains("limit, upcall, grpc, wrpc, capnproto, nats, openmpi, pvm"),
            "{system}"
        );
        let [case, _] = told(&Urpc::default());
        assert!(case.contains("null-t32") && case.contains("poll-server"), "{case}");
        let [case, system] = told(&Messages::default());
        assert!(case.contains("send-16") && case.contains("upcall-asleep"), "{case}");
        assert!(system.contains("limit, upcall, ucx-am"), "{system}");
        assert!(told(&Homed)[0].contains("enqueue-dequeue, find-last-5"));
        let [case, system] = told(&Cache::default());
        assert!(case.contains("put-16") && system.contains("upcall-read"), "{case} {system}");
        let [case, system] = told(&Pvm { upcall: PathBuf::new() });
        assert!(case.contains("idle-1000"), "{case}");
        assert!(
            system.contains("limit, upcall, upcall-2, upcall-2-interleave, pvm, pvm-direct"),
            "{system}"
        );
    }

    #[test]
    fn a_part_of_a_suite() {
        let only = Only {
            systems: vec!["upcall".into()],
            cases: vec!["null".into()],
            placements: vec![Placement::OneCore],
        };
        assert!(only.system("upcall") && !only.system("limit"));
        assert!(only.case("null") && !only.case("null-t32"));
        assert!(only.placement(Placement::OneCore) && !only.placement(Placement::TwoCores));
        let all = Only::default();
        assert!(all.is_all() && !only.is_all() && all.system("limit") && all.case("null"));
    }
}
