//! Crashes of all kinds, and standard streams that are closed, full, or read slowly.
//!
//! Nothing of this ends or blocks other tasks, reports are whole, and no output of a task is lost.

mod command;

use command::upcall;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const PROCESSES: [&[&str]; 2] = [&[], &["--procs", "2", "--place", "interleave"]];

struct Program {
    folder: tempfile::TempDir,
    path: PathBuf,
}

impl Program {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("reports");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/images/reports.c");
        let mut upvmcc = Command::new(env!("CARGO_BIN_EXE_upvmcc"));
        let done = upvmcc.args(["-O1", "-w", "-o"]).arg(&path).arg(&source).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        Self { folder, path }
    }

    /// `upcall pvm run` of this program, which ends after a minute.
    fn command(&self, options: &[&str], args: &[&str]) -> Command {
        let mut command = Command::new("timeout");
        command.arg("60").arg(upcall()).args(["pvm", "run"]).args(options);
        command.arg(&self.path).args(args).current_dir(self.folder.path());
        command
    }

    /// The status, the output and the reports of a run.
    fn run(&self, options: &[&str], args: &[&str]) -> (Option<i32>, String, String) {
        let done = self.command(options, args).output().unwrap();
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        (done.status.code(), text(&done.stdout), text(&done.stderr))
    }
}

/// Fills a pipe, and returns the number of bytes.
fn fill(pipe: &PipeWriter) -> usize {
    let flags = fcntl_getfl(pipe).unwrap();
    fcntl_setfl(pipe, flags | OFlags::NONBLOCK).unwrap();
    let mut filled = 0;
    while let Ok(count) = rustix::io::write(pipe, &[b'x'; 4096]) {
        filled += count;
    }
    fcntl_setfl(pipe, flags).unwrap();
    filled
}

/// Starts a command with a full pipe as standard error. Returns the command, the pipe, and the
/// number of bytes in it.
fn with_full_pipe(mut command: Command) -> (Child, PipeReader, usize) {
    let (reads, writes) = std::io::pipe().unwrap();
    let filled = fill(&writes);
    let child = command.stdout(Stdio::piped()).stderr(writes).spawn().unwrap();
    (child, reads, filled)
}

/// Reads the first line of a command's output.
fn line(child: &mut Child) -> String {
    let (mut line, mut byte) = (Vec::new(), [0]);
    let out = child.stdout.as_mut().unwrap();
    while out.read(&mut byte).unwrap() == 1 && byte != *b"\n" {
        line.push(byte[0]);
    }
    String::from_utf8(line).unwrap()
}

/// Reads what a pipe has after so many bytes.
fn rest(mut reads: PipeReader, filled: usize) -> Vec<u8> {
    let mut all = Vec::new();
    reads.read_to_end(&mut all).unwrap();
    all.split_off(filled)
}

/// Checks that reports of crashes are whole, and returns their number.
fn whole_crashes(text: &str) -> usize {
    let mut count = 0;
    let mut lines = text.lines().peekable();
    while let Some(head) = lines.next() {
        assert!(head.starts_with("upcall pvm: t") && head.contains(" has crashed: SIG"), "{text}");
        count += 1;
        let mut calls = 0;
        while lines.next_if(|line| line.starts_with("  0x")).is_some() {
            calls += 1;
        }
        assert!((1..=24).contains(&calls), "{calls} calls: {text}");
    }
    count
}

