//! A stack overflow hits the guard page: the process dies by SIGSEGV instead of writing over a neighbour's stack.
#![cfg(not(loom))]

use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use upcall_thread as thread;

const CHILD: &str = "UPCALL_TEST_OVERFLOW";

fn endless(depth: u64) -> u64 {
    let mut frame = [depth; 64];
    std::hint::black_box(&mut frame);
    if frame[3] == u64::MAX { 0 } else { endless(depth + 1) + frame[5] }
}

#[test]
fn overflow_hits_the_guard() {
    if std::env::var_os(CHILD).is_some() {
        thread::run(|| {
            let neighbour = thread::spawn(thread::park);
            let overflowing = thread::spawn(|| endless(0));
            let _ = overflowing.join();
            drop(neighbour);
        });
        return;
    }
    let program = std::env::current_exe().unwrap();
    let child = Command::new(program).args(["--exact", "overflow_hits_the_guard"]).env(CHILD, "1").output().unwrap();
    assert_eq!(child.status.signal(), Some(libc::SIGSEGV), "{child:?}");
}
