//! A server of the run, which notes each execution in the record before it replies.

use crate::book::{Plane, SlotWord, Sum, UNKNOWN};
use crate::role::{Role, kind, say};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use upcall::thread::Mutex;
use upcall::{Bytes, Server};
use upcall_tests::interfaces::trial;
use upcall_tests::object::Object;
use upcall_tests::party::Said;

/// The interface that the honest clients call.
#[allow(missing_docs, reason = "generated; the WIT has the documentation")]
pub mod interface {
    upcall::interface!(
        r#"
        package upcall:soak@1.0.0;

        /// Requests that are counted.
        interface work {
            /// An object in the server, opened with a number.
            resource session {
                /// What `step` gives for the sum of `x` and that number.
                add: func(id: u64, x: u64) -> u64;
            }
            /// The server's process.
            who: func() -> u64;
            /// A number made of both.
            step: func(id: u64, x: u64) -> u64;
            /// The same text.
            text: func(id: u64, text: string) -> string;
            /// The same bytes.
            blob: func(id: u64, data: list<u8>) -> list<u8>;
            /// Sleeps for so many microseconds; then as `step`.
            nap: func(id: u64, us: u32) -> u64;
            /// Calls `step` of another server; or what went wrong there.
            relay: func(id: u64, name: string, x: u64) -> result<u64, string>;
            /// An object with this number.
            open: func(id: u64, key: u64) -> session;
        }
        "#
    );
}

use interface::work::{self, Work};

/// The result of `step`.
pub fn step(id: u64, x: u64) -> u64 {
    (id ^ x.rotate_left(17)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The implementation.
struct Worker {
    role: Role,
    nested: Mutex<HashMap<String, (Work, u32)>>,
}

struct Session {
    role: Role,
    key: u64,
}

/// A service that other clones of the program serve, too.
struct Shared(Arc<Worker>);

fn execute(role: &Role, id: u64, plane: Plane) {
    role.check("doubled", role.book.execute(id, plane));
}

impl Worker {
    /// The server that has this name now, and its process.
    fn bound(&self, name: &str) -> Result<(Work, u32), String> {
        if let Some((work, pid)) = self.nested.lock().get(name).filter(|(work, _)| work.is_open()) {
            return Ok((work.clone(), *pid));
        }
        let work = Work::bind(name).map_err(|error| kind(&error))?;
        let pid = work.who().map_err(|error| kind(&error))? as u32;
        self.nested.lock().insert(name.into(), (work.clone(), pid));
        Ok((work, pid))
    }
}

impl work::Serve for Shared {
    fn who(&self) -> u64 {
        std::process::id().into()
    }

    fn step(&self, id: u64, x: u64) -> u64 {
        // `INNER` marks the inner call of a relay, whose executions are counted separately.
        let (id, plane) = if x & INNER != 0 { (id, Plane::Nested) } else { (id, Plane::First) };
        let planted = |fault: &str| id % 300 == 7 && self.0.role.plants(fault);
        if !planted("lost") {
            execute(&self.0.role, id, plane);
        }
        if planted("doubled") {
            execute(&self.0.role, id, plane);
        }
        if planted("leak") {
            std::mem::forget(std::fs::File::open("/dev/null"));
        }
        if planted("memory") {
            std::mem::forget(vec![1_u8; 1 << 16]);
        }
        step(id, x ^ u64::from(planted("answer")))
    }

    fn text(&self, id: u64, text: &str) -> String {
        execute(&self.0.role, id, Plane::First);
        text.into()
    }

    fn blob(&self, id: u64, data: Bytes<'_>) -> Vec<u8> {
        execute(&self.0.role, id, Plane::First);
        data.to_vec()
    }

    fn nap(&self, id: u64, us: u32) -> u64 {
        upcall::thread::sleep(Duration::from_micros(us.into()));
        execute(&self.0.role, id, Plane::First);
        step(id, us.into())
    }

    fn relay(&self, id: u64, name: &str, x: u64) -> Result<u64, String> {
        let role = &self.0.role;
        execute(role, id, Plane::First);
        // Until a bind returns, the process that it waits for is not known.
        role.book.waits_via(id, UNKNOWN);
        let bound = self.0.bound(name);
        role.book.waits_via(id, bound.as_ref().map_or(0, |(_, pid)| *pid));
        let (work, _) = bound?;
        let outcome = work.step(id, x | INNER);
        role.book.waits_via(id, 0);
        outcome.map_err(|error| kind(&error))
    }

    fn open(&self, id: u64, key: u64) -> Arc<dyn work::ServeSession> {
        let role = &self.0.role;
        execute(role, id, Plane::First);
        role.book.slot(role.slot, SlotWord::Opened).fetch_add(1, SeqCst);
        role.book.add(Sum::Opened, 1);
        Arc::new(Session { role: role.clone(), key })
    }
}

/// Marks the argument of a relay's inner call.
pub const INNER: u64 = 1 << 63;

impl work::ServeSession for Session {
    fn add(&self, id: u64, x: u64) -> u64 {
        execute(&self.role, id, Plane::First);
        step(id, x.wrapping_add(self.key))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.role.book.slot(self.role.slot, SlotWord::Dropped).fetch_add(1, SeqCst);
    }
}

/// Serves `name`. With `trial`, also serves the interface that the hostile client knows.
pub fn run(role: &Role, name: &str, options: &[&str]) {
    let worker = Arc::new(Worker { role: role.clone(), nested: Mutex::new(HashMap::new()) });
    let mut server = Server::new().export(name, work::export(Shared(worker.clone())));
    for option in options {
        server = match *option {
            // The hostile client requests anything, and makes objects and calls panic all the time.
            "trial" => {
                let object = Object::default();
                object.0.be_wary();
                std::panic::set_hook(Box::new(|_| {}));
                server.export("trial", trial::export(object))
            }
            "two" => server.processors(2),
            // Its use of resources at the end is compared with that at the start.
            "without-spares" => server.spare_processors(0),
            _ => server,
        };
    }
    let running = match server.start() {
        Ok(running) => running,
        Err(error) => return role.complain("serve", format!("serving {name}: {error}")),
    };
    say(&Said::Ok(vec!["serves".into()]));
    // A resting server holds no bindings, so that its use of resources can be compared.
    let (resting, nested) = (role.clone(), worker.clone());
    std::thread::spawn(move || {
        loop {
            if resting.rests() {
                nested.nested.lock().clear();
                resting.tell_what_it_holds();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    role.until_the_end();
    worker.nested.lock().clear();
    drop(running);
}
