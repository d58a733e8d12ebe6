//! Models of the hybrid lock, checked by loom: `make models`.
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering::SeqCst};
use loom::thread;
use upcall_shm::hybrid::{Inherited, Lock, Party, Stand};

const PARTIES: usize = 3;

/// loom's `Arc` cannot hold a slice; this stands in for three stands.
#[derive(Clone)]
struct Stands(Arc<[Stand; PARTIES]>);

impl std::ops::Deref for Stands {
    type Target = [Stand];
    fn deref(&self) -> &[Stand] {
        &self.0[..]
    }
}

type Ours = Party<Arc<Lock>, Stands>;

/// The data that the lock protects. Two accesses at once are an error to loom.
struct Data(UnsafeCell<u32>);

// SAFETY: only the holder of the lock accesses it, and loom reports any other access.
unsafe impl Sync for Data {}
// SAFETY: as above.
unsafe impl Send for Data {}

impl Data {
    fn count(&self) {
        // SAFETY: loom checks that no other thread has a pointer to it now.
        self.0.with_mut(|data| unsafe { *data += 1 });
    }

    fn get(&self) -> u32 {
        // SAFETY: as above.
        self.0.with(|data| unsafe { *data })
    }
}

fn parties() -> ([Ours; PARTIES], Arc<Data>) {
    let lock = Arc::new(Lock::default());
    let stands = Stands(Arc::new(std::array::from_fn(|_| Stand::default())));
    let party = |place| Party::new(lock.clone(), stands.clone(), place as u16).unwrap();
    (std::array::from_fn(party), Arc::new(Data(UnsafeCell::new(0))))
}

/// Locks as a party elsewhere does.
fn lock(party: &Ours) {
    if party.try_lock() {
        return;
    }
    party.wait();
    until_had(party);
}

fn until_had(party: &Ours) {
    while !party.is_granted() && !party.look() {
        thread::yield_now();
    }
}

/// Locks as a party at the home does.
fn lock_at_home(party: &Ours) {
    if party.try_lock_at_home() {
        return;
    }
    party.wait_at_home();
    until_had(party);
    party.need_no_more();
}

fn once(party: Ours, data: &Data, lock: impl Fn(&Ours)) {
    lock(&party);
    data.count();
    party.unlock();
}

/// The holder unlocks while another party waits and the home announces its need: each has the lock
/// once, by hand-over or by taking it.
#[test]
fn another_one_and_the_home_have_their_turns() {
    loom::model(|| {
        let ([home, holder, other], data) = parties();
        assert!(holder.try_lock());
        let theirs = data.clone();
        let other = thread::spawn(move || once(other, &theirs, lock));
        let needs = thread::spawn(move || {
            home.need();
            home
        });
        data.count();
        holder.unlock();
        let home = needs.join().unwrap();
        while !home.try_lock_at_home() {
            thread::yield_now();
        }
        data.count();
        home.need_no_more();
        home.unlock();
        other.join().unwrap();
        assert_eq!(data.get(), 3);
    });
}

#[test]
fn the_home_and_another_one_take_turns() {
    loom::model(|| {
        let ([home, other, _], data) = parties();
        let theirs = data.clone();
        let other = thread::spawn(move || once(other, &theirs, lock));
        once(home, &data, lock_at_home);
        other.join().unwrap();
        assert_eq!(data.get(), 2);
    });
}

/// A party that comes after the home has declared its need gets the lock after the home.
#[test]
fn others_stand_back_for_the_home() {
    loom::model(|| {
        let ([home, holder, other], data) = parties();
        assert!(holder.try_lock());
        home.wait_at_home();
        let comes = {
            let data = data.clone();
            thread::spawn(move || {
                lock(&other);
                data.count();
                assert_eq!(data.get(), 3, "the home had it before");
                other.unlock();
            })
        };
        data.count();
        holder.unlock();
        until_had(&home);
        data.count();
        home.need_no_more();
        home.unlock();
        comes.join().unwrap();
    });
}

