//! Objects whose homes are reached by a link, as on another host. Both ends are this process.

mod adding;
mod invoking;

use adding::Add;
use invoking::{Fail, GUARD, Meet, THERE, Way, find, meet, name, operations};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};
use upcall_home::{
    AccessError, Asked, CreateError, DataError, Errand, Errands, FindError, Grant, HomeBuilder,
    Homed, InvokeError, Kept, List, Operation, Operations, Place, Promise, Text, Verdict,
    objects_at,
};

fn at(home: &Homed<u64>) -> String {
    format!("tcp://{}/{}", home.addresses()[0], home.name())
}

fn wait_until(mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < GUARD);
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn each_is_run_once_whatever_way_it_takes() {
    invoking::each_is_run_once_whatever_way_it_takes(Way::Link);
}

#[test]
fn procedures_may_block_and_say_what_they_want() {
    invoking::procedures_may_block_and_say_what_they_want(Way::Link);
}

#[test]
fn urgent_work_waits_for_no_ordinary_work_of_the_same_home() {
    invoking::urgent_work_waits_for_no_ordinary_work_of_the_same_home(Way::Link);
}

#[test]
fn procedures_of_one_home_can_wait_for_each_other() {
    invoking::procedures_of_one_home_can_wait_for_each_other(Way::Link);
}

#[test]
fn procedures_of_homes_can_invoke_each_other_in_a_circle() {
    invoking::procedures_of_homes_can_invoke_each_other_in_a_circle(Way::Link);
}

#[test]
fn a_service_that_ends_waits_for_its_procedures() {
    invoking::a_service_that_ends_waits_for_its_procedures(Way::Link);
}

#[test]
fn arguments_and_replies_of_all_lengths_come_whole() {
    invoking::arguments_and_replies_of_all_lengths_come_whole(Way::Link);
}

#[test]
fn what_is_masked_waits_and_is_run_then() {
    invoking::what_is_masked_waits_and_is_run_then(Way::Link);
}

#[test]
fn homes_can_invoke_each_other() {
    invoking::homes_can_invoke_each_other(Way::Link);
}

#[test]
fn a_virtual_processor_serves_by_itself() {
    invoking::a_virtual_processor_serves_by_itself(Way::Link);
}

#[test]
fn what_cannot_be_run_is_told() {
    invoking::what_cannot_be_run_is_told(Way::Link);
}

#[test]
fn an_operation_that_the_home_runs_for_others_invokes_nothing_either() {
    invoking::an_operation_that_the_home_runs_for_others_invokes_nothing_either(Way::Link);
}

#[test]
fn who_waits_for_a_home_that_ends_is_told() {
    invoking::who_waits_for_a_home_that_ends_is_told(Way::Link);
}

#[test]
fn a_thread_serves_several_objects() {
    invoking::a_thread_serves_several_objects(Way::Link);
}

#[test]
fn a_thread_invokes_by_any_number_of_holds() {
    invoking::a_thread_invokes_by_any_number_of_holds(Way::Link);
}

#[test]
fn memory_on_another_host_is_not_worked_on() {
    let home = Way::Link.create("not-mapped");
    let _served = home.serve_in_background(operations()).unwrap();
    let away = find(&home);
    assert_eq!((away.grant(), away.is_home(), away.name()), (Grant::Invoke, false, home.name()));
    let text = AccessError::OtherHost.to_string();
    assert!(["`urgent`", "`invoke`", "`auto`"].iter().all(|way| text.contains(way)), "{text}");
    let elsewhere = Err(AccessError::OtherHost);
    assert_eq!(away.access(|number| number.set(1)), elsewhere);
    assert_eq!(away.read(|number| number.set(1)), elsewhere);
    assert_eq!(away.bulk(|number| number.set(1)), elsewhere);
    assert_eq!((away.check(), away.mend()), (elsewhere.clone(), elsewhere));
    assert_eq!(away.perform::<Add>(1), Err(AccessError::OtherHost));
    // What is chosen by itself is possible.
    for turn in 1..=1000 {
        assert_eq!(away.auto::<Add>(1).unwrap(), turn);
    }
    assert_eq!(home.read(|number| number.get()), Ok(1000));
}

