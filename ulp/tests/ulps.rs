//! Programs of C's, compiled here as images, many in one process.

use std::ffi::CString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use upcall_ulp::{ASK_OWN, Asked, Image, Stopped, Ulp, Worker, tools};

/// Compiles one of tests/images.
fn compile(folder: &Path, name: &str) -> PathBuf {
    let (archive, program) = (folder.join("libupvm.a"), folder.join(name));
    fs::write(&archive, tools::ARCHIVE).unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut gcc = Command::new("gcc");
    gcc.args(tools::COMPILING).args(["-O1", "-w", "-I", env!("OUT_DIR"), "-I"]).arg(root.join("image"));
    gcc.arg(root.join(format!("tests/images/{name}.c"))).args(tools::LINKING).arg("-o").arg(&program).arg(archive).arg("-lm");
    let done = gcc.output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    program
}

/// A worker cannot be joined, so each test is one process of its own: it starts this program again with its name.
fn apart(name: &str) -> Option<tempfile::TempDir> {
    if std::env::var_os("ULP_TEST").is_none() {
        let mut own = Command::new("timeout");
        let done = own
            .arg("100")
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture", "--test-threads=1"])
            .env("ULP_TEST", "1")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&done.stdout);
        assert!(done.status.success(), "{said}{}", String::from_utf8_lossy(&done.stderr));
        return None;
    }
    Some(tempfile::tempdir().unwrap())
}

fn words(words: &[&str]) -> Vec<CString> {
    words.iter().map(|word| CString::new(*word).unwrap()).collect()
}

/// Goes home without a join.
fn over(folder: tempfile::TempDir) -> ! {
    drop(folder);
    std::process::exit(0)
}

#[test]
fn each_has_its_own_globals_heap_thread_locals_and_libc() {
    const ULPS: usize = 100;
    let Some(folder) = apart("each_has_its_own_globals_heap_thread_locals_and_libc") else { return };
    let image = Image::open(&compile(folder.path(), "own")).unwrap();
    let mut worker = Worker::begin().unwrap();
    let load = |number: usize| Ulp::load(&image, &words(&["own", &number.to_string()]), &words(&["A=b"])).unwrap();
    let mut ulps = (0..ULPS).map(load).collect::<Vec<_>>();
    let mut counters = Vec::new();
    for round in 0..3 {
        for (number, ulp) in ulps.iter_mut().enumerate() {
            let Stopped::Asks(Asked { what, args }) = worker.resume(ulp) else { panic!("{number} has ended") };
            assert_eq!((what, args[0], args[1]), (ASK_OWN, number as u64, round));
            assert!((ulp.base()..ulp.base() + (1 << 30)).contains(&args[2]), "its globals are in its slot");
            counters.push(args[2] - ulp.base());
            ulp.answer(number as i64 * 1000 + round as i64);
        }
    }
    assert!(counters.iter().all(|at| *at == counters[0]));
    for (number, ulp) in ulps.iter_mut().enumerate() {
        let ended = Stopped::Ended { status: number as i32 + 10 };
        assert_eq!((worker.resume(ulp), worker.resume(ulp)), (ended, ended));
    }
    // Their places are free for others, which begin anew.
    drop(ulps);
    let mut again = load(7);
    assert!(matches!(worker.resume(&mut again), Stopped::Asks(_)) && again.slot() == 0);
    over(folder)
}

#[test]
fn who_crashes_ends_alone() {
    let Some(folder) = apart("who_crashes_ends_alone") else { return };
    let image = Image::open(&compile(folder.path(), "crash")).unwrap();
    let mut worker = Worker::begin().unwrap();
    let mut honest = Ulp::load(&image, &words(&["crash", "r"]), &[]).unwrap();
    assert!(matches!(worker.resume(&mut honest), Stopped::Asks(_)));
    let cases = [("n", libc::SIGSEGV), ("a", libc::SIGABRT), ("d", libc::SIGSEGV), ("z", libc::SIGFPE)];
    for round in 0..3 {
        for (how, signal) in cases {
            let mut ulp = Ulp::load(&image, &words(&["crash", how]), &[]).unwrap();
            assert!(matches!(worker.resume(&mut ulp), Stopped::Asks(_)));
            let Stopped::Crashed(crash) = worker.resume(&mut ulp) else { panic!("{how} in round {round}") };
            assert_eq!(crash.signal, signal, "{crash}");
            assert_eq!(upcall_ulp::slot::Slot::of(crash.at), Some(ulp.slot()), "{crash}");
            let said = crash.to_string();
            assert!(how != "n" || said.contains("wanted 0x8"), "{said}");
            assert!(how != "d" || said.contains("end of its stack"), "{said}");
        }
    }
    // The first one has its own rounding still, and the host has not.
    assert!(matches!(worker.resume(&mut honest), Stopped::Asks(_)));
    assert_eq!(worker.resume(&mut honest), Stopped::Ended { status: 0 });
    let mut last = Ulp::load(&image, &words(&["crash", "e"]), &[]).unwrap();
    assert!(matches!(worker.resume(&mut last), Stopped::Asks(_)));
    assert_eq!(worker.resume(&mut last), Stopped::Ended { status: 300 });
    over(folder)
}
