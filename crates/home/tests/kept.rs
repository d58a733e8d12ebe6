//! Values that are only ever invoked: each errand runs once, on the thread that keeps the value,
//! and there is no other access.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};
use upcall_home::{
    Asked, CreateError, Errand, Errands, FindError, Homed, InvokeError, KeepError, Kept, ServeError,
};

/// Longest wait for what surely happens, in seconds.
const GUARD: Duration = Duration::from_secs(60);

/// A type that cannot be sent to another thread.
type Pages = BTreeMap<String, Rc<u64>>;

fn name(of: &str) -> String {
    format!("kept-{of}-{}", std::process::id())
}

/// Increments the count of a page.
struct Hit;

impl Errand for Hit {
    type Of = Pages;
    type Args<'a> = &'a str;
    type Reply = u64;
    const NAME: &'static str = "hit";

    fn run(pages: &mut Pages, page: &str) -> Result<u64, String> {
        if page.is_empty() {
            return Err("which page?".into());
        }
        let count = pages.entry(page.into()).or_default();
        *count = Rc::new(**count + 1);
        Ok(**count)
    }
}

/// Panics in the middle.
struct Fail;

impl Errand for Fail {
    type Of = Pages;
    type Args<'a> = ();
    type Reply = ();
    const NAME: &'static str = "fail";

    fn run(pages: &mut Pages, (): ()) -> Result<(), String> {
        pages.clear();
        panic!("as it was asked for")
    }
}

/// An errand that is not registered.
struct Other;

impl Errand for Other {
    type Of = Pages;
    type Args<'a> = ();
    type Reply = ();
    const NAME: &'static str = "other";

    fn run(_: &mut Pages, (): ()) -> Result<(), String> {
        Ok(())
    }
}

/// Serves until `done` returns `true`.
fn until(kept: &Kept<Pages>, mut done: impl FnMut() -> bool) {
    while !done() {
        if kept.poll() == 0 {
            kept.wait(Some(Duration::from_millis(1)));
        }
    }
}

fn errands() -> Errands<Pages> {
    Errands::new().errand::<Hit>().errand::<Fail>()
}

#[test]
fn each_errand_is_done_once_in_between_its_homes_own_turns() {
    let name = name("counts");
    let kept = Kept::serve(&name, Pages::new(), errands()).unwrap();
    let done = AtomicU32::new(0);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let asked = Asked::<Pages>::find(&name).unwrap();
                let mut last = 0;
                for _ in 0..5000 {
                    let count = asked.ask::<Hit>("/").unwrap();
                    assert!(count > last, "{count} after {last}");
                    last = count;
                }
                done.fetch_add(1, SeqCst);
            });
        }
        let mut own = 0;
        until(&kept, || {
            // No errand runs in the middle of this.
            kept.with(|pages| {
                let before = pages.get("/").cloned().unwrap_or_default();
                assert_eq!(kept.poll(), 0);
                pages.insert("/".into(), Rc::new(*before + 1));
            });
            own += 1;
            done.load(SeqCst) == 3
        });
        assert_eq!(kept.with(|pages| *pages["/"]), 15_000 + own);
    });
}

#[test]
fn it_is_no_object_and_has_no_other_errands() {
    let name = name("alone");
    let kept = Kept::serve(&name, Pages::new(), errands()).unwrap();
    thread::scope(|scope| {
        let asks = scope.spawn(|| {
            assert!(matches!(Homed::<u64>::find(&name), Err(FindError::Refused { .. })));
            let asked = Asked::<Pages>::find(&name).unwrap();
            let unknown = asked.ask::<Other>(()).unwrap_err();
            assert!(
                matches!(&unknown, InvokeError::Unknown { known, .. } if known.len() == 2),
                "{unknown}"
            );
            let said = asked.ask::<Hit>("").unwrap_err();
            assert!(matches!(&said, InvokeError::Said(words) if words == "which page?"), "{said}");
        });
        until(&kept, || asks.is_finished());
    });
    let home = Homed::<u64>::create(&name).with(|_| Ok(())).unwrap_err();
    assert!(home.to_string().contains(&name), "{home}");
    drop(kept);
    let object = Homed::<u64>::create(&name).with(|_| Ok(())).unwrap();
    assert!(Asked::<Pages>::find(&name).is_err());
    drop(object);
}

