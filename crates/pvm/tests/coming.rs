//! Hosts that come to a machine and leave it while it runs. Those hosts are one, as in `hosts.rs`.

mod command;

use command::pretended::{PretendedHosts, ReadyMachine, kill};
use command::running::{Programs, said, within};
use command::upcall;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use upcall_os::fault::{Act, POINTS_ARE_THERE, Point};

/// Checks what a program has written that names itself `what`.
fn is_ok(said: &str, what: &str) {
    assert!(said.contains(&format!("ok: {what}")) && !said.contains("FAILED"), "{said}");
}

/// Runs the program with a command that starts processes only on the hosts `b` and `c`.
fn run(hosts: &PretendedHosts, program: &Path, what: &str) -> String {
    let shell = hosts.folder.path().join("shell");
    let root = hosts.folder.path().display();
    let script = "case $1 in b|c) ;; *) exit 3 ;; esac\nhost=$1\nshift\nexec env";
    std::fs::write(&shell, format!("{script} UPCALL_DIR={root}/$host \"$@\"\n")).unwrap();
    let mut command = hosts.command(&["run", "--rendezvous", &hosts.address, "--upcall"]);
    command.arg(upcall()).arg("--with").arg(format!("sh {} {{host}}", shell.display()));
    let done = command.arg(program).arg(what).output().unwrap();
    assert_ne!(done.status.code(), Some(124), "it hangs: {}", said(&done));
    said(&done)
}

#[test]
fn hosts_come_and_go_with_their_tasks() {
    let (programs, hosts) = (Programs::new(), PretendedHosts::new());
    let program = programs.compiled("images/comes.c");
    let said = run(&hosts, &program, "comes");
    is_ok(&said, "comes and goes");
    assert!(said.contains("host nosuch has not joined: the command"), "{said}");
    assert!(!said.contains("has ended, and"), "{said}");
    within(|| hosts.far_processes().is_empty().then_some(()));
}

#[test]
fn two_hosts_come_together() {
    let (programs, hosts) = (Programs::new(), PretendedHosts::new());
    let program = programs.compiled("images/comes.c");
    is_ok(&run(&hosts, &program, "together"), "come together");
    within(|| hosts.far_processes().is_empty().then_some(()));
}

/// A machine that waits at its rendezvous, and the token of its file.
fn idle_machine(hosts: &PretendedHosts, program: &Path, args: &[&str]) -> ReadyMachine {
    let token = hosts.folder.path().join("token").display().to_string();
    ReadyMachine::start(hosts.starts(&[], &["--token-file", &token], program, args))
}

/// `upcall pvm join` on a host.
fn joins(hosts: &PretendedHosts, host: &str, options: &[&str]) -> Command {
    let mut command = Command::new("timeout");
    command.arg("60").arg(upcall()).args(["pvm", "join", &hosts.address, "--name", host]);
    command.arg("--token-file").arg(hosts.folder.path().join("token")).args(options);
    command.env("UPCALL_DIR", hosts.folder.path().join(host.replace(' ', "")));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

fn started(mut command: Command) -> Child {
    command.spawn().unwrap()
}

#[test]
fn hosts_join_by_themselves_with_the_token() {
    let (programs, hosts) = (Programs::new(), PretendedHosts::new());
    let program = programs.compiled("images/comes.c");
    let machine = idle_machine(&hosts, &program, &["await", "3"]);
    let all = [started(joins(&hosts, "b", &["-p", "2"])), started(joins(&hosts, "c", &[]))];
    let (status, said) = machine.end();
    is_ok(&said, "all there");
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains("host b has joined") && said.contains("host c has joined"), "{said}");
    for joined in all {
        let done = joined.wait_with_output().unwrap();
        assert!(done.status.success(), "{}", command::running::said(&done));
    }
}