/// Both objects have their own operations, and a listener together.
#[test]
fn the_objects_of_a_process_share_a_listener() {
    let first = Way::Link.create("shares-1");
    let address = first.addresses()[0].to_string();
    let making = Homed::<u64>::create(&name("shares-2")).listen(&address);
    let second = making.with(|number| number.set(100)).unwrap();
    assert_eq!(second.addresses(), first.addresses());
    let serve = |home: &Homed<u64>| home.serve_in_background(operations()).unwrap();
    let (first_served, second_served) = (serve(&first), serve(&second));
    let away = [&first, &second].map(|home| Homed::<u64>::find(&at(home)).unwrap());
    assert_eq!(away[0].urgent::<Add>(1).unwrap(), 1);
    assert_eq!(away[1].urgent::<Add>(1).unwrap(), 101);
    // The listener stays while one of them is there.
    drop((first_served, first));
    assert_eq!(away[1].urgent::<Add>(1).unwrap(), 102);
    assert!(matches!(away[0].try_clone(), Err(FindError::Absent { .. })));
    drop((second_served, second));
    let gone = away[1].try_clone();
    assert!(matches!(gone, Err(FindError::Absent { .. })), "{gone:?}");
}

fn error(name: &str) -> FindError {
    Homed::<u64>::find(name).unwrap_err()
}

#[test]
fn what_is_not_found_is_told() {
    let home = Way::Link.create("not-found");
    let at = at(&home);
    let (server, _) = at.rsplit_once('/').unwrap();
    let absent = error(&format!("{server}/another"));
    assert!(
        matches!(&absent, FindError::Absent { .. }) && absent.to_string().contains("no object"),
        "{absent}"
    );
    let other = Homed::<List<Text>>::find(&at).unwrap_err();
    assert!(
        matches!(&other, FindError::Refused { .. }) && other.to_string().contains("shape"),
        "{other}"
    );
    for bad in ["tcp://", "tcp://host", "tcp://127.0.0.1:0/x", "tcp://127.0.0.1:7000/a/b"] {
        assert!(matches!(error(bad), FindError::Name(_)), "{bad}");
    }
    // Nothing is sent to a host that is not trusted.
    let stranger = error("tcp://192.0.2.1:7000/x");
    assert!(matches!(stranger, FindError::NotProved { .. }), "{stranger}");
    let refuses = Homed::<u64>::expect(|_| Err("as it was asked for".into())).find(&at);
    assert!(matches!(refuses, Err(FindError::WrongUser { .. })), "{refuses:?}");
    drop(home);
    let nothing = error(&at);
    assert!(
        matches!(&nothing, FindError::Absent { .. }) && nothing.to_string().contains("`listen`"),
        "{nothing}"
    );
}

#[test]
fn a_guest_waits_for_a_home_that_is_to_come() {
    let first = Way::Link.create("to-come");
    let at = at(&first);
    let address = first.addresses()[0].to_string();
    drop(first);
    thread::scope(|scope| {
        let waits = scope.spawn(|| Homed::<u64>::find_wait(&at, GUARD));
        thread::sleep(Duration::from_millis(20));
        let making = Homed::<u64>::create(&name("to-come")).listen(&address);
        let home = making.with(|_| Ok(())).unwrap();
        let found = waits.join().unwrap();
        assert!(found.is_ok(), "{found:?}");
        drop(home);
    });
}

#[test]
fn each_object_decides_by_its_policy() {
    let making = Homed::<u64>::create(&name("policy")).listen("127.0.0.1:0");
    let own = rustix::process::getuid().as_raw();
    let seen = move |peer: &upcall_os::socket::Peer| match (peer.uid, peer.pid, &peer.host) {
        (uid, 0, None) if uid == own => Err("who comes by a link".to_string()),
        other => panic!("{other:?}"),
    };
    let home = making.policy(seen).with(|_| Ok(())).unwrap();
    let refused = error(&at(&home));
    assert!(
        matches!(&refused, FindError::Refused { why, .. } if why == "who comes by a link"),
        "{refused}"
    );
    let address = home.addresses()[0].to_string();
    let panics = Homed::<u64>::create(&name("panics")).listen(&address);
    let panics = panics.policy(|_| panic!("as it was asked for")).with(|_| Ok(())).unwrap();
    let refused = error(&at(&panics));
    assert!(matches!(refused, FindError::Refused { .. }), "{refused}");
    // Other objects are served by the same thread.
    let fine = Homed::<u64>::create(&name("fine")).listen(&address).with(|_| Ok(())).unwrap();
    assert!(Homed::<u64>::find(&at(&fine)).is_ok());
}

