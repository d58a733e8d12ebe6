//! The figures with an aim, as a run has them.

use super::case::Case;
use super::table::{at, here};
use crate::case::Placement;
use crate::record::Record;
use crate::table::{Aim, ratio};

/// Minimum ratio of the line's round trips of two different placements of processors.
const FAR: f64 = 1.6;

/// Returns the time of a message of Upcall without writing and checking, in copies of as many
/// bytes.
pub(super) fn in_copies(record: &Record) -> Option<f64> {
    Some(record.bare_ns? / record.memcpy_ns.filter(|ns| *ns > 0.0)?)
}

/// Returns the aims, with the figures that are in the records.
#[expect(clippy::too_many_lines, reason = "one entry for each bar")]
pub(super) fn all(records: &[Record]) -> Vec<Aim> {
    let ours = |case| here(records, "upcall", case);
    let mut all = Vec::new();
    let mut bar = |what: String, found: Option<f64>, bar: f64, more: bool| {
        all.push(Aim { what, found, bar, more, paper: None });
    };
    for (ulps, aim) in [(16, 35.0), (1000, 120.0)] {
        bar(format!("a switch among {ulps} ULPs, ns"), ours(Case::Switch(ulps)), aim, false);
    }
    for (bytes, aim) in [(0, 150.0), (1000, 250.0)] {
        bar(format!("one way, {bytes} bytes, ns"), ours(Case::OneWay(bytes)), aim, false);
    }
    let long = at(records, "upcall", Placement::OneCore, Case::OneWay(100_000));
    bar(
        "one way, 100000 bytes, neither written nor checked, in copies".into(),
        long.and_then(in_copies),
        2.2,
        false,
    );
    for bytes in [0, 1000, 100_000] {
        let case = Case::OneWay(bytes);
        // The faster of the two.
        let pvm = ["pvm", "pvm-direct"]
            .into_iter()
            .filter_map(|system| here(records, system, case))
            .reduce(f64::min);
        bar(format!("one way, {bytes} bytes: PVM to ours"), ratio(pvm, ours(case)), 100.0, true);
        bar(
            format!("one way, {bytes} bytes: Open MPI to ours"),
            ratio(here(records, "openmpi-yield", case), ours(case)),
            10.0,
            true,
        );
    }
    for bytes in [1000, 100_000] {
        let bare = |system| {
            at(records, system, Placement::OneCore, Case::OneWay(bytes))
                .and_then(|record| record.bare_ns)
        };
        let pvm = ["pvm", "pvm-direct"].into_iter().filter_map(bare).reduce(f64::min);
        let what = format!("one way, {bytes} bytes, neither written nor checked");
        bar(format!("{what}: PVM to ours"), ratio(pvm, bare("upcall")), 100.0, true);
        bar(
            format!("{what}: Open MPI to ours"),
            ratio(bare("openmpi-yield"), bare("upcall")),
            10.0,
            true,
        );
    }
    for (tasks, aim) in [(24, 150.0), (1000, 300.0)] {
        bar(format!("a hop in a ring of {tasks}, ns"), ours(Case::Ring(tasks)), aim, false);
    }
    let ring = Case::Ring(24);
    bar(
        "a hop in a ring of 24: Open MPI to ours".into(),
        ratio(here(records, "openmpi-yield", ring), ours(ring)),
        100.0,
        true,
    );
    let two = |system: &str, case| at(records, system, Placement::TwoCores, case);
    let pair = two("upcall-2", Case::Ring(2)).zip(two("upcall", Case::CallOneWay));
    // The host moves processors: a hop between near ones is not compared with a call between far
    // ones.
    let alike = |one: Option<f64>, other: Option<f64>| {
        one.zip(other).is_none_or(|(one, other)| one.max(other) < FAR * one.min(other))
    };
    let hop = pair
        .filter(|(hop, call)| alike(hop.line_ns, call.line_ns))
        .map(|(hop, call)| hop.p50_ns / call.p50_ns);
    bar("a hop between processes, in one ways of a call".into(), hop, 2.5, false);
    let loss =
        ratio(ours(Case::Laplace(1)), ours(Case::Laplace(64))).map(|part| 100.0 * (1.0 - part));
    bar("Laplace, percent lost by 64 tasks".into(), loss, 2.0, false);
    for tasks in super::case::STARTS {
        bar(
            format!("start of one of {tasks}, µs"),
            ours(Case::Start(tasks)).map(|ns| ns / 1e3),
            300.0,
            false,
        );
    }
    bar(
        "start of a task: PVM to ours".into(),
        ratio(here(records, "pvm", Case::Start(1)), ours(Case::Start(1))),
        6.0,
        true,
    );
    for (size, aim) in [("100k", 100.0), ("1m", 300.0), ("64m", 2_000.0), ("1g", 5_000.0)] {
        let pause = two("upcall-2", Case::Move(size)).map(|record| record.p50_ns / 1e3);
        bar(format!("pause of a task of {size} that moves, µs"), pause, aim, false);
    }
    let total = two("upcall-2", Case::Move("100k")).map(|record| record.mean_ns / 1e3);
    bar("move of a task of 100k, from request to answer, µs".into(), total, 150.0, false);
    let kept = two("upcall-2", Case::MovingMessages)
        .and_then(|record| Some(record.alone_ns? / record.p50_ns * 100.0));
    bar("messages to a task that moves each 10 ms, percent".into(), kept, 95.0, true);
    let idle = at(records, "upcall", Placement::OneCore, Case::Idle(1000));
    bar(
        "KiB of a task that waits".into(),
        idle.and_then(|record| record.bytes_each).map(|bytes| bytes / 1024.0),
        150.0,
        false,
    );
    all.extend(saves(records));
    all.extend(balances(records));
    all
}

