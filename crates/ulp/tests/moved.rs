//! ULPs that go on in another process than the one in which they began.

#[path = "common/bends.rs"]
mod bends;
mod common;
#[path = "common/moving.rs"]
mod moving;

use bends::BENDS;
use common::{apart, apart_with, compile, over, words};
use moving::{
    Link, Taken, arrive, blocked, decode, encode, mapped, mask, of_bytes, poke, take, to_bytes,
};
use std::fs;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;
use upcall_ulp::slot::{STACK, UlpSlot};
use upcall_ulp::{
    ASK_OWN, ASK_READY, ASK_SLEEP, Aside, ClockOrigin, Image, NotArrived, NotTaken, PageRun,
    PageSum, Signalled, StopReason, Ulp, UlpMapping, UlpOptions, UlpPin, UlpRequest, Worker,
};

const EINTR: i64 = 4;

/// Starts this test a second time, as the other process.
fn other(test: &str, folder: &Path, image: &Path) -> (Child, Link) {
    let socket = folder.join("socket");
    let listener = UnixListener::bind(&socket).unwrap();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .envs([("ULP_SOCKET", &socket), ("ULP_IMAGE", &image.to_path_buf())])
        .spawn()
        .unwrap();
    let link = Link(listener.accept().unwrap().0);
    // A test may start further ones.
    std::fs::remove_file(&socket).unwrap();
    (child, link)
}

/// In the other process: its link, and the program.
fn is_other() -> Option<(Link, Image)> {
    let socket = std::env::var_os("ULP_SOCKET")?;
    let image = PathBuf::from(std::env::var_os("ULP_IMAGE")?);
    Some((Link(UnixStream::connect(socket).unwrap()), Image::open(&image).unwrap()))
}

/// Runs a ULP until it stops by itself.
fn stopped(worker: &mut Worker, ulp: &mut Ulp) -> StopReason {
    loop {
        match worker.resume(ulp) {
            StopReason::Interrupted => {}
            stopped => return stopped,
        }
    }
}

/// Runs a `moves` until its next question, and answers that. Returns `None` at its end.
fn one_round(worker: &mut Worker, ulp: &mut Ulp) -> Option<[u64; 4]> {
    let mut stopped = worker.resume(ulp);
    while stopped == StopReason::Interrupted {
        stopped = worker.resume(ulp);
    }
    match stopped {
        StopReason::Asks(UlpRequest { what: ASK_OWN, args }) => {
            ulp.answer(args[0] as i64 * 3);
            Some(args)
        }
        StopReason::Asks(UlpRequest { args, .. }) => Some(args),
        StopReason::Ended { status: 7 } => None,
        stopped => panic!("{stopped:?}"),
    }
}

/// The other process of most tests: runs each ULP that comes for one round, and sends it back.
fn serve(worker: &mut Worker, link: &mut Link, image: &Image) -> ! {
    while let Some(mut ulp) = link.receive(image) {
        let asked = one_round(worker, &mut ulp);
        link.put(&asked.map_or([0; 5], |[a, b, c, d]| [1, a, b, c, d]));
        if asked.is_some() {
            drop(link.send(ulp, image));
        }
    }
    std::process::exit(0)
}

