//! C programs, compiled here as images, many in one process.

mod common;

use common::{apart, apart_with, compile, compile_shared, over, words};
use std::fs;
use std::process::Command;
use std::time::Duration;
use upcall_ulp::slot::UlpSlot;
use upcall_ulp::{
    ASK_OWN, ASK_YIELD, Image, SharedImage, StopReason, Ulp, UlpRequest, UlpTurns, Worker,
};

#[test]
fn each_has_its_own_globals_heap_thread_locals_and_libc() {
    const ULPS: usize = 100;
    let Some(folder) = apart("each_has_its_own_globals_heap_thread_locals_and_libc") else {
        return;
    };
    let image = Image::open(&compile(folder.path(), "own")).unwrap();
    let mut worker = Worker::begin().unwrap();
    let load = |number: usize| {
        Ulp::load(&image, &words(&["own", &number.to_string()]), &words(&["A=b"])).unwrap()
    };
    let mut ulps = (0..ULPS).map(load).collect::<Vec<_>>();
    let mut counters = Vec::new();
    for round in 0..3 {
        for (number, ulp) in ulps.iter_mut().enumerate() {
            let StopReason::Asks(UlpRequest { what, args }) = worker.resume(ulp) else {
                panic!("{number} has ended")
            };
            assert_eq!((what, args[0], args[1]), (ASK_OWN, number as u64, round));
            assert_eq!(UlpSlot::of(args[2]), Some(ulp.slot()), "its globals are in its slot");
            counters.push(args[2] - ulp.base());
            ulp.answer(number as i64 * 1000 + round as i64);
        }
    }
    assert!(counters.iter().all(|at| *at == counters[0]));
    for (number, ulp) in ulps.iter_mut().enumerate() {
        let ended = StopReason::Ended { status: number as i32 + 10 };
        assert_eq!((worker.resume(ulp), worker.resume(ulp)), (ended, ended));
    }
    // Their slots are free for others, which start afresh.
    drop(ulps);
    let mut again = load(7);
    assert!(matches!(worker.resume(&mut again), StopReason::Asks(_)) && again.slot() == 0);
    over(folder)
}

#[test]
fn who_crashes_ends_alone() {
    let Some(folder) = apart("who_crashes_ends_alone") else { return };
    let image = Image::open(&compile(folder.path(), "crash")).unwrap();
    let mut worker = Worker::begin().unwrap();
    let mut honest = Ulp::load(&image, &words(&["crash", "r"]), &[]).unwrap();
    assert!(matches!(worker.resume(&mut honest), StopReason::Asks(_)));
    let cases =
        [("n", libc::SIGSEGV), ("a", libc::SIGABRT), ("d", libc::SIGSEGV), ("z", libc::SIGFPE)];
    for round in 0..3 {
        for (how, signal) in cases {
            let mut ulp = Ulp::load(&image, &words(&["crash", how]), &[]).unwrap();
            assert!(matches!(worker.resume(&mut ulp), StopReason::Asks(_)));
            let StopReason::Crashed(crash) = worker.resume(&mut ulp) else {
                panic!("{how} in round {round}")
            };
            assert_eq!(crash.signal, signal, "{crash}");
            assert_eq!(UlpSlot::of(crash.at), Some(ulp.slot()), "{crash}");
            let said = crash.to_string();
            assert!(how != "n" || said.contains("wanted 0x8"), "{said}");
            assert!(how != "d" || said.contains("end of its stack"), "{said}");
        }
    }
    // The first ULP still has its own rounding, and the host does not have it.
    assert!(matches!(worker.resume(&mut honest), StopReason::Asks(_)));
    assert_eq!(worker.resume(&mut honest), StopReason::Ended { status: 0 });
    let mut last = Ulp::load(&image, &words(&["crash", "e"]), &[]).unwrap();
    assert!(matches!(worker.resume(&mut last), StopReason::Asks(_)));
    assert_eq!(worker.resume(&mut last), StopReason::Ended { status: 300 });
    over(folder)
}

