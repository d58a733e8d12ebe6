//! The command as a user types it: `ls` and `call` beside a server.

use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Output, Stdio};
use tempfile::TempDir;

/// A folder of names of its own.
struct Place(TempDir);

impl Place {
    fn upcall(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_upcall"));
        command
            .args(arguments)
            .env("UPCALL_DIR", self.0.path().join("names"))
            .env_remove("XDG_RUNTIME_DIR");
        command
    }

    /// Its output, and whether it succeeded.
    fn run(&self, arguments: &[&str]) -> (bool, String, String) {
        let Output { status, stdout, stderr } =
            self.upcall(arguments).output().expect("the command starts");
        let text = |bytes| String::from_utf8(bytes).expect("text");
        (status.success(), text(stdout), text(stderr))
    }

    /// A server that exports a small interface, and the name that it has.
    fn serve(&self) -> (Served, String) {
        let (served, _) = self.program("math");
        let list = self.json(&["ls", "--json"]);
        assert_eq!(list[0]["pid"], served.0.id());
        assert_eq!(list[0]["interface"], "test:far/far@1.0.0");
        (served, list[0]["name"].as_str().expect("a name").to_string())
    }
}

mod far {
    upcall::interface!(
        r#"
        package test:far@1.0.0;
        /// Served to other machines.
        interface far {
            resource counter {
                constructor(start: u32);
                next: func() -> u32;
            }
            add: func(a: s32, b: s32) -> s32;
            join: func(words: list<string>) -> result<string, string>;
        }
        "#
    );

    pub struct Far;
    pub struct Counter(std::sync::atomic::AtomicU32);

    impl far::Serve for Far {
        fn new_counter(&self, start: u32) -> std::sync::Arc<dyn far::ServeCounter> {
            std::sync::Arc::new(Counter(start.into()))
        }
        fn add(&self, a: i32, b: i32) -> i32 {
            a + b
        }
        fn join(&self, words: &[String]) -> Result<String, String> {
            if words.is_empty() { Err("nothing to join".into()) } else { Ok(words.join(" ")) }
        }
    }

    impl far::ServeCounter for Counter {
        fn next(&self) -> u32 {
            self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
        }
    }
}

mod files {
    upcall::interface!(
        r#"
        package test:files@1.0.0;
        /// As much of the example's interface as the command's own examples call.
        interface files {
            resource file {
                read: func(offset: u64, most: u32) -> result<list<u8>, string>;
            }
            root: func() -> list<u8>;
            open: func(path: list<u8>) -> result<file, string>;
        }
        "#
    );

    pub struct Files;
    pub struct File;

    impl files::Serve for Files {
        fn root(&self) -> Vec<u8> {
            b"/".to_vec()
        }
        fn open(
            &self,
            path: upcall::Bytes<'_>,
        ) -> Result<std::sync::Arc<dyn files::ServeFile>, String> {
            let known = path.to_vec() == b"etc";
            if known { Ok(std::sync::Arc::new(File)) } else { Err("not found".into()) }
        }
    }

    impl files::ServeFile for File {
        fn read(&self, _offset: u64, most: u32) -> Result<Vec<u8>, String> {
            Ok(vec![7; most as usize])
        }
    }
}

/// Tells a run of this file that it is to be a server.
const PROGRAM: &str = "UPCALL_TEST_PROGRAM";