/// Moves a `moves` with a heap of `kib` to the other process and back, after each round.
fn to_and_fro(name: &str, rounds: usize, kib: &str, stack: u64, slots: usize) {
    let look = |said: &str| {
        // Two programs, of which one was never moved, have written the same.
        let whole = (1..=rounds).map(|round| format!("line {round}\n")).collect::<String>();
        let whole = format!("begins\n{whole}ends after {rounds} rounds\n");
        assert_eq!(said.matches(&whole).count(), 2, "{said}");
    };
    let Some(folder) = apart_with(name, look) else { return };
    let mut worker = Worker::begin().unwrap();
    worker.interrupt_every(Duration::from_millis(4)).unwrap();
    if let Some((mut link, image)) = is_other() {
        serve(&mut worker, &mut link, &image)
    }
    let path = compile(folder.path(), "moves");
    let image = Image::open(&path).unwrap();
    let args = words(&["moves", &rounds.to_string(), kib]);
    let load = || {
        let (slot, environment) = (UlpSlot::take_several(slots).unwrap(), words(&["A=b"]));
        Ulp::load_with(slot, &image, &args, &environment, UlpOptions { stack }).unwrap()
    };
    let mut unmoved = load();
    let mut expected = Vec::new();
    while let Some(asked) = one_round(&mut worker, &mut unmoved) {
        expected.push(asked);
    }
    assert_eq!(expected.len(), rounds + 2);
    drop(unmoved);

    let (mut child, mut link) = other(name, folder.path(), &path);
    let mut ulp = load();
    let (slot, process) = (ulp.slot(), ulp.process());
    let (mut found, mut numbers) = (Vec::new(), Vec::new());
    while let Some(asked) = one_round(&mut worker, &mut ulp) {
        found.push(asked);
        numbers.push(link.send(ulp, &image));
        // Its memory is given back, and its place is free. Its number is not.
        (slot..slot + slots).for_each(|slot| assert_eq!(mapped(slot), Vec::<String>::new()));
        let fresh = load();
        assert!(fresh.slot() == slot && fresh.process() != process);
        drop(fresh);
        let [went_on, asked @ ..] = [(); 5].map(|()| link.get().unwrap());
        if went_on == 0 {
            break;
        }
        found.push(asked);
        ulp = link.receive(&image).unwrap();
        assert_eq!((ulp.slot(), ulp.process()), (slot, process));
    }
    assert_eq!(found, expected);
    drop(link);
    assert!(child.wait().unwrap().success());
    over(folder)
}

#[test]
fn a_program_goes_to_and_fro_200_times_and_nothing_of_it_changes() {
    let name = "a_program_goes_to_and_fro_200_times_and_nothing_of_it_changes";
    to_and_fro(name, 200, "64", STACK, 1);
}

#[test]
fn a_program_goes_to_and_fro_with_8_mib_another_stack_and_two_slots() {
    let name = "a_program_goes_to_and_fro_with_8_mib_another_stack_and_two_slots";
    to_and_fro(name, 10, "8192", 3 << 20, 2);
}

