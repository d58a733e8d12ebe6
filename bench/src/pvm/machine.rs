//! A private virtual machine of PVM's: a daemon with its own name and folder.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use crate::process::{ChildError, Process};

/// Maximum time for the daemon to start, and for it to end.
const PATIENCE: Duration = Duration::from_secs(10);

/// A running daemon. Drop halts it and all its tasks.
pub struct Machine {
    daemon: Process,
    dir: PathBuf,
}

impl Machine {
    /// Starts the daemon with the command that `runs` makes of a program. The daemon finds tasks in
    /// `programs`.
    ///
    /// # Errors
    /// The daemon did not start.
    pub fn start(
        runs: impl FnOnce(&Path) -> Command,
        programs: &Path,
        dir: &Path,
        interrupted: &AtomicBool,
    ) -> Result<Machine, ChildError> {
        let failed = |error| ChildError::Start { exe: dir.to_owned(), error };
        fs::create_dir_all(dir).map_err(failed)?;
        let hosts = dir.join("hosts");
        fs::write(&hosts, format!("* ep={0}:/usr/bin wd={0}\n", programs.display()))
            .map_err(failed)?;
        let mut command = runs(Path::new("/usr/bin/pvmd"));
        // With this name, the host's own name needs no address.
        command.arg("-nlocalhost").arg(hosts);
        variables(&mut command, dir);
        let mut daemon = Process::start(command, "pvmd".to_owned(), dir.join("errors"))?;
        // The first line announces that it is ready.
        daemon.line("its start", Instant::now() + PATIENCE, interrupted)?;
        Ok(Machine { daemon, dir: dir.to_owned() })
    }

    /// Sets the environment by which a program finds the daemon.
    pub fn variables(&self, command: &mut Command) {
        variables(command, &self.dir);
    }

    /// Keeps the daemon, and the tasks that it starts, on these processors.
    ///
    /// # Errors
    /// The daemon has ended.
    pub fn confine(&self, cpus: &[usize]) -> Result<(), ChildError> {
        self.daemon.confine(cpus)
    }

    /// Returns the daemon's process id.
    pub fn id(&self) -> u32 {
        self.daemon.id()
    }
}

/// Sets PVM's environment. HOME is the machine's folder, so that a user's ~/.pvmrc is ignored.
fn variables(command: &mut Command, dir: &Path) {
    command.envs([
        ("PVM_ALLOW_ROOT", "1"),
        ("PVM_ROOT", "/usr/lib/pvm3"),
        ("PVM_ARCH", "LINUX64"),
        ("PVM_VMID", "upcall-bench"),
    ]);
    command.env("PVM_TMP", dir).env("HOME", dir);
}

impl Drop for Machine {
    fn drop(&mut self) {
        let mut command = Command::new("/usr/bin/pvm");
        variables(&mut command, &self.dir);
        let Ok(mut console) =
            command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
        else {
            return;
        };
        if let Some(mut input) = console.stdin.take() {
            input.write_all(b"halt\n").ok();
        }
        let begun = Instant::now();
        while matches!(console.try_wait(), Ok(None)) && begun.elapsed() < PATIENCE {
            thread::sleep(Duration::from_millis(10));
        }
        console.kill().ok();
        console.wait().ok();
        // Tasks that have not ended by then are ended with the daemon.
        self.daemon.terminate(Duration::from_secs(2));
    }
}
