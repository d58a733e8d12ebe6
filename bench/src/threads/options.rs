//! What to measure, as the command line says it.

use std::path::PathBuf;

use super::case::Case;
use super::contender::{Contender, LIMIT, PEERS, UPCALL};
use crate::error::RunError;
use crate::peers;

/// Which peers take part.
pub type Peers = peers::Peers<Contender>;

/// What to measure.
#[derive(Debug, Clone)]
pub struct Options {
    /// The program that answers to `bench-threads` for `upcall`, `limit` and `pthread`: normally this one.
    pub exe: PathBuf,
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
    /// Systems by name.
    pub systems: Vec<String>,
    /// Cases by name.
    pub cases: Vec<String>,
}

impl Only {
    pub(super) fn system(&self, name: &str) -> bool {
        self.systems.is_empty() || self.systems.iter().any(|s| s == name)
    }

    pub(super) fn case(&self, case: Case) -> bool {
        self.cases.is_empty() || self.cases.iter().any(|c| c == case.name())
    }

    /// # Errors
    /// A name of a case or a system that is none.
    pub(super) fn check(&self) -> Result<(), RunError> {
        let cases = Case::ALL.map(|case| case.name().to_owned()).to_vec();
        let systems = [UPCALL, LIMIT].iter().chain(&PEERS).map(|contender| contender.name.to_owned()).collect();
        RunError::unless_known("case", &self.cases, cases)?;
        RunError::unless_known("system", &self.systems, systems)
    }

    pub(super) fn is_all(&self) -> bool {
        self.systems.is_empty() && self.cases.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_none_are_told_with_those_that_are() {
        let told = |only: Only| only.check().unwrap_err().to_string();
        let case = told(Only { cases: vec!["yield".into(), "join".into()], ..Only::default() });
        assert!(case.contains("no case `join`") && case.contains("fork-join") && case.contains("alive-1m"), "{case}");
        let system = told(Only { systems: vec!["pth".into()], ..Only::default() });
        assert!(system.contains("no system `pth`") && system.contains("upcall, limit, boost-fiber"), "{system}");
        assert!(Only::default().check().is_ok() && Only::default().is_all());
    }
}
