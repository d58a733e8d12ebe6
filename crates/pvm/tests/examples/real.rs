//! Debian's PVM 3.4.6: compiles for it, and runs each case in a virtual machine of its own.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::cases::{Case, Program};
use crate::normal::Outcome;
use crate::{packages, process};

/// Maximum time that other tasks may take to end after the first task.
const REST: Duration = Duration::from_secs(60);
const CONSOLE: Duration = Duration::from_secs(60);

/// Compiles a program. Returns the compiler's output if it fails.
pub fn compile(program: &Program, sources: &[PathBuf], folder: &Path) -> Result<(), String> {
    let fortran = packages::fortran(sources);
    let mut compiler = Command::new(if fortran { "gfortran" } else { "gcc" });
    // The sources include '../include/fpvm3.h'.
    compiler
        .args(packages::dialect(fortran))
        .args(&program.flags)
        .arg("-I/usr/include")
        .arg("-o")
        .arg(folder.join(&program.name));
    compiler.args(sources).args(fortran.then_some("-lfpvm3")).args(["-lgpvm3", "-lpvm3", "-lm"]);
    let output = compiler.output().expect("a compiler");
    if output.status.success() {
        Ok(())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

/// Runs a case in a virtual machine of its own.
pub fn run(case: &Case, folder: &Path) -> Outcome {
    let machine = Machine::start(folder);
    let mut command;
    if let (Some(copies), [program, args @ ..]) = (case.copies, &case.run[..]) {
        // Starts the group server first. Otherwise several tasks that need it at the same time each
        // start one, and report that.
        process::run(machine.command(folder.join("tst")), "", CONSOLE, machine.dir.path());
        let script = machine.dir.path().join("script");
        fs::write(&script, format!("start {copies} {program} {}\n", args.join(" ")))
            .expect("a script");
        command = machine.command(folder.join("cast"));
        command.arg(script);
    } else {
        command = machine.command(folder.join(case.run.first().map_or("cast", String::as_str)));
        if let Some(text) = &case.script {
            let script = machine.dir.path().join("script");
            fs::write(&script, text).expect("a script");
            command.arg(script);
        }
        command.args(case.run.iter().skip(1));
    }
    let ended =
        process::run(command, &case.stdin, Duration::from_secs(case.limit), machine.dir.path());
    if !case.hangs {
        machine.rest();
    }
    let others = machine.log();
    Outcome { out: ended.out, err: ended.err, others, status: process::told(ended.status) }
}

/// A daemon of this case's own.
struct Machine {
    dir: TempDir,
    daemon: Child,
    programs: PathBuf,
}

impl Machine {
    fn start(programs: &Path) -> Self {
        let dir = tempfile::Builder::new().prefix("pvm").tempdir().expect("a folder");
        let hosts = dir.path().join("hosts");
        // The group server is in /usr/bin.
        let line = format!("* ep={}:/usr/bin wd={}\n", programs.display(), programs.display());
        fs::write(&hosts, line).expect("a host file");
        // With this name the host's own name need not have an address.
        let mut command = environment(Command::new("/usr/bin/pvmd"), dir.path(), programs);
        command
            .arg("-nlocalhost")
            .arg(hosts)
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        command.stderr(File::create(dir.path().join("pvmd.stderr")).expect("a file"));
        let mut daemon = command.spawn().expect("pvmd");
        let mut line = String::new();
        BufReader::new(daemon.stdout.take().expect("a pipe"))
            .read_line(&mut line)
            .expect("pvmd's socket");
        let machine = Self { dir, daemon, programs: programs.into() };
        assert!(!line.is_empty(), "pvmd did not start: {}", machine.log_text());
        machine
    }

    fn command(&self, program: PathBuf) -> Command {
        environment(Command::new(program), self.dir.path(), &self.programs)
    }

    /// Waits until no task is left but the group server.
    fn rest(&self) {
        let begun = Instant::now();
        while self.tasks() > 0 && begun.elapsed() < REST {
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn tasks(&self) -> usize {
        let dir = tempfile::tempdir().expect("a folder");
        let listed =
            process::run(self.command("/usr/bin/pvm".into()), "ps -a\nquit\n", CONSOLE, dir.path())
                .out;
        listed
            .lines()
            .filter(|line| {
                line.split_whitespace().nth(1).is_some_and(|tid| tid.starts_with('4'))
                    && !line.contains("pvmgs")
            })
            .count()
    }

    fn log_text(&self) -> String {
        let files = fs::read_dir(self.dir.path())
            .expect("a folder")
            .map(|entry| entry.expect("a file").path());
        let mut logs = files.filter(|path| {
            path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"pvml."))
        });
        logs.next().map_or_else(String::new, |path| {
            String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
        })
    }

    /// Output of tasks that no task has caught. The daemon's log has it with the time before each
    /// line.
    fn log(&self) -> String {
        let of_task = |line: &str| {
            line.splitn(4, ' ')
                .nth(3)
                .filter(|line| line.starts_with("[t"))
                .map(|line| format!("{line}\n"))
        };
        self.log_text().lines().filter_map(of_task).collect()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let dir = tempfile::tempdir().expect("a folder");
        process::run(self.command("/usr/bin/pvm".into()), "halt\n", CONSOLE, dir.path());
        if process::wait(&mut self.daemon, Duration::from_secs(2)).is_none() {
            process::kill(&mut self.daemon);
        }
    }
}

/// PVM's variables for a virtual machine with its own name and folder. A user's ~/.pvmrc is not
/// read.
fn environment(mut command: Command, dir: &Path, programs: &Path) -> Command {
    command.envs([
        ("PVM_ALLOW_ROOT", "1"),
        ("PVM_ROOT", "/usr/lib/pvm3"),
        ("PVM_ARCH", "LINUX64"),
        ("PVM_VMID", "upcall"),
    ]);
    command.env("PVM_TMP", dir).env("HOME", dir).current_dir(programs);
    command
}
