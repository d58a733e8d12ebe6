//! Processes that are killed or stopped at each step of a move.
//!
//! The tasks exchange numbered messages all the time (`images/moves/pairs.c`): those that live lose
//! none, and get none twice.

#![cfg(debug_assertions)]

use crate::machine::{Machine, compiled, send};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// When a process is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Commit {
    Before,
    After,
}
use Commit::{After, Before};

/// Whether the three processes are on one host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spread {
    OneHost,
    ThreeHosts,
}
use Spread::{OneHost, ThreeHosts};

/// A process that is killed at a step of a move from one process to another, of three.
#[derive(Clone, Copy, Debug)]
struct Kill {
    spread: Spread,
    from: usize,
    to: usize,
    rank: usize,
    label: &'static str,
    when: Commit,
}

/// The steps of each process: the first one, the old one, the new one, and another one.
const FIRST: [(&str, Commit); 4] =
    [("Move", Before), ("Leaving", Before), ("Settled", After), ("Report", After)];
const OLD: [(&str, Commit); 7] = [
    ("MayLeave", Before),
    ("Begun", Before),
    ("Freeze", Before),
    ("Take", Before),
    ("SendPart", Before),
    ("Free", After),
    ("MarkedAfter", After),
];
const NEW: [(&str, Commit); 9] = [
    ("HasPages", Before),
    ("MarkedBefore", Before),
    ("Prepare", Before),
    ("Fill", Before),
    ("Finish", Before),
    ("Ready", Before),
    ("Run", After),
    ("Place:kill:2", After),
    ("Over", After),
];
const OTHER: [(&str, Commit); 2] = [("MarkedBefore", Before), ("MarkedAfter", After)];
/// Further steps where each process is on another host.
const FAR_OLD: [(&str, Commit); 1] = [("Flush", Before)];
const FAR: [(&str, Commit); 1] = [("Flushed", Before)];

