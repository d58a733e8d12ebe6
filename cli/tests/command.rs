//! The command as a user types it: `ls` and `call` beside a server.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};
use tempfile::TempDir;

/// A folder of names of its own.
struct Place(TempDir);

impl Place {
    fn upcall(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_upcall"));
        command.args(arguments).env("UPCALL_DIR", self.0.path().join("names")).env_remove("XDG_RUNTIME_DIR");
        command
    }

    /// Its output, and whether it succeeded.
    fn run(&self, arguments: &[&str]) -> (bool, String, String) {
        let Output { status, stdout, stderr } = self.upcall(arguments).output().expect("the command starts");
        let text = |bytes| String::from_utf8(bytes).expect("text");
        (status.success(), text(stdout), text(stderr))
    }

    /// The server of the benchmark, which exports a small interface, and the name that it has.
    fn serve(&self) -> (Served, String) {
        let dir = self.0.path().to_str().expect("a path in UTF-8");
        let server =
            ["bench-child", "upcall", "server", "--cpus", "0", "--mode", "parked", "--dir", dir, "--placement", "one-core"];
        let mut child = self.upcall(&server).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the server starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
        let served = Served(child);
        let (_, list, _) = self.run(&["ls", "--json"]);
        let list: serde_json::Value = serde_json::from_str(&list).expect("JSON");
        assert_eq!(list[0]["pid"], served.0.id());
        assert_eq!(list[0]["interface"], "upcall:bench/tests@1.0.0");
        (served, list[0]["name"].as_str().expect("a name").to_string())
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
    let (done, said, error) = place.run(&["call", &format!("{name}.add"), "1", "2", "+", "add", "3", "4"]);
    assert_eq!((done, said.split_whitespace().collect::<Vec<_>>()), (true, vec!["3", "7"]), "{error}");
    let (done, said, error) = place.run(&["call", "--deadline", "20", &format!("{name}.add"), "1", "2"]);
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
    ] {
        let arguments: Vec<String> = arguments.iter().map(|argument| argument.replace("NAME", &name)).collect();
        let (done, said, error) = place.run(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
        println!("    upcall {}: {}", arguments.join(" "), error.trim());
        assert!(!done && error.contains(part), "{arguments:?}: {said}{error}");
        assert!(!error.contains('\u{1b}'), "colours only on a terminal: {error:?}");
    }
}
