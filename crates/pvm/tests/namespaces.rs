//! Machines over several hosts that are network namespaces, each with process numbers of its own.

mod command;
#[path = "../../../tests/src/hosts.rs"]
#[allow(dead_code, reason = "each test uses a part")]
mod hosts;

use command::running::{Programs, kill_all, said, within};
use command::upcall;
use hosts::{Host, Hosts};
use std::fmt::Write;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;
use upcall_os::fault::{Act, POINTS_ARE_THERE, Point};

/// Names of the other hosts.
const NAMES: [&str; 2] = ["b", "c"];

struct Scene {
    hosts: Hosts,
    folder: tempfile::TempDir,
    address: String,
}

impl Scene {
    fn new() -> Self {
        // Hosts that are one need a port for each machine, which no other process takes by chance.
        static NEXT: AtomicU16 = AtomicU16::new(7650);
        let (hosts, folder) = (Hosts::new(3), tempfile::tempdir().unwrap());
        let port = NEXT.fetch_add(1, Ordering::Relaxed);
        let address = format!("{}:{port}", hosts.host(0).address);
        let scene = Self { hosts, folder, address };
        let far = |number| scene.on(scene.hosts.host(number), number);
        scene.write_start([far(1), far(2)]);
        scene
    }

    /// The words that run a command on a host. Its processes neither see those of other hosts nor
    /// can name them.
    fn on(&self, host: &Host, number: usize) -> Vec<String> {
        let folder = self.folder.path().join(number.to_string());
        let _ = std::fs::DirBuilder::new().mode(0o700).create(&folder);
        let mut words = host.wrapper();
        words.push(format!("UPCALL_DIR={}", folder.display()));
        if self.hosts.are_apart() && number > 0 {
            let apart = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"];
            words.extend(apart.map(String::from));
        }
        words
    }

    fn start(&self) -> PathBuf {
        self.folder.path().join("start")
    }

    /// Writes the command that starts processes on the other hosts, which are reached by these
    /// words.
    fn write_start(&self, words: [Vec<String>; 2]) {
        let mut script = "name=$1\nshift\ncase $name in\n".to_owned();
        for (name, words) in NAMES.iter().zip(words) {
            writeln!(script, "{name}) exec {} \"$@\" ;;", words.join(" ")).unwrap();
        }
        script.push_str("esac\n");
        std::fs::write(self.start(), script).unwrap();
    }

    fn command(&self, options: &[&str], program: &Path, args: &[&str]) -> Command {
        let words = self.on(self.hosts.host(0), 0);
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).args(["timeout", "60"]).arg(upcall()).args(["pvm", "run"]);
        command.args(["--rendezvous", &self.address]).arg("--upcall").arg(upcall());
        command.arg("--with").arg(format!("sh {} {{host}}", self.start().display()));
        command.args(options).arg(program).args(args);
        command
    }

    fn run(&self, options: &[&str], program: &Path, args: &[&str]) -> Output {
        let done = self.command(options, program, args).output().unwrap();
        assert_ne!(done.status.code(), Some(124), "it hangs: {}", said(&done));
        done
    }

    /// Runs the program with an argument that names what it is to do.
    fn expect_ok(&self, program: &Path, what: &str) {
        let done = self.run(&["--host", "b:2", "--host", "c"], program, &[what]);
        let said = said(&done);
        assert!(said.contains(&format!("ok: {what}")) && !said.contains("FAILED"), "{said}");
    }

    /// The processes of other hosts, as this process sees them.
    fn far_processes(&self) -> Vec<i32> {
        let at = format!("at={}", self.address);
        let all = std::fs::read_dir("/proc").unwrap().flatten();
        let numbers = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        let is_member = |number: &i32| {
            let words = std::fs::read(format!("/proc/{number}/cmdline")).unwrap_or_default();
            let words = String::from_utf8_lossy(&words).into_owned();
            let words = words.split('\0').collect::<Vec<_>>();
            words.get(1) == Some(&"pvm-member") && words.contains(&&*at)
        };
        numbers.filter(is_member).collect()
    }
}

/// A machine whose first task has written `ready`. Killed on drop.
struct ReadyMachine {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Drop for ReadyMachine {
    fn drop(&mut self) {
        kill_all(&mut self.child);
    }
}

impl ReadyMachine {
    fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut machine = Self { child, output };
        let mut line = String::new();
        machine.output.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        machine
    }

