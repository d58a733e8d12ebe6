//! The programs of a run, built if needed.

use std::collections::HashMap;
use std::hash::Hash;
use std::path::{Path, PathBuf};

use crate::built::PeersError;
use crate::report::Report;

/// The available programs, and the notes and failures about missing ones.
#[derive(Debug)]
pub(crate) struct Programs<P> {
    paths: HashMap<P, PathBuf>,
    /// Notes on peers that are skipped because a requirement is not on this machine.
    notes: Vec<String>,
    /// Failures of peers that are skipped because they could not be built.
    failures: Vec<String>,
}

impl<P: Copy + Eq + Hash> Programs<P> {
    /// Finds the programs of `contenders` with `build`. `of` returns a contender's program and
    /// name.
    ///
    /// Contenders without a program are removed if `may_miss` permits that with the remaining ones,
    /// so that a missing library keeps no other peer from being measured.
    ///
    /// # Errors
    /// A program that must not be missing is missing.
    pub fn of<C>(
        contenders: &mut Vec<C>,
        of: impl Fn(&C) -> (P, &'static str),
        build: impl Fn(P) -> Result<PathBuf, PeersError>,
        may_miss: impl Fn(P, &[C]) -> bool,
    ) -> Result<Programs<P>, PeersError> {
        let mut programs =
            Programs { paths: HashMap::new(), notes: Vec::new(), failures: Vec::new() };
        while let Some(program) = contenders
            .iter()
            .map(|contender| of(contender).0)
            .find(|program| !programs.paths.contains_key(program))
        {
            let error = match build(program) {
                Ok(path) => {
                    programs.paths.insert(program, path);
                    continue;
                }
                Err(error) => error,
            };
            let lost: Vec<C> =
                contenders.extract_if(.., |contender| of(contender).0 == program).collect();
            if !may_miss(program, contenders) {
                return Err(error);
            }
            let names = lost.iter().map(|lost| of(lost).1).collect::<Vec<_>>().join(" and ");
            let take = if lost.len() > 1 { "take" } else { "takes" };
            if error.is_missing() { &mut programs.notes } else { &mut programs.failures }
                .push(format!("{names} {take} no part: {error}"));
        }
        Ok(programs)
    }

    /// Adds to a report why peers are skipped.
    pub fn say(&self, report: &mut Report) {
        report.notes.extend(self.notes.iter().cloned());
        report.failures.extend(self.failures.iter().cloned());
    }

    /// Returns the path of a program.
    ///
    /// # Panics
    /// No contender has this program.
    pub fn path(&self, program: P) -> &Path {
        &self.paths[&program]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::contender::{LIMIT, PEERS, Program};

    #[test]
    fn a_library_that_is_missing_keeps_nobody_else_back() {
        let mut contenders = [&[LIMIT][..], &PEERS].concat();
        let build = |program| match program {
            Program::Ucx => Err(PeersError::Missing { what: "UCX", packages: "libucx-dev" }),
            Program::OpenMpi => {
                Err(PeersError::Build { command: "cc".into(), how: "status 1".into() })
            }
            _ => Ok(PathBuf::from("/program")),
        };
        let programs =
            Programs::of(&mut contenders, |c| (c.program, c.name), build, |_, _| true).unwrap();
        let names: Vec<_> = contenders.iter().map(|contender| contender.name).collect();
        assert_eq!(names, ["limit", "iceoryx2"]);
        let mut report = Report::default();
        programs.say(&mut report);
        let [note] = &report.notes[..] else { panic!("{programs:?}") };
        assert!(
            note.starts_with("ucx-am and ucx-tag take no part")
                && note.contains("apt-get install libucx-dev"),
            "{note}"
        );
        let [failure] = &report.failures[..] else { panic!("{programs:?}") };
        assert!(
            failure.starts_with("openmpi takes no part") && failure.contains("run: cc"),
            "{failure}"
        );
        assert_eq!(programs.path(Program::Rust), Path::new("/program"));
    }

    #[test]
    fn what_nobody_can_do_without_ends_the_run() {
        let fails = |_| Err(PeersError::Missing { what: "a library", packages: "lib-dev" });
        let of = |c: &crate::messages::contender::Contender| (c.program, c.name);
        let rest = |_, rest: &[_]| !rest.is_empty();
        assert!(Programs::of(&mut PEERS[..2].to_vec(), of, fails, rest).is_err());
        assert!(Programs::of(&mut PEERS[1..3].to_vec(), of, fails, rest).is_err());
    }
}
