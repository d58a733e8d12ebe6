//! Jobs as processes: started, stopped, ended and killed, and several that take turns (UDM).

use crate::faults::state;
use crate::{alone, in_company, place};
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;
use upcall_tests::party::{Party, Said};
use upcall_tests::place::{Place, eventually};

fn start(place: &Place, options: &str, member: &str) -> Party {
    place.start(&format!("supervise {options} -- {member}"))
}

/// Returns the next lines, as a set of their words.
fn lines(job: &mut Party, count: usize) -> BTreeSet<String> {
    (0..count).map(|_| job.hear().expect_ok("a line").join(" ")).collect()
}

/// Returns all lines until the job's end.
fn rest(job: &mut Party) -> Vec<String> {
    std::iter::from_fn(|| job.try_hear()).map(|said| said.expect_ok("a line").join(" ")).collect()
}

fn code(job: &mut Party) -> String {
    job.hear().expect_ok("the end").join(" ")
}

/// Sends a request from a process of its own, and returns the last line of that process.
fn ask(place: &Place, what: &str) -> Said {
    let mut asking = place.start(&format!("job {what}"));
    let said = std::iter::from_fn(|| asking.try_hear()).last();
    said.expect("an answer")
}

/// Returns the jobs as they show themselves: name, state, whether the job's supervisor leads, and
/// processes.
fn jobs(place: &Place) -> Vec<(String, String, bool, Vec<u32>)> {
    let mut asking = place.start("job ls");
    let mut jobs = Vec::new();
    while let Some(said) = asking.try_hear() {
        if let [name, state, leads, pids @ ..] = &said.expect_ok("the jobs")[..] {
            let pids = pids.iter().map(|pid| pid.parse().expect("a number")).collect();
            jobs.push((name.clone(), state.clone(), leads == "leads", pids));
        }
    }
    jobs
}

fn members(place: &Place, name: &str) -> Vec<u32> {
    let found = jobs(place).into_iter().find(|job| job.0 == name);
    found.unwrap_or_else(|| panic!("no job {name}")).3
}

fn are(pids: &[u32], what: &str, is: impl Fn(Option<char>) -> bool) {
    eventually(what, || {
        let states: Vec<_> = pids.iter().map(|&pid| state(pid)).collect();
        if states.iter().all(|&state| is(state)) { Ok(()) } else { Err(format!("{states:?}")) }
    });
}

fn are_gone(pids: &[u32]) {
    are(pids, "no member is left", |state| matches!(state, None | Some('Z')));
}

/// Returns the suspend methods that this machine has. A missing method is reported, and not tested.
fn ways(place: &Place) -> Vec<&'static str> {
    let mut probe = start(place, "size=1 way=freezer", "job-member exit 0");
    match probe.hear() {
        Said::Ok(_) => vec!["signals", "freezer"],
        Said::Error { text, .. } => {
            println!("    no freezer here: {text}");
            vec!["signals"]
        }
    }
}

#[test]
fn four_members_find_each_other() {
    let _company = in_company();
    let place = place();
    let mut job = start(&place, "size=4", "job-member exchange 2000");
    let expected =
        (0..4).map(|rank| format!("exchanged {rank}")).chain(["started".into()]).collect();
    assert_eq!(lines(&mut job, 5), expected);
    assert_eq!(code(&mut job), "code 0");
    place.expect_empty();
}

#[test]
fn when_a_member_is_killed_the_others_end() {
    let _company = in_company();
    let place = place();
    let mut job = start(&place, "size=3 name=falls", "job-member hold");
    lines(&mut job, 4);
    let pids = members(&place, "falls");
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(pids[1] as i32).expect("one"),
        Signal::KILL,
    )
    .expect("killing");
    let said = rest(&mut job);
    let died = format!(
        "died falls: member 1 (process {}) was killed by SIGKILL (signal 9); the others are ended",
        pids[1]
    );
    assert!(said.contains(&died), "{said:?}");
    assert_eq!(said.last().map(String::as_str), Some("code 137"));
    are_gone(&pids);
    ask(&place, "ls").expect_ok("sweeping");
    place.expect_empty();
}

