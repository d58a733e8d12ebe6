//! Objects of a type: made, found, used by several threads, and torn in the middle of an operation.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use upcall_home::{
    AccessError, CreateError, DataError, FindError, Grant, Homed, Link, List, Map, Queue, Text,
    Verdict,
};
use upcall_macros::{Plain, Shared};

fn name(of: &str) -> String {
    format!("{of}-{}", std::process::id())
}

/// What is known of a file.
#[derive(Clone, Copy, Debug, PartialEq, Plain)]
#[shared(crate = "upcall_home")]
struct Known {
    size: u64,
    link: Link,
}

/// The most recently used files: a table, and their order.
#[derive(Shared)]
#[shared(crate = "upcall_home")]
struct Recent {
    known: Map<Text, Known>,
    order: List<Text>,
    asked: u64,
}

impl RecentAt<'_> {
    fn see(self, path: &str, size: u64) -> Result<(), DataError> {
        self.asked().update(|asked| asked + 1)?;
        if let Some(known) = self.known().get(path)? {
            let known = known.update(|known| Known { size, ..known })?;
            return self.order().move_to_front(known.link);
        }
        let link = self.order().push_front(path)?;
        self.known().insert(path, Known { size, link })?;
        if self.order().len()? > 100
            && let Some(last) = self.order().pop_back()?
        {
            self.known().remove(&last)?;
        }
        Ok(())
    }

    /// Returns `true` if the table and the order have the same files.
    fn agree(self) -> Result<bool, DataError> {
        for found in self.order().iter() {
            let (link, path) = found?;
            let known = self.known().get(&path.get()?)?.map(|known| known.get()).transpose()?;
            if known.is_none_or(|known| known.link != link) {
                return Ok(false);
            }
        }
        Ok(self.order().len()? == self.known().len()?)
    }
}

#[test]
fn threads_at_home_and_elsewhere_use_it_at_once() {
    const EACH: u64 = 3000;
    let home = Homed::<Recent>::create(&name("recent")).with(|recent| recent.see("/", 1)).unwrap();
    std::thread::scope(|scope| {
        for number in 0..4_u64 {
            let own = if number == 0 {
                home.try_clone().unwrap()
            } else {
                Homed::<Recent>::find(home.name()).unwrap()
            };
            scope.spawn(move || {
                (0..EACH).for_each(|turn| {
                    own.access(|recent| recent.see(&format!("/{}", turn * number % 300), turn))
                        .unwrap()
                });
            });
        }
    });
    home.check().unwrap();
    assert!(home.access(|recent| recent.agree()).unwrap());
    let (length, asked) =
        home.access(|recent| Ok((recent.order().len()?, recent.asked().get()?))).unwrap();
    assert_eq!((length, asked), (100, 4 * EACH + 1));
    assert!(home.is_home() && home.used().unwrap() > 100 * 64);
}

#[test]
fn one_of_another_type_is_not_found() {
    let home = Homed::<Recent>::create(&name("typed")).with(|_| Ok(())).unwrap();
    let other = Homed::<Queue<u64>>::find(home.name()).unwrap_err();
    assert!(
        matches!(&other, FindError::Refused { why, .. } if why.contains("another type")),
        "{other}"
    );
    let full = Homed::<Recent>::create(&name("small"))
        .room(100)
        .with(|recent| recent.see(&"x".repeat(200), 1))
        .unwrap_err();
    assert!(
        matches!(&full, CreateError::Data(DataError::Full { .. }))
            && full.to_string().contains("make it with more"),
        "{full}"
    );
    // There is no object then.
    assert!(matches!(Homed::<Recent>::find(&name("small")), Err(FindError::Name(_))));
}

