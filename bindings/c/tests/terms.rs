//! Terms of C's clients and servers: which processes may bind, where servers listen for clients by
//! TCP, what calls do without an A-stack, which server gets the caller's processor, what a
//! procedure knows of its caller's deadline, and the error of a client whose types differ from the
//! server's.
#![forbid(unsafe_code)]

mod gcc;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use tempfile::TempDir;
use upcall_net::identity::{HostPermission, HostStore, IfRevoked};

/// The same interface, with another version of one procedure, and an additional procedure.
mod changed {
    upcall::interface!(
        "package test:terms;
        interface terms {
            added: func();
            where: func() -> u32;
            meet: func(data: list<u8>) -> u32;
            change: func(a: u64) -> u32;
            length: func(text: string) -> u64;
            left: func(aside: bool) -> u64;
            outlast: func();
        }"
    );
}

fn program() -> &'static TempDir {
    static PROGRAM: OnceLock<TempDir> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        gcc::install(folder.path());
        let code = upcall_idl::generate_c(gcc::here("tests/terms/terms.wit"), "terms").unwrap();
        std::fs::write(folder.path().join("terms.h"), code.header).unwrap();
        std::fs::write(folder.path().join("terms.c"), code.source).unwrap();
        let sources = [gcc::here("tests/terms/main.c"), folder.path().join("terms.c")];
        gcc::compile(&["-g", "-O1"], &sources, folder.path(), "program");
        folder
    })
}

/// Runs the program's check `what`.
fn run(name: &str, what: &str) {
    run_on(Path::new("/no-identity"), name, what);
}

/// Runs the program's check `what` with the identities of hosts in this folder.
fn run_on(hosts: &Path, name: &str, what: &str) {
    let run = gcc::command(&program().path().join("program"), false)
        .args([name, what])
        .env("UPCALL_HOSTS", hosts)
        .output()
        .unwrap();
    assert!(
        run.status.success(),
        "{what}: {}: {}",
        run.status,
        String::from_utf8_lossy(&run.stderr)
    );
}

fn name(what: &str) -> String {
    format!("terms-{what}-{}", std::process::id())
}

#[test]
fn a_policy_is_asked_and_obeyed() {
    if !gcc::left_out() {
        run(&name("policy"), "policy");
    }
}

#[test]
fn a_server_listens_for_other_machines() {
    if !gcc::left_out() {
        run(&name("listens"), "listens");
    }
}

/// The host trusts its own identity by its address, so one process is both sides.
#[test]
fn policies_see_hosts_and_choose_them() {
    if gcc::left_out() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let store = HostStore::at(folder.path().join("hosts"));
    let own = store.init(&"here".parse().unwrap()).unwrap().identity;
    let (name_of, may) = ("127.0.0.1".parse().unwrap(), HostPermission::Both);
    store.trust(&name_of, &own, may, IfRevoked::Refuse).unwrap();
    run_on(store.folder(), &name("hosts"), "hosts");
}

#[test]
fn a_client_chooses_when_a_silent_server_is_lost() {
    if !gcc::left_out() {
        run(&name("lost-after"), "lost-after");
    }
}

#[test]
fn a_call_without_an_a_stack_waits_or_brings_memory() {
    if !gcc::left_out() {
        run(&name("shortage"), "shortage");
    }
}

#[test]
fn a_call_brings_as_many_bytes_of_values_as_the_interface_permits() {
    if !gcc::left_out() {
        run(&name("values"), "values");
    }
}

#[test]
fn a_procedure_sees_for_how_long_its_caller_waits() {
    if !gcc::left_out() {
        run(&name("deadline"), "deadline");
    }
}

#[test]
fn a_call_that_is_told_to_brings_the_server_to_its_processor() {
    if !gcc::left_out() {
        run(&name("hand-off"), "hand-off");
    }
}

/// Users that need no entry in the system's list, as in `main.c`.
const ONE: u32 = 61_001;
const OTHER: u32 = 61_002;
const THIRD: u32 = 61_003;

