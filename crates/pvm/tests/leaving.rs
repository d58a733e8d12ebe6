//! Hosts that are deleted while the machine balances: their tasks leave first. The hosts are one,
//! as in `wandering.rs`.

mod command;

use command::pretended::PretendedHosts;
use command::running::{KilledMachine, Programs, said, within};
use serde_json::Value;
use std::fs::File;
use std::process::{Child, Stdio};

/// A machine on the hosts `home` and `b`, with a ring of six tasks, half of them on `b`.
struct Ring {
    programs: Programs,
    hosts: PretendedHosts,
    child: KilledMachine,
}

impl Ring {
    /// Starts it, and waits until all tasks run. `pinned` is the number of a task that is pinned;
    /// those with odd numbers begin on `b`.
    fn start(options: &[&str], pinned: &str) -> Self {
        let (programs, hosts) = (Programs::new(), PretendedHosts::new());
        let program = programs.compiled("images/balance.c");
        let stop = programs.0.path().join("stop");
        let all = [&["-n", "6", "--place", "interleave"], options].concat();
        let args = ["ring", stop.to_str().unwrap(), pinned];
        let mut command = hosts.starts(&["b"], &all, &program, &args);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let ring = Self { programs, hosts, child: KilledMachine(Some(child)) };
        within(|| {
            let tasks = ring.tasks();
            let runs = |task: &&Value| task["pinned"] != "it has not begun to run";
            (tasks.iter().filter(runs).count() == 6).then_some(())
        });
        assert_eq!(ring.count("b"), 3);
        ring
    }

    fn asked(&self, words: &[&str]) -> (Option<i32>, String) {
        let done = self.hosts.command(words).output().unwrap();
        (done.status.code(), said(&done))
    }

    /// The tasks, as `upcall pvm ps` shows them.
    fn tasks(&self) -> Vec<Value> {
        let (_, text) = self.asked(&["ps", "--json"]);
        let all = serde_json::from_str::<Value>(&text).unwrap_or_default();
        all[0]["tasks"].as_array().cloned().unwrap_or_default()
    }

    /// Number of tasks on a host.
    fn count(&self, host: &str) -> usize {
        self.tasks().iter().filter(|task| task["host"] == host).count()
    }

    fn child(mut self) -> (Child, Programs) {
        (self.child.0.take().unwrap(), self.programs)
    }

    /// Lets the tasks end, and checks that no message was lost or doubled.
    fn ends_well(self) {
        File::create(self.programs.0.path().join("stop")).unwrap();
        let (child, _programs) = self.child();
        let done = child.wait_with_output().unwrap();
        let said = said(&done);
        let count = said.matches(": done\n").count();
        assert!(done.status.success() && count == 6 && !said.contains("wrong"), "{said}");
    }
}

#[test]
fn tasks_leave_a_host_before_it_is_deleted_if_the_machine_balances() {
    for balancer in ["greedy", "refine", "comm"] {
        let ring = Ring::start(&["--balance", balancer], "-1");
        assert_eq!(ring.asked(&["delete", "b"]), (Some(0), "host b has left\n".into()));
        let tasks = ring.tasks();
        assert_eq!(tasks.len(), 6, "{tasks:?}");
        assert!(tasks.iter().all(|task| task["rank"] == 0), "{tasks:?}");
        within(|| ring.hosts.far_processes().is_empty().then_some(()));
        // It may come back, and takes tasks then.
        let (status, text) = ring.asked(&["add", "b"]);
        assert_eq!((status, &*text), (Some(0), "host b has joined\n"));
        let tid = tasks[3]["tid"].as_str().unwrap();
        let moved = || (ring.asked(&["move", tid, "2"]).0 == Some(0)).then_some(());
        within(moved);
        assert_eq!(ring.asked(&["delete", "b"]).0, Some(0));
        assert_eq!(ring.tasks().len(), 6);
        ring.ends_well();
    }
}

