//! What to measure, as the command line says it.

use std::path::PathBuf;

use super::case::{Part, THREADS, null};
use super::config::Config;
use crate::error::RunError;

/// What to measure.
#[derive(Debug, Clone)]
pub struct Options {
    /// The program that answers to `bench-urpc` and `bench-child`: normally this one.
    pub exe: PathBuf,
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
    /// Cases by name.
    pub cases: Vec<String>,
    /// Configurations of the calls. If there are some and no cases, parts of a call are left out.
    pub configs: Vec<Config>,
}

impl Only {
    pub(super) fn threads(&self, threads: usize) -> bool {
        self.cases.is_empty() || self.cases.contains(&null(threads))
    }

    pub(super) fn config(&self, config: Config) -> bool {
        self.configs.is_empty() || self.configs.contains(&config)
    }

    pub(super) fn part(&self, part: Part) -> bool {
        match self.cases.is_empty() {
            true => self.configs.is_empty(),
            false => self.cases.iter().any(|case| case == part.name()),
        }
    }

    /// # Errors
    /// A name of a case that is none.
    pub(super) fn check(&self) -> Result<(), RunError> {
        let parts = Part::ALL.iter().map(|part| part.name().to_owned());
        RunError::unless_known(
            "case",
            &self.cases,
            THREADS.into_iter().map(null).chain(parts).collect(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_none_are_told_with_those_that_are() {
        let told = |only: Only| only.check().unwrap_err().to_string();
        let case =
            told(Only { cases: vec!["null-t2".into(), "null-t5".into()], ..Only::default() });
        assert!(
            case.contains("no case `null-t5`")
                && case.contains("null-t32")
                && case.contains("poll-server"),
            "{case}"
        );
        assert!(Only::default().check().is_ok());
    }

    #[test]
    fn parts_are_measured_when_they_are_meant() {
        let only = |cases: &[&str], configs: &[&str]| {
            let cases = cases.iter().map(|&name| name.to_owned()).collect();
            Only { cases, configs: configs.iter().map(|config| config.parse().unwrap()).collect() }
        };
        assert!(only(&[], &[]).part(Part::SendClient));
        assert!(!only(&[], &["1,1"]).part(Part::SendClient));
        assert!(only(&["send-client"], &["1,1"]).part(Part::SendClient));
        assert!(!only(&["null-t1"], &[]).part(Part::SendClient));
        assert!(!only(&["send-client"], &[]).threads(1));
    }
}
