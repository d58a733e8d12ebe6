//! `upcall job member` under the schedulers that are installed here, and the files of
//! examples/schedulers.

mod files;
mod hosts;
mod slurm;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;
use upcall::message::{GroupBuilder, Handlers};

/// Set for the processes that are members.
const MEMBER: &str = "UPCALL_TEST_MEMBER";

/// Not a test by itself: a member of a group, if `upcall job member` has started this process. It
/// passes a message on to the next rank, and prints what it knows.
#[test]
fn member() {
    if std::env::var_os(MEMBER).is_none() {
        return;
    }
    match life() {
        // The harness would print more.
        Ok(said) => println!("\n{said}"),
        Err(error) => {
            eprintln!("{error}");
            std::process::exit(1);
        }
    }
    std::process::exit(0);
}

fn life() -> Result<String, Box<dyn std::error::Error>> {
    let mut handlers = Handlers::new();
    let kind = handlers.kind::<u64>("rank");
    let group = GroupBuilder::from_environment()?.join(handlers)?;
    let (rank, size) = (group.rank(), group.size());
    group.send((rank + 1) % size, kind, &(rank as u64))?;
    let before = loop {
        match group.receive(|message| message.word(0)) {
            Ok(before) => break before.ok_or("a message without a rank")?,
            Err(_) => _ = group.wait(None),
        }
    };
    let sum = group.reduce(rank as u64, |a, b| a + b)?;
    let near = (0..size).filter(|&other| group.process(other).is_some()).count();
    group.barrier()?;
    Ok(format!("member {rank} of {size}, {near} near, after {before}, sum {sum}"))
}

/// The lines of all members of a group, of which each host has these ranks.
fn expected(hosts: &[&[usize]]) -> Vec<String> {
    let size: usize = hosts.iter().map(|ranks| ranks.len()).sum();
    let mut lines = Vec::new();
    for ranks in hosts {
        for rank in *ranks {
            let (near, before, sum) =
                (ranks.len(), (rank + size - 1) % size, size * (size - 1) / 2);
            lines.push(format!("member {rank} of {size}, {near} near, after {before}, sum {sum}"));
        }
    }
    lines.sort_unstable();
    lines
}

/// The lines of the members among what was printed.
fn members(output: &Output) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stdout);
    let lines = text.lines().filter(|line| line.starts_with("member "));
    let mut lines: Vec<String> = lines.map(String::from).collect();
    lines.sort_unstable();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    lines
}

/// A folder of names for one test, and processes without an identity.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        Self(TempDir::new().expect("a folder"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A command whose processes are members if they run [`program`].
    fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .env(MEMBER, "yes")
            .env("UPCALL_DIR", self.path("names"))
            .env("UPCALL_HOSTS", self.path("hosts"))
            .env_remove("XDG_RUNTIME_DIR");
        command
    }

    /// `upcall job member` with these options.
    fn upcall(&self, options: &[&str]) -> Command {
        let mut command = self.command(upcall());
        command.args(["job", "member"]).args(options);
        command
    }
}

fn upcall() -> &'static str {
    env!("CARGO_BIN_EXE_upcall")
}

/// This file as a member.
fn program() -> Vec<String> {
    let own = std::env::current_exe().expect("its own path");
    let own = own.to_str().expect("a path of text");
    [own, "member", "--exact", "--nocapture"].map(String::from).into()
}

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/schedulers").join(name)
}

/// Reports that a test cannot run here, also where the harness keeps back what tests print.
fn skip(why: std::fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "skipped: {why}");
}

/// Returns `true` if a program is installed, and says that a test is skipped otherwise.
fn is_installed(program: &str, package: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    let is_there = path.split(':').any(|folder| Path::new(folder).join(program).is_file());
    if !is_there {
        skip(format_args!("no {program} here (apt-get install {package})"));
    }
    is_there
}

/// A port that was free a moment ago.
fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("its address").port()
}