/// Not a test by itself: a server that listens for clients on other machines, until its input ends,
/// or a client of one; or a member of a group.
#[test]
fn program() {
    match std::env::var(PROGRAM).as_deref() {
        Ok("serve") => {
            let server = upcall::Server::new()
                .export("far", far::far::export(far::Far))
                .listen("127.0.0.1:0");
            let running = server.start().expect("a server");
            println!("\nlistens {}", running.addresses()[0]);
            let _ = std::io::stdin().read(&mut [0]);
        }
        Ok("examples") => {
            let (math, files) = (far::far::export(far::Far), files::files::export(files::Files));
            let server = upcall::Server::new()
                .export("math", math)
                .export("files", files)
                .listen("127.0.0.1:0");
            let running = server.start().expect("a server");
            println!("\nlistens {}", running.addresses()[0]);
            let _ = std::io::stdin().read(&mut [0]);
        }
        Ok("math") => {
            let server = upcall::Server::new().export("math", far::far::export(far::Far));
            let _running = server.start().expect("a server");
            println!("\nlistens nowhere");
            let _ = std::io::stdin().read(&mut [0]);
        }
        Ok("flood") => member(0),
        Ok("look away") => member(1),
        Ok(name) => {
            let bound = far::far::Far::bind(name).expect("a binding");
            (0..3).for_each(|_| assert_eq!(bound.add(2, 3), Ok(5)));
            println!("\nlistens nowhere");
            let _ = std::io::stdin().read(&mut [0]);
        }
        Err(_) => {}
    }
}

/// The first of two sends what the second one does not take, until that may; they end with their
/// input, and when all was taken.
fn member(rank: usize) {
    use upcall::message::{GroupBuilder, Handlers};
    const ALL: u64 = 600;
    println!("\nlistens nowhere");
    let mut handlers = Handlers::new();
    let block = handlers.kind::<[u64]>("block");
    let joining = GroupBuilder::new("flood", 2)
        .rank(rank)
        .limit(8 << 20)
        .timeout(Some(std::time::Duration::from_micros(50)));
    let group = joining.join(handlers).expect("a group");
    if rank == 0 {
        (0..ALL).for_each(|number| group.send(1, block, &[number; 1024]).expect("it is sent"));
    }
    let _ = std::io::stdin().read(&mut [0]);
    let mut taken = 0;
    while rank == 1 && taken < ALL {
        match group.receive(|message| message.word(1)) {
            Ok(number) => taken += u64::from(number == Some(taken)),
            Err(_) => _ = group.wait(Some(std::time::Duration::from_secs(1))),
        }
    }
    group.barrier().expect("both are there");
    drop(group);
    // What the test harness would say now nobody hears.
    std::process::exit(0);
}

impl Place {
    /// Runs this file as a program, up to where it says that it is ready; and what it says.
    fn program(&self, what: &str) -> (Served, String) {
        let mut command = Command::new(std::env::current_exe().expect("its own path"));
        command.args(["program", "--exact", "--nocapture"]).env(PROGRAM, what);
        command.env("UPCALL_DIR", self.0.path().join("names")).env_remove("XDG_RUNTIME_DIR");
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("this file runs");
        let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let said = lines
            .map_while(Result::ok)
            .find_map(|line| line.strip_prefix("listens ").map(String::from));
        (Served(child), said.expect("it is ready"))
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let (done, said, error) = self.run(arguments);
        assert!(done, "{arguments:?}: {error}");
        serde_json::from_str(&said).expect("JSON")
    }
}

/// Killed on drop.
struct Served(Child);

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn ls_and_call() {
    let place = Place(TempDir::new().expect("a folder"));
    let (done, said, _) = place.run(&["ls"]);
    assert!(done && said.contains("nothing is exported"), "{said}");
    let (server, name) = place.serve();
    let (done, said, _) = place.run(&["ls", "--procedures"]);
    assert!(done && said.contains(&name) && said.contains("add"), "{said}");
    let (done, said, error) = place.run(&["call", &format!("{name}.add"), "-2", "5"]);
    assert_eq!((done, said.trim()), (true, "3"), "{error}");
    // Who has called is bound no more.
    let (done, said, error) = place.run(&["stat"]);
    assert!(done && said.contains("nobody is bound"), "{said}{error}");
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
    // Killed: its entries are swept, and the command says what to do.
    drop(server);
    let (done, _, error) = place.run(&["call", &format!("{name}.add"), "1", "2"]);
    assert!(!done && error.contains(&name), "{error}");
    let (done, said, _) = place.run(&["ls"]);
    assert!(done && said.contains("nothing is exported"), "{said}");
}

