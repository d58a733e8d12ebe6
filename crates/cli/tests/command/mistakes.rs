//! Typed mistakes, and what the command says to type instead.

use crate::scene::{Place, Served};
use std::process::Command;

/// A mistake is answered with one message without colours, and a code other than 0 and 1.
fn answer(place: &Place, arguments: &[&str]) -> String {
    let (code, out, error) = place.code(arguments);
    println!("    upcall {}: {}", arguments.join(" "), error.trim());
    assert!(code > 1 && out.is_empty(), "{arguments:?}: {code}: {out}{error}");
    assert!(!error.contains('\u{1b}'), "colours only on a terminal: {error:?}");
    error
}

#[test]
fn mistakes_are_told() {
    let place = Place::new();
    let (_server, _) = place.program("examples");
    for (arguments, parts) in [
        (&["call", "calendar.add", "1"][..], &["no process exports \"calendar\"", "upcall ls"][..]),
        // A typo in a name, a procedure, a subcommand and an option.
        (&["call", "maht.add", "1", "2"], &["Did you mean \"math\"?"]),
        (&["call", "math.ad", "1", "2"], &["\"math\" (test:far/far@1.0.0)", "mean \"add\"?"]),
        (&["call", "math.subtract"], &["It has ", "add"]),
        (&["threads", "greter"], &["Did you mean \"greeter\"?"]),
        (&["stat", "greter"], &["Did you mean \"greeter\"?"]),
        (&["cal", "math.add"], &["'call'"]),
        (&["ls", "--jsn"], &["'--json'"]),
        // A wrong number of arguments, or a wrong type.
        (&["call", "math.add", "1"], &["takes 2 arguments, and 1 was given", "math.add 1 1"]),
        (&["call", "math.add", "1", "true"], &["argument `b` is a s32", "math.add 1 1"]),
        (&["call", "math.add", "1", "2", "3"], &["and 3 were given"]),
        // Quotes that the shell has taken away, and words that it has split.
        (&["call", "math.join", "[a, b]"], &["double quotes", "math.join '[\"text\"]'"]),
        (&["call", "math.join", "[a,", "b]"], &["The shell has split", "single quotes"]),
        (
            &["call", "greeter.greet", "\"Ada"],
            &["argument `name` is a string, and its double quote is not closed", "single quotes"],
        ),
        (
            &["call", "greeter.greet", "\"Ada", "Lovelace\""],
            &["split the value that begins with `\"A"],
        ),
        (&["call", "files.open", "0x1"], &["pairs of hex digits", "'\"0x1\"'"]),
        (&["call", "greeter.greet", "@no-such"], &["cannot read no-such", "'\"@no-such\"'"]),
        (&["call", "files.file.read", "_", "0", "1"], &["no call before this one"]),
        (&["call", "files.root", "+"], &["a `+` has no procedure after it"]),
        // A handle of a command before, and a method without its resource.
        (&["call", "files.file.read", "1", "0", "1"], &["type `_` for the handle", "file.read _"]),
        (
            &["call", "files.open", "etc", "+", "read", "_", "0", "1"],
            &["has no procedure `read`. Did you mean \"file.read\"?"],
        ),
        // No call is made if a later one is wrong: `answer` finds no result printed.
        (&["call", "math.add", "1", "2", "+", "add", "1", "true"], &["argument `b` is a s32"]),
        (&["call", "files.root", "+", "open", "@no-such"], &["cannot read no-such"]),
        (
            &["call", "files", "etc"],
            &["names no procedure: type files.PROCEDURE; `upcall call files` shows"],
        ),
        (&["call", "--deadline", "soon", "math.add", "1", "2"], &["give seconds"]),
        (&["call", "--deadline=-1", "math.add", "1", "2"], &["give seconds"]),
        (
            &["call", "--deadline", "0", "math.add", "1", "2"],
            &["a deadline is the time after which the command gives up", "above 0"],
        ),
        // Without `--`, options of the program would be options of the command.
        (
            &["job", "run", "--group", "2", "./sieve", "--fast"],
            &["put `--` before the program", "job run --group N -- ./sieve …"],
        ),
        (&["job", "run", "sleep", "1"], &["put `--` before the program"]),
        (&["stat", "--interval", "0"], &["give seconds"]),
        (&["stat", "--pairs"], &["required arguments were not provided", "--groups"]),
        (&["pvm", "run", "--as-processes=300", "./p"], &["'300'", "a number from 1 to 255"]),
        (&["pvm", "run", "--procs", "257", "./p"], &["'257'", "a number from 1 to 256"]),
        (&["pvm", "run", "--procs", "0", "./p"], &["'0'", "a number from 1 to 256"]),
        (&["top"], &["needs a terminal", "upcall stat --interval 1 --json"]),
        (&["job", "stop", "absent"], &["there is no job \"absent\"", "upcall job ls"]),
        (&["completions", "tcsh"], &["bash", "fish", "zsh"]),
    ] {
        let error = answer(&place, arguments);
        for part in parts {
            assert!(error.contains(part), "{arguments:?}: {part}: {error}");
        }
    }
}

