//! A server and an honest client, for tests that disturb them.

use crate::place;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};
use upcall_tests::party::Party;
use upcall_tests::place::{Place, eventually};
use upcall_tests::speech::Hold;
use upcall_tests::usage::{Usage, open_descriptors};

/// A server, an honest client bound to it, and the server's socket.
pub struct Scene {
    pub place: Rc<Place>,
    pub server: Party,
    pub honest: Party,
    pub socket: PathBuf,
}

impl Scene {
    pub fn new(options: &str) -> Self {
        let place = Rc::new(place());
        // The server's resources at the end are compared, and spares would stay.
        let server = place.serve(&format!("trial spares=0 {options}"));
        let mut honest = place.client();
        honest.ask("bind trial").expect_ok("binding");
        let socket = place.sockets().pop().expect("a socket");
        Self { place, server, honest, socket }
    }

    /// Lets the honest client call for `ms` milliseconds while `disturb` runs again and again.
    pub fn while_honest(&mut self, ms: u64, mut disturb: impl FnMut(&Path)) -> u64 {
        let end = Instant::now() + Duration::from_millis(ms);
        self.honest.say(&format!("honest {ms}"));
        let mut rounds = 0;
        while Instant::now() < end {
            disturb(&self.socket);
            rounds += 1;
        }
        let numbers = self.honest.hear().numbers("the honest client");
        println!(
            "    honest client: {} calls, the longest {:.1} ms; {rounds} rounds of disturbance",
            numbers[0],
            numbers[1] as f64 / 1e6
        );
        assert!(numbers[1] < 10_000_000_000, "a call took longer than 10 s: {numbers:?}");
        assert!(self.server.lives(), "the server has ended");
        rounds
    }

    /// Checks that everything works as before, and that nothing is left of the disturbance.
    pub fn close(mut self, before: Usage) {
        assert_eq!(self.honest.ask("add 2 3").numbers("add"), [5]);
        let mut late = self.place.client();
        late.ask("bind trial").expect_ok("binding afterwards");
        drop(late);
        let pid = self.server.pid();
        eventually("the server has given everything back", || {
            let mut now = Usage::of(pid);
            // The honest client may have more segments than before: one for each large call that it
            // has under way.
            now.shared = now.shared.saturating_sub(6);
            if now.is_back_to(&before) {
                return Ok(());
            }
            Err(format!("{now:?}, before {before:?}; open: {}", open_descriptors(pid)))
        });
    }

    /// Returns what the server uses with its honest client after a hostile client was there and has
    /// gone.
    pub fn warm(&mut self) -> Usage {
        self.honest.ask("honest 300").expect_ok("calls");
        drop(Hold::new(&self.socket, "trial").expect("a channel"));
        std::thread::sleep(Duration::from_millis(200));
        Usage::of(self.server.pid())
    }
}