#[test]
fn a_host_that_has_no_place_is_refused_and_learns_why() {
    let (programs, hosts) = (Programs::new(), PretendedHosts::new());
    let program = programs.compiled("images/comes.c");
    let machine = idle_machine(&hosts, &program, &["idles"]);
    let joined = started(joins(&hosts, "b", &[]));
    let conf = || said(&hosts.command(&["conf"]).output().unwrap());
    within(|| conf().contains("b ").then_some(()));
    let other = hosts.folder.path().join("other");
    std::fs::write(&other, "0123456789abcdef0123456789abcdef\n").unwrap();
    for (host, options, why) in [
        ("b", &[][..], "has a host with this name"),
        ("c", &["-p", "200"], "no room for as many processes"),
        ("a b", &[], "not the name of a host"),
        ("c", &["--token-file", other.to_str().unwrap()], "another token, or none"),
        ("c", &["--token-file", "/no/such"], "--token-file /no/such: No such file"),
    ] {
        let mut command = Command::new("timeout");
        command.arg("60").arg(upcall()).args(["pvm", "join", &hosts.address, "--name", host]);
        if !options.contains(&"--token-file") {
            command.arg("--token-file").arg(hosts.folder.path().join("token"));
        }
        let done = command.args(options).output().unwrap();
        let said = said(&done);
        assert!(!done.status.success() && said.contains(why), "{host} {options:?}: {said}");
    }
    assert!(said(&hosts.command(&["halt"]).output().unwrap()).is_empty());
    machine.end();
    assert!(joined.wait_with_output().unwrap().status.success());
    // There is no machine any more.
    let done = joins(&hosts, "b", &["--within", "0.1"]).output().unwrap();
    assert!(!done.status.success() && said(&done).contains("refused"), "{}", said(&done));
}

#[test]
fn other_shells_add_hosts_and_delete_them() {
    let (programs, hosts) = (Programs::new(), PretendedHosts::new());
    let program = programs.compiled("images/comes.c");
    let machine = idle_machine(&hosts, &program, &["idles"]);
    let told = |words: &[&str]| {
        let done = hosts.command(words).output().unwrap();
        (done.status.code(), said(&done))
    };
    assert_eq!(
        told(&["add", "b:2", "c"]),
        (Some(0), "host b:2 has joined\nhost c has joined\n".into())
    );
    let (_, json) = told(&["conf", "--json"]);
    let shown = serde_json::from_str::<serde_json::Value>(&json).unwrap();
    let names = shown.as_array().unwrap().iter().map(|host| host["host"].as_str().unwrap());
    assert_eq!(names.skip(1).collect::<Vec<_>>(), ["b", "c"]);
    assert_eq!((&shown[1]["number"], &shown[2]["number"]), (&"80000".into(), &"c0000".into()));
    let (status, text) = told(&["add", "b"]);
    assert!(status == Some(1) && text.contains("host b: Duplicate host"), "{text}");
    assert_eq!(hosts.far_processes().len(), 3);
    assert_eq!(told(&["delete", "b"]), (Some(0), "host b has left\n".into()));
    within(|| (hosts.far_processes().len() == 1).then_some(()));
    let (status, text) = told(&["delete", "b"]);
    assert!(status == Some(1) && text.contains("host b: No such host"), "{text}");
    told(&["halt"]);
    machine.end();
    within(|| hosts.far_processes().is_empty().then_some(()));
}

/// A host whose process dies at any point has not joined, and another host can join.
#[test]
fn a_host_whose_process_dies_while_it_comes_has_not_come() {
    if !POINTS_ARE_THERE {
        return println!("skipped: points are in builds with debug assertions only");
    }
    let (programs, hosts) = (Programs::new(), PretendedHosts::new());
    let program = programs.compiled("images/comes.c");
    let root = hosts.folder.path().display().to_string();
    let (shell, fault) = (format!("{root}/shell"), format!("{root}/fault"));
    let script = format!(
        "test -e {fault} && export UPCALL_FAULT=$(cat {fault})\n\
         exec env UPCALL_DIR={root}/$* \n"
    );
    std::fs::write(&shell, script).unwrap();
    let mut command = hosts.command(&["run", "--rendezvous", &hosts.address, "--upcall"]);
    command.arg(upcall()).arg("--with").arg(format!("sh {shell} {{host}}"));
    let machine = ReadyMachine::start({
        command.args(["--room", "40"]).arg(&program).arg("idles");
        command
    });
    let points = Point::ALL.iter().map(|point| point.name());
    for point in points.filter(|point| point.starts_with("late-member")) {
        for act in [Act::Kill, Act::Exit, Act::Panic] {
            std::fs::write(&fault, format!("{point}:{}", act.name())).unwrap();
            let done = hosts.command(&["add", "b:2"]).output().unwrap();
            let told = said(&done);
            assert!(told.contains("host b:2: Can't start pvmd"), "{point}, {act:?}: {told}");
            within(|| hosts.far_processes().is_empty().then_some(()));
        }
        // A process that is stopped for a while delays its host.
        std::fs::write(&fault, format!("{point}:{}", Act::Stop.name())).unwrap();
        let add = hosts.command(&["add", "b"]).stdout(Stdio::piped()).spawn().unwrap();
        let process = within(|| hosts.far_processes().into_iter().find(|one| is_stopped(*one)));
        resume(process);
        let told = said(&add.wait_with_output().unwrap());
        assert!(told.contains("host b has joined"), "{point}: {told}");
        std::fs::remove_file(&fault).unwrap();
        let told = said(&hosts.command(&["add", "c"]).output().unwrap());
        assert!(told.contains("host c has joined"), "{point}: {told}");
        let told = said(&hosts.command(&["delete", "b", "c"]).output().unwrap());
        assert_eq!(told.matches("has left").count(), 2, "{point}: {told}");
    }
    said(&hosts.command(&["halt"]).output().unwrap());
    machine.end();
}

