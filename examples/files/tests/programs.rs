//! The two programs, as people start them.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use upcall_files::direct::read_tree;
use upcall_files::proof::hex;

const CLIENT: &str = env!("CARGO_BIN_EXE_file-client");
const SERVER: &str = env!("CARGO_BIN_EXE_file-server");

/// Separate folders for the programs, in which leftovers would be found.
struct Place {
    folder: TempDir,
    tree: PathBuf,
}

impl Place {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let tree = folder.path().join("tree");
        fs::create_dir_all(tree.join("below")).unwrap();
        fs::create_dir_all(folder.path().join("run")).unwrap();
        for number in 0..50_usize {
            fs::write(tree.join(format!("below/{number}")), vec![number as u8; number * 4099])
                .unwrap();
        }
        Self { folder, tree }
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let run = self.folder.path().join("run");
        command
            .env("XDG_RUNTIME_DIR", &run)
            .env("UPCALL_DIR", run.join("upcall"))
            .env("TMPDIR", &run);
        command
    }

    fn client(&self, arguments: &[&str]) -> Output {
        self.command(CLIENT).args(arguments).output().unwrap()
    }

    fn tree(&self) -> &str {
        self.tree.to_str().unwrap()
    }

    /// Leftovers after the programs have ended, apart from folders that are kept for the next time.
    fn left_behind(&self) -> Vec<PathBuf> {
        let run = self.folder.path().join("run");
        let entries = |folder: &Path| {
            fs::read_dir(folder)
                .into_iter()
                .flatten()
                .map(|e| e.unwrap().path())
                .collect::<Vec<_>>()
        };
        let kept = run.join("upcall");
        entries(&run).into_iter().filter(|path| *path != kept).chain(entries(&kept)).collect()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// A process that does not outlive its test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

fn start(command: &mut Command) -> Running {
    Running(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
}

/// Waits for a line of standard error that contains `what`.
fn line_with(reader: &mut impl BufRead, what: &str) -> String {
    let mut line = String::new();
    while !line.contains(what) {
        line.clear();
        assert!(reader.read_line(&mut line).unwrap() > 0, "it ended without saying {what:?}");
    }
    line
}

#[test]
fn every_byte_comes_through() {
    let place = Place::new();
    let json = place.folder.path().join("result.json");
    let arguments = [
        place.tree(),
        "--rounds",
        "2",
        "--stats",
        "20",
        "--chunk",
        "4K",
        "--json",
        json.to_str().unwrap(),
    ];
    let output = place.client(&arguments);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let table = text(&output.stdout);
    for expected in [
        "50 files in 2 directories",
        "every byte came through",
        "plain function call",
        "Upcall",
        "Unix socket",
    ] {
        assert!(table.contains(expected), "{expected} is missing:\n{table}");
    }
    let json: Value = serde_json::from_slice(&fs::read(json).unwrap()).unwrap();
    let directly = read_tree(&place.tree, &mut |_| {}).unwrap();
    assert_eq!(json["sha256"], hex(&directly.sum()));
    let rows = json["rows"].as_array().unwrap();
    let named: Vec<_> =
        rows.iter().map(|r| (r["work"].as_str().unwrap(), r["system"].as_str().unwrap())).collect();
    let systems = ["plain function call", "Upcall", "Unix socket"];
    let expected: Vec<_> =
        ["walk", "stat"].iter().flat_map(|work| systems.map(|system| (*work, system))).collect();
    assert_eq!(named, expected);
    for row in &rows[..3] {
        assert_eq!(row["bytes"], directly.bytes(), "{row}");
        assert_eq!(row["calls"], rows[0]["calls"], "the work must be the same: {row}");
    }
    assert_eq!(place.left_behind(), Vec::<PathBuf>::new());
}

#[test]
fn json_can_be_all_of_standard_output() {
    let place = Place::new();
    let output = place.client(&[place.tree(), "--rounds", "1", "--stats", "1", "--json", "-"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["files"], 50);
}

#[test]
fn an_empty_tree() {
    let place = Place::new();
    let empty = place.folder.path().join("empty");
    fs::create_dir(&empty).unwrap();
    let output = place.client(&[empty.to_str().unwrap(), "--rounds", "1"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("0 files in 1 directories"));
}

#[test]
fn a_server_that_runs_already() {
    let place = Place::new();
    let socket = place.folder.path().join("run/socket");
    let mut server = start(
        place.command(SERVER).arg(&place.tree).args(["--name", "books", "--socket"]).arg(&socket),
    );
    line_with(&mut BufReader::new(server.0.stdout.take().unwrap()), "ready");
    let short = ["--rounds", "1", "--stats", "1", "--server", "books"];
    let output = place.client(&short);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(!text(&output.stdout).contains("Unix socket"));
    let output = place.client(&[&short[..], &["--socket", socket.to_str().unwrap()]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("Unix socket"));
    let output = place.client(&[&short[..], &["/usr"]].concat());
    assert!(text(&output.stderr).contains("not /usr"), "{}", text(&output.stderr));
    assert!(!output.status.success());
}

#[test]
fn a_server_that_is_interrupted_leaves_nothing_behind() {
    for signal in [Signal::INT, Signal::TERM] {
        let place = Place::new();
        let socket = place.folder.path().join("run/socket");
        let mut server = start(
            place
                .command(SERVER)
                .arg(&place.tree)
                .args(["--name", "books", "--socket"])
                .arg(&socket),
        );
        line_with(&mut BufReader::new(server.0.stdout.take().unwrap()), "ready");
        assert!(!place.left_behind().is_empty());
        kill_process(Pid::from_child(&server.0), signal).unwrap();
        assert!(server.0.wait().unwrap().success());
        assert_eq!(place.left_behind(), Vec::<PathBuf>::new(), "{signal:?}");
    }
}

#[test]
fn errors_say_what_to_do() {
    let place = Place::new();
    let file = place.tree.join("below/1");
    for (arguments, code, expected) in [
        (
            &["/no such directory"][..],
            1,
            "cannot open the directory /no such directory: No such file",
        ),
        (
            &[file.to_str().unwrap()],
            1,
            "is not a directory; name the directory whose files are to be served",
        ),
        (&["--server", "nobody"], 1, "nobody"),
        (&["--chunk", "5M"], 2, "from 1 to 4M"),
        (&["--chunk", "12X"], 2, "is no unit; write 64K or 1M"),
        (&["--rounds", "0"], 2, "0 is not in 1..=1000"),
        (&["--socket", "/x"], 2, "--server <NAME>"),
    ] {
        let output = place.client(arguments);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(said.contains(expected), "{arguments:?}: {said}");
        assert!(!said.contains("panicked"), "{arguments:?}: {said}");
    }
    assert_eq!(place.left_behind(), Vec::<PathBuf>::new());
}

#[test]
fn help_has_examples() {
    let place = Place::new();
    for program in [CLIENT, SERVER] {
        let help = text(&place.command(program).arg("--help").output().unwrap().stdout);
        assert!(help.contains("Examples:") && help.contains("/usr/share"), "{help}");
        assert!(!help.contains("as-server"), "{help}");
    }
}

#[test]
fn a_server_that_is_killed_ends_the_client_with_an_error() {
    let place = Place::new();
    let mut server = start(place.command(SERVER).arg(&place.tree).args(["--name", "mortal"]));
    line_with(&mut BufReader::new(server.0.stdout.take().unwrap()), "ready");
    let mut client = start(place.command(CLIENT).args(["--server", "mortal", "--rounds", "1000"]));
    let mut said = BufReader::new(client.0.stderr.take().unwrap());
    line_with(&mut said, "round 2");
    server.0.kill().unwrap();
    let since = Instant::now();
    let mut rest = String::new();
    said.read_to_string(&mut rest).unwrap();
    assert!(since.elapsed() < Duration::from_secs(60), "{rest}");
    assert_eq!(client.0.wait().unwrap().code(), Some(1), "{rest}");
    assert!(rest.contains("file-client: Upcall: ") && !rest.contains("panicked"), "{rest}");
}

#[test]
fn a_client_that_is_killed_takes_its_server_with_it() {
    let place = Place::new();
    let mut client = start(place.command(CLIENT).args([place.tree(), "--rounds", "1000"]));
    let mut said = BufReader::new(client.0.stderr.take().unwrap());
    line_with(&mut said, "round 1");
    let id = client.0.id();
    let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap();
    let server: u32 = children.trim().parse().unwrap();
    client.0.kill().unwrap();
    let since = Instant::now();
    // The process that adopts it may not collect it, so a zombie counts as ended.
    let ended = || {
        fs::read_to_string(format!("/proc/{server}/stat"))
            .map_or(true, |stat| stat.contains(") Z "))
    };
    while !ended() {
        assert!(
            since.elapsed() < Duration::from_secs(60),
            "the server {server} goes on without its client"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(place.left_behind(), Vec::<PathBuf>::new());
}
