//! What to measure, as the command line says it.

use std::path::PathBuf;

use super::case::{self, Case, Contender};
use crate::case::Placement;
use crate::error::RunError;
use crate::peers;

/// Which peers take part.
pub type Peers = peers::Peers<Contender>;

/// What to measure.
#[derive(Debug, Clone)]
pub struct Options {
    /// The program that answers to `bench-cache`: normally this one.
    pub exe: PathBuf,
    /// Who else takes part.
    pub peers: Peers,
    /// Where the records go as a JSON array; `-` is standard output, which then has no table.
    pub json: Option<PathBuf>,
    /// Less time, and a tenth of the entries: for trying out, not for numbers.
    pub quick: bool,
    /// Entries of the table: a million, if nothing is said, and 100 000 if it is to be quick.
    pub entries: Option<usize>,
    /// A part of the suite.
    pub only: Only,
}

impl Options {
    pub(super) fn entries(&self) -> usize {
        self.entries.unwrap_or(if self.quick { 100_000 } else { 1_000_000 })
    }
}

/// A part of the suite. An empty list stands for everything.
#[derive(Debug, Clone, Default)]
pub struct Only {
    /// Contenders by name.
    pub systems: Vec<String>,
    /// Cases by name.
    pub cases: Vec<String>,
    /// Placements.
    pub placements: Vec<Placement>,
}

impl Only {
    /// # Errors
    /// A name of a case or a system that is none.
    pub(super) fn check(&self) -> Result<(), RunError> {
        let systems = case::all().map(|contender| contender.name.to_owned());
        RunError::unless_known(
            "case",
            &self.cases,
            Case::ALL.map(|case| case.name().to_owned()).into(),
        )?;
        RunError::unless_known("system", &self.systems, systems.collect())
    }

    pub(super) fn has(&self, contender: &Contender, case: Case) -> bool {
        (self.systems.is_empty() || self.systems.iter().any(|name| name == contender.name))
            && (self.cases.is_empty() || self.cases.iter().any(|name| name == case.name()))
            && contender.takes_part(case)
    }

    pub(super) fn at(&self, placement: Placement) -> bool {
        self.placements.is_empty() || self.placements.contains(&placement)
    }
}

#[cfg(test)]
mod tests {
    use super::super::case::{OURS, PEERS};
    use super::*;

    #[test]
    fn names_that_are_none_are_told_with_those_that_are() {
        let told = |only: Only| only.check().unwrap_err().to_string();
        let case = told(Only { cases: vec!["get".into(), "got".into()], ..Only::default() });
        assert!(case.contains("no case `got`") && case.contains("put-16"), "{case}");
        let system = told(Only { systems: vec!["valkey".into()], ..Only::default() });
        assert!(
            system.contains("no system `valkey`")
                && system.contains("upcall-read")
                && system.contains("redis"),
            "{system}"
        );
        assert!(Only::default().check().is_ok());
    }

    #[test]
    fn a_part_of_the_suite() {
        let only = Only {
            systems: vec!["redis".into()],
            cases: vec!["get".into()],
            placements: vec![Placement::OneCore],
        };
        assert!(
            only.has(&PEERS[0], Case::Get)
                && !only.has(&PEERS[0], Case::Put)
                && !only.has(&PEERS[1], Case::Get)
        );
        assert!(
            only.at(Placement::OneCore)
                && !only.at(Placement::TwoCores)
                && Only::default().at(Placement::TwoCores)
        );
        assert!(!Only::default().has(&OURS[0], Case::Put));
    }
}
