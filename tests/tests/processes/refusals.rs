//! Bad input: each mistake gives an error of its own, whose text says what to do.

use crate::{in_company, place};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::time::{Duration, Instant};
use upcall_tests::party::Said;
use upcall_tests::place::enter;
use upcall_tests::speech::VERSION;

#[test]
fn names() {
    let _company = in_company();
    let place = place();
    let mut client = place.client();
    // No test exports this name, in any folder.
    client
        .ask("bind calendar")
        .expect_error("NoSuchName", &["\"calendar\"", "start its server", "upcall ls"]);
    let long = "x".repeat(65);
    for (bad, why) in [
        ("EMPTY", "it is empty"),
        ("../etc", "letter or a digit"),
        (&*long, "64 characters"),
        ("domain.1", "Upcall's own"),
        ("a/b", "ASCII letters"),
    ] {
        client.ask(&format!("bind {bad}")).expect_error("BadName", &["cannot be a name", why]);
        place
            .start(&format!("serve {bad}"))
            .hear()
            .expect_error("BadName", &["cannot be a name", why]);
    }
    let server = place.serve("trial");
    let pid = server.pid().to_string();
    place.start("serve trial").hear().expect_error("NameTaken", &[&pid, "choose another name"]);
    client.ask("bind trial").expect_ok("the first server is not disturbed");
}

#[test]
fn a_full_table_does_not_take_a_live_servers_name() {
    let _company = in_company();
    let place = place();
    let server = place.serve("trial");
    // A server that cannot open a descriptor to check whether the name's holder lives.
    for limit in 3..24 {
        let mut command = place.command("serve trial");
        // `Command::pre_exec` is unsafe; the shell sets the limit instead.
        let program = command.get_program().to_owned();
        command = std::process::Command::new("sh");
        command.env("UPCALL_DIR", place.names()).arg("-c");
        command.arg(format!("ulimit -n {limit}; exec \"$0\" serve trial")).arg(program);
        let output = command.stdin(std::process::Stdio::null()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            !text.starts_with("ok"),
            "with {limit} descriptors the name of process {} was taken: {text}",
            server.pid()
        );
        println!(
            "{limit}: {} {}",
            text.trim(),
            String::from_utf8_lossy(&output.stderr).lines().next().unwrap_or_default()
        );
        let mut client = place.client();
        client.ask("bind trial").expect_ok("the first server is not disturbed");
    }
}

#[test]
fn interfaces() {
    let _company = in_company();
    let place = place();
    let _server = place.serve("trial");
    let mut client = place.client();
    client.ask("bind trial as other").expect_error(
        "WrongInterface",
        &["upcall:tests/trial@1.0.0", "upcall:other/other@1.0.0", "bind another name"],
    );
    client.ask("bind trial as changed").expect_error(
        "Mismatch",
        &["add: this program has", "u64", "the server has", "u32", "rebuild one of the two"],
    );
    client.ask("bind trial as older").expect_ok("added procedures break no client");
    client.ask("bind trial").expect_ok("binding");
}

#[test]
fn arguments() {
    let _company = in_company();
    let place = place();
    let _server = place.serve("trial");
    let mut client = place.client();
    client.ask("bind trial").expect_ok("binding");
    client.ask("limited 1000 100").expect_ok("as long as allowed");
    client.ask("limited 1001 0").expect_error("TooLong", &["string of 1001", "limit of 1000"]);
    client.ask("limited 0 101").expect_error("TooLong", &["list of 101", "limit of 100"]);
    client.ask("fail because").expect_error("Panicked", &["because"]);
    let long = "x".repeat(4000);
    client.ask(&format!("fail {long}")).expect_error("Panicked", &["xxx"]);
    client.ask("open-brittle").expect_ok("opening");
    client
        .ask("drop-things")
        .expect_ok("an object that panics when dropped is the server's matter");
    assert_eq!(client.ask("add 2 3").numbers("add"), [5], "the server goes on");
}

#[test]
fn a_policy_refuses() {
    let _company = in_company();
    let place = place();
    let _server = place.serve("trial refuse");
    let mut client = place.client();
    client.ask("bind trial").expect_error("Denied", &["is not on the list"]);
}

#[test]
fn something_else_listens() {
    let _company = in_company();
    let place = place();
    for manner in ["noise", "hang-up", "other-answer", "few-descriptors", "silence"] {
        let mut impostor = place.start(&format!("impostor {manner} {manner}"));
        impostor.hear().expect_ok("an impostor");
        let mut client = place.client();
        let start = Instant::now();
        let (kind, part) = match manner {
            "silence" => ("NoAnswer", "stopped or overloaded"),
            "hang-up" => ("HungUp", "its process has not ended"),
            _ => ("Protocol", "broke the protocol"),
        };
        for _ in 0..if manner == "noise" { 20 } else { 1 } {
            match client.ask(&format!("bind {manner}")) {
                // Noise that happens to be an answer to another request does not answer this one.
                Said::Error { kind, .. } if manner == "noise" && kind.starts_with("NoAnswer") => {
                    break;
                }
                said => said.expect_error(kind, &[part]),
            };
        }
        assert!(start.elapsed() < Duration::from_secs(50), "{manner}");
    }
    // A socket of another kind.
    let place = crate::place();
    std::fs::create_dir_all(place.names()).unwrap();
    let _stream = std::os::unix::net::UnixListener::bind(place.names().join("domain.1.1")).unwrap();
    enter(&place.names(), "stream", "domain.1.1");
    std::fs::write(place.names().join("domain.1.2"), "no socket").unwrap();
    enter(&place.names(), "file", "domain.1.2");
    let mut client = place.client();
    client.ask("bind stream").expect_error("Resource", &["connecting to"]);
    client.ask("bind file").expect_error("ServerGone", &["start it again"]);
}

