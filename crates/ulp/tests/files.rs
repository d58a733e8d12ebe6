//! Each program has a table of descriptors of its own.

mod common;

use common::{apart, apart_with, compile, over, words};
use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;
use upcall_ulp::{
    ASK_ASIDE, ASK_FOLDER, ASK_OWN, ASK_READY, ASK_YIELD, Aside, Image, Signalled, StopReason, Ulp,
    UlpRequest, Worker, descriptors,
};

/// A worker, the programs' image, and the folder in which they run.
struct Programs {
    worker: Worker,
    image: Image,
    aside: Aside,
    folder: PathBuf,
    /// The number that a program has given with its turn.
    told: u64,
}

/// The reason why a program does not go on.
#[derive(Debug, PartialEq)]
enum Come {
    /// Another one is to go on.
    Turn,
    /// It waits for a call aside.
    Waits,
    Stopped(StopReason),
}

impl Programs {
    fn new(folder: &Path) -> Self {
        Self {
            worker: Worker::begin().unwrap(),
            image: Image::open(&compile(folder, "files")).unwrap(),
            aside: Aside::begin().unwrap(),
            folder: folder.into(),
            told: 0,
        }
    }

    fn load(&self, what: &str, args: &[&str]) -> Ulp {
        let all = [&["files", what, self.folder.to_str().unwrap()], args].concat();
        Ulp::load(&self.image, &words(&all), &words(&["PATH=/usr/bin:/bin"])).unwrap()
    }

    /// Runs a program until another one is to run.
    fn go(&mut self, ulp: &mut Ulp) -> Come {
        loop {
            let StopReason::Asks(UlpRequest { what, args }) = self.worker.resume(ulp) else {
                return Come::Stopped(self.worker.resume(ulp));
            };
            match what {
                ASK_OWN => {
                    self.told = args[0];
                    return Come::Turn;
                }
                ASK_YIELD => ulp.answer(0),
                ASK_FOLDER => {
                    let path = format!("/proc/self/fd/{}", args[0]);
                    std::env::set_current_dir(path).unwrap();
                    ulp.answer(0)
                }
                ASK_READY => {
                    descriptors::ready(&[(args[0] as i32, args[1] as u16)], None);
                    ulp.answer(1)
                }
                ASK_ASIDE => {
                    ulp.begin_aside(&self.aside, args[0], 0).unwrap();
                    return Come::Waits;
                }
                what => panic!("{what}"),
            }
        }
    }

    /// Waits until the call aside of this program is done.
    fn until_done(&self, ulp: &mut Ulp) {
        descriptors::ready(&[(self.aside.descriptor(), 1)], Some(Duration::from_secs(60)));
        self.aside.done();
        let result = ulp.aside().expect("it is done");
        ulp.answer(result);
    }

    /// As [`go`](Self::go), and waits for calls aside.
    fn go_on(&mut self, ulp: &mut Ulp) -> Come {
        loop {
            match self.go(ulp) {
                Come::Waits => self.until_done(ulp),
                come => return come,
            }
        }
    }

    fn run(&mut self, what: &str) {
        let mut ulp = self.load(what, &[]);
        assert_eq!(self.go_on(&mut ulp), Come::Stopped(ENDED_WELL));
    }
}

const ENDED_WELL: StopReason = StopReason::Ended { status: 0 };

/// Number of the process's open descriptors.
fn open() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Sets the number of descriptors that the process may have, and returns the former one.
fn may_have(number: u64) -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: writes the local variable.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) }, 0);
    let before = limit.rlim_cur;
    limit.rlim_cur = number.min(limit.rlim_max);
    // SAFETY: reads the local variable.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
    before
}

#[test]
fn each_has_its_own_numbers_and_its_own_files_behind_them() {
    let Some(folder) = apart("each_has_its_own_numbers_and_its_own_files_behind_them") else {
        return;
    };
    may_have(2048);
    let mut programs = Programs::new(folder.path());
    let mut before = None;
    for _ in 0..3 {
        let mut one = programs.load("turns", &["one", "101", "102"]);
        let mut two = programs.load("turns", &["two", "102", "101"]);
        for _ in 0..7 {
            assert_eq!((programs.go(&mut one), programs.go(&mut two)), (Come::Turn, Come::Turn));
        }
        for ulp in [&mut one, &mut two] {
            assert_eq!(programs.go(ulp), Come::Stopped(ENDED_WELL));
        }
        drop((one, two));
        assert_eq!(before.get_or_insert(open()), &open());
    }
    over(folder)
}

#[test]
fn who_opens_its_own_descriptors_by_name_finds_them() {
    let look = |said: &str| {
        for name in [
            "fcntl(F_SETOWN)",
            "fcntl(F_SETSIG)",
            "fcntl(F_SETLEASE)",
            "fcntl(F_NOTIFY)",
            "O_ASYNC",
            "ioctl(FIOASYNC)",
            "signalfd",
        ] {
            let line = format!("\nupvm: {name} is refused in a task: its signals would come to");
            assert!(said.contains(&line), "{name}: {said}");
        }
        assert!(said.contains("warning: upvm: signalfd is refused"), "{said}");
    };
    let Some(folder) = apart_with("who_opens_its_own_descriptors_by_name_finds_them", look) else {
        return;
    };
    Programs::new(folder.path()).run("paths");
    over(folder)
}

