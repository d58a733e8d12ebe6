//! Objects within one process: a thread that finds an object by name reaches it as another process
//! does.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};
use upcall_home::{
    AccessError, CreateError, FindError, Grant, Handle, HomeBuilder, Homed, NotAnObject, Torn,
    Verdict,
};
use upcall_shm::span::WritableSpan;

const SHAPE: u64 = 0x5ead;

fn name(of: &str) -> String {
    format!("{of}-{}", std::process::id())
}

/// Increments two words that must be equal.
fn count(room: WritableSpan<'_>) -> u64 {
    let next = room.u64(0).unwrap() + 1;
    room.put_u64(0, next).unwrap();
    assert_eq!(room.u64(64).unwrap() + 1, next, "another operation at once");
    room.put_u64(64, next).unwrap();
    next
}

fn create(of: &str) -> Handle {
    HomeBuilder::new(&name(of), 4096).create(SHAPE, |room| room.put_u64(0, 0).unwrap()).unwrap()
}

fn find(of: &str) -> Handle {
    Handle::find(&name(of), SHAPE).unwrap()
}

#[test]
fn operations_run_one_at_a_time_at_home_and_elsewhere() {
    const THREADS: u64 = 6;
    const EACH: u64 = 20_000;
    let home = create("turns");
    std::thread::scope(|scope| {
        for number in 0..THREADS {
            let own = if number % 3 == 0 { home.try_clone().unwrap() } else { find("turns") };
            scope.spawn(move || (0..EACH).for_each(|_| _ = own.access(count).unwrap()));
        }
    });
    assert_eq!(home.access(|room| room.u64(64)), Ok(Some(THREADS * EACH)));
}

#[test]
fn what_is_found_is_what_was_made() {
    let home = HomeBuilder::new(&name("made"), 1 << 30)
        .create(SHAPE, |room| room.put_u64(800, 7).unwrap())
        .unwrap();
    assert!(home.is_home() && home.length() == 1 << 30 && home.name() == name("made"));
    let away = find("made");
    assert!(!away.is_home() && away.length() == 1 << 30);
    assert_eq!(away.access(|room| room.u64(800)), Ok(Some(7)));
    let clone = away.try_clone().unwrap();
    assert_eq!(clone.access(|room| room.put_u64(800, 8)), Ok(Some(())));
    assert_eq!(home.access(|room| room.u64(800)), Ok(Some(8)));

    let taken = HomeBuilder::new(&name("made"), 8).create(SHAPE, |_| ()).unwrap_err();
    assert!(
        matches!(&taken, CreateError::Name(_)) && taken.to_string().contains("choose another name"),
        "{taken}"
    );
    let other = Handle::find(&name("made"), 1).unwrap_err();
    assert!(
        matches!(&other, FindError::Refused { why, .. } if why.contains("another type")),
        "{other}"
    );
    assert!(matches!(Handle::find(&name("nobody"), SHAPE), Err(FindError::Name(_))));
    let empty = HomeBuilder::new(&name("empty"), 0).create(SHAPE, |_| ()).unwrap_err();
    assert!(empty.to_string().contains("1 to"), "{empty}");
    assert!(HomeBuilder::new("a/b", 8).create(SHAPE, |_| ()).is_err());
}

/// Longest wait for a home that is about to start, in seconds.
const GUARD: Duration = Duration::from_secs(60);

