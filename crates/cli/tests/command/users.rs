//! Servers of other users. Only root can start such servers.

use crate::scene::{Place, Served, as_user, copy, user};
use std::fs;
use std::process::Command;

/// Two users without a name, as a system may have them.
const ALICE: u32 = 61_001;
const BOB: u32 = 61_002;

/// A folder of names in which each user may enter names, or `None` if this is not root.
fn shared() -> Option<Place> {
    if user() != 0 {
        eprintln!("skipped: only root can start servers of other users");
        return None;
    }
    let place = Place::new();
    place.open_for_all();
    Some(place)
}

#[test]
fn a_server_of_another_user_is_accepted_if_the_user_is_expected() {
    let Some(place) = shared() else { return };
    let (_server, _) = place.program_as("shared", ALICE);
    for command in [&["call", "greeter.greet", "Ada"][..], &["call", "greeter"], &["ls"], &["stat"]]
    {
        let (code, out, error) = place.code(command);
        assert!(code == 4 && out.is_empty(), "{command:?}: {code}: {out}{error}");
        let text = format!("upcall: \"greeter\": the server runs as user {ALICE}");
        assert!(error.starts_with(&text), "{error}");
        assert!(error.contains(&format!("add `--expect {ALICE}` if")), "{error}");
    }
    for expected in [&ALICE.to_string(), "any"] {
        let call = ["call", "--expect", expected, "greeter.greet", "Ada"];
        assert_eq!(place.code(&call), (0, "\"Hello, Ada!\"\n".into(), String::new()));
        let (code, out, error) = place.code(&["ls", "--procedures", "--expect", expected]);
        assert!(code == 0 && out.contains("greet: func"), "{out}{error}");
        let rows = place.json(&["stat", "--held", "--json", "greeter", "--expect", expected]);
        assert_eq!(rows[0]["names"][0], "greeter", "{rows}");
        let (code, out, error) = place.code(&["stat", "--expect", expected]);
        assert!(code == 0 && error.is_empty(), "{out}{error}");
    }
    assert_eq!(place.code(&["stat", "--expect", "61003"]).0, 4);
    let call = ["call", "--expect", "61003", "greeter.greet", "Ada"];
    assert_eq!(place.code(&call).0, 4);
}

/// Another user can have any number of sockets in a shared folder.
#[test]
fn servers_that_are_only_expected_are_asked_within_bounds() {
    let Some(place) = shared() else { return };
    // Each hard link is one more socket of the same server. A server has at most 64 connections of
    // one process, so the sockets are of three.
    let _servers = [24, 23, 23].map(|sockets| {
        let (server, _) = place.program_as("shared", ALICE);
        let name = place.names().join("greeter");
        let link = fs::read_dir(&name).expect("a folder").next();
        let socket = place.names().join(link.expect("a link").expect("a link").file_name());
        for number in 1..sockets {
            let more = format!("{}{number:02}", socket.display());
            fs::hard_link(&socket, more).expect("a link");
        }
        // The next server has the same name.
        fs::remove_dir_all(name).expect("a name");
        server
    });
    for expected in [&ALICE.to_string(), "any"] {
        let (code, out, error) = place.code(&["ls", "--json", "--expect", expected]);
        assert_eq!((code, out.matches("\"greeter\"").count()), (0, 64), "{error}");
        assert!(error.contains("6 servers of other users were not asked"), "{error}");
        let (code, out, error) = place.code(&["stat", "--held", "--json", "--expect", expected]);
        let rows: serde_json::Value = serde_json::from_str(&out).expect("JSON");
        let kinds = upcall::directory::HELD.len();
        assert_eq!((code, rows.as_array().map(Vec::len)), (0, Some(64 * kinds)), "{error}");
        assert!(error.contains("6 servers of other users were not asked"), "{error}");
    }
    // The bounds are for users who are expected: the sockets of others take no places.
    let (_expected, _) = place.program_as("math", BOB);
    let (code, out, error) = place.code(&["ls", "--json", "--expect", &BOB.to_string()]);
    // The server of that user was asked, and refuses root.
    let refuses = error.contains("refuses this client: the peer is user 0");
    assert!(code == 4 && refuses && !error.contains("not asked"), "{out}{error}");
}

