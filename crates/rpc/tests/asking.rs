//! A kernel thread that sleeps for a reply asks whether its call is to be abandoned. Interpreters
//! use this to let signals interrupt calls.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};
use upcall_rpc::{
    Binding, Call, CallError, CancelToken, Dispatch, Export, Extent, Interface, Limits, Procedure,
    Replied, Server,
};

const SLOW: Procedure = Procedure {
    name: Cow::Borrowed("slow"),
    signature: Cow::Borrowed("func()"),
    hash: 0,
    args: Extent { fixed: 0, tail: 0 },
    results: Extent { fixed: 0, tail: 0 },
    calls: 5,
    limits: Limits { string: 0, list: 0, values: 0 },
};

static TEST: Interface = Interface {
    id: Cow::Borrowed("test:asking/asking"),
    procedures: Cow::Borrowed(&[SLOW]),
    parts: Cow::Borrowed(&[]),
    source: Cow::Borrowed(""),
    limits: Cow::Borrowed(""),
};

struct Slow;

impl Dispatch for Slow {
    fn dispatch(&self, call: Call<'_>) -> Replied {
        call.respond(|_| {
            while !ENDS.load(Ordering::SeqCst) {
                upcall_thread::sleep(Duration::from_millis(5));
            }
            Ok(())
        })
    }
}

/// Whether the calls are to end.
static ENDS: AtomicBool = AtomicBool::new(false);

static ASKED: AtomicU32 = AtomicU32::new(0);

/// Returns `false`, and then `true`.
fn ask() -> bool {
    ASKED.fetch_add(1, Ordering::SeqCst) % 2 == 1
}

#[test]
fn a_thread_that_sleeps_asks_whether_to_go_on() {
    let name = format!("asking-{}", std::process::id());
    let server = Server::new()
        .export(&name, Export::new(&TEST, Slow))
        .listen("127.0.0.1:0")
        .start()
        .unwrap();
    let far = format!("tcp://{}/{name}", server.addresses()[0]);
    for name in [name, far] {
        ASKED.store(0, Ordering::SeqCst);
        ENDS.store(false, Ordering::SeqCst);
        a_call_asks(&Binding::bind(&name, &TEST).unwrap());
    }
}

fn a_call_asks(binding: &Binding) {
    assert!(!binding.has_cancel());
    let asking = binding.with_cancel(&CancelToken::asking(ask));
    assert!(asking.has_cancel() && !asking.without_cancel().has_cancel());
    assert_eq!(asking.call::<(), ()>(0, &()), Err(CallError::Aborted { sent: true }));
    assert_eq!(ASKED.load(Ordering::SeqCst), 2);
    // Only the call was abandoned, not the token: a new call asks again, and goes on after the
    // first time.
    let mut time = Duration::from_millis(700);
    loop {
        let start = Instant::now();
        let patient = asking.with_deadline(Some(time));
        assert_eq!(patient.call::<(), ()>(0, &()), Err(CallError::Aborted { sent: true }));
        assert!(start.elapsed() >= time);
        if ASKED.load(Ordering::SeqCst) >= 3 {
            break;
        }
        // On a busy machine, the deadline may pass before the function is asked.
        time *= 4;
        assert!(time < Duration::from_secs(60), "nobody is asked");
    }
    ENDS.store(true, Ordering::SeqCst);
    assert_eq!(binding.call::<(), ()>(0, &()), Ok(()));
}
