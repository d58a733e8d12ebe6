//! What an operation on an object takes where it is, beside a plain spin lock: `cargo run --release -p upcall-home --example access`.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use upcall_home::{Creating, Handle};

const ROUNDS: u32 = 1_000_000;

fn time(mut operation: impl FnMut()) -> f64 {
    let mut times: Vec<f64> = (0..15)
        .map(|_| {
            let begun = Instant::now();
            (0..ROUNDS).for_each(|_| operation());
            begun.elapsed().as_nanos() as f64 / f64::from(ROUNDS)
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let name = format!("access-{}", std::process::id());
    let home = Creating::new(&name, 4096).create(1, |_| ())?;
    let away = Handle::find(&name, 1)?;
    let lock = AtomicBool::new(false);
    let spin = time(|| {
        while black_box(&lock).compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
            std::hint::spin_loop();
        }
        black_box(&lock);
        lock.store(false, Ordering::Release);
    });
    let at_home = time(|| home.access(|room| _ = black_box(room)).unwrap());
    let elsewhere = time(|| away.access(|room| _ = black_box(room)).unwrap());
    println!(
        "ns: a spin lock {spin:.1}, at home {at_home:.1} ({:.2} ×), elsewhere {elsewhere:.1} ({:.2} ×)",
        at_home / spin,
        elsewhere / spin
    );
    Ok(())
}