#[test]
fn a_program_that_computes_moves_where_it_is_interrupted() {
    const NAME: &str = "a_program_that_computes_moves_where_it_is_interrupted";
    /// Status of the other process if the program came to its end there.
    const DONE_THERE: i32 = 3;
    let Some(folder) = apart(NAME) else { return };
    let mut worker = Worker::begin().unwrap();
    // Runs a ULP until it is interrupted where it can move.
    let until = |worker: &mut Worker, ulp: &mut Ulp, image: &Image| loop {
        match worker.resume(ulp) {
            StopReason::Interrupted => match ulp.pinned(image).unwrap() {
                None => return None,
                Some(pin) => assert!(matches!(pin, UlpPin::Inside | UlpPin::Asks), "{pin}"),
            },
            stopped => return Some(stopped),
        }
    };
    if let Some((mut link, image)) = is_other() {
        // Other signals are blocked here than in the first process.
        mask(libc::SIG_SETMASK, libc::SIGUSR2);
        worker.interrupt_every(Duration::from_millis(4)).unwrap();
        while let Some(mut ulp) = link.receive(&image) {
            if until(&mut worker, &mut ulp, &image).is_some() {
                std::process::exit(DONE_THERE);
            }
            assert!(blocked(libc::SIGUSR2) && !blocked(libc::SIGUSR1));
            drop(link.send(ulp, &image));
        }
        std::process::exit(0)
    }
    let path = compile(folder.path(), "computes");
    let image = Image::open(&path).unwrap();
    mask(libc::SIG_BLOCK, libc::SIGUSR1);
    worker.interrupt_every(Duration::from_millis(4)).unwrap();
    let mut rounds = 5_000_000;
    let (mut child, link, mut ulp) = loop {
        let count = rounds.to_string();
        let load = || Ulp::load(&image, &words(&["computes", &count]), &[]).unwrap();
        let expected = stopped(&mut worker, &mut load());
        assert!(matches!(expected, StopReason::Asks(UlpRequest { what: ASK_OWN, .. })));
        let (mut child, mut link) = other(NAME, folder.path(), &path);
        let (mut ulp, mut moves) = (Some(load()), 0);
        let found = loop {
            let Some(here) = &mut ulp else { break None };
            if let Some(stopped) = until(&mut worker, here, &image) {
                break Some(stopped);
            }
            assert!(blocked(libc::SIGUSR1) && !blocked(libc::SIGUSR2));
            // The rest is left to this process, which can compare.
            if moves < 20 {
                drop(link.send(ulp.take().unwrap(), &image));
                ulp = link.receive(&image);
                moves += 1;
            }
        };
        match (found, ulp) {
            (Some(found), Some(ulp)) => {
                assert_eq!(found, expected);
                if moves > 2 {
                    break (child, link, ulp);
                }
                drop(link);
                assert!(child.wait().unwrap().success());
            }
            _ => assert_eq!(child.wait().unwrap().code(), Some(DONE_THERE)),
        }
        // A fast machine gets more to compute.
        rounds *= 2;
    };
    ulp.answer(0);
    stopped(&mut worker, &mut ulp);
    assert_eq!(ulp.ended(), Some(StopReason::Ended { status: 0 }));
    drop(link);
    assert!(child.wait().unwrap().success());
    over(folder)
}

/// Where the kernel cannot watch, large ULPs stop for as long as all of their memory takes.
#[test]
fn pages_that_a_program_writes_are_found_while_it_runs() {
    let test = "pages_that_a_program_writes_are_found_while_it_runs";
    let Some(folder) = apart(test) else { return };
    let image = Image::open(&compile(folder.path(), "writes")).unwrap();
    let mut worker = Worker::begin().unwrap();
    let mut ulp = Ulp::load(&image, &words(&["writes"]), &[]).unwrap();
    let mut next = |ulp: &mut Ulp| match worker.resume(ulp) {
        StopReason::Asks(UlpRequest { what: ASK_OWN, args }) => args[0],
        stopped => panic!("{stopped:?}"),
    };
    let start = next(&mut ulp);
    let state = ulp.outline(&image).unwrap();
    let mut writes = match ulp.watch(&state) {
        Ok(writes) => writes,
        Err(error) => {
            eprintln!("SKIPPED: the kernel does not watch writes: {error}");
            over(folder)
        }
    };
    let has = |runs: &[PageRun], page: u64| {
        let at = start + page * 4096;
        runs.iter().any(|run| (run.start..run.end).contains(&at))
    };
    let bytes = |runs: &[PageRun]| runs.iter().map(|run| run.end - run.start).sum::<u64>();
    let all = writes.written().unwrap();
    assert!((0..1024).all(|page| has(&all, page)));
    let mut change = |ulp: &mut Ulp, at: i64| {
        ulp.answer(at);
        next(ulp);
    };
    change(&mut ulp, 5 * 4096);
    let some = writes.written().unwrap();
    assert!(has(&some, 5) && !has(&some, 6) && bytes(&some) < bytes(&all) / 2, "{some:?}");
    change(&mut ulp, 9 * 4096);
    change(&mut ulp, 1 << 30);
    let state = ulp.state(&image).unwrap();
    let (pages, gone) = writes.finish(&ulp, &state, &some).unwrap();
    let left = pages.runs();
    assert!(has(&left, 5) && has(&left, 9) && !has(&left, 0) && !has(&left, 6), "{left:?}");
    assert!(has(&gone, 0) && bytes(&gone) == 4096, "{gone:?}");
    // Pages do not show whether mappings are others than before.
    drop(writes);
    let mut writes = ulp.watch(&state).unwrap();
    let mut other = state.clone();
    other.mappings.pop();
    assert!(writes.finish(&ulp, &other, &[]).is_err());
    change(&mut ulp, 7 * 4096);
    drop(ulp);
    over(folder)
}

