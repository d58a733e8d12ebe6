//! tarpc over a Unix socket, with bincode.

use std::time::Duration;

use ::tarpc::serde_transport::unix;
use ::tarpc::server::{BaseChannel, Channel};
use ::tarpc::tokio_serde::formats::Bincode;
use ::tarpc::{client, context};
use futures::StreamExt;
use serde_bytes::ByteBuf;
use tokio::runtime::Runtime;
use upcall_bench::case::BIG;
use upcall_bench::child::{ClientSide, Outcome, Place, Ready, System, Throughput};
use upcall_bench::payload::answer;

use crate::callers;

#[::tarpc::service]
trait Calls {
    async fn null();
    async fn add(a: i32, b: i32) -> i32;
    async fn bytes_in(data: ByteBuf) -> u64;
    async fn big_in_out(data: ByteBuf) -> ByteBuf;
}

#[derive(Clone)]
struct Served;

impl Calls for Served {
    async fn null(self, _: context::Context) {}

    async fn add(self, _: context::Context, a: i32, b: i32) -> i32 {
        answer::add(a, b)
    }

    async fn bytes_in(self, _: context::Context, data: ByteBuf) -> u64 {
        answer::bytes_in(&data)
    }

    async fn big_in_out(self, _: context::Context, data: ByteBuf) -> ByteBuf {
        ByteBuf::from(answer::big_in_out(&data))
    }
}

/// The system `tarpc`.
pub struct Tarpc;

impl System for Tarpc {
    const NAME: &'static str = "tarpc";
    type Client = Client;

    fn serve(place: &Place, ready: Ready) -> Outcome<()> {
        callers::runtime()?.block_on(async {
            let mut incoming = unix::listen(place.dir.join("calls.sock"), Bincode::default).await?;
            ready.announce();
            while let Some(transport) = incoming.next().await {
                let requests = BaseChannel::with_defaults(transport?).execute(Served.serve());
                tokio::spawn(requests.for_each(|answer| async {
                    tokio::spawn(answer);
                }));
            }
            Ok(())
        })
    }

    fn connect(place: &Place) -> Outcome<Client> {
        let runtime = callers::runtime()?;
        let calls = runtime.block_on(async {
            let transport = unix::connect(place.dir.join("calls.sock"), Bincode::default).await?;
            Outcome::Ok(CallsClient::new(client::Config::default(), transport).spawn())
        })?;
        Ok(Client { runtime, calls })
    }
}

/// The client.
pub struct Client {
    runtime: Runtime,
    calls: CallsClient,
}

impl ClientSide for Client {
    fn null(&mut self) -> Outcome<()> {
        Ok(self.runtime.block_on(self.calls.null(context::current()))?)
    }

    fn add(&mut self, a: i32, b: i32) -> Outcome<i32> {
        Ok(self.runtime.block_on(self.calls.add(context::current(), a, b))?)
    }

    fn big_in(&mut self, data: &[u8; BIG]) -> Outcome<u64> {
        self.bytes_in(data)
    }

    fn big_in_out(&mut self, data: &[u8; BIG]) -> Outcome<[u8; BIG]> {
        let reply = self
            .runtime
            .block_on(self.calls.big_in_out(context::current(), ByteBuf::from(data)))?;
        Ok(reply.as_slice().try_into()?)
    }

    fn bytes_in(&mut self, data: &[u8]) -> Outcome<u64> {
        Ok(self.runtime.block_on(self.calls.bytes_in(context::current(), ByteBuf::from(data)))?)
    }

    fn throughput(&mut self, callers: usize, time: Duration) -> Option<Outcome<Throughput>> {
        let calls = &self.calls;
        let call = || async { Ok(calls.null(context::current()).await?) };
        Some(self.runtime.block_on(callers::outstanding(callers, time, call)))
    }
}