/// Two threads of the home, of which the first wants the lock twice.
#[test]
fn two_of_the_home_have_their_turns() {
    loom::model(|| {
        let ([one, other, _], data) = parties();
        let theirs = data.clone();
        let other = thread::spawn(move || once(other, &theirs, lock_at_home));
        for _ in 0..2 {
            lock_at_home(&one);
            data.count();
            one.unlock();
        }
        other.join().unwrap();
        assert_eq!(data.get(), 3);
        assert!(one.holder().is_none() && !one.is_needed());
    });
}

/// The home hands over to a party of its own that gives up: exactly one of the two has the lock.
#[test]
fn one_of_the_home_that_gives_up_is_not_handed_anything() {
    loom::model(|| {
        let ([holder, hasty, _], data) = parties();
        lock_at_home(&holder);
        let other = {
            let data = data.clone();
            thread::spawn(move || {
                hasty.wait_at_home();
                if !hasty.give_up() {
                    until_had(&hasty);
                    data.count();
                    hasty.unlock();
                }
                hasty.need_no_more();
                hasty
            })
        };
        data.count();
        holder.unlock();
        let hasty = other.join().unwrap();
        assert!(hasty.holder().is_none() && !hasty.is_needed(), "the lock is free");
        once(holder, &data, lock_at_home);
    });
}

#[test]
fn who_comes_again_finds_the_other_one_in_between() {
    loom::model(|| {
        let ([_, first, second], data) = parties();
        let other = {
            let data = data.clone();
            thread::spawn(move || {
                for _ in 0..2 {
                    lock(&second);
                    data.count();
                    second.unlock();
                }
            })
        };
        once(first, &data, lock);
        other.join().unwrap();
        assert_eq!(data.get(), 3);
    });
}

/// The holder hands over to a party that gives up: exactly one of the two has the lock.
#[test]
fn who_gives_up_is_not_handed_anything() {
    loom::model(|| {
        let ([holder, hasty, _], data) = parties();
        lock(&holder);
        let other = {
            let data = data.clone();
            thread::spawn(move || {
                hasty.wait();
                if !hasty.give_up() {
                    until_had(&hasty);
                    data.count();
                    hasty.unlock();
                }
                hasty
            })
        };
        data.count();
        holder.unlock();
        let hasty = other.join().unwrap();
        assert!(hasty.holder().is_none(), "the lock is free");
        once(holder, &data, lock);
    });
}

/// A party dies while it waits, at any moment of the hand-over. The home takes its place away, and
/// the lock remains usable.
#[test]
fn one_that_dies_waiting_is_passed_over() {
    loom::model(|| {
        let ([home, holder, victim], data) = parties();
        lock(&holder);
        let (dead, other) = (Arc::new(AtomicBool::new(false)), {
            let data = data.clone();
            thread::spawn(move || {
                data.count();
                holder.unlock();
            })
        });
        let waits = {
            let dead = dead.clone();
            thread::spawn(move || {
                victim.wait();
                dead.store(true, SeqCst);
            })
        };
        while !dead.load(SeqCst) {
            thread::yield_now();
        }
        let waited = home.bury(2);
        assert!(waited);
        let inherited = loop {
            match home.inherit(2, waited) {
                Some(inherited) => break inherited,
                None => thread::yield_now(),
            }
        };
        assert!(inherited == Inherited::Nothing || inherited == Inherited::Whole);
        data.count();
        home.unlock();
        other.join().unwrap();
        waits.join().unwrap();
        assert!(home.holder().is_none() && data.get() == 2);
    });
}

/// A holder dies while another party waits: the home finds the data torn, and the other party has
/// its turn.
#[test]
fn one_that_dies_inside_leaves_the_lock_to_its_home() {
    loom::model(|| {
        let ([home, victim, other], data) = parties();
        lock(&victim);
        let waits = {
            let data = data.clone();
            thread::spawn(move || once(other, &data, lock))
        };
        let waited = home.bury(1);
        home.need();
        let inherited = loop {
            match home.inherit(1, waited) {
                Some(inherited) => break inherited,
                None => thread::yield_now(),
            }
        };
        assert_eq!((waited, inherited), (false, Inherited::Torn));
        home.need_no_more();
        data.count();
        home.unlock();
        waits.join().unwrap();
        assert_eq!(data.get(), 2);
    });
}