#[test]
fn a_crash_of_any_kind_ends_one_task_and_is_reported() {
    let program = Program::new();
    let crashes = [
        ("null", "SIGSEGV", 11),
        ("deep", "SIGSEGV", 11),
        ("overflow", "SIGSEGV", 11),
        ("abort", "SIGABRT", 6),
        ("sent", "SIGSEGV", 11),
        ("trap", "SIGTRAP", 5),
        ("step", "SIGTRAP", 5),
        ("odd", "SIGBUS", 7),
        ("direction", "SIGILL", 4),
        ("none", "SIGSEGV", 11),
        ("spins", "SIGSEGV", 11),
        ("calls", "SIGSEGV", 11),
        ("smashed", "SIGSEGV", 11),
        ("locked", "SIGSEGV", 11),
        ("sorts", "SIGSEGV", 11),
        ("handler", "SIGSEGV", 11),
        ("alarm", "SIGSEGV", 11),
        ("jump", "SIGSEGV", 11),
        ("own", "SIGSEGV", 11),
    ];
    for (how, name, signal) in crashes {
        let (status, out, reports) = program.run(&[], &[how, "2"]);
        assert_eq!((status, &*out), (Some(0), "2 have ended\n"), "{how}: {reports}");
        assert_eq!(whole_crashes(&reports), 2, "{how}: {reports}");
        assert_eq!(reports.matches(name).count(), 2, "{how}: {reports}");
        let (status, _, reports) = program.run(&[], &[how]);
        assert_eq!((status, whole_crashes(&reports)), (Some(128 + signal), 1), "{how}: {reports}");
    }
    assert!(!program.run(&[], &["sent"]).2.contains("wanted"));
    assert_eq!(std::fs::read_to_string(program.folder.path().join("own.txt")).unwrap(), "mine\n");
    let (status, _, reports) = program.run(&[], &["checks", "1"]);
    assert_eq!((status, &*reports), (Some(0), ""));
}

#[test]
fn many_crashes_at_once_are_reported_whole_and_read_slowly() {
    let program = Program::new();
    let count = 120;
    for options in PROCESSES {
        let command = program.command(options, &["null", &count.to_string()]);
        let (mut child, reads, filled) = with_full_pipe(command);
        // All have ended, and no process has read a report.
        assert_eq!(line(&mut child), format!("{count} have ended"), "{options:?}");
        let reports = String::from_utf8(rest(reads, filled)).unwrap();
        assert!(child.wait().unwrap().success(), "{options:?}");
        assert_eq!(whole_crashes(&reports), count, "{options:?}: {reports}");
    }
}

#[test]
fn output_of_tasks_waits_for_its_reader_and_other_tasks_do_not() {
    let program = Program::new();
    for options in PROCESSES {
        // Less than what makes a task wait.
        let (mut child, reads, filled) = with_full_pipe(program.command(options, &["long", "1"]));
        let long = std::thread::spawn(move || rest(reads, filled));
        assert_eq!(line(&mut child), "1 have ended", "{options:?}");
        assert!(child.wait().unwrap().success(), "{options:?}");
        let long = long.join().unwrap();
        let parts = long.split(|byte| *byte == b'\n').map(<[u8]>::len).collect::<Vec<_>>();
        let label = "[t40002] ".len();
        let whole = label + (64 << 10);
        assert_eq!(parts, [whole, whole, whole, label + 200_000 - 3 * (64 << 10), 0]);

        let (mut child, reads, filled) =
            with_full_pipe(program.command(options, &["odd bytes", "2"]));
        assert_eq!(line(&mut child), "2 have ended", "{options:?}");
        let lines = rest(reads, filled);
        assert!(child.wait().unwrap().success(), "{options:?}");
        let lines = lines.split_inclusive(|byte| *byte == b'\n').collect::<Vec<_>>();
        let own = |what: &[u8]| lines.iter().filter(|line| line.ends_with(what)).count();
        assert_eq!((lines.len(), own(b"] a\0b\n"), own(b"] \0\n"), own(b"] \xff\n")), (8, 2, 2, 2));
    }
}

#[test]
fn much_output_makes_its_task_wait_and_all_of_it_comes() {
    let program = Program::new();
    for options in PROCESSES {
        let (mut child, reads, filled) = with_full_pipe(program.command(options, &["lines", "4"]));
        let text = String::from_utf8(rest(reads, filled)).unwrap();
        assert_eq!(line(&mut child), "4 have ended", "{options:?}");
        assert!(child.wait().unwrap().success(), "{options:?}");
        let mut next = BTreeMap::<&str, usize>::new();
        for one in text.lines() {
            let (label, line) = one.split_once(' ').unwrap();
            let at = next.entry(label).or_default();
            assert_eq!(line, format!("line {at} of a task that writes much"), "{options:?}");
            *at += 1;
        }
        assert_eq!(next.into_values().collect::<Vec<_>>(), [4000; 4], "{options:?}");
    }
}