#[test]
fn what_an_errand_leaves_half_done_is_seen_by_nobody_until_its_home_has_put_it_right() {
    let name = name("torn");
    let kept = Kept::serve(&name, Pages::new(), errands()).unwrap();
    thread::scope(|scope| {
        let asks = scope.spawn(|| {
            let asked = Asked::<Pages>::find(&name).unwrap();
            assert_eq!(asked.ask::<Hit>("/").unwrap(), 1);
            assert!(matches!(asked.ask::<Fail>(()), Err(InvokeError::Panicked)));
            let torn = asked.ask::<Hit>("/").unwrap_err();
            assert!(
                matches!(&torn, InvokeError::NotRun(why) if why.contains("panicked")),
                "{torn}"
            );
        });
        until(&kept, || asks.is_finished());
        asks.join().unwrap();
        assert!(kept.is_torn());
        kept.mend(|pages| pages.insert("/".into(), Rc::new(1)));
        let asks = scope.spawn(|| Asked::<Pages>::find(&name).unwrap().ask::<Hit>("/").unwrap());
        until(&kept, || asks.is_finished());
        assert_eq!(asks.join().unwrap(), 2);
    });
    // A caller that waits when the service ends gets an error.
    let (found, finds) = mpsc::channel();
    let asks = thread::spawn(move || {
        let asked = Asked::<Pages>::find(&name).unwrap();
        found.send(()).unwrap();
        asked.ask::<Hit>("/")
    });
    finds.recv_timeout(GUARD).unwrap();
    // As a rule the request waits by now. If not, the error is the same.
    thread::sleep(Duration::from_millis(50));
    drop(kept);
    let ended = asks.join().unwrap().unwrap_err();
    assert!(matches!(ended, InvokeError::Ended { .. } | InvokeError::NotServed(_)), "{ended}");
}

/// Returns `true` if a thread of this process sleeps until a new name appears. No other test in
/// this file waits for a name.
fn waits_for_a_name() -> bool {
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap();
    descriptors.flatten().any(|descriptor| {
        std::fs::read_link(descriptor.path()).is_ok_and(|to| to.ends_with("anon_inode:inotify"))
    })
}

#[test]
fn a_caller_waits_for_the_home_of_a_kept_value() {
    let late = name("late");
    let kept = thread::scope(|scope| {
        let mut kept = None;
        for by_policy in [false, true] {
            drop(kept.take());
            let late = &late;
            let asks = scope.spawn(move || {
                let found = match by_policy {
                    false => Asked::<Pages>::find_wait(late, GUARD),
                    true => Asked::<Pages>::expect(|_| Ok(())).find_wait(late, GUARD),
                };
                found.unwrap().ask::<Hit>("/").unwrap()
            });
            let begun = Instant::now();
            while !waits_for_a_name() {
                assert!(begun.elapsed() < GUARD && !asks.is_finished());
                thread::yield_now();
            }
            let home = Kept::serve(late, Pages::new(), errands()).unwrap();
            until(&home, || asks.is_finished());
            assert_eq!(asks.join().unwrap(), 1);
            kept = Some(home);
        }
        kept
    });
    // A home that is there and refuses is not waited for.
    let nobody = Asked::<Pages>::expect(|_| Err("no home".into()));
    let refused = nobody.find_wait(&late, Duration::MAX).unwrap_err();
    assert!(matches!(refused, FindError::WrongUser { .. }), "{refused}");
    drop(kept);
    let shy = Kept::serve_to(&late, Pages::new(), errands(), |_| Err("not today".into())).unwrap();
    let refused = Asked::<Pages>::find_wait(&late, Duration::MAX).unwrap_err();
    assert!(matches!(&refused, FindError::Refused { why, .. } if why == "not today"), "{refused}");
    drop(shy);
    let object = Homed::<u64>::create(&late).with(|_| Ok(())).unwrap();
    let other = Asked::<Pages>::find_wait(&late, Duration::MAX).unwrap_err();
    assert!(matches!(other, FindError::Refused { .. }), "{other}");
    drop(object);
    // The limit ends the wait for a home that is not there.
    let (begun, limit) = (Instant::now(), Duration::from_millis(20));
    let absent = Asked::<Pages>::find_wait(&late, limit).unwrap_err();
    assert!(begun.elapsed() >= limit && matches!(absent, FindError::Name(_)), "{absent}");
}

#[test]
fn a_value_has_its_errands_before_it_has_its_name() {
    let name = name("errands-first");
    let kept = Kept::serve(&name, Pages::new(), errands()).unwrap();
    let taken = Kept::serve(&name, Pages::new(), errands()).unwrap_err();
    assert!(matches!(&taken, KeepError::Create(CreateError::Name(_))), "{taken}");
    // A value whose errands are wrong does not even ask for the name.
    let twice = Kept::serve(&name, Pages::new(), errands().errand::<Hit>()).unwrap_err();
    assert!(matches!(&twice, KeepError::Serve(ServeError::Twice(of)) if of == "hit"), "{twice}");
    // The name that the others did not get still leads to the first.
    let asks = thread::spawn(move || Asked::<Pages>::find(&name).unwrap().ask::<Hit>("/").unwrap());
    until(&kept, || asks.is_finished());
    assert_eq!(asks.join().unwrap(), 1);
}

#[test]
fn those_who_may_not_ask_are_told_why() {
    let name = name("refused");
    let kept = Kept::serve_to(&name, Pages::new(), errands(), |_| Err("not today".into())).unwrap();
    let refused = Asked::<Pages>::find(&name).map(drop).unwrap_err();
    assert!(refused.to_string().contains("not today"), "{refused}");
    drop(kept);
}
