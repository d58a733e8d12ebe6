//! Calls on shared CPUs by the shipped idle policy, from a seed that is printed.

use std::time::UNIX_EPOCH;
use upcall_os::processor::CpuSet;
use upcall_sched::pacing::Pacing;
use upcall_simulator::calling::{CallerPlan, Calls, Seen, run};
use upcall_simulator::dice::Dice;

fn given(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Some of the CPUs below `count`.
fn some(dice: &Dice, count: usize) -> CpuSet {
    let first = CpuSet::only(dice.below(count as u64) as usize);
    (0..count).filter(|_| dice.once_in(2)).fold(first, |set, cpu| set.with(cpu))
}

fn anything(seed: u64) -> Calls {
    let dice = Dice::new(seed);
    let cpus = 1 + dice.below(8) as usize;
    let caller = |_| CallerPlan {
        allowed: some(&dice, cpus),
        calls: 1 + dice.magnitude(200) as u32,
        pause: dice.one_of(&[0, 1000, 20_000, 200_000, 5_000_000]),
        may_bring: !dice.once_in(3),
        lies: dice.once_in(5),
    };
    Calls {
        cpus,
        home: some(&dice, cpus),
        pacing: dice.one_of(&[Pacing::Adaptive, Pacing::Adaptive, Pacing::Sleep]),
        callers: (0..1 + dice.below(2 * cpus as u64)).map(caller).collect(),
        computing: dice.below(3) as usize,
        handler: dice.magnitude(20_000),
        seed,
    }
}

#[test]
fn each_call_is_answered_and_the_server_sleeps_at_last() {
    let first = given("UPCALL_SEED")
        .unwrap_or_else(|| UNIX_EPOCH.elapsed().map_or(0, |time| time.as_nanos() as u64));
    let runs = given("UPCALL_RUNS").unwrap_or(100);
    println!("from seed {first} on");
    let mut all = Seen::default();
    for seed in first..first + runs {
        let calls = anything(seed);
        let (seen, trace) = run(&calls).unwrap_or_else(|failure| panic!("{calls:?}\n{failure}"));
        trace.replay().unwrap_or_else(|wrong| panic!("{calls:?}\n{wrong}"));
        all.donated += seen.donated;
        all.parks += seen.parks;
        all.migrations += seen.migrations;
        all.near += seen.near;
        all.yields += seen.yields;
        all.times.extend(&seen.times);
    }
    let Seen { donated, parks, migrations, near, yields, times, .. } = &all;
    println!(
        "{} calls, {donated} donated, {parks} parks, {migrations} migrations, {near} near, \
        {yields} yields",
        times.len()
    );
    if runs >= 100 {
        assert!([*donated, *parks, *migrations, *near, *yields].iter().all(|seen| *seen > 0));
    }
}

#[test]
fn a_seed_repeats_a_run() {
    let calls = anything(7);
    assert_eq!(run(&calls).unwrap().0, run(&calls).unwrap().0);
}