#[test]
fn when_a_member_is_killed_the_others_can_go_on() {
    let _company = in_company();
    let place = place();
    let mut job = start(&place, "size=3 name=lasts go-on", "job-member hold");
    lines(&mut job, 4);
    let pids = members(&place, "lasts");
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(pids[1] as i32).expect("one"),
        Signal::KILL,
    )
    .expect("killing");
    let died =
        format!("died lasts: member 1 (process {}) was killed by SIGKILL (signal 9)", pids[1]);
    assert_eq!(lines(&mut job, 3), [died, "missed 0 1".into(), "missed 2 1".into()].into());
    assert_eq!(members(&place, "lasts"), [pids[0], pids[2]]);
    ask(&place, "kill lasts").expect_ok("ending it");
    // On the way to their end they may miss each other.
    let said = rest(&mut job);
    assert_eq!(said.last().map(String::as_str), Some("code 137"), "the first failure's");
    are_gone(&pids);
}

#[test]
fn a_code_is_passed_on() {
    let _company = in_company();
    let place = place();
    let mut job = start(&place, "size=1 name=seven", "job-member exit 7");
    job.hear().expect_ok("the start");
    assert!(code(&mut job).starts_with("died seven: member 0"));
    assert_eq!(code(&mut job), "code 7");
    place.expect_empty();
}

/// Returns the cgroups that the supervisor with this number has made, at the usual place on test
/// machines.
fn cgroups(pid: u32) -> Vec<String> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let own =
        groups.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default().to_string();
    let folders =
        ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(|mount| Path::new(mount).join(&own));
    let entries =
        folders.into_iter().filter_map(|folder| std::fs::read_dir(folder).ok()).flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with(&format!("upcall-job-{pid}-"))).collect()
}

#[test]
fn nothing_is_left_of_a_supervisor_that_is_killed() {
    let _company = in_company();
    let place = place();
    for way in ways(&place) {
        for stopped in [false, true] {
            let mut job = start(&place, &format!("size=3 name=gone way={way}"), "job-member hold");
            lines(&mut job, 4);
            let pids = members(&place, "gone");
            if stopped {
                ask(&place, "stop gone").expect_ok("stopping");
            }
            job.kill();
            are_gone(&pids);
            ask(&place, "stop gone").expect_error("Gone", &["its supervisor was killed"]);
            assert_eq!(jobs(&place), []);
            place.expect_empty();
            assert_eq!(cgroups(job.pid()), Vec::<String>::new());
            job.ended();
        }
    }
}

#[test]
fn a_job_is_stopped_and_goes_on_and_is_killed() {
    let _company = in_company();
    let place = place();
    for way in ways(&place) {
        let mut job =
            start(&place, &format!("size=4 name=held way={way} grace=500"), "job-member sleep");
        job.hear().expect_ok("the start");
        let pids = members(&place, "held");
        for _ in 0..3 {
            ask(&place, "stop held").expect_ok("stopping");
            if way == "signals" {
                are(&pids, "they are stopped", |state| state == Some('T'));
            }
            assert_eq!(jobs(&place)[0].1, "Stopped");
            ask(&place, "cont held").expect_ok("going on");
            are(&pids, "they go on", |state| state == Some('S'));
            assert_eq!(jobs(&place)[0].1, "Running");
        }
        // A job can be ended while it is stopped, too.
        ask(&place, "stop held").expect_ok("stopping");
        ask(&place, "kill held").expect_ok("ending it");
        assert_eq!(code(&mut job), "code 143");
        are_gone(&pids);
        ask(&place, "kill held").expect_error("NoJob", &["no job \"held\"", "upcall job ls"]);
        place.expect_empty();
    }
}

