//! Members are started, suspended and resumed, by each method that is available.

use super::*;

fn members(size: usize, freezer: Option<Freezer>, script: &str) -> JobMembers {
    let mut members = JobMembers::new(freezer);
    members.start(&program(size, script)).unwrap();
    members
}

fn program(size: usize, script: &str) -> Program {
    Program {
        path: "sh".into(),
        arguments: vec!["-c".into(), script.into()],
        group: "none".into(),
        size,
        limit: None,
        pin: true,
        input: false,
        pipes: false,
    }
}

/// The command line names the program, and not the cgroup.
#[test]
fn a_cgroup_that_cannot_be_opened_is_no_error_of_the_program() {
    let error = JobMembers::new(Some(Freezer::removed())).start(&program(1, "true")).unwrap_err();
    let JobError::Resource { what, error } = error else { panic!("{error}") };
    assert!(what.contains("cgroup") && error.kind() == io::ErrorKind::NotFound, "{what}: {error}");
}

fn ways() -> Vec<Option<Freezer>> {
    std::iter::once(None).chain(Freezer::new().ok().map(Some)).collect()
}

#[test]
fn suspended_members_use_no_processor_time() {
    for freezer in ways() {
        let mut members = members(3, freezer, "while :; do :; done");
        std::thread::sleep(Duration::from_millis(50));
        members.let_run(|_| false);
        let used = |members: &JobMembers| {
            members
                .living()
                .map(|(_, member)| process::processor_time(member.pid()))
                .collect::<Vec<_>>()
        };
        let before = used(&members);
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(before, used(&members), "{:?}", members.way());
        members.let_run(|_| true);
        let start = Instant::now();
        while used(&members).iter().zip(&before).any(|(now, before)| now == before) {
            assert!(
                start.elapsed() < Duration::from_secs(60),
                "{:?}: they do not go on",
                members.way()
            );
            std::thread::sleep(Duration::from_millis(1));
        }
        let pids: Vec<u32> = members.living().map(|(_, member)| member.pid()).collect();
        drop(members);
        assert!(pids.into_iter().all(|pid| process::born(pid).is_none()));
    }
}

#[test]
fn it_is_seen_where_members_work() {
    let mut members = members(
        2,
        None,
        "if test $UPCALL_RANK = 0; then while :; do :; done; else exec sleep 100; fi",
    );
    std::thread::sleep(Duration::from_millis(100));
    members.look();
    std::thread::sleep(Duration::from_millis(50));
    let first = members.all[0].processor.unwrap();
    assert_eq!(members.look(), [first].into());
    // A suspended member keeps its mark.
    members.let_run(|_| false);
    assert_eq!(members.look(), [first].into());
}

/// Not a test: `cargo test --release -p upcall-job -- --ignored --nocapture times`.
#[test]
#[ignore = "measures"]
fn times_to_stop_and_to_continue() {
    for script in ["exec sleep 100", "while :; do :; done"] {
        for (size, freezer) in
            [2, 8, 32].into_iter().flat_map(|size| ways().into_iter().map(move |way| (size, way)))
        {
            // On a thread of its own, so that its settings for exact timing do not pass to the next
            // members.
            std::thread::scope(|scope| {
                scope.spawn(move || time(script, size, freezer));
            });
        }
    }
}

fn time(script: &str, size: usize, freezer: Option<Freezer>) {
    let mut members = members(size, freezer, script);
    upcall_os::timer::be_exact();
    processor::ask_for_short_slices();
    std::thread::sleep(Duration::from_millis(300));
    let (mut stop, mut cont) = (Vec::new(), Vec::new());
    for _ in 0..200 {
        for (run, times) in [(false, &mut stop), (true, &mut cont)] {
            let start = Instant::now();
            members.let_run(|_| run);
            times.push(start.elapsed());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    stop.sort();
    cont.sort();
    let way = members.way();
    println!(
        "{size:2} × {script:20} {way:?}: stop {:?} (p90 {:?}), continue {:?} (p90 {:?})",
        stop[100], stop[180], cont[100], cont[180]
    );
}