#[test]
fn what_cannot_work_is_refused_with_its_name_when_linked_and_when_called() {
    let look = |said: &str| {
        let execs = [
            "execve", "execv", "execvp", "execvpe", "execl", "execlp", "execle", "fexecve",
            "execveat",
        ];
        for name in ["fork", "vfork", "pthread_create", "dlopen"].into_iter().chain(execs) {
            assert!(
                said.contains(&format!("warning: upvm: {name} is refused")),
                "when linked: {said}"
            );
            assert!(
                said.contains(&format!("\nupvm: {name} is refused in a task: ")),
                "when called: {said}"
            );
        }
        // By system call number, too.
        for (name, times) in [("execve", 2), ("execveat", 2), ("fork", 2), ("clone", 1)] {
            let refusal = format!("\nupvm: {name} is refused in a task: ");
            assert_eq!(said.matches(&refusal).count(), times, "{name}: {said}");
        }
        assert!(said.contains("posix_spawn or system"), "{said}");
        assert!(
            said.contains("pvm_spawn") && said.contains("link the library statically"),
            "{said}"
        );
    };
    let Some(folder) =
        apart_with("what_cannot_work_is_refused_with_its_name_when_linked_and_when_called", look)
    else {
        return;
    };
    let image = Image::open(&compile(folder.path(), "refused")).unwrap();
    let mut ulp = Ulp::load(&image, &words(&["refused"]), &[]).unwrap();
    assert_eq!(Worker::begin().unwrap().resume(&mut ulp), StopReason::Ended { status: 0 });
    over(folder)
}

#[test]
fn each_has_a_process_number_that_no_process_and_no_other_one_has() {
    let Some(folder) = apart("each_has_a_process_number_that_no_process_and_no_other_one_has")
    else {
        return;
    };
    let image = Image::open(&compile(folder.path(), "pids")).unwrap();
    let mut worker = Worker::begin().unwrap();
    let mut ulps =
        (0..20).map(|_| Ulp::load(&image, &words(&["pids"]), &[]).unwrap()).collect::<Vec<_>>();
    let mut pids = Vec::new();
    // By default the parent is the process that has loaded it.
    ulps[0].set_parent(7);
    for ulp in &mut ulps {
        let own_parent = pids.is_empty();
        let StopReason::Asks(UlpRequest { what, args }) = worker.resume(ulp) else {
            panic!("{pids:?}: {:?}", ulp.ended())
        };
        let [pid, host, parent, _] = args;
        assert_eq!(
            (what, host, parent),
            (
                ASK_OWN,
                std::process::id().into(),
                if own_parent { 7 } else { std::process::id() }.into()
            )
        );
        assert_eq!(pid, ulp.process().into());
        assert!(pid >= 1 << 22, "the kernel may give {pid} to a process");
        pids.push(pid);
    }
    for (at, ulp) in ulps.iter_mut().enumerate() {
        ulp.answer(pids[(at + 1) % pids.len()] as i64);
        assert_eq!(worker.resume(ulp), StopReason::Ended { status: 0 });
    }
    pids.sort_unstable();
    pids.dedup();
    assert_eq!(pids.len(), ulps.len());
    // The number of an ended ULP is not used again soon.
    drop(ulps);
    let next = Ulp::load(&image, &words(&["pids"]), &[]).unwrap();
    assert!(!pids.contains(&next.process().into()) && next.slot() == 0);
    over(folder)
}

