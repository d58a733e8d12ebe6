//! The programs that a run of messages takes, built if need be.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::contender::{Contender, Program};
use crate::built::{self, PeersError};

/// Those that there are, and what is to be said of the others.
#[derive(Debug)]
pub(super) struct Programs {
    paths: HashMap<Program, PathBuf>,
    /// Peers that take no part, because what they need is not on this machine.
    pub notes: Vec<String>,
    /// Peers that take no part, because they could not be built from what there is.
    pub failures: Vec<String>,
}

impl Programs {
    /// The programs of `contenders`, who lose those that have none: what this machine does not have
    /// keeps nobody else from being measured. `own` is the running program.
    pub fn of(contenders: &mut Vec<Contender>, own: &Path) -> Programs {
        Programs::built_by(contenders, |program| match program {
            Program::Own => Ok(own.to_owned()),
            Program::Rust => built::message_peers(own),
            Program::Ucx => built::ucx(own),
            Program::OpenMpi => built::open_mpi(own),
        })
    }

    fn built_by(
        contenders: &mut Vec<Contender>,
        build: impl Fn(Program) -> Result<PathBuf, PeersError>,
    ) -> Programs {
        let mut programs =
            Programs { paths: HashMap::new(), notes: Vec::new(), failures: Vec::new() };
        for contender in contenders.clone() {
            if programs.paths.contains_key(&contender.program) || !contenders.contains(&contender) {
                continue;
            }
            match build(contender.program) {
                Ok(path) => _ = programs.paths.insert(contender.program, path),
                Err(error) => {
                    let lost: Vec<_> = contenders
                        .extract_if(.., |other| other.program == contender.program)
                        .collect();
                    let names = lost.iter().map(|lost| lost.name).collect::<Vec<_>>().join(" and ");
                    let told = format!(
                        "{names} {} no part: {error}",
                        if lost.len() > 1 { "take" } else { "takes" }
                    );
                    let missing = matches!(error, PeersError::Missing { .. });
                    if missing { &mut programs.notes } else { &mut programs.failures }.push(told);
                }
            }
        }
        programs
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
    use crate::messages::contender::{LIMIT, PEERS};

    #[test]
    fn a_library_that_is_missing_keeps_nobody_else_back() {
        let mut contenders = [&[LIMIT][..], &PEERS].concat();
        let programs = Programs::built_by(&mut contenders, |program| match program {
            Program::Ucx => Err(PeersError::Missing { what: "UCX", packages: "libucx-dev" }),
            Program::OpenMpi => {
                Err(PeersError::Build { command: "cc".into(), how: "status 1".into() })
            }
            _ => Ok(PathBuf::from("/program")),
        });
        assert_eq!(
            contenders.iter().map(|contender| contender.name).collect::<Vec<_>>(),
            ["limit", "iceoryx2"]
        );
        let [note] = &programs.notes[..] else { panic!("{programs:?}") };
        assert!(
            note.starts_with("ucx-am and ucx-tag take no part")
                && note.contains("apt-get install libucx-dev"),
            "{note}"
        );
        let [failure] = &programs.failures[..] else { panic!("{programs:?}") };
        assert!(
            failure.starts_with("openmpi takes no part") && failure.contains("run: cc"),
            "{failure}"
        );
        assert_eq!(programs.path(Program::Rust), Path::new("/program"));
    }
}
