//! Threads on one and on several processors.
//!
//! Spawn, join, panics, yield, sleep, park, names, and many alive.
#![cfg(not(loom))]

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use upcall_thread as thread;
use upcall_thread::{Builder, Condvar, Mutex, Processors, Waited};

fn on<T>(processors: usize, body: impl FnOnce() -> T) -> T {
    Processors::new().count(processors).run(body).unwrap()
}

#[test]
fn join_returns_what_the_thread_returned() {
    for processors in [1, 2, 4] {
        let sum: usize = on(processors, || {
            let threads: Vec<_> = (0..1000).map(|n| thread::spawn(move || n * 2)).collect();
            threads.into_iter().map(|t| t.join().unwrap()).sum()
        });
        assert_eq!(sum, 999_000);
    }
}

#[test]
fn join_carries_the_panic() {
    on(2, || {
        let panicking = thread::spawn(|| -> u32 { panic!("code {}", std::hint::black_box(7)) });
        let payload = panicking.join().unwrap_err();
        assert_eq!(payload.downcast_ref::<String>().unwrap(), "code 7");
        assert_eq!(thread::spawn(|| 1).join().unwrap(), 1, "the processor goes on");
    });
}

#[test]
fn a_panic_of_the_first_thread_leaves_run() {
    let outcome = std::panic::catch_unwind(|| on(2, || panic!("first")));
    assert_eq!(*outcome.unwrap_err().downcast_ref::<&str>().unwrap(), "first");
    assert_eq!(on(1, || 3), 3);
    assert_eq!(thread::on_virtual_processor(), None);
}

#[test]
fn a_backtrace_ends_at_the_thread_entry() {
    on(1, || {
        let trace = thread::spawn(|| std::backtrace::Backtrace::force_capture().to_string())
            .join()
            .unwrap();
        assert!(trace.contains("run_packet"), "{trace}");
        assert!(!trace.contains("run_first"), "went past the entry: {trace}");
        assert!(trace.lines().count() < 120, "{trace}");
    });
}

#[test]
fn a_result_that_nobody_takes_is_dropped_once() {
    struct Counts(Arc<AtomicUsize>);
    impl Drop for Counts {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let dropped = Arc::new(AtomicUsize::new(0));
    on(2, || {
        let make = || {
            let value = Counts(Arc::clone(&dropped));
            thread::spawn(move || value)
        };
        drop(make());
        while dropped.load(Ordering::SeqCst) < 1 {
            thread::yield_now();
        }
        let finished = make();
        while !finished.is_finished() {
            thread::yield_now();
        }
        drop(finished);
        assert_eq!(dropped.load(Ordering::SeqCst), 2);
        let value = make().join().unwrap();
        assert_eq!(dropped.load(Ordering::SeqCst), 2);
        drop(value);
    });
    assert_eq!(dropped.load(Ordering::SeqCst), 3);
}

#[test]
fn yield_is_fair() {
    on(1, || {
        let turns: Arc<Vec<AtomicUsize>> = Arc::new((0..10).map(|_| AtomicUsize::new(0)).collect());
        let stop = Arc::new(AtomicBool::new(false));
        let threads: Vec<_> = (0..10)
            .map(|n| {
                let (turns, stop) = (Arc::clone(&turns), Arc::clone(&stop));
                thread::spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        turns[n].fetch_add(1, Ordering::Relaxed);
                        thread::yield_now();
                    }
                })
            })
            .collect();
        for _ in 0..1000 {
            thread::yield_now();
        }
        stop.store(true, Ordering::Relaxed);
        threads.into_iter().for_each(|t| t.join().unwrap());
        let counts: Vec<_> = turns.iter().map(|t| t.load(Ordering::Relaxed)).collect();
        let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
        assert!(*least > 900 && most - least <= 12, "{counts:?}");
    });
}

#[test]
fn sleepers_wake_in_order_and_not_early() {
    on(1, || {
        let order = Arc::new(Mutex::new(Vec::new()));
        // In 200 ms, so that all three are asleep by then.
        let start = Instant::now() + Duration::from_millis(200);
        let sleepers: Vec<_> = [30_u64, 10, 20]
            .into_iter()
            .map(|ms| {
                let order = Arc::clone(&order);
                thread::spawn(move || {
                    let at = start + Duration::from_millis(ms);
                    thread::sleep_until(at);
                    assert!(Instant::now() >= at);
                    order.lock().push(ms);
                })
            })
            .collect();
        sleepers.into_iter().for_each(|t| t.join().unwrap());
        assert_eq!(*order.lock(), [10, 20, 30]);
        // Short sleeps too, whose end the idle loop finds before the processor sleeps.
        for ms in 1..6 {
            let at = Instant::now() + Duration::from_millis(ms);
            thread::sleep_until(at);
            assert!(Instant::now() >= at);
        }
    });
}

