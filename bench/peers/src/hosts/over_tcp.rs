//! Cap'n Proto RPC over TCP, in the clear: it has no protection of its own.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use capnp::message::ReaderOptions;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::task::LocalSet;
use upcall_bench::child::{Outcome, Ready};
use upcall_bench::hosts::child::{ClientSide, Place, System, Ticket};

use crate::callers;
use crate::calls_capnp::calls;
use crate::capnproto;

/// The system `capnproto`.
pub struct CapnProto;

/// Messages of any length are read.
fn options() -> ReaderOptions {
    let mut options = ReaderOptions::new();
    options.traversal_limit_in_words(None);
    options
}

impl System for CapnProto {
    const NAME: &'static str = "capnproto";
    type Client = Client;

    fn serve(place: &Place, ready: Ready) -> Outcome<()> {
        LocalSet::new().block_on(&callers::runtime()?, async move {
            let listener = TcpListener::bind(place.server).await?;
            ready.announce();
            let accept = async || {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                Ok(stream)
            };
            capnproto::serve(options(), accept).await
        })
    }

    fn connect(place: &Place) -> Outcome<Client> {
        let (runtime, tasks) = (callers::runtime()?, LocalSet::new());
        let calls = connect(&runtime, &tasks, place)?;
        Ok(Client { runtime, tasks, calls: Some(calls), place: place.clone() })
    }
}

fn connect(runtime: &Runtime, tasks: &LocalSet, place: &Place) -> Outcome<calls::Client> {
    tasks.block_on(runtime, async {
        let stream = TcpStream::connect(place.server).await?;
        stream.set_nodelay(true)?;
        Ok(capnproto::call(stream, options()))
    })
}

/// The client.
pub struct Client {
    runtime: Runtime,
    tasks: LocalSet,
    /// `None` after a connection that failed.
    calls: Option<calls::Client>,
    place: Place,
}

async fn pass(calls: &calls::Client, data: &[u8]) -> Outcome<u64> {
    let mut request = calls.bytes_in_request();
    request.get().set_data(data);
    let response = request.send().promise.await?;
    Ok(response.get()?.get_sum())
}

impl ClientSide for Client {
    fn null(&mut self) -> Outcome<()> {
        let request = self.calls.as_ref().ok_or("no connection")?.null_request();
        self.tasks.block_on(&self.runtime, request.send().promise)?;
        Ok(())
    }

    fn bytes_in(&mut self, data: &[u8]) -> Outcome<u64> {
        let calls = self.calls.as_ref().ok_or("no connection")?;
        self.tasks.block_on(&self.runtime, pass(calls, data))
    }

    fn beside(
        &mut self,
        data: &[u8],
        small: &mut dyn FnMut(&mut Self) -> Outcome<()>,
    ) -> Outcome<(u64, u64)> {
        let calls = self.calls.clone().ok_or("no connection")?;
        let (data, stop) = (data.to_vec(), Rc::new(Cell::new(false)));
        let stopped = stop.clone();
        let load = self.tasks.spawn_local(async move {
            let mut count = 0;
            loop {
                let last = pass(&calls, &data).await?;
                count += 1;
                if stopped.get() {
                    return Outcome::Ok((count, last));
                }
            }
        });
        let done = small(self);
        stop.set(true);
        let loaded = self.tasks.block_on(&self.runtime, load)?;
        done.and(loaded)
    }

    fn reconnect(&mut self, _: Ticket) -> Outcome<Duration> {
        self.calls = None;
        let begun = Instant::now();
        self.calls = Some(connect(&self.runtime, &self.tasks, &self.place)?);
        self.null()?;
        Ok(begun.elapsed())
    }
}
