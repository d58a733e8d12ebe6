//! Machines over several hosts. Those hosts are one: processes with different folders of names do
//! not see each other, and reach each other over links.

mod command;

use command::pretended::{PretendedHosts, ReadyMachine, kill};
use command::running::{KilledMachine, Programs, said, within};
use command::upcall;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

#[test]
fn programs_do_on_several_hosts_what_they_do_on_one() {
    let programs = Programs::new();
    let one = &|name: &str, differs: &[&str]| {
        let (program, hosts) =
            (programs.compiled(&format!("images/{name}.c")), PretendedHosts::new());
        let done = hosts.run(&["b:2"], &["--procs", "2", "--place", "interleave"], &program, &[]);
        let said = said(&done);
        let failed = said.lines().filter(|line| line.starts_with("FAILED"));
        assert!(failed.eq(differs.iter().copied()) && said.contains("ok: "), "{name}: {said}");
    };
    std::thread::scope(|scope| {
        for name in ["mailbox", "notify", "context"] {
            scope.spawn(move || one(name, &[]));
        }
        // The program expects one host.
        let near = "FAILED: the members on this host: 2, not 4";
        scope.spawn(move || one("group", &[near, "FAILED: the number of hosts: 2, not 1"]));
    });
}

#[test]
fn tasks_on_three_hosts_go_around() {
    let (programs, hosts) = (Programs::new(), PretendedHosts::new());
    let program = programs.compiled("programs/ring.c");
    let done = hosts.run(&["b:2", "c"], &["-n", "16"], &program, &["16", "20"]);
    let said = said(&done);
    assert!(done.status.success() && said.contains("right"), "{said}");
    assert_eq!(hosts.far_processes(), [0; 0]);
}

#[test]
fn a_long_message_to_another_host_is_whole() {
    let (programs, hosts) = (Programs::new(), PretendedHosts::new());
    let program = programs.compiled("images/long.c");
    for way in ["pack", "psend"] {
        let done = hosts.run(&["b"], &["-n", "2"], &program, &[way, "40"]);
        let said = said(&done);
        assert!(done.status.success() && said.contains("whole"), "{way}: {said}");
    }
}

#[test]
fn tasks_see_hosts_and_spawn_on_those_that_they_name() {
    let (programs, hosts) = (Programs::new(), PretendedHosts::new());
    let program = programs.compiled("images/hosts.c");
    let done = hosts.run(&["b:2", "c"], &[], &program, &["hosts"]);
    let said = said(&done);
    assert!(said.contains("ok: hosts") && !said.contains("FAILED"), "{said}");
}

#[test]
fn the_notice_of_an_end_comes_after_the_last_message() {
    let (programs, hosts) = (Programs::new(), PretendedHosts::new());
    let program = programs.compiled("images/hosts.c");
    let done = hosts.run(&["b", "c"], &[], &program, &["order"]);
    let said = said(&done);
    assert!(said.contains("ok: order") && !said.contains("FAILED"), "{said}");
}

#[test]
fn output_of_all_hosts_is_complete_and_ends_behind_the_last_line() {
    let (programs, hosts) = (Programs::new(), PretendedHosts::new());
    let program = programs.compiled("images/hosts.c");
    for what in ["prints", "afar"] {
        let done = hosts.run(&["b", "c"], &[], &program, &[what]);
        let said = said(&done);
        assert!(done.status.success() && !said.contains("FAILED"), "{what}: {said}");
        for host in 1..=3 {
            let end = format!(" of {host}");
            let lines = said.lines().filter(|line| line.ends_with(&end)).collect::<Vec<_>>();
            let numbers = lines.iter().filter_map(|line| line.split("line ").nth(1));
            let numbers = numbers.filter_map(|line| line.split(' ').next()?.parse::<usize>().ok());
            assert!(numbers.eq(0..200), "{what}, host {host}: {said}");
            let task = &lines[0][..lines[0].find("line").unwrap()];
            let last = said.lines().rfind(|line| line.starts_with(task)).unwrap();
            assert!(last.ends_with("EOF"), "{what}: {last}: {said}");
        }
    }
    // The copies of the program write for themselves.
    let done = hosts.run(&["b", "c"], &["-n", "3"], &program, &["lines"]);
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    assert_eq!(said.lines().filter(|line| line.starts_with("line ")).count(), 600, "{said}");
}