#[test]
fn a_program_goes_on_from_a_file_after_its_first_process_has_ended() {
    const NAME: &str = "a_program_goes_on_from_a_file_after_its_first_process_has_ended";
    let Some(folder) = apart(NAME) else { return };
    let mut worker = Worker::begin().unwrap();
    let load = |image: &Image| Ulp::load(image, &words(&["moves", "5", "100"]), &[]).unwrap();
    if let Some((_link, image)) = is_other() {
        let mut ulp = load(&image);
        (0..3).for_each(|_| assert!(one_round(&mut worker, &mut ulp).is_some()));
        let bytes = to_bytes(&take(&ulp, &image).unwrap());
        fs::write(image.path().with_extension("taken"), bytes).unwrap();
        std::process::exit(0)
    }
    let path = compile(folder.path(), "moves");
    let (mut child, _link) = other(NAME, folder.path(), &path);
    assert!(child.wait().unwrap().success());
    let image = Image::open(&path).unwrap();
    let mut unmoved = load(&image);
    let mut expected = Vec::new();
    while let Some(asked) = one_round(&mut worker, &mut unmoved) {
        expected.push(asked);
    }
    drop(unmoved);
    // As often as wanted, since a file is not used up.
    let taken = of_bytes(&fs::read(path.with_extension("taken")).unwrap()).unwrap();
    for _ in 0..2 {
        let mut ulp = arrive(&taken, &image).unwrap();
        for asked in &expected[3..] {
            assert_eq!(one_round(&mut worker, &mut ulp).as_ref(), Some(asked));
        }
        assert_eq!(one_round(&mut worker, &mut ulp), None);
    }
    over(folder)
}

/// Resumes a ULP until its next question, and answers that with 0.
fn asks(worker: &mut Worker, ulp: &mut Ulp) -> u64 {
    match worker.resume(ulp) {
        StopReason::Asks(UlpRequest { what, .. }) => {
            ulp.answer(0);
            what
        }
        stopped => panic!("{stopped:?}"),
    }
}

