use super::*;
use crate::error::AccessError;
use crate::handle::Handle;
use crate::homed::Homed;
use crate::types::{List, Map, Queue, Shared, Text};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::time::Instant;
use upcall_shm::hybrid::PLACES;

/// Guards against hanging.
const GUARD: Duration = Duration::from_secs(60);

/// Far behind all that the types of an object use at first.
const FAR: u64 = 1 << 30;

fn name(of: &str) -> String {
    format!("{of}-{}", std::process::id())
}

fn eventually(what: &str, so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !so() {
        assert!(begun.elapsed() < GUARD, "{what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Ends an operation in the middle.
fn tear(handle: &Handle, operation: impl FnOnce(WritableSpan<'_>)) {
    let torn = catch_unwind(AssertUnwindSafe(|| {
        handle.access(|room| {
            operation(room);
            std::panic::resume_unwind(Box::new("in the middle"));
        })
    }));
    assert!(torn.is_err());
}

/// Writes these words into an object of 16 GiB as a guest that ends in the middle of an operation.
/// Returns the home's verdict, and the number of bytes that the home's check allocated in the
/// object.
fn left_behind<T: Shared>(words: &[(u64, u64)]) -> (Result<(), AccessError>, u64) {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let name = name(&format!("left-{}", NEXT.fetch_add(1, Ordering::Relaxed)));
    let making = Homed::<T>::create(&name).room(16 << 30).repair(|_, _| Verdict::Keep);
    let home = making.with(|_| Ok(())).unwrap().patience(Some(GUARD));
    let guest = Homed::<T>::find(&name).unwrap();
    let object = home.handle().object().unwrap();
    let before = AtomicUsize::new(0);
    tear(guest.handle(), |room| {
        words.iter().for_each(|&(at, word)| room.put_u64(at as usize, word).unwrap());
        before.store(object.body.allocated() as usize, Ordering::Relaxed);
    });
    let found = home.access(|_| Ok(()));
    (found, object.body.allocated() - before.load(Ordering::Relaxed) as u64)
}

/// Some pages for the arena's words and the ends of what is free.
const SOME: u64 = 16 * 4096;

#[test]
fn a_list_that_leads_back_into_itself_ends_where_it_does() {
    // The root is 64 bytes with the list; its element is far behind, and is its own successor.
    let words =
        [(0, FAR), (8, FAR), (16, 1), (FAR - 8, 32), (FAR, FAR), (FAR + 8, 0), (FAR + 16, 7)];
    let (found, touched) = left_behind::<List<u64>>(&words);
    assert_eq!(found, Err(AccessError::Poisoned));
    assert!(touched <= SOME, "{touched} bytes");
    // Without the loop the same list is whole.
    let (found, touched) =
        left_behind::<List<u64>>(&words.map(|(at, word)| (at, if at == FAR { 0 } else { word })));
    assert_eq!(found, Ok(()));
    assert!(touched <= SOME, "{touched} bytes");
}

#[test]
fn what_was_never_touched_is_not_touched_by_the_check() {
    // A table of 2^26 buckets, none of which exists.
    let map = [(0, FAR), (FAR - 8, 64), (FAR, 26)];
    let (found, touched) = left_behind::<Map<u64, u64>>(&map);
    assert_eq!(found, Ok(()));
    assert!(touched <= SOME, "{touched} bytes");
    // An honest party writes all of an entry, a key and a text. An entry that does not exist
    // is corrupt.
    let bucket = (FAR + 8).next_multiple_of(64);
    let entries = (1..8).map(|slot| (bucket + slot * 8, FAR * 4 + slot * 4096)).collect::<Vec<_>>();
    let (found, touched) = left_behind::<Map<u64, u64>>(&[&map[..], &entries].concat());
    assert_eq!(found, Err(AccessError::Poisoned));
    assert!(touched <= SOME, "{touched} bytes");
    let (found, touched) = left_behind::<Text>(&[(0, FAR), (FAR - 8, 64), (FAR, 8 << 30)]);
    assert_eq!(found, Err(AccessError::Poisoned));
    assert!(touched <= SOME, "{touched} bytes");
    // A queue with 2^28 elements.
    let queue = [(0, FAR), (FAR - 8, 64), (FAR, 1 << 28), (FAR + 8, 0), (FAR + 16, 1 << 28)];
    let (found, touched) = left_behind::<Queue<u64>>(&queue);
    assert_eq!(found, Err(AccessError::Poisoned));
    assert!(touched <= SOME, "{touched} bytes");
    let (found, touched) =
        left_behind::<Queue<()>>(&[(0, FAR), (FAR - 8, 64), (FAR, 1 << 60), (FAR + 16, 1 << 60)]);
    assert_eq!(found, Ok(()));
    assert!(touched <= SOME, "{touched} bytes");
}

/// Every place is taken by a process that died while the lock was held, so no place is free
/// yet.
#[test]
fn the_processes_of_one_user_leave_half_of_the_places() {
    let stranger = upcall_os::socket::own_user() + 1;
    let mut inner = Register { places: [1, 0, 0, 0], ..Register::default() };
    let all = usize::from(PLACES) - 1;
    let mut taken = 0;
    for user in [stranger, stranger + 1] {
        let left = all - taken;
        let why = loop {
            match inner.take_place_for(user) {
                Ok(place) => inner.dead.push(Dead { place, pid: 1, user, waited: false }),
                Err(why) => break why,
            }
        };
        let theirs = inner.dead.iter().filter(|dead| dead.user == user).count();
        assert_eq!(theirs, left / 2, "{why}");
        assert!(why.contains(&format!("user {user}")) && why.contains("left for others"), "{why}");
        taken += theirs;
    }
    // The home's own user may take the rest.
    for _ in taken..all {
        inner.take_place_for(stranger - 1).unwrap();
    }
    assert!(inner.take_place_for(stranger - 1).is_err());
}

/// The clerk admits guests and reports deaths during the repair.
#[test]
fn a_repair_that_takes_long_holds_up_nobody_who_has_another_object() {
    let (begun, begins) = mpsc::channel();
    let (goes_on, may_go_on) = mpsc::channel::<()>();
    let repair = move |_: WritableSpan<'_>, torn| {
        begun.send((torn, std::thread::current().name().map(String::from))).unwrap();
        may_go_on.recv_timeout(GUARD).unwrap();
        Verdict::Keep
    };
    let home = HomeBuilder::new(&name("long"), 64)
        .repair(repair)
        .create(7, |_| ())
        .unwrap()
        .patience(Some(GUARD));
    let other = HomeBuilder::new(&name("beside"), 64).create(7, |_| ()).unwrap();
    let (guest, lasting) =
        (Handle::find(&name("long"), 7).unwrap(), Handle::find(&name("long"), 7).unwrap());
    tear(&guest, |room| room.put_u64(0, 1).unwrap());
    assert_eq!(begins.recv_timeout(GUARD), Ok((Torn::Panicked, Some("upcall-heir".into()))));
    // A guest leaves, and another one arrives.
    drop(lasting);
    let away = Handle::find(&name("beside"), 7).unwrap();
    assert_eq!(away.access(|room| room.u64(0)), Ok(Some(0)));
    drop(other);
    eventually("its end is known", || away.access(|_| ()) == Err(AccessError::Ended));
    goes_on.send(()).unwrap();
    assert_eq!(home.access(|room| room.u64(0)), Ok(Some(1)));
    eventually("the place is given back", || home.object().unwrap().inner().dead.is_empty());
}

/// The heir pauses for an hour here while a live party holds the lock. Only the holder's
/// death ends the pause.
#[test]
fn the_death_of_a_holder_is_acted_on_when_it_is_known() {
    let repair = |_: WritableSpan<'_>, torn| {
        assert!(matches!(torn, Torn::Died { .. }), "{torn:?}");
        Verdict::Keep
    };
    let home = HomeBuilder::new(&name("holder"), 64)
        .repair(repair)
        .create(7, |_| ())
        .unwrap()
        .patience(Some(GUARD));
    let [holder, other] = [(); 2].map(|()| Handle::find(&name("holder"), 7).unwrap());
    let object = home.object().unwrap();
    object.stir.is_endless.store(true, Ordering::Relaxed);
    assert!(holder.enters());
    // Its place cannot be freed while the lock is held.
    drop(other);
    eventually("the heir pauses", || object.stir.waits.load(Ordering::Relaxed) > 0);
    holder.dies();
    assert_eq!(home.access(|room| room.u64(0)), Ok(Some(0)));
    eventually("the places are given back", || object.inner().dead.is_empty());
}