/// Sends, barriers and reductions go on, even after a stop of more than a second.
#[test]
fn the_group_of_a_job_that_is_stopped_and_goes_on_works_on() {
    let _company = in_company();
    let place = place();
    for way in ways(&place) {
        let (file, rounds) = (place.path().join("enough"), place.path().join("enough.rounds"));
        let mut job = start(
            &place,
            &format!("size=4 name=works way={way}"),
            &format!("job-member work {}", file.display()),
        );
        job.hear().expect_ok("the start");
        let so_far = || {
            std::fs::read_to_string(&rounds)
                .ok()
                .and_then(|text| text.parse::<u64>().ok())
                .unwrap_or(0)
        };
        let go_on = |from: u64| {
            eventually("the group works", || {
                if so_far() > from { Ok(()) } else { Err(format!("{} rounds", so_far())) }
            });
        };
        go_on(0);
        for pause in [1, 20, 1200, 1, 20] {
            ask(&place, "stop works").expect_ok("stopping");
            let stopped = so_far();
            std::thread::sleep(Duration::from_millis(pause));
            ask(&place, "cont works").expect_ok("going on");
            go_on(stopped);
        }
        std::fs::write(&file, []).expect("the end");
        let all = so_far();
        let mut ended: Vec<Vec<String>> =
            (0..4).map(|_| job.hear().expect_ok("the work")).collect();
        ended.sort();
        for (rank, words) in ended.iter().enumerate() {
            assert_eq!(words[..2], ["worked".to_string(), rank.to_string()], "{way}: {ended:?}");
            assert!(
                words[2] == ended[0][2]
                    && words[2].parse::<u64>().is_ok_and(|rounds| rounds >= all),
                "{way}: {ended:?}"
            );
        }
        assert_eq!(code(&mut job), "code 0");
        std::fs::remove_file(&file).expect("the file");
        std::fs::remove_file(&rounds).expect("the file");
    }
    place.expect_empty();
}

#[test]
fn signals_are_passed_on_also_to_who_is_stopped() {
    let _company = in_company();
    let place = place();
    let mut job = start(&place, "size=2 name=told", "job-member sleep");
    job.hear().expect_ok("the start");
    let pids = members(&place, "told");
    ask(&place, "stop told").expect_ok("stopping");
    // Not Ctrl-C's signal: a process that is started in the background ignores that one, and so do
    // all its children.
    job.signal(Signal::TERM);
    assert!(code(&mut job).contains("was killed by SIGTERM"));
    let mut last = code(&mut job);
    if last.starts_with("died") {
        last = code(&mut job);
    }
    assert_eq!(last, "code 143");
    are_gone(&pids);
    place.expect_empty();
}

#[test]
fn output_is_labelled_and_input_is_the_first_ones() {
    let _company = in_company();
    let place = place();
    let mut job = start(&place, "size=2 label input", "job-member echo");
    job.hear().expect_ok("the start");
    job.say("words");
    // The label is not one of the party's words.
    let second = job.hear();
    assert_eq!(second, Said::Ok(vec!["ok".into(), "read".into()]), "rank 1 has nothing to read");
    job.ended();
    assert_eq!(job.hear(), Said::Ok(vec!["ok".into(), "read".into(), "words".into()]));
    assert_eq!(code(&mut job), "code 0");
}

#[test]
fn what_cannot_be_is_refused() {
    let _company = in_company();
    let place = place();
    let refused = |options: &str, member: &str| start(&place, options, member).hear();
    refused("size=0", "job-member sleep")
        .expect_error("BadSize", &["from 1 to 1024 members, not 0"]);
    refused("size=1 name=a/b", "job-member sleep")
        .expect_error("BadName", &["cannot be the name of a job"]);
    refused("size=2", "program /does/not/exist")
        .expect_error("NotStarted", &["member 0, /does/not/exist", "No such file", "give a path"]);
    refused("size=2", "program /etc/passwd")
        .expect_error("NotStarted", &["Permission denied", "chmod"]);
    refused("size=1 way=freezer schedule=co", "job-member sleep")
        .expect_error("NoFreezer", &["single members"]);
    let mut first = start(&place, "size=1 name=one", "job-member sleep");
    first.hear().expect_ok("the start");
    refused("size=1 name=one", "job-member sleep")
        .expect_error("Taken", &["already", "upcall job kill one"]);
    ask(&place, "stop two").expect_error("NoJob", &["no job \"two\""]);
    ask(&place, "kill one").expect_ok("ending it");
    first.ended();
    place
        .start("job-member hold")
        .hear()
        .expect_error("NoJob", &["UPCALL_GROUP is not set", "upcall job run --group N"]);
    place.expect_empty();
}

