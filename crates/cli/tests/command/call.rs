//! `upcall call`: arguments, results, exit codes.

use crate::scene::Place;
use serde_json::json;
use std::io::Write;
use std::process::{Command, Stdio};

fn served() -> (Place, crate::scene::Served, String) {
    let place = Place::new();
    let (server, address) = place.program("examples");
    (place, server, address)
}

#[test]
fn texts_and_bytes_are_typed_as_words() {
    let (place, _server, _) = served();
    let file = |name: &str, bytes: &[u8]| {
        let path = place.0.path().join(name);
        std::fs::write(&path, bytes).expect("a file");
        format!("@{}", path.display())
    };
    let (etc, ada, words) =
        (file("etc", b"etc"), file("ada", b"Ada"), file("words", b"[\"a\",\n\"b\"]"));
    for (arguments, result) in [
        (&["greeter.greet", "Ada"][..], "\"Hello, Ada!\""),
        (&["greeter.greet", "\"Ada\""], "\"Hello, Ada!\""),
        (&["greeter.greet", "two words"], "\"Hello, two words!\""),
        (&["greeter.greet", "\"a\\nb\""], "\"Hello, a\\nb!\""),
        (&["greeter.greet", ""], "\"Hello, !\""),
        (&["greeter.greet", "7"], "\"Hello, 7!\""),
        (&["greeter.greet", "_"], "\"Hello, _!\""),
        (&["greeter.greet", "\"+\""], "\"Hello, +!\""),
        (&["greeter.greet", "\"@ada\""], "\"Hello, @ada!\""),
        (&["greeter.greet", "--", "--json"], "\"Hello, --json!\""),
        (&["greeter.greet", &ada], "\"Hello, Ada!\""),
        (&["greeter.initial", "é"], "\"é-\""),
        (&["greeter.initial", "'é'", "none"], "\"é-\""),
        (&["greeter.initial", "a", "b"], "\"ab\""),
        (&["files.root"], "\"/\""),
        (&["files.open", "etc", "+", "file.read", "_", "0", "6"], "ok(\"Format\")"),
        (&["files.open", "0x657463", "+", "file.read", "_", "0", "0"], "ok(\"\")"),
        (&["files.open", "[101, 116, 99]", "+", "file.read", "_", "0", "1"], "ok(\"F\")"),
        (&["files.open", "\"etc\"", "+", "file.read", "_", "0", "1"], "ok(\"F\")"),
        (&["files.open", &etc, "+", "file.read", "_", "0", "1"], "ok(\"F\")"),
        (&["math.join", &words], "ok(\"a b\")"),
        (&["math.add", "-2", "5"], "3"),
    ] {
        let (done, out, error) = place.run(&[&["call"], arguments].concat());
        assert!(done, "{arguments:?}: {error}");
        assert_eq!(out.lines().last(), Some(result), "{arguments:?}: {out}{error}");
    }
}

#[test]
fn the_standard_input_is_an_argument() {
    let (place, _server, _) = served();
    for (arguments, input, result) in [
        (&["greeter.greet", "@-"][..], "Ada", "\"Hello, Ada!\"\n"),
        (&["math.add", "@-", "3"], " 2\n", "5\n"),
    ] {
        let mut command = place.upcall(&[&["call"], arguments].concat());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the command starts");
        let mut pipe = child.stdin.take().expect("a pipe");
        pipe.write_all(input.as_bytes()).expect("the command reads");
        drop(pipe);
        let output = child.wait_with_output().expect("its output");
        assert_eq!(String::from_utf8_lossy(&output.stdout), result);
    }
    let (code, _, error) = place.code(&["call", "math.add", "@-", "@-"]);
    assert!(code == 2 && error.contains("one argument only"), "{error}");
}

#[test]
fn raw_writes_the_bytes_alone() {
    let (place, _server, _) = served();
    let raw = |arguments: &[&str]| place.code(&[&["call", "--raw"], arguments].concat());
    assert_eq!(raw(&["greeter.greet", "Ada"]), (0, "Hello, Ada!".into(), String::new()));
    let read = raw(&["files.open", "etc", "+", "file.read", "_", "0", "6"]);
    assert_eq!(read, (0, "Format".into(), String::new()));
    // No call is made if the last result cannot be written.
    let (code, out, error) = raw(&["files.open", "etc", "+", "root", "+", "open", "no"]);
    assert!(code == 2 && out.is_empty() && error.contains("returns result<own<file>"), "{error}");
    let (code, out, error) = raw(&["math.join", "[]"]);
    assert_eq!((code, out.as_str()), (1, ""));
    assert!(error.contains("join returned err(\"nothing to join\")"), "{error}");
    let (code, _, error) = raw(&["math.add", "1", "2"]);
    assert!(code == 2 && error.contains("--raw writes text and bytes, and math.add"), "{error}");
}

