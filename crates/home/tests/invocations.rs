//! Operations that the home runs for others: each once, at the home's own points.

mod adding;
mod invoking;

use adding::Add;
use invoking::{Way, name, operations};
use upcall_home::{AccessError, Grant, Homed};

#[test]
fn each_is_run_once_whatever_way_it_takes() {
    invoking::each_is_run_once_whatever_way_it_takes(Way::Near);
}

#[test]
fn procedures_may_block_and_say_what_they_want() {
    invoking::procedures_may_block_and_say_what_they_want(Way::Near);
}

#[test]
fn urgent_work_waits_for_no_ordinary_work_of_the_same_home() {
    invoking::urgent_work_waits_for_no_ordinary_work_of_the_same_home(Way::Near);
}

#[test]
fn procedures_of_one_home_can_wait_for_each_other() {
    invoking::procedures_of_one_home_can_wait_for_each_other(Way::Near);
}

#[test]
fn procedures_of_homes_can_invoke_each_other_in_a_circle() {
    invoking::procedures_of_homes_can_invoke_each_other_in_a_circle(Way::Near);
}

#[test]
fn a_service_that_ends_waits_for_its_procedures() {
    invoking::a_service_that_ends_waits_for_its_procedures(Way::Near);
}

#[test]
fn arguments_and_replies_of_all_lengths_come_whole() {
    invoking::arguments_and_replies_of_all_lengths_come_whole(Way::Near);
}

#[test]
fn what_is_masked_waits_and_is_run_then() {
    invoking::what_is_masked_waits_and_is_run_then(Way::Near);
}

#[test]
fn homes_can_invoke_each_other() {
    invoking::homes_can_invoke_each_other(Way::Near);
}

#[test]
fn a_virtual_processor_serves_by_itself() {
    invoking::a_virtual_processor_serves_by_itself(Way::Near);
}

#[test]
fn what_cannot_be_run_is_told() {
    invoking::what_cannot_be_run_is_told(Way::Near);
}

#[test]
fn an_operation_that_the_home_runs_for_others_invokes_nothing_either() {
    invoking::an_operation_that_the_home_runs_for_others_invokes_nothing_either(Way::Near);
}

#[test]
fn who_waits_for_a_home_that_ends_is_told() {
    invoking::who_waits_for_a_home_that_ends_is_told(Way::Near);
}

#[test]
fn a_thread_serves_several_objects() {
    invoking::a_thread_serves_several_objects(Way::Near);
}

#[test]
fn a_thread_invokes_by_any_number_of_holds() {
    invoking::a_thread_invokes_by_any_number_of_holds(Way::Near);
}

/// Its memory is not even mapped.
#[test]
fn who_may_only_invoke_invokes() {
    let making = Homed::<u64>::create(&name("only")).policy(|_| Ok(Grant::Invoke));
    let home = making.with(|number| number.set(5)).unwrap();
    let _served = home.serve_in_background(operations()).unwrap();
    let maps = || {
        std::fs::read_to_string("/proc/self/maps")
            .unwrap()
            .matches(&format!("upcall-object-{}", home.name()))
            .count()
    };
    let before = maps();
    let away = Homed::<u64>::find(home.name()).unwrap();
    assert_eq!((away.grant(), maps()), (Grant::Invoke, before));
    assert_eq!(away.urgent::<Add>(1).unwrap(), 6);
    assert_eq!(away.perform::<Add>(1), Err(AccessError::NotGranted));
    let refused = away.read(|number| number.get()).unwrap_err();
    assert!(
        matches!(refused, AccessError::NotGranted) && refused.to_string().contains("`urgent`"),
        "{refused}"
    );
    assert_eq!(away.try_clone().unwrap().urgent::<Add>(1).unwrap(), 7);
}