/// The program has the process of the command, and finds its group in the environment.
#[test]
fn the_program_takes_the_place_of_the_command() {
    let place = Place::new();
    let script = "echo $$ $UPCALL_GROUP $UPCALL_SIZE $UPCALL_RANK $UPCALL_RENDEZVOUS $UPCALL_LIMIT";
    let run = |options: &[&str], variables: &[(&str, &str)]| {
        let mut command = place.upcall(options);
        command.args(["--", "sh", "-c", script]).envs(variables.iter().copied());
        let child = command.stdout(std::process::Stdio::piped()).spawn().expect("it starts");
        let pid = format!("{} ", child.id());
        let output = child.wait_with_output().expect("its end");
        let said = String::from_utf8(output.stdout).expect("text");
        said.strip_prefix(&pid).unwrap_or_else(|| panic!("{pid}{said}")).trim_end().to_owned()
    };
    let options = "--at ws1:7411 --group ring --size 4 --rank 3 --limit 2M";
    let options: Vec<_> = options.split(' ').collect();
    assert_eq!(run(&options, &[]), "ring 4 3 ws1:7411 2097152");
    let slurm = [
        ("SLURM_PROCID", "2"),
        ("SLURM_STEP_NUM_TASKS", "3"),
        ("SLURM_JOB_ID", "17"),
        ("SLURM_STEP_ID", "1"),
        ("SLURM_STEP_NODELIST", "localhost"),
    ];
    assert_eq!(run(&[], &slurm), "slurm-17.1 3 2 localhost:20078");
    assert_eq!(run(&["--port", "7"], &slurm), "slurm-17.1 3 2 localhost:7");
    let pod = [("JOB_COMPLETION_INDEX", "1"), ("HOSTNAME", "ring-1")];
    let at = ["--at", "ring-0.ring:7411", "--size", "2"];
    assert_eq!(run(&at, &pod), "kubernetes-ring 2 1 ring-0.ring:7411");
}

#[test]
fn mistakes_are_answered_with_what_to_give() {
    let place = Place::new();
    let all = ["--at", "ws1:7411", "--group", "ring", "--size", "2", "--rank", "0"];
    for (options, variables, program, parts) in [
        (&[][..], &[][..], &["--", "true"][..], ["the number of members", "give --size N"]),
        (&all, &[], &["--", "/no/such"], ["/no/such could not be started", "give a path"]),
        (&all, &[], &["./ring"], ["put `--` before the program", "job member -- ./ring"]),
        (&all[..6], &[], &["--", "true"], ["the rank of this member", "give --rank N"]),
        (&[], &[("SLURM_PROCID", "0")], &["--", "true"], ["alone", "put `srun` before"]),
        (&[], &[("PMI_RANK", "x")], &["--", "true"], ["PMI_RANK=x makes no sense", "--rank"]),
    ] {
        let mut command = place.upcall(options);
        let output = command.args(program).envs(variables.iter().copied()).output();
        let output = output.expect("the command starts");
        let error = String::from_utf8(output.stderr).expect("text");
        assert_eq!(output.status.code(), Some(2), "{options:?}: {error}");
        assert!(parts.iter().all(|part| error.contains(part)), "{options:?}: {error}");
    }
}

/// As a script, or units of systemd, start members.
#[test]
fn members_that_are_told_everything_form_a_group() {
    let place = Place::new();
    let at = format!("127.0.0.1:{}", free_port());
    let start = |rank: &str| {
        let options = ["--at", &at, "--group", "ring", "--size", "2", "--rank", rank];
        let mut command = place.upcall(&options);
        command.arg("--").args(program()).stdout(std::process::Stdio::piped());
        command.spawn().expect("it starts")
    };
    let both = [start("1"), start("0")].map(|child| child.wait_with_output().expect("its end"));
    let mut lines: Vec<_> = both.iter().flat_map(members).collect();
    lines.sort_unstable();
    assert_eq!(lines, expected(&[&[0, 1]]));
}

#[test]
fn open_mpi_starts_members() {
    if !is_installed("mpirun", "openmpi-bin") {
        return;
    }
    let place = Place::new();
    let at = format!("127.0.0.1:{}", free_port());
    let mut mpirun = place.command("timeout");
    mpirun.args(["120", "mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "3"]);
    mpirun.args([upcall(), "job", "member", "--at", &at, "--"]).args(program());
    let output = mpirun.output().expect("mpirun starts");
    assert_eq!(members(&output), expected(&[&[0, 1, 2]]));
}
