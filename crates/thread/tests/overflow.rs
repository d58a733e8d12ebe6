//! A stack overflow hits the guard page.
//!
//! The process reports the thread and dies by SIGSEGV instead of writing over a neighbouring stack.
#![cfg(not(loom))]

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};
use upcall_thread as thread;

const CHILD: &str = "UPCALL_TEST_OVERFLOW";

fn endless(depth: u64) -> u64 {
    let mut frame = [depth; 64];
    std::hint::black_box(&mut frame);
    if frame[3] == u64::MAX { 0 } else { endless(depth + 1) + frame[5] }
}

/// Runs the test `name` in a process of its own, in which `CHILD` is set.
fn child(name: &str) -> Output {
    let program = std::env::current_exe().unwrap();
    Command::new(program).args(["--exact", name, "--nocapture"]).env(CHILD, "1").output().unwrap()
}

fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

#[test]
fn overflow_hits_the_guard() {
    if is_child() {
        thread::run(|| {
            let neighbour = thread::spawn(thread::park);
            let overflowing = thread::Builder::new()
                .name("too deep")
                .stack_size(128 * 1024)
                .spawn(|| endless(0))
                .unwrap();
            let _ = overflowing.join();
            drop(neighbour);
        });
        return;
    }
    let child = child("overflow_hits_the_guard");
    assert_eq!(child.status.signal(), Some(libc::SIGSEGV), "{child:?}");
    let said = String::from_utf8_lossy(&child.stderr);
    assert!(
        said.contains("thread 'too deep' (number ")
            && said.contains("has overflowed its stack of 128 KiB"),
        "{said}"
    );
}

#[test]
fn other_faults_take_their_course() {
    if is_child() {
        thread::run(|| {
            // SAFETY: none; the process is meant to die here.
            thread::spawn(|| unsafe { std::ptr::without_provenance::<u8>(16).read_volatile() })
                .join()
                .unwrap();
        });
        return;
    }
    let child = child("other_faults_take_their_course");
    assert_eq!(child.status.signal(), Some(libc::SIGSEGV), "{child:?}");
    assert!(!String::from_utf8_lossy(&child.stderr).contains("overflowed"), "{child:?}");
}

#[test]
fn an_overflow_of_a_kernel_thread_is_still_told_by_std() {
    if is_child() {
        thread::run(|| ());
        let _ = std::thread::Builder::new()
            .name("kernel's".to_owned())
            .spawn(|| endless(0))
            .unwrap()
            .join();
        return;
    }
    let child = child("an_overflow_of_a_kernel_thread_is_still_told_by_std");
    assert!(child.status.signal().is_some(), "{child:?}");
    let said = String::from_utf8_lossy(&child.stderr);
    assert!(said.contains("kernel's") && said.contains("overflow"), "{said}");
}