#[test]
fn tasks_of_a_host_that_dies_have_ended_and_each_notice_comes_once() {
    let (programs, hosts) = (Programs::new(), PretendedHosts::new());
    let program = programs.compiled("images/hosts.c");
    let machine = ReadyMachine::start(hosts.starts(&["b:2"], &[], &program, &["outlives"]));
    hosts.kill_leader();
    let (status, said) = machine.end();
    assert!(said.contains("ok: outlives") && !said.contains("FAILED"), "{status:?}: {said}");
    assert_eq!(said.matches("upcall pvm: host b has ended").count(), 1, "{said}");
    assert_eq!(hosts.far_processes(), [0; 0]);
}

#[test]
fn processes_of_other_hosts_end_when_the_first_one_is_killed() {
    let (programs, hosts) = (Programs::new(), PretendedHosts::new());
    let program = programs.compiled("images/hosts.c");
    let machine = ReadyMachine::start(hosts.starts(&["b:2"], &[], &program, &["asleep"]));
    assert_eq!(hosts.far_processes().len(), 2);
    let first = machine.child.id();
    let children = std::fs::read_to_string(format!("/proc/{first}/task/{first}/children"));
    kill(children.unwrap().trim().parse().unwrap());
    within(|| hosts.far_processes().is_empty().then_some(()));
    machine.end();
}

/// As with `ssh`, the end of the connection is the end of the command's input.
#[test]
fn processes_of_another_host_end_with_the_connection_that_started_them() {
    let (programs, hosts) = (Programs::new(), PretendedHosts::new());
    let program = programs.compiled("images/hosts.c");
    let shell = hosts.folder.path().join("shell");
    let (dir, pid) = (hosts.folder.path().join("b"), hosts.folder.path().join("pid"));
    let script = format!(
        "mkfifo {pid}.input\ncat <&0 > {pid}.input &\necho $! > {pid}\n\
         exec env UPCALL_DIR={dir} \"$@\" < {pid}.input\n",
        pid = pid.display(),
        dir = dir.display()
    );
    std::fs::write(&shell, script).unwrap();
    let mut command = hosts.command(&["run", "--rendezvous", &hosts.address, "--host", "b:2"]);
    command.arg("--with").arg(format!("sh {}", shell.display()));
    command.arg("--upcall").arg(upcall()).arg(&program).arg("asleep");
    let machine = ReadyMachine::start(command);
    kill(std::fs::read_to_string(&pid).unwrap().trim().parse().unwrap());
    within(|| hosts.far_processes().is_empty().then_some(()));
    let (_, said) = machine.end();
    assert!(said.contains("host b has ended"), "{said}");
}

#[test]
fn a_command_that_starts_nothing_ends_the_machine() {
    let (programs, hosts) = (Programs::new(), PretendedHosts::new());
    let program = programs.compiled("images/hosts.c");
    for (with, why) in [
        ("false", "the command that starts the processes of host b has ended (exit code 1)"),
        ("/no/such/command", "\"/no/such/command\" for host b: No such file"),
        ("sh -c false", "the processes of host b has ended (exit code 1)"),
    ] {
        let mut command = hosts.command(&["run", "--rendezvous", &hosts.address, "--host", "b"]);
        let done = command.args(["--with", with]).arg(&program).arg("waits").output().unwrap();
        let said = said(&done);
        assert!(!done.status.success() && said.contains(why), "{with}: {said}");
    }
    // The processes of another host would wait for those of this one.
    let shell = hosts.folder.path().join("shell");
    let root = hosts.folder.path().display();
    let script = "test $1 = b || exit 3\nshift\nexec env";
    std::fs::write(&shell, format!("{script} UPCALL_DIR={root}/b \"$@\"\n")).unwrap();
    let mut command = hosts.command(&["run", "--rendezvous", &hosts.address]);
    command.args(["--host", "b:2", "--host", "c", "--upcall"]).arg(upcall());
    command.arg("--with").arg(format!("sh {} {{host}}", shell.display()));
    command.arg(&program).arg("waits");
    let done = command.output().unwrap();
    let said = said(&done);
    assert!(!done.status.success() && said.contains("c has ended (exit code 3)"), "{said}");
    assert!(!said.contains("do not end"), "{said}");
    within(|| hosts.far_processes().is_empty().then_some(()));
}