/// `upcall pvm join` of two processes that stop when they have been admitted.
#[test]
fn who_joins_after_its_host_was_given_up_ends() {
    if !POINTS_ARE_THERE {
        return println!("skipped: points are in builds with debug assertions only");
    }
    let (programs, hosts) = (Programs::new(), PretendedHosts::new());
    let program = programs.compiled("images/comes.c");
    let machine = idle_machine(&hosts, &program, &["idles"]);
    let mut command = joins(&hosts, "b", &["-p", "2"]);
    let fault = format!("{}:{}", Point::LateMemberAdmitted.name(), Act::Stop.name());
    let joined = started({
        command.env("UPCALL_FAULT", fault);
        command
    });
    let both = within(|| {
        let all = descendants(joined.id());
        let stopped = all.into_iter().filter(|one| is_stopped(*one)).collect::<Vec<_>>();
        (stopped.len() == 2).then_some(stopped)
    });
    let told = said(&hosts.command(&["delete", "b"]).output().unwrap());
    assert!(told.contains("host b has left"), "{told}");
    both.into_iter().for_each(resume);
    joined.wait_with_output().unwrap();
    let told = said(&hosts.command(&["conf"]).output().unwrap());
    assert!(!told.contains("b "), "{told}");
    said(&hosts.command(&["halt"]).output().unwrap());
    machine.end();
}

#[test]
fn a_host_that_was_killed_after_it_got_its_order_joins_when_it_asks_again() {
    if !POINTS_ARE_THERE {
        return println!("skipped: points are in builds with debug assertions only");
    }
    let (programs, hosts) = (Programs::new(), PretendedHosts::new());
    let program = programs.compiled("images/comes.c");
    let machine = idle_machine(&hosts, &program, &["idles"]);
    let mut command = joins(&hosts, "b", &[]);
    command.env("UPCALL_FAULT", format!("{}:{}", Point::LateMemberFinds.name(), Act::Kill.name()));
    assert!(!command.output().unwrap().status.success());
    let joined = started(joins(&hosts, "b", &[]));
    let conf = || said(&hosts.command(&["conf"]).output().unwrap());
    within(|| conf().contains("b ").then_some(()));
    said(&hosts.command(&["halt"]).output().unwrap());
    machine.end();
    assert!(joined.wait_with_output().unwrap().status.success());
}

/// The words of a process's command.
fn words_of(process: i32) -> Vec<String> {
    let words = std::fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
    let words = String::from_utf8_lossy(&words).into_owned();
    words.split_terminator('\0').map(String::from).collect()
}

