//! The programs that a run of calls takes, built if need be.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use crate::built::{self, PeersError};
use crate::contender::{Contender, Program};

/// Those that there are, and what is to be said of the others.
#[derive(Debug)]
pub(crate) struct Programs {
    paths: HashMap<Program, PathBuf>,
    /// A peer that takes no part, because what it needs is not on this machine.
    pub notes: Vec<String>,
    /// A peer that takes no part, because it could not be built from what there is.
    pub failures: Vec<String>,
}

impl Programs {
    /// The programs of `contenders`, who lose those that can be done without: a library that this
    /// machine does not have keeps nobody else from being measured. `own` is the running program.
    ///
    /// # Errors
    /// Why there is no program that most of them live in, or none for anybody.
    pub fn of(contenders: &mut Vec<Contender>, own: &Path) -> Result<Programs, PeersError> {
        Programs::built_by(contenders, own, |program| match program {
            Program::Own => Ok(own.to_owned()),
            Program::Peers => built::peers(own),
            Program::GrpcCpp => built::grpc_cpp(own),
        })
    }

    fn built_by(
        contenders: &mut Vec<Contender>,
        own: &Path,
        build: impl Fn(Program) -> Result<PathBuf, PeersError>,
    ) -> Result<Programs, PeersError> {
        let mut programs = Programs {
            paths: HashMap::from([(Program::Own, own.to_owned())]),
            notes: Vec::new(),
            failures: Vec::new(),
        };
        for contender in contenders.clone() {
            if programs.paths.contains_key(&contender.program) {
                continue;
            }
            match build(contender.program) {
                Ok(path) => {
                    programs.paths.insert(contender.program, path);
                }
                Err(error) => {
                    contenders.retain(|other| other.program != contender.program);
                    if contender.program != Program::GrpcCpp || contenders.is_empty() {
                        return Err(error);
                    }
                    let told = format!("{} takes no part: {error}", contender.name);
                    let missing = matches!(error, PeersError::Missing { .. });
                    if missing { &mut programs.notes } else { &mut programs.failures }.push(told);
                }
            }
        }
        Ok(programs)
    }

    /// Where a program is.
    ///
    /// # Panics
    /// It is that of none of the contenders.
    pub fn path(&self, program: Program) -> &Path {
        &self.paths[&program]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contender::{PEERS, UPCALL};

    fn missing() -> PeersError {
        PeersError::Missing { what: "a library", packages: "lib-dev" }
    }

    #[test]
    fn a_library_that_is_missing_keeps_nobody_else_back() {
        let mut contenders = [&[UPCALL][..], &PEERS].concat();
        let all = contenders.len();
        let own = Path::new("/own");
        let without = |program| {
            if program == Program::GrpcCpp { Err(missing()) } else { Ok(PathBuf::from("/peers")) }
        };
        let programs = Programs::built_by(&mut contenders, own, without).unwrap();
        assert_eq!(
            (contenders.len(), programs.failures.len(), programs.notes.len()),
            (all - 1, 0, 1)
        );
        assert!(contenders.iter().all(|contender| contender.name != "grpc-c++"));
        let note = &programs.notes[0];
        assert!(
            note.starts_with("grpc-c++ takes no part") && note.contains("apt-get install lib-dev"),
            "{note}"
        );
        assert_eq!(
            (programs.path(Program::Own), programs.path(Program::Peers)),
            (own, Path::new("/peers"))
        );
    }

    #[test]
    fn a_build_that_fails_is_a_failure() {
        let mut contenders = [&[UPCALL][..], &PEERS].concat();
        let fails = |program| match program {
            Program::GrpcCpp => {
                Err(PeersError::Build { command: "c++".into(), how: "status 1".into() })
            }
            _ => Ok(PathBuf::new()),
        };
        let programs = Programs::built_by(&mut contenders, Path::new("/own"), fails).unwrap();
        assert!(
            programs.notes.is_empty() && programs.failures[0].contains("run: c++"),
            "{programs:?}"
        );
    }

    #[test]
    fn what_nobody_can_do_without_ends_the_run() {
        let build = |_| Err(missing());
        assert!(Programs::built_by(&mut PEERS.to_vec(), Path::new("/own"), build).is_err());
        let only = PEERS.into_iter().filter(|peer| peer.program == Program::GrpcCpp);
        assert!(Programs::built_by(&mut only.collect(), Path::new("/own"), build).is_err());
    }
}
