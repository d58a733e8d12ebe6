//! What to measure, as the command line says it.

use std::collections::BTreeSet;
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
    /// The program that answers to `bench-threads` for `upcall`, `limit` and `pthread`: normally
    /// this one.
    pub exe: PathBuf,
    /// Who else takes part.
    pub peers: Peers,
    /// Where the records go as a JSON array; `-` is standard output, which then has no table.
    pub json: Option<PathBuf>,
    /// Less time: for trying out, not for numbers.
    pub quick: bool,
    /// Numbers of threads that yield in turn, besides the two of `yield`: [`Case::READY`] by
    /// default.
    pub ready: Vec<u64>,
    /// Numbers of threads alive at once: [`Case::ALIVE`] by default.
    pub alive: Vec<u64>,
    /// A part of the suite.
    pub only: Only,
}

impl Options {
    /// What the suite has with these numbers, in the order of the report.
    ///
    /// # Errors
    /// A name of a case or a system that is none.
    pub(super) fn cases(&self) -> Result<Vec<Case>, RunError> {
        let sorted = |numbers: &[u64]| {
            numbers.iter().copied().filter(|&number| number > 0).collect::<BTreeSet<_>>()
        };
        let ready =
            sorted(&self.ready).into_iter().filter(|&threads| threads != 2).map(Case::Yield);
        let mut cases: Vec<Case> = Case::TABLE
            .into_iter()
            .chain(ready)
            .chain(sorted(&self.alive).into_iter().map(Case::Alive))
            .collect();
        let systems = [UPCALL, LIMIT]
            .iter()
            .chain(&PEERS)
            .map(|contender| contender.name.to_owned())
            .collect();
        RunError::unless_known(
            "case",
            &self.only.cases,
            cases.iter().map(|case| case.name()).collect(),
        )?;
        RunError::unless_known("system", &self.only.systems, systems)?;
        cases.retain(|case| self.only.cases.is_empty() || self.only.cases.contains(&case.name()));
        Ok(cases)
    }
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

    pub(super) fn is_all(&self) -> bool {
        self.systems.is_empty() && self.cases.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(only: Only) -> Options {
        let (ready, alive) = (vec![100, 2], vec![1_000_000, 5]);
        Options {
            exe: "upcall".into(),
            peers: Peers::None,
            json: None,
            quick: true,
            ready,
            alive,
            only,
        }
    }

    #[test]
    fn names_that_are_none_are_told_with_those_that_are() {
        let told = |only: Only| options(only).cases().unwrap_err().to_string();
        let case = told(Only { cases: vec!["yield".into(), "join".into()], ..Only::default() });
        assert!(
            case.contains("no case `join`")
                && case.contains("fork-join")
                && case.contains("alive-1m"),
            "{case}"
        );
        let system = told(Only { systems: vec!["pth".into()], ..Only::default() });
        assert!(
            system.contains("no system `pth`") && system.contains("upcall, limit, boost-fiber"),
            "{system}"
        );
        assert!(Only::default().is_all());
    }

    #[test]
    fn numbers_of_threads_make_cases() {
        let cases = options(Only::default()).cases().unwrap();
        assert_eq!(cases[..6], Case::TABLE);
        assert_eq!(cases[6..], [Case::Yield(100), Case::Alive(5), Case::Alive(1_000_000)]);
        let one =
            options(Only { cases: vec!["alive-5".into()], ..Only::default() }).cases().unwrap();
        assert_eq!(one, [Case::Alive(5)]);
    }
}