#[test]
fn a_guest_waits_for_its_home() {
    let late = name("late");
    let home = std::thread::scope(|scope| {
        let found = scope.spawn(|| Homed::<u64>::find_wait(&late, GUARD).unwrap());
        let asked = scope.spawn(|| {
            let finder = Homed::<u64>::expect(|_| Ok(()));
            finder.find_wait(&late, GUARD).unwrap()
        });
        let home = Homed::<u64>::create(&late).with(|all| all.set(7)).unwrap();
        for found in [found, asked] {
            assert_eq!(found.join().unwrap().access(|all| all.get()), Ok(7));
        }
        home
    });
    // A home that is there and refuses is not waited for.
    let other = Homed::<u32>::find_wait(&late, Duration::MAX).unwrap_err();
    assert!(matches!(other, FindError::Refused { .. }), "{other}");
    drop(home);
    let absent = Homed::<u64>::find_wait(&late, Duration::ZERO).unwrap_err();
    let text = absent.to_string();
    let begins = format!("no home has made {late:?} in ");
    // Another test may have an object with a similar name just now.
    let is_told = text.contains("upcall stat --objects") || text.contains(". Did you mean ");
    assert!(text.starts_with(&begins) && is_told, "{text}");
}

#[test]
fn a_misspelt_object_is_answered_with_the_similar_one() {
    let made = format!("{}-counter", std::process::id());
    let typed = made.replace("counter", "conuter");
    let _home = Homed::<u64>::create(&made).with(|_| Ok(())).unwrap();
    let finder = Homed::<u64>::expect(|_| Ok(()));
    for error in [
        Homed::<u64>::find(&typed).err(),
        Homed::<u64>::find_wait(&typed, Duration::ZERO).err(),
        finder.find(&typed).err(),
        finder.find_wait(&typed, Duration::ZERO).err(),
        Handle::find(&typed, SHAPE).err(),
    ] {
        let text = error.map(|error| error.to_string()).unwrap_or_default();
        assert!(text.ends_with(&format!(". Did you mean {made:?}?")), "{text}");
    }
}

#[test]
fn when_its_home_lets_go_of_it_others_are_told() {
    let home = create("gone");
    let away = find("gone");
    away.access(count).unwrap();
    drop(home);
    let begun = Instant::now();
    while away.access(count) != Err(AccessError::Ended) {
        assert!(begun.elapsed() < Duration::from_secs(60));
    }
    assert!(matches!(Handle::find(&name("gone"), SHAPE), Err(FindError::Name(_))));
    // The name is free again.
    drop(create("gone"));
}

#[test]
fn a_handle_has_one_operation_at_a_time() {
    let home = create("nested");
    assert_eq!(home.access(|_| home.access(count)), Ok(Err(AccessError::Nested)));
    assert_eq!(home.access(count), Ok(1));
}

#[test]
fn who_waits_for_long_is_told_for_whom() {
    let home = create("patient");
    let away = find("patient").patience(Some(Duration::from_millis(30)));
    let clone = home.try_clone().unwrap().patience(Some(Duration::from_millis(30)));
    let holder = Some(std::process::id());
    home.access(|_| {
        for waits in [&away, &clone] {
            let error = waits.access(count).unwrap_err();
            assert_eq!(error, AccessError::Busy { waited: Duration::from_millis(30), holder });
            assert!(error.to_string().contains("may be stopped"));
        }
    })
    .unwrap();
    assert_eq!((away.access(count), clone.access(count)), (Ok(1), Ok(2)));
}

/// Processor time that a thread of this process has used, in nanoseconds.
fn processor_time(thread: rustix::process::Pid) -> u64 {
    let path = format!("/proc/self/task/{}/schedstat", thread.as_raw_nonzero());
    std::fs::read_to_string(path).unwrap().split_whitespace().next().unwrap().parse().unwrap()
}

