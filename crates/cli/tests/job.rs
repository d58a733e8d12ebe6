//! `upcall job` as a user types it. `upcall-tests::jobs` is about the processes.

use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

struct Place(TempDir);

impl Place {
    fn new() -> Self {
        Self(TempDir::new().expect("a folder"))
    }

    fn upcall(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_upcall"));
        command
            .args(arguments)
            .env("UPCALL_DIR", self.0.path().join("names"))
            .env_remove("XDG_RUNTIME_DIR");
        command
    }

    /// Runs the command. Returns the exit code, the output, and the errors.
    fn run(&self, arguments: &[&str]) -> (Option<i32>, String, String) {
        let Output { status, stdout, stderr } =
            self.upcall(arguments).output().expect("the command starts");
        let text = |bytes| String::from_utf8(bytes).expect("text");
        (status.code(), text(stdout), text(stderr))
    }
}

#[test]
fn members_know_who_they_are_and_are_labelled() {
    let place = Place::new();
    let script = "echo member $UPCALL_RANK of $UPCALL_SIZE${UPCALL_LIMIT:+ with $UPCALL_LIMIT}
        echo aside >&2";
    let limited = ["job", "run", "--group", "1", "--limit", "2M", "--", "sh", "-c", script];
    assert_eq!(place.run(&limited).1, "member 0 of 1 with 2097152\n");
    let (code, out, err) =
        place.run(&["job", "run", "--group", "2", "--label", "--", "sh", "-c", script]);
    let mut lines: Vec<_> = out.lines().collect();
    lines.sort_unstable();
    assert_eq!((code, lines), (Some(0), vec!["[0] member 0 of 2", "[1] member 1 of 2"]), "{err}");
    assert_eq!(err.lines().count(), 2, "{err}");
}

#[test]
fn a_failure_is_told_and_its_code_is_the_commands() {
    let place = Place::new();
    let script = "test $UPCALL_RANK = 1 && exit 7; exec sleep 60";
    let (code, _, err) =
        place.run(&["job", "run", "--group", "2", "--name", "fails", "--", "sh", "-c", script]);
    assert_eq!(code, Some(7), "{err}");
    assert!(err.starts_with("upcall: job fails: member 1 (process "), "{err}");
    assert!(err.ends_with(") ended with code 7; the others are ended\n"), "{err}");
}

/// The member that panics may end later than those that fail because of it.
#[test]
fn a_panic_counts_more_than_the_failures_that_follow_from_it() {
    let place = Place::new();
    let ready = place.0.path().join("ready");
    let script = format!(
        "if test $UPCALL_RANK = 1; then until test -e {0}; do sleep 0.01; done; exit 1; fi
         trap 'exit 101' TERM; : > {0}; while :; do sleep 0.01; done",
        ready.display()
    );
    let run = ["job", "run", "-g", "2", "-n", "fails", "--grace", "60", "--", "sh", "-c", &script];
    let (code, _, err) = place.run(&run);
    assert_eq!(code, Some(101), "{err}");
    let lines: Vec<_> = err.lines().collect();
    assert!(lines[0].ends_with("ended with code 1; the others are ended"), "{err}");
    assert!(lines[1].contains("member 0") && lines[1].ends_with("ended with code 101"), "{err}");
}

#[test]
fn a_job_is_listed_and_ended() {
    let place = Place::new();
    assert_eq!(place.run(&["job", "ls"]).1, "no job runs\n");
    let script = "echo here; exec sleep 60";
    let run = [
        "job", "run", "-g", "2", "-n", "night", "-s", "gang", "--slice", "20", "--", "sh", "-c",
        script,
    ];
    let mut job = place.upcall(&run).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut lines = BufReader::new(job.stdout.take().expect("a pipe")).lines();
    assert!(lines.next().is_some() && lines.next().is_some());
    let (code, out, err) = place.run(&["job", "ls", "--json"]);
    let jobs: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(code, Some(0), "{err}");
    let night = &jobs[0];
    assert_eq!(
        (&night["name"], &night["state"], &night["pid"]),
        (&"night".into(), &"running".into(), &job.id().into())
    );
    assert_eq!(
        (&night["schedule"], &night["slice_ms"], &night["leads"]),
        (&"gang".into(), &20.into(), &true.into())
    );
    assert!(night["suspended_by"] == "freezer" || night["suspended_by"] == "signals");
    assert_eq!(night["members"][1]["rank"], 1);
    let (code, _, err) = place.run(&["job", "stop", "nigth"]);
    assert!(code == Some(3) && err.contains("Did you mean \"night\"?"), "{err}");
    assert_eq!(place.run(&["job", "stop", "night"]).0, Some(0));
    let (_, out, _) = place.run(&["job", "ls", "--members"]);
    assert!(
        out.contains("night  stopped  2/2      gang      20 ms  ") && out.contains(", suspended"),
        "{out}"
    );
    assert_eq!(place.run(&["job", "kill", "night"]).0, Some(0));
    assert_eq!(job.wait().expect("its end").code(), Some(143));
    assert_eq!(place.run(&["job", "ls", "--json"]).1, "[]\n");
}

#[test]
fn wrong_arguments_are_told() {
    let place = Place::new();
    for (arguments, parts) in [
        (&["job", "run", "--group", "2"][..], &["PROGRAM"][..]),
        (&["job", "run", "--", "true"], &["--group <N>"]),
        (&["job", "run", "--group", "0", "--", "true"], &["from 1 to 1024 members, not 0"]),
        (&["job", "run", "--group", "2", "--schedule", "fair", "--", "true"], &["batch, gang, co"]),
        (&["job", "run", "--group", "2", "--limit", "much", "--", "true"], &["such as 512M or 2G"]),
        (&["job", "run", "--group", "2", "--slice", "0", "--", "true"], &["0 is not in 1..=60000"]),
        (
            &["job", "run", "--group", "2", "--name", "a b", "--", "true"],
            &["\"a b\" cannot be the name of a job"],
        ),
        (&["job", "run", "--group", "2", "--", "/no/such"], &["member 0, /no/such", "give a path"]),
        (&["job", "stop", "none"], &["there is no job \"none\"", "upcall job ls"]),
    ] {
        let (code, out, err) = place.run(arguments);
        assert!(code != Some(0) && out.is_empty(), "{arguments:?}");
        assert!(parts.iter().all(|part| err.contains(part)), "{arguments:?}: {err}");
    }
}
