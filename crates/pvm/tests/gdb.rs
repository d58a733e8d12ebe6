//! Tests of debuggers, and of crash reports without one. If there is no gdb, or it may not trace,
//! the test prints that and passes.

mod command;

use command::upcall;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// `images/watched.c`, compiled with debug information.
struct Watched {
    folder: tempfile::TempDir,
    program: PathBuf,
}

impl Watched {
    fn new(option: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("watched");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/images/watched.c");
        let mut upvmcc = Command::new(env!("CARGO_BIN_EXE_upvmcc"));
        let done = upvmcc.args([option, "-O0", "-o"]).arg(&program).arg(source).output().unwrap();
        assert!(done.status.success(), "{}", said(&done));
        Self { folder, program }
    }

    /// Appends the command `upcall pvm run -n 3 ./watched` to `of`.
    fn run<'a>(&self, of: &'a mut Command) -> &'a mut Command {
        of.arg(upcall()).args(["pvm", "run", "-n", "3"]).arg(&self.program)
    }

    /// Runs gdb with this script. Returns its output, or `None` if gdb cannot be used.
    fn gdb(&self, script: &str, what: impl FnOnce(&mut Command)) -> Option<String> {
        if Command::new("gdb").arg("--version").stdout(Stdio::null()).status().is_err() {
            eprintln!("SKIPPED: gdb is not installed (Debian: apt-get install gdb)");
            return None;
        }
        let file = self.folder.path().join("script");
        std::fs::write(&file, script).unwrap();
        let mut gdb = Command::new("timeout");
        // Without debuginfod, gdb does not ask whether to download symbols.
        gdb.args(["120", "gdb", "-nx", "-q", "-batch", "-iex", "set debuginfod enabled off"])
            // The kernel reports a task's own system calls by it (docs/how-to/debug-pvm.md).
            .args(["-iex", "handle SIGSYS nostop noprint", "-x"])
            .arg(file);
        what(&mut gdb);
        let said = said(&gdb.output().unwrap());
        if said.contains("ptrace: Operation not permitted")
            || said.contains("Could not trace the inferior process")
        {
            eprintln!("SKIPPED: gdb may not trace here: {said}");
            return None;
        }
        Some(said)
    }
}

fn said(done: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr))
}

/// Asserts that `said` contains all of these in this order.
fn assert_in_order(said: &str, all: &[&str]) {
    let mut rest = said;
    for one in all {
        let at = rest.find(one);
        let at = at.unwrap_or_else(|| panic!("{one:?} is missing, or too early:\n{said}"));
        rest = &rest[at + one.len()..];
    }
}

/// `watched.c:LINE` for the line with this text.
fn line(text: &str) -> String {
    let at = include_str!("images/watched.c")
        .lines()
        .position(|line| line.trim().ends_with(text))
        .unwrap();
    format!("watched.c:{}", at + 1)
}

/// A gdb command that prints the current task.
const LOOK: &str = "printf \"task %x is number %d\\n\", upcall_current_task, number\n";

#[test]
fn breakpoints_backtraces_and_variables_are_of_each_task() {
    let watched = Watched::new("-g");
    let (end, call) = (line("value += twice;"), line("sum = watched_last(sum);"));
    let script = format!(
        "set breakpoint pending on\nset language c\nbreak watched_work\nbreak {end}\n\
        break {call} if upcall_current_task == 0x40002\nrun\n\
        {LOOK}backtrace\nnext\nnext\nprintf \"local %d, twice %d\\n\", local, twice\n\
        finish\ncontinue\n\
        {LOOK}backtrace\ncontinue\n\
        {LOOK}up\nprint count\nprint all[2]\ncontinue\ncontinue\n\
        {LOOK}continue\n\
        {LOOK}next\nprint value\ncontinue\n\
        {LOOK}next\nprint value\ninfo sharedlibrary\ncontinue\n"
    );
    let Some(said) = watched.gdb(&script, |gdb| _ = watched.run(gdb.arg("--args"))) else { return };
    let (work, main) = (line("10 * value + number;"), line("sum = watched_work(7);"));
    let program = watched.program.to_str().unwrap();
    let all = [
        "Breakpoint 1 (watched_work) pending",
        &format!("Breakpoint 2 ({end}) pending"),
        // All three tasks exist.
        "Breakpoint 1.1, watched_work (value=7)",
        &work,
        "task 40001 is number 1",
        "#0  watched_work (value=7)",
        &work,
        "in main () at ",
        &main,
        "_start () from ",
        program,
        "local 71, twice 2",
        "Value returned is $1 = 73",
        "Breakpoint 1.2, watched_work (value=7)",
        "task 40002 is number 2",
        "#1 ",
        "in main () at ",
        "Breakpoint 1.3, watched_work (value=7)",
        "task 40003 is number 3",
        "= 3\n",
        &format!("= {}\n", 0x40003),
    ];
    assert_in_order(&said, &all);
    // The tasks have ended one after the other.
    let all = [
        "task 40003 is number 3",
        "task 40002 is number 2",
        &end,
        "= 80\n",
        "task 40001 is number 1",
        "= 75\n",
        program,
        "exited normally",
    ];
    assert_in_order(&said, &all);
}

