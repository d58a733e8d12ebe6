//! Checkpoints of machines over several hosts. Those hosts are one: processes with different
//! folders of names do not see each other, and reach each other over links.

mod command;

use command::pretended::{PretendedHosts, ReadyMachine};
use command::running::{KilledMachine, Programs, said, within};
use command::upcall;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

/// A program, and hosts for it. Files are in the folder of the hosts.
struct SavedScene {
    programs: Programs,
    program: PathBuf,
    hosts: PretendedHosts,
}

impl SavedScene {
    fn new(source: &str) -> Self {
        let programs = Programs::new();
        let program = programs.compiled(source);
        Self { programs, program, hosts: PretendedHosts::new() }
    }

    fn path(&self, name: &str) -> String {
        self.programs.0.path().join(name).display().to_string()
    }

    /// Runs the program on these hosts.
    fn run(&self, hosts: &[&str], options: &[&str], args: &[&str]) -> ReadyMachine {
        ReadyMachine::start(self.hosts.starts(hosts, options, &self.program, args))
    }

    /// The file that lets the program `streams` end.
    fn gate(&self) -> String {
        self.hosts.folder.path().join("gate").display().to_string()
    }

    /// Runs `streams`, which does not end.
    fn streams(&self, hosts: &[&str], options: &[&str]) -> ReadyMachine {
        let _ = fs::remove_file(self.gate());
        self.run(hosts, options, &[&self.gate()])
    }

    /// Lets `streams` end, also in a machine that goes on from a file.
    fn open_gate(&self) {
        fs::write(self.gate(), "").unwrap();
    }

    /// `upcall pvm run` where this script comes before processes start on host `$1`.
    fn starts_by(&self, script: &str) -> Command {
        let shell = self.hosts.folder.path().join("shell");
        let root = self.hosts.folder.path().display();
        let rest = format!("host=$1\nshift\nexec env UPCALL_DIR={root}/$host \"$@\"\n");
        fs::write(&shell, format!("{script}\n{rest}")).unwrap();
        let mut command = self.hosts.command(&["run", "--rendezvous", &self.hosts.address]);
        command.arg("--with").arg(format!("sh {} {{host}}", shell.display()));
        command.arg("--upcall").arg(upcall());
        command
    }

    fn restarts(&self, file: &str, hosts: &[&str], options: &[&str]) -> Command {
        let mut command = self.hosts.command(&["restart", &self.path(file)]);
        if !hosts.is_empty() {
            command.args(["--rendezvous", &self.hosts.address, "--with", &self.hosts.with()]);
            command.arg("--upcall").arg(upcall());
        }
        hosts.iter().for_each(|host| _ = command.args(["--host", host]));
        command.args(options);
        command
    }

    /// What the machine prints that goes on from a file. It ends successfully.
    fn goes_on(&self, file: &str, hosts: &[&str]) -> String {
        let done = self.restarts(file, hosts, &[]).output().unwrap();
        assert!(done.status.success(), "{hosts:?}: {} {}", done.status, said(&done));
        within(|| self.hosts.far_processes().is_empty().then_some(()));
        said(&done)
    }

    fn save(&self, file: &str) -> Output {
        self.hosts.command(&["checkpoint", &self.path(file)]).output().unwrap()
    }

    fn saved(&self, file: &str) {
        let done = self.save(file);
        assert!(done.status.success(), "{}", said(&done));
    }

    /// The error with which a checkpoint is refused.
    fn not_saved(&self, file: &str) -> String {
        let done = self.save(file);
        assert!(!done.status.success(), "{}", said(&done));
        said(&done)
    }

    /// `upcall pvm join` with the token in this file, as host c.
    fn joins(&self, token: &str) -> Child {
        let mut join = Command::new("timeout");
        join.arg("60").arg(upcall()).args(["pvm", "join", &self.hosts.address, "--name", "c"]);
        join.args(["--token-file", token]).env("UPCALL_DIR", self.hosts.folder.path().join("c"));
        join.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        join.spawn().unwrap()
    }

