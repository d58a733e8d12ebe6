//! The command among other programs: pipes, colours, completion, manual pages.

use crate::scene::Place;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// The environment of a script that finds the command and the servers of a place.
pub fn shell(place: &Place, program: &str, script: &str) -> Command {
    let bin = Path::new(env!("CARGO_BIN_EXE_upcall")).parent().expect("a folder");
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap_or_default());
    let folder = place.0.path();
    let mut shell = Command::new(program);
    shell.args(["-c", script]).current_dir(folder).stdin(Stdio::null());
    shell.env("PATH", path).env("UPCALL_DIR", place.names()).env_remove("XDG_RUNTIME_DIR");
    shell.env("TMPDIR", folder).env("HOME", folder).env_remove("XDG_CACHE_HOME");
    shell.env_remove("XDG_CONFIG_HOME").env_remove("UPCALL_HOSTS");
    shell
}

fn text(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

/// Returns `true` if a program can be run; otherwise says that a test is skipped.
pub fn is_there(program: &str) -> bool {
    let is_there = has(program);
    if !is_there {
        eprintln!("skipped: there is no {program}");
    }
    is_there
}

fn has(program: &str) -> bool {
    let mut find = Command::new("sh");
    find.args(["-c", &format!("command -v {program}")]).stdout(Stdio::null());
    find.status().is_ok_and(|status| status.success())
}

#[test]
fn a_closed_pipe_ends_the_command_quietly() {
    let place = Place::new();
    let (_server, _) = place.program("examples");
    for arguments in [
        &["ls", "--procedures"][..],
        &["ls", "--json"],
        &["call", "math"],
        &["call", "math.add", "1", "2"],
        &["stat", "--held"],
        &["environment"],
        &["completions", "bash"],
        &["job", "ls"],
    ] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let output = place.upcall(arguments).stdout(writer).output().expect("the command starts");
        let (_, error) = text(&output);
        assert_eq!((output.status.code(), error.as_str()), (Some(141), ""), "{arguments:?}");
    }
    // A failure is not hidden, and the calls after the first result are made.
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let calls = ["call", "files.root", "+", "open", "no-such-file"];
    let output = place.upcall(&calls).stdout(writer).output().expect("the command starts");
    assert_eq!(output.status.code(), Some(1), "{}", text(&output).1);
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full");
    let Ok(full) = full else { return };
    let output = place.upcall(&["ls"]).stdout(full).output().expect("the command starts");
    let (_, error) = text(&output);
    assert!(
        output.status.code() == Some(1) && error.contains("cannot write the standard output"),
        "{error}"
    );
}

#[test]
fn colours_are_for_terminals_only_and_no_color_turns_them_off() {
    let place = Place::new();
    let (_server, _) = place.program("math");
    let coloured = |arguments: &[&str], variables: &[(&str, &str)]| {
        let mut command = place.upcall(arguments);
        command.env_remove("NO_COLOR").env_remove("CLICOLOR_FORCE").envs(variables.to_vec());
        let (out, error) = text(&command.output().expect("the command starts"));
        assert!(out.contains("math"), "{out}{error}");
        out.contains('\u{1b}')
    };
    assert!(!coloured(&["ls"], &[]));
    assert!(coloured(&["--color", "always", "ls"], &[]));
    assert!(coloured(&["ls", "--color=always"], &[("NO_COLOR", "1")]));
    assert!(coloured(&["ls"], &[("CLICOLOR_FORCE", "1")]));
    assert!(!coloured(&["ls", "--color", "never"], &[("CLICOLOR_FORCE", "1")]));
    if !is_there("script") {
        return;
    }
    let terminal = |variables: &str| {
        let script = format!("script -qec '{variables} upcall ls' /dev/null");
        let mut shell = shell(&place, "sh", &script);
        shell.env_remove("NO_COLOR").env("TERM", "xterm");
        text(&shell.output().expect("a shell")).0
    };
    assert!(terminal("").contains("\u{1b}[1m"));
    assert!(!terminal("NO_COLOR=1").contains('\u{1b}'));
}