#[test]
fn mistakes_with_addresses_are_told() {
    let place = Place::new();
    let mistakes: [(&[&str], &[&str]); 8] = [
        (&["ls", "math"], &["tcp://HOST:PORT"]),
        (&["ls", "tcp://127.0.0.1:7000/math"], &["tcp://HOST:PORT"]),
        (&["call", "tcp://127.0.0.1/math.add", "1", "2"], &["tcp://HOST:PORT/NAME"]),
        (&["ls", "--expect", "any", "tcp://127.0.0.1:7000"], &["--expect is for servers on this"]),
        (&["stat", "tcp://127.0.0.1/math"], &["tcp://HOST:PORT"]),
        (&["stat", "--groups", "tcp://127.0.0.1:7000"], &["another machine", "`upcall stat`"]),
        (&["stat", "--expect", "0", "tcp://127.0.0.1:7000"], &["--expect is for servers on this"]),
        (&["top", "udp://127.0.0.1:7000"], &["tcp://HOST:PORT"]),
    ];
    for (arguments, parts) in mistakes {
        let error = answer(&place, arguments);
        for part in parts {
            assert!(error.contains(part), "{arguments:?}: {part}: {error}");
        }
    }
}

/// The same mistake has the same code in each command.
#[test]
fn a_missing_file_is_code_2_in_each_command() {
    let place = Place::new();
    let (_server, _) = place.program("examples");
    let wit = place.0.path().join("a.wit");
    std::fs::write(&wit, "package a:b; interface i { f: func(); }").expect("a file");
    let wit = wit.to_str().expect("a text");
    let text = place.0.path().join("text");
    std::fs::write(&text, "no program").expect("a file");
    let text = text.to_str().expect("a text");
    for arguments in [
        &["call", "greeter.greet", "@/no/such"][..],
        &["wit", "check", "/no/such.wit"],
        &["wit", "check", "/no/such.wit", wit],
        &["wit", "diff", "/no/such.wit", wit],
        &["wit", "emit", "/no/such.rs"],
        &["wit", "explain", "/no/such.wit"],
        &["wit", "generate", "/no/such.wit"],
        &["wit", "generate", wit, "-o", "/no/such/stubs.rs"],
        &["man", "--out", "/dev/null/man"],
        &["job", "run", "--group", "1", "--", "/no/such"],
        &["job", "run", "--group", "1", "--", text],
        &["pvm", "run", "/no/such"],
        &["pvm", "run", "--place", "/no/such", "/bin/true"],
    ] {
        let (code, _, error) = place.code(arguments);
        assert!(code == 2 && !error.is_empty(), "{arguments:?}: {code}: {error}");
    }
}

#[test]
fn a_name_on_another_machine_is_looked_for_there() {
    let place = Place::new();
    let (_server, address) = place.program("examples");
    let error = answer(&place, &["call", &format!("tcp://{address}/maht.add"), "1", "2"]);
    assert!(error.contains("Did you mean \"math\"?"), "{error}");
    let error = answer(&place, &["call", &format!("tcp://{address}/calendar.add"), "1", "2"]);
    assert!(error.contains(&format!("upcall ls tcp://{address}")), "{error}");
}