#[test]
fn the_objects_at_an_address_are_listed_to_guests_that_may_invoke_them() {
    let served = Way::Link.create("listed-served");
    let _served = served.serve_in_background(operations()).unwrap();
    let address = served.addresses()[0].to_string();
    let make = |of: &str| Homed::<u64>::create(&name(of)).listen(&address);
    let idle = make("listed-idle").with(|_| Ok(())).unwrap();
    let refuses = make("listed-refuses").policy(|_| Err("it admits no guest".into()));
    let _refuses = refuses.with(|_| Ok(())).unwrap();
    let panics = make("listed-panics").policy(|_| panic!("as it was asked for"));
    let _panics = panics.with(|_| Ok(())).unwrap();
    let list = || {
        let all = objects_at(&format!("tcp://{address}")).unwrap();
        all.into_iter().map(|object| (object.name, object.operations.is_some())).collect::<Vec<_>>()
    };
    assert_eq!(list(), [(name("listed-idle"), false), (name("listed-served"), true)]);
    drop(idle);
    assert_eq!(list(), [(name("listed-served"), true)]);
    for bad in ["tcp://", "127.0.0.1:7000", "tcp://127.0.0.1:7000/name"] {
        assert!(matches!(objects_at(bad), Err(FindError::Name(_))), "{bad}");
    }
}

#[test]
fn beyond_this_host_a_home_needs_an_identity() {
    if upcall_net::usable_identity().is_ok() {
        return println!("skipped: this user has an identity");
    }
    let making = Homed::<u64>::create(&name("unprotected")).listen("0.0.0.0:0");
    let error = making.with(|_| Ok(())).unwrap_err();
    assert!(
        matches!(&error, CreateError::Listen(_)) && error.to_string().contains("upcall host init"),
        "{error}"
    );
}

#[test]
fn a_poisoned_object_is_refused() {
    let making = Homed::<u64>::create(&name("poisoned")).listen("127.0.0.1:0");
    let home = making.repair(|_, _| Verdict::Poison).with(|_| Ok(())).unwrap();
    let _served = home.serve_in_background(operations()).unwrap();
    let away = Homed::<u64>::find(&at(&home)).unwrap();
    assert!(matches!(away.urgent::<Fail>(()), Err(InvokeError::Panicked)));
    wait_until(|| home.access(|_| Ok(())) == Err(AccessError::Poisoned));
    let why = away.urgent::<Add>(1).unwrap_err();
    assert!(matches!(why, InvokeError::NotRun(_)), "{why}");
    let why = error(&at(&home));
    assert!(
        matches!(&why, FindError::Refused { .. }) && why.to_string().contains("created again"),
        "{why}"
    );
}

/// The operations have other numbers then.
#[test]
fn an_object_that_is_served_anew_is_bound_anew() {
    let home = Way::Link.create("anew");
    let (first, second) = (find(&home), find(&home));
    for turn in 0..10 {
        let operations = Operations::new();
        let operations = match turn % 2 {
            0 => operations.operation::<Fail>().operation::<Add>(),
            _ => operations.operation::<Add>().operation::<Fail>(),
        };
        let served = home.serve_in_background(operations).unwrap();
        assert_eq!(first.urgent::<Add>(1).unwrap(), 2 * turn + 1);
        assert_eq!(second.urgent::<Add>(1).unwrap(), 2 * turn + 2);
        drop(served);
        let not = first.urgent::<Add>(1).unwrap_err();
        assert!(matches!(not, InvokeError::NotServed(FindError::Refused { .. })), "{not}");
    }
}