#[test]
fn json_has_one_line_for_each_call() {
    let (place, _server, _) = served();
    let lines = |arguments: &[&str]| {
        let (code, out, _) = place.code(&[&["call", "--json"], arguments].concat());
        let lines = out.lines().map(|line| serde_json::from_str(line).expect("JSON"));
        (code, lines.collect::<Vec<serde_json::Value>>())
    };
    assert_eq!(
        lines(&["math.add", "1", "2"]),
        (0, vec![json!({ "procedure": "add", "result": 3 })])
    );
    let (code, read) = lines(&["files.open", "etc", "+", "file.read", "_", "0", "6"]);
    let bytes = json!({ "ok": { "hex": "466f726d6174", "text": "Format" } });
    assert_eq!((code, read.len(), &read[1]["result"]), (0, 2, &bytes));
    assert_eq!(read[0]["result"]["ok"]["resource"], "file");
    let error = json!({ "procedure": "join", "result": { "err": "nothing to join" } });
    assert_eq!(lines(&["math.join", "[]", "+", "add", "1", "2"]), (1, vec![error]));
    let nothing = json!({ "procedure": "slow", "result": null });
    assert_eq!(lines(&["greeter.slow", "0"]), (0, vec![nothing]));
    // The list of procedures has a form for scripts, too.
    let help = place.json(&["call", "math", "--json"]);
    let add = help.as_array().expect("an array").iter().find(|row| row["procedure"] == "add");
    assert_eq!(add.expect("add")["example"], "upcall call math.add 1 1");
}

/// The examples in the list of procedures are calls that the server takes.
#[test]
fn each_procedure_is_shown_with_a_call_that_works() {
    let (place, _server, _) = served();
    let (done, out, error) = place.run(&["call", "greeter"]);
    assert!(done && out.contains("greeter.greet(name: string) -> string"), "{out}{error}");
    assert!(out.contains("  Greets a person by name."), "{out}");
    for name in ["greeter", "math"] {
        for row in place.json(&["call", name, "--json"]).as_array().expect("an array") {
            let example = row["example"].as_str().expect("a text");
            let is_method = row["usage"].as_str().is_some_and(|usage| usage.contains("self:"));
            if is_method || example.contains(".panic") {
                continue;
            }
            let mut shell = Command::new("sh");
            let bin = std::path::Path::new(env!("CARGO_BIN_EXE_upcall")).parent();
            let path = std::env::var("PATH").unwrap_or_default();
            let path = format!("{}:{path}", bin.expect("a folder").display());
            shell.args(["-c", example]).env("UPCALL_DIR", place.names()).env("PATH", path);
            let output = shell.output().expect("a shell");
            let error = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{example}: {error}");
        }
    }
}