#[test]
fn who_computes_is_interrupted_and_goes_on_where_it_was() {
    let Some(folder) = apart("who_computes_is_interrupted_and_goes_on_where_it_was") else {
        return;
    };
    let image = Image::open(&compile(folder.path(), "computes")).unwrap();
    let mut worker = Worker::begin().unwrap();
    let load = || Ulp::load(&image, &words(&["computes", "5000000"]), &[]).unwrap();
    let mut alone = load();
    let undisturbed = worker.resume(&mut alone);
    assert!(matches!(undisturbed, StopReason::Asks(UlpRequest { what: ASK_OWN, .. })));
    worker.interrupt_every(Duration::from_millis(4)).unwrap();
    // While a ULP is interrupted others run, and it may be ended.
    let mut ulps = (0..3).map(|_| load()).collect::<Vec<_>>();
    let (mut interrupts, mut done) = (0, 0);
    while done < 3 {
        for ulp in &mut ulps {
            match worker.resume(ulp) {
                StopReason::Interrupted => {
                    interrupts += 1;
                    // An interrupt may come while the previous one ends, or before `main` begins.
                    let calls = ulp.backtrace(&image);
                    let has = |known: &dyn Fn(&str) -> bool| {
                        calls.iter().any(|call| call.function.as_deref().is_some_and(known))
                    };
                    assert!(has(&|name| name == "main" || name.starts_with("upvm_")), "{calls:?}");
                    // In the library, only the handling of an interrupt is ever under way here.
                    assert!(
                        ulp.is_in_own_code(&image) || has(&|name| name == "upvm_look_around"),
                        "{calls:?}"
                    );
                }
                StopReason::Ended { status } => assert_eq!(status, 0),
                stopped => {
                    assert_eq!(stopped, undisturbed);
                    done += 1;
                }
            }
        }
        if interrupts % 10 == 0 {
            let mut other = load();
            assert_eq!(worker.resume(&mut other), StopReason::Interrupted);
        }
    }
    assert!(interrupts > 10, "{interrupts}");
    eprintln!("{interrupts} interrupts");
    // A program that has a handler for that signal keeps it.
    drop(worker);
    // SAFETY: the handler does nothing.
    unsafe { libc::signal(libc::SIGVTALRM, own_handler as *const () as usize) };
    let mut worker = Worker::begin().unwrap();
    assert!(
        worker
            .interrupt_every(Duration::from_millis(4))
            .unwrap_err()
            .to_string()
            .contains("handler of its own")
    );
    assert_eq!(worker.resume(&mut alone), StopReason::Ended { status: 0 });
    over(folder)
}

extern "C" fn own_handler(_: i32) {}

#[test]
fn thousands_are_there_at_once() {
    const ULPS: usize = 3000;
    let Some(folder) = apart("thousands_are_there_at_once") else { return };
    let image = Image::open(&compile(folder.path(), "own")).unwrap();
    let mut worker = Worker::begin().unwrap();
    let words = |number: usize| words(&["own", &number.to_string(), "2"]);
    let mut ulps =
        (0..ULPS).map(|number| Ulp::load(&image, &words(number), &[]).unwrap()).collect::<Vec<_>>();
    for round in 0..2 {
        for (number, ulp) in ulps.iter_mut().enumerate() {
            assert!(matches!(worker.resume(ulp), StopReason::Asks(_)), "{number} in round {round}");
            ulp.answer(number as i64 * 1000 + round);
        }
    }
    // They end from the last to the first, and their memory is given back.
    for (number, ulp) in ulps.iter_mut().enumerate().rev().step_by(100) {
        assert_eq!(worker.resume(ulp), StopReason::Ended { status: number as i32 + 10 });
    }
    drop(ulps);
    let maps = fs::read_to_string("/proc/self/maps").unwrap().lines().count();
    assert!(maps < 200, "{maps} mappings are left");
    over(folder)
}

