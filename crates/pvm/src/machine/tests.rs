use super::*;
use crate::wire::PacketReader;

fn shares(place: TaskPlacement, counts: &[usize]) -> Vec<Vec<(Rank, u32)>> {
    let mut machine = Machine::new(place);
    let share = |(rank, slots): (Rank, Vec<u32>)| (rank, slots.len() as u32);
    let mut shares = |count: &usize| {
        machine
            .request(None, TaskSpec::default(), *count, 3, None)
            .1
            .into_iter()
            .map(share)
            .collect::<Vec<_>>()
    };
    counts.iter().map(&mut shares).collect()
}

#[test]
fn a_process_has_tasks_of_a_block_that_follow_each_other() {
    let (_, shares) =
        Machine::new(TaskPlacement::Block).request(None, TaskSpec::default(), 6, 3, None);
    assert_eq!(shares.len(), 3);
    assert!(shares.iter().all(|(_, slots)| slots[1] == slots[0] + 1), "{shares:?}");
}

#[test]
fn tasks_are_placed_in_blocks_around_or_as_a_list_says() {
    assert_eq!(
        shares(TaskPlacement::Block, &[6, 1, 1]),
        [vec![(0, 2), (1, 2), (2, 2)], vec![(0, 1)], vec![(1, 1)]]
    );
    assert_eq!(
        shares(TaskPlacement::Interleave, &[4, 1]),
        [vec![(0, 2), (1, 1), (2, 1)], vec![(1, 1)]]
    );
    assert_eq!(shares(TaskPlacement::List(vec![2, 2, 0]), &[4]), [vec![(0, 1), (2, 3)]]);
}

#[test]
fn a_process_does_not_take_over_a_task_that_it_claims_to_have_started() {
    let mut machine = Machine::new(TaskPlacement::Interleave);
    let (request, _) = machine.request(None, TaskSpec::default(), 2, 2, None);
    let (one, other) = (Tid::new(0, 1), Tid::new(1, 1));
    assert!(machine.started(request, 0, vec![Ok(one.number())], "x").is_none());
    let started = machine.started(request, 1, vec![Ok(one.number()), Ok(other.number())], "y");
    let Some(Started { tids, errors, .. }) = started else { panic!("not all have started") };
    assert_eq!((tids, errors), (vec![one], vec![error::SYS_ERR]));
    assert_eq!((machine.rank(one), machine.rank(other)), (Some(0), None));
    // The slot is free again.
    assert_eq!(machine.slots.taken.len(), 1);
}

#[test]
fn a_request_for_more_tasks_than_there_is_room_for_is_done_at_once() {
    let mut machine = Machine::new(TaskPlacement::Interleave);
    let (request, shares) = machine.request(None, TaskSpec::default(), 1 << 18, 1, None);
    assert_eq!(shares[0].1.len(), SLOTS);
    let Some(Started { errors, .. }) = machine.started(request, 0, Vec::new(), "x") else {
        panic!("not all have an answer")
    };
    assert_eq!(errors.len(), 1 << 18);
}

#[test]
fn tasks_start_in_the_processes_that_are_named() {
    for place in [TaskPlacement::Block, TaskPlacement::Interleave, TaskPlacement::List(vec![0])] {
        let mut machine = Machine::new(place);
        let request = machine.request(None, TaskSpec::default(), 4, 5, Some(&[3, 4]));
        let ranks = request.1.iter().map(|(rank, _)| *rank).collect::<Vec<_>>();
        assert!(ranks.iter().all(|rank| [3, 4].contains(rank)), "{ranks:?}");
    }
}

#[test]
fn no_two_tasks_have_a_slot_and_what_is_given_back_is_given_again_late() {
    let mut machine = Machine::new(TaskPlacement::Interleave);
    let (request, shares) = machine.request(None, TaskSpec::default(), 4, 2, None);
    assert_eq!(shares, [(0, vec![0, 2]), (1, vec![1, 3])]);
    let one = Tid::new(0, 1);
    machine.started(request, 0, vec![Ok(one.number()), Err(-7)], "x");
    // One start failed. The other process dies before it has started any task.
    machine.lost(1, &mut Vec::new());
    assert_eq!(machine.slots.taken, HashSet::from([0]));
    assert_eq!(machine.request(None, TaskSpec::default(), 1, 2, None).1, [(0, vec![4])]);
    machine.ended(one, 0, None, &mut Vec::new());
    let all = machine
        .request(None, TaskSpec::default(), SLOTS, 2, None)
        .1
        .into_iter()
        .flat_map(|(_, slots)| slots)
        .collect::<Vec<_>>();
    assert_eq!((all.len(), all[SLOTS - 2], all.contains(&4)), (SLOTS - 1, 3, false));
    assert!(
        machine.is_full() && machine.request(None, TaskSpec::default(), 1, 2, None).1.is_empty()
    );
}

#[test]
fn where_each_is_alone_there_are_no_more_than_processes() {
    assert_eq!(shares(TaskPlacement::Alone, &[1, 2]), [vec![(1, 1)], vec![(2, 1)]]);
    let mut machine = Machine::new(TaskPlacement::Alone);
    let (request, shares) = machine.request(None, TaskSpec::default(), 2, 1, None);
    assert!(shares.is_empty());
    let started = machine.nowhere(request).unwrap();
    assert_eq!((started.tids, started.errors), (Vec::new(), vec![error::OUT_OF_RES; 2]));
}

