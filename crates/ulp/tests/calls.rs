//! Every system call, made by a program in a slot without the archive: by the one table.

mod common;

use common::{apart_with, compile, over, words};
use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::Path;
use std::process::Command;
use upcall_ulp::{
    ASK_ASIDE, ASK_FOLDER, ASK_OWN, ASK_READY, ASK_SLEEP, Image, NOT_ASIDE, StopReason, Ulp,
    UlpRequest, Worker,
};

/// A row of the table.
#[derive(Debug)]
struct Row<'a> {
    class: &'a str,
    number: i64,
    name: &'a str,
    /// Its arguments that are descriptors, or why it is refused.
    detail: &'a str,
}

/// The highest number that is tried: the kernel's own numbers end before.
const MOST: i64 = 600;
/// Number of sets of arguments that the program knows.
const SETS: usize = 5;
/// What the program reports of a call that has ended it.
const ENDED: i64 = 1 << 62;

fn table() -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("image/calls.def")).unwrap()
}

fn rows(table: &str) -> Vec<Row<'_>> {
    let row = |line| {
        let (class, rest): (&str, &str) = str::split_once(line, '(')?;
        let (number, rest) = rest.split_once(", ")?;
        let (name, detail) =
            rest.trim_end_matches(')').split_once(", ").unwrap_or((rest.trim_end_matches(')'), ""));
        Some(Row { class, number: number.parse().ok()?, name, detail })
    };
    table.lines().filter_map(row).collect()
}

/// What a call did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Done,
    Failed(i64),
    Ended,
    Waits,
}

impl From<i64> for Outcome {
    fn from(result: i64) -> Self {
        match result {
            ENDED => Self::Ended,
            -4095..0 => Self::Failed(-result),
            _ => Self::Done,
        }
    }
}

/// Makes a call in a task. Also returns the address of its data, if it could report.
fn as_task(worker: &mut Worker, image: &Image, number: i64, how: usize) -> (Outcome, u64) {
    let args = words(&["every", &number.to_string(), &how.to_string()]);
    let mut ulp = Ulp::load(image, &args, &[]).unwrap();
    loop {
        match worker.resume(&mut ulp) {
            StopReason::Asks(UlpRequest { what: ASK_OWN, args }) => {
                assert_eq!(args[0] as i64, number);
                return ((args[1] as i64).into(), args[2]);
            }
            StopReason::Asks(UlpRequest { what: ASK_ASIDE, .. }) => ulp.answer(-(NOT_ASIDE as i64)),
            StopReason::Asks(UlpRequest { what: ASK_FOLDER, args }) => {
                // SAFETY: takes a number.
                let done = unsafe { libc::fchdir(args[0] as i32) };
                let error = std::io::Error::last_os_error().raw_os_error().unwrap();
                ulp.answer(if done < 0 { -i64::from(error) } else { 0 });
            }
            StopReason::Asks(UlpRequest { what: ASK_SLEEP | ASK_READY, .. }) => {
                return (Outcome::Waits, 0);
            }
            StopReason::Asks(_) => ulp.answer(0),
            StopReason::Interrupted => {}
            StopReason::Ended { .. } | StopReason::Crashed(_) => return (Outcome::Ended, 0),
        }
    }
}

/// Makes calls in processes, which are what tasks are compared with.
fn as_processes(
    folder: &Path,
    calls: &[(i64, usize)],
    data: u64,
) -> HashMap<(i64, usize), Outcome> {
    let program = folder.join("process");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/images/every.c");
    let mut gcc = Command::new("gcc");
    gcc.args(["-O1", "-w", "-DPROCESS", "-o"]).arg(&program).arg(source);
    assert!(gcc.status().unwrap().success());
    let mut all = Command::new(program);
    all.arg(data.to_string());
    all.args(calls.iter().flat_map(|(number, how)| [number.to_string(), how.to_string()]));
    let done = all.output().unwrap();
    assert!(done.status.success(), "{done:?}");
    let mut results = HashMap::new();
    for line in String::from_utf8(done.stdout).unwrap().lines() {
        let words = line.split(' ').map(|word| word.parse::<i64>().unwrap()).collect::<Vec<_>>();
        results.insert((words[0], words[1] as usize), words[2].into());
    }
    results
}

