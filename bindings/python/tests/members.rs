//! Members in Python: by themselves, and with members in Rust and C in one group. The members in
//! Rust and C are those of `bindings/c/tests/members.rs`.
#![forbid(unsafe_code)]

use process::{Member, name};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use support::{Programs, finish, here, left_out};

#[path = "../../c/tests/members/member.rs"]
mod member;
#[path = "../../c/tests/members/process.rs"]
mod process;
mod support;

fn programs() -> &'static Programs {
    static PROGRAMS: OnceLock<Programs> = OnceLock::new();
    PROGRAMS.get_or_init(Programs::new)
}

/// The member in C, without the sanitizers that it has in its own tests.
fn c() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let source = here("../c/tests/members/member.c");
        support::compile(&programs().path().join("c"), &source)
    })
}

fn in_python(name: &str, size: usize, rank: usize, what: &str) -> Member {
    Member::start(programs().command("members.py"), name, size, rank, what)
}

fn in_c(name: &str, size: usize, rank: usize, what: &str) -> Member {
    Member::start(Command::new(c()), name, size, rank, what)
}

#[test]
fn a_member_by_itself_does_and_refuses_what_the_package_says() {
    if !left_out() {
        let mut command = programs().command("members.py");
        finish(command.args([&name(), "1", "0", "alone"]), "members.py");
    }
}

/// One member in Rust, one in C and two in Python, each sending to each.
#[test]
fn members_in_all_languages_understand_each_other() {
    if left_out() {
        return;
    }
    let name = name();
    let others =
        [in_python(&name, 4, 1, "all"), in_c(&name, 4, 2, "all"), in_python(&name, 4, 3, "all")];
    member::all(&name, 4, 0);
    others.into_iter().for_each(Member::ends);
}

/// A member in Python and one in C are killed; members in Rust, C and Python are notified.
#[test]
fn members_that_are_killed_are_told_of() {
    if left_out() {
        return;
    }
    let name = name();
    let mut survivors = [in_python(&name, 5, 1, "survive"), in_c(&name, 5, 2, "survive")];
    let (mut one, mut other) = (in_python(&name, 5, 3, "survive"), in_c(&name, 5, 4, "survive"));
    member::survive(&name, 5, 0, || {
        survivors.iter_mut().chain([&mut one, &mut other]).for_each(Member::is_ready);
        [&mut one, &mut other].into_iter().for_each(Member::dies);
    });
    survivors.into_iter().for_each(Member::ends);
}

#[test]
fn another_list_of_kinds_is_refused_by_name() {
    if left_out() {
        return;
    }
    let name = name();
    member::differ(&name, &mut in_python(&name, 2, 1, "differs").0);
}

#[test]
fn a_member_that_lies_about_what_it_sends_is_left() {
    if left_out() {
        return;
    }
    for how in ["polls", "receives"] {
        let name = name();
        let other = in_python(&name, 2, 1, how);
        member::lie(&name);
        other.ends();
    }
}

#[test]
fn a_member_that_computes_runs_handlers_between_two_bytecodes() {
    if left_out() {
        return;
    }
    let name = name();
    let other = in_python(&name, 2, 1, "interrupts");
    member::interrupt(&name, 300);
    other.ends();
}

/// Starts a member in Python that reads messages in place.
fn in_place(name: &str, what: &str) -> Member {
    Member::start(programs().command("in_place.py"), name, 2, 1, what)
}

#[test]
fn messages_are_looked_at_in_place_and_views_of_them_are_never_of_something_else() {
    if !left_out() {
        let mut command = programs().command("in_place.py");
        finish(command.args([&name(), "1", "0", "alone"]), "in_place.py");
    }
}

/// 64 MiB, checked by the resident memory. The sender leaves while the message is read.
#[test]
fn a_large_message_is_read_without_a_copy() {
    if left_out() {
        return;
    }
    let name = name();
    let mut other = in_place(&name, "large");
    member::send_large(&name, || other.is_ready());
    other.ends();
}

#[test]
fn what_its_kind_cannot_have_is_not_looked_at_in_place() {
    if left_out() {
        return;
    }
    for how in ["receives", "peeks"] {
        let name = name();
        let other = in_place(&name, how);
        member::lie(&name);
        other.ends();
    }
}