#[test]
fn a_silent_server_holds_up_its_own_binders_only() {
    const BINDERS: u64 = 16;
    let _company = in_company();
    let place = place();
    let mut impostor = place.start("impostor mute silence");
    impostor.hear().expect_ok("an impostor");
    let _server = place.serve("trial");
    // On a busy machine the others may give up first. A bind that waits for them ends after them
    // each time.
    let in_time = (0..5).any(|_| {
        let words =
            place.client().ask(&format!("bind-beside mute trial {BINDERS}")).expect_ok("binding");
        println!(
            "    while {} of {BINDERS} waited for the silent server; each gave up after {} \
            ms at most",
            words[0], words[1]
        );
        // The others wait for each other and for the server, together about as long as one of them
        // alone, 5 s. One after the other they would take 80 s.
        assert!(words[1].parse::<u64>().unwrap() < 60_000, "{words:?}");
        assert_eq!(words[2..], ["NoAnswer.name"]);
        words[0] == BINDERS.to_string()
    });
    assert!(in_time, "a bind waits for the binders to another server");
}

#[test]
fn a_server_of_another_version() {
    let _company = in_company();
    let place = place();
    let mut impostor = place.start("impostor ahead other-version");
    impostor.hear().expect_ok("an impostor");
    let mut client = place.client();
    let (own, other) = (format!("version {VERSION}"), format!("version {}", VERSION + 1));
    // The same result each time: nothing is kept about a server that cannot be understood.
    for _ in 0..3 {
        client.ask("bind ahead").expect_error(
            "Version",
            &["\"ahead\"", &own, &other, "build both with the same version"],
        );
    }
    let _server = place.serve("trial");
    client.ask("bind trial").expect_ok("a server of our own version");
    assert_eq!(client.ask("add 2 3").numbers("add"), [5]);
}

#[test]
#[expect(clippy::too_many_lines, reason = "one step for each folder")]
fn folders_of_names() {
    let _company = in_company();
    let place = place();
    let with = |folder: &std::path::Path| {
        let mut command = place.command("serve trial");
        command.env("UPCALL_DIR", folder).stdin(std::process::Stdio::null());
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    // Not a directory.
    let file = place.path().join("file");
    std::fs::write(&file, "").unwrap();
    let text = with(&file);
    assert!(text.contains("error Folder") && text.contains("UPCALL_DIR"), "{text}");
    // Below something that is no directory.
    let text = with(&file.join("below"));
    assert!(text.contains("error Folder") && text.contains("folder of names"), "{text}");
    // A path too long for a socket.
    let text = with(&place.path().join("x".repeat(120)));
    println!("{text}");
    assert!(
        text.contains("error Resource") && text.contains("UPCALL_DIR"),
        "what to do is missing: {text}"
    );
    if !rustix::process::geteuid().is_root() {
        let text = with(std::path::Path::new("/root/upcall"));
        assert!(text.contains("error Folder"), "{text}");
        return eprintln!("skipped: not run as root: other users' folders are not tested");
    }
    // As another user: root's directory may not be entered, or not be written.
    let other = |folder: &std::path::Path, arguments: &str| {
        let mut command = place.command(arguments);
        let program = place.path().join("party");
        if !program.exists() {
            upcall_tests::place::copy_program(command.get_program().as_ref(), &program);
        }
        command = std::process::Command::new(program);
        command.args(arguments.split_whitespace()).env("UPCALL_DIR", folder).uid(65534).gid(65534);
        command.stdin(std::process::Stdio::null());
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    std::fs::set_permissions(place.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let roots = place.path().join("roots");
    std::fs::create_dir(&roots).unwrap();
    let text = other(&roots, "serve trial");
    assert!(text.contains("error Folder") && text.contains("this user may not"), "{text}");
    let text = other(&place.path().join("new"), "serve trial");
    assert!(text.contains("error Folder") && text.contains("this user may not"), "{text}");
    // A name in a directory that every user may read, exported by root for root alone.
    let shared = place.path().join("shared");
    let mut command = place.command("serve trial");
    let mut server =
        command.env("UPCALL_DIR", &shared).stdin(std::process::Stdio::piped()).spawn().unwrap();
    upcall_tests::place::eventually("it serves", || {
        shared.join("trial.small").exists().then_some(()).ok_or_else(String::new)
    });
    for entry in std::fs::read_dir(&shared).unwrap() {
        std::fs::set_permissions(entry.unwrap().path(), std::fs::Permissions::from_mode(0o777))
            .unwrap();
    }
    std::fs::set_permissions(&shared, std::fs::Permissions::from_mode(0o755)).unwrap();
    let ask = |uid: u32| {
        use std::io::Write;
        let mut command = std::process::Command::new(place.path().join("party"));
        command
            .arg("client")
            .env("UPCALL_DIR", &shared)
            .uid(uid)
            .stdin(std::process::Stdio::piped());
        let mut child = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(b"bind trial\n").unwrap();
        String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap()
    };
    let (mine, his) = (ask(0), ask(65534));
    let _ = server.kill();
    let _ = server.wait();
    assert!(mine.starts_with("ok"), "{mine}");
    assert!(his.contains("error Denied") && his.contains("the peer is user 65534"), "{his}");
}
