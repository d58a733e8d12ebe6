//! The programs of bench/pvm, compiled for each system. Its README describes how each is run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::ampi::{self, Layer};
use super::contender::{Contender, How};
use crate::built::{self, Need, PeersError, works};
use crate::error::RunError;

/// The sources, by their paths below the root of the project: they include each other.
const SOURCES: [(&str, &str); 8] = [
    ("bench/pvm/pvm_bench.c", include_str!("../../pvm/pvm_bench.c")),
    ("bench/pvm/mpi_bench.c", include_str!("../../pvm/mpi_bench.c")),
    ("bench/pvm/modes.h", include_str!("../../pvm/modes.h")),
    ("bench/pvm/moves.h", include_str!("../../pvm/moves.h")),
    ("bench/pvm/ranks.h", include_str!("../../pvm/ranks.h")),
    ("bench/pvm/grids.h", include_str!("../../pvm/grids.h")),
    ("bench/pvm/saved.h", include_str!("../../pvm/saved.h")),
    (
        "crates/pvm/tests/programs/block.h",
        include_str!("../../../crates/pvm/tests/programs/block.h"),
    ),
];

const GCC: Need = Need {
    what: "a C compiler",
    packages: "gcc libc6-dev",
    there: || works(Path::new("gcc"), &["--version"]),
};

const PVM: Need = Need {
    what: "a C compiler and PVM",
    packages: "gcc libc6-dev pvm pvm-dev",
    there: || {
        (GCC.there)()
            && ["/usr/bin/pvmd", "/usr/bin/pvm", "/usr/include/pvm3.h"]
                .iter()
                .all(|file| Path::new(file).exists())
    },
};

const OPEN_MPI: Need = Need {
    what: "a C compiler and Open MPI",
    packages: "gcc libc6-dev openmpi-bin libopenmpi-dev",
    there: || {
        works(Path::new("mpicc.openmpi"), &["--version"])
            && works(Path::new("orterun"), &["--version"])
    },
};

const MPICH: Need = Need {
    what: "a C compiler and MPICH",
    packages: "gcc libc6-dev mpich libmpich-dev",
    there: || {
        works(Path::new("mpicc.mpich"), &["--version"])
            && works(Path::new("mpirun.mpich"), &["--version"])
    },
};

/// A system's program.
struct Program {
    /// Its name, by which tasks are spawned, and the folder that contains only this program.
    name: &'static str,
    folder: &'static str,
    /// Finds or installs what compiling and running it require.
    provide: fn() -> Result<(), PeersError>,
    of: fn(How) -> bool,
}

const PROGRAMS: [Program; 6] = [
    Program {
        name: "pvm_bench",
        folder: "upcall",
        provide: || built::provide(&GCC),
        of: |how| matches!(how, How::Upcall | How::Upcall2 { .. }),
    },
    Program {
        name: "pvm_bench",
        folder: "pvm",
        provide: || built::provide(&PVM),
        of: |how| matches!(how, How::Pvm { .. }),
    },
    Program {
        name: "mpi_bench",
        folder: "openmpi",
        provide: || built::provide(&OPEN_MPI),
        of: |how| matches!(how, How::OpenMpi { .. }),
    },
    Program {
        name: "mpi_bench",
        folder: "mpich",
        provide: || built::provide(&MPICH),
        of: |how| how == How::Mpich,
    },
    Program {
        name: "mpi_bench",
        folder: "ampi",
        provide: || ampi::provide(Layer::Multicore),
        of: |how| how == How::Ampi(Layer::Multicore),
    },
    Program {
        name: "mpi_bench",
        folder: "ampi-2",
        provide: || ampi::provide(Layer::Netlrts),
        of: |how| how == How::Ampi(Layer::Netlrts),
    },
];

/// The available programs, and the notes and failures about missing ones.
#[derive(Debug)]
pub struct Programs {
    dir: PathBuf,
    /// Notes on contenders that are skipped because a requirement is not on this machine.
    pub notes: Vec<String>,
    /// Failures of contenders that are skipped because their program could not be compiled.
    pub failures: Vec<String>,
}