#[test]
fn sleepers_wake_while_others_keep_the_processor_busy() {
    on(1, || {
        let slept = Arc::new(AtomicBool::new(false));
        let done = Arc::clone(&slept);
        thread::spawn(move || {
            thread::sleep(Duration::from_millis(5));
            done.store(true, Ordering::Relaxed);
        });
        let start = Instant::now();
        while !slept.load(Ordering::Relaxed) {
            thread::yield_now();
            assert!(start.elapsed() < Duration::from_secs(60), "the sleeper starved");
        }
    });
}

#[test]
fn park_and_unpark() {
    for processors in [1, 2] {
        on(processors, || {
            let parked = thread::spawn(|| {
                for _ in 0..1000 {
                    thread::park();
                }
            });
            let handle = parked.thread();
            while !parked.is_finished() {
                handle.unpark();
                thread::yield_now();
            }
            parked.join().unwrap();

            thread::current().unpark();
            thread::park();
            let start = Instant::now();
            assert_eq!(thread::park_timeout(Duration::from_millis(5)), Waited::TimedOut);
            assert!(start.elapsed() >= Duration::from_millis(5));
        });
    }
}

#[test]
fn a_kernel_thread_may_unpark_and_join() {
    on(1, || {
        let parked = thread::spawn(|| {
            thread::park();
            42
        });
        let handle = parked.thread();
        let outside = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(2));
            handle.unpark();
            parked.join().unwrap()
        });
        // The first thread yields the processor for long enough.
        while !outside.is_finished() {
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(outside.join().unwrap(), 42);
    });
}

#[test]
fn names_ids_and_places() {
    on(2, || {
        let named = Builder::new().name("clerk").stack_size(200_000).spawn(|| {
            let me = thread::current();
            (me.name().map(str::to_owned), me.id(), thread::on_virtual_processor())
        });
        let named = named.unwrap();
        let id = named.thread().id();
        let (name, own, place) = named.join().unwrap();
        assert_eq!(name.as_deref(), Some("clerk"));
        assert_eq!(own, id);
        assert!(matches!(place, Some(0 | 1)));
        assert_ne!(thread::current().id(), id);
        let error = Builder::new().stack_size(1 << 40).spawn(|| ()).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    });
    let error = Builder::new().spawn(|| ()).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::Unsupported);
    assert!(Processors::new().count(0).run(|| ()).is_err());
    assert!(Processors::new().pin([5000]).run(|| ()).is_err());
}

#[test]
fn deep_stacks_and_large_closures() {
    fn deep(levels: usize) -> usize {
        let mut page = [0_u8; 1024];
        std::hint::black_box(&mut page);
        if levels == 0 { 0 } else { 1 + deep(levels - 1) + usize::from(page[7]) }
    }
    on(1, || {
        let thread = Builder::new().stack_size(8 << 20).spawn(|| deep(4000)).unwrap();
        assert_eq!(thread.join().unwrap(), 4000);
        let large = [7_u8; 100_000];
        // Each function on the way may have a copy of it on the stack: clippy's driver compiles
        // them so.
        let thread = Builder::new().stack_size(8 << 20).spawn(move || large).unwrap();
        assert_eq!(thread.join().unwrap()[99_999], 7);
        #[repr(align(1024))]
        struct Wide(u8);
        let wide = Wide(9);
        let at = thread::spawn(move || {
            let wide = wide;
            assert_eq!(wide.0, 9);
            (&raw const wide).addr() % 1024
        });
        assert_eq!(at.join().unwrap(), 0);
    });
}

#[test]
fn started_threads_stay_and_fresh_ones_spread() {
    on(2, || {
        let places = Arc::new([const { AtomicUsize::new(0) }; 2]);
        let threads: Vec<_> = (0..200)
            .map(|_| {
                let places = Arc::clone(&places);
                thread::spawn(move || {
                    let place = thread::on_virtual_processor().unwrap();
                    places[place].fetch_add(1, Ordering::Relaxed);
                    let start = Instant::now();
                    while start.elapsed() < Duration::from_micros(200) {
                        thread::yield_now();
                        assert_eq!(thread::on_virtual_processor(), Some(place));
                    }
                })
            })
            .collect();
        // Without a scheduling point on this processor, the other one must still come and steal
        // threads.
        let start = Instant::now();
        while places[1].load(Ordering::Relaxed) == 0 {
            assert!(start.elapsed() < Duration::from_secs(60), "nothing was stolen");
            std::hint::spin_loop();
        }
        threads.into_iter().for_each(|t| t.join().unwrap());
    });
}

