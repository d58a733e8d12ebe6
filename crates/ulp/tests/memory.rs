//! Memory that programs map, and their stacks.

mod common;

use common::{apart, compile, over, words};
use std::fs;
use std::os::fd::AsRawFd;
use std::time::Duration;
use upcall_os::seccomp;
use upcall_ulp::slot::{LEAST_STACK, MOST_STACK, UlpSlot};
use upcall_ulp::{ASK_OWN, Image, NotLoaded, StopReason, Ulp, UlpOptions, UlpRequest, Worker};

#[test]
fn a_program_maps_in_its_own_slot_in_all_ways() {
    let Some(folder) = apart("a_program_maps_in_its_own_slot_in_all_ways") else { return };
    let image = Image::open(&compile(folder.path(), "maps")).unwrap();
    let mut worker = Worker::begin().unwrap();
    // The second has a slot with neighbours on both sides.
    let mut all = [(); 3].map(|()| Ulp::load(&image, &words(&["maps"]), &[]).unwrap());
    for ulp in &mut all {
        assert_eq!(worker.resume(ulp), StopReason::Ended { status: 0 });
    }
    over(folder)
}

#[test]
fn random_maps_are_as_a_model_says() {
    let Some(folder) = apart("random_maps_are_as_a_model_says") else { return };
    let image = Image::open(&compile(folder.path(), "random_maps")).unwrap();
    let mut ulp = Ulp::load(&image, &words(&["random_maps", "100000"]), &[]).unwrap();
    assert_eq!(Worker::begin().unwrap().resume(&mut ulp), StopReason::Ended { status: 0 });
    over(folder)
}

#[test]
fn what_is_unmapped_crashes_and_what_is_mapped_ends_with_its_program() {
    let name = "what_is_unmapped_crashes_and_what_is_mapped_ends_with_its_program";
    let Some(folder) = apart(name) else { return };
    let image = Image::open(&compile(folder.path(), "maps")).unwrap();
    let mut worker = Worker::begin().unwrap();
    let load = |how| Ulp::load(&image, &words(&["maps", how]), &[]).unwrap();
    let mut ulp = load("gone");
    let StopReason::Crashed(crash) = worker.resume(&mut ulp) else { panic!("{:?}", ulp.ended()) };
    assert_eq!((crash.signal, UlpSlot::of(crash.address)), (libc::SIGSEGV, Some(ulp.slot())));
    assert!(!crash.to_string().contains("stack"), "{crash}");
    drop(ulp);
    let mappings = || fs::read_to_string("/proc/self/maps").unwrap().lines().count();
    let before = mappings();
    let mut all = (0..100).map(|_| load("left")).collect::<Vec<_>>();
    for ulp in &mut all {
        assert!(matches!(worker.resume(ulp), StopReason::Asks(_)));
    }
    // 20 maps of three mappings each, of which neighbours are one.
    assert!(mappings() >= before + 100 * 40, "{} and {before}", mappings());
    // Half of the programs end by themselves, and all are dropped.
    for ulp in all.iter_mut().step_by(2) {
        assert_eq!(worker.resume(ulp), StopReason::Ended { status: 0 });
    }
    drop(all);
    assert!(mappings() <= before + 3, "{} and {before}", mappings());
    over(folder)
}

#[test]
fn two_programs_share_memory_through_a_descriptor() {
    let Some(folder) = apart("two_programs_share_memory_through_a_descriptor") else { return };
    let image = Image::open(&compile(folder.path(), "maps")).unwrap();
    let file = rustix::fs::memfd_create("shared", rustix::fs::MemfdFlags::empty()).unwrap();
    rustix::fs::ftruncate(&file, 4096).unwrap();
    let mut worker = Worker::begin().unwrap();
    let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    let mut all =
        [(); 2].map(|()| Ulp::load(&image, &words(&["maps", "shared", &path]), &[]).unwrap());
    for turn in 0..6 {
        let ulp = &mut all[turn % 2];
        let StopReason::Asks(UlpRequest { what, args }) = worker.resume(ulp) else {
            panic!("{:?}", ulp.ended())
        };
        // Each finds what both have added.
        assert_eq!((what, args[1]), (ASK_OWN, turn.saturating_sub(1) as u64));
        assert_eq!(UlpSlot::of(args[0]), Some(ulp.slot()));
        ulp.answer(1);
    }
    over(folder)
}