#[test]
fn who_yields_is_followed_by_the_next_one_that_has_not_ended() {
    const ULPS: usize = 20;
    let Some(folder) = apart("who_yields_is_followed_by_the_next_one_that_has_not_ended") else {
        return;
    };
    let image = Image::open(&compile(folder.path(), "turns")).unwrap();
    let mut worker = Worker::begin().unwrap();
    // The ULPs end after different numbers of turns.
    let words =
        |number: usize| words(&["turns", &number.to_string(), &(10 + number % 7).to_string()]);
    let mut ulps =
        (0..ULPS).map(|number| Ulp::load(&image, &words(number), &[]).unwrap()).collect::<Vec<_>>();
    let mut turns = UlpTurns::new(&mut worker, &mut ulps);
    let (mut at, mut asked, mut ends) = (0, Vec::new(), 0);
    while ends < ULPS {
        let after = turns.after(at);
        let (who, why) = turns.go(at).unwrap();
        match why {
            StopReason::Asks(UlpRequest { what, args }) => {
                assert_eq!((what, args[0]), (ASK_OWN, who as u64));
                // Each asks in its sixth turn, and ends after ten at least: so all take turns.
                assert_eq!(ends, 0, "{who} had fewer turns than one that has ended");
                asked.push(who);
                assert!(turns.answer(who, who as i64) && turns.ulp(who).is_some());
                at = who;
                continue;
            }
            StopReason::Interrupted => panic!("no ULP is to be interrupted"),
            StopReason::Ended { status } => assert_eq!(status, who as i32 + 100),
            StopReason::Crashed(crash) => {
                assert_eq!((crash.signal, who % 5), (libc::SIGABRT, 4), "{crash}")
            }
        }
        ends += 1;
        assert!(turns.go(who).is_none() && turns.after(who).is_none());
        let live = |one: &usize| turns.after(*one).is_some();
        at = after.into_iter().chain(0..ULPS).find(live).unwrap_or_default();
    }
    // In order, each once: a ULP that asks is followed by itself, and then by the next.
    assert_eq!(asked, (0..ULPS).collect::<Vec<_>>());
    drop(turns);
    assert!(ulps.iter().all(|ulp| ulp.ended().is_some()));
    over(folder)
}

#[test]
fn an_image_that_is_started_by_itself_says_what_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let done = Command::new(compile(folder.path(), "own")).output().unwrap();
    assert_eq!(done.status.code(), Some(127));
    assert!(String::from_utf8_lossy(&done.stderr).contains("have a host load it"));
}

#[test]
fn of_a_file_that_was_changed_no_more_are_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let path = compile(folder.path(), "own");
    let image = Image::open(&path).unwrap();
    drop(Ulp::load(&image, &words(&["own", "1"]), &[]).unwrap());
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(5000).unwrap();
    let said = Ulp::load(&image, &words(&["own", "1"]), &[]).unwrap_err().to_string();
    assert!(said.contains("was changed since it was opened: open it again"), "{said}");
    assert!(Image::open(&path).unwrap_err().to_string().contains("upvmcc"));
}

#[test]
fn a_program_without_the_archive_is_none_and_bent_ones_harm_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let (source, plain) = (folder.path().join("plain.c"), folder.path().join("plain"));
    fs::write(&source, "int main(void) { return 0; }").unwrap();
    assert!(
        Command::new("gcc")
            .args(["-static-pie", "-o"])
            .arg(&plain)
            .arg(&source)
            .status()
            .unwrap()
            .success()
    );
    assert!(Image::open(&plain).unwrap_err().to_string().contains("without the runtime's archive"));
    let path = compile(folder.path(), "own");
    let whole = fs::read(&path).unwrap();
    let (bent, mut state, mut loaded) = (folder.path().join("bent"), 1_u64, 0);
    let mut any = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize
    };
    for _ in 0..300 {
        let mut bytes = whole.clone();
        // Corrupts the file's header, and those of its segments.
        (0..1 + any() % 3).for_each(|_| bytes[16 + any() % 600] = any() as u8);
        fs::write(&bent, bytes).unwrap();
        let Ok(image) = Image::open(&bent) else { continue };
        loaded += usize::from(Ulp::load(&image, &words(&["own", "1"]), &[]).is_ok());
    }
    assert!(loaded > 10, "{loaded} were loaded");
}