/// When the members of a job ran, by their own clocks.
fn ran(path: &Path, size: usize) -> Vec<[u64; 2]> {
    let of = |rank: usize| {
        let text =
            std::fs::read_to_string(format!("{}.{rank}", path.display())).expect("when it ran");
        let parse = |line: &str| {
            line.split_once(' ').and_then(|(a, b)| Some([a.parse().ok()?, b.parse().ok()?]))
        };
        text.lines().map(|line| parse(line).expect("numbers")).collect::<Vec<[u64; 2]>>()
    };
    (0..size).flat_map(of).collect()
}

/// Returns how much of these spans lies between two moments, in all.
fn within(ran: &[[u64; 2]], from: u64, to: u64) -> u64 {
    ran.iter().map(|&[begin, end]| end.min(to).saturating_sub(begin.max(from))).sum()
}

fn spinning(place: &Place, options: &str, name: &str, ms: u64) -> Party {
    let path = place.path().join(name);
    start(
        place,
        &format!("size=2 name={name} {options}"),
        &format!("job-member spin {ms} {}", path.display()),
    )
}

/// The same until the test creates the file of this name.
fn spinning_until(place: &Place, options: &str, name: &str) -> (Party, PathBuf) {
    let path = place.path().join(name);
    let member = format!("job-member spin-until {}", path.display());
    (start(place, &format!("size=2 name={name} {options}"), &member), path)
}

fn finish(job: &mut Party) {
    let said = rest(job);
    assert_eq!(said.last().map(String::as_str), Some("code 0"), "{said:?}");
}

#[test]
fn gangs_never_run_together_and_share() {
    let _alone = alone();
    let place = place();
    for way in ways(&place) {
        let options = format!("schedule=gang way={way}");
        // On a slow machine, the shares are right after more turns.
        let mut time = Duration::from_millis(1200);
        eventually("they share", || {
            let mut both = ["a", "b"].map(|name| spinning_until(&place, &options, name));
            both.iter_mut().for_each(|(job, _)| drop(job.hear().expect_ok("the start")));
            std::thread::sleep(time);
            time *= 2;
            both.iter().for_each(|(_, path)| std::fs::write(path, []).expect("the end"));
            both.iter_mut().for_each(|(job, _)| finish(job));
            let [a, b] = both.each_ref().map(|(_, path)| {
                std::fs::remove_file(path).expect("the end");
                ran(path, 2)
            });
            let together: u64 = a.iter().map(|&[from, to]| within(&b, from, to)).sum();
            assert_eq!(together, 0, "{way}: ns in which both ran");
            let first = |ran: &[[u64; 2]]| ran.iter().map(|span| span[0]).min().expect("one");
            let last = |ran: &[[u64; 2]]| ran.iter().map(|span| span[1]).max().expect("one");
            let (from, to) = (first(&a).max(first(&b)), last(&a).min(last(&b)));
            let shares = [&a, &b].map(|ran| within(ran, from, to) as f64);
            println!(
                "    {way}: {:.0} ms together, shares {:.2?} ms",
                to.saturating_sub(from) as f64 / 1e6,
                shares.map(|ns| ns / 1e6)
            );
            let is_fair = shares.iter().all(|share| share / (shares[0] + shares[1]) > 0.25);
            if is_fair { Ok(()) } else { Err(format!("{way}: {shares:?}")) }
        });
    }
    place.expect_empty();
}

