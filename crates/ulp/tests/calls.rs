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
        let name = rest.split([',', ')']).next()?;
        Some(Row { class, number: number.parse().ok()?, name })
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
    /// Which of these is told is not promised where several arguments are wrong.
    const WRONG: [i32; 7] = [
        libc::EBADF,
        libc::EINVAL,
        libc::EFAULT,
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
        (Failed(error), _) => error == i64::from(libc::ENOSYS) && PARTLY.contains(&number),
        _ => false,
    }
}

/// Calls of which a part is refused.
const PARTLY: [i64; 4] =
    [libc::SYS_personality, libc::SYS_arch_prctl, libc::SYS_prctl, libc::SYS_rseq];

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
