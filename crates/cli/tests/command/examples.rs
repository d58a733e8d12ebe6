//! Every example of every help text runs, beside servers that export such names.

use crate::scene::{Place, Served, until};
use crate::shell::{is_there, shell};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Lists the subcommands of a command, from its help, with itself first.
fn commands(place: &Place, path: &[&str]) -> Vec<Vec<String>> {
    let help = help(place, path);
    let mut all = vec![path.iter().map(|word| word.to_string()).collect::<Vec<_>>()];
    let listed = help.split_once("Commands:\n").map_or("", |(_, listed)| listed);
    for line in listed.lines().take_while(|line| !line.is_empty()) {
        let name = line.split_whitespace().next().unwrap_or_default();
        // A continued description is indented further.
        if line.starts_with("  ") && !line.starts_with("   ") && name != "help" {
            all.extend(commands(place, &[path, &[name]].concat()));
        }
    }
    all
}

fn help(place: &Place, path: &[&str]) -> String {
    let (done, help, error) = place.run(&[path, &["--help"]].concat());
    assert!(done, "{path:?}: {error}");
    help
}

/// The lines below "Examples:" in the help of a command.
fn examples(place: &Place, path: &[&str]) -> Vec<String> {
    let help = help(place, path);
    let (_, below) = help.split_once("Examples:\n").unwrap_or_else(|| panic!("{path:?}: {help}"));
    below.lines().map_while(|line| line.strip_prefix("  ")).map(String::from).collect()
}

/// The job or the machine that an example is about. Killed on drop.
struct Helper {
    process: Served,
    is_machine: bool,
}

/// The files and the servers of the examples.
struct Scene {
    place: Place,
    server: Served,
    address: String,
    /// The folder of `upvmcc`, if the program can be built.
    compilers: Option<PathBuf>,
}

/// Schedulers in examples, and the variables that they would set for one of the members.
const SCHEDULERS: [(&str, &str); 2] = [
    (
        "srun -n 4 ",
        "SLURM_PROCID=3 SLURM_NTASKS=4 SLURM_JOB_ID=1 SLURM_STEP_ID=0 \
         SLURM_STEP_NODELIST=localhost",
    ),
    ("mpirun -n 4 ", "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 PMIX_NAMESPACE=1"),
];

/// Where machines over several hosts meet.
const OTHER_HOST: &str = "--rendezvous ws1:7000";
const JOIN: &str = "env UPCALL_DIR=$PWD/far upcall pvm join --name ws2";
const UNTIL_JOINED: &str = "until upcall pvm conf | grep -q ws2; do sleep 0.1; done";
const SIEVE: &str = "#!/bin/sh\nexit 0\n";
const HELLO: &str = "#include <pvm3.h>
#include <stdio.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    pvm_mytid();
    puts(\"hello\");
    if (argc > 1 && argv[1][0] == 's')
        sleep(600);
    pvm_exit();
    return 0;
}
";
const INTERFACE: &str = "package a:b@1.0.0; interface i { f: func(); }";
const LARGER: &str = "package a:b@1.0.0; interface i { f: func(); g: func(); }";
const WRITTEN: &str = "#[upcall::package(\"a:b@1.0.0\")]
mod files {
    pub trait Files {
        fn size(&self, name: &str) -> u64;
    }
}
";

impl Scene {
    fn new() -> Self {
        let place = Place::new();
        let (server, address) = place.program("examples");
        let folder = place.0.path();
        ["wit", "src", "c"]
            .iter()
            .for_each(|name| fs::create_dir(folder.join(name)).expect("room"));
        for (name, text) in [
            ("old.wit", INTERFACE),
            ("new.wit", LARGER),
            ("wit/files.wit", INTERFACE),
            ("src/files.rs", WRITTEN),
            ("path.txt", "etc"),
            ("sieve", SIEVE),
            ("hello.c", HELLO),
            ("script", "spawn -2 -> ./hello\n"),
        ] {
            fs::write(folder.join(name), text).expect("a file");
        }
        let sieve = folder.join("sieve");
        let made = Command::new("chmod").arg("+x").arg(&sieve).status().expect("chmod runs");
        assert!(made.success());
        Self { place, server, address, compilers: compilers() }
    }

    fn shell(&self, line: &str) -> Command {
        let mut shell = shell(&self.place, "bash", line);
        shell.env("PAGER", "cat").env("TERM", "xterm");
        if let Some(compilers) = &self.compilers {
            let path = shell.get_envs().find(|(name, _)| *name == "PATH");
            let path = path.and_then(|(_, path)| path).unwrap_or_default().to_os_string();
            let path = format!("{}:{}", compilers.display(), path.display());
            shell.env("PATH", path);
        }
        shell
    }

