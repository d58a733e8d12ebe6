//! What to measure, as the command line says it.

use std::path::PathBuf;

use super::case::Case;
use super::contender::{Contender, LIMIT, OURS, PEERS};
use super::own::case::Own;
use crate::case::Placement;
use crate::error::RunError;
use crate::peers;

/// Which peers take part.
pub type Peers = peers::Peers<Contender>;

/// What to measure.
#[derive(Debug, Clone)]
pub struct Options {
    /// The program that answers to `bench-messages` for ours and the floor: normally this one.
    pub exe: PathBuf,
    /// Who else takes part.
    pub peers: Peers,
    /// Where the records go as a JSON array; `-` is standard output, which then has no table.
    pub json: Option<PathBuf>,
    /// Less time: for trying out, not for numbers.
    pub quick: bool,
    /// Messages of the case `exactly-once`, where it is not to be as many as usual.
    pub messages: Option<u64>,
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
    pub(super) fn system(&self, name: &str) -> bool {
        self.systems.is_empty() || self.systems.iter().any(|system| system == name)
    }

    /// The cases of a placement.
    pub(super) fn cases(&self, placement: Placement) -> Vec<Case> {
        if !self.placements.is_empty() && !self.placements.contains(&placement) {
            return Vec::new();
        }
        let wished = |case: &Case| self.cases.is_empty() || self.cases.contains(&case.name());
        Case::all().filter(|case| case.is_for(placement)).filter(wished).collect()
    }

    /// The cases of ours alone.
    pub(super) fn own(&self) -> Vec<Own> {
        let two = self.placements.is_empty() || self.placements.contains(&Placement::TwoCores);
        let ours = two && OURS.iter().any(|ours| self.system(ours.name));
        let wished = |case: &Own| {
            ours && (self.cases.is_empty() || self.cases.iter().any(|name| name == case.name()))
        };
        Own::ALL.into_iter().filter(wished).collect()
    }

    /// Whether there is anything to do for those who take part: cases of ours alone need nobody
    /// else.
    pub(super) fn with_contenders(&self) -> bool {
        self.cases.is_empty()
            || self.cases.iter().any(|name| Case::all().any(|case| case.name() == *name))
    }

    /// Whether receivers at rest are measured, too.
    pub(super) fn with_idle(&self) -> bool {
        self.cases.is_empty() && self.placements.is_empty()
    }

    /// # Errors
    /// A name of a case or a system that is none.
    pub(super) fn check(&self) -> Result<(), RunError> {
        let systems =
            [LIMIT].iter().chain(&OURS).chain(&PEERS).map(|contender| contender.name.to_owned());
        let known =
            Case::all().map(Case::name).chain(Own::ALL.map(|own| own.name().to_owned())).collect();
        RunError::unless_known("case", &self.cases, known)?;
        RunError::unless_known("system", &self.systems, systems.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_none_are_told_with_those_that_are() {
        let told = |only: Only| only.check().unwrap_err().to_string();
        let case = told(Only { cases: vec!["rate-8".into(), "rate".into()], ..Only::default() });
        assert!(case.contains("no case `rate`") && case.contains("send-16"), "{case}");
        let system = told(Only { systems: vec!["corba".into()], ..Only::default() });
        assert!(
            system.contains("no system `corba`") && system.contains("limit, upcall, ucx-am"),
            "{system}"
        );
        assert!(Only::default().check().is_ok());
    }

    #[test]
    fn a_part_of_the_suite() {
        let only = Only { cases: vec!["send-0".into(), "one-way-8".into()], ..Only::default() };
        assert_eq!(only.cases(Placement::TwoCores), [Case::Send(0), Case::OneWay(8)]);
        assert_eq!(only.cases(Placement::OneCore), [Case::OneWay(8)]);
        assert!(!only.with_idle() && Only::default().with_idle());
        assert!(only.own().is_empty() && Only::default().own() == Own::ALL);
        let only = Only {
            cases: vec!["stopped".into()],
            systems: vec!["upcall".into()],
            ..Only::default()
        };
        assert_eq!((only.own(), only.cases(Placement::TwoCores).len()), (vec![Own::Stopped], 0));
        assert!(Only { systems: vec!["limit".into()], ..only }.own().is_empty());
        let only = Only { placements: vec![Placement::OneCore], ..Only::default() };
        assert_eq!(
            (only.cases(Placement::TwoCores).len(), only.cases(Placement::OneCore).len()),
            (0, 4)
        );
        assert!(only.own().is_empty());
    }
}