#[test]
fn a_server_that_does_not_run_is_named() {
    let place = Place::new();
    let (server, _) = place.program("math");
    drop(server);
    let error = answer(&place, &["call", "math.add", "1", "2"]);
    assert!(error.contains("\"math\"") && error.contains("start"), "{error}");
    let error = answer(&place, &["threads", "math"]);
    assert!(error.contains("\"math\""), "{error}");
}

/// The folder of names in the environment is not the server's.
#[test]
fn a_wrong_folder_is_answered_with_the_right_one() {
    let place = Place::new();
    let (_server, _) = place.program("math");
    let other = tempfile::tempdir().expect("a folder");
    let error_of = |folder: &str, call: &str| {
        let mut command = place.upcall(&["call", call, "1", "2"]);
        let output = command.env("UPCALL_DIR", folder).output().expect("the command starts");
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        println!("    UPCALL_DIR={folder}: {}", error.trim());
        (output.status.code(), error)
    };
    let error = |folder: &str| error_of(folder, "math.add");
    // Another test's server may have the name as well, so the folder may be that server's.
    let (code, text) = error(other.path().to_str().expect("a text"));
    assert!(code == Some(3) && text.contains("set UPCALL_DIR=/"), "{text}");
    let (code, text) = error("/no/such/folder");
    assert!(code == Some(3) && text.contains("set UPCALL_DIR=/"), "{text}");
    let (code, text) = error_of("/no/such/folder", "calendar.add");
    assert!(code == Some(3) && text.contains("/no/such/folder, which does not exist"), "{text}");
    let (code, text) = error("");
    assert!(code == Some(2) && text.contains("UPCALL_DIR is empty"), "{text}");
    let (code, text) = error("names");
    assert!(code == Some(2) && text.contains("relative path"), "{text}");
    for command in [&["ls"][..], &["stat"], &["threads", "math"]] {
        let output = place.upcall(command).env("UPCALL_DIR", "").output().expect("it starts");
        assert_eq!(output.status.code(), Some(2), "{command:?}");
    }
    // All folders are listed, with the user and the folder of each server.
    let all = place.json(&["ls", "--all", "--json"]);
    let names = place.names();
    let row = all
        .as_array()
        .expect("an array")
        .iter()
        .find(|row| row["folder"] == names.to_str().expect("a text") && row["name"] == "math");
    assert!(row.is_some_and(|row| row["user"].is_u64() && row["pid"].is_u64()), "{all}");
    let mut elsewhere = place.upcall(&["ls", "--all"]);
    let output = elsewhere.env("UPCALL_DIR", other.path()).output().expect("the command starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("FOLDER") && text.contains(names.to_str().expect("a text")), "{text}");
}

#[test]
fn a_second_server_of_the_name_is_told_of_the_first() {
    let place = Place::new();
    let (first, _): (Served, _) = place.program("math");
    let (_second, report) = place.program("math");
    let pid = first.0.id();
    assert!(
        report.contains(&format!("\"math\" is exported by process {pid} already"))
            && report.contains("choose another name"),
        "{report}"
    );
    // The first server still has the name.
    assert_eq!(place.run(&["call", "math.add", "1", "2"]).1, "3\n");
}

/// The limit of processes is reached, so the kernel gives the command no second thread.
#[test]
fn servers_are_asked_without_a_second_thread() {
    let place = Place::new();
    // The limit does not hold for root.
    let user = Some(4_000_061).filter(|_| crate::scene::user() == 0);
    let (command, _server) = match user {
        None => (env!("CARGO_BIN_EXE_upcall").into(), place.program("math").0),
        Some(user) => {
            place.open_for_all();
            // That user may not be able to read the folder in which the command was built.
            let copy = place.0.path().join("upcall");
            crate::scene::copy(env!("CARGO_BIN_EXE_upcall").as_ref(), &copy);
            (copy, place.program_as("math", user).0)
        }
    };
    let run = |arguments: &[&str]| {
        let mut limited = Command::new("prlimit");
        limited.arg("--nproc=1:1").arg(&command).args(arguments);
        limited.env("UPCALL_DIR", place.names()).env_remove("XDG_RUNTIME_DIR");
        user.map(|user| crate::scene::as_user(&mut limited, user));
        let output = limited.output().expect("prlimit starts");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let (code, out, error) = run(&["ls"]);
    assert!(code == Some(0) && out.contains("test:far/far"), "{code:?}: {out}{error}");
    let (code, out, error) = run(&["stat"]);
    assert!(code == Some(0) && out.contains("no client is bound"), "{code:?}: {out}{error}");
    let (code, out, error) = run(&["call", "--deadline", "20", "math.add", "1", "2"]);
    let text = "upcall: cannot start the thread that --deadline needs: ";
    assert!(code == Some(4) && out.is_empty() && error.starts_with(text), "{error}");
    let (code, out, error) = run(&["threads", "math"]);
    assert!(code != Some(101) && out.is_empty() && !error.contains("panicked"), "{error}");
}

/// Runs these commands at the same time, as each of them may wait for a server.
fn together(place: &Place, commands: &[&[&str]]) -> Vec<(i32, String, String)> {
    std::thread::scope(|scope| {
        let running: Vec<_> =
            commands.iter().map(|arguments| scope.spawn(|| place.code(arguments))).collect();
        running.into_iter().map(|one| one.join().expect("a command")).collect()
    })
}

/// A stopped server does not answer, but is found by its name.
#[test]
fn a_stopped_server_is_reported() {
    let place = Place::new();
    let (server, _) = place.program("math");
    let pid = server.0.id().to_string();
    let signal = |name: &str| {
        let kill = Command::new("kill").args([name, &pid]).status();
        assert!(kill.expect("kill runs").success());
    };
    signal("-STOP");
    crate::until("the server is stopped", || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.contains(") T ")
    });
    let asked: &[&[&str]] = &[
        // The deadline covers binding: without it the command waits for 5 s.
        &["call", "--deadline", "0.05", "math.add", "1", "2"],
        &["call", "math.add", "1", "2"],
        &["ls"],
        &["stat"],
        &["stat", "math"],
        &["stat", "--held", "math"],
    ];
    for (arguments, (code, out, error)) in asked.iter().zip(together(&place, asked)) {
        let text =
            format!("upcall: \"math\": process {pid} does not answer, because it is stopped");
        assert!(code == 5 && error.starts_with(&text), "{arguments:?}: {code}: {error}");
        assert!(error.lines().count() == 1 && out.is_empty(), "{arguments:?}: {out}{error}");
    }
    // Anybody can enter more names for the socket, and a name that was asked for comes first.
    let socket = std::fs::read_dir(place.names().join("math")).expect("a folder").next();
    let socket = socket.expect("a link").expect("a link").file_name();
    for number in 0..9 {
        let name = place.names().join(format!("a{number}"));
        std::fs::create_dir(&name).expect("a name");
        let link = std::path::Path::new("..").join(&socket);
        std::os::unix::fs::symlink(link, name.join(&socket)).expect("a link");
    }
    let asked: [&[&str]; 4] =
        [&["ls"], &["stat", "math"], &["stat", "maht"], &["stat", "--held", "maht"]];
    let answers = together(&place, &asked);
    let text =
        "upcall: \"a0\", \"a1\", \"a2\", \"a3\", \"a4\", \"a5\", \"a6\", \"a7\" and 2 more: ";
    assert!(answers[0].2.starts_with(text), "{answers:?}");
    let (_, _, error) = &answers[1];
    assert!(error.starts_with("upcall: \"math\", \"a0\", ") && error.contains(" and 2 more: "));
    // A question about another name is not answered with this server.
    let (code, _, error) = &answers[2];
    assert!(*code == 3 && error.contains("Did you mean \"math\"?"), "{error}");
    assert!(error.lines().count() == 1, "{error}");
    let (code, out, error) = &answers[3];
    assert!(*code == 3 && out.is_empty() && error.contains("Did you mean \"math\"?"), "{error}");
    // Nor does it hide that a server which answers has no clients.
    let (_other, _) = place.program("serve");
    let (code, out, error) = place.code(&["stat", "far"]);
    assert!(code == 0 && out.contains("no client is bound") && error.is_empty(), "{out}{error}");
    signal("-CONT");
}