/// A process that may connect, and knows the words with which the invited ones were started.
#[test]
fn no_process_without_the_invitation_takes_the_place_of_a_host_that_joins() {
    if !POINTS_ARE_THERE {
        return println!("skipped: points are in builds with debug assertions only");
    }
    let (programs, hosts) = (Programs::new(), PretendedHosts::new());
    let program = programs.compiled("images/comes.c");
    let machine = idle_machine(&hosts, &program, &["idles"]);
    let mut command = joins(&hosts, "b", &["-p", "2"]);
    command.env("UPCALL_FAULT", format!("{}:{}", Point::LateMemberFinds.name(), Act::Stop.name()));
    let joined = started(command);
    let both = within(|| {
        let all = descendants(joined.id());
        let stopped = all.into_iter().filter(|one| is_stopped(*one)).collect::<Vec<_>>();
        (stopped.len() == 2).then_some(stopped)
    });
    let child = both.iter().find(|one| words_of(**one).get(1).is_some_and(|it| it == "pvm-member"));
    let words = words_of(*child.expect("a child of the host's first process"));
    assert!(words.contains(&"comes=late".into()), "{words:?}");
    let refused = |input: &str| {
        let mut intruder = Command::new("timeout");
        intruder.arg("60").args(&words).env("UPCALL_DIR", hosts.folder.path().join("c"));
        intruder.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut intruder = intruder.spawn().unwrap();
        // It may end before it reads.
        let _ = std::io::Write::write_all(&mut intruder.stdin.take().unwrap(), input.as_bytes());
        let done = intruder.wait_with_output().unwrap();
        assert!(!done.status.success());
        said(&done)
    };
    let told = refused("");
    assert!(told.contains("standard input has no invitation"), "{told}");
    for guess in ["00", "ff", "3f"] {
        let told = refused(&(guess.repeat(32) + "\n"));
        assert!(told.contains("does not show the invitation to join with rank 2"), "{told}");
    }
    both.into_iter().for_each(resume);
    let conf = || said(&hosts.command(&["conf"]).output().unwrap());
    within(|| conf().contains("b ").then_some(()));
    said(&hosts.command(&["halt"]).output().unwrap());
    machine.end();
    assert!(joined.wait_with_output().unwrap().status.success());
}

