//! Balancing, evacuations, and the number of processes in use, as commands show and change them.

mod command;

use command::running::{Programs, said, within};
use command::upcall;
use serde_json::Value;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// A folder with the program, and with names of its own.
struct Place {
    programs: Programs,
    program: PathBuf,
}

/// A machine whose tasks pass numbers around until they are to stop. Killed on drop.
struct Machine<'a> {
    place: &'a Place,
    child: Option<Child>,
}

impl Drop for Machine<'_> {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Place {
    fn new() -> Self {
        let programs = Programs::new();
        let program = programs.compiled("images/balance.c");
        Self { programs, program }
    }

    fn folder(&self) -> &Path {
        self.programs.0.path()
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(upcall());
        command.arg("pvm").args(words).current_dir(self.folder());
        command.env("UPCALL_DIR", self.folder().join("names"));
        command
    }

    fn asked(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }

    /// Starts a machine with a ring of six tasks, and waits until all of them are there.
    fn ring(&self, options: &[&str], args: &[&str]) -> Machine<'_> {
        self.ring_in(self.command(&[]), options, args)
    }

    fn ring_in(&self, mut command: Command, options: &[&str], args: &[&str]) -> Machine<'_> {
        let _ = std::fs::remove_file(self.folder().join("stop"));
        command.args(["run", "-n", "6"]).args(options).arg(&self.program);
        command.args(["ring", "stop"]).args(args);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let machine = Machine { place: self, child: Some(child) };
        within(|| {
            let seen = machine.seen_if_there()?;
            let tasks = seen["tasks"].as_array()?;
            let begun = tasks.iter().all(|task| task["pinned"] != "it has not begun to run");
            (tasks.len() == 6 && begun).then_some(())
        });
        machine
    }
}

impl Machine<'_> {
    /// What `upcall pvm top` shows, once the machine answers.
    fn seen_if_there(&self) -> Option<Value> {
        let done = self.place.asked(&["top", "--once", "--json", "--interval", "0.02"]);
        serde_json::from_slice(&done.stdout).ok()
    }

    /// Number of tasks in each process, and the states of the processes.
    fn tasks(&self) -> (Vec<u64>, Vec<String>) {
        let seen = self.seen_if_there().unwrap();
        let all = seen["processes"].as_array().unwrap();
        let count = |one: &Value| one["tasks"].as_u64().unwrap();
        let state = |one: &Value| one["state"].as_str().unwrap().to_owned();
        (all.iter().map(count).collect(), all.iter().map(state).collect())
    }

    /// Changes something, and checks the exit code and what is said.
    fn asks(&self, words: &[&str], code: i32, expected: &str) {
        let done = self.place.asked(words);
        let said = said(&done);
        assert_eq!(done.status.code(), Some(code), "{words:?}: {said}");
        assert!(said.contains(expected), "{words:?}: {said}");
    }

    /// Stops the tasks, and checks that no message was lost or doubled.
    fn ends_well(mut self) {
        File::create(self.place.folder().join("stop")).unwrap();
        let done = self.child.take().unwrap().wait_with_output().unwrap();
        let said = said(&done);
        let count = said.matches(": done\n").count();
        assert!(done.status.success() && count == 6 && !said.contains("wrong"), "{said}");
    }
}

fn states(all: [&str; 2]) -> Vec<String> {
    all.map(String::from).to_vec()
}

/// The program ends when tasks of both kinds are in both processes.
fn balances(options: &[&str]) {
    let place = Place::new();
    std::fs::write(place.folder().join("first"), "0").unwrap();
    let mut command = place.command(&["run", "-n", "8", "--place", "first"]);
    let done = command.args(options).arg(&place.program).arg("uneven").output().unwrap();
    let said = said(&done);
    let count = said.matches(": done\n").count();
    assert!(done.status.success() && count == 8 && !said.contains("not balanced"), "{said}");
}

#[test]
fn tasks_of_one_process_are_distributed_anew() {
    balances(&["--procs", "2", "--balance", "greedy"]);
}

#[test]
fn tasks_of_an_overloaded_process_go_to_another() {
    balances(&["--procs", "2", "--balance", "refine"]);
}

#[test]
fn tasks_are_balanced_with_an_eye_on_their_messages() {
    balances(&["--procs", "2", "--balance", "comm"]);
}