#[test]
fn a_slot_in_which_something_is_mapped_already_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let image = Image::open(&compile(folder.path(), "own")).unwrap();
    let slot = UlpSlot::take_this(300).unwrap();
    // Within the stack, which is mapped last.
    let foreign = slot.start() + (10 << 20);
    // SAFETY: nothing is mapped there, or the kernel refuses.
    let mapped = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        libc::mmap(foreign as *mut _, 4096, libc::PROT_READ, flags, -1, 0)
    };
    assert_eq!(mapped as u64, foreign);
    let said = Ulp::load_at(slot, &image, &words(&["own", "1"]), &[]).unwrap_err().to_string();
    assert!(said.contains("no memory for the stack of task 300"), "{said}");
}

#[test]
fn arguments_that_are_too_long_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let image = Image::open(&compile(folder.path(), "own")).unwrap();
    let long = words(&["own", &"x".repeat(3 << 20)]);
    assert!(Ulp::load(&image, &long, &[]).unwrap_err().to_string().contains("is the most"));
}

#[test]
fn one_thread_is_one_worker() {
    let Some(folder) = apart("one_thread_is_one_worker") else { return };
    let worker = Worker::begin().unwrap();
    assert!(Worker::begin().unwrap_err().to_string().contains("already"));
    drop(worker);
    drop(Worker::begin().unwrap());
    over(folder)
}

#[test]
fn what_images_share_works_on_what_is_each_ones_own_and_is_in_its_backtrace() {
    let Some(folder) =
        apart("what_images_share_works_on_what_is_each_ones_own_and_is_in_its_backtrace")
    else {
        return;
    };
    let shared = SharedImage::load(
        compile_shared(folder.path(), "shared_code", &[]),
        &["shared_count", "shared_read"],
    )
    .unwrap();
    let image = Image::open(&compile(folder.path(), "shared")).unwrap();
    let mut worker = Worker::begin().unwrap();
    worker.share(&shared);
    let load = |args: &[&str]| Ulp::load(&image, &words(args), &[]).unwrap();
    let mut all = [load(&["shared", "3"]), load(&["shared", "5"]), load(&["shared", "2", "read"])];
    for turn in 1.. {
        let ends = all.each_mut().map(|ulp| worker.resume(ulp)).map(|stopped| match stopped {
            StopReason::Asks(asked) => (asked.what != ASK_YIELD).then_some(-1),
            StopReason::Interrupted => None,
            StopReason::Ended { status } => Some(status),
            StopReason::Crashed(crash) => Some(crash.signal),
        });
        let due = |after: usize, end: i32| (turn > after).then_some(end);
        assert_eq!(ends, [due(3, 3), due(5, 5), due(2, 11)]);
        if turn > 5 {
            break;
        }
    }
    let names =
        all[2].backtrace(&image).into_iter().map(|frame| frame.function.unwrap_or_default());
    assert_eq!(names.collect::<Vec<_>>(), ["shared_read", "main"]);
    over(folder)
}

#[test]
fn what_cannot_be_shared_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let load = |options: &[&str], names: &[&str]| {
        SharedImage::load(compile_shared(folder.path(), "shared_code", options), names)
            .unwrap_err()
            .to_string()
    };
    let refused = load(&[], &["shared_count", "none"]);
    assert!(refused.contains("none"), "{refused}");
    let refused = load(&["-Wl,-z,separate-code"], &[]);
    assert!(refused.contains("several segments"), "{refused}");
    let refused = load(&["-Wl,-N"], &[]);
    assert!(refused.contains("written to"), "{refused}");
    let refused = load(&[], &["shared_count"; 9]);
    assert!(refused.contains("8 is the most"), "{refused}");
    assert!(SharedImage::load(b"no ELF", &[]).is_err());
}