/// The codes of the table in `upcall --help`.
#[test]
fn the_exit_code_says_what_came_of_it() {
    let (place, server, address) = served();
    let far = format!("tcp://{address}/files.open");
    for (expected, arguments) in [
        (0, &["call", "files.open", "etc"][..]),
        (1, &["call", "files.open", "[1]"]),
        (1, &["call", &far, "[1]"]),
        // The call after an error is not made.
        (1, &["call", "files.open", "[1]", "+", "root"]),
        (0, &["call", "math.join", "[\"err(1)\"]"]),
        (1, &["call", "math.join", "[]"]),
        (1, &["call", "greeter.panic"]),
        (2, &["call"]),
        (2, &["call", "math.add", "1"]),
        (2, &["call", "math.add", "1", "two"]),
        (2, &["call", "a b.add"]),
        (3, &["call", "math.subtract", "1"]),
        (3, &["call", "typo.add", "1"]),
        (5, &["call", "--deadline", "0.05", "greeter.slow", "60000"]),
        (0, &["stat", "math"]),
        (0, &["stat", "math", "files", "--json"]),
        (3, &["stat", "typo"]),
        (3, &["stat", "math", "typo"]),
        (3, &["stat", "--json", "typo"]),
        (3, &["stat", "--total", "typo"]),
        (3, &["stat", "--groups", "math"]),
        (3, &["stat", "--objects", "math"]),
        (3, &["threads", "typo"]),
        (3, &["job", "stop", "typo"]),
        (3, &["pvm", "kill", "t40001"]),
        (2, &["pvm", "kill", "typo"]),
        (2, &["wit", "explain", "no-such.wit"]),
        (2, &["wit", "check", "no-such.wit"]),
    ] {
        let (code, out, error) = place.code(arguments);
        assert_eq!(code, expected, "{arguments:?}: {out}{error}");
        match (arguments[0], expected) {
            ("stat", 3) => {
                assert!(error.contains("the name \"") && error.contains("/names"), "{error}")
            }
            ("call", 1) if out.is_empty() => assert!(error.contains("panicked"), "{error}"),
            ("call", 1) => assert!(out.starts_with("err(") && out.lines().count() == 1, "{out}"),
            _ => {}
        }
    }
    drop(server);
    let (code, _, error) = place.code(&["call", "math.add", "1", "2"]);
    assert_eq!(code, 3, "{error}");
}

/// The connection ends during the call.
#[test]
fn a_server_that_ends_during_the_call_is_told_apart() {
    let (place, mut server, _) = served();
    let call = place
        .upcall(&["call", "greeter.slow", "60000"])
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command starts");
    crate::until("the call is made", || {
        place.json(&["stat", "greeter", "--json"]).as_array().is_some_and(|rows| !rows.is_empty())
    });
    server.0.kill().expect("the server runs");
    let output = call.wait_with_output().expect("its end");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(matches!(output.status.code(), Some(6 | 3)), "{error}");
    // A shell has nothing to bind.
    assert!(!error.contains("bind again"), "{error}");
    assert!(
        output.status.code() == Some(3) || error.contains("greeter.slow, which may"),
        "{error}"
    );
}

#[test]
fn a_call_that_is_given_up_is_told_with_its_time() {
    let (place, _server, _) = served();
    let call = ["call", "--deadline", "0.05", "greeter.slow", "60000"];
    let (code, out, error) = place.code(&call);
    // On a slow machine the deadline is over before the call, which has its own text.
    assert!(code == 5 && out.is_empty() && error.contains("50ms"), "{error}");
    assert!(!error.contains("a longer deadline"), "{error}");
}

/// The user of a server on another machine is not known, so no policy can be applied.
#[test]
fn expected_users_are_read_by_name_and_by_number() {
    let (place, _server, address) = served();
    for user in ["root", "4000001", "any"] {
        let (code, out, error) = place.code(&["call", "--expect", user, "greeter.greet", "Ada"]);
        assert_eq!((code, out.as_str()), (0, "\"Hello, Ada!\"\n"), "{error}");
        assert!(place.run(&["ls", "--expect", user]).0);
    }
    let (code, _, error) =
        place.code(&["call", "--expect", "no such user", "greeter.greet", "Ada"]);
    assert!(code == 2 && error.contains("give a user's name or number, or `any`"), "{error}");
    let far = format!("tcp://{address}/greeter.greet");
    let (code, _, error) = place.code(&["call", "--expect", "root", &far, "Ada"]);
    assert!(code == 2 && error.contains("--expect is for servers on this machine"), "{error}");
}

#[test]
fn a_server_at_an_address_is_pinged() {
    let (place, _server, address) = served();
    let (code, out, error) = place.code(&["host", "ping", &address, "--count", "3"]);
    assert_eq!(code, 0, "{error}");
    assert!(out.contains("is on this machine, in the clear") && out.contains("3 round trips"));
    let (_, out, _) = place.code(&["host", "ping", &address, "--count", "3", "--json"]);
    let found: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(found["round_trips_ns"].as_array().map(Vec::len), Some(3), "{out}");
    assert!(found["host"].is_null() && found["connect_ns"].as_u64() > Some(0), "{out}");
    let (code, _, error) = place.code(&["host", "ping", "127.0.0.1:1"]);
    assert!(code == 3 && error.contains("no server can be reached"), "{code} {error}");
}
