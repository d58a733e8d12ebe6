//! A model of looking while somebody changes, checked by loom over every interleaving: `RUSTFLAGS="--cfg loom" cargo test -p upcall-shm --release --test loom_sequence`.
#![cfg(loom)]

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering::Relaxed};
use loom::thread;
use upcall_shm::sequence::{Sequence, held, look};

/// Two words that are to be equal.
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

    /// One look, in the order in which it finds most.
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

/// The next one makes good for it: what was half done is never seen.
#[test]
fn who_ends_in_the_midst_is_followed_by_another() {
    loom::model(|| {
        let data = Arc::new(Data::default());
        let other = data.clone();
        let changers = thread::spawn(move || {
            let _ended = other.sequence.begin();
            other.words[0].store(1, Relaxed);
            // It has ended there; whoever has the lock next puts it right.
            let changing = other.sequence.begin();
            other.words[1].store(1, Relaxed);
            other.sequence.end(changing);
        });
        let seen = data.look([1, 0]);
        changers.join().unwrap();
        assert!(seen.is_none_or(|seen| seen < 2) && data.look([0, 1]) == Some(1));
    });
}