#[test]
fn whoever_attaches_or_watches_a_crash_sees_the_same() {
    let watched = Watched::new("-g");
    let script = format!("run\n{LOOK}backtrace\ncontinue\n");
    let run = |gdb: &mut Command| _ = watched.run(gdb.env("WATCHED_CRASH", "1").arg("--args"));
    let Some(said) = watched.gdb(&script, run) else { return };
    let line = line("8 = number;");
    assert_in_order(
        &said,
        &[
            "received signal SIGSEGV",
            &line,
            "task 40002 is number 2",
            "#0 ",
            "watched_leave ()",
            "#1 ",
            "main ()",
        ],
    );

    let go = watched.folder.path().join("go");
    let mut waits =
        watched.run(Command::new("timeout").arg("120").env("WATCHED_WAITS", &go)).spawn().unwrap();
    let is_there = |number: usize| go.with_extension(number.to_string()).exists();
    while !(1..=3).all(is_there) {
        assert!(waits.try_wait().unwrap().is_none(), "the tasks have ended");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let children =
        std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", waits.id())).unwrap();
    let script = format!(
        "set language c\nbreak watched_leave if upcall_current_task == 0x40003\n\
        shell touch {}\ncontinue\n{LOOK}backtrace\ndetach\n",
        go.display()
    );
    let said = watched.gdb(&script, |gdb| _ = gdb.arg("-p").arg(children.trim()));
    // If no debugger could attach, the tasks have not been told to continue yet.
    std::fs::write(&go, []).unwrap();
    assert!(waits.wait().unwrap().success());
    let Some(said) = said else { return };
    assert_in_order(
        &said,
        &[
            "(3 locations)",
            "Breakpoint 1.3, watched_leave ()",
            "task 40003 is number 3",
            "in main ()",
        ],
    );
}

#[test]
fn a_crash_is_told_with_the_calls_that_led_to_it() {
    for (option, place, callers_place) in [
        ("-g", line("8 = number;"), line("watched_leave();")),
        ("-g0", String::new(), String::new()),
    ] {
        let watched = Watched::new(option);
        let done = watched
            .run(Command::new("timeout").arg("60").env("WATCHED_CRASH", "1"))
            .output()
            .unwrap();
        let said = said(&done);
        assert_eq!(done.status.code(), Some(1), "the others wait for ever: {said}");
        assert_in_order(
            &said,
            &[
                "t40002 (watched) has crashed: SIGSEGV",
                " in watched_leave+0x",
                &place,
                " in main+0x",
                &callers_place,
            ],
        );
        assert!(!said.contains("libc_start"), "{said}");
    }
}

#[test]
fn a_crash_in_what_all_tasks_share_is_told_with_its_callers() {
    let watched = Watched::new("-g");
    let packs = line("(int *)8, 1, 1);");
    let done =
        watched.run(Command::new("timeout").arg("60").env("WATCHED_PACKS", "1")).output().unwrap();
    let all = [
        "t40002 (watched) has crashed: SIGSEGV",
        "wanted 0x8",
        " in upvm_shared_pack+0x",
        " in watched_leave+0x",
        &packs,
        " in main+0x",
    ];
    assert_in_order(&said(&done), &all);
    let run = |gdb: &mut Command| _ = watched.run(gdb.env("WATCHED_PACKS", "1").arg("--args"));
    let Some(said) = watched.gdb(&format!("run\nup\n{LOOK}backtrace\ncontinue\n"), run) else {
        return;
    };
    let all = [
        "received signal SIGSEGV",
        "in upvm_shared_pack ()",
        "task 40002 is number 2",
        "#1 ",
        "watched_leave ()",
        "#2 ",
        "main ()",
    ];
    assert_in_order(&said, &all);
}
