//! The command as a user types it, beside servers.

mod call;
mod environment;
mod examples;
mod host;
mod hosts;
mod mistakes;
mod scene;
mod shell;
mod users;

use scene::{Place, until};
use serde_json::Value;
use std::process::Command;

/// Not a test by itself: see [`scene::program`].
#[test]
fn program() {
    scene::program();
}

#[test]
fn ls_and_call() {
    let place = Place::new();
    let (done, said, _) = place.run(&["ls"]);
    assert!(done && said.contains("no server runs in"), "{said}");
    let (server, name) = place.serve();
    let (done, said, _) = place.run(&["ls", "--procedures"]);
    assert!(done && said.contains(&name) && said.contains("add"), "{said}");
    let (done, said, error) = place.run(&["call", &format!("{name}.add"), "-2", "5"]);
    assert_eq!((done, said.trim()), (true, "3"), "{error}");
    // The binding ended with the command.
    let (done, said, error) = place.run(&["stat"]);
    assert!(done && said.contains("no client is bound"), "{said}{error}");
    assert_eq!(place.run(&["stat", "--json"]), (true, "[]\n".into(), String::new()));
    // Several calls in one session.
    let (done, said, error) =
        place.run(&["call", &format!("{name}.add"), "1", "2", "+", "add", "3", "4"]);
    assert_eq!(
        (done, said.split_whitespace().collect::<Vec<_>>()),
        (true, vec!["3", "7"]),
        "{error}"
    );
    let (done, said, error) =
        place.run(&["call", "--deadline", "20", &format!("{name}.add"), "1", "2"]);
    assert_eq!((done, said.trim()), (true, "3"), "{error}");
    // The entries of a killed server are swept, and the command says what to do.
    drop(server);
    let (done, _, error) = place.run(&["call", &format!("{name}.add"), "1", "2"]);
    assert!(!done && error.contains(&name), "{error}");
    let (done, said, _) = place.run(&["ls"]);
    assert!(done && said.contains("no server runs in"), "{said}");
}

/// Objects are no servers: they are named on the error stream, and not among the names of exports.
#[test]
fn ls_names_shared_objects() {
    let place = Place::new();
    let (_home, _) = place.program("home");
    let note = "1 shared object: hits (see `upcall stat --objects`)\n";
    for arguments in [&["ls"][..], &["ls", "--procedures"]] {
        let (done, said, error) = place.run(arguments);
        assert!(done && said.contains("no server runs in") && error == note, "{said}{error}");
    }
    assert_eq!(place.run(&["ls", "--json"]), (true, "[]\n".into(), String::new()));
    assert_eq!(place.run(&["ls", "--names"]), (true, String::new(), String::new()));
}

/// Exports on another machine are listed and called like those of this one.
#[test]
fn ls_and_call_on_another_machine() {
    let place = Place::new();
    let (server, address) = place.program("serve");
    // The client has another folder of names, as it would on another machine.
    let here = Place::new();
    let (at, name) = (format!("tcp://{address}"), format!("tcp://{address}/far"));
    let (done, said, error) = here.run(&["ls", &at, "--procedures"]);
    assert!(
        done && said.contains(&name)
            && said.contains("test:far/far@1.0.0")
            && said.contains("add: func"),
        "{said}{error}"
    );
    let list = here.json(&["ls", "--json", &at]);
    assert_eq!(
        (&list[0]["name"], &list[0]["clients"], &list[0]["pid"]),
        (&name.as_str().into(), &0.into(), &Value::Null)
    );
    for (arguments, result) in [
        (vec!["add", "-2", "5"], "3"),
        (vec!["join", "[\"a\", \"b\"]"], "ok(\"a b\")"),
        (vec!["join", "[]"], "err(\"nothing to join\")"),
        (
            vec![
                "add",
                "1",
                "2",
                "+",
                "counter.constructor",
                "41",
                "+",
                "counter.next",
                "_",
                "+",
                "counter.next",
                "_",
            ],
            "3 RESOURCE 41 42",
        ),
    ] {
        let first = format!("{name}.{}", arguments[0]);
        let all: Vec<&str> =
            ["call", &first].into_iter().chain(arguments[1..].iter().copied()).collect();
        let (done, said, error) = here.run(&all);
        let words: Vec<_> = said
            .split_whitespace()
            .map(|word| if word.starts_with("counter(") { "RESOURCE" } else { word })
            .collect();
        let declared = result.starts_with("err");
        assert_eq!((done, words.join(" ").as_str()), (!declared, result), "{arguments:?}: {error}");
    }
    let (done, said, error) = here.run(&["call", &name]);
    assert!(done && said.contains(&format!("{name}.add")), "{said}{error}");
    let (done, said, error) =
        here.run(&["call", "--deadline", "20", &format!("{name}.add"), "1", "2"]);
    assert_eq!((done, said.trim()), (true, "3"), "{error}");
    drop(server);
    let said = [(vec!["ls", &at], "is it started"), (vec!["call", &name], "is it started")];
    for (arguments, part) in said {
        let (done, said, error) = here.run(&arguments);
        assert!(
            !done && error.contains(part) && error.contains(&address),
            "{arguments:?}: {said}{error}"
        );
    }
}

