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

#[test]
#[ignore = "runs all programs several times"]
fn experiment() {
    let Some(mut comparison) = Comparison::of(table()) else { return };
    let number =
        |name: &str, default: u64| std::env::var(name).map_or(default, |v| v.parse().unwrap());
    let moving = ours::RandomMoves {
        processes: number("P", 2) as usize,
        interval: number("I", 2000) as u32,
        seed: number("S", 1),
    };
    let tools = ours::tools();
    comparison.compile("ours", |program, sources, folder| {
        ours::compile(&tools, program, sources, folder)
    });
    comparison.run([
        ("ours", &|case, folder| ours::run(&tools, case, folder)),
        ("ours", &|case, folder| ours::run_moved(&tools, &moving, case, folder)),
    ]);
    comparison.end();
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