/// All kills during moves between these processes. The first process sends no messages to itself.
fn kills(spread: Spread, ways: &[(usize, usize)]) -> Vec<Kill> {
    let mut all = Vec::new();
    for (from, to) in ways.iter().copied() {
        let other = 3 - from - to;
        let mut add = |rank, steps: &[(&'static str, Commit)]| {
            for (label, when) in steps {
                let is_own = match *label {
                    "Begun" | "Ready" | "Over" | "Flushed" => rank == 0,
                    // No process reads another one's memory there.
                    "HasPages" => spread == ThreeHosts,
                    "Move" => from == 0,
                    _ => false,
                };
                if !is_own {
                    all.push(Kill { spread, from, to, rank, label, when: *when });
                }
            }
        };
        if spread == ThreeHosts {
            add(from, &FAR_OLD);
            add(to, &FAR);
            add(other, &FAR);
        }
        add(from, &OLD);
        add(to, &NEW);
        if other > 0 {
            add(other, &OTHER);
        }
        add(0, &FIRST);
    }
    all
}

/// A machine with two tasks in process `from`, one in `to`, and one in the third process.
fn pairs(
    program: &Path,
    spread: Spread,
    (from, to): (usize, usize),
    fault: &str,
) -> (Machine, Vec<String>) {
    let places = [from, from, to, 3 - from - to];
    let variables = [("UPCALL_PVM_FAULT", fault)];
    let mut machine = match spread {
        OneHost => Machine::start(&places, 3, program, &[], &variables),
        ThreeHosts => Machine::over_hosts(&places, program, &[], &variables),
    };
    let mut tids = machine.ready(4).into_iter().map(|(_, tid)| tid).collect::<Vec<_>>();
    // In the order of the numbers of the tasks: those of a process have ascending ids.
    let mut ordered = Vec::new();
    for rank in places {
        let at = tids.iter().position(|tid| machine.rank(tid) == Some(rank)).unwrap();
        ordered.push(tids.remove(at));
    }
    (machine, ordered)
}

fn check(program: &Path, kill: Kill) {
    let Kill { spread, from, to, rank, label, when } = kill;
    let fault = match label.split_once(':') {
        None => format!("{rank}:{label}:kill"),
        Some((label, rest)) => format!("{rank}:{label}:{rest}"),
    };
    let (mut machine, tids) = pairs(program, spread, (from, to), &fault);
    let (code, text) = machine.run(&["move", &tids[0], &to.to_string()]);
    machine.line("KILL\" at ");
    if rank == 0 {
        // Without the first process there is no machine.
        assert_ne!(code, Some(0), "{kill:?}: {text}");
        assert_eq!(machine.end().0, None, "{kill:?}");
        return;
    }
    let mover = if when == Before { from } else { to };
    let places = [mover, from, to, 3 - from - to];
    let ended = places.iter().filter(|place| **place == rank).count();
    let moves = rank != mover && (rank != to) && (when == After || rank != from);
    assert_eq!(code == Some(0), moves, "{kill:?}: {text}");
    let host = if spread == ThreeHosts { [" on host b", " on host c"][rank - 1] } else { "" };
    machine.line(&format!("process {rank}{host} has ended, and {ended} tasks with it"));
    let living = (0..4).filter(|task| places[*task] != rank).collect::<Vec<_>>();
    if living[0] == 0 {
        let third = (0..3).find(|one| *one != rank && machine.rank(&tids[0]) != Some(*one));
        machine.moves_at_last(&tids[0], third.unwrap());
    }
    assert_eq!(machine.run(&["sig", "10", &tids[*living.last().unwrap()]]).0, Some(0));
    let (_, said) = machine.end();
    let all = said.join("\n");
    assert!(!all.contains("FAILED"), "{kill:?}: {all}");
    for task in 0..4 {
        let is_well = said.contains(&format!("{task} is well"));
        assert_eq!(is_well, living.contains(&task), "{kill:?}: task {task}: {all}");
    }
}

#[test]
fn a_process_may_be_killed_at_any_step() {
    kill_all(OneHost, &[(1, 2)]);
}

#[test]
fn a_process_may_be_killed_at_any_step_between_hosts() {
    kill_all(ThreeHosts, &[(1, 2)]);
}

#[test]
#[ignore = "kills many machines"]
fn a_process_may_be_killed_at_any_step_between_hosts_where_one_is_the_first() {
    kill_all(ThreeHosts, &[(0, 1), (1, 0)]);
}

#[test]
#[ignore = "kills many machines"]
fn a_process_may_be_killed_at_any_step_where_one_is_the_first() {
    kill_all(OneHost, &[(0, 1), (1, 0)]);
}

fn kill_all(spread: Spread, ways: &[(usize, usize)]) {
    let folder = tempfile::tempdir().unwrap();
    let program = compiled(folder.path(), "pairs");
    let (kills, next) = (kills(spread, ways), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while let Some(kill) = kills.get(next.fetch_add(1, Ordering::Relaxed)) {
                    check(&program, *kill);
                }
            });
        }
    });
}

/// A process that stops for longer than a move may take ends no task, and loses no message.
#[test]
fn a_process_may_be_stopped_for_longer_than_a_move_may_take() {
    let folder = tempfile::tempdir().unwrap();
    let program = &compiled(folder.path(), "pairs");
    std::thread::scope(|scope| {
        for (rank, label) in [(1, "Take"), (2, "HasPages"), (2, "Finish"), (2, "Run")] {
            scope.spawn(move || {
                let (mut machine, tids) =
                    pairs(program, OneHost, (1, 2), &format!("{rank}:{label}:stop"));
                let mut command = machine.command(&["move", &tids[0], "2"]);
                let moving = std::thread::spawn(move || command.output().unwrap());
                let process = machine.process(rank);
                machine.stopped(process);
                if label == "Run" {
                    // The move is settled, and over when the process goes on.
                    std::thread::sleep(Duration::from_millis(5500));
                    send(process, "-CONT");
                    assert_eq!(moving.join().unwrap().status.code(), Some(0));
                } else {
                    let text = moving.join().unwrap().stderr;
                    let text = String::from_utf8(text).unwrap();
                    assert!(text.contains("a process did not answer in time; the task goes on"));
                    send(process, "-CONT");
                    machine.moves_at_last(&tids[0], 2);
                }
                machine.moves(&tids[0], 0);
                assert_eq!(machine.run(&["sig", "10", &tids[3]]).0, Some(0));
                let said = machine.ends_well();
                assert_eq!(said.iter().filter(|line| line.ends_with("is well")).count(), 4);
            });
        }
    });
}
