//! Runs programs of others, and larger ones of our own: each must print under our PVM what it
//! prints under the real one.
//!
//! `examples/cases.toml` has the programs of Debian's pvm-examples and of `programs/`, and
//! `examples/public.toml` those of Debian's source packages (`examples/public.rs`).
//! `UPCALL_PVM_CASES=hello,spmd` selects cases, and `UPCALL_PVM_SHOW=1` shows what is compared. The
//! ignored tests are run by `cargo test -p upcall-pvm --test examples -- --ignored`.

#[path = "examples/cases.rs"]
mod cases;
mod command;
#[path = "examples/comparison.rs"]
mod comparison;
#[path = "examples/normal.rs"]
mod normal;
#[path = "examples/ours.rs"]
mod ours;
#[path = "examples/packages.rs"]
mod packages;
#[path = "examples/process.rs"]
mod process;
#[path = "examples/public.rs"]
mod public;
#[path = "examples/real.rs"]
mod real;

use cases::Table;
use comparison::Comparison;

fn table() -> Table {
    Table::read(include_str!("examples/cases.toml"))
}

fn public_table() -> Table {
    Table::read(include_str!("examples/public.toml"))
}

#[test]
fn programs_print_what_they_print_under_the_real_pvm() {
    let Some(mut comparison) = Comparison::of(table()) else { return };
    let tools = ours::tools();
    comparison.compile("real", real::compile);
    comparison.compile("ours", |program, sources, folder| {
        ours::compile(&tools, program, sources, folder)
    });
    comparison
        .run([("real", &real::run), ("ours", &|case, folder| ours::run(&tools, case, folder))]);
    comparison.end();
}

#[test]
#[ignore = "fetches sources of Debian's packages, and builds them twice"]
fn public_programs_print_what_they_print_under_the_real_pvm() {
    let Some(mut comparison) = Comparison::of(public_table()) else { return };
    let Some(sources) = public::Sources::there() else { return };
    let tools = ours::tools();
    sources.build(&mut comparison, "real", public::real());
    sources.build(&mut comparison, "ours", public::ours(&tools.compilers));
    comparison
        .run([("real", &real::run), ("ours", &|case, folder| ours::run(&tools, case, folder))]);
    comparison.end();
}

/// Cases whose tasks move in the ordinary tests: those that take the least time.
#[cfg(debug_assertions)]
const MOVED: [&str; 16] = [
    "master1",
    "fmaster1",
    "spmd",
    "hitc",
    "inherit-3",
    "mailbox-services",
    "mailbox-many",
    "mbox-persistent",
    "message-handlers",
    "gs",
    "thb",
    "frsg",
    "tsp",
    "samplesort",
    "messages",
    "habits",
];

/// Compares programs whose tasks stay with the same ones whose tasks move, `times` times.
#[cfg(debug_assertions)]
fn compare_moved(table: Table, times: u64, moves: &dyn Fn(u64) -> ours::RandomMoves) {
    let Some(mut comparison) = Comparison::of(table) else { return };
    let tools = ours::tools();
    comparison.compile("ours", |program, sources, folder| {
        ours::compile(&tools, program, sources, folder)
    });
    for time in 0..times {
        comparison.run([
            ("ours", &|case, folder| ours::run(&tools, case, folder)),
            ("ours", &|case, folder| ours::run_moved(&tools, moves(time), case, folder)),
        ]);
    }
    comparison.end();
}

/// A seed that differs from run to run, or that `UPCALL_SEED` gives.
#[cfg(debug_assertions)]
fn seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    let given = std::env::var("UPCALL_SEED").ok().map(|seed| seed.parse().expect("a number"));
    given.unwrap_or_else(|| RandomState::new().hash_one(0) >> 32)
}

#[test]
#[cfg(debug_assertions)]
fn programs_print_the_same_while_their_tasks_move() {
    let mut table = table();
    table.keep(&MOVED);
    compare_moved(table, 1, &|_| ours::RandomMoves { processes: 2, interval: 2_000, seed: seed() });
}

/// `tests/shuffled.rs` has programs with more messages.
#[test]
#[cfg(debug_assertions)]
#[ignore = "runs all programs several times"]
fn all_programs_print_the_same_while_their_tasks_move() {
    let kinds = [(2, 2_000), (3, 2_000), (2, 500), (3, 500)];
    compare_moved(table(), kinds.len() as u64, &|time| {
        let (processes, interval) = kinds[time as usize];
        ours::RandomMoves { processes, interval, seed: seed() }
    });
}

/// Checks an assumption of the comparison.
#[test]
#[ignore = "tests only the real PVM"]
fn the_real_pvm_prints_the_same_twice() {
    let Some(mut comparison) = Comparison::of(table()) else { return };
    comparison.compile("real", real::compile);
    comparison.run([("real", &real::run), ("real", &real::run)]);
    comparison.end();
}

/// Checks another assumption of the comparison.
#[test]
#[ignore = "tests only the real PVM"]
fn the_real_pvm_prints_the_same_twice_of_public_programs() {
    let Some(mut comparison) = Comparison::of(public_table()) else { return };
    let Some(sources) = public::Sources::there() else { return };
    sources.build(&mut comparison, "real", public::real());
    comparison.run([("real", &real::run), ("real", &real::run)]);
    comparison.end();
}
