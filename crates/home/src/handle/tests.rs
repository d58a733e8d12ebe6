use super::*;
use crate::homed::Homed;
use crate::object::{HomeBuilder, Verdict};
use crate::operation::{Operation, Operations};
use crate::types::{DataError, Place};
use upcall_os::atomic::{AtomicBool, Ordering::Relaxed};

/// Pseudo-random numbers that follow from a seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 32) * (self.0 >> 13 & 3)
    }
}

/// Scribbles over all memory that it can reach, as a party that may write can.
fn scribble(hostile: &Handle, seed: u64, over: &AtomicBool) {
    let (room, mut random) = (hostile.writing().unwrap().1.everything(), Random(seed));
    while !over.load(Relaxed) {
        let at = match random.next() % 4 {
            // The lock and the state; all stands; anything.
            0 | 1 => 4096 + random.next() % 9 * 8,
            2 => 8192 + random.next() % 512 * 8,
            _ => random.next() % (room.len() as u64 / 8) * 8,
        };
        let word = match random.next() % 4 {
            0 => 0,
            1 => random.next() % 260,
            2 => 1 << (random.next() % 64),
            _ => random.next().wrapping_mul(0x9e37_79b9_7f4a_7c15),
        };
        room.put_u64(at as usize, word).unwrap();
        if random.next() % 256 == 0 {
            std::thread::yield_now();
        }
    }
}

/// Increments the number.
struct Add;

impl Operation for Add {
    type Of = u64;
    type Args<'a> = ();
    type Reply = u64;
    const NAME: &'static str = "add";

    fn run(number: Place<'_, u64>, (): ()) -> Result<u64, DataError> {
        number.update(|number| number + 1)
    }
}

/// Each operation of the looping thread ends only when the serving thread waits for the lock.
/// So the test counts turns: the next one belongs to the serving thread.
#[test]
fn a_thread_of_the_home_that_works_in_a_loop_takes_turns_with_urgent_work_from_outside() {
    const TURNS: u64 = 300;
    let guard = Some(Duration::from_secs(60));
    let home = Homed::<u64>::create(&format!("loop-{}", std::process::id()))
        .with(|_| Ok(()))
        .unwrap()
        .patience(guard);
    let _serving = home.serve_in_background(Operations::new().operation::<Add>()).unwrap();
    let away = Homed::<u64>::find(home.name()).unwrap().patience(guard);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            (1..=TURNS).for_each(|turn| assert_eq!(away.urgent::<Add>(()).unwrap(), turn))
        });
        let (mut last, mut in_a_row, mut most) = (0, 0, 0);
        while last < TURNS {
            let now = home.access(|number| {
                let (party, _) = home.handle().writing().unwrap();
                let begun = Instant::now();
                while number.get()? < TURNS && !party.has_waiting_at_home() {
                    assert!(begun.elapsed() < Duration::from_secs(60));
                    std::thread::yield_now();
                }
                number.get()
            });
            let now = now.unwrap();
            in_a_row = if now == last { in_a_row + 1 } else { 0 };
            (last, most) = (now, most.max(in_a_row));
        }
        // The serving thread may take the lock for other work, too.
        assert!(most <= 2, "{most} turns of the home's own while the serving thread waited");
    });
}

/// The processor time of this thread.
fn thread_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

#[test]
fn whoever_scribbles_over_it_neither_holds_its_home_up_nor_ends_it() {
    for seed in 1..=6 {
        println!("seed {seed}");
        let name = format!("scribbled-{}-{seed}", std::process::id());
        let repair = |_: WritableSpan<'_>, _| Verdict::Keep;
        let home = HomeBuilder::new(&name, 4096).repair(repair).create(7, |_| ()).unwrap();
        let home = home.patience(Some(Duration::from_millis(20)));
        let (hostile, other) = (Handle::find(&name, 7).unwrap(), Handle::find(&name, 7).unwrap());
        let other = other.patience(Some(Duration::from_millis(20)));
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let over = &over;
            scope.spawn(move || scribble(&hostile, seed, over));
            let honest = |handle: &Handle| {
                let (begun, mut had) = (Instant::now(), 0);
                while begun.elapsed() < Duration::from_millis(300) {
                    let (turn, before) = (Instant::now(), thread_time());
                    had += u32::from(handle.access(|room| room.u64(0)).is_ok());
                    // Waiting takes no processor time, but work that a hostile guest causes does.
                    let (took, worked) = (turn.elapsed(), thread_time() - before);
                    assert!(
                        worked < Duration::from_secs(2),
                        "seed {seed}: {worked:?} of processor time"
                    );
                    assert!(took < Duration::from_secs(60), "seed {seed}: {took:?}");
                }
                had
            };
            let theirs = scope.spawn(move || honest(&other));
            let had = honest(&home);
            println!("    {had} operations at home, {} elsewhere", theirs.join().unwrap());
            over.store(true, Relaxed);
        });
        // What is left can be dropped, and the name is free.
        drop(home);
        drop(HomeBuilder::new(&name, 8).create(7, |_| ()).unwrap());
    }
}
