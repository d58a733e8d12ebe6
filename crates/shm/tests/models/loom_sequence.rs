//! A model of a reader during a writer's change, checked by loom: `make models`.
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering::Relaxed};
use loom::thread;
use upcall_shm::hybrid::{Lock, Party, Stand};
use upcall_shm::sequence::{Sequence, held, look};

/// Two words that must be equal.
#[derive(Default)]
struct Data {
    sequence: Sequence,
    words: [AtomicU64; 2],
}

impl Data {
    fn change(&self) {
        let changing = self.sequence.begin();
        for word in &self.words {
            word.store(word.load(Relaxed) + 1, Relaxed);
        }
        self.sequence.end(changing);
    }

    /// One read, of the words in this order.
    fn look(&self, order: [usize; 2]) -> Option<u64> {
        let began = look(self.sequence.word())?;
        let mut found = [0; 2];
        for at in order {
            found[at] = self.words[at].load(Relaxed);
        }
        held(began, || self.sequence.word()).then(|| {
            assert_eq!(found[0], found[1]);
            assert_eq!(found[0], began / 2);
            found[0]
        })
    }
}

#[test]
fn who_looks_sees_all_of_a_change_or_nothing() {
    for order in [[0, 1], [1, 0]] {
        loom::model(move || {
            let data = Arc::new(Data::default());
            let other = data.clone();
            let changer = thread::spawn(move || {
                other.change();
                other.change();
            });
            let first = data.look(order);
            let then = data.look(order);
            if let (Some(first), Some(then)) = (first, then) {
                assert!(first <= then);
            }
            changer.join().unwrap();
            assert_eq!(data.look(order), Some(2));
        });
    }
}

/// The same where the changes come first, and each read chooses between all that it may still find.
/// When loom looks for another order of steps it follows only the last access to a word. In the
/// model above that is the writer's own read of the number, which hides the reader's access before
/// it.
#[test]
fn who_looks_after_the_changes_finds_no_part_of_one() {
    for order in [[0, 1], [1, 0]] {
        loom::model(move || {
            let data = Arc::new(Data::default());
            let other = data.clone();
            let looker = thread::spawn(move || other.look(order));
            data.change();
            data.change();
            looker.join().unwrap();
        });
    }
}

/// The next writer repairs the change: a half-done change is never seen.
#[test]
fn who_ends_in_the_midst_is_followed_by_another() {
    loom::model(|| {
        let data = Arc::new(Data::default());
        let other = data.clone();
        let changers = thread::spawn(move || {
            let _ended = other.sequence.begin();
            other.words[0].store(1, Relaxed);
            // The first writer ended there; the next holder of the lock puts it right.
            let changing = other.sequence.begin();
            other.words[1].store(1, Relaxed);
            other.sequence.end(changing);
        });
        let seen = data.look([1, 0]);
        changers.join().unwrap();
        assert!(seen.is_none_or(|seen| seen < 2) && data.look([0, 1]) == Some(1));
    });
}

/// One thread changes under the lock, and another reads under it, which leaves the number
/// unchanged. A read without the lock finds one state, and the number counts changes only.
#[test]
fn who_looks_under_the_lock_disturbs_nobody_who_looks_without() {
    loom::model(|| {
        let (lock, data) =
            (Arc::new(Lock::default()), Arc::new([AtomicU64::new(0), AtomicU64::new(0)]));
        let stands = Stands(Arc::new(std::array::from_fn(|_| Stand::default())));
        let party = |place| Party::new(lock.clone(), stands.clone(), place).unwrap();
        let (changes, looks) = (party(0), party(1));
        let theirs = data.clone();
        let changer = thread::spawn(move || {
            let had = changes.try_lock();
            if had {
                let changing = changes.sequence().begin();
                theirs.iter().for_each(|word| word.store(1, Relaxed));
                changes.sequence().end(changing);
                changes.unlock();
            }
            had
        });
        let theirs = data.clone();
        let looker = thread::spawn(move || {
            if looks.try_lock() {
                assert_eq!(theirs[0].load(Relaxed), theirs[1].load(Relaxed));
                looks.unlock();
            }
        });
        if let Some(began) = look(lock.sequence().word()) {
            let found = [1, 0].map(|at: usize| data[at].load(Relaxed));
            if held(began, || lock.sequence().word()) {
                assert_eq!(found, [began / 2; 2]);
            }
        }
        let changed = changer.join().unwrap();
        looker.join().unwrap();
        assert_eq!(lock.sequence().word(), 2 * u64::from(changed));
    });
}

/// loom's `Arc` cannot hold a slice.
#[derive(Clone)]
struct Stands(Arc<[Stand; 2]>);

impl std::ops::Deref for Stands {
    type Target = [Stand];
    fn deref(&self) -> &[Stand] {
        &self.0[..]
    }
}