/// More procedures wait for each other than a home takes at once.
#[test]
fn urgent_requests_wait_for_no_procedures_of_their_own_process() {
    const ALL: u64 = 70;
    let home = Way::Link.create("crowded").patience(Some(GUARD));
    let _served = home.serve_in_background(operations().procedure::<Meet>()).unwrap();
    thread::scope(|scope| {
        let ordinary: Vec<_> = (0..ALL)
            .map(|_| {
                let own = find(&home).patience(Some(GUARD));
                scope.spawn(move || own.invoke::<Meet>(ALL + 1))
            })
            .collect();
        wait_until(|| THERE.lock().unwrap().get(home.name()) == Some(&64));
        let urgent = find(&home).patience(Some(GUARD));
        (1..=100).for_each(|turn| assert_eq!(urgent.urgent::<Add>(1).unwrap(), turn));
        // The request waits in its own process, because the home has as many as it takes.
        let late = find(&home).patience(Some(Duration::from_millis(20)));
        assert!(matches!(late.invoke::<Meet>(0), Err(InvokeError::Unsent { .. })));
        // All go on once they need not wait for each other.
        *THERE.lock().unwrap().get_mut(home.name()).unwrap() = ALL;
        assert!(meet(home.name(), ALL + 1));
        ordinary.into_iter().for_each(|one| _ = one.join().unwrap().unwrap());
    });
}

/// Counts how often it has run, between two computations.
struct Ring;

impl Operation for Ring {
    type Of = u64;
    type Args<'a> = u64;
    type Reply = u64;
    const NAME: &'static str = "ring";

    fn run(number: Place<'_, u64>, by: u64) -> Result<u64, DataError> {
        number.update(|number| number + by)
    }
}

#[test]
fn a_home_that_computes_is_interrupted() {
    let home = Way::Link.create("computes");
    let away = find(&home).patience(Some(GUARD));
    let done = &AtomicBool::new(false);
    let serving = home.serve(Operations::new().on_interrupt::<Ring>()).unwrap();
    thread::scope(|scope| {
        scope.spawn(move || {
            for turn in 1..=200 {
                assert_eq!(away.urgent::<Ring>(1).unwrap(), turn);
            }
            done.store(true, SeqCst);
        });
        // SAFETY: the operation adds to a number, and its arguments and reply are numbers.
        let promise = unsafe { Promise::given() };
        let computed = serving.interruptible(promise, || {
            let begun = Instant::now();
            while !done.load(SeqCst) {
                assert!(begun.elapsed() < GUARD);
                std::hint::black_box((0..1000_u64).sum::<u64>());
            }
        });
        computed.unwrap();
    });
    assert_eq!(home.read(|number| number.get()), Ok(200));
}

/// Counts a page up.
struct Hit;

impl Errand for Hit {
    type Of = BTreeMap<String, u64>;
    type Args<'a> = &'a str;
    type Reply = u64;
    const NAME: &'static str = "hit";

    fn run(hits: &mut BTreeMap<String, u64>, page: &str) -> Result<u64, String> {
        let count = hits.entry(page.into()).or_default();
        *count += 1;
        Ok(*count)
    }
}

#[test]
fn values_that_are_only_invoked_are_found_by_links() {
    let creating = HomeBuilder::new(&name("kept"), 8).listen("127.0.0.1:0");
    let hits = Kept::serve_by(creating, BTreeMap::new(), Errands::new().errand::<Hit>()).unwrap();
    let at = format!("tcp://{}/{}", hits.addresses()[0], name("kept"));
    let other = thread::spawn(move || {
        let hits = Asked::<BTreeMap<String, u64>>::find(&at).unwrap();
        (1..=100).for_each(|turn| assert_eq!(hits.ask::<Hit>("/").unwrap(), turn));
    });
    while !other.is_finished() {
        hits.poll();
        hits.wait(Some(Duration::from_millis(1)));
    }
    other.join().unwrap();
    assert_eq!(hits.with(|hits| hits["/"]), 100);
}

/// Lanes of guests that are gone are given back, and so is what they were charged for.
#[test]
fn guests_that_come_and_go_leave_nothing() {
    let home = Way::Link.create("come-and-go");
    let _served = home.serve_in_background(operations()).unwrap();
    let lanes =
        || std::fs::read_to_string("/proc/self/maps").unwrap().matches("upcall-lane").count();
    let before = lanes();
    let count = AtomicU64::new(0);
    for _ in 0..20 {
        thread::scope(|scope| {
            for _ in 0..8 {
                let (own, count) = (find(&home), &count);
                scope.spawn(move || {
                    (0..5).for_each(|_| _ = own.urgent::<Add>(1).unwrap());
                    count.fetch_add(5, SeqCst);
                });
            }
        });
    }
    assert_eq!(home.read(|number| number.get()), Ok(count.into_inner()));
    // Other tests of this process have lanes, too.
    wait_until(|| lanes() <= before + 64);
}