#[test]
fn batch_jobs_follow_one_another() {
    let _company = in_company();
    let place = place();
    let mut first = spinning(&place, "schedule=batch", "a", 300);
    first.hear().expect_ok("the start");
    let mut second = spinning(&place, "schedule=batch", "b", 100);
    finish(&mut first);
    finish(&mut second);
    let [a, b] = ["a", "b"].map(|name| ran(&place.path().join(name), 2));
    let (end, begin) = (a.iter().map(|span| span[1]).max(), b.iter().map(|span| span[0]).min());
    assert!(end < begin, "{end:?}, {begin:?}");
    place.expect_empty();
}

#[test]
fn a_job_that_waits_for_its_turn_can_be_ended() {
    let _company = in_company();
    let place = place();
    let mut first = start(&place, "size=1 name=first schedule=batch", "job-member sleep");
    first.hear().expect_ok("the start");
    let waiting = |name: &str| {
        let job = start(&place, &format!("size=1 name={name} schedule=batch"), "job-member sleep");
        let shown = (name.to_string(), "Waiting".to_string(), false, Vec::new());
        eventually("it waits", || {
            if jobs(&place).contains(&shown) { Ok(()) } else { Err(format!("{:?}", jobs(&place))) }
        });
        job
    };
    let mut killed = waiting("killed");
    ask(&place, "kill killed").expect_ok("ending it");
    assert_eq!(code(&mut killed), "code 143");
    let mut told = waiting("told");
    told.signal(Signal::TERM);
    assert_eq!(code(&mut told), "code 143");
    // A stopped job gives its turn away.
    let mut next = waiting("next");
    ask(&place, "stop first").expect_ok("stopping");
    next.hear().expect_ok("the start");
    ask(&place, "kill next").expect_ok("ending it");
    ask(&place, "cont first").expect_ok("going on");
    let runs = || jobs(&place).iter().any(|job| job.0 == "first" && job.1 == "Running");
    eventually("it goes on", || if runs() { Ok(()) } else { Err(format!("{:?}", jobs(&place))) });
    ask(&place, "kill first").expect_ok("ending it");
    place.expect_empty();
}

/// The first supervisor leads, and is killed while the other job is suspended or runs.
#[test]
fn another_leads_when_the_leader_is_killed() {
    let _company = in_company();
    let place = place();
    for (kind, leader_first) in [("batch", true), ("gang", true), ("gang", false)] {
        let mut leader =
            start(&place, &format!("size=2 name=first schedule={kind}"), "job-member sleep");
        leader.hear().expect_ok("the start");
        let pids = members(&place, "first");
        let (mut other, path) = spinning_until(&place, &format!("schedule={kind}"), "b");
        eventually("both are there, and one leads", || {
            let jobs = jobs(&place);
            let leads: Vec<&str> =
                jobs.iter().filter(|job| job.2).map(|job| job.0.as_str()).collect();
            if jobs.len() == 2 && leads == ["first"] { Ok(()) } else { Err(format!("{jobs:?}")) }
        });
        if leader_first {
            leader.kill();
            leader.ended();
            std::fs::write(&path, []).expect("the end");
            finish(&mut other);
            std::fs::remove_file(&path).expect("the end");
        } else {
            // The follower ends, and the leader goes on.
            other.kill();
            other.ended();
            are(&pids, "the leader's job goes on", |state| state == Some('S'));
            ask(&place, "kill first").expect_ok("ending it");
        }
        are_gone(&pids);
        assert_eq!(jobs(&place), []);
        place.expect_empty();
    }
}

/// A leader that is silent keeps no other job suspended.
#[test]
fn a_stopped_leader_holds_nobody_up() {
    let _company = in_company();
    let place = place();
    let mut leader = start(&place, "size=1 name=first schedule=batch", "job-member sleep");
    leader.hear().expect_ok("the start");
    let mut other = spinning(&place, "schedule=batch", "b", 50);
    eventually("both are there", || {
        if jobs(&place).len() == 2 { Ok(()) } else { Err("not yet".into()) }
    });
    leader.stop();
    // A request is not carried out after its sender has given up.
    let mut impatient = place.start("job kill first");
    finish(&mut other);
    impatient.kill();
    impatient.ended();
    leader.signal(Signal::CONT);
    assert_eq!(jobs(&place).len(), 1);
    ask(&place, "kill first").expect_ok("ending it");
    leader.ended();
    place.expect_empty();
}

