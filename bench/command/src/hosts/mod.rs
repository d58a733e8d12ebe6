//! The suite `hosts`: identities for the hosts, Upcall as a system, and the limit.

pub mod limit;
mod members;

use crate::rpc::{Answers, tests};
use members::Sender;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};
use upcall::Server;
use upcall_bench::child::{Outcome, Ready};
use upcall_bench::hosts::child::{ClientSide, Place, System, Ticket};
use upcall_net::identity::{HostPermission, HostStore, IfRevoked};

/// Name that the server exports.
const NAME: &str = "bench";

/// Makes the identities of two hosts that trust each other; see [`upcall_bench::hosts::Introduce`].
pub fn introduce(folders: &[&Path; 2], addresses: &[&str; 2]) -> Outcome<()> {
    let stores = folders.map(HostStore::at);
    for (store, name) in stores.iter().zip(["client", "server"]) {
        store.init(&name.parse()?)?;
    }
    for (own, other) in [(0, 1), (1, 0)] {
        let identity = stores[other].own()?.identity;
        let (name, may) = (addresses[other].parse()?, HostPermission::Both);
        stores[own].trust(&name, &identity, may, IfRevoked::Refuse)?;
    }
    Ok(())
}

/// Upcall, with links that are protected by TLS.
pub struct Upcall;

impl System for Upcall {
    const NAME: &'static str = "upcall";
    type Client = Client;

    fn serve(place: &Place, ready: Ready) -> Outcome<()> {
        let server = Server::new().export(NAME, tests::export(Answers));
        let server = server.listen(&place.server.to_string()).processors(1).start()?;
        members::receive(place.server)?;
        let stop = ready.announce_stoppable();
        stop.wait();
        server.stop();
        Ok(())
    }

    fn connect(place: &Place) -> Outcome<Client> {
        let tests = bind(place.server)?;
        Ok(Client { tests: Some(tests), server: place.server, sender: None })
    }
}

fn bind(server: SocketAddr) -> Outcome<tests::Tests> {
    Ok(tests::Tests::bind(&format!("tcp://{server}/{NAME}"))?)
}

/// A binding to the server.
pub struct Client {
    /// `None` after a bind that failed.
    tests: Option<tests::Tests>,
    server: SocketAddr,
    /// Once it was needed.
    sender: Option<Sender>,
}

impl Client {
    fn tests(&self) -> Outcome<&tests::Tests> {
        Ok(self.tests.as_ref().ok_or("no binding")?)
    }

    fn sender(&mut self) -> Outcome<&Sender> {
        if self.sender.is_none() {
            self.sender = Some(Sender::join(self.server)?);
        }
        Ok(self.sender.as_ref().ok_or("no group")?)
    }
}

impl ClientSide for Client {
    fn null(&mut self) -> Outcome<()> {
        Ok(self.tests()?.null()?)
    }

    fn bytes_in(&mut self, data: &[u8]) -> Outcome<u64> {
        Ok(self.tests()?.bytes_in(data)?)
    }

    fn beside(
        &mut self,
        data: &[u8],
        small: &mut dyn FnMut(&mut Self) -> Outcome<()>,
    ) -> Outcome<(u64, u64)> {
        let tests = self.tests()?.clone();
        again_and_again(|| Ok(tests.bytes_in(data)?), || small(self))
    }

    fn message_round(&mut self) -> Outcome<()> {
        self.sender()?.round()
    }

    fn messages(&mut self, data: &[u8], count: u64) -> Outcome<u64> {
        self.sender()?.send(data, count)
    }

    fn reconnect(&mut self, ticket: Ticket) -> Outcome<Duration> {
        // The link ends with its last binding.
        self.tests = None;
        if ticket == Ticket::None {
            // Tickets are kept for one key of this host. The bind reads the new key's file, as the
            // first bind of a process does.
            HostStore::find()?.renew()?;
        }
        let begun = Instant::now();
        let tests = bind(self.server)?;
        tests.null()?;
        let spent = begun.elapsed();
        self.tests = Some(tests);
        Ok(spent)
    }
}

/// Runs `small` while another kernel thread runs `large` again and again. Returns the number of
/// times, and the last outcome.
fn again_and_again(
    mut large: impl FnMut() -> Outcome<u64> + Send,
    small: impl FnOnce() -> Outcome<()>,
) -> Outcome<(u64, u64)> {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let load = scope.spawn(|| {
            let mut count = 0;
            loop {
                let last = large()?;
                count += 1;
                if stop.load(Relaxed) {
                    return Ok((count, last));
                }
            }
        });
        let done = small();
        stop.store(true, Relaxed);
        let loaded = load.join().map_err(|_| "the thread of the large argument panicked")?;
        done.and(loaded)
    })
}