#[test]
fn no_more_are_opened_than_the_limit_says() {
    let Some(folder) = apart("no_more_are_opened_than_the_limit_says") else { return };
    let mut programs = Programs::new(folder.path());
    // The process itself may have more by the time that the program opens them.
    let before = may_have(40);
    let mut ulp = programs.load("limit", &[]);
    assert_eq!(programs.go(&mut ulp), Come::Turn);
    may_have(before);
    assert_eq!(programs.go(&mut ulp), Come::Stopped(ENDED_WELL));
    over(folder)
}

#[test]
fn what_was_open_at_a_crash_is_closed_and_nothing_else() {
    let Some(folder) = apart("what_was_open_at_a_crash_is_closed_and_nothing_else") else {
        return;
    };
    may_have(4096);
    let mut programs = Programs::new(folder.path());
    // The host's own file lies among those of the programs.
    let mut other = programs.load("crash", &["100"]);
    assert_eq!(programs.go(&mut other), Come::Turn);
    let mut own = File::create_new(folder.path().join("host")).unwrap();
    let before = open();
    let mut ulp = programs.load("crash", &["2000"]);
    assert_eq!(programs.go(&mut ulp), Come::Turn);
    // One for its standard output.
    assert_eq!(open(), before + 2001);
    let Come::Stopped(StopReason::Crashed(crash)) = programs.go(&mut ulp) else {
        panic!("it has not crashed")
    };
    assert_eq!(crash.signal, libc::SIGSEGV);
    drop(ulp);
    assert_eq!(open(), before);
    own.write_all(b"host").unwrap();
    own.rewind().unwrap();
    // Those of the other program are open.
    drop(other);
    assert_eq!(open(), before - 101);
    let mut text = String::new();
    File::open(folder.path().join("host")).unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(text, "host");
    over(folder)
}

#[test]
fn what_a_helper_opens_is_closed_if_its_program_has_ended() {
    let Some(folder) = apart("what_a_helper_opens_is_closed_if_its_program_has_ended") else {
        return;
    };
    let mut programs = Programs::new(folder.path());
    let before = open();
    let mut ulp = programs.load("fifo", &[]);
    assert_eq!(programs.go(&mut ulp), Come::Waits);
    let path = folder.path().join("fifo");
    let other = File::options().read(true).write(true).open(path).unwrap();
    descriptors::ready(&[(programs.aside.descriptor(), 1)], Some(Duration::from_secs(60)));
    assert_eq!(programs.aside.done(), [0]);
    drop((ulp, other));
    assert_eq!(open(), before);
    over(folder)
}

#[test]
fn what_a_handler_has_closed_is_not_used_any_more() {
    let Some(folder) = apart("what_a_handler_has_closed_is_not_used_any_more") else { return };
    let mut programs = Programs::new(folder.path());
    let (mut loses, mut gains) = (programs.load("loses", &[]), programs.load("gains", &[]));
    assert_eq!(programs.go(&mut loses), Come::Turn);
    let lost = programs.told;
    let stopped = programs.worker.resume(&mut loses);
    assert!(matches!(stopped, StopReason::Asks(UlpRequest { what: ASK_READY, .. })), "{stopped:?}");
    assert_eq!(loses.signal(libc::SIGUSR1), Signalled::Comes);
    loses.answer(-i64::from(libc::EINTR));
    assert_eq!(programs.go(&mut loses), Come::Turn);
    assert_eq!((programs.go(&mut gains), programs.told), (Come::Turn, lost));
    assert_eq!(programs.go(&mut loses), Come::Stopped(ENDED_WELL));
    assert_eq!(programs.go(&mut gains), Come::Stopped(ENDED_WELL));
    over(folder)
}

#[test]
fn children_have_the_programs_numbers() {
    let Some(folder) = apart("children_have_the_programs_numbers") else { return };
    let mut programs = Programs::new(folder.path());
    programs.run("child");
    over(folder)
}

#[test]
fn descriptors_that_are_sent_get_a_number_of_the_receivers() {
    let Some(folder) = apart("descriptors_that_are_sent_get_a_number_of_the_receivers") else {
        return;
    };
    let mut programs = Programs::new(folder.path());
    let before = open();
    let (mut receives, mut sends) = (programs.load("receives", &[]), programs.load("sends", &[]));
    assert_eq!(programs.go_on(&mut receives), Come::Turn);
    assert_eq!(programs.go_on(&mut sends), Come::Stopped(ENDED_WELL));
    drop(sends);
    assert_eq!(programs.go_on(&mut receives), Come::Stopped(ENDED_WELL));
    drop(receives);
    assert!(open() <= before + 1, "the doorbell of helpers, and no more");
    over(folder)
}

#[test]
fn locks_of_one_exclude_the_other() {
    let Some(folder) = apart("locks_of_one_exclude_the_other") else { return };
    let mut programs = Programs::new(folder.path());
    let (mut one, mut two) = (programs.load("locks", &[]), programs.load("wants", &[]));
    assert_eq!(programs.go(&mut one), Come::Turn);
    assert_eq!(programs.go(&mut two), Come::Waits);
    assert!(two.aside().is_none());
    assert_eq!(programs.go(&mut one), Come::Turn);
    programs.until_done(&mut two);
    assert_eq!(programs.go(&mut two), Come::Turn);
    assert_eq!(programs.go(&mut one), Come::Stopped(ENDED_WELL));
    assert_eq!(programs.go(&mut two), Come::Stopped(ENDED_WELL));
    over(folder)
}