/// The holder releases the lock once both waiters have taken little processor time for 400 ms,
/// which never happens if they spin.
#[test]
fn who_waits_takes_no_processor() {
    const MOST: u64 = 60_000_000;
    let home = create("sleepers");
    let barrier = Barrier::new(3);
    let (send, threads) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        for own in [find("sleepers"), home.try_clone().unwrap()] {
            let (barrier, send) = (&barrier, send.clone());
            scope.spawn(move || {
                send.send(rustix::thread::gettid()).unwrap();
                barrier.wait();
                own.access(count).unwrap();
            });
        }
        let waiters = [threads.recv().unwrap(), threads.recv().unwrap()];
        let most = home.access(|_| {
            barrier.wait();
            let start = Instant::now();
            loop {
                let before = waiters.map(processor_time);
                std::thread::sleep(Duration::from_millis(400));
                let most = waiters
                    .iter()
                    .zip(before)
                    .map(|(&waiter, before)| processor_time(waiter) - before)
                    .max();
                if most < Some(MOST) || start.elapsed() > Duration::from_secs(60) {
                    return most;
                }
            }
        });
        let most = most.unwrap();
        assert!(most < Some(MOST), "{most:?} ns of 400 ms");
    });
}

#[test]
fn an_operation_that_panics_leaves_the_object_to_its_home() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let home = {
        let seen = seen.clone();
        let repair = move |room: WritableSpan<'_>, torn| {
            seen.lock().unwrap().push((torn, room.u64(0), room.u64(64)));
            let verdict = if room.u64(0) < Some(100) { Verdict::Keep } else { Verdict::Poison };
            room.put_u64(64, room.u64(0).unwrap()).unwrap();
            verdict
        };
        HomeBuilder::new(&name("torn"), 4096).repair(repair).create(SHAPE, |_| ()).unwrap()
    };
    let away = find("torn");
    let tear = |handle: &Handle, to: u64| {
        let torn = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            handle.access(|room| {
                room.put_u64(0, to).unwrap();
                panic!("in the middle");
            })
        }));
        assert!(torn.is_err());
    };
    tear(&away, 5);
    assert_eq!((home.access(count), away.access(count)), (Ok(6), Ok(7)));
    tear(&home, 20);
    assert_eq!((away.access(count), home.access(count)), (Ok(21), Ok(22)));
    tear(&away, 200);
    assert_eq!(
        (home.access(count), away.access(count)),
        (Err(AccessError::Poisoned), Err(AccessError::Poisoned))
    );
    assert!(matches!(
        Handle::find(&name("torn"), SHAPE),
        Err(FindError::Refused { why, .. }) if why.contains("created again")
    ));
    let seen = seen.lock().unwrap();
    assert_eq!(
        *seen,
        [
            (Torn::Panicked, Some(5), Some(0)),
            (Torn::Panicked, Some(20), Some(7)),
            (Torn::Panicked, Some(200), Some(22))
        ]
    );
}

#[test]
fn a_policy_decides_who_uses_it() {
    let asked = Arc::new(AtomicU32::new(0));
    let own = asked.clone();
    let policy = move |peer: &upcall_os::socket::Peer| {
        assert_eq!(peer.pid, std::process::id());
        if own.fetch_add(1, Relaxed) == 0 { Err("come again".into()) } else { Ok(Grant::ReadWrite) }
    };
    let _home = HomeBuilder::new(&name("policy"), 8).policy(policy).create(SHAPE, |_| ()).unwrap();
    assert!(matches!(
        Handle::find(&name("policy"), SHAPE),
        Err(FindError::Refused { why, .. }) if why == "come again"
    ));
    drop(find("policy"));
    assert_eq!(asked.load(Relaxed), 2);
}

#[test]
fn places_are_given_back() {
    let home = create("places");
    for _ in 0..3 {
        let all: Vec<Handle> = (0..254).map(|_| find("places")).collect();
        let none = Handle::find(&name("places"), SHAPE).unwrap_err();
        assert!(none.to_string().contains("are taken") && home.try_clone().is_err(), "{none}");
        drop(all);
        let begun = Instant::now();
        while home.try_clone().is_err() || Handle::find(&name("places"), SHAPE).is_err() {
            assert!(begun.elapsed() < Duration::from_secs(60));
        }
        // All places are given back.
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn memory_that_is_no_object_is_told() {
    let wrong = NotAnObject::Shape { found: 1, expected: 2 };
    assert!(wrong.to_string().contains("same definition"));
}
