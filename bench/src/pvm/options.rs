//! What to measure, as the command line says it.

use std::path::PathBuf;

use super::case::Case;
use super::contender::{Contender, Named, OURS, PEERS};
use crate::case::Placement;
use crate::error::RunError;
use crate::peers;

/// Which peers take part.
pub type Peers = peers::Peers<Named>;

/// What to measure.
#[derive(Debug, Clone)]
pub struct Options {
    /// The program that answers to `bench-pvm` and `bench-child`: normally this one.
    pub exe: PathBuf,
    /// The command `upcall`, which answers to `pvm run`.
    pub upcall: PathBuf,
    /// Who else takes part.
    pub peers: Peers,
    /// Where the records go as a JSON array; `-` is standard output, which then has no table.
    pub json: Option<PathBuf>,
    /// Less time: for trying out, not for numbers.
    pub quick: bool,
    /// A part of the suite.
    pub only: Only,
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
        let mut systems: Vec<String> = Vec::new();
        for one in OURS.iter().chain(&PEERS) {
            if !systems.iter().any(|name| name == one.name) {
                systems.push(one.name.to_owned());
            }
        }
        RunError::unless_known("case", &self.cases, Case::all().map(Case::name).collect())?;
        RunError::unless_known("system", &self.systems, systems)
    }

    /// Whether a contender is measured in a case.
    pub(super) fn has(&self, contender: &Contender, case: Case) -> bool {
        let is = |list: &[String], name: &str| {
            list.is_empty() || list.iter().any(|wished| wished == name)
        };
        is(&self.systems, contender.name)
            && is(&self.cases, &case.name())
            && (self.placements.is_empty() || self.placements.contains(&contender.placement))
            && contender.takes_part(case)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_none_are_told_with_those_that_are() {
        let told = |only: Only| only.check().unwrap_err().to_string();
        let case = told(Only { cases: vec!["ring-2".into(), "ring-3".into()], ..Only::default() });
        assert!(case.contains("no case `ring-3`") && case.contains("idle-1000"), "{case}");
        let system = told(Only { systems: vec!["lam".into()], ..Only::default() });
        assert!(
            system.contains("there are limit, upcall, upcall-2, upcall-2-interleave, pvm, pvm-direct, openmpi-yield"),
            "{system}"
        );
        assert!(Only::default().check().is_ok());
        assert_eq!("mpich,pvm".parse::<Peers>().unwrap().names(), ["pvm", "mpich"]);
        assert!("lam".parse::<Peers>().unwrap_err().to_string().contains("no peer `lam`"));
    }

    #[test]
    fn a_part_of_the_suite() {
        let only = Only {
            systems: vec!["pvm".into()],
            cases: vec!["ring-2".into()],
            placements: vec![Placement::OneCore],
        };
        let all = OURS
            .iter()
            .chain(&PEERS)
            .flat_map(|one| Case::all().filter(|case| only.has(one, *case)));
        assert_eq!(all.count(), 1);
    }
}
