//! Members in Python: by themselves, and with members in Rust and C in one group. The members in Rust and C are those of `bindings/c/tests/members.rs`.
#![forbid(unsafe_code)]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use support::{Programs, finish, here, left_out};

#[path = "../../c/tests/members/member.rs"]
mod member;
mod support;

fn programs() -> &'static Programs {
    static PROGRAMS: OnceLock<Programs> = OnceLock::new();
    PROGRAMS.get_or_init(Programs::new)
}

fn name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("python-members-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// The member in C, without the sanitizers that it has in its own tests.
fn c() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let folder = programs().path().join("c");
        std::fs::create_dir(&folder).unwrap();
        let library = std::env::current_exe().unwrap().with_file_name("libupcall_c.so");
        for name in ["libupcall.so", "libupcall.so.0"] {
            std::os::unix::fs::symlink(&library, folder.join(name)).unwrap();
        }
        let mut gcc = Command::new("gcc");
        gcc.args(["-std=gnu11", "-O0", "-pthread", "-I"]).arg(here("../c/include")).arg(here("../c/tests/members/member.c"));
        gcc.arg("-o").arg(folder.join("member")).arg("-L").arg(&folder).args(["-lupcall", "-Wl,-rpath"]).arg(&folder);
        let run = gcc.output().unwrap();
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
        folder.join("member")
    })
}

/// A process that ends with this.
struct Member(Child);

impl Member {
    fn start(mut command: Command, name: &str, size: usize, rank: usize, what: &str) -> Self {
        command.args([name, &size.to_string(), &rank.to_string(), what]);
        Self(command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap())
    }

    fn python(name: &str, size: usize, rank: usize, what: &str) -> Self {
        Self::start(programs().command("members.py"), name, size, rank, what)
    }

    fn c(name: &str, size: usize, rank: usize, what: &str) -> Self {
        Self::start(Command::new(c()), name, size, rank, what)
    }

    fn is_ready(&mut self) {
        let mut line = String::new();
        BufReader::new(self.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
    }

    fn ends(mut self) {
        let status = self.0.wait().unwrap();
        assert!(status.success(), "a member ended with {status}");
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_member_by_itself_does_and_refuses_what_the_package_says() {
    if !left_out() {
        let mut command = programs().command("members.py");
        finish(command.args([&name(), "1", "0", "alone"]), "members.py");
    }
}

/// One in Rust, one in C, two in Python, each to each.
#[test]
fn members_in_all_languages_understand_each_other() {
    if left_out() {
        return;
    }
    let name = name();
    let others = [Member::python(&name, 4, 1, "all"), Member::c(&name, 4, 2, "all"), Member::python(&name, 4, 3, "all")];
    member::all(&name, 4, 0);
    others.into_iter().for_each(Member::ends);
}

/// One in Python and one in C are killed: one in Rust, one in C and one in Python learn of it.
#[test]
fn members_that_are_killed_are_told_of() {
    if left_out() {
        return;
    }
    let name = name();
    let mut survivors = [Member::python(&name, 5, 1, "survive"), Member::c(&name, 5, 2, "survive")];
    let (mut one, mut other) = (Member::python(&name, 5, 3, "survive"), Member::c(&name, 5, 4, "survive"));
    member::survive(&name, 5, 0, || {
        survivors.iter_mut().chain([&mut one, &mut other]).for_each(Member::is_ready);
        for dies in [&mut one, &mut other] {
            dies.0.kill().unwrap();
            dies.0.wait().unwrap();
        }
    });
    survivors.into_iter().for_each(Member::ends);
}

#[test]
fn another_list_of_kinds_is_refused_by_name() {
    if left_out() {
        return;
    }
    let name = name();
    let mut other = programs().command("members.py");
    let other = other.args([&name, "2", "1", "differs"]).stdout(Stdio::piped()).spawn().unwrap();
    let said = member::differ(&name, other);
    assert!(["\"number\"", "u64", "i64", "all members register the same kinds"].iter().all(|part| said.contains(part)), "{said}");
}

#[test]
fn a_member_that_lies_about_what_it_sends_is_left() {
    if left_out() {
        return;
    }
    for how in ["polls", "receives"] {
        let name = name();
        let other = Member::python(&name, 2, 1, how);
        member::lie(&name);
        other.ends();
    }
}
