//! Members in C: with members in Rust in one group, by themselves, and where they are refused. Also
//! the example, `examples/ring.c`.
#![forbid(unsafe_code)]

use gcc::{here, left_out};
use process::{Member, name};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use upcall::message::GroupBuilder;

mod gcc;
#[path = "members/member.rs"]
mod member;
#[path = "members/process.rs"]
mod process;

/// The folder of the programs. It is always the same, so that no other folders are left behind.
fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("c-members");
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        gcc::install(&folder);
        for program in ["member", "in_place"] {
            gcc::compile(
                &["-g", "-O1"],
                &[here("tests/members").join(format!("{program}.c"))],
                &folder,
                program,
            );
        }
        folder
    })
}

fn start(name: &str, size: usize, rank: usize, what: &str) -> Member {
    Member::start(gcc::command(&folder().join("member"), what == "alone"), name, size, rank, what)
}

/// Starts a member that reads messages in place.
fn start_in_place(name: &str, size: usize, rank: usize, what: &str) -> Member {
    Member::start(gcc::command(&folder().join("in_place"), what == "alone"), name, size, rank, what)
}

#[test]
fn a_member_by_itself_does_and_refuses_what_the_header_says() {
    if !left_out() {
        start(&name(), 1, 0, "alone").ends();
    }
}

/// Two members in Rust and two in C, each sending to each.
#[test]
fn members_in_c_and_rust_understand_each_other() {
    if left_out() {
        return;
    }
    let name = name();
    let others = [1, 3].map(|rank| start(&name, 4, rank, "all"));
    std::thread::scope(|scope| {
        scope.spawn(|| member::all(&name, 4, 0));
        member::all(&name, 4, 2);
    });
    others.into_iter().for_each(Member::ends);
}

#[test]
fn members_that_are_killed_are_told_of() {
    if left_out() {
        return;
    }
    let name = name();
    let [mut survivor, mut one, mut other] = [1, 2, 3].map(|rank| start(&name, 4, rank, "survive"));
    member::survive(&name, 4, 0, || {
        [&mut survivor, &mut one, &mut other].into_iter().for_each(Member::is_ready);
        [&mut one, &mut other].into_iter().for_each(Member::dies);
    });
    survivor.ends();
}

#[test]
fn another_list_of_kinds_is_refused_by_name() {
    if left_out() {
        return;
    }
    let name = name();
    member::differ(&name, &mut start(&name, 2, 1, "differs").0);
}

/// As C11 and as C++, without a warning; four processes with the environment of a job.
#[test]
fn the_example_is_a_ring() {
    if left_out() {
        return;
    }
    let (folder, example) = (folder(), here("examples/ring.c"));
    for (compiler, standard) in [("gcc", &["-std=c11"][..]), ("g++", &["-x", "c++", "-std=c++17"])]
    {
        if compiler == "g++" && Command::new(compiler).arg("--version").output().is_err() {
            eprintln!("skipped: no g++ here");
            continue;
        }
        let program = folder.join(format!("ring-{compiler}"));
        let mut build = Command::new(compiler);
        build
            .args(standard)
            .args(["-Wall", "-Wextra", "-Werror", "-pedantic", "-Wconversion", "-I"])
            .arg(here("include"));
        build
            .arg(&example)
            .args(["-x", "none", "-o"])
            .arg(&program)
            .arg("-L")
            .arg(folder)
            .args(["-lupcall", "-Wl,-rpath"])
            .arg(folder);
        let run = build.output().unwrap();
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
        let name = name();
        let start_one = |rank| {
            Command::new(&program)
                .arg("1000")
                .envs(GroupBuilder::environment(&name, 4, rank))
                .stdout(Stdio::piped())
                .spawn()
        };
        let members: Vec<Child> = (0..4).map(|rank| start_one(rank).unwrap()).collect();
        for (rank, member) in members.into_iter().enumerate() {
            let output = member.wait_with_output().unwrap();
            let said = String::from_utf8(output.stdout).unwrap();
            let expected = format!("member {rank} of 4: the token came 250 times, 1000 in all\n");
            assert!(output.status.success() && said == expected, "{said}");
        }
    }
}

#[test]
fn a_member_that_lies_about_what_it_sends_is_left() {
    if left_out() {
        return;
    }
    for how in ["polls", "receives"] {
        let name = name();
        let other = start(&name, 2, 1, how);
        member::lie(&name);
        other.ends();
    }
}

#[test]
fn a_member_that_computes_is_interrupted() {
    if left_out() {
        return;
    }
    let name = name();
    let other = start(&name, 2, 1, "interrupts");
    member::interrupt(&name, 300);
    other.ends();
}

#[test]
fn messages_are_looked_at_in_place_and_the_group_can_be_used_meanwhile() {
    if !left_out() {
        start_in_place(&name(), 1, 0, "alone").ends();
    }
}

/// 64 MiB, checked by the resident memory. The sender leaves while the message is read.
#[test]
fn a_large_message_is_read_without_a_copy() {
    if left_out() {
        return;
    }
    let name = name();
    let mut other = start_in_place(&name, 2, 1, "large");
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
        let other = start_in_place(&name, 2, 1, how);
        member::lie(&name);
        other.ends();
    }
}