#[test]
fn what_an_operation_returns_is_told() {
    let home = Homed::<Queue<u64>>::create(&name("full")).room(4096).with(|_| Ok(())).unwrap();
    let full = (0..).find_map(|number: u64| {
        home.access(|queue| queue.push(number)).err().map(|error| (number, error))
    });
    let (pushed, error) = full.unwrap();
    assert!(matches!(error, AccessError::Data(DataError::Full { .. })), "{error}");
    assert!((128..512).contains(&pushed), "{pushed}");
    for number in 0..pushed {
        assert_eq!(home.access(|queue| queue.pop()), Ok(Some(number)));
    }
    assert_eq!(home.access(|queue| queue.pop()), Ok(None));
    home.check().unwrap();
}

/// Half of an operation is done: its types are mended, and the home restores what they mean.
#[test]
fn an_operation_that_panics_is_mended() {
    static MENDED: AtomicU64 = AtomicU64::new(0);
    let making = Homed::<Recent>::create(&name("mended")).repair(|recent, _torn| {
        let order = recent
            .order()
            .iter()
            .map(|found| found.and_then(|(link, path)| Ok((link, path.get()?))));
        let Ok(order) = order.collect::<Result<Vec<_>, _>>() else { return Verdict::Poison };
        let again = order.into_iter().try_for_each(|(link, path)| {
            recent.known().entry(&path)?.update(|known| Known { link, ..known }).map(drop)
        });
        MENDED.fetch_add(1, Relaxed);
        if again.is_ok() && recent.agree() == Ok(true) { Verdict::Keep } else { Verdict::Poison }
    });
    let home =
        making.with(|recent| (0..50).try_for_each(|at| recent.see(&format!("/{at}"), at))).unwrap();
    let away = Homed::<Recent>::find(home.name()).unwrap();
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        away.access(|recent| -> Result<(), DataError> {
            recent.order().push_front("/half")?;
            panic!("in between");
        })
    }));
    assert!(panicked.is_err());
    let begun = Instant::now();
    while MENDED.load(Relaxed) == 0 {
        assert!(begun.elapsed() < Duration::from_secs(60));
        std::thread::yield_now();
    }
    assert_eq!(
        away.access(|recent| Ok((recent.known().contains("/half")?, recent.agree()?))),
        Ok((true, true))
    );
    home.check().unwrap();
    // Without such a function the object is poisoned.
    let home = Homed::<Recent>::create(&name("poisoned")).with(|_| Ok(())).unwrap();
    assert!(
        catch_unwind(AssertUnwindSafe(
            || home.access(|_| -> Result<(), _> { panic!("in between") })
        ))
        .is_err()
    );
    assert_eq!(home.access(|recent| recent.asked().get()), Err(AccessError::Poisoned));
}

/// Readers write nothing, so they do not keep each other waiting; and each read is of one state.
#[test]
fn looks_are_of_one_state() {
    let home = Homed::<Recent>::create(&name("looks"))
        .room(4 << 20)
        .with(|recent| recent.see("/", 1))
        .unwrap();
    let done = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for number in 1..=2_u64 {
            let (own, done) = (Homed::<Recent>::find(home.name()).unwrap(), &done);
            scope.spawn(move || {
                (0..6000).for_each(|turn| {
                    own.access(|recent| recent.see(&format!("/{}", turn * number % 300), turn))
                        .unwrap()
                });
                done.fetch_add(1, Relaxed);
            });
        }
        for _ in 0..2 {
            let (own, done) = (Homed::<Recent>::find(home.name()).unwrap(), &done);
            scope.spawn(move || {
                let (mut looks, mut asked) = (0, 0);
                while done.load(Relaxed) < 2 {
                    let (agree, now) =
                        own.read(|recent| Ok((recent.agree()?, recent.asked().get()?))).unwrap();
                    assert!(agree && now >= asked, "look {looks}: {agree}, {asked} and then {now}");
                    (looks, asked) = (looks + 1, now);
                }
                println!("{looks} looks");
                assert!(looks > 10);
                // Within a read the same handle can do nothing else, and can write nothing.
                assert_eq!(
                    own.read(|recent| recent.asked().set(0)),
                    Err(AccessError::Data(DataError::ReadOnly))
                );
                assert_eq!(
                    own.read(|_| Ok(own.access(|_| Ok(())).unwrap_err())),
                    Ok(AccessError::Nested)
                );
            });
        }
    });
    home.check().unwrap();
    assert_eq!(home.read(|recent| recent.asked().get()), Ok(12_001));
}