/// Objects on another machine are listed to users that may invoke them.
#[test]
fn ls_lists_the_objects_at_an_address() {
    let place = Place::new();
    let (home, address) = place.program("far home");
    let (server, other) = place.program("serve");
    let here = Place::new();
    let [at, of_server] = [&address, &other].map(|address| format!("tcp://{address}"));
    let (done, said, error) = here.run(&["ls", &at]);
    let name = format!("{at}/hits");
    assert!(done && said.starts_with("OBJECT") && said.contains(&name), "{said}{error}");
    assert!(!said.contains("secret") && error.is_empty(), "{said}{error}");
    let list = here.json(&["ls", "--json", &of_server, &at]);
    let names = [format!("{of_server}/far"), name];
    assert_eq!(list.as_array().map(Vec::len), Some(2), "{list}");
    assert_eq!([&list[0]["name"], &list[1]["name"]], names.each_ref().map(|name| name.as_str()));
    assert_eq!(list[1]["shape"].as_str().map(str::len), Some(16), "{list}");
    let (done, said, error) = here.run(&["ls", &of_server, &at]);
    assert!(done && names.iter().all(|name| said.contains(name)), "{said}{error}");
    drop((home, server));
    let (done, said, error) = here.run(&["ls", &at]);
    assert!(!done && error.contains("is it started"), "{said}{error}");
}

/// A server counts local and remote calls, and the command shows them on any machine.
#[test]
fn stat_tells_local_and_remote_calls() {
    let place = Place::new();
    let (_server, address) = place.program("serve");
    let name = format!("tcp://{address}/far");
    let (near, _) = place.program("far");
    let (_far, _) = place.program(&name);
    let all = place.json(&["stat", "--json"]);
    let row = |far: bool| {
        all.as_array()
            .expect("an array")
            .iter()
            .find(|row| row["address"].is_string() == far)
            .expect("a row")
    };
    let counts =
        |row: &Value| ["calls", "local", "remote"].map(|key| row[key].as_u64().expect("a number"));
    assert_eq!(
        (counts(row(false)), row(false)["client"].as_u64()),
        ([3, 3, 0], Some(near.0.id().into()))
    );
    assert_eq!((counts(row(true)), row(true)["client"].as_u64()), ([3, 0, 3], Some(0)));
    let shown = row(true)["address"].as_str().expect("a text").to_string();
    assert!(shown.starts_with("127.0.0.1:") && shown != address, "{shown}");
    let (done, said, error) = place.run(&["stat"]);
    let line = said.lines().find(|line| line.contains(&shown)).unwrap_or_default();
    assert!(
        done && line.ends_with("100%") && said.contains("50% local, 50% remote"),
        "{said}{error}"
    );
    let (_, said, _) = place.run(&["stat", "--total", "far"]);
    assert_eq!(said, "6 calls of 2 bindings: 50% local, 50% remote (3 and 3)\n");
    let total = place.json(&["stat", "--total", "--json"]);
    assert_eq!(
        (&total["calls"], &total["local_share"], &total["remote_share"]),
        (&6.into(), &0.5.into(), &0.5.into())
    );
    // The near client holds its connection and channel, and the memory of these.
    let held = place.json(&["stat", "--held", "--json", "far"]);
    let of = |kind: &str, key: &str| {
        let row = held.as_array().expect("an array").iter().find(|row| row["kind"] == kind);
        row.unwrap_or_else(|| panic!("no {kind}: {held}"))[key].as_u64().expect("a number")
    };
    assert!(
        of("descriptors", "held") >= 3
            && of("mappings", "held") >= 2
            && of("unfilled bytes", "held") > 0,
        "{held}"
    );
    assert!(
        held.as_array()
            .expect("an array")
            .iter()
            .all(|row| row["held"].as_u64() <= row["most"].as_u64()),
        "{held}"
    );
    assert_eq!(of("value bytes", "refused"), 0, "{held}");
    let (done, said, error) = place.run(&["stat", "--held"]);
    assert!(done && said.contains("mapped bytes") && said.contains("far"), "{said}{error}");
}