    /// What it writes until its end.
    fn end(mut self) -> String {
        let (mut rest, mut errors) = (String::new(), String::new());
        self.output.read_to_string(&mut rest).unwrap();
        self.child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        self.child.wait().unwrap();
        rest + &errors
    }
}

#[test]
fn clocks_of_a_task_go_on_while_it_moves_between_hosts() {
    let (programs, scene) = (Programs::new(), Scene::new());
    let clocks = programs.compiled("images/clocks.c");
    let far = |number: usize, ahead: &str, boot: &str| {
        let mut words = scene.on(scene.hosts.host(number), number);
        let own = ["unshare", "--time", "--fork", "--kill-child", "--monotonic", ahead];
        words.extend(own.map(String::from));
        words.extend(["--boottime", boot].map(String::from));
        words
    };
    let can =
        Command::new("unshare").args(["--time", "--monotonic", "5", "--fork", "true"]).output();
    if can.is_ok_and(|done| done.status.success()) {
        scene.write_start([far(1, "100000", "300000"), far(2, "5000", "7000")]);
    } else {
        println!("SKIPPED: no time namespaces here (CAP_SYS_ADMIN): all hosts have one clock");
    }
    let done = scene.run(&["--host", "b", "--host", "c"], &clocks, &["12"]);
    let said = said(&done);
    assert!(said.contains("ok: clocks") && !said.contains("FAILED"), "{said}");
}

#[test]
fn tasks_on_three_hosts_find_each_other_and_exchange_messages() {
    let (programs, scene) = (Programs::new(), Scene::new());
    let hosts = programs.compiled("images/hosts.c");
    ["hosts", "order", "prints"].iter().for_each(|what| scene.expect_ok(&hosts, what));
    let ring = programs.compiled("programs/ring.c");
    let done = scene.run(&["-n", "12", "--host", "b:2", "--host", "c"], &ring, &["12", "50"]);
    assert!(done.status.success() && said(&done).contains("right"), "{}", said(&done));
    let long = programs.compiled("images/long.c");
    let done = scene.run(&["-n", "2", "--host", "b"], &long, &["pack", "40"]);
    assert!(done.status.success() && said(&done).contains("whole"), "{}", said(&done));
    assert_eq!(scene.far_processes(), [0; 0]);
}

#[test]
fn hosts_come_and_go_while_the_machine_runs() {
    let (programs, scene) = (Programs::new(), Scene::new());
    let program = programs.compiled("images/comes.c");
    for (what, ok) in [("comes", "comes and goes"), ("together", "come together")] {
        let said = said(&scene.run(&[], &program, &[what]));
        assert!(said.contains(&format!("ok: {ok}")) && !said.contains("FAILED"), "{said}");
    }
    within(|| scene.far_processes().is_empty().then_some(()));
}

#[test]
fn hosts_join_by_themselves_over_links() {
    let (programs, scene) = (Programs::new(), Scene::new());
    let program = programs.compiled("images/comes.c");
    let token = scene.folder.path().join("token").display().to_string();
    let join = |words: Vec<String>, name: &str| {
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).args(["timeout", "60"]).arg(upcall());
        command.args(["pvm", "join", &scene.address, "--name", name, "--token-file", &token]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let machine =
        ReadyMachine::start(scene.command(&["--token-file", &token], &program, &["await", "3"]));
    if scene.hosts.are_apart() {
        let stranger = join(scene.on(&scene.hosts.stranger(2), 2), "stranger");
        let done = stranger.wait_with_output().unwrap();
        let told = said(&done);
        assert!(!done.status.success() && told.contains("trust"), "{told}");
    }
    let all =
        [1, 2].map(|number| join(scene.on(scene.hosts.host(number), number), NAMES[number - 1]));
    let told = machine.end();
    assert!(told.contains("ok: all there") && !told.contains("FAILED"), "{told}");
    for joined in all {
        let done = joined.wait_with_output().unwrap();
        assert!(done.status.success(), "{}", said(&done));
    }
}

/// The number of a process of `upcall pvm join` that a test has stopped.
fn stopped_joining(address: &str) -> Option<i32> {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let mut numbers = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    numbers.find(|number| {
        let read = |file| std::fs::read_to_string(format!("/proc/{number}/{file}"));
        let (words, stat) = (read("cmdline").unwrap_or_default(), read("stat").unwrap_or_default());
        let mut words = words.split('\0').skip(1);
        let joins = words.by_ref().take(3).eq(["pvm", "join", address]);
        joins && stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))
    })
}