impl Programs {
    /// Compiles the programs of `contenders` into `dir`, and removes the contenders for which that
    /// fails. `exe` compiles Upcall's.
    ///
    /// # Errors
    /// The sources cannot be written to `dir`.
    pub fn of(
        contenders: &mut Vec<Contender>,
        exe: &Path,
        dir: &Path,
    ) -> Result<Programs, RunError> {
        write(dir).map_err(|error| RunError::File { path: dir.to_owned(), error })?;
        let mut programs =
            Programs { dir: dir.to_owned(), notes: Vec::new(), failures: Vec::new() };
        for program in &PROGRAMS {
            let of: Vec<_> = contenders.iter().filter(|one| (program.of)(one.how)).collect();
            if of.is_empty() {
                continue;
            }
            let Err(error) = (program.provide)().and_then(|()| programs.compile(program, exe))
            else {
                continue;
            };
            let mut names: Vec<&str> = of.iter().map(|one| one.name).collect();
            names.sort_unstable();
            names.dedup();
            let told = format!("{}: {error}", names.join(", "));
            let skipped = error.is_missing() && !of[0].is_ours();
            if skipped { &mut programs.notes } else { &mut programs.failures }.push(told);
            contenders.retain(|one| !(program.of)(one.how));
        }
        Ok(programs)
    }

    fn compile(&self, program: &Program, exe: &Path) -> Result<(), PeersError> {
        let (source, into) = (
            self.dir.join(format!("bench/pvm/{}.c", program.name)),
            self.path(program.folder, program.name),
        );
        let mut compiler = match program.folder {
            "upcall" => {
                let mut compiler = Command::new(exe);
                compiler.args(["bench-pvm", "compile"]);
                compiler
            }
            "pvm" => Command::new("gcc"),
            "openmpi" => Command::new("mpicc.openmpi"),
            "ampi" => ampi::compiler(Layer::Multicore),
            "ampi-2" => ampi::compiler(Layer::Netlrts),
            _ => Command::new("mpicc.mpich"),
        };
        // At a lower level, writing and checking a payload are not vectorised.
        compiler.args(["-std=gnu11", "-O3", "-o"]).arg(&into).arg(source);
        compiler.args((program.folder == "pvm").then_some("-lpvm3"));
        // AMPI's compiler leaves `charmrun` and `ampirun` in the current folder.
        compiler.current_dir(self.dir.join(program.folder));
        built::build(compiler, &into).map(|_| ())
    }

    fn path(&self, folder: &str, name: &str) -> PathBuf {
        self.dir.join(folder).join(name)
    }

    /// Returns the folder of a system's program.
    pub fn folder(&self, how: How) -> PathBuf {
        self.program(how).with_file_name("")
    }

    /// Returns the path of a system's program.
    ///
    /// # Panics
    /// The system has none.
    pub fn program(&self, how: How) -> PathBuf {
        let program = PROGRAMS
            .iter()
            .find(|program| (program.of)(how))
            .expect("who needs no program is not asked for one");
        self.path(program.folder, program.name)
    }
}

fn write(dir: &Path) -> std::io::Result<()> {
    for (place, text) in SOURCES {
        let path = dir.join(place);
        fs::create_dir_all(path.with_file_name(""))?;
        fs::write(path, text)?;
    }
    PROGRAMS.iter().try_for_each(|program| fs::create_dir_all(dir.join(program.folder)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pvm::contender::{OURS, PEERS};
    use crate::scratch::Scratch;

    #[test]
    fn who_cannot_be_compiled_takes_no_part() {
        let scratch = Scratch::make().unwrap();
        let mut contenders = OURS.to_vec();
        let programs =
            Programs::of(&mut contenders, Path::new("/nowhere/upcall"), &scratch.dir).unwrap();
        assert_eq!(contenders.len(), 2, "{contenders:?}");
        let [failure] = &programs.failures[..] else { panic!("{programs:?}") };
        assert!(
            failure.starts_with("upcall, upcall-2, upcall-2-interleave: ")
                && failure.contains("bench-pvm compile"),
            "{failure}"
        );
        assert!(
            programs.notes.is_empty()
                && scratch.dir.join("crates/pvm/tests/programs/block.h").is_file()
        );
    }

    #[test]
    fn each_peer_has_a_program() {
        for peer in PEERS {
            assert_eq!(
                PROGRAMS.iter().filter(|program| (program.of)(peer.how)).count(),
                1,
                "{peer:?}"
            );
        }
    }
}