#[test]
fn mistakes_are_told() {
    let place = Place(TempDir::new().expect("a folder"));
    let (_server, name) = place.serve();
    for (arguments, part) in [
        (vec!["call", "nobody.add", "1", "2"], "nobody exports \"nobody\""),
        (vec!["call", "NAME.subtract", "1", "2"], "subtract"),
        (vec!["call", "NAME.add", "1"], "2"),
        (vec!["call", "NAME.add", "1", "true"], "true"),
        (vec!["call", "--deadline", "soon", "NAME.add", "1", "2"], "give seconds"),
        (vec!["stat", "--interval", "0"], "give seconds"),
        (vec!["call", "--deadline=-1", "NAME.add", "1", "2"], "give seconds"),
        (vec!["ls", "NAME"], "tcp://HOST:PORT"),
        (vec!["ls", "tcp://127.0.0.1:7000/NAME"], "tcp://HOST:PORT"),
        (vec!["call", "tcp://127.0.0.1/NAME.add", "1", "2"], "tcp://HOST:PORT/NAME"),
        (vec!["stat", "tcp://127.0.0.1:7000/NAME"], "another machine"),
    ] {
        let arguments: Vec<String> =
            arguments.iter().map(|argument| argument.replace("NAME", &name)).collect();
        let (done, said, error) =
            place.run(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
        println!("    upcall {}: {}", arguments.join(" "), error.trim());
        assert!(!done && error.contains(part), "{arguments:?}: {said}{error}");
        assert!(!error.contains('\u{1b}'), "colours only on a terminal: {error:?}");
    }
}

/// What is exported on another machine is listed and called as what is here.
#[test]
fn ls_and_call_on_another_machine() {
    let place = Place(TempDir::new().expect("a folder"));
    let (server, address) = place.program("serve");
    // Nothing is known here of the folder of names there.
    let here = Place(TempDir::new().expect("a folder"));
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

/// Which calls came from here, and which from other machines, is counted by the server, and told
/// where it is.
#[test]
fn stat_tells_local_and_remote_calls() {
    let place = Place(TempDir::new().expect("a folder"));
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
    // What the near client holds: its connection and channel, and the memory of these.
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
    // What is counted there cannot be read from here.
    for command in ["stat", "top"] {
        let (done, _, error) = place.run(&[command, &name]);
        assert!(
            !done
                && error.contains("another machine")
                && error.contains(&format!("`upcall {command} far`")),
            "{error}"
        );
    }
}

#[test]
fn stat_tells_who_floods_a_group_and_asks_nobody() {
    let place = Place(TempDir::new().expect("a folder"));
    let (done, said, _) = place.run(&["stat", "--groups"]);
    assert!(done && said.contains("nobody is a member of a group"), "{said}");
    let groups = || place.json(&["stat", "--groups", "--json"]);
    let until = |what: &str, met: &dyn Fn(&Value) -> bool| {
        let start = std::time::Instant::now();
        loop {
            let found = groups();
            if met(&found) {
                return found;
            }
            assert!(start.elapsed().as_secs() < 60, "{what}: {found}");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
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
    // Also of one that is stopped.
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
    let (_, said, _) = place.run(&["stat", "--groups", "other"]);
    assert!(said.contains("nobody is a member"), "{said}");
    assert!(
        Command::new("kill")
            .args(["-CONT", &away.0.id().to_string()])
            .status()
            .expect("kill runs")
            .success()
    );
    // It takes all, and both can end.
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

/// The commands below "Examples:" in a help text.
fn examples(place: &Place, command: &[&str]) -> Vec<String> {
    let (done, help, error) = place.run(&[command, &["--help"]].concat());
    assert!(done, "{command:?}: {error}");
    let (_, below) = help.split_once("Examples:\n").expect("examples");
    below.lines().map_while(|line| line.strip_prefix("  ")).map(String::from).collect()
}

/// What the help shows is what works: beside servers that export such names.
#[test]
fn every_example_of_the_help_runs() {
    let place = Place(TempDir::new().expect("a folder"));
    let (server, address) = place.program("examples");
    let folder = place.0.path();
    let file = |name: &str, text: &str| std::fs::write(folder.join(name), text).expect("a file");
    file("old.wit", "package a:b@1.0.0; interface i { f: func(); }");
    file("new.wit", "package a:b@1.0.0; interface i { f: func(); g: func(); }");
    file("sieve", "#!/bin/sh\nexit 0\n");
    let made =
        Command::new("chmod").arg("+x").arg(folder.join("sieve")).status().expect("chmod runs");
    assert!(made.success());
    let has_jq = Command::new("jq").arg("--version").output().is_ok();
    let bin = std::path::Path::new(env!("CARGO_BIN_EXE_upcall")).parent().expect("a folder");
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap_or_default());
    let mut ran = 0;
    for command in [&[][..], &["ls"], &["call"], &["stat"]] {
        let all = examples(&place, command);
        assert!(!all.is_empty(), "{command:?}");
        for example in all {
            if example.contains("| jq") && !has_jq {
                eprintln!("skipped: {example}: there is no jq");
                continue;
            }
            let mut line = example
                .replace("127.0.0.1:7000", &address)
                .replace("4711", &server.0.id().to_string());
            line = line.replace("--interval 1", "--interval 0.1");
            let mut shell = Command::new("sh");
            shell.args(["-c", &line]).current_dir(folder).env("PATH", &path).env("TMPDIR", folder);
            shell
                .env("UPCALL_DIR", folder.join("names"))
                .env_remove("XDG_RUNTIME_DIR")
                .stdin(Stdio::null());
            let output = shell.output().expect("a shell");
            let error = String::from_utf8_lossy(&output.stderr);
            if example.starts_with("upcall threads") && error.contains("ptrace") {
                eprintln!("skipped: {example}: {error}");
                continue;
            }
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success(), "{example}: {}: {said}{error}", output.status);
            ran += 1;
        }
    }
    assert!(ran > 10, "{ran}");
}

/// 0: done; 1: it could not be done; 2: it makes no sense; 3: the procedure declares that error.
#[test]
fn the_exit_code_says_what_came_of_it() {
    let place = Place(TempDir::new().expect("a folder"));
    let (_server, address) = place.program("examples");
    let far = format!("tcp://{address}/files.open");
    for (expected, arguments) in [
        (0, vec!["call", "files.open", "[101, 116, 99]"]),
        (3, vec!["call", "files.open", "[1]"]),
        (3, vec!["call", &far, "[1]"]),
        // The next one is not called.
        (3, vec!["call", "files.open", "[1]", "+", "root"]),
        (0, vec!["call", "math.join", "[\"err(1)\"]"]),
        (3, vec!["call", "math.join", "[]"]),
        (1, vec!["call", "math.subtract", "1"]),
        (1, vec!["call", "typo.add", "1"]),
        (2, vec!["call"]),
        (0, vec!["stat", "math"]),
        (0, vec!["stat", "math", "files", "--json"]),
        (1, vec!["stat", "typo"]),
        (1, vec!["stat", "math", "typo"]),
        (1, vec!["stat", "--json", "typo"]),
        (1, vec!["stat", "--total", "typo"]),
        (1, vec!["stat", "--groups", "math"]),
        (1, vec!["stat", "--objects", "math"]),
    ] {
        let output = place.upcall(&arguments).output().expect("the command starts");
        let [said, error] =
            [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).expect("text"));
        assert_eq!(output.status.code(), Some(expected), "{arguments:?}: {said}{error}");
        match (arguments[0], expected) {
            ("stat", 1) => assert!(
                error.contains("the name \"") && error.contains("/names"),
                "{arguments:?}: {error}"
            ),
            ("call", 3) => assert!(
                said.starts_with("err(") && said.lines().count() == 1,
                "{arguments:?}: {said}"
            ),
            _ => {}
        }
    }
    // A folder of names that cannot be one.
    for command in [&["ls"][..], &["stat"], &["call", "math.add", "1", "2"]] {
        let output =
            place.upcall(command).env("UPCALL_DIR", "").output().expect("the command starts");
        let error = String::from_utf8(output.stderr).expect("text");
        assert!(
            output.status.code() == Some(1) && error.contains("UPCALL_DIR is empty"),
            "{command:?}: {error}"
        );
    }
}