    /// The same, once the first process has its request.
    fn has_asked(&self, token: &str) -> Child {
        let join = self.joins(token);
        within(|| asks(join.id()).then_some(()));
        // The first process answers others, and has the request before that.
        let wrong = self.hosts.folder.path().join("wrong");
        fs::write(&wrong, "0123456789abcdef").unwrap();
        fs::set_permissions(&wrong, PermissionsExt::from_mode(0o600)).unwrap();
        let refused = self.joins(&wrong.display().to_string()).wait_with_output().unwrap();
        assert!(said(&refused).contains("another token"), "{}", said(&refused));
        join
    }

    /// The names of all files beside the program.
    fn files(&self) -> Vec<String> {
        let own = self.program.file_name().unwrap();
        let all = fs::read_dir(self.programs.0.path()).unwrap().flatten();
        let names = all.map(|one| one.file_name()).filter(|name| name != own);
        let mut names = names.map(|name| name.into_string().unwrap()).collect::<Vec<_>>();
        names.sort();
        names
    }

    /// Kills the machine, and waits until no process of another host is left.
    fn kill(&self, machine: ReadyMachine) {
        drop(machine);
        within(|| self.hosts.far_processes().is_empty().then_some(()));
    }
}

fn signal(process: i32, signal: Signal) {
    kill_process(Pid::from_raw(process).unwrap(), signal).unwrap();
}

fn is_stopped(process: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))
}

#[test]
fn a_machine_over_several_hosts_goes_on_on_the_same_on_fewer_and_on_other_hosts() {
    let scene = SavedScene::new("images/streams.c");
    let options = ["-n", "5", "--place", "interleave"];
    let expected = "ok: streams\n";
    let machine = scene.streams(&["b:2", "c"], &options);
    // The machine itself goes on, and each checkpoint is whole.
    scene.saved("first");
    scene.saved("first");
    scene.open_gate();
    assert_eq!(machine.end(), (Some(0), expected.into()));
    for (number, hosts) in
        [&["b:2", "c"][..], &["c", "b:2"], &["b"], &["c:3"], &[]].into_iter().enumerate()
    {
        let machine = scene.streams(&["b:2", "c"], &options);
        scene.saved("first");
        scene.kill(machine);
        scene.open_gate();
        let said = scene.goes_on("first", hosts);
        assert!(said.contains(expected), "{hosts:?}: {said}");
        let missing = ["b", "c"]
            .iter()
            .filter(|name| !hosts.iter().any(|host| host.split(':').next() == Some(**name)));
        let named = |name: &&str| said.contains(&format!("host {name} of the checkpoint is not"));
        assert!(missing.clone().all(named), "{said}");
        assert_eq!(said.matches("of the checkpoint is not there").count(), missing.count());
        // A file can be used any number of times.
        let again = scene.goes_on("first", if number == 0 { &[] } else { &["b:2", "c"] });
        assert!(again.contains(expected), "{hosts:?}: {again}");
    }
    assert_eq!(scene.files(), ["first"]);
}