#[test]
fn a_task_that_cannot_leave_ends_with_its_host_and_the_reason_is_reported() {
    let ring = Ring::start(&["--balance", "refine"], "3");
    let pinned = ring.tasks();
    let pinned = pinned.iter().find(|task| task["pinned"] == "it has asked not to be moved");
    let tid = pinned.expect("a pinned task")["tid"].as_str().unwrap().to_owned();
    assert_eq!(ring.asked(&["delete", "b"]), (Some(0), "host b has left\n".into()));
    let left = ring.tasks();
    assert_eq!(left.len(), 5, "{left:?}");
    assert!(left.iter().all(|task| task["tid"] != *tid), "{left:?}");
    ring.asked(&["halt"]);
    let (child, _programs) = ring.child();
    let said = said(&child.wait_with_output().unwrap());
    let why = format!("{tid} (balance) ends with host b: it has asked not to be moved\n");
    assert!(said.contains(&why), "{said}");
}

#[test]
fn without_a_balancer_the_tasks_of_a_host_end_with_it_as_with_pvm() {
    let ring = Ring::start(&[], "-1");
    assert_eq!(ring.asked(&["delete", "b"]), (Some(0), "host b has left\n".into()));
    assert_eq!(ring.tasks().len(), 3);
    ring.asked(&["halt"]);
}

/// A host may die while its tasks leave it.
#[test]
fn a_host_that_dies_while_its_tasks_leave_has_left() {
    let ring = Ring::start(&["--balance", "refine"], "-1");
    let all = ring.hosts.far_processes();
    let stopped = rustix::process::Pid::from_raw(all[0]).unwrap();
    rustix::process::kill_process(stopped, rustix::process::Signal::STOP).unwrap();
    let mut delete = ring.hosts.command(&["delete", "b"]);
    let delete = delete.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let delete = KilledMachine(Some(delete));
    // The machine answers while the host does not.
    within(|| {
        let (status, text) = ring.asked(&["add", "b"]);
        (status == Some(1) && text.contains("Duplicate host")).then_some(())
    });
    ring.hosts.kill_leader();
    let mut delete = delete;
    let done = delete.0.take().unwrap().wait_with_output().unwrap();
    assert_eq!(said(&done), "host b has left\n");
    assert_eq!(ring.count("b"), 0);
    ring.asked(&["halt"]);
}

#[test]
fn ps_remembers_why_a_task_was_not_moved_until_it_moves() {
    let ring = Ring::start(&[], "3");
    let pinned = ring.tasks();
    let pinned = pinned.iter().find(|task| task["pinned"] == "it has asked not to be moved");
    let pinned = pinned.expect("a pinned task").clone();
    let tid = pinned["tid"].as_str().unwrap();
    assert_eq!((&pinned["refused"], &pinned["rank"]), (&Value::Null, &1.into()));
    let (status, text) = ring.asked(&["move", tid, "0"]);
    assert!(status != Some(0) && text.contains("it has asked not to be moved"), "{text}");
    let refused = |tid: &str| {
        let all = ring.tasks();
        all.iter().find(|task| task["tid"] == *tid).map(|task| task["refused"].clone())
    };
    let home = home_of(&ring);
    let why = format!("not moved to process 0 on {home}: it has asked not to be moved");
    assert_eq!(refused(tid), Some(why.into()));
    // There is no process 7. A move that comes about ends what is remembered.
    let all = ring.tasks();
    let other = all.iter().find(|task| task["rank"] == 1 && task["tid"] != *tid).unwrap();
    let other = other["tid"].as_str().unwrap();
    assert_ne!(ring.asked(&["move", other, "7"]).0, Some(0));
    let words = refused(other).unwrap();
    assert!(words.as_str().unwrap().contains("there is no such process"), "{words}");
    let (_, text) = ring.asked(&["ps"]);
    assert!(text.contains("; not moved to process 7"), "{text}");
    assert_eq!(ring.asked(&["move", other, "0"]).0, Some(0));
    assert_eq!(refused(other), Some(Value::Null));
    ring.ends_well();
}

/// The name of the home.
fn home_of(ring: &Ring) -> String {
    let tasks = ring.tasks();
    let home = tasks.iter().find(|task| task["rank"] == 0).unwrap();
    home["host"].as_str().unwrap().to_owned()
}
