//! Terms of C's clients and servers: who may bind, where servers listen for other machines, what calls do without an A-stack, whom they give their processor, and what a client is told whose types are not the server's.
#![forbid(unsafe_code)]

mod gcc;

use std::sync::OnceLock;
use tempfile::TempDir;

/// The same interface, of which another version of one procedure is exported, and one more.
mod changed {
    upcall::interface!(
        "package test:terms;
        interface terms {
            added: func();
            where: func() -> u32;
            meet: func(data: list<u8>) -> u32;
            change: func(a: u64) -> u32;
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

/// Has the program look at `what`.
fn run(name: &str, what: &str) {
    let run = gcc::command(&program().path().join("program"), false).args([name, what]).output().unwrap();
    assert!(run.status.success(), "{what}: {}: {}", run.status, String::from_utf8_lossy(&run.stderr));
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

#[test]
fn a_call_without_an_a_stack_waits_or_brings_memory() {
    if !gcc::left_out() {
        run(&name("shortage"), "shortage");
    }
}

#[test]
fn a_call_that_is_told_to_brings_the_server_to_its_processor() {
    if !gcc::left_out() {
        run(&name("hand-off"), "hand-off");
    }
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
    }
    let name = name("mismatch");
    let running = upcall::Server::new().export(&name, changed::terms::export(Server)).start().unwrap();
    run(&name, "mismatch");
    running.stop();
}