/// The tasks exchange messages of all kinds, wait at barriers, take mailbox entries and spawn.
#[test]
fn a_machine_that_goes_on_elsewhere_is_saved_and_goes_on_again() {
    let scene = SavedScene::new("images/saved.c");
    let (options, args) = (["-n", "5", "--place", "interleave"], ["100"]);
    let machine = |hosts: &[&str]| {
        let mut command = scene.hosts.starts(hosts, &options, &scene.program, &args);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let lines = |text: String| {
        let mut lines = text.lines().map(String::from).collect::<Vec<_>>();
        lines.retain(|line| line.starts_with("task "));
        lines.sort();
        lines
    };
    let undisturbed = said(&machine(&["b:2", "c"]).wait_with_output().unwrap());
    let expected = lines(undisturbed.clone());
    assert_eq!(expected.len(), 5, "{undisturbed}");
    let saves = |command: &mut Command, file: &str| {
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut child = KilledMachine(Some(child));
        while !scene.save(file).status.success() {
            let ended = child.0.as_mut().unwrap().try_wait().unwrap();
            assert!(ended.is_none(), "it ends without a checkpoint: {ended:?}");
        }
        drop(child);
        within(|| scene.hosts.far_processes().is_empty().then_some(()));
    };
    let mut first = scene.hosts.starts(&["b:2", "c"], &options, &scene.program, &args);
    saves(&mut first, "first");
    saves(&mut scene.restarts("first", &["c"], &[]), "second");
    saves(&mut scene.restarts("second", &[], &["--procs", "2"]), "third");
    for (file, hosts) in
        [("first", &["b:2", "c"][..]), ("second", &["b"]), ("third", &["c", "b"]), ("third", &[])]
    {
        assert_eq!(lines(scene.goes_on(file, hosts)), expected, "{file} {hosts:?}");
    }
    assert_eq!(scene.files(), ["first", "second", "third"]);
}

#[test]
fn checkpoints_at_intervals_are_those_of_all_hosts() {
    let scene = SavedScene::new("images/streams.c");
    let state = scene.path("state");
    let every = ["-n", "4", "--checkpoint", &state, "--every", "0.1"];
    let machine = scene.streams(&["b", "c"], &every);
    within(|| fs::exists(&state).unwrap().then_some(()));
    scene.kill(machine);
    scene.open_gate();
    let done = scene.restarts("state", &["b", "c"], &["--checkpoint", &state, "--every", "0.1"]);
    let done = { done }.output().unwrap();
    assert!(said(&done).contains("ok: streams"), "{}", said(&done));
    assert!(scene.goes_on("state", &[]).contains("ok: streams"));
}

/// The program has asked for notices about hosts, and has a task on each.
#[test]
fn hosts_keep_their_numbers_and_those_that_are_gone_or_new_are_notified() {
    let scene = SavedScene::new("images/returns.c");
    fs::DirBuilder::new().create(scene.hosts.folder.path().join("d")).unwrap();
    let mode = PermissionsExt::from_mode(0o700);
    fs::set_permissions(scene.hosts.folder.path().join("d"), mode).unwrap();
    // Each host has a umask of its own.
    let mut command = scene.starts_by("case $1 in b) umask 027 ;; *) umask 077 ;; esac");
    command.args(["--host", "b", "--host", "c"]);
    let machine = ReadyMachine::start({
        command.arg(&scene.program).arg("2");
        command
    });
    scene.saved("state");
    scene.kill(machine);
    let said = scene.goes_on("state", &["c", "d"]);
    let mut lines = said.lines().filter(|line| !line.contains("upcall pvm: ")).collect::<Vec<_>>();
    lines[..2].sort_unstable();
    let expected = [
        "come: 1, 100000",
        "gone: 80000",
        "child 1: host 100000, umask 27",
        "child 2: host c0000, umask 77",
        "host 40000: home",
        "host c0000: c",
        "host 100000: d",
        "own: 40000",
    ];
    assert_eq!(lines, expected, "{said}");
    assert!(said.contains("host b of the checkpoint is not there: its tasks (1) go on"), "{said}");
    // The other host comes later.
    let mut command = scene.restarts("state", &["c"], &[]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut child = KilledMachine(Some(child));
    within(|| scene.hosts.command(&["add", "d"]).status().unwrap().success().then_some(()));
    let said = command::running::said(&child.0.take().unwrap().wait_with_output().unwrap());
    for line in
        ["come: 1, 100000", "gone: 80000", "child 1: host 40000, umask 27", "host 100000: d"]
    {
        assert!(said.lines().any(|one| one == line), "{line}: {said}");
    }
}

#[test]
fn a_machine_is_not_saved_without_a_host_and_goes_on() {
    let scene = SavedScene::new("images/returns.c");
    let machine = scene.run(&["b"], &[], &["1"]);
    scene.saved("state");
    let before = fs::read(scene.path("state")).unwrap();
    let other = scene.hosts.far_processes()[0];
    signal(other, Signal::STOP);
    let error = scene.not_saved("state");
    assert!(error.contains("no answer of process 1 on host b"), "{error}");
    assert_eq!(fs::read(scene.path("state")).unwrap(), before);
    assert_eq!(scene.files(), ["state"]);
    signal(other, Signal::CONT);
    scene.saved("state");
    let done = scene.hosts.command(&["add", "c"]).output().unwrap();
    assert!(done.status.success(), "{}", said(&done));
    let (status, said) = machine.end();
    assert!(status == Some(0) && said.contains("come: 1, c0000"), "{said}");
}

/// A process ends at each step of a checkpoint. The former file stays, and nothing else does.
#[test]
#[cfg(debug_assertions)]
fn a_process_of_any_host_that_ends_during_a_checkpoint_costs_the_checkpoint() {
    let scene = SavedScene::new("images/streams.c");
    let options = ["-n", "3", "--place", "interleave"];
    let machine = scene.streams(&["b", "c"], &options);
    scene.saved("state");
    scene.kill(machine);
    let before = fs::read(scene.path("state")).unwrap();
    for rank in ["1", "2", "0"] {
        let all = ["Hold", "Held", "Count", "Counted", "Save", "Saved", "GoOn"];
        // The first process does not send itself what it counts.
        let steps = all.iter().filter(|step| match rank {
            "0" => !["Count", "Counted", "GoOn"].contains(step),
            _ => **step != "GoOn",
        });
        for step in steps {
            let program = &scene.program;
            let mut command = scene.hosts.starts(&["b", "c"], &options, program, &[&scene.gate()]);
            command.env("UPCALL_PVM_FAULT", format!("{rank}:{step}:kill"));
            let machine = ReadyMachine::start(command);
            let error = scene.not_saved("state");
            if rank != "0" {
                // It has ended, another process does not reach it, or it does not answer.
                let is_named = error.contains(&format!("process {rank} "));
                assert!(is_named, "{step}: {error}");
            }
            scene.kill(machine);
            assert_eq!(fs::read(scene.path("state")).unwrap(), before, "{rank} {step}");
            assert_eq!(scene.files(), ["state"], "{rank} {step}");
        }
    }
    scene.open_gate();
    assert!(scene.goes_on("state", &["b", "c"]).contains("ok: streams"));
}

/// A hostile process changes what it sends of its tasks for a checkpoint. The file can be read in
/// any case, and the home neither crashes nor hangs.
#[test]
#[cfg(debug_assertions)]
fn tasks_that_another_host_bends_cost_a_checkpoint_or_only_themselves() {
    let scene = SavedScene::new("images/returns.c");
    let mut refused = 0;
    for seed in 1..=12 {
        let mut command = scene.hosts.starts(&["b"], &[], &scene.program, &["1"]);
        command.env("UPCALL_PVM_BENT", format!("1:{seed}"));
        let machine = ReadyMachine::start(command);
        let done = scene.save("state");
        if !done.status.success() {
            let error = said(&done);
            assert!(error.contains("process 1 on host b has sent task"), "seed {seed}: {error}");
            assert!(scene.files().is_empty());
            refused += 1;
            scene.kill(machine);
            continue;
        }
        scene.kill(machine);
        let done = scene.restarts("state", &[], &[]).output().unwrap();
        let said = said(&done);
        assert!(done.status.code() != Some(124), "seed {seed}: it hangs: {said}");
        assert!(!said.contains("panicked") && !said.contains("damaged"), "seed {seed}: {said}");
        fs::remove_file(scene.path("state")).unwrap();
    }
    assert!(refused > 0);
}

/// The home takes no more of another host than its tasks can have.
#[test]
#[cfg(debug_assertions)]
fn a_host_that_sends_too_much_costs_the_checkpoint_and_the_machine_goes_on() {
    let scene = SavedScene::new("images/returns.c");
    let mut command = scene.hosts.starts(&["b"], &[], &scene.program, &["1"]);
    command.env("UPCALL_PVM_SAVED", "1000");
    let machine = ReadyMachine::start(command);
    let error = scene.not_saved("state");
    assert!(error.contains("process 1 on host b has sent task"), "{error}");
    assert!(error.contains("more than 1000 bytes") && error.contains("--memory"), "{error}");
    assert_eq!(scene.files(), [""; 0]);
    assert!(scene.hosts.command(&["add", "c"]).status().unwrap().success());
    let (status, said) = machine.end();
    assert!(status == Some(0) && said.contains("come: 1, c0000"), "{said}");
}

/// A host that asks to come while the machine is held waits until it goes on.
#[test]
#[cfg(debug_assertions)]
fn a_host_that_comes_during_a_checkpoint_waits() {
    let scene = SavedScene::new("images/comes.c");
    let token = scene.hosts.folder.path().join("token").display().to_string();
    let options = ["--token-file", &token];
    let mut command = scene.hosts.starts(&["b"], &options, &scene.program, &["await", "3"]);
    command.env("UPCALL_PVM_FAULT", "1:Held:stop");
    let machine = ReadyMachine::start(command);
    let far = scene.hosts.far_processes()[0];
    let mut save = scene.hosts.command(&["checkpoint", &scene.path("state")]);
    let save = save.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    within(|| is_stopped(far).then_some(()));
    let join = scene.has_asked(&token);
    let shown = scene.hosts.command(&["ps", "--json"]).output().unwrap();
    let shown: serde_json::Value = serde_json::from_slice(&shown.stdout).unwrap();
    assert_eq!(shown[0]["hosts"].as_array().unwrap().len(), 2, "{shown}");
    signal(far, Signal::CONT);
    // On a slow machine the process was stopped for too long.
    let done = save.wait_with_output().unwrap();
    let is_late = said(&done).contains("no answer of process 1 on host b");
    assert!(done.status.success() != is_late, "{}", said(&done));
    let (_, told) = machine.end();
    assert!(told.contains("ok: all there") && !told.contains("FAILED"), "{told}");
    let done = join.wait_with_output().unwrap();
    assert!(done.status.success(), "{}", said(&done));
    assert!(is_late || scene.files() == ["state"]);
}

/// A host that asks to come before all tasks of a checkpoint are there waits, and ends no restart.
#[test]
#[cfg(debug_assertions)]
fn a_host_that_comes_during_a_restart_waits() {
    let scene = SavedScene::new("images/comes.c");
    let token = scene.hosts.folder.path().join("token").display().to_string();
    let options = ["-n", "2", "--place", "interleave", "--token-file", &token];
    let machine = scene.run(&["b"], &options, &["await", "3"]);
    scene.saved("state");
    scene.kill(machine);
    let mut command = scene.restarts("state", &["b"], &["--token-file", &token]);
    command.env("UPCALL_PVM_FAULT", "1:Restored:stop");
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut machine = KilledMachine(Some(child));
    let is_stopped = |process: &i32| is_stopped(*process);
    let far = within(|| scene.hosts.far_processes().into_iter().find(is_stopped));
    let join = scene.has_asked(&token);
    signal(far, Signal::CONT);
    let told = said(&machine.0.take().unwrap().wait_with_output().unwrap());
    assert_eq!(told.matches("ok: all there").count(), 2, "{told}");
    let done = join.wait_with_output().unwrap();
    assert!(done.status.success(), "{}", said(&done));
}

/// A process that is stopped has not ended. It keeps no restart from ending.
#[test]
#[cfg(debug_assertions)]
fn a_host_that_does_not_answer_ends_the_restart_and_is_named() {
    let scene = SavedScene::new("images/streams.c");
    let machine = scene.streams(&["b"], &["-n", "2", "--place", "interleave"]);
    scene.saved("state");
    scene.kill(machine);
    let mut command = scene.restarts("state", &["b"], &["--patience", "1"]);
    let done = command.env("UPCALL_PVM_FAULT", "1:Restored:stop").output().unwrap();
    let said = said(&done);
    assert!(said.contains("no answer of process 1 on host b"), "{:?}: {said}", done.status);
    assert_eq!(done.status.code(), Some(1), "{said}");
    within(|| scene.hosts.far_processes().is_empty().then_some(()));
}

/// Returns `true` if a process below `timeout` has a connection.
fn asks(timeout: u32) -> bool {
    let children = fs::read_to_string(format!("/proc/{timeout}/task/{timeout}/children"));
    let child = children.unwrap_or_default().trim().to_owned();
    let all = fs::read_dir(format!("/proc/{child}/fd")).into_iter().flatten().flatten();
    let mut targets = all.filter_map(|one| fs::read_link(one.path()).ok());
    targets.any(|target| target.to_string_lossy().starts_with("socket:"))
}

#[test]
fn hosts_come_and_go_while_the_machine_is_saved_at_intervals() {
    let scene = SavedScene::new("images/comes.c");
    let state = scene.path("state");
    for (what, ok) in [("comes", "comes and goes"), ("together", "come together")] {
        let mut command = scene.starts_by("case $1 in b|c) ;; *) exit 3 ;; esac");
        command.args(["--checkpoint", &state, "--every", "0.1"]).arg(&scene.program).arg(what);
        let done = command.output().unwrap();
        assert_ne!(done.status.code(), Some(124), "it hangs: {}", said(&done));
        let said = said(&done);
        assert!(said.contains(&format!("ok: {ok}")) && !said.contains("FAILED"), "{said}");
        within(|| scene.hosts.far_processes().is_empty().then_some(()));
    }
    assert_eq!(scene.files(), ["state"]);
}