#[test]
fn what_keeps_a_program_from_moving_is_said_while_it_lasts() {
    let Some(folder) = apart("what_keeps_a_program_from_moving_is_said_while_it_lasts") else {
        return;
    };
    let image = Image::open(&compile(folder.path(), "pinned")).unwrap();
    let mut worker = Worker::begin().unwrap();
    let pin = |ulp: &Ulp| ulp.pinned(&image).unwrap();
    let (input, mut writer) = std::io::pipe().unwrap();
    // SAFETY: replaces the standard input, which nothing here uses.
    assert_eq!(unsafe { libc::dup2(input.as_raw_fd(), 0) }, 0);
    for how in ["m", "s", "n", "c", "w", "h", "g"] {
        let mut ulp = Ulp::load(&image, &words(&["pinned", how]), &[]).unwrap();
        assert_eq!(pin(&ulp), Some(UlpPin::NeverRan));
        asks(&mut worker, &mut ulp);
        assert_eq!(pin(&ulp), None, "{how}");
        let mut what = asks(&mut worker, &mut ulp);
        if how == "h" {
            // It sleeps, and is woken by a signal, whose handler asks.
            assert_eq!((what, pin(&ulp)), (ASK_SLEEP, None));
            ulp.answer(-EINTR);
            assert_eq!(ulp.signal(libc::SIGUSR1), Signalled::Comes);
            what = asks(&mut worker, &mut ulp);
        }
        let found = pin(&ulp).unwrap_or_else(|| panic!("{how} can move"));
        assert!(how != "w" || what == ASK_READY);
        let fits = match how {
            "m" | "s" => matches!(&found, UlpPin::Maps { name, .. } if name.starts_with('/')),
            "n" => matches!(found, UlpPin::Mappings(count) if count > 1024),
            "c" => found == UlpPin::Children(1),
            "w" => matches!(found, UlpPin::Waits(descriptor) if descriptor > 2),
            "h" => found == UlpPin::Inside,
            _ => found == UlpPin::Asks,
        };
        assert!(fits, "{how}: {found:?}");
        let Err(NotTaken::Pinned(again)) = ulp.state(&image) else { panic!("{how} can move") };
        assert_eq!(again, found);
        if how == "w" {
            writer.write_all(b"x").unwrap();
        }
        // The child may not have ended yet.
        let mut resume = || asks(&mut worker, &mut ulp);
        while how == "c" && resume() == ASK_READY {}
        if how != "c" {
            resume();
        }
        assert_eq!(pin(&ulp), None, "{how}");
        assert_eq!(worker.resume(&mut ulp), StopReason::Ended { status: 0 });
        assert_eq!(pin(&ulp), Some(UlpPin::Ended));
    }
    let aside = Aside::begin().unwrap();
    let own = Image::open(&compile(folder.path(), "aside")).unwrap();
    let mut ulp = Ulp::load(&own, &words(&["aside", "0", "1"]), &[]).unwrap();
    let StopReason::Asks(asked) = worker.resume(&mut ulp) else { panic!() };
    assert_eq!(ulp.pinned(&own).unwrap(), None);
    ulp.begin_aside(&aside, asked.args[0], 1).unwrap();
    assert_eq!(ulp.pinned(&own).unwrap(), Some(UlpPin::Aside));
    assert_eq!(ulp.pinned(&image).unwrap(), Some(UlpPin::Aside));
    // With another program's file.
    let mut ulp = Ulp::load(&own, &words(&["aside", "0", "1"]), &[]).unwrap();
    assert!(matches!(worker.resume(&mut ulp), StopReason::Asks(_)));
    assert_eq!(pin(&ulp), Some(UlpPin::Program(image.path().into())));
    over(folder)
}

#[test]
fn a_descriptor_without_a_number_is_only_in_code_of_the_library() {
    let folder = tempfile::tempdir().unwrap();
    let nm = Command::new("nm").arg(compile(folder.path(), "moves")).output().unwrap();
    let symbols = String::from_utf8(nm.stdout).unwrap();
    let address = |name: &str| {
        let mut all = symbols.lines().filter_map(|line| line.split_once(' '));
        let found = all.find(|(_, rest)| rest.split_once(' ').is_some_and(|(_, one)| one == name));
        u64::from_str_radix(found.unwrap().0, 16).unwrap()
    };
    let library = address("__start_upvm_text")..address("__stop_upvm_text");
    assert!(library.contains(&address("opens")) && !library.contains(&address("upvm_make")));
}

/// A `moves` that was taken after some rounds, and is gone.
fn taken(worker: &mut Worker, image: &Image, rounds: &str) -> Taken {
    let mut ulp = Ulp::load(image, &words(&["moves", rounds, "100"]), &[]).unwrap();
    one_round(worker, &mut ulp).unwrap();
    let taken = take(&ulp, image).unwrap();
    assert_eq!(decode(&encode(&taken.state)), Some(taken.state.clone()));
    drop(ulp.leave());
    taken
}