#[test]
fn a_run_ends_though_nobody_reads_its_reports() {
    let program = &Program::new();
    // In parallel, because each run waits for a reader.
    std::thread::scope(|scope| {
        for options in PROCESSES {
            for (how, count, status) in [("fork", "2", 0), ("null", "2", 0), ("waits", "1", 1)] {
                scope.spawn(move || {
                    let (mut child, reads, _) =
                        with_full_pipe(program.command(options, &[how, count]));
                    assert_eq!(child.wait().unwrap().code(), Some(status), "{how} {options:?}");
                    drop(reads);
                });
            }
        }
    });
}

/// A terminal: what its user has, and what a program has.
fn terminal() -> (OwnedFd, File) {
    let user = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&user).unwrap();
    unlockpt(&user).unwrap();
    let name = ptsname(&user, Vec::new()).unwrap();
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let own = rustix::fs::open(&*name, flags, rustix::fs::Mode::empty()).unwrap();
    (user, File::from(own))
}

#[test]
fn no_standard_error_ends_or_blocks_anything() {
    let program = Program::new();
    for options in PROCESSES {
        for how in ["null", "fork", "odd bytes", "lines"] {
            let ends = |what: &str, to: Stdio| {
                let done = program.command(options, &[how, "2"]).stderr(to).output().unwrap();
                let out = String::from_utf8_lossy(&done.stdout).into_owned();
                let ended = (done.status.code(), &*out);
                assert_eq!(ended, (Some(0), "2 have ended\n"), "{what} {how} {options:?}");
            };
            ends("full disk", File::create("/dev/full").unwrap().into());
            let (reads, writes) = std::io::pipe().unwrap();
            drop(reads);
            ends("no reader", writes.into());
            let (user, own) = terminal();
            drop(user);
            ends("closed terminal", own.into());
        }
        // What a terminal does not take, since no process reads it, is dropped at the end.
        let (user, own) = terminal();
        let done = program.command(options, &["null", "20"]).stderr(own).output().unwrap();
        assert!(done.status.success(), "{options:?}: {done:?}");
        assert_eq!(String::from_utf8_lossy(&done.stdout), "20 have ended\n", "{options:?}");
        drop(user);
    }
}

#[test]
fn closed_streams_are_not_taken_by_what_is_opened_later() {
    let program = Program::new();
    for closed in ["2>&-", "1>&-", "0<&-", "1>&- 2>&-", "0<&- 1>&- 2>&-"] {
        for how in ["null", "own", "fork", "odd bytes"] {
            let plain = program.command(&[], &[how, "2"]);
            let mut shell = Command::new("sh");
            shell.args(["-c", &format!("exec \"$@\" {closed}"), "sh"]).arg(plain.get_program());
            let done =
                shell.args(plain.get_args()).current_dir(program.folder.path()).output().unwrap();
            assert!(done.status.success(), "{closed} {how}: {done:?}");
            let (out, reports) = (!closed.contains("1>"), !closed.contains("2>"));
            assert_eq!(done.stdout.is_empty(), !out, "{closed} {how}: {done:?}");
            assert_eq!(done.stderr.is_empty(), !reports, "{closed} {how}: {done:?}");
        }
        let own = std::fs::read_to_string(program.folder.path().join("own.txt"));
        assert_eq!(own.unwrap(), "mine\n", "{closed}");
    }
}

#[test]
fn a_console_whose_output_is_full_does_not_stop_its_tasks() {
    let program = Program::new();
    let folder = program.folder.path();
    let (reads, writes) = std::io::pipe().unwrap();
    let filled = fill(&writes);
    let mut command = Command::new("timeout");
    command.arg("60").arg(upcall()).args(["pvm", "console", "--path"]).arg(folder);
    command.current_dir(folder).env("HOME", folder).stdin(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.stdout(writes).spawn().unwrap();
    drop(command);
    child.stdin.take().unwrap().write_all(b"spawn -2 -> reports own\nquit\n").unwrap();
    let own = folder.join("own.txt");
    while std::fs::read_to_string(&own).unwrap_or_default() != "mine\n" {
        assert!(child.try_wait().unwrap().is_none(), "it has ended, or hangs");
        std::thread::sleep(Duration::from_millis(10));
    }
    let said = String::from_utf8(rest(reads, filled)).unwrap();
    assert!(child.wait().unwrap().success(), "{said}");
    assert!(said.contains("2 successful") && said.contains(" EOF\n"), "{said}");
}
