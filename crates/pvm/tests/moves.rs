//! Moves of tasks between the processes of a machine, as users and programs see them.

mod command;
#[path = "moves/faults.rs"]
mod faults;
#[path = "moves/files.rs"]
mod files;
#[path = "moves/machine.rs"]
mod machine;
#[path = "moves/numbers.rs"]
mod numbers;
#[path = "moves/refusals.rs"]
mod refusals;

use machine::{Machine, compiled};

#[test]
fn a_task_keeps_all_that_it_has() {
    let folder = tempfile::tempdir().unwrap();
    let program = compiled(folder.path(), "kept");
    for (names, args) in [("own", &["large"][..]), ("lent", &[])] {
        let variables = [("UPCALL_PVM_NAMES", names)];
        let said = Machine::start(&[2, 0, 1], 3, &program, args, &variables).ends_well();
        let count = |what: &str| said.iter().filter(|line| line.contains(what)).count();
        assert_eq!(count("packed before, and printed afterwards"), 1, "{}", said.join("\n"));
        assert_eq!([count("child 1000"), count("child 1001"), count("] EOF")], [1, 1, 2]);
    }
}

#[test]
fn a_task_keeps_all_that_it_has_on_other_hosts() {
    let folder = tempfile::tempdir().unwrap();
    let program = compiled(folder.path(), "kept");
    let said = Machine::over_hosts(&[0, 1, 2], &program, &["large"], &[]).ends_well();
    let count = |what: &str| said.iter().filter(|line| line.contains(what)).count();
    assert_eq!(count("packed before, and printed afterwards"), 1, "{}", said.join("\n"));
    assert_eq!([count("child 1000"), count("child 1001"), count("] EOF")], [1, 1, 2]);
}

#[test]
fn who_packs_again_changes_nothing_for_the_other_holders_of_a_block() {
    let folder = tempfile::tempdir().unwrap();
    let program = compiled(folder.path(), "cast");
    for places in [[2, 0, 0, 1, 1, 0], [0, 0, 0, 1, 1, 0]] {
        Machine::start(&places, 3, &program, &[], &[]).ends_well();
    }
}

/// Hundreds of moves are under way at any time.
#[test]
#[cfg(debug_assertions)]
fn a_ring_of_many_tasks_that_are_moved_at_once_loses_no_message() {
    let folder = tempfile::tempdir().unwrap();
    let program = compiled(folder.path(), "many");
    let places = (0..200).map(|task| task % 3).collect::<Vec<_>>();
    let variables = [("UPCALL_PVM_SHUFFLE", "50")];
    let said = Machine::start(&places, 3, &program, &["15"], &variables).ends_well();
    let line = said.iter().find_map(|line| line.strip_suffix(" moves")).unwrap();
    assert!(line.parse::<u32>().unwrap() > 200, "{}", said.join("\n"));
}