#[test]
fn who_gets_no_room_is_counted_once_with_the_way_out() {
    let told = |processes| Machine::new(TaskPlacement::Alone).no_room(969, 1000, processes);
    let [some, all] = [33, 256].map(|processes| told(processes).unwrap());
    assert_eq!(
        some,
        "969 of 1000 tasks were not started: --as-processes gives each task a process, and \
         all 32 are taken. Give --as-processes=MOST, up to 255"
    );
    assert!(all.contains("all 255 are taken. Without --as-processes"), "{all}");
    let mut machine = Machine::new(TaskPlacement::Block);
    machine.request(None, TaskSpec::default(), SLOTS + 1, 1, None);
    let full = machine.no_room(1, SLOTS + 1, 1).unwrap();
    assert!(full.contains(&format!("all {SLOTS} places for tasks are taken")), "{full}");
    assert_eq!(machine.no_room(1, 1, 1), None);
    let mut machine = Machine::new(TaskPlacement::Block).with_places(7);
    let (_, shares) = machine.request(None, TaskSpec::default(), 8, 1, None);
    assert_eq!(shares, [(0, (0..7).collect())]);
    let full = machine.no_room(1, 8, 1).unwrap();
    assert!(full.contains("all 7 places for tasks are taken"), "{full}");
}

#[test]
fn a_task_is_where_it_was_started_whatever_its_number() {
    let mut machine = Machine::new(TaskPlacement::List(vec![2]));
    let (request, _) = machine.request(None, TaskSpec::default(), 2, 4, None);
    let [one, other] = [Tid::new(1, 7), Tid::new(0, 1)];
    machine.started(request, 2, [one, other].map(|tid| Ok(tid.number())).to_vec(), "x");
    assert_eq!([one, other].map(|tid| machine.rank(tid)), [Some(2); 2]);
    assert_eq!((machine.rank(Tid::new(2, 1)), machine.free(4)), (None, vec![1, 3]));
    let of = |name: &str, processes| (name.to_owned(), processes);
    let hosts = MachineHosts::new([of("a", 2), of("b", 2)]).unwrap();
    let (_, listed) = machine.list(one.number(), &hosts, |rank| rank as i32 + 100, |_| 4);
    let mut listed = PacketReader::new(listed.as_bytes());
    let [.., host, _, process] = [(); 5].map(|()| listed.int());
    assert_eq!((host, process), (Some(hosts.number(1)), Some(102)));
    let of_host = |host: i32| machine.list((host + 1) << 18, &hosts, |_| 7, |_| 4).0;
    assert_eq!([0, 1, 2].map(of_host), [0, 2, error::NO_TASK]);
    // The announcement of one was counted, and so its end is announced.
    assert_eq!((machine.announced(&[other.number()]), machine.next_gone()), (1, None));
    assert!([0, 1, 3].iter().all(|rank| machine.lost(*rank, &mut Vec::new()).0.is_empty()));
    assert_eq!(machine.lost(2, &mut Vec::new()).0, [other, one]);
    assert_eq!([(); 2].map(|()| machine.next_gone()), [Some(other), None]);
}

#[test]
fn what_several_processes_start_is_one_answer_in_its_order() {
    let mut machine = Machine::new(TaskPlacement::Interleave);
    let (request, _) = machine.request(None, TaskSpec::default(), 4, 2, None);
    let [a, b] = [Tid::new(0, 1), Tid::new(0, 2)].map(|tid| Ok(tid.number()));
    assert!(machine.started(request, 0, vec![a, b], "x").is_none());
    let one = Tid::new(1, 1);
    let started = machine.started(request, 1, vec![Ok(one.number()), Err(-7)], "x").unwrap();
    assert_eq!(
        (started.tids, started.errors),
        (vec![Tid::new(0, 1), one, Tid::new(0, 2)], vec![-7])
    );
    assert!(machine.is_there(one) && !machine.is_over());
    assert_eq!(machine.free(4), [2, 3]);
    let (lost, _) = machine.lost(1, &mut Vec::new());
    assert_eq!((lost, machine.worst), (vec![one], 137));
    assert_eq!(machine.list(0, &MachineHosts::home(2), |_| 7, |_| 4).0, 2);
}

#[test]
fn tasks_start_only_in_processes_in_use() {
    let places = |place: TaskPlacement, used: Vec<Rank>| {
        let mut machine = Machine::new(place);
        machine.start_only_in(used);
        let (_, shares) = machine.request(None, TaskSpec::default(), 4, 3, None);
        shares.into_iter().map(|(rank, slots)| (rank, slots.len())).collect::<Vec<_>>()
    };
    assert_eq!(places(TaskPlacement::Block, vec![1]), [(1, 4)]);
    assert_eq!(places(TaskPlacement::Interleave, vec![0, 2]), [(0, 2), (2, 2)]);
    assert_eq!(places(TaskPlacement::List(vec![2, 1]), vec![0, 2]), [(2, 4)]);
    // With none in use, all are.
    assert_eq!(places(TaskPlacement::Interleave, vec![]).len(), 3);
}

/// Another host names the program, once for up to all tasks of a process.
#[test]
fn the_name_of_a_program_is_short_and_can_be_shown() {
    let mut machine = Machine::new(TaskPlacement::Block);
    let (request, _) = machine.request(None, TaskSpec::default(), 1, 1, None);
    let (tid, name) = (Tid::new(0, 1), format!("\x1b[2J{}", "x".repeat(1 << 20)));
    machine.started(request, 0, vec![Ok(tid.number())], &name).unwrap();
    assert_eq!(machine.program(tid), Some(&*format!("?[2J{}", "x".repeat(251))));
}