#[test]
fn every_system_call_is_as_in_a_process_or_refused_with_its_name() {
    let table = table();
    let rows = rows(&table);
    let look = |said: &str| {
        for Row { name, .. } in rows.iter().filter(|row| row.class == "REFUSED") {
            let refusals = said.matches(&format!("upvm: {name} is refused in a task: ")).count();
            assert!(refusals >= SETS, "{name}: {refusals}\n{said}");
        }
        assert!(said.contains("upvm: system call 335 is refused in a task: "), "{said}");
    };
    let Some(folder) =
        apart_with("every_system_call_is_as_in_a_process_or_refused_with_its_name", look)
    else {
        return;
    };
    let image = Image::open(&compile(folder.path(), "every")).unwrap();
    let mut worker = Worker::begin().unwrap();
    if let Some(reason) = worker.not_caught() {
        eprintln!("skipped: {reason}");
        over(folder);
    }
    let refused = |number| {
        rows.iter().find(|row| row.number == number).is_none_or(|row| row.class == "REFUSED")
    };
    let all = (0..MOST).flat_map(|number| (0..SETS).map(move |how| (number, how)));
    let (kept, others): (Vec<_>, Vec<_>) = all.partition(|(number, _)| !refused(*number));
    for (number, how) in others {
        let (outcome, _) = as_task(&mut worker, &image, number, how);
        assert_eq!(outcome, Outcome::Failed(libc::ENOSYS.into()), "{number} with {how}");
    }
    let left_out = |call: &(i64, usize)| LEFT_OUT.contains(&call.0) || DESTROYS.contains(call);
    let kept = kept.into_iter().filter(|call| !left_out(call)).collect::<Vec<_>>();
    let (_, data) = as_task(&mut worker, &image, libc::SYS_getpid, 0);
    let processes = as_processes(folder.path(), &kept, data);
    let mut differ = Vec::new();
    for call in kept {
        let (outcome, _) = as_task(&mut worker, &image, call.0, call.1);
        if !is_as(outcome, processes[&call], call.0) {
            let name = rows.iter().find(|row| row.number == call.0).map_or("", |row| row.name);
            differ.push(format!("{name} {call:?}: {outcome:?}, {:?}", processes[&call]));
        }
    }
    assert!(differ.is_empty(), "{}", differ.join("\n"));
    over(folder)
}

/// Returns `true` if a task's outcome is as a process's.
fn is_as(task: Outcome, process: Outcome, number: i64) -> bool {
    use Outcome::{Ended, Failed};
    /// Where several arguments are wrong, the kernel promises none of these errors.
    const WRONG: [i32; 8] = [
        libc::EBADF,
        libc::EINVAL,
        libc::EFAULT,
        libc::ENOMEM,
        libc::ENOTSOCK,
        libc::EOPNOTSUPP,
        libc::ESRCH,
        libc::ECHILD,
    ];
    let wrong = |outcome| WRONG.iter().any(|error| outcome == Failed((*error).into()));
    match (task, process) {
        (task, process) if task == process => true,
        // The library reads the program's memory itself.
        (Ended, Failed(error)) if error == i64::from(libc::EFAULT) => true,
        (task, process) if wrong(task) && wrong(process) => true,
        // Some of what these calls do is refused.
        (Failed(error), _) => PARTLY.contains(&(number, error as i32)),
        _ => false,
    }
}

/// Calls of which a part is refused, and with which error.
const PARTLY: [(i64, i32); 7] = [
    (libc::SYS_personality, libc::ENOSYS),
    (libc::SYS_arch_prctl, libc::ENOSYS),
    (libc::SYS_prctl, libc::ENOSYS),
    (libc::SYS_rseq, libc::ENOSYS),
    (libc::SYS_setrlimit, libc::EPERM),
    (libc::SYS_prlimit64, libc::EPERM),
    // A task may only set the priority that its process has: not 0 if that was started by nice.
    (libc::SYS_setpriority, libc::EPERM),
];

/// Calls that would never return, or leave something behind.
const LEFT_OUT: [i64; 5] =
    [libc::SYS_pause, libc::SYS_select, libc::SYS_pselect6, libc::SYS_ppoll, libc::SYS_msgget];

/// Calls whose length would reach over all of the task's own memory.
const DESTROYS: [(i64, usize); 3] =
    [(libc::SYS_mprotect, 3), (libc::SYS_munmap, 3), (libc::SYS_getrandom, 3)];

#[test]
fn the_table_has_each_number_and_name_once() {
    let table = table();
    let rows = rows(&table);
    let numbers = rows.iter().map(|row| row.number).collect::<HashSet<_>>();
    let names = rows.iter().map(|row| row.name).collect::<HashSet<_>>();
    assert_eq!((numbers.len(), names.len()), (rows.len(), rows.len()));
    assert!(rows.is_sorted_by_key(|row| row.number));
    // The numbers that this computer's C library knows.
    let known = fs::read_to_string("/usr/include/x86_64-linux-gnu/asm/unistd_64.h").unwrap();
    for line in known.lines().filter_map(|line| line.strip_prefix("#define __NR_")) {
        let (name, number) = line.split_once(' ').unwrap();
        let row = rows.iter().find(|row| row.name == name);
        assert_eq!(row.map(|row| row.number.to_string()), Some(number.to_owned()), "{name}");
    }
}