/// Another trusted host, which even has the token, asks in the name of a host that has its order.
#[test]
fn no_other_host_takes_the_place_of_one_that_has_asked() {
    if !POINTS_ARE_THERE {
        return println!("skipped: points are in builds with debug assertions only");
    }
    let (programs, scene) = (Programs::new(), Scene::new());
    if !scene.hosts.are_apart() {
        return println!("skipped: hosts that are not one, which need root");
    }
    let program = programs.compiled("images/comes.c");
    let token = scene.folder.path().join("token").display().to_string();
    let machine =
        ReadyMachine::start(scene.command(&["--token-file", &token], &program, &["await", "2"]));
    let join = |number: usize| {
        let words = scene.on(scene.hosts.host(number), number);
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).args(["timeout", "60"]).arg(upcall());
        command.args(["pvm", "join", &scene.address, "--name", "b", "--token-file", &token]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        command
    };
    let fault = format!("{}:{}", Point::LateMemberFinds.name(), Act::Stop.name());
    let rightful = join(1).env("UPCALL_FAULT", fault).spawn().unwrap();
    let stopped = within(|| stopped_joining(&scene.address));
    let other = join(2).output().unwrap();
    let told = said(&other);
    assert!(!other.status.success() && told.contains("has a host with this name"), "{told}");
    let stopped = rustix::process::Pid::from_raw(stopped).unwrap();
    rustix::process::kill_process(stopped, rustix::process::Signal::CONT).unwrap();
    let told = machine.end();
    assert!(told.contains("ok: all there") && !told.contains("FAILED"), "{told}");
    assert!(rightful.wait_with_output().unwrap().status.success());
}

