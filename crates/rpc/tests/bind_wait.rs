//! A client that binds before its server serves the name.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};
use upcall_rpc::names::NameHint;
use upcall_rpc::{
    BindError, Binding, Call, Dispatch, Export, Interface, Replied, Server, policy,
    wait_while_absent,
};

const fn interface(id: &'static str) -> Interface {
    Interface {
        id: Cow::Borrowed(id),
        procedures: Cow::Borrowed(&[]),
        parts: Cow::Borrowed(&[]),
        source: Cow::Borrowed(""),
        limits: Cow::Borrowed(""),
    }
}

static TEST: Interface = interface("test:wait/wait");
static OTHER: Interface = interface("test:wait/other");

struct Nothing;

impl Dispatch for Nothing {
    fn dispatch(&self, call: Call<'_>) -> Replied {
        call.respond(|_| Ok(()))
    }
}

/// Longest wait for a server that is about to start, in seconds.
const GUARD: Duration = Duration::from_secs(60);

fn unique(name: &str) -> String {
    format!("bind-wait-{name}-{}", std::process::id())
}

/// Waits for `name` in another thread, and starts a server once that thread has looked twice.
fn bind_before(name: &str) {
    let (looked, looks) = mpsc::channel();
    thread::scope(|scope| {
        let bound = scope.spawn(move || {
            wait_while_absent(GUARD, || {
                let bound = Binding::try_bind(name, &TEST, None);
                let _ = looked.send(());
                bound
            })
        });
        for _ in 0..2 {
            looks.recv().unwrap();
        }
        let server = Server::new().export(name, Export::new(&TEST, Nothing)).start().unwrap();
        assert!(bound.join().unwrap().unwrap().is_open());
        drop(server);
    });
}

#[test]
fn a_client_waits_for_its_server() {
    bind_before(&unique("local"));
    assert!(matches!(
        Binding::bind_wait(&unique("local"), &TEST, None, Duration::ZERO),
        Err(BindError::NoSuchName { .. } | BindError::ServerGone { .. })
    ));
}

#[test]
fn the_limit_ends_the_wait() {
    let (start, limit) = (Instant::now(), Duration::from_millis(30));
    let bound = Binding::bind_wait(&unique("nothing"), &TEST, None, limit);
    assert!(matches!(bound, Err(BindError::NoSuchName { .. })), "{bound:?}");
    assert!(start.elapsed() >= limit);
}

/// An attempt looks for no similar name. Each way to bind does, once its wait is over.
#[test]
fn a_misspelt_name_is_answered_with_the_similar_one() {
    let name = format!("{}-exports-this", std::process::id());
    let _server = Server::new().export(&name, Export::new(&TEST, Nothing)).start().unwrap();
    let typed = name.replace("exports", "exprots");
    let hinted = |error: Option<BindError>| match error {
        Some(BindError::NoSuchName { hint, .. }) => hint,
        other => panic!("{other:?}"),
    };
    let own = policy::own_user_or_root();
    for accepts in [None, Some(&own as &policy::Policy)] {
        assert_eq!(hinted(Binding::try_bind(&typed, &TEST, accepts).err()), NameHint::None);
        let bound = Binding::bind_wait(&typed, &TEST, accepts, Duration::ZERO);
        assert_eq!(hinted(bound.err()), NameHint::Similar(name.clone()));
    }
    assert_eq!(hinted(upcall_rpc::try_exported(&typed, None).err()), NameHint::None);
    let similar = NameHint::Similar(name.clone());
    for error in [
        Binding::bind(&typed, &TEST).err(),
        Binding::bind_expecting(&typed, &TEST, &own).err(),
        upcall_rpc::exported(&typed).err(),
        upcall_rpc::exported_expecting(&typed, &own).err(),
        upcall_rpc::link::list_named(&typed).err(),
    ] {
        let text = error.as_ref().map(ToString::to_string).unwrap_or_default();
        assert!(text.ends_with(&format!(". Did you mean {name:?}?")), "{text}");
        assert_eq!(hinted(error), similar);
    }
    let mut seen = Vec::new();
    let waited = wait_while_absent(Duration::from_millis(20), || {
        let bound = Binding::try_bind(&typed, &TEST, None);
        seen.extend(bound.as_ref().err().map(ToString::to_string));
        bound
    });
    assert!(!seen.is_empty() && seen.iter().all(|text| !text.contains("mean")), "{seen:?}");
    assert_eq!(hinted(waited.err()), similar);
}

#[test]
fn a_refusal_is_returned_at_once() {
    let name = unique("refuses");
    let _server = Server::new().export(&name, Export::new(&TEST, Nothing)).start().unwrap();
    let bound = Binding::bind_wait(&name, &OTHER, None, Duration::MAX);
    assert!(matches!(bound, Err(BindError::WrongInterface { .. })), "{bound:?}");
    let nothing = |_: &_| Err("nothing is accepted".to_owned());
    let bound = Binding::bind_wait(&name, &TEST, Some(&nothing), Duration::MAX);
    assert!(matches!(bound, Err(BindError::WrongUser { .. })), "{bound:?}");
    let own = policy::own_user_or_root();
    assert!(Binding::bind_wait(&name, &TEST, Some(&own), Duration::MAX).is_ok());
    assert!(matches!(
        Binding::bind_wait("no/name", &TEST, None, Duration::MAX),
        Err(BindError::BadName { .. })
    ));
}

#[test]
fn a_flood_of_names_does_not_make_the_waiter_spin() {
    let folder = std::env::temp_dir().join(unique("flood"));
    std::fs::create_dir(&folder).unwrap();
    let over = AtomicBool::new(false);
    let (mut attempts, start) = (0_u128, Instant::now());
    let bound: Result<(), _> = thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..3000 {
                drop(std::fs::File::create(folder.join(number.to_string())));
            }
            over.store(true, Ordering::SeqCst);
        });
        wait_while_absent(GUARD, || {
            attempts += 1;
            if over.load(Ordering::SeqCst) {
                return Err(BindError::BadName { name: "over".into(), why: "the flood is over" });
            }
            let (name, folder) = ("absent".into(), folder.clone());
            Err(BindError::NoSuchName { name, folder, hint: NameHint::None })
        })
    });
    let milliseconds = start.elapsed().as_millis();
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(matches!(bound, Err(BindError::BadName { .. })), "{bound:?}");
    assert!(attempts <= milliseconds + 3, "{attempts} attempts in {milliseconds} ms");
}
