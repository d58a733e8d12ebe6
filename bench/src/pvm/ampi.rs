//! Adaptive MPI (AMPI, part of Charm++), whose ranks are user-level threads that can move.
//!
//! Debian does not have it. `bench/peers/ampi.sh` builds it from its sources, once for each
//! [`Layer`], in the folder that the environment variable [`VARIABLE`] names. Programs for one
//! process are compiled with PIEglobals: each rank has a copy of the program's code and globals,
//! which moves with it. Programs for two processes are compiled without it, because ranks that had
//! it crashed when they moved between processes; there, only ranks' own memory moves.

use std::env;
use std::path::{self, Path, PathBuf};
use std::process::Command;

use super::case::Case;
use crate::built::{PeersError, works};
use crate::place;

/// The environment variable that names the folder of the builds.
const VARIABLE: &str = "UPCALL_BENCH_AMPI";
/// The script that makes them.
const SCRIPT: &str = "bench/peers/ampi.sh";

/// A machine layer of Charm++: where its processing elements, which run ranks, are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layer {
    /// Threads of one process.
    Multicore,
    /// Processes, which send datagrams.
    Netlrts,
}

impl Layer {
    /// Returns the path of a program of the layer's build.
    fn program(self, builds: &Path, name: &str) -> PathBuf {
        let layer = match self {
            Layer::Multicore => "multicore",
            Layer::Netlrts => "netlrts",
        };
        builds.join(layer).join("bin").join(name)
    }
}

/// Returns the folder of the builds, which need not exist.
fn builds() -> PathBuf {
    let named = env::var_os(VARIABLE).and_then(|folder| path::absolute(folder).ok());
    named.unwrap_or_else(|| "/nonexistent".into())
}

/// Checks that the layer was built.
///
/// # Errors
/// [`PeersError::Unbuilt`].
pub(super) fn provide(layer: Layer) -> Result<(), PeersError> {
    provide_in(layer, &builds())
}

fn provide_in(layer: Layer, builds: &Path) -> Result<(), PeersError> {
    if works(&layer.program(builds, "ampicc"), &["--version"]) {
        return Ok(());
    }
    let what = match layer {
        Layer::Multicore => "AMPI",
        Layer::Netlrts => "AMPI for processes",
    };
    Err(PeersError::Unbuilt { what, script: SCRIPT, variable: VARIABLE })
}

/// Returns the C compiler of the layer's build.
pub(super) fn compiler(layer: Layer) -> Command {
    let mut compiler = Command::new(layer.program(&builds(), "ampicc"));
    compiler.args(match layer {
        Layer::Multicore => &["-pieglobals"][..],
        Layer::Netlrts => &["-memory", "isomalloc"],
    });
    compiler
}

/// Returns the command that runs `program` with a processing element on each of these processors.
/// `on` begins a command that runs a program on all of them.
pub(super) fn run(
    layer: Layer,
    case: Case,
    cpus: &[usize],
    program: &Path,
    on: impl FnOnce(&Path) -> Command,
) -> Command {
    let elements = format!("+p{}", cpus.len());
    let mut command = match layer {
        Layer::Multicore => {
            let mut command = on(program);
            command.args(["++quiet", &elements]);
            command
        }
        Layer::Netlrts => {
            let mut command = on(&layer.program(&builds(), "charmrun"));
            command.args(["++quiet", "++local", &elements, "++ppn", "1"]).arg(program);
            command
        }
    };
    command.arg(format!("+vp{}", case.processes()));
    command.args(["+pemap", &place::list(cpus)]);
    // Elements spin when they have nothing to run. A single element has nothing to run only when
    // all ranks wait, so messages between them are as fast if it sleeps then. Each process has a
    // thread for datagrams too, which would spin on the same processor.
    let sleeps = cpus.len() == 1 || layer == Layer::Netlrts;
    command.args(sleeps.then_some("+CmiSleepOnIdle"));
    command.args(matches!(case, Case::Move(_)).then_some("+ampiEnableMigrateToPe"));
    command
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn words(command: &Command) -> Vec<String> {
        let all = [command.get_program()].into_iter().chain(command.get_args());
        all.map(|word| word.to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn a_layer_that_was_not_built_is_told_with_the_script() {
        let builds = env::temp_dir().join(format!("upcall-ampi-{}", std::process::id()));
        let compiler = Layer::Multicore.program(&builds, "ampicc");
        let told = provide_in(Layer::Multicore, &builds).unwrap_err();
        assert!(told.is_missing());
        assert!(told.to_string().contains(SCRIPT) && told.to_string().contains(VARIABLE), "{told}");
        fs::create_dir_all(compiler.parent().unwrap()).unwrap();
        // A file that a test has just written may be busy: children of other tests hold it open.
        symlink("/bin/true", &compiler).unwrap();
        assert!(provide_in(Layer::Multicore, &builds).is_ok());
        assert!(provide_in(Layer::Netlrts, &builds).is_err());
        fs::remove_dir_all(&builds).unwrap();
    }

    #[test]
    fn a_processing_element_has_a_processor() {
        let program = Path::new("/program");
        let on = |program: &Path| Command::new(program);
        let one = words(&run(Layer::Multicore, Case::Ring(24), &[3], program, on));
        assert_eq!(one[0], "/program");
        assert!(
            ["+p1", "+vp24", "3", "+CmiSleepOnIdle"]
                .iter()
                .all(|word| one.iter().any(|one| one == word))
        );
        let two = words(&run(Layer::Netlrts, Case::Move("1m"), &[0, 2], program, on));
        assert!(two[0].ends_with("netlrts/bin/charmrun"), "{two:?}");
        assert!(
            ["+p2", "+vp2", "0,2", "+ampiEnableMigrateToPe"]
                .iter()
                .all(|word| two.iter().any(|two| two == word))
        );
        let two = words(&run(Layer::Multicore, Case::Ring(24), &[0, 2], program, on));
        assert!(!two.iter().any(|word| word == "+CmiSleepOnIdle"), "{two:?}");
    }
}
