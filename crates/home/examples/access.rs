//! Measures an operation on an object in place, beside a plain spin lock; the same operation run by
//! the home; and operations on a map of a million entries:
//! `cargo run --release -p upcall-home --example access`.

use std::collections::HashMap;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use upcall_home::{
    Blob, DataError, Handle, HomeBuilder, Homed, Map, Operation, Operations, Place, Text,
};

const ROUNDS: u32 = 1_000_000;

const ENTRIES: u64 = 1_000_000;

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
    let home = HomeBuilder::new(&name, 4096).create(1, |_| ())?;
    let away = Handle::find(&name, 1)?;
    let lock = AtomicBool::new(false);
    let spin = time(|| {
        while black_box(&lock)
            .compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed)
            .is_err()
        {
            std::hint::spin_loop();
        }
        black_box(&lock);
        lock.store(false, Ordering::Release);
    });
    let at_home = time(|| home.access(|room| _ = black_box(room)).unwrap());
    let elsewhere = time(|| away.access(|room| _ = black_box(room)).unwrap());
    println!(
        "ns: a spin lock {spin:.1}, at home {at_home:.1} ({:.2} ×), elsewhere {elsewhere:.1} \
         ({:.2} ×)",
        at_home / spin,
        elsewhere / spin
    );
    urgently(&name)?;
    table(&name)
}

/// Increments the number.
struct Add;

impl Operation for Add {
    type Of = u64;
    type Args<'a> = u64;
    type Reply = u64;
    const NAME: &'static str = "add";

    fn run(number: Place<'_, u64>, more: u64) -> Result<u64, DataError> {
        number.update(|number| number + more)
    }
}

/// The same operation in place, as a read, and run by a thread of the home.
fn urgently(name: &str) -> Result<(), Box<dyn std::error::Error>> {
    let home = Homed::<u64>::create(&format!("{name}-urgent")).with(|_| Ok(()))?;
    let away = Homed::<u64>::find(home.name())?;
    let access = time(|| _ = black_box(away.perform::<Add>(1).unwrap()));
    let read = time(|| _ = black_box(away.read(|number| number.get()).unwrap()));
    let _served = home.serve_in_background(Operations::new().operation::<Add>())?;
    let urgent = time(|| _ = black_box(away.urgent::<Add>(1).unwrap()));
    println!(
        "ns: an addition in place {access:.1}, a read {read:.1} ({:.2} ×), by a thread of the home \
         that spins {urgent:.0} ({:.0} ×)",
        read / access,
        urgent / access
    );
    Ok(())
}

/// A map of a million entries of 100 bytes, whose keys are in no order, and a map of the standard
/// library in private memory.
fn table(name: &str) -> Result<(), Box<dyn std::error::Error>> {
    let key = |number: u64| format!("key {}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let keys = (0..ENTRIES).map(key).collect::<Vec<_>>();
    let map = Homed::<Map<Text, Blob>>::create(&format!("{name}-table"))
        .room(1 << 30)
        .with(|_| Ok(()))?;
    let each = |begun: Instant| begun.elapsed().as_nanos() as f64 / ENTRIES as f64;
    let (mut longest, value, begun) = (std::time::Duration::ZERO, [7; 100], Instant::now());
    for key in &keys {
        let own = Instant::now();
        map.access(|map| map.insert(key, &value))?;
        longest = longest.max(own.elapsed());
    }
    let insert = each(begun);
    let used = map.used()?;
    let (mut read, mut got, begun) = (Vec::with_capacity(100), 0, Instant::now());
    for number in 0..ENTRIES {
        let key = &keys[(number * 7919 % ENTRIES) as usize];
        read.clear();
        map.access(|map| map.get(key)?.map_or(Ok(()), |at| at.append_to(&mut read)))?;
        got += read.len() as u64;
    }
    let get = each(begun);
    let private =
        keys.iter().map(|key| (key.clone(), vec![7; 100])).collect::<HashMap<String, Vec<u8>>>();
    let begun = Instant::now();
    for number in 0..ENTRIES {
        read.clear();
        read.extend_from_slice(&private[&keys[(number * 7919 % ENTRIES) as usize]]);
        got += read.len() as u64;
    }
    let get_private = each(begun);
    drop(private);
    let begun = Instant::now();
    map.check()?;
    let check = each(begun);
    let begun = Instant::now();
    map.mend()?;
    let mend = each(begun);
    let begun = Instant::now();
    for key in &keys {
        map.access(|map| map.remove(key))?;
    }
    let remove = each(begun);
    println!(
        "a map of {ENTRIES} entries of 100 bytes, {} MiB, ns an entry: insert {insert:.0} \
         (longest {longest:?}), get {get:.0} (std's HashMap {get_private:.0}), check {check:.0}, \
         mend {mend:.0}, remove {remove:.0}",
        used >> 20
    );
    assert_eq!(got, 200 * ENTRIES);
    Ok(())
}