#[test]
fn a_parked_processor_comes_for_a_lone_spawn() {
    on(2, || {
        for _ in 0..20 {
            // Long enough for the other processor to park.
            std::thread::sleep(Duration::from_millis(2));
            let ran = Arc::new(AtomicBool::new(false));
            let set = Arc::clone(&ran);
            let lone = thread::spawn(move || set.store(true, Ordering::Release));
            let start = Instant::now();
            while !ran.load(Ordering::Acquire) {
                assert!(start.elapsed() < Duration::from_secs(60), "no processor came");
                std::hint::spin_loop();
            }
            lone.join().unwrap();
        }
    });
}

#[test]
fn a_hundred_thousand_alive() {
    const MANY: usize = 100_000;
    let maps = || std::fs::read_to_string("/proc/self/maps").unwrap().lines().count();
    on(1, || {
        let gate = Arc::new((Mutex::new(0_usize), Condvar::new()));
        let threads: Vec<_> = (0..MANY)
            .map(|_| {
                let gate = Arc::clone(&gate);
                thread::spawn(move || {
                    let mut arrived = gate.0.lock();
                    *arrived += 1;
                    gate.1.notify_all();
                    drop(gate.1.wait_while(arrived, |arrived| *arrived <= MANY));
                })
            })
            .collect();
        let mut arrived = gate.0.lock();
        while *arrived < MANY {
            arrived = gate.1.wait(arrived);
        }
        assert!(maps() < 10_000, "{} mappings", maps());
        *arrived += 1;
        drop(arrived);
        gate.1.notify_all();
        threads.into_iter().for_each(|t| t.join().unwrap());
    });
}

#[test]
fn floating_point_control_belongs_to_the_thread_that_asks_for_it() {
    fn mxcsr() -> u32 {
        let mut word = 0_u32;
        // SAFETY: stores the control register into a live word.
        unsafe { std::arch::asm!("stmxcsr [{}]", in(reg) &raw mut word) };
        word & !0x3F
    }
    fn x87() -> u16 {
        let mut word = 0_u16;
        // SAFETY: stores the control word into a live word.
        unsafe { std::arch::asm!("fnstcw [{}]", in(reg) &raw mut word) };
        word
    }
    fn load(mxcsr: u32, x87: u16) {
        // SAFETY: the control values are valid; no floating-point arithmetic of Rust runs before
        // they are set back.
        unsafe { std::arch::asm!("ldmxcsr [{}]", in(reg) &raw const mxcsr) };
        // SAFETY: as above.
        unsafe { std::arch::asm!("fldcw [{}]", in(reg) &raw const x87) };
    }
    on(1, || {
        assert_eq!((mxcsr(), x87()), (0x1F80, 0x037F));
        let rounding = thread::Builder::new().own_floating_point_control().spawn(|| {
            assert_eq!((mxcsr(), x87()), (0x1F80, 0x037F));
            load(0x7F80, 0x0F7F);
            for _ in 0..10 {
                thread::yield_now();
                assert_eq!((mxcsr(), x87()), (0x7F80, 0x0F7F));
            }
            load(0x1F80, 0x037F);
        });
        let rounding = rounding.unwrap();
        let floats = thread::spawn(|| {
            let mut sum = 0.0_f64;
            for n in 0..10 {
                sum += f64::from(n) * 0.5;
                thread::yield_now();
                assert_eq!((mxcsr(), x87()), (0x1F80, 0x037F));
            }
            sum
        });
        rounding.join().unwrap();
        assert!((floats.join().unwrap() - 22.5).abs() < 1e-12);
        assert_eq!((mxcsr(), x87()), (0x1F80, 0x037F));
    });
}

#[test]
fn abandoned_threads_do_not_run_on() {
    thread_local!(static COUNT: Cell<u32> = const { Cell::new(0) });
    on(1, || {
        thread::spawn(|| {
            loop {
                COUNT.set(COUNT.get() + 1);
                thread::yield_now();
            }
        });
        thread::yield_now();
    });
    let count = COUNT.get();
    assert!(count >= 1);
    on(1, || (0..10).for_each(|_| thread::yield_now()));
    assert_eq!(COUNT.get(), count);
}

#[test]
fn every_parked_processor_comes_when_there_is_enough_to_do() {
    on(3, || {
        for _ in 0..10 {
            std::thread::sleep(Duration::from_millis(10));
            // Three threads that wait for each other without yielding can end only on three
            // processors.
            let met = Arc::new(AtomicUsize::new(0));
            let threads: Vec<_> = (0..3)
                .map(|_| {
                    let met = Arc::clone(&met);
                    thread::spawn(move || {
                        met.fetch_add(1, Ordering::SeqCst);
                        let start = Instant::now();
                        while met.load(Ordering::SeqCst) < 3 {
                            assert!(start.elapsed() < Duration::from_secs(60), "a processor slept");
                            std::thread::yield_now();
                        }
                    })
                })
                .collect();
            threads.into_iter().for_each(|t| t.join().unwrap());
        }
    });
}
