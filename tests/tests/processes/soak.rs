//! The soak finds what it is meant to find: each fault that is planted into its load ends it with a
//! report. Without a fault it passes (`make soak`).

use crate::in_company;
use std::process::Command;

fn soak(arguments: &str) -> (Option<i32>, String) {
    let program = env!("CARGO_BIN_EXE_soak");
    let run = Command::new(program).args(arguments.split(' ')).output().expect("the soak starts");
    (run.status.code(), String::from_utf8_lossy(&run.stdout).into_owned())
}

fn finds(fault: &str, options: &str, said: &str) {
    let _company = in_company();
    // On a busy machine the load may not reach the fault in a few seconds.
    let run = |seconds| {
        soak(&format!("--seconds {seconds} --hang 20000 --seed 1 {options} --plant {fault}"))
    };
    let (mut code, mut text) = run(3);
    for seconds in [12, 48] {
        if !text.contains(said) {
            (code, text) = run(seconds);
        }
    }
    assert_eq!(code, Some(1), "{fault}: {text}");
    assert!(text.contains(said), "{fault}: nothing says {said:?}: {text}");
    assert!(text.contains("again: ") && text.contains("--seed 1"), "{text}");
}

#[test]
fn the_soak_finds_a_request_that_was_not_executed() {
    finds("lost", "--only calls", "was answered, and was executed 0 times");
}

#[test]
fn the_soak_finds_a_request_that_was_executed_twice() {
    finds("doubled", "--only calls", "executed 2 times");
}

#[test]
fn the_soak_finds_a_wrong_answer() {
    finds("answer", "--only calls", "a wrong answer");
}

#[test]
fn the_soak_finds_a_message_that_is_missing() {
    finds("order", "--only group", "took number 41");
}

#[test]
fn the_soak_finds_an_error_that_claims_a_death() {
    finds("claim", "--only calls --rate 100", "the run has not killed it");
}

#[test]
fn the_soak_finds_a_call_that_hangs() {
    finds("hang", "--only calls --hang 2000", "waits in `");
}

#[test]
#[ignore = "long"]
fn long_the_soak_finds_a_leak_and_a_file() {
    finds("leak", "--only calls", "leak: steady");
    finds("memory", "--only calls", "bytes and not freed them");
    finds("file", "--only calls", "left: planted");
}

#[test]
fn the_soak_refuses_what_makes_no_sense() {
    assert_eq!(soak("--seconds many").0, Some(2));
    assert_eq!(soak("--plant nothing").0, Some(2));
    let (code, text) = soak("--help");
    assert!(code == Some(0) && text.contains("examples:"), "{text}");
}