/// A folder of names of user `ONE`, which other users may read, and the program, which they may
/// run.
struct Shared(TempDir);

/// A server that serves until this is dropped.
struct Serving(Child);

impl Drop for Serving {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let ended = self.0.wait().unwrap();
        assert!(ended.success() || std::thread::panicking(), "the server ended with {ended}");
    }
}

impl Shared {
    /// `None`, with the reason in the output, if programs of other users cannot be started here.
    fn new() -> Option<Self> {
        let probe = Command::new("setpriv")
            .args(["--reuid=61001", "--regid=61001", "--clear-groups", "true"])
            .output();
        if !probe.is_ok_and(|probe| probe.status.success()) {
            eprintln!(
                "skipped: programs of other users cannot be started here (that takes root and \
                `setpriv`)"
            );
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        // Other users may be unable to reach the folder that cargo builds in.
        for file in ["program", "libupcall.so.0"] {
            fs::copy(program().path().join(file), folder.path().join(file)).unwrap();
        }
        let names = folder.path().join("names");
        fs::create_dir(&names).unwrap();
        let open =
            |path: &Path| fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        open(folder.path());
        open(&names);
        std::os::unix::fs::chown(&names, Some(ONE), None).unwrap();
        Some(Self(folder))
    }

    fn command(&self, user: u32, groups: &str, what: &str) -> Command {
        let mut command = Command::new("setpriv");
        command.args([format!("--reuid={user}"), format!("--regid={user}"), groups.to_owned()]);
        command.arg(self.0.path().join("program")).args(["terms", what]);
        command
            .env("UPCALL_DIR", self.0.path().join("names"))
            .env("LD_LIBRARY_PATH", self.0.path());
        command
            .env("ASAN_OPTIONS", "detect_leaks=0:detect_stack_use_after_return=0:halt_on_error=1");
        command
    }

    fn run(&self, user: u32, groups: &str, what: &str) {
        let run = self.command(user, groups, what).output().unwrap();
        assert!(
            run.status.success(),
            "{what}: {}: {}",
            run.status,
            String::from_utf8_lossy(&run.stderr)
        );
    }

    fn serve(&self, what: &str) -> Serving {
        let mut command = self.command(ONE, "--clear-groups", what);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n", "{what}");
        Serving(child)
    }
}

/// Each side accepts only the processes that it names, after the socket's mode and group were
/// checked.
#[test]
fn each_side_says_which_users_it_accepts() {
    if gcc::left_out() {
        return;
    }
    let Some(shared) = Shared::new() else { return };
    let server = shared.serve("serves-other");
    shared.run(OTHER, "--clear-groups", "expects-one");
    shared.run(THIRD, "--clear-groups", "is-refused");
    drop(server);
    let server = shared.serve("serves-group");
    shared.run(OTHER, "--clear-groups", "is-kept-out");
    shared.run(OTHER, "--groups=61001", "is-admitted");
    drop(server);
    shared.run(ONE, "--clear-groups", "foreign-groups");
    run(&name("named-group"), "named-group");
}

#[test]
fn other_types_in_the_server_are_told() {
    if gcc::left_out() {
        return;
    }
    struct Server;
    impl changed::terms::Serve for Server {
        fn added(&self) {}
        fn r#where(&self) -> u32 {
            0
        }
        fn meet(&self, _: upcall::Bytes<'_>) -> u32 {
            0
        }
        fn change(&self, a: u64) -> u32 {
            a as u32
        }
        fn length(&self, text: &str) -> u64 {
            text.len() as u64
        }
        fn left(&self, _: bool) -> u64 {
            0
        }
        fn outlast(&self) {}
    }
    let name = name("mismatch");
    let running =
        upcall::Server::new().export(&name, changed::terms::export(Server)).start().unwrap();
    run(&name, "mismatch");
    running.stop();
}
