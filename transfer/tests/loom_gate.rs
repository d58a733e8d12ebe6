//! Model of the gate: `RUSTFLAGS="--cfg loom" cargo test -p upcall-transfer --release --test loom_gate`.
#![cfg(loom)]

use loom::sync::{Arc, Notify};
use loom::thread;
use upcall_transfer::gate::Gate;

fn pass(gate: &Gate<Arc<Notify>>) {
    let number = loop {
        if let Some(number) = gate.try_take() {
            break number;
        }
        let me = Arc::new(Notify::new());
        let entry = me.clone();
        if let Some(number) = gate.take_or_wait(move || entry) {
            break number;
        }
        me.wait();
    };
    assert_eq!(number, 0);
    if let Some(next) = gate.give(number) {
        next.notify();
    }
}

/// One number and two who want it: loom reports a deadlock if one waits beside a free number.
#[test]
fn nobody_waits_beside_a_free_number() {
    loom::model(|| {
        let gate = Arc::new(Gate::new(1));
        let other = gate.clone();
        let thread = thread::spawn(move || pass(&other));
        pass(&gate);
        thread.join().unwrap();
    });
}