#[test]
fn an_evacuated_process_has_no_tasks_until_it_is_readmitted() {
    let place = Place::new();
    let machine = place.ring(&["--procs", "2"], &[]);
    assert_eq!(machine.tasks(), (vec![3, 3], states(["in use", "in use"])));
    for (evacuated, other) in [("1", "0"), ("0", "1")] {
        let moved = format!("tasks run in process {other}; 3 tasks have moved\n");
        machine.asks(&["evacuate", evacuated], 0, &moved);
        let expected = match evacuated {
            "1" => (vec![6, 0], states(["in use", "evacuated"])),
            _ => (vec![0, 6], states(["evacuated", "in use"])),
        };
        assert_eq!(machine.tasks(), expected);
        machine.asks(&["evacuate", other], 4, &format!("without process {other} there is none"));
        let moved = "tasks run in processes 0, 1; 3 tasks have moved\n";
        machine.asks(&["evacuate", evacuated, "--undo"], 0, moved);
        assert_eq!(machine.tasks(), (vec![3, 3], states(["in use", "in use"])));
    }
    machine.asks(&["evacuate", "2"], 4, "there is no process 2");
    machine.ends_well();
}

#[test]
fn a_pinned_task_stays_in_an_evacuated_process_and_the_command_says_why() {
    let place = Place::new();
    let machine = place.ring(&["--procs", "2", "--balance", "refine"], &["4"]);
    let stays = "(balance) stays in process 1: it has asked not to be moved\n";
    machine.asks(&["evacuate", "1"], 1, stays);
    assert_eq!(machine.tasks(), (vec![5, 1], states(["in use", "evacuated"])));
    let seen = machine.seen_if_there().unwrap();
    let pinned = seen["tasks"].as_array().unwrap().iter().find(|task| task["rank"] == 1).unwrap();
    assert_eq!(
        (&pinned["pinned"], &pinned["moves"]),
        (&"it has asked not to be moved".into(), &0.into())
    );
    let moved = seen["tasks"].as_array().unwrap().iter().filter(|task| task["moves"] == 1).count();
    assert_eq!((moved, &seen["balancer"]), (2, &"refine".into()));
    let text = said(&place.asked(&["top", "--once", "--interval", "0.02"]));
    assert!(text.contains(", balanced by refine\n") && text.contains("; stays here: it has asked"));
    machine.ends_well();
}

#[test]
fn a_range_of_processes_begins_with_the_least_and_is_changed_by_command() {
    let place = Place::new();
    let machine = place.ring(&["--procs", "1-2"], &[]);
    assert_eq!(machine.tasks(), (vec![6, 0], states(["in use", "spare"])));
    machine.asks(&["procs", "2"], 0, "tasks run in processes 0, 1; 3 tasks have moved\n");
    assert_eq!(machine.tasks(), (vec![3, 3], states(["in use", "in use"])));
    machine.asks(&["procs", "1"], 0, "tasks run in process 0; 3 tasks have moved\n");
    assert_eq!(machine.tasks(), (vec![6, 0], states(["in use", "spare"])));
    machine.asks(&["procs", "3"], 4, "it has 2 processes: give a number from 1 to 2");
    machine.ends_well();
}

#[test]
fn a_machine_of_one_process_has_none_to_change() {
    let place = Place::new();
    let machine = place.ring(&[], &[]);
    for words in [&["procs", "1"][..], &["evacuate", "0"]] {
        machine.asks(words, 4, "it has only one process: start it with --procs");
    }
    machine.ends_well();
}

/// The first two processors on which this process may run.
fn two_processors() -> Option<[String; 2]> {
    let allowed = rustix::thread::sched_getaffinity(None).unwrap();
    let all = (0..rustix::thread::CpuSet::MAX_CPU).filter(|one| allowed.is_set(*one));
    let mut all = all.map(|one| one.to_string());
    Some([all.next()?, all.next()?])
}

#[test]
fn a_balanced_machine_uses_as_many_processes_as_there_are_processors() {
    let Some([first, second]) = two_processors() else {
        eprintln!("skipped: needs two processors");
        return;
    };
    let (place, both) = (Place::new(), format!("{first},{second}"));
    if !Command::new("taskset")
        .args(["-c", &both, "true"])
        .status()
        .is_ok_and(|done| done.success())
    {
        eprintln!("skipped: needs taskset (util-linux)");
        return;
    }
    let mut command = Command::new("taskset");
    command.args(["-c", &first]).arg(upcall()).arg("pvm").current_dir(place.folder());
    command.env("UPCALL_DIR", place.folder().join("names"));
    let machine = place.ring_in(command, &["--procs", "1-2", "--balance", "refine"], &["-1"]);
    let process = machine.seen_if_there().unwrap()["machine"].to_string();
    let confine = |processors: &str| {
        let done = Command::new("taskset").args(["-a", "-p", "-c", processors, &process]).output();
        assert!(done.unwrap().status.success());
    };
    let used =
        |expected: [&str; 2]| within(|| (machine.tasks().1 == states(expected)).then_some(()));
    used(["in use", "spare"]);
    confine(&both);
    used(["in use", "in use"]);
    confine(&second);
    used(["in use", "spare"]);
    within(|| (machine.tasks().0 == [6, 0]).then_some(()));
    machine.ends_well();
}