/// A cable that is cut while a host comes delays it, or the host does not join: no process waits
/// for ever.
#[test]
fn a_cable_that_is_cut_while_a_host_comes_is_survived() {
    let (programs, scene) = (Programs::new(), Scene::new());
    if !scene.hosts.are_apart() {
        return println!("skipped: cables to cut, which need root");
    }
    let program = programs.compiled("images/comes.c");
    let machine = ReadyMachine::start(scene.command(&[], &program, &["idles"]));
    let command = |words: &[&str]| {
        let all = scene.on(scene.hosts.host(0), 0);
        let mut command = Command::new(&all[0]);
        command.args(&all[1..]).arg(upcall()).arg("pvm").args(words);
        command
    };
    let mut pause = Duration::from_millis(5);
    while pause < Duration::from_millis(400) {
        let add = command(&["add", "b:2"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        std::thread::sleep(pause);
        scene.hosts.cut(1);
        std::thread::sleep(Duration::from_millis(300));
        scene.hosts.mend(1);
        let told = said(&add.unwrap().wait_with_output().unwrap());
        assert!(told.contains("host b:2 has joined"), "cut after {pause:?}: {told}");
        let told = said(&command(&["delete", "b"]).output().unwrap());
        assert!(told.contains("host b has left"), "{told}");
        pause *= 3;
    }
    said(&command(&["halt"]).output().unwrap());
    machine.end();
    within(|| scene.far_processes().is_empty().then_some(()));
}

#[test]
fn a_host_whose_leader_is_killed_has_ended() {
    let (programs, scene) = (Programs::new(), Scene::new());
    let program = programs.compiled("images/hosts.c");
    let machine = ReadyMachine::start(scene.command(&["--host", "b:2"], &program, &["outlives"]));
    let leader = scene.far_processes().into_iter().min().unwrap();
    let leader = rustix::process::Pid::from_raw(leader).unwrap();
    rustix::process::kill_process(leader, rustix::process::Signal::KILL).unwrap();
    let said = machine.end();
    assert!(said.contains("ok: outlives") && !said.contains("FAILED"), "{said}");
    assert_eq!(scene.far_processes(), [0; 0]);
}

#[test]
fn a_cable_that_is_cut_for_a_while_changes_nothing() {
    let (programs, scene) = (Programs::new(), Scene::new());
    if !scene.hosts.are_apart() {
        return println!("skipped: cables to cut, which need root");
    }
    let program = programs.compiled("images/hosts.c");
    let machine = ReadyMachine::start(scene.command(&["--host", "b"], &program, &["talks"]));
    std::thread::sleep(Duration::from_millis(200));
    scene.hosts.cut(1);
    std::thread::sleep(Duration::from_secs(1));
    scene.hosts.mend(1);
    let said = machine.end();
    assert!(said.contains("ok: talks") && !said.contains("FAILED"), "{said}");
}

#[test]
fn a_host_that_is_cut_off_for_longer_than_the_patience_has_ended() {
    let (programs, scene) = (Programs::new(), Scene::new());
    if !scene.hosts.are_apart() {
        return println!("skipped: cables to cut, which need root");
    }
    let program = programs.compiled("images/hosts.c");
    let options = ["--host", "b:2", "--patience", "2"];
    let machine = ReadyMachine::start(scene.command(&options, &program, &["outlives"]));
    scene.hosts.cut(1);
    let said = machine.end();
    assert!(said.contains("ok: outlives") && !said.contains("FAILED"), "{said}");
    // The processes there have found that out by themselves.
    within(|| scene.far_processes().is_empty().then_some(()));
}

impl Scene {
    /// `upcall pvm` with these words, at home.
    fn told(&self, words: &[&str]) -> Output {
        let all = self.on(self.hosts.host(0), 0);
        let mut command = Command::new(&all[0]);
        command.args(&all[1..]).arg(upcall()).arg("pvm").args(words).output().unwrap()
    }

    /// Lets a machine go on, on host 1, which has this folder in place of another one, and which
    /// has the name of the first of [`NAMES`].
    fn restart_there(&self, file: &Path, folders: [&Path; 2], options: &[&str]) -> Output {
        let mut words = self.on(self.hosts.host(1), 1);
        if self.hosts.are_apart() {
            let [copy, folder] = folders.map(Path::display);
            let inside =
                format!("hostname {} && mount --bind {copy} {folder} && exec \"$@\"", NAMES[0]);
            let apart = ["unshare", "--uts", "--mount", "sh", "-c", &inside, "sh"];
            words.extend(apart.map(String::from));
        }
        let port = self.address.rsplit(':').next().unwrap();
        let address = format!("{}:{port}", self.hosts.host(1).address);
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).args(["timeout", "60"]).arg(upcall()).args(["pvm", "restart"]);
        command.arg(file).args(options);
        if options.contains(&"--host") {
            command.args(["--rendezvous", &address]).arg("--upcall").arg(upcall());
            command.arg("--with").arg(format!("sh {} {{host}}", self.start().display()));
        }
        let done = command.output().unwrap();
        assert_ne!(done.status.code(), Some(124), "it hangs: {}", said(&done));
        done
    }
}

/// A word of a shell.
fn quoted(word: &str) -> String {
    format!("'{word}'")
}

/// Copies a folder with its programs, whose times stay.
fn copied(folder: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    let mut command = Command::new("cp");
    command.arg("-a").arg(folder.join(".")).arg(copy.path());
    assert!(command.status().unwrap().success());
    copy
}

/// The new home was another host of the machine. It has its own copies of the program.
#[test]
fn a_machine_is_saved_on_one_host_and_goes_on_on_another() {
    let (programs, scene) = (Programs::new(), Scene::new());
    let program = programs.compiled("images/streams.c");
    let file = scene.folder.path().join("state");
    let gate = scene.folder.path().join("gate");
    let saved = |options: &[&str], copies: &str| {
        let options = [options, &["-n", copies, "--place", "interleave"]].concat();
        let _ = fs::remove_file(&gate);
        let args = [&*gate.display().to_string()];
        let machine = ReadyMachine::start(scene.command(&options, &program, &args));
        let done = scene.told(&["checkpoint", &file.display().to_string()]);
        assert!(done.status.success(), "{}", said(&done));
        drop(machine);
        within(|| scene.far_processes().is_empty().then_some(()));
        fs::write(&gate, "").unwrap();
    };
    let copy = copied(programs.0.path());
    let folders = [copy.path(), programs.0.path()];
    // A machine of one host, and one of three, of which one is not there any more.
    saved(&[], "3");
    let done = scene.restart_there(&file, folders, &[]);
    assert!(done.status.success() && said(&done).contains("ok: streams"), "{}", said(&done));
    saved(&["--host", "b:2", "--host", "c"], "4");
    for options in [&["--procs", "2"][..], &["--host", "c"]] {
        let done = scene.restart_there(&file, folders, options);
        let said = said(&done);
        assert!(done.status.success() && said.contains("ok: streams"), "{said}");
        assert!(!scene.hosts.are_apart() || !said.contains("host b of the checkpoint"), "{said}");
    }
    // A task that cannot go on is named with its host.
    if scene.hosts.are_apart() {
        let wrong = copied(programs.0.path());
        fs::copy(programs.compiled("programs/ring.c"), wrong.path().join("streams")).unwrap();
        let mut words = scene.on(scene.hosts.host(2), 2);
        let [wrong, folder] = [wrong.path(), programs.0.path()].map(Path::display);
        let inside = format!("mount --bind {wrong} {folder} && exec \"$@\"");
        words.extend(["unshare", "--mount", "sh", "-c", &inside, "sh"].map(quoted));
        scene.write_start([Vec::new(), words]);
        let done = scene.restart_there(&file, folders, &["--host", "c"]);
        let said = said(&done);
        assert!(!done.status.success() && said.contains("(streams) on host c: "), "{said}");
        assert!(!said.contains("ok: "), "{said}");
        within(|| scene.far_processes().is_empty().then_some(()));
    }
    // Another program has another build id, or another length.
    let other = programs.compiled("programs/ring.c");
    fs::copy(other, copy.path().join("streams")).unwrap();
    if scene.hosts.are_apart() {
        let done = scene.restart_there(&file, folders, &[]);
        let said = said(&done);
        let path = program.display().to_string();
        assert!(
            !done.status.success() && said.contains(&path) && said.contains("differs"),
            "{said}"
        );
    }
}

#[test]
fn a_host_that_is_out_of_reach_costs_a_checkpoint_and_no_message() {
    let (programs, scene) = (Programs::new(), Scene::new());
    if !scene.hosts.are_apart() {
        return println!("skipped: cables to cut, which need root");
    }
    let program = programs.compiled("images/streams.c");
    let file = scene.folder.path().join("state");
    let checkpoint = || scene.told(&["checkpoint", &file.display().to_string()]);
    let gate = scene.folder.path().join("gate");
    let args = [&*gate.display().to_string()];
    let options = ["--host", "b", "-n", "2", "--place", "interleave"];
    let machine = ReadyMachine::start(scene.command(&options, &program, &args));
    scene.hosts.cut(1);
    let done = checkpoint();
    let told = said(&done);
    assert!(!done.status.success() && told.contains("process 1 on host b"), "{told}");
    assert!(!file.exists());
    scene.hosts.mend(1);
    // The link is back some time after that.
    within(|| checkpoint().status.success().then_some(()));
    fs::write(&gate, "").unwrap();
    let told = machine.end();
    assert!(told.contains("ok: streams") && !told.contains("FAILED"), "{told}");
    within(|| scene.far_processes().is_empty().then_some(()));
    let folder = programs.0.path();
    let done = scene.restart_there(&file, [folder, folder], &[]);
    assert!(done.status.success() && said(&done).contains("ok: streams"), "{}", said(&done));
}

/// Two hosts that do not reach each other, while both reach the home, would lose messages.
#[test]
fn of_two_hosts_that_do_not_reach_each_other_one_is_ended() {
    let (programs, scene) = (Programs::new(), Scene::new());
    if !scene.hosts.are_apart() {
        return println!("skipped: routes to cut, which need root");
    }
    let program = programs.compiled("images/hosts.c");
    let options = ["--host", "b", "--host", "c", "--patience", "2"];
    let machine = ReadyMachine::start(scene.command(&options, &program, &["parted"]));
    for (from, to) in [(1, 2), (2, 1)] {
        let words = scene.hosts.host(from).wrapper();
        let mut route = Command::new(&words[0]);
        let to = &scene.hosts.host(to).address;
        route.args(&words[1..]).args(["ip", "route", "add", "blackhole", to]);
        assert!(route.status().unwrap().success());
    }
    let said = machine.end();
    assert!(said.contains("ok: parted") && !said.contains("FAILED"), "{said}");
    assert_eq!(said.matches("do not reach each other").count(), 1, "{said}");
    within(|| scene.far_processes().is_empty().then_some(()));
}

#[test]
fn a_host_that_is_not_trusted_does_not_join() {
    let (programs, scene) = (Programs::new(), Scene::new());
    if !scene.hosts.are_apart() {
        return println!("skipped: hosts that are not one, which need root");
    }
    let stranger = scene.hosts.stranger(1);
    scene.write_start([scene.on(&stranger, 1), Vec::new()]);
    let program = programs.compiled("images/hosts.c");
    let done = scene.run(&["--host", "b"], &program, &["waits"]);
    let said = said(&done);
    assert!(!done.status.success(), "{said}");
    assert!(said.contains("not trusted") || said.contains("trust"), "{said}");
    assert!(said.contains("the processes of host b has ended"), "{said}");
}
