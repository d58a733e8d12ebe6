//! Cap'n Proto RPC (the Rust implementation) over a Unix socket.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use capnp::message::ReaderOptions;
use capnp_rpc::{RpcSystem, rpc_twoparty_capnp::Side, twoparty::VatNetwork};
use futures::AsyncReadExt;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::Runtime;
use tokio::task::LocalSet;
use tokio_util::compat::TokioAsyncReadCompatExt;
use upcall_bench::case::BIG;
use upcall_bench::child::{ClientSide, Outcome, Place, Ready, System, Throughput};
use upcall_bench::payload::answer;

use crate::callers;
use crate::calls_capnp::calls;

/// The system `capnproto`.
pub struct CapnProto;

/// The server's implementation of the interface.
struct Served;

impl calls::Server for Served {
    async fn null(
        self: Rc<Self>,
        _: calls::NullParams,
        _: calls::NullResults,
    ) -> capnp::Result<()> {
        Ok(())
    }

    async fn add(
        self: Rc<Self>,
        params: calls::AddParams,
        mut results: calls::AddResults,
    ) -> capnp::Result<()> {
        let params = params.get()?;
        results.get().set_sum(answer::add(params.get_a(), params.get_b()));
        Ok(())
    }

    async fn bytes_in(
        self: Rc<Self>,
        params: calls::BytesInParams,
        mut results: calls::BytesInResults,
    ) -> capnp::Result<()> {
        results.get().set_sum(answer::bytes_in(params.get()?.get_data()?));
        Ok(())
    }

    async fn big_in_out(
        self: Rc<Self>,
        params: calls::BigInOutParams,
        mut results: calls::BigInOutResults,
    ) -> capnp::Result<()> {
        results.get().set_data(&answer::big_in_out(params.get()?.get_data()?));
        Ok(())
    }
}

/// A side's system on a stream, which calls and answers by `served` if that is given.
fn system(
    stream: impl AsyncRead + AsyncWrite + Unpin + 'static,
    side: Side,
    options: ReaderOptions,
    served: Option<calls::Client>,
) -> RpcSystem<Side> {
    let (reader, writer) = stream.compat().split();
    let network = Box::new(VatNetwork::new(reader, writer, side, options));
    RpcSystem::new(network, served.map(|served| served.client))
}

/// Serves the streams that `accept` returns, until it fails. It runs on a set of local tasks.
pub async fn serve<S: AsyncRead + AsyncWrite + Unpin + 'static>(
    options: ReaderOptions,
    mut accept: impl AsyncFnMut() -> io::Result<S>,
) -> Outcome<()> {
    loop {
        let served = capnp_rpc::new_client(Served);
        tokio::task::spawn_local(system(accept().await?, Side::Server, options, Some(served)));
    }
}

/// Makes calls on a stream. It runs on a set of local tasks.
pub fn call(
    stream: impl AsyncRead + AsyncWrite + Unpin + 'static,
    options: ReaderOptions,
) -> calls::Client {
    let mut system = system(stream, Side::Client, options, None);
    let calls = system.bootstrap(Side::Server);
    tokio::task::spawn_local(system);
    calls
}

impl System for CapnProto {
    const NAME: &'static str = "capnproto";
    type Client = Client;

    fn serve(place: &Place, ready: Ready) -> Outcome<()> {
        let path = place.dir.join("calls.sock");
        LocalSet::new().block_on(&callers::runtime()?, async move {
            let listener = UnixListener::bind(path)?;
            ready.announce();
            let accept = async || Ok(listener.accept().await?.0);
            serve(ReaderOptions::default(), accept).await
        })
    }

    fn connect(place: &Place) -> Outcome<Client> {
        let (runtime, tasks) = (callers::runtime()?, LocalSet::new());
        let calls = tasks.block_on(&runtime, async {
            let stream = UnixStream::connect(place.dir.join("calls.sock")).await?;
            Outcome::Ok(call(stream, ReaderOptions::default()))
        })?;
        Ok(Client { runtime, tasks, calls })
    }
}

/// The client.
pub struct Client {
    runtime: Runtime,
    tasks: LocalSet,
    calls: calls::Client,
}

impl ClientSide for Client {
    fn null(&mut self) -> Outcome<()> {
        let request = self.calls.null_request();
        self.tasks.block_on(&self.runtime, request.send().promise)?;
        Ok(())
    }

    fn add(&mut self, a: i32, b: i32) -> Outcome<i32> {
        let mut request = self.calls.add_request();
        request.get().set_a(a);
        request.get().set_b(b);
        let response = self.tasks.block_on(&self.runtime, request.send().promise)?;
        Ok(response.get()?.get_sum())
    }

    fn big_in(&mut self, data: &[u8; BIG]) -> Outcome<u64> {
        self.bytes_in(data)
    }

    fn big_in_out(&mut self, data: &[u8; BIG]) -> Outcome<[u8; BIG]> {
        let mut request = self.calls.big_in_out_request();
        request.get().set_data(data);
        let response = self.tasks.block_on(&self.runtime, request.send().promise)?;
        Ok(response.get()?.get_data()?.try_into()?)
    }

    fn bytes_in(&mut self, data: &[u8]) -> Outcome<u64> {
        let mut request = self.calls.bytes_in_request();
        request.get().set_data(data);
        let response = self.tasks.block_on(&self.runtime, request.send().promise)?;
        Ok(response.get()?.get_sum())
    }

    fn throughput(&mut self, callers: usize, time: Duration) -> Option<Outcome<Throughput>> {
        let calls = &self.calls;
        let call = || async {
            calls.null_request().send().promise.await?;
            Ok(())
        };
        Some(self.tasks.block_on(&self.runtime, callers::outstanding(callers, time, call)))
    }
}