#[test]
fn bash_completes_subcommands_options_and_names() {
    if !is_there("bash") {
        return;
    }
    let place = Place::new();
    let (_server, _) = place.program("examples");
    let complete = |words: &str| {
        let script = format!(
            r#"eval "$(upcall completions bash)"
            COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
            _upcall_names upcall "${{COMP_WORDS[COMP_CWORD]}}" "${{COMP_WORDS[COMP_CWORD-1]}}"
            printf '%s\n' "${{COMPREPLY[@]}}""#
        );
        let output = shell(&place, "bash", &script).output().expect("bash");
        let (out, error) = text(&output);
        assert_eq!(error, "", "{words}");
        out.lines().map(String::from).collect::<Vec<_>>()
    };
    assert_eq!(complete("upcall cal"), ["call", "calibrate"]);
    assert_eq!(complete("upcall ls --js"), ["--json"]);
    assert_eq!(complete("upcall call gr"), ["greeter"]);
    assert_eq!(complete("upcall threads ma"), ["math"]);
    assert_eq!(complete("upcall job st"), ["stop"]);
    assert_eq!(complete("upcall --color n"), ["never"]);
}

#[test]
fn other_shells_have_scripts_as_well() {
    let place = Place::new();
    for (shell, part) in
        [("zsh", "#compdef upcall"), ("fish", "complete -c upcall"), ("fish", "upcall ls --names")]
    {
        let (done, script, error) = place.run(&["completions", shell]);
        assert!(done && script.contains(part) && script.contains("threads"), "{shell}: {error}");
        // The parts above are all that is checked on a machine without the shell.
        if has(shell) {
            let file = place.0.path().join(shell);
            std::fs::write(&file, script).expect("a file");
            let parsed = Command::new(shell).arg("-n").arg(&file).status().expect("it starts");
            assert!(parsed.success(), "{shell}");
        }
    }
}

#[test]
fn manual_pages_are_written_and_have_no_fault() {
    let place = Place::new();
    let folder = place.0.path().join("man/man1");
    let out = folder.to_str().expect("a text");
    let (done, list, error) = place.run(&["man", "--out", out]);
    assert!(done, "{error}");
    for page in ["upcall.1", "upcall-call.1", "upcall-job-run.1", "upcall-pvm-ps.1"] {
        assert!(list.contains(page), "{page}: {list}");
    }
    for page in list.lines() {
        let text = std::fs::read_to_string(page).expect("a page");
        for part in [".TH UPCALL", ".SH NAME", ".SH SYNOPSIS", ".SH DESCRIPTION", "EXAMPLES"] {
            assert!(text.contains(part), "{page}: {part}");
        }
        if !has("groff") {
            continue;
        }
        let mut groff = Command::new("groff");
        groff.args(["-man", "-Tutf8", "-ww", "-z"]).arg(page);
        let output = groff.output().expect("groff");
        let faults = String::from_utf8_lossy(&output.stderr).into_owned();
        // A small installation lacks fonts, which is not the page's fault.
        let faults: Vec<_> = faults.lines().filter(|line| line.contains(".1:")).collect();
        assert!(faults.is_empty(), "{page}: {faults:?}");
    }
    let call = std::fs::read_to_string(folder.join("upcall-call.1")).expect("a page");
    assert!(
        call.contains("\nupcall call greeter.greet Ada") || call.contains("greet Ada"),
        "{call}"
    );
    let (code, _, error) = place.code(&["man", "--out", "/dev/null/man"]);
    assert!(code != 0 && error.contains("cannot write manual pages to /dev/null/man"), "{error}");
}

/// `top` draws on a terminal, and ends with `q`.
#[test]
fn top_runs_on_a_terminal_until_q() {
    if !is_there("script") {
        return;
    }
    let place = Place::new();
    let (_server, _) = place.program("math");
    let script = "stty rows 24 columns 60 2>/dev/null; upcall top --interval 0.1";
    let mut shell = shell(&place, "sh", &format!("script -qec '{script}' /dev/null"));
    shell.env("TERM", "xterm").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = shell.spawn().expect("a shell");
    let mut keys = child.stdin.take().expect("a pipe");
    let mut out = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut seen = Vec::new();
    // The last line of the screen is drawn, and then the help.
    for (part, key) in [("next", b"?"), ("Views", b"q")] {
        while !String::from_utf8_lossy(&seen).contains(part) {
            let bytes = out.fill_buf().expect("a screen").to_vec();
            assert!(!bytes.is_empty(), "{}", String::from_utf8_lossy(&seen));
            out.consume(bytes.len());
            seen.extend(bytes);
        }
        std::io::Write::write_all(&mut keys, key).expect("a key");
    }
    std::io::copy(&mut out, &mut std::io::sink()).expect("the end");
    assert!(child.wait().expect("its end").success());
}
