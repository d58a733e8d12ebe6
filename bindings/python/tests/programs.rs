//! What only Python programs do, or do differently. Each test is a program in `tests/programs`,
//! which checks itself.
#![forbid(unsafe_code)]

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use support::{Programs, Serving, finish, left_out, names};
use upcall_net::identity::{HostPermission, HostStore, IfRevoked};

mod support;

fn programs() -> &'static Programs {
    static PROGRAMS: OnceLock<Programs> = OnceLock::new();
    PROGRAMS.get_or_init(Programs::new)
}

#[test]
fn values_are_taken_and_refused() {
    if left_out() {
        return;
    }
    programs().run("values.py", &[]);
}

#[test]
fn others_run_while_a_call_waits() {
    if left_out() {
        return;
    }
    programs().run("waits.py", &[]);
}

#[test]
fn a_procedure_sees_for_how_long_its_caller_waits() {
    if left_out() {
        return;
    }
    programs().run("deadline.py", &[]);
}

#[test]
fn resources_are_anywhere_and_interfaces_carry_others() {
    if left_out() {
        return;
    }
    let wit = support::here("../../crates/idl/tests/wit/carry.wit");
    programs().run("carried.py", &[&wit.display().to_string()]);
}

#[test]
fn a_server_listens_for_other_machines() {
    if left_out() {
        return;
    }
    programs().run("listens.py", &[]);
}

/// The host trusts its own identity by its address, so one process is both sides.
#[test]
fn policies_see_hosts_and_choose_them() {
    if left_out() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let store = HostStore::at(folder.path().join("hosts"));
    let own = store.init(&"here".parse().unwrap()).unwrap().identity;
    let (name, may) = ("127.0.0.1".parse().unwrap(), HostPermission::Both);
    store.trust(&name, &own, may, IfRevoked::Refuse).unwrap();
    let mut command = programs().command("hosts.py");
    finish(command.env("UPCALL_HOSTS", store.folder()), "hosts.py");
}

#[test]
fn servers_are_kept_and_mistakes_are_named() {
    if left_out() {
        return;
    }
    programs().run("serves.py", &[]);
    let mut command = programs().command("serves.py");
    finish(command.arg("nowhere").env("UPCALL_DIR", "relative"), "without a folder of names");
}

#[test]
fn public_names_are_where_programs_import_them() {
    if left_out() {
        return;
    }
    let wit = support::here("tests/languages/every.wit");
    programs().run("public.py", &[&wit.display().to_string()]);
}

/// Each side accepts only the processes that it names, after the socket's mode and group were
/// checked.
#[test]
fn each_side_says_which_users_it_accepts() {
    if left_out() {
        return;
    }
    let probe = Command::new("setpriv")
        .args(["--reuid=61001", "--regid=61001", "--clear-groups", "true"])
        .output();
    if !probe.is_ok_and(|probe| probe.status.success()) {
        return eprintln!(
            "skipped: programs of other users cannot be started here (that takes root and \
            `setpriv`)"
        );
    }
    let names = tempfile::tempdir().unwrap();
    std::fs::set_permissions(names.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    std::os::unix::fs::chown(names.path(), Some(61_001), None).unwrap();
    let command = |arguments: &str| {
        let mut command = programs().command("accepts.py");
        command.args(arguments.split(' ')).env("UPCALL_DIR", names.path());
        command
    };
    let run = |arguments: &str| drop(finish(&mut command(arguments), arguments));
    let server = Serving::start(command("serves-other 61001"));
    run("expects-one 61002");
    run("is-refused 61003");
    server.end();
    let server = Serving::start(command("serves-group 61001"));
    run("is-kept-out 61002");
    run("is-admitted 61002 61001");
    server.end();
    run("says-it-wrong 61001");
}

#[test]
fn asyncio() {
    if left_out() {
        return;
    }
    programs().run("tasks.py", &[]);
}

fn serving(name: &str, what: &str) -> Serving {
    let mut command = programs().command("ends.py");
    command.args([what, name]);
    Serving::start(command)
}

/// Sends Ctrl-C, as a terminal does.
fn interrupt(server: &mut Serving) -> String {
    let done = Command::new("kill").args(["-INT", &server.0.id().to_string()]).status().unwrap();
    assert!(done.success());
    let status = server.0.wait().unwrap();
    let mut said = String::new();
    server.0.stdout.as_mut().unwrap().read_to_string(&mut said).unwrap();
    assert!(status.success(), "an interrupt is a good end: {status}");
    said
}

#[test]
fn an_interrupt_ends_a_server_and_its_name() {
    if left_out() {
        return;
    }
    for what in ["serve", "serve-async"] {
        let [name, _] = names();
        let mut server = serving(&name, what);
        assert_eq!(interrupt(&mut server), "served\n", "{what}");
        assert!(
            !upcall::directory::folder().unwrap().join(&name).exists(),
            "{what}: the name is left"
        );
    }
}

/// A supervisor ends a server by SIGTERM, which Python does not handle: it leaves no text and no
/// name that the next server would find taken.
#[test]
fn a_terminated_server_leaves_its_name_free() {
    if left_out() {
        return;
    }
    let [name, _] = names();
    let mut command = programs().command("ends.py");
    command.args(["serve", &name]).stderr(Stdio::piped());
    let mut server = Serving::start(command);
    let done = Command::new("kill").arg(server.0.id().to_string()).status().unwrap();
    assert!(done.success());
    assert_eq!(server.0.wait().unwrap().signal(), Some(15));
    let mut said = String::new();
    server.0.stderr.as_mut().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(said, "");
    let mut next = serving(&name, "serve");
    interrupt(&mut next);
}

/// Runs a program of `ends.py` against a server.
fn ends(what: &str) {
    let [name, _] = names();
    let mut server = serving(&name, "serve");
    programs().run("ends.py", &[what, &name]);
    interrupt(&mut server);
}

#[test]
fn a_forked_child_is_told() {
    if left_out() {
        return;
    }
    ends("fork");
    ends("fork-first");
}

#[test]
fn an_interrupt_ends_a_call() {
    if left_out() {
        return;
    }
    ends("interrupted");
}

#[test]
fn exits_with_calls_under_way_are_good_ones() {
    if left_out() {
        return;
    }
    for what in ["exit-calling", "exit-serving", "exit-async"] {
        for _ in 0..3 {
            ends(what);
        }
    }
}