#[test]
fn no_program_gets_a_guard_of_its_stack_that_can_be_guessed() {
    let Some(folder) = apart("no_program_gets_a_guard_of_its_stack_that_can_be_guessed") else {
        return;
    };
    let image = Image::open(&compile(folder.path(), "maps")).unwrap();
    let refused = std::thread::scope(|scope| {
        let loads = scope.spawn(|| {
            // Without a supervisor the kernel refuses the call.
            drop(seccomp::listen(&[libc::SYS_getrandom as u32]).unwrap());
            Ulp::load(&image, &words(&["maps"]), &[]).map(drop)
        });
        loads.join().unwrap().unwrap_err()
    });
    assert!(matches!(refused, NotLoaded::NoRandomBytes(_)), "{refused}");
    over(folder)
}

#[test]
fn a_stack_has_the_size_that_was_chosen() {
    let Some(folder) = apart("a_stack_has_the_size_that_was_chosen") else { return };
    let image = Image::open(&compile(folder.path(), "deep")).unwrap();
    let mut worker = Worker::begin().unwrap();
    let load = |stack, deep: &str| {
        let slot = UlpSlot::take().unwrap();
        Ulp::load_with(slot, &image, &words(&["deep", deep]), &[], UlpOptions { stack })
    };
    // The same slot, with stacks of several sizes, and others beside it.
    let sizes = [(64 << 20, "32"), (MOST_STACK, "40"), (LEAST_STACK, "0"), (8 << 20, "7")];
    for (stack, deep) in sizes {
        let mut all = [(); 2].map(|()| load(stack, deep).unwrap());
        for ulp in &mut all {
            assert_eq!(worker.resume(ulp), StopReason::Ended { status: 0 }, "{deep} of {stack}");
        }
    }
    for (stack, deep) in [(1 << 20, "32"), (LEAST_STACK, "1"), (32 << 20, "40")] {
        let mut ulp = load(stack, deep).unwrap();
        let StopReason::Crashed(crash) = worker.resume(&mut ulp) else { panic!("{deep}") };
        assert!(crash.to_string().ends_with(", at the end of its stack"), "{crash}");
        assert_eq!(UlpSlot::of(crash.address), Some(ulp.slot()));
        assert!(ulp.backtrace(&image).iter().any(|one| one.function.as_deref() == Some("deep")));
    }
    for stack in [0, LEAST_STACK - 1, MOST_STACK + 1, u64::MAX] {
        let refused = load(stack, "0").unwrap_err();
        assert!(matches!(refused, NotLoaded::Stack { bytes } if bytes == stack), "{refused}");
        assert!(refused.to_string().contains("64 KiB to 512 MiB"), "{refused}");
    }
    // Arguments have a quarter of it.
    let long = "x".repeat(20_000);
    assert!(load(LEAST_STACK, &long).unwrap_err().to_string().contains("16384 is the most"));
    assert!(load(128 << 10, &long).is_ok());
    over(folder)
}

#[test]
fn a_program_that_has_several_slots_uses_them_as_one() {
    let Some(folder) = apart("a_program_that_has_several_slots_uses_them_as_one") else { return };
    let image = Image::open(&compile(folder.path(), "large")).unwrap();
    let mut worker = Worker::begin().unwrap();
    let load = |slots, how: &str| {
        let slot = UlpSlot::take_several(slots).unwrap();
        let args = words(&["large", how]);
        Ulp::load_with(slot, &image, &args, &[], UlpOptions::default())
    };
    let mut all = [(); 3].map(|()| load(5, "all").unwrap());
    for (at, ulp) in all.iter_mut().enumerate() {
        assert_eq!(ulp.slot(), at * 5);
        assert_eq!(worker.resume(ulp), StopReason::Ended { status: 0 });
    }
    drop(all);
    let mappings = fs::read_to_string("/proc/self/maps").unwrap();
    let is_slots = |line: &&str| {
        u64::from_str_radix(line.split('-').next().unwrap(), 16)
            .ok()
            .and_then(UlpSlot::of)
            .is_some()
    };
    assert_eq!(mappings.lines().filter(is_slots).count(), 0, "{mappings}");
    // A crash in the last slot is one in its own memory.
    let mut ulp = load(5, "crash").unwrap();
    let StopReason::Crashed(crash) = worker.resume(&mut ulp) else { panic!("{:?}", ulp.ended()) };
    assert_eq!(UlpSlot::of(crash.address), Some(ulp.slot() + 4), "{crash}");
    assert!(!crash.to_string().contains("another"), "{crash}");
    // Code there is interrupted.
    worker.interrupt_every(Duration::from_millis(4)).unwrap();
    let mut ulp = load(5, "jump").unwrap();
    assert_eq!(worker.resume(&mut ulp), StopReason::Interrupted);
    drop(ulp);
    let refused = load(1, "all").unwrap_err();
    assert!(matches!(refused, NotLoaded::NoRoom { memory, .. } if memory == 1 << 30), "{refused}");
    assert!(refused.to_string().contains("8 MiB of 1 GiB, which leaves no room"), "{refused}");
    over(folder)
}