#[test]
fn another_program_is_refused_and_the_same_one_elsewhere_is_not() {
    let Some(folder) = apart("another_program_is_refused_and_the_same_one_elsewhere_is_not") else {
        return;
    };
    let mut worker = Worker::begin().unwrap();
    let path = compile(folder.path(), "moves");
    let image = Image::open(&path).unwrap();
    let taken = taken(&mut worker, &image, "2");
    let refused = |image: &Image| match arrive(&taken, image) {
        Err(NotArrived::OtherProgram { path: named, differs }) => {
            assert_eq!(named, path.canonicalize().unwrap());
            differs
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(&Image::open(&compile(folder.path(), "own")).unwrap()), "length");
    // The same contents in another file, and other contents of the same length.
    let copy = folder.path().join("copy");
    fs::copy(&path, &copy).unwrap();
    let mut arrived = arrive(&taken, &Image::open(&copy).unwrap()).unwrap();
    while one_round(&mut worker, &mut arrived).is_some() {}
    drop(arrived);
    let id = taken.state.image.build_id.clone().unwrap();
    let mut bytes = fs::read(&path).unwrap();
    let at = bytes.windows(id.len()).position(|part| part == id).unwrap();
    bytes[at] ^= 1;
    fs::write(&copy, &bytes).unwrap();
    assert_eq!(refused(&Image::open(&copy).unwrap()), "build id");
    // The same file, changed in place, opened before or after that.
    bytes[at] ^= 1;
    let before = Image::open(&path).unwrap();
    fs::write(&path, &bytes).unwrap();
    assert_eq!(refused(&before), "time of the last change");
    assert_eq!(refused(&Image::open(&path).unwrap()), "time of the last change");
    over(folder)
}

#[test]
fn what_does_not_arrive_whole_is_refused_and_leaves_nothing() {
    let Some(folder) = apart("what_does_not_arrive_whole_is_refused_and_leaves_nothing") else {
        return;
    };
    let mut worker = Worker::begin().unwrap();
    let image = Image::open(&compile(folder.path(), "moves")).unwrap();
    let whole = taken(&mut worker, &image, "2");
    let slot = whole.state.slot as usize;
    let is_incomplete = |taken: &Taken| {
        let found = arrive(taken, &image);
        assert!(matches!(found, Err(NotArrived::Incomplete { .. })), "{found:?}");
        assert_eq!(mapped(slot), Vec::<String>::new());
    };
    let count = whole.pieces.len();
    for left in [0, 1, count / 2, count - 1] {
        let mut less = whole.clone();
        less.pieces.truncate(left);
        is_incomplete(&less);
        let mut less = whole.clone();
        less.pieces.remove(left.min(count - 1));
        is_incomplete(&less);
        let mut bent = whole.clone();
        bent.pieces[left.min(count - 1)].1[100] ^= 4;
        is_incomplete(&bent);
    }
    let mut twice = whole.clone();
    twice.pieces.push(twice.pieces[0].clone());
    is_incomplete(&twice);
    is_incomplete(&Taken { sum: PageSum::default(), ..whole.clone() });
    // A state that is cut off anywhere is none.
    let bytes = encode(&whole.state);
    assert!((0..bytes.len()).all(|length| decode(&bytes[..length]).is_none()));
    // The slot is taken: by another ULP, or by foreign memory.
    let taken = UlpSlot::take_this(slot).unwrap();
    assert!(matches!(arrive(&whole, &image), Err(NotArrived::Slot(_))));
    drop(taken);
    let wrong = Ulp::arrive_at(UlpSlot::take_this(slot + 1).unwrap(), &image, &whole.state);
    assert!(matches!(wrong, Err(NotArrived::Slot(_))), "{wrong:?}");
    let wrong = Ulp::arrive_at(UlpSlot::take_these(slot, 2).unwrap(), &image, &whole.state);
    assert!(matches!(wrong, Err(NotArrived::Slot(_))), "{wrong:?}");
    let stack = whole.state.context.sp / 4096 * 4096;
    // SAFETY: nothing is mapped there, or the kernel refuses.
    let foreign = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        libc::mmap(stack as *mut _, 4096, libc::PROT_READ, flags, -1, 0)
    };
    assert_eq!(foreign as u64, stack);
    let found = arrive(&whole, &image);
    let is_there = |error: &std::io::Error| error.raw_os_error() == Some(libc::EEXIST);
    assert!(
        matches!(&found, Err(NotArrived::Memory { error, .. }) if is_there(error)),
        "{found:?}"
    );
    // It arrives all the same, in parts in any order.
    let mut other = whole;
    other.pieces.reverse();
    let mut arrived = arrive(&other, &image).unwrap();
    while one_round(&mut worker, &mut arrived).is_some() {}
    over(folder)
}