    /// Starts the job or the machine that an example is about.
    fn helper(&self, example: &str) -> Option<Helper> {
        let start = |line: &str| {
            let mut shell = self.shell(&format!("exec {line}"));
            Served(shell.stdout(Stdio::null()).spawn().expect("a shell"))
        };
        let is_job = ["stop", "cont", "kill", "ls"]
            .iter()
            .any(|command| example.starts_with(&format!("upcall job {command}")));
        let is_host = ["add", "delete", "conf", "join"]
            .iter()
            .any(|command| example.contains(&format!("upcall pvm {command}")));
        let is_machine =
            ["ps", "kill", "sig", "move", "halt", "checkpoint", "procs", "evacuate", "top"]
                .iter()
                .any(|command| example.starts_with(&format!("upcall pvm {command}")));
        if is_job {
            let job = start("upcall job run --group 2 --name night -- sleep 600");
            until("the job runs", || {
                self.place.json(&["job", "ls", "--json"])[0]["members"][1]["pid"].is_u64()
            });
            Some(Helper { process: job, is_machine: false })
        } else if is_host && self.compilers.is_some() {
            let host = if example.contains("delete") { "--host ws2" } else { "" };
            let meeting = rendezvous(7432);
            let machine = start(&format!(
                "bash -c 'mkdir -p -m 700 far && exec upcall pvm run --rendezvous {meeting} \
                 --token-file token --with \"env UPCALL_DIR=$PWD/far\" {host} ./hello stay'"
            ));
            until("the task sleeps", || {
                self.place.json(&["pvm", "ps", "--json"])[0]["tasks"][0]["state"] == "sleeps"
            });
            Some(Helper { process: machine, is_machine: true })
        } else if is_machine && self.compilers.is_some() {
            let machine = start("upcall pvm run -n 4 --procs 2 ./hello stay");
            until("the tasks sleep", || {
                self.place.json(&["pvm", "ps", "--json"])[0]["tasks"][1]["state"] == "sleeps"
            });
            Some(Helper { process: machine, is_machine: true })
        } else {
            None
        }
    }

    /// Gives an example the folder of identities that it needs: none, or an identity, or a trusted
    /// host as well. Returns the fingerprint of that host.
    fn hosts(&self, example: &str) -> Option<String> {
        let rest = example.split_once("upcall host ")?.1;
        let mut script = "rm -rf .config hosts other; export UPCALL_HOSTS=$PWD/other; \
                          upcall host init beta && upcall host show --pem > beta.pem && \
                          upcall host show; unset UPCALL_HOSTS"
            .to_owned();
        if !rest.starts_with("init") {
            script += "; upcall host init alpha";
        }
        let is_trusted = rest.starts_with("trust beta --address");
        if !rest.starts_with("init") && (is_trusted || !rest.starts_with("trust")) {
            script += "; upcall host trust beta beta.pem --yes";
        }
        let made = self.shell(&script).output().expect("a shell");
        assert!(made.status.success(), "{example}: {made:?}");
        let out = String::from_utf8(made.stdout).expect("text");
        let mut shown = out.split_whitespace().filter(|word| word.starts_with("SHA256:"));
        shown.next().map(String::from)
    }

    /// Runs one example. Returns whether it was run.
    fn run(&self, example: &str) -> bool {
        let mut tools = ["jq", "less", "wc", "xargs", "man"].into_iter();
        if !tools.all(|tool| !example.contains(&format!(" {tool} ")) || is_there(tool)) {
            return false;
        }
        let needs_compiler = example.contains("./hello")
            || example.contains("upcall pvm ") && !example.starts_with("upcall pvm ps");
        if needs_compiler && self.compilers.is_none() {
            eprintln!("skipped: {example}: upvmcc cannot be built here");
            return false;
        }
        let helper = self.helper(example);
        let machine = helper.as_ref().filter(|helper| helper.is_machine);
        let pid = machine.map_or(&self.server, |helper| &helper.process).0.id();
        let mut line = example
            .replace("127.0.0.1:7000", &self.address)
            .replace("4711", &pid.to_string())
            .replace("--interval 1", "--interval 0.1");
        for (scheduler, variables) in SCHEDULERS {
            line = line.replace(scheduler, &format!("env {variables} "));
        }
        if example.contains(OTHER_HOST) {
            // Another folder of names is as another host.
            let at = rendezvous(7431);
            let other = format!("--with \"env UPCALL_DIR=$PWD/far\" --rendezvous {at}");
            line = format!("mkdir -p -m 700 far && {}", line.replace(OTHER_HOST, &other));
        }
        if example.contains("upcall pvm join") {
            line = line.replace("ws1:7000", &rendezvous(7432)).replace("upcall pvm join", JOIN);
            line = format!("{line} & {UNTIL_JOINED} && upcall pvm halt && wait");
        }
        if let Some(fingerprint) = self.hosts(example) {
            let shown = "SHA256:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU";
            line = line.replace(shown, &fingerprint);
        }
        if example.starts_with("upcall pvm restart") {
            let mut saved = self.shell(
                "upcall pvm run -n 4 ./hello stay & until upcall pvm ps --json | \
                 grep -q sleeps; do sleep 0.1; done; upcall pvm checkpoint state && \
                 upcall pvm halt && wait",
            );
            let saved = saved.status().expect("a shell");
            assert!(saved.success(), "no machine was saved");
            line = format!("{line} & until upcall pvm halt; do sleep 0.1; done; wait");
        } else if example.starts_with("upcall top") || example == "upcall pvm top" {
            if !is_there("script") {
                return false;
            }
            line = format!("printf q | script -qec '{line}' /dev/null");
        }
        let output = self.shell(&line).output().expect("a shell");
        let out = String::from_utf8_lossy(&output.stdout);
        let error = String::from_utf8_lossy(&output.stderr);
        if example.starts_with("upcall threads") && error.contains("ptrace") {
            eprintln!("skipped: {example}: {error}");
            return false;
        }
        if example.contains("man -l") && !output.status.success() && is_minimal() {
            eprintln!("skipped: {example}: the system has no manual pages");
            return false;
        }
        if example.contains("--pair 0,1") && error.contains("may not run on processor") {
            eprintln!("skipped: {example}: {error}");
            return false;
        }
        assert!(output.status.success(), "{example}: {}: {out}{error}", output.status);
        true
    }
}