/// The texts of image/reasons.h, by their names.
fn reasons() -> HashMap<String, String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("image/reasons.h");
    let text = fs::read_to_string(path).unwrap().replace("\\\n", "").replace("\" \"", "");
    let define = |line: &str| {
        let (name, reason) = line.strip_prefix("#define ")?.split_once(' ')?;
        let reason = reason.split('"').skip(1).step_by(2).collect::<String>();
        Some((name.to_owned(), reason))
    };
    text.lines().filter_map(define).collect()
}

/// Names, in lines of at most 100 columns.
fn listed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let (mut all, mut column) = (String::new(), 0);
    for name in names {
        let more = name.len() + 3;
        if column > 0 && column + more > 100 {
            all.pop();
            all.push('\n');
            column = 0;
        }
        all += &format!("`{name}` ");
        column += more;
    }
    all.trim_end().to_owned()
}

/// The page of the book about the table.
fn page() -> String {
    let (table, reasons) = (table(), reasons());
    let rows = rows(&table);
    let of = |class: &'static str| rows.iter().filter(move |row| row.class == class);
    let mut page = PAGE.to_owned();
    for (class, text) in CLASSES {
        page += &format!("\n## {text}\n\n{}\n", listed(of(class).map(|row| row.name)));
    }
    page += "\n## Refused\nEach fails with `ENOSYS`, and a line on standard error says so, once \
             for each number. So does every\nnumber that is not on this page.\n";
    let mut done = HashSet::new();
    for row in of("REFUSED").filter(|row| done.insert(row.detail)) {
        let names = of("REFUSED").filter(|one| one.detail == row.detail).map(|one| one.name);
        page += &format!("\n{}:\n\n{}\n", sentence(&reasons[row.detail]), listed(names));
    }
    page
}

/// A reason as the beginning of a paragraph, in lines of at most 100 columns.
fn sentence(reason: &str) -> String {
    let (mut all, mut column) = (String::new(), 0);
    for word in reason.split(' ') {
        if column + word.len() > 98 {
            all.pop();
            all.push('\n');
            column = 0;
        }
        all += word;
        all.push(' ');
        column += word.len() + 1;
    }
    let all = all.trim_end();
    all[..1].to_uppercase() + &all[1..]
}

const PAGE: &str = "\
<!-- Made of crates/ulp/image/calls.def by its test (crates/ulp/tests/calls.rs). -->
# System calls of PVM tasks

Many tasks live in one process, and to the kernel a system call of one is a call of that process. So
each system call of a task goes by the table on this page, also a call by `syscall`, by inline
assembly, or through a function of libc that Upcall does not replace. The kernel reports the last
two kinds ([ulps.md](../explanation/ulps.md#system-calls)), which takes some 2 µs for each. On Linux
before 5.11 it cannot. Then the run says so when it starts, and such calls are not checked.

`cargo test -p upcall-ulp --test calls` makes every call as a task and as a process, each with
several sets of arguments, and compares the outcomes.
";

const CLASSES: [(&str, &str); 4] = [
    (
        "VIRTUAL",
        "A task's own\nUpcall does these, with the task's own descriptors, folder, signals, \
         children and number. A call\nthat has to wait lets other tasks run.",
    ),
    (
        "PASSED",
        "The kernel's\nThe kernel does these at once: they act only on what their arguments name. \
         Descriptors are the\ntask's own.",
    ),
    (
        "OPENS",
        "The kernel's, for descriptors\nThe same, and the result is a descriptor of the task's.",
    ),
    (
        "ASIDE",
        "On another thread\nThese may have to wait where nothing says when they can go on. Other \
         tasks run in the meantime.",
    ),
];

#[test]
fn the_page_of_the_book_is_made_of_the_table() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/system-calls.md");
    let Some(true) = path.parent().map(Path::exists) else { return }; // a package by itself
    let made = page();
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        fs::write(&path, &made).unwrap();
    }
    assert!(
        fs::read_to_string(&path).unwrap_or_default() == made,
        "docs/reference/system-calls.md is out of date: \
         UPDATE_SNAPSHOTS=1 cargo test -p upcall-ulp --test calls"
    );
}

#[test]
fn helpers_run_the_calls_that_go_aside() {
    let table = table();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/aside.rs");
    let source = fs::read_to_string(source).unwrap();
    for row in rows(&table).iter().filter(|row| row.class == "ASIDE" || row.name == "futex") {
        assert!(source.contains(&format!("    libc::SYS_{},\n", row.name)), "{}", row.name);
    }
}