#[test]
fn who_is_granted_reading_only_reads() {
    let sealed = |sealed: bool| {
        let making = Homed::<Queue<u64>>::create(&name(if sealed { "sealed" } else { "granted" }))
            .policy(|_| Ok(Grant::Read));
        let making = if sealed { making.only_home_writes() } else { making };
        making.with(|queue| queue.push(1)).unwrap()
    };
    for home in [sealed(false), sealed(true)] {
        let away = Homed::<Queue<u64>>::find(home.name()).unwrap();
        assert_eq!((home.grant(), away.grant()), (Grant::ReadWrite, Grant::Read));
        home.access(|queue| queue.push(2)).unwrap();
        assert_eq!(away.read(|queue| queue.at(1)?.map(|at| at.get()).transpose()), Ok(Some(2)));
        let refused = away.access(|queue| queue.pop()).unwrap_err();
        assert!(
            matches!(refused, AccessError::NotGranted) && refused.to_string().contains("`read`"),
            "{refused}"
        );
        assert_eq!(away.mend(), Err(AccessError::NotGranted));
        away.check().unwrap();
        assert!(away.used().unwrap() > 0);
        let again = away.try_clone().unwrap();
        assert_eq!(again.read(|queue| queue.len()), Ok(2));
        // There may be any number of readers.
        let many =
            (0..300).map(|_| Homed::<Queue<u64>>::find(home.name()).unwrap()).collect::<Vec<_>>();
        assert!(many.iter().all(|one| one.read(|queue| queue.len()) == Ok(2)));
        drop(many);
        assert_eq!(home.access(|queue| queue.pop()), Ok(Some(1)));
        drop(home);
        let begun = Instant::now();
        while again.read(|queue| queue.len()) != Err(AccessError::Ended) {
            assert!(begun.elapsed() < Duration::from_secs(60));
        }
    }
}

#[test]
fn what_is_done_to_a_copy_is_done_as_a_whole_or_not_at_all() {
    let home =
        Homed::<Map<Text, u64>>::create(&name("bulk")).room(1 << 20).with(|_| Ok(())).unwrap();
    let away = Homed::<Map<Text, u64>>::find(home.name()).unwrap();
    let length = |on: &Homed<Map<Text, u64>>| on.access(|map| map.len()).unwrap();
    for turn in 0..3_u64 {
        away.bulk(|map| {
            (0..1000).try_for_each(|key| map.insert(&key.to_string(), key + turn).map(drop))
        })
        .unwrap();
        let value = |on: &Homed<Map<Text, u64>>, key: &str| {
            on.access(|map| map.get(key)?.map(|at| at.get()).transpose()).unwrap()
        };
        assert_eq!(value(&home, "999"), Some(999 + turn));
        // An error, and a panic.
        let full = away.bulk(|map| {
            (0..1_000_000).try_for_each(|key| map.insert(&format!("more {key}"), key).map(drop))
        });
        assert!(matches!(full, Err(AccessError::Data(DataError::Full { .. }))), "{full:?}");
        let panics = AssertUnwindSafe(|| {
            away.bulk::<()>(|map| {
                map.remove("999")?;
                panic!("as it was asked for")
            })
        });
        assert!(catch_unwind(panics).is_err());
        assert_eq!(length(&home), 1000);
        home.check().unwrap();
        // Less is in use than before.
        home.bulk(|map| (500..1000).try_for_each(|key| map.remove(&key.to_string()).map(drop)))
            .unwrap();
        assert_eq!((length(&away), value(&away, "500")), (500, None));
        home.check().unwrap();
        away.access(|map| map.insert("after", 1).map(drop)).unwrap();
        away.access(|map| map.remove("after").map(drop)).unwrap();
    }
    assert!(matches!(
        away.bulk(|_| away.access(|_| Ok(())).map_err(|_| DataError::ReadOnly)),
        Err(AccessError::Data(_))
    ));
}
