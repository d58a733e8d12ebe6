//! A server's policy is asked for each binding of a client on this machine, and for each connection
//! by TCP, by one thread at a time.

use std::borrow::Cow;
use std::hint::black_box;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use upcall_os::process::Identity;
use upcall_rpc::{
    BindError, Binding, Call, Dispatch, Export, Interface, Replied, Server, list_far,
};

static TEST: Interface = Interface {
    id: Cow::Borrowed("test:policy/policy"),
    procedures: Cow::Borrowed(&[]),
    parts: Cow::Borrowed(&[]),
    source: Cow::Borrowed(""),
    limits: Cow::Borrowed(""),
};

struct Nothing;

impl Dispatch for Nothing {
    fn dispatch(&self, call: Call<'_>) -> Replied {
        call.respond(|_| Ok(()))
    }
}

#[test]
fn a_policy_is_asked_by_one_thread_at_a_time() {
    static ASKED: AtomicUsize = AtomicUsize::new(0);
    static AT_ONCE: AtomicUsize = AtomicUsize::new(0);
    static MOST: AtomicUsize = AtomicUsize::new(0);
    let name = format!("policy-{}", std::process::id());
    let mut server = Server::new().export(&name, Export::new(&TEST, Nothing)).policy(|_| {
        // More than half of the clerk's stack is there on each thread.
        let room = [1_u8; 160 << 10];
        black_box(&room);
        ASKED.fetch_add(1, Ordering::SeqCst);
        MOST.fetch_max(AT_ONCE.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(50));
        AT_ONCE.fetch_sub(1, Ordering::SeqCst);
        Ok(())
    });
    // One connection leads to each.
    for _ in 0..4 {
        server = server.listen("127.0.0.1:0");
    }
    let server = server.start().unwrap();
    std::thread::scope(|scope| {
        for address in server.addresses() {
            scope
                .spawn(move || assert_eq!(list_far(&format!("tcp://{address}")).unwrap().len(), 1));
        }
        scope.spawn(|| Binding::bind(&name, &TEST).unwrap());
    });
    assert!(ASKED.load(Ordering::SeqCst) >= 5, "{ASKED:?}");
    assert_eq!(MOST.load(Ordering::SeqCst), 1);
}

/// Its bindings stay until they are taken back, which goes by what the policy has seen of the
/// client's process.
#[test]
fn a_client_that_is_admitted_no_longer_gets_no_other_binding() {
    static ADMITS: AtomicBool = AtomicBool::new(true);
    static SEEN: Mutex<Vec<Option<Identity>>> = Mutex::new(Vec::new());
    let name = format!("policy-later-{}", std::process::id());
    let server = Server::new().export(&name, Export::new(&TEST, Nothing)).policy(|peer| {
        SEEN.lock().unwrap().push(peer.process());
        if ADMITS.load(Ordering::SeqCst) { Ok(()) } else { Err("no longer".into()) }
    });
    let server = server.start().unwrap();
    let bindings = [(); 2].map(|()| Binding::bind(&name, &TEST).unwrap());
    ADMITS.store(false, Ordering::SeqCst);
    let refused = Binding::bind(&name, &TEST).unwrap_err();
    assert!(
        matches!(&refused, BindError::Denied { reason, .. } if reason == "no longer"),
        "{refused}"
    );
    assert!(bindings.iter().all(Binding::is_open));
    let seen = SEEN.lock().unwrap().clone();
    // For the connection, and for each binding.
    assert_eq!(seen.len(), 4);
    assert!(seen.iter().all(|process| process.is_some() && *process == seen[0]), "{seen:?}");
    assert_eq!(server.revoke(|binding| binding.process.is_none()), 0);
    assert_eq!(server.revoke(|binding| binding.process == seen[0]), 2);
    assert_eq!(server.revoke(|binding| binding.process == seen[0]), 0);
}
