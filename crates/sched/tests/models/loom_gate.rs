//! Model of the gate: `make models`.
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::sync::{Arc, Mutex, Notify};
use loom::thread;
use upcall_sched::gate::Gate;

/// A waiter, and where it receives its number.
#[derive(Default)]
struct Entry {
    told: Mutex<Option<u16>>,
    woken: Notify,
}

struct Scene {
    gate: Gate<Arc<Entry>>,
    inside: AtomicUsize,
}

fn pass(scene: &Scene) {
    let Scene { gate, inside } = scene;
    let number = gate.try_take().unwrap_or_else(|| {
        let me = Arc::new(Entry::default());
        let entry = me.clone();
        gate.take_or_wait(move || entry).unwrap_or_else(|| {
            // A wake in the model may be spurious, but that of a `Waiter` is not.
            loop {
                me.woken.wait();
                if let Some(number) = me.told.lock().unwrap().take() {
                    return number;
                }
            }
        })
    });
    assert_eq!(number, 0);
    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two have the same number");
    inside.fetch_sub(1, Ordering::SeqCst);
    if let Some((next, number)) = gate.give(number) {
        *next.told.lock().unwrap() = Some(number);
        next.woken.notify();
    }
}

/// One number and several threads that want it: loom reports a deadlock if a thread waits beside a
/// free number.
fn lane_queue(threads: usize, passes: usize) {
    loom::model(move || {
        let scene = Arc::new(Scene { gate: Gate::new(1), inside: AtomicUsize::new(0) });
        let others: Vec<_> = (0..threads)
            .map(|_| {
                let scene = scene.clone();
                thread::spawn(move || pass(&scene))
            })
            .collect();
        (0..passes).for_each(|_| pass(&scene));
        others.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn two_at_one_number() {
    lane_queue(1, 1);
}

#[test]
fn two_at_one_number_again() {
    lane_queue(1, 2);
}

#[test]
fn three_at_one_number() {
    lane_queue(2, 1);
}
