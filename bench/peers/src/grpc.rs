//! gRPC (tonic) over a Unix socket. The messages are prost's; build.rs generates the service.

use std::time::Duration;

use hyper_util::rt::TokioIo;
use prost::Message;
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::Runtime;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::{Channel, Endpoint, Server, Uri};
use tonic::{Request, Response, Status};
use upcall_bench::case::BIG;
use upcall_bench::child::{ClientSide, Outcome, Place, Ready, System, Throughput};
use upcall_bench::payload::answer;

use crate::callers;

#[allow(clippy::all, missing_docs, unreachable_pub)]
pub mod service {
    include!(concat!(env!("OUT_DIR"), "/upcall.bench.Calls.rs"));
}

/// A message without fields.
#[derive(Clone, PartialEq, Message)]
pub struct Nothing {}

/// Arguments of `add`.
#[derive(Clone, PartialEq, Message)]
pub struct Pair {
    #[prost(int32, tag = "1")]
    a: i32,
    #[prost(int32, tag = "2")]
    b: i32,
}

/// Result of `add`.
#[derive(Clone, PartialEq, Message)]
pub struct Number {
    #[prost(int32, tag = "1")]
    value: i32,
}

/// A payload.
#[derive(Clone, PartialEq, Message)]
pub struct Data {
    #[prost(bytes = "vec", tag = "1")]
    data: Vec<u8>,
}

impl Data {
    /// Makes the message of a payload.
    pub fn of(data: Vec<u8>) -> Data {
        Data { data }
    }
}

/// A checksum.
#[derive(Clone, PartialEq, Message)]
pub struct Sum {
    #[prost(fixed64, tag = "1")]
    value: u64,
}

impl Sum {
    /// Returns the checksum.
    pub fn value(&self) -> u64 {
        self.value
    }
}

/// The server's implementation of the service.
pub struct Served;

#[tonic::async_trait]
impl service::calls_server::Calls for Served {
    async fn null(&self, _: Request<Nothing>) -> Result<Response<Nothing>, Status> {
        Ok(Response::new(Nothing {}))
    }

    async fn add(&self, request: Request<Pair>) -> Result<Response<Number>, Status> {
        let Pair { a, b } = request.into_inner();
        Ok(Response::new(Number { value: answer::add(a, b) }))
    }

    async fn bytes_in(&self, request: Request<Data>) -> Result<Response<Sum>, Status> {
        Ok(Response::new(Sum { value: answer::bytes_in(&request.into_inner().data) }))
    }

    async fn big_in_out(&self, request: Request<Data>) -> Result<Response<Data>, Status> {
        Ok(Response::new(Data { data: answer::big_in_out(&request.into_inner().data).into() }))
    }
}

/// The system `grpc`.
pub struct Grpc;

impl System for Grpc {
    const NAME: &'static str = "grpc";
    type Client = Client;

    fn serve(place: &Place, ready: Ready) -> Outcome<()> {
        callers::runtime()?.block_on(async {
            let incoming =
                UnixListenerStream::new(UnixListener::bind(place.dir.join("calls.sock"))?);
            ready.announce();
            let calls = service::calls_server::CallsServer::new(Served);
            Ok(Server::builder().add_service(calls).serve_with_incoming(incoming).await?)
        })
    }

    fn connect(place: &Place) -> Outcome<Client> {
        let runtime = callers::runtime()?;
        let path = place.dir.join("calls.sock");
        let channel = runtime.block_on(async {
            let connect = move |_: Uri| {
                let path = path.clone();
                async move { UnixStream::connect(path).await.map(TokioIo::new) }
            };
            // The address is a name only; the connection uses the socket.
            Endpoint::from_static("http://localhost")
                .connect_with_connector(tower::service_fn(connect))
                .await
        })?;
        Ok(Client { runtime, calls: service::calls_client::CallsClient::new(channel) })
    }
}

/// The client.
pub struct Client {
    runtime: Runtime,
    calls: service::calls_client::CallsClient<Channel>,
}

impl ClientSide for Client {
    fn null(&mut self) -> Outcome<()> {
        self.runtime.block_on(self.calls.null(Nothing {}))?;
        Ok(())
    }

    fn add(&mut self, a: i32, b: i32) -> Outcome<i32> {
        Ok(self.runtime.block_on(self.calls.add(Pair { a, b }))?.into_inner().value)
    }

    fn big_in(&mut self, data: &[u8; BIG]) -> Outcome<u64> {
        self.bytes_in(data)
    }

    fn big_in_out(&mut self, data: &[u8; BIG]) -> Outcome<[u8; BIG]> {
        let reply = self.runtime.block_on(self.calls.big_in_out(Data { data: data.to_vec() }))?;
        Ok(reply.into_inner().data.as_slice().try_into()?)
    }

    fn bytes_in(&mut self, data: &[u8]) -> Outcome<u64> {
        Ok(self
            .runtime
            .block_on(self.calls.bytes_in(Data { data: data.to_vec() }))?
            .into_inner()
            .value)
    }

    fn throughput(&mut self, callers: usize, time: Duration) -> Option<Outcome<Throughput>> {
        let calls = &self.calls;
        let call = || {
            let mut calls = calls.clone();
            async move {
                calls.null(Nothing {}).await?;
                Ok(())
            }
        };
        Some(self.runtime.block_on(callers::outstanding(callers, time, call)))
    }
}