/// `ssh` hands its words to a shell of the other host, in another folder and environment.
#[test]
fn ssh_starts_processes_in_a_folder_of_any_name() {
    let (programs, hosts) = (Programs::new(), PretendedHosts::new());
    let folder = hosts.folder.path().join("it's a $(false) \"folder\"");
    std::fs::create_dir(&folder).unwrap();
    std::fs::copy(programs.compiled("images/hosts.c"), folder.join("hosts")).unwrap();
    let ssh = hosts.folder.path().join("ssh");
    let root = hosts.folder.path().display();
    let script = format!(
        "#!/bin/sh\nhost=$1\nshift\ncd /\n\
         exec env -i HOME=/ PATH=\"$PATH\" UPCALL_DIR={root}/$host sh -c \"$*\"\n"
    );
    std::fs::write(&ssh, script).unwrap();
    std::fs::set_permissions(&ssh, std::fs::Permissions::from_mode(0o700)).unwrap();
    let path = std::env::var("PATH").unwrap();
    let mut command = hosts.command(&["run", "--rendezvous", &hosts.address]);
    command.args(["--host", "b:2", "--host", "c", "--upcall"]).arg(upcall());
    command.args(["./hosts", "hosts"]).current_dir(&folder);
    let done = command.env("PATH", format!("{root}:{path}")).output().unwrap();
    let said = said(&done);
    assert!(said.contains("ok: hosts") && !said.contains("FAILED"), "{said}");
}

#[test]
fn processes_can_be_started_by_hand() {
    let (programs, hosts) = (Programs::new(), PretendedHosts::new());
    let program = programs.compiled("programs/ring.c");
    let mut command = hosts.command(&["run", "--rendezvous", &hosts.address, "--host", "b:2"]);
    command.args(["--with", "none", "-n", "6"]).arg("--upcall").arg(upcall());
    command.arg(&program).args(["6", "10"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut machine = KilledMachine(Some(command.spawn().unwrap()));
    let mut line = String::new();
    let mut errors = BufReader::new(machine.0.as_mut().unwrap().stderr.take().unwrap());
    errors.read_line(&mut line).unwrap();
    let words = line.trim().strip_prefix("upcall pvm: on b, run: ").unwrap();
    let mut far = Command::new("sh");
    far.args(["-c", words]).env("UPCALL_DIR", hosts.folder.path().join("b"));
    let far = far.stdin(Stdio::null()).stdout(Stdio::null()).status();
    let done = machine.0.take().unwrap().wait_with_output().unwrap();
    let said = said(&done);
    assert!(done.status.success() && said.contains("right"), "{said}");
    assert!(far.unwrap().success());
}

#[test]
fn other_shells_see_the_hosts_and_what_does_not_work_yet_is_refused() {
    let (programs, hosts) = (Programs::new(), PretendedHosts::new());
    let program = programs.compiled("images/hosts.c");
    let machine = ReadyMachine::start(hosts.starts(&["b"], &[], &program, &["asleep"]));
    let told = |words: &[&str]| {
        let done = hosts.command(words).output().unwrap();
        (done.status.success(), said(&done))
    };
    let (_, json) = told(&["ps", "--json"]);
    let shown = serde_json::from_str::<serde_json::Value>(&json).unwrap();
    let tasks = shown[0]["tasks"].as_array().unwrap();
    let far = tasks.iter().find(|task| task["host"] == "b").expect("a task on the other host");
    assert_eq!((shown[0]["hosts"][1].as_str(), far["rank"].as_u64()), (Some("b"), Some(1)));
    assert!(hosts.far_processes().contains(&(far["process"].as_i64().unwrap() as i32)), "{json}");
    let (_, table) = told(&["ps"]);
    assert!(table.contains("on 2 hosts") && table.contains(" b:"), "{table}");
    let tid = far["tid"].as_str().unwrap();
    // The tasks sleep.
    for rank in ["0", "1", "0"] {
        let (worked, text) = told(&["move", tid, rank]);
        assert!(worked, "{text}");
    }
    let (worked, text) = told(&["evacuate", "1"]);
    assert!(worked, "{text}");
    for (words, why) in [
        (&["procs", "1"][..], "over several hosts all of its processes are used"),
        (&["evacuate", "0"], "there is none for its tasks"),
        (&["move", tid, "2"], "there is no such process"),
    ] {
        let (worked, said) = told(words);
        assert!(!worked && said.contains(why), "{words:?}: {said}");
    }
    assert!(told(&["kill", tid]).0);
    assert!(told(&["halt"]).0);
    machine.end();
    assert_eq!(hosts.far_processes(), [0; 0]);
    for (option, value) in [("--as-processes=3", ""), ("--procs", "1-2")] {
        let mut options = vec![option];
        options.extend(Some(value).filter(|value| !value.is_empty()));
        let done = hosts.run(&["b"], &options, &program, &["waits"]);
        assert_eq!(done.status.code(), Some(2), "{option}: {}", said(&done));
    }
    for wrong in [&["b", "b"][..], &["a,b"]] {
        let done = hosts.run(wrong, &[], &program, &["waits"]);
        assert!(!done.status.success() && said(&done).contains("host"), "{}", said(&done));
    }
}