/// The second user can neither ask the kernel who listens at the socket, nor remove the name.
#[test]
fn what_a_killed_server_of_another_user_left_is_named() {
    let Some(place) = shared() else { return };
    let (first, report) = place.program_as("private", ALICE);
    assert!(report.is_empty(), "{report}");
    let (_second, report) = place.program_as("private", BOB);
    assert!(report.contains("a process of another user"), "{report}");
    drop::<Served>(first);
    let (_third, report) = place.program_as("private", BOB);
    let entry = place.names().join("greeter").display().to_string();
    assert!(report.contains("has ended") && report.contains(&entry), "{report}");
    // That user may not be able to read the folder in which the command was built.
    let command = place.0.path().join("upcall");
    copy(env!("CARGO_BIN_EXE_upcall").as_ref(), &command);
    let mut call = Command::new(command);
    call.args(["call", "greeter.greet", "Ada"]).env("UPCALL_DIR", place.names());
    let output = as_user(&mut call, BOB).output().expect("the command starts");
    let error = String::from_utf8_lossy(&output.stderr);
    let folder = place.names().display().to_string();
    let left = format!("a server of user `{ALICE}` has ended and left its socket {folder}");
    assert!(output.status.code() == Some(3) && error.contains(&left), "{error}");
    let remedy = format!("let one of them run `UPCALL_DIR={folder} upcall ls`");
    assert!(error.contains("(\"greeter\")") && error.contains(&remedy), "{error}");
    // The command of the text removes the name, too.
    assert_eq!(place.code(&["ls"]).0, 0);
    let (_fourth, report) = place.program_as("private", BOB);
    assert!(report.is_empty(), "{report}");
}

/// Neither the sweep nor the kernel's answer depends on whether the socket lets the second user in.
#[test]
fn a_killed_server_of_another_user_is_no_failure_of_a_list() {
    for served in ["private", "shared"] {
        let Some(place) = shared() else { return };
        let (server, _) = place.program_as(served, ALICE);
        drop::<Served>(server);
        let folder = place.names().display().to_string();
        let command = place.0.path().join("upcall");
        copy(env!("CARGO_BIN_EXE_upcall").as_ref(), &command);
        let run = |arguments: &[&str]| {
            let mut upcall = Command::new(&command);
            upcall.args(arguments).env("UPCALL_DIR", place.names());
            let output = as_user(&mut upcall, BOB).output().expect("the command starts");
            let error = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(!error.contains("start it again"), "{served} {arguments:?}: {error}");
            let left = format!("a server of user `{ALICE}` has ended and left its socket {folder}");
            assert!(error.contains(&left), "{served} {arguments:?}: {error}");
            assert!(error.contains("(\"greeter\")"), "{served} {arguments:?}: {error}");
            let remedy = format!("let one of them run `UPCALL_DIR={folder} upcall ls`");
            assert!(error.contains(&remedy), "{served} {arguments:?}: {error}");
            output.status.code()
        };
        for arguments in [&["ls"][..], &["ls", "--json"], &["stat"], &["stat", "--held"]] {
            assert_eq!(run(arguments), Some(0), "{served} {arguments:?}");
        }
        // Nothing of a name that was asked for can be shown.
        assert_eq!(run(&["stat", "greeter"]), Some(3));
        // The command of the text removes the socket.
        assert_eq!(place.code(&["ls"]).0, 0);
        assert_eq!(fs::read_dir(place.names()).expect("a folder").count(), 0);
    }
}

/// Another user can leave any number of sockets in a shared folder, under names of any characters.
#[test]
fn of_many_killed_servers_of_another_user_some_are_shown() {
    let Some(place) = shared() else { return };
    let (server, _) = place.program_as("private", ALICE);
    let entries = fs::read_dir(place.names()).expect("a folder").flatten();
    let socket = entries.map(|entry| entry.path()).find(|path| !path.is_dir()).expect("a socket");
    for number in 1..20 {
        let more = format!("{}{number:02}\nupcall: forged", socket.display());
        fs::hard_link(&socket, more).expect("a link");
    }
    drop::<Served>(server);
    let command = place.0.path().join("upcall");
    copy(env!("CARGO_BIN_EXE_upcall").as_ref(), &command);
    for arguments in ["ls", "stat"] {
        let mut upcall = Command::new(&command);
        upcall.arg(arguments).env("UPCALL_DIR", place.names());
        let output = as_user(&mut upcall, BOB).output().expect("the command starts");
        let error = String::from_utf8_lossy(&output.stderr);
        let begins = |with: &str| error.lines().filter(|line| line.starts_with(with)).count();
        assert!(output.status.success() && begins("upcall: ") == 0, "{arguments}: {error}");
        assert_eq!(begins("a server of user `"), 8, "{arguments}: {error}");
        assert_eq!(begins("12 more servers of other users have ended"), 1, "{arguments}: {error}");
        assert_eq!(error.lines().count(), 9, "{arguments}: {error}");
    }
}

#[test]
fn a_group_without_the_servers_user_is_named() {
    let Some(place) = shared() else { return };
    let (_server, report) = place.program_as("grouped", ALICE);
    let text = format!("user `{ALICE}` is not a member of group `root`");
    assert!(report.contains(&text), "{report}");
}