#[test]
fn stat_tells_who_floods_a_group_and_asks_nobody() {
    let place = Place::new();
    let (done, said, _) = place.run(&["stat", "--groups"]);
    assert!(done && said.contains("no process is a member of a group"), "{said}");
    let groups = || place.json(&["stat", "--groups", "--json"]);
    let until = |what: &str, met: &dyn Fn(&Value) -> bool| {
        let mut found = groups();
        until(what, || {
            found = groups();
            met(&found)
        });
        found
    };
    let (mut flood, _) = place.program("flood");
    let alone = until("one waits", &|found| found[0]["group"] == "flood");
    assert!(
        alone[0]["rank"].is_null() && alone[0]["size"] == 2 && alone[0]["process"] == flood.0.id(),
        "{alone}"
    );
    let (_, said, _) = place.run(&["stat"]);
    assert!(said.starts_with("GROUP") && said.contains("waits for 1 others"), "{said}");
    let (mut away, _) = place.program("look away");
    let found = until("a flood is stopped", &|found| found[0]["stopped_for"] == 1);
    assert_eq!(
        (&found[0]["rank"], &found[1]["rank"], &found[0]["id"]),
        (&0.into(), &1.into(), &found[1]["id"])
    );
    let number = |at: usize, name: &str| found[at][name].as_u64().expect("a number");
    assert_eq!(
        (number(0, "limit_bytes"), number(0, "held_bytes"), number(0, "stops")),
        (4 << 20, 4 << 20, 1)
    );
    assert!(number(0, "sent") > 400 && number(0, "sent") == number(1, "waiting"), "{found}");
    assert_eq!(found[0]["pairs"][0]["diverted"], true);
    // A stopped member is shown as well.
    let stopped =
        Command::new("kill").args(["-STOP", &away.0.id().to_string()]).status().expect("kill runs");
    assert!(stopped.success());
    let (done, said, error) = place.run(&["stat", "--groups", "--pairs"]);
    assert!(
        done && said.contains("stopped for")
            && said.contains("to 1: ")
            && said.contains("; diverts"),
        "{said}{error}"
    );
    let (_, said, _) = place.run(&["stat", "--interval", "0.1", "flood"]);
    assert!(said.contains("SENT/S"), "{said}");
    let (done, said, error) = place.run(&["stat", "--groups", "other"]);
    assert!(!done && said.is_empty() && error.contains("no group has the name"), "{error}");
    assert!(
        Command::new("kill")
            .args(["-CONT", &away.0.id().to_string()])
            .status()
            .expect("kill runs")
            .success()
    );
    // The second member takes all messages, and both can end.
    drop(away.0.stdin.take());
    until("the flood goes on", &|found| {
        found[0]["stopped_s"].is_null() && found[1]["taken"].as_u64() > Some(599)
    });
    drop(flood.0.stdin.take());
    assert!(
        flood.0.wait().expect("it ends").success() && away.0.wait().expect("it ends").success()
    );
    assert_eq!(groups().as_array().map(Vec::len), Some(0));
}