#[test]
fn a_state_that_is_bent_anywhere_is_refused_or_harms_only_itself() {
    let Some(folder) = apart("a_state_that_is_bent_anywhere_is_refused_or_harms_only_itself")
    else {
        return;
    };
    let mut worker = Worker::begin().unwrap();
    let image = Image::open(&compile(folder.path(), "moves")).unwrap();
    let whole = taken(&mut worker, &image, "2");
    let slot = whole.state.slot as usize;
    let held = UlpSlot::take_these(slot, 2).unwrap();
    let mut honest = Ulp::load(&image, &words(&["moves", "3", "10"]), &[]).unwrap();
    drop(held);
    one_round(&mut worker, &mut honest).unwrap();
    // The sum is that of what is sent, as a hostile sender's would be.
    let attempt = |taken: &Taken| {
        let mut new = Ulp::arrive(&image, &taken.state)?;
        taken.pieces.iter().try_for_each(|(at, bytes)| new.fill(*at, bytes))?;
        let sum = new.sum();
        new.finish(sum, ClockOrigin::ThisKernel)
    };
    for (number, (says, bend)) in BENDS.iter().enumerate() {
        let mut bent = whole.clone();
        bend(&mut bent);
        let said = attempt(&bent).expect_err(says).to_string();
        assert!(said.contains(says), "{number}: {says}: {said}");
        assert_eq!(mapped(slot), Vec::<String>::new(), "{number}: {says}");
    }
    // What nothing can tell from a program's own doing ends it, and nothing else.
    let harms: [fn(&mut Taken); 3] = [
        |taken| poke(taken, taken.state.context.sp + 8, 0),
        |taken| poke(taken, taken.state.context.sp + 56, 8),
        |taken| {
            let is_code = |one: &&mut UlpMapping| one.protection & UlpMapping::EXECUTE != 0;
            taken.state.mappings.iter_mut().find(is_code).unwrap().offset = Some(4096);
        },
    ];
    for (number, harm) in harms.iter().enumerate() {
        let mut bent = whole.clone();
        harm(&mut bent);
        let stopped = worker.resume(&mut attempt(&bent).unwrap());
        assert!(matches!(stopped, StopReason::Crashed(_)), "{number}: {stopped:?}");
    }
    // A word by which the program would have one of the host's descriptors is not believed.
    let file = fs::File::open("/dev/null").unwrap();
    let table = attempt(&whole).unwrap().base() - slot as u64 % 55 * 64 - 29 * 64;
    let mut bent = whole.clone();
    poke(&mut bent, table + 57 * 8, (file.as_raw_fd() as u64 + 1) << 33 | 3 << 1 | 1);
    poke(&mut bent, table + 70 * 8, 4 << 32 | 4);
    poke(&mut bent, table + 77 * 8, 5);
    let mut other = attempt(&bent).unwrap();
    assert_eq!(other.pinned(&image).unwrap(), None);
    one_round(&mut worker, &mut other).unwrap();
    drop(other);
    poke(&mut bent, table + 53 * 8, table);
    assert!(attempt(&bent).unwrap_err().to_string().contains("handler is invalid"));
    assert!(file.metadata().is_ok());
    while one_round(&mut worker, &mut honest).is_some() {}
    over(folder)
}