/// Returns the percentage of the ideal speed that a balanced machine has, by the medians, and over
/// its whole run.
pub(super) fn of_ideal(records: &[Record], how: &'static str) -> Option<[f64; 2]> {
    let of = |how| at(records, "upcall-2", Placement::TwoCores, Case::Balance(how));
    let (ideal, found) = (of("ideal")?, of(how)?);
    Some([ideal.p50_ns / found.p50_ns, ideal.mean_ns / found.mean_ns].map(|part| 100.0 * part))
}

/// Returns the percentage of a time that was lost.
fn lost(ideal: Option<f64>, found: Option<f64>) -> Option<f64> {
    ratio(ideal, found).map(|part| 100.0 * (1.0 - part))
}

/// The aims of machines that are balanced, and of grids of the paper's proportions.
fn balances(records: &[Record]) -> Vec<Aim> {
    let balanced = of_ideal(records, "on").map(|[_, all]| all);
    let away = at(records, "upcall-2", Placement::TwoCores, Case::ProcessorAway);
    let away = away.and_then(|record| lost(record.alone_ns, Some(record.mean_ns)));
    let paper = |tasks| at(records, "upcall", Placement::OneCore, Case::LaplacePaper(tasks));
    let (one, many) = (paper(1).map(|one| one.p50_ns), paper(64));
    let found = many.map(|many| many.p50_ns);
    let laplace = "Laplace of the paper's proportions, percent lost by 64 tasks";
    vec![
        Aim::at_least("uneven Laplace with balancing, percent of the best by hand", balanced, 95.0),
        Aim::at_most("a processor away and back, percent lost besides its time", away, 3.0),
        Aim::at_most(format!("{laplace} to one"), lost(one, found), 2.0),
        Aim::at_most(
            format!("{laplace} to one in as many blocks"),
            lost(many.and_then(|many| many.alone_ns), found),
            2.0,
        ),
    ]
}

/// The aims of checkpoints and restarts.
fn saves(records: &[Record]) -> Vec<Aim> {
    let aim = |what: &str, case, bar| {
        let found = here(records, "upcall", case).map(|ns| ns / 1e9);
        Aim::at_most(format!("{what} of 1000 tasks of 100 KiB, s"), found, bar)
    };
    vec![aim("checkpoint", Case::Checkpoint(1000), 0.5), aim("restart", Case::Restart(1000), 1.0)]
}