/// Neither job is kept off the processors: the sleeper because it uses no time, and the worker
/// because the sleeper needs none.
#[test]
fn a_co_scheduled_job_that_sleeps_leaves_its_time_to_others() {
    let _alone = alone();
    let place = place();
    let mut sleeper = start(&place, "size=2 name=sleeps schedule=co", "job-member sleep");
    sleeper.hear().expect_ok("the start");
    let (mut worker, path) = spinning_until(&place, "schedule=co", "works");
    worker.hear().expect_ok("the start");
    let both_run = || jobs(&place).iter().filter(|job| job.1 == "Running").count() == 2;
    eventually("it is seen that it sleeps", || {
        if both_run() { Ok(()) } else { Err(format!("{:?}", jobs(&place))) }
    });
    let seen = (0..20).filter(|_| both_run()).count();
    assert!(seen >= 18, "both ran in {seen} of 20 checks; jobs that take turns never do");
    std::fs::write(path, []).expect("the end");
    finish(&mut worker);
    ask(&place, "kill sleeps").expect_ok("ending it");
    sleeper.ended();
    place.expect_empty();
}

/// Both jobs have work on every processor. They take turns, and both make progress.
#[test]
fn co_scheduled_jobs_with_work_take_turns() {
    let _alone = alone();
    let place = place();
    let mut both = ["a", "b"].map(|name| spinning(&place, "schedule=co", name, 1000));
    both.iter_mut().for_each(finish);
    let [a, b] = ["a", "b"].map(|name| ran(&place.path().join(name), 2));
    let together: u64 = a.iter().map(|&[from, to]| within(&b, from, to)).sum();
    let shares = [&a, &b].map(|ran| within(ran, 0, u64::MAX));
    println!(
        "    {} µs together, shares {:?} ms",
        together / 1000,
        shares.map(|ns| ns / 1_000_000)
    );
    assert!(
        together * 10 < shares[0] + shares[1]
            && shares.iter().all(|&share| share * 4 > shares[0] + shares[1]),
        "{shares:?}"
    );
    place.expect_empty();
}

/// A processor on which the job whose turn it is has no work may be used by the other job.
#[test]
fn a_co_scheduled_jobs_idle_processor_is_used_by_another() {
    let _alone = alone();
    if std::thread::available_parallelism().map_or(1, std::num::NonZero::get) < 2 {
        return println!("    skipped: takes two processors");
    }
    let place = place();
    let half_ends = place.path().join("half");
    let mut half = start(
        &place,
        "size=2 name=half schedule=co",
        &format!("job-member spin-first-until {}", half_ends.display()),
    );
    half.hear().expect_ok("the start");
    let (mut whole, whole_ends) = spinning_until(&place, "schedule=co", "whole");
    whole.hear().expect_ok("the start");
    let pids = members(&place, "whole");
    // The supervisors have to see first that the second member of `half` sleeps. On a busy machine
    // they may also be late later.
    eventually("the idle processor is used", || {
        let mut stopped = [0, 0];
        for _ in 0..200 {
            for (pid, stopped) in pids.iter().zip(&mut stopped) {
                *stopped += usize::from(state(*pid) == Some('T'));
            }
            std::thread::sleep(Duration::from_millis(3));
        }
        println!(
            "    of 200 checks, suspended where both have work: {}, where one has: {}",
            stopped[0], stopped[1]
        );
        let is_used = stopped[0] > 40 && stopped[1] < stopped[0] / 2;
        if is_used { Ok(()) } else { Err(format!("{stopped:?}")) }
    });
    [half_ends, whole_ends].iter().for_each(|path| std::fs::write(path, []).expect("the end"));
    finish(&mut half);
    finish(&mut whole);
    place.expect_empty();
}
