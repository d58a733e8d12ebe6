//! Compiles test programs, and runs them as tasks.

use super::upcall;
use rustix::process::{Pid, Signal, kill_process};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::time::{Duration, Instant};

/// Calls `look` until it returns `Some`. Fails after 60 s.
pub fn within<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "nothing within 60 s");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A folder of compiled programs.
pub struct Programs(pub tempfile::TempDir);

impl Programs {
    pub fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// Compiles a source below tests/.
    pub fn compiled(&self, source: &str) -> PathBuf {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(source);
        let program = self.0.path().join(source.file_stem().unwrap());
        let mut upvmcc = Command::new(env!("CARGO_BIN_EXE_upvmcc"));
        let done = upvmcc.args(["-O1", "-w", "-o"]).arg(&program).arg(&source).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        program
    }
}

/// `upcall pvm run` with these arguments.
pub fn run(options: &[&str], program: &Path, args: &[&str]) -> Output {
    run_named("own", options, program, args)
}

/// The same, with tasks that have names of their own process ("own") or of the next one ("lent").
pub fn run_named(names: &str, options: &[&str], program: &Path, args: &[&str]) -> Output {
    let mut command = Command::new("timeout");
    command.arg("60").arg(upcall()).args(["pvm", "run"]).args(options).arg(program).args(args);
    command.env("UPCALL_PVM_NAMES", names);
    let done = command.output().unwrap();
    assert_ne!(
        done.status.code(),
        Some(124),
        "it hangs: {options:?} {}: {}",
        program.display(),
        said(&done)
    );
    done
}

/// Runs a program successfully in one process, and in two with its tasks interleaved. Returns its
/// outputs.
pub fn here_and_there(program: &Path) -> [String; 2] {
    [&[][..], &["--procs", "2", "--place", "interleave"]].map(|options| {
        let done = run(options, program, &[]);
        assert!(done.status.success(), "{options:?}: {} {}", done.status, said(&done));
        said(&done)
    })
}

/// The output of a program on both streams.
pub fn said(done: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr))
}

/// A machine, which is killed on drop.
pub struct KilledMachine(pub Option<Child>);

impl Drop for KilledMachine {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            kill_all(&mut child);
        }
    }
}

/// Kills a child that has not ended, and all processes below it. A `timeout` that is killed alone
/// leaves its command running.
pub fn kill_all(child: &mut Child) {
    if matches!(child.try_wait(), Ok(None)) {
        let mut all = vec![child.id()];
        let mut next = 0;
        while let Some(&process) = all.get(next) {
            all.extend(children(process));
            next += 1;
        }
        for process in all {
            let process = process.try_into().ok().and_then(Pid::from_raw);
            let _ = process.map(|process| kill_process(process, Signal::KILL));
        }
    }
    let _ = child.wait();
}

/// The child processes of all threads of a process.
fn children(process: u32) -> Vec<u32> {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten();
    let lists = threads.flatten().map(|one| std::fs::read_to_string(one.path().join("children")));
    let numbers = |list: String| list.split(' ').flat_map(str::parse).collect::<Vec<_>>();
    lists.flatten().flat_map(numbers).collect()
}

/// The process with this rank of the only machine in a folder.
pub fn process(folder: &Path, rank: usize) -> Pid {
    let mut top = Command::new(upcall());
    top.args(["pvm", "top", "--once", "--json", "--interval", "0.02"]).env("UPCALL_DIR", folder);
    let shown = serde_json::from_slice::<serde_json::Value>(&top.output().unwrap().stdout).unwrap();
    let process = shown["processes"][rank]["process"].as_i64().unwrap();
    Pid::from_raw(process.try_into().unwrap()).unwrap()
}