#[test]
fn a_host_that_is_started_by_hand_gets_its_invitation_in_no_words() {
    let (programs, hosts) = (Programs::new(), PretendedHosts::new());
    let program = programs.compiled("images/comes.c");
    let mut command = hosts.command(&["run", "--rendezvous", &hosts.address, "--upcall"]);
    command.arg(upcall()).args(["--with", "none"]).arg(&program).arg("idles");
    let mut machine = ReadyMachine::start(command);
    let add = hosts.command(&["add", "b:2"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut errors = BufReader::new(machine.child.stderr.take().unwrap());
    let mut line = String::new();
    errors.read_line(&mut line).unwrap();
    let run = line.trim().strip_prefix("upcall pvm: on b, run: ").unwrap();
    let invitation = run.strip_prefix("echo ").unwrap().split(' ').next().unwrap();
    assert_eq!(invitation.len(), 64, "{run}");
    // The words are in no command here either: the shell reads them.
    let mut far = Command::new("timeout");
    far.args(["60", "sh"]).env("UPCALL_DIR", hosts.folder.path().join("b"));
    let mut far = far.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    std::io::Write::write_all(&mut far.stdin.take().unwrap(), run.as_bytes()).unwrap();
    let told = said(&add.wait_with_output().unwrap());
    assert!(told.contains("host b:2 has joined"), "{told}");
    assert_eq!(hosts.far_processes().len(), 2);
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let numbers = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    for process in numbers {
        let words = words_of(process);
        assert!(!words.iter().any(|word| word.contains(invitation)), "{words:?}");
    }
    said(&hosts.command(&["halt"]).output().unwrap());
    far.wait().unwrap();
    machine.child.wait().unwrap();
}

/// The processes below this one.
fn descendants(process: u32) -> Vec<i32> {
    let path = format!("/proc/{process}/task/{process}/children");
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let children = text.split_whitespace().filter_map(|one| one.parse::<u32>().ok());
    children.flat_map(|one| [vec![one as i32], descendants(one)].concat()).collect()
}

/// A host is deleted whose process is stopped while it joins: it keeps no other host out.
#[test]
fn a_host_that_stops_while_it_comes_and_is_deleted_keeps_no_other_one_out() {
    if !POINTS_ARE_THERE {
        return println!("skipped: points are in builds with debug assertions only");
    }
    let (programs, hosts) = (Programs::new(), PretendedHosts::new());
    let program = programs.compiled("images/comes.c");
    let root = hosts.folder.path().display().to_string();
    let (shell, fault) = (format!("{root}/shell"), format!("{root}/fault"));
    // A process of its own session outlives the command that has started it.
    let script = format!(
        "test -e {fault} && exec setsid env UPCALL_FAULT=$(cat {fault}) UPCALL_DIR={root}/$*\n\
         exec env UPCALL_DIR={root}/$* \n"
    );
    std::fs::write(&shell, script).unwrap();
    let stops = format!("{}:{}", Point::LateMemberAdmitted.name(), Act::Stop.name());
    std::fs::write(&fault, stops).unwrap();
    let mut command = hosts.command(&["run", "--rendezvous", &hosts.address, "--upcall"]);
    command.arg(upcall()).arg("--with").arg(format!("sh {shell} {{host}}"));
    let machine = ReadyMachine::start({
        command.arg(&program).arg("idles");
        command
    });
    let add = hosts.command(&["add", "b"]).stdout(Stdio::piped()).spawn().unwrap();
    let process = within(|| hosts.far_processes().into_iter().find(|one| is_stopped(*one)));
    std::fs::remove_file(&fault).unwrap();
    let told = said(&hosts.command(&["delete", "b"]).output().unwrap());
    assert!(told.contains("host b has left"), "{told}");
    let told = said(&add.wait_with_output().unwrap());
    assert!(!told.contains("has joined"), "{told}");
    let told = said(&hosts.command(&["add", "c"]).output().unwrap());
    assert!(told.contains("host c has joined"), "{told}");
    // It learns that it was refused when it goes on.
    if is_stopped(process) {
        resume(process);
    }
    within(|| (!hosts.far_processes().contains(&process)).then_some(()));
    said(&hosts.command(&["halt"]).output().unwrap());
    machine.end();
}

/// The first process of a host notices that another one has ended, which would never join.
#[test]
fn a_child_that_dies_while_its_host_joins_ends_the_attempt() {
    if !POINTS_ARE_THERE {
        return println!("skipped: points are in builds with debug assertions only");
    }
    let (programs, hosts) = (Programs::new(), PretendedHosts::new());
    let program = programs.compiled("images/comes.c");
    let fault = format!("{}:{}", Point::LateMemberFinds.name(), Act::Stop.name());
    let mut command = hosts.command(&["run", "--rendezvous", &hosts.address, "--upcall"]);
    command.arg(upcall()).arg("--with").arg(format!("{} UPCALL_FAULT={fault}", hosts.with()));
    command.arg(&program).arg("idles");
    let machine = ReadyMachine::start(command);
    let add = hosts.command(&["add", "b:2"]).stderr(Stdio::piped()).spawn().unwrap();
    let both = within(|| {
        let mut all = hosts.far_processes();
        all.sort_unstable();
        (all.len() == 2 && all.iter().all(|one| is_stopped(*one))).then_some(all)
    });
    kill(both[1]);
    resume(both[0]);
    let told = said(&add.wait_with_output().unwrap());
    assert!(told.contains("host b:2: Can't start pvmd"), "{told}");
    said(&hosts.command(&["halt"]).output().unwrap());
    let (_, told) = machine.end();
    assert!(told.contains("processes of host b has ended (exit code 1)"), "{told}");
    let why = format!("process {} has ended before it has joined", both[1]);
    assert!(told.contains(&why), "{told}");
}

fn is_stopped(process: i32) -> bool {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    text.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T'))
}

fn resume(process: i32) {
    let process = rustix::process::Pid::from_raw(process).unwrap();
    rustix::process::kill_process(process, rustix::process::Signal::CONT).unwrap();
}

/// The console waits until its hosts are there.
#[test]
fn the_console_adds_hosts_and_deletes_them() {
    let hosts = PretendedHosts::new();
    let mut command = hosts.command(&["console", "--rendezvous", &hosts.address, "--upcall"]);
    command.arg(upcall()).arg("--with").arg(hosts.with()).stdin(Stdio::piped());
    let mut console = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let input = b"add b:2\nconf\nadd b\ndelete b c\nconf\n";
    std::io::Write::write_all(&mut console.stdin.take().unwrap(), input).unwrap();
    let done = console.wait_with_output().unwrap();
    let said = said(&done);
    let lines = said.lines().map(str::trim).collect::<Vec<_>>();
    assert_eq!(lines[..3], ["1 successful", "HOST     DTID", "b:2    80000"], "{said}");
    assert!(lines[3].starts_with("2 hosts") && lines[6].starts_with("b    80000"), "{said}");
    assert_eq!(lines[7..10], ["0 successful", "HOST     DTID", "b Duplicate host"], "{said}");
    assert_eq!(
        lines[10..14],
        ["1 successful", "HOST  STATUS", "b  deleted", "c No such host"],
        "{said}"
    );
    assert!(lines[14].starts_with("1 host,"), "{said}");
}
