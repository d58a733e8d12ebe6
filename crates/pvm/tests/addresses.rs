//! Tests where the memory of tasks and messages lies.

mod command;

use command::upcall;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use upcall_ulp::tools::HEADERS;

/// Where arenas begin and end, and their size.
const ARENAS: u64 = if cfg!(upcall_asan) { 31 << 40 } else { 15 << 40 };
const END: u64 = ARENAS + (4 << 40);
const ARENA: u64 = 16 << 30;

/// The exit code of a shell that cannot set the limit.
const NO_LIMIT: i32 = 77;

struct Program(tempfile::TempDir);

impl Program {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in HEADERS {
            fs::write(folder.path().join(name), text).unwrap();
        }
        let mut upvmcc = Command::new(env!("CARGO_BIN_EXE_upvmcc"));
        upvmcc.args(["-O1", "-w", "-I", env!("OUT_DIR"), "-I"]).arg(folder.path());
        upvmcc.arg("-o").arg(folder.path().join("addresses"));
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/images/addresses.c");
        let done = upvmcc.arg(source).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        Self(folder)
    }

    /// Runs it as the words say, which end with options of `upcall pvm run`.
    ///
    /// Returns what each task has seen, or `None` if its limit cannot be set.
    fn seen(&self, before: &[&str], options: &[&str], args: &[&str]) -> Option<Vec<Seen>> {
        let mut command = Command::new("timeout");
        command.arg("60").args(before).arg(upcall()).args(["pvm", "run"]).args(options);
        let files = self.0.path().join("seen");
        command.arg(self.0.path().join("addresses")).arg(&files).args(args);
        let done = command.output().unwrap();
        if done.status.code() == Some(NO_LIMIT) {
            return None;
        }
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{before:?} {options:?}: {} {said}", done.status);
        let file = |number| PathBuf::from(format!("{}.{number}", files.display()));
        let seen = (0..).map(file).map_while(|file| {
            let text = fs::read_to_string(&file).ok()?;
            fs::remove_file(file).unwrap();
            Some(Seen::new(&text))
        });
        Some(seen.collect())
    }
}

/// What a task has seen of its process.
#[derive(Debug)]
struct Seen {
    /// The soft limit of the stack, in bytes.
    stack: String,
    /// Where mappings begin.
    mappings: Vec<u64>,
}

impl Seen {
    fn new(text: &str) -> Self {
        let limit = text.lines().find_map(|line| line.strip_prefix("Max stack size")).unwrap();
        let stack = limit.split_whitespace().next().unwrap().to_owned();
        let start = |line: &str| u64::from_str_radix(line.split_once('-')?.0, 16).ok();
        let mappings = text.lines().filter_map(start).collect::<Vec<_>>();
        assert!(mappings.len() > 10, "{text}");
        Self { stack, mappings }
    }

    fn between(&self, start: u64, end: u64) -> impl Iterator<Item = u64> {
        self.mappings.iter().copied().filter(move |at| (start..end).contains(at))
    }

    /// Numbers of the arenas in which something is mapped.
    fn arenas(&self) -> BTreeSet<u64> {
        self.between(ARENAS, END).map(|at| (at - ARENAS) / ARENA).collect()
    }
}

#[test]
fn a_large_limit_of_the_stack_is_lowered_so_that_nothing_else_comes_among_these_addresses() {
    let program = Program::new();
    let set = format!("ulimit -s $0 2>/dev/null || exit {NO_LIMIT}; exec \"$@\"");
    for (limit, lower) in
        [("unlimited", "8388608"), ("120000000000", "68719476736"), ("16384", "16777216")]
    {
        let Some(seen) = program.seen(&["sh", "-c", &set, limit], &["-n", "3"], &[]) else {
            eprintln!("skipped: this shell cannot set the limit of the stack to {limit}");
            continue;
        };
        assert_eq!(seen.len(), 3);
        for one in seen {
            assert_eq!(one.stack, lower, "{limit}");
            assert_eq!(one.between(END, 40 << 40).count(), 0, "{limit}: {one:x?}");
            assert_eq!(one.arenas(), BTreeSet::from([0]));
        }
    }
}

#[test]
fn slots_and_arenas_are_free_under_other_layouts_of_addresses() {
    let program = Program::new();
    for layout in [&["-L"][..], &["-R"], &["-R", "-L"]] {
        let before = [&["setarch"], layout].concat();
        let tried = Command::new("setarch").args(layout).arg("true").status();
        if !tried.is_ok_and(|tried| tried.success()) {
            eprintln!("skipped: {before:?} does not work here");
            continue;
        }
        let seen = program.seen(&before, &["-n", "3"], &[]).unwrap();
        assert!(seen.len() == 3 && seen.iter().all(|one| one.arenas() == BTreeSet::from([0])));
    }
}

#[test]
fn each_process_has_an_arena_of_its_own_and_gets_another_when_half_is_taken() {
    let program = Program::new();
    let options = ["-n", "4", "--procs", "2", "--place", "interleave"];
    let seen = program.seen(&[], &options, &[]).unwrap();
    let arenas = seen.iter().map(Seen::arenas).collect::<Vec<_>>();
    assert_eq!(arenas, [0, 1, 0, 1].map(|number| BTreeSet::from([number])));
    let options = ["-n", "3", "--procs", "3"];
    let seen = program.seen(&[], &options, &["more"]).unwrap();
    let arenas = seen.iter().map(Seen::arenas).collect::<Vec<_>>();
    assert_eq!(arenas.len(), 3);
    for (rank, arenas) in arenas.iter().enumerate() {
        assert!(arenas.contains(&(rank as u64)) && arenas.len() > 1, "{arenas:?}");
    }
    let all = arenas.iter().flatten().collect::<BTreeSet<_>>();
    assert_eq!(all.len(), arenas.iter().map(BTreeSet::len).sum::<usize>(), "{arenas:?}");
}