/// An address at which hosts meet. Another run of this program at the same time has another one.
fn rendezvous(port: u16) -> String {
    let process = std::process::id();
    format!("127.{}.{}.1:{port}", 1 + (process >> 8) % 250, process & 0xFF)
}

/// A system whose `man` was removed, as in small containers.
fn is_minimal() -> bool {
    Command::new("man").args(["-l", "/dev/null"]).output().map_or(true, |o| !o.status.success())
}

/// The folder of the compilers for PVM programs, which cargo builds beside the command, but not for
/// this test.
fn compilers() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_BIN_EXE_upcall")).parent()?;
    let built = std::env::var_os("UPCALL_TESTS_BUILT").is_some();
    if !(built && folder.join("upvmcc").exists()) {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut build = Command::new(cargo);
        build.args(["build", "--quiet", "--package", "upcall-pvm", "--bin", "upvmcc"]);
        build.args(folder.ends_with("release").then_some("--release"));
        build.arg("--target-dir").arg(folder.parent()?).current_dir(env!("CARGO_MANIFEST_DIR"));
        if !build.status().is_ok_and(|status| status.success()) {
            return None;
        }
    }
    is_there("gcc").then(|| folder.into())
}

#[test]
fn every_example_of_the_help_runs() {
    if !is_there("bash") {
        return;
    }
    let scene = Scene::new();
    let all = commands(&scene.place, &[]);
    assert!(all.len() > 25, "{all:?}");
    if scene.compilers.is_some() {
        let compiled = scene.shell("upvmcc hello.c -o hello").status().expect("a shell");
        assert!(compiled.success());
    }
    let mut ran = 0;
    for command in &all {
        let path: Vec<&str> = command.iter().map(String::as_str).collect();
        let examples = examples(&scene.place, &path);
        assert!((2..=6).contains(&examples.len()), "{command:?}: {examples:?}");
        for example in examples {
            println!("    {example}");
            ran += usize::from(scene.run(&example));
        }
    }
    assert!(ran > 40, "{ran}");
}

/// Help texts are short enough to read, and fit a terminal of 100 columns.
#[test]
fn help_texts_are_of_a_readable_width() {
    let place = Place::new();
    for command in commands(&place, &[]) {
        let path: Vec<&str> = command.iter().map(String::as_str).collect();
        let brief = place.run(&[&path[..], &["-h"]].concat()).1;
        assert!(brief.lines().count() <= 60, "{command:?} -h: {} lines", brief.lines().count());
        let lines = help(&place, &path);
        let after = lines.split_once("Examples:\n").map_or("", |(_, after)| after);
        for line in after.lines() {
            assert!(line.chars().count() <= 100, "{command:?}: {line}");
        }
    }
}

/// The table of exit codes is in the long help.
#[test]
fn the_long_help_has_the_exit_codes() {
    let place = Place::new();
    let help = help(&place, &[]);
    assert!(help.contains("Exit codes:\n  0  success\n  1  "), "{help}");
    assert!(
        help.contains("upcall help environment") || help.contains("`upcall help \nenvironment`")
    );
}

/// docs/reference/cli.md has the same table.
#[test]
fn the_page_has_the_exit_codes() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/cli.md");
    let page = fs::read_to_string(page).expect("the page");
    let help = help(&Place::new(), &[]);
    let (_, codes) = help.split_once("Exit codes:\n").expect("the table");
    let rows = codes.lines().map_while(|line| line.strip_prefix("  ")?.split_once("  "));
    let rows: Vec<_> = rows.collect();
    assert_eq!(rows.len(), 8, "{help}");
    for (code, meaning) in rows {
        assert!(page.contains(&format!("\n| {code} | {meaning} |\n")), "{code}: {meaning}");
    }
}
