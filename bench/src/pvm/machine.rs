//! A virtual machine of PVM's that nobody else uses: a daemon with a name and a folder of its own.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use crate::process::{ChildError, Process};

/// Longest time for the daemon to start, and for it to end.
const PATIENCE: Duration = Duration::from_secs(10);

/// A running daemon; halted on drop, with all tasks.
pub struct Machine {
    daemon: Process,
    dir: PathBuf,
}

impl Machine {
    /// Starts it, by the command that `runs` makes of a program. Tasks are looked for in
    /// `programs`.
    ///
    /// # Errors
    /// It did not start.
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
        // By this name, so that no host's own name need have an address.
        command.arg("-nlocalhost").arg(hosts);
        variables(&mut command, dir);
        let mut daemon = Process::start(command, "pvmd".to_owned(), dir.join("errors"))?;
        // Its first line says that it is ready.
        daemon.line("its start", Instant::now() + PATIENCE, interrupted)?;
        Ok(Machine { daemon, dir: dir.to_owned() })
    }

    /// Has a program find it.
    pub fn variables(&self, command: &mut Command) {
        variables(command, &self.dir);
    }

    /// Keeps it, and the tasks that it starts, on these processors.
    ///
    /// # Errors
    /// It has ended.
    pub fn confine(&self, cpus: &[usize]) -> Result<(), ChildError> {
        self.daemon.confine(cpus)
    }

    /// The daemon's process id.
    pub fn id(&self) -> u32 {
        self.daemon.id()
    }
}

/// A user's ~/.pvmrc is not for us.
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
        // What it has not ended by then is ended with the daemon.
        self.daemon.terminate(Duration::from_secs(2));
    }
}
