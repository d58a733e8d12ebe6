//! gRPC (tonic) over TLS 1.3, with certificates on both sides.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tonic::transport::{Identity, Server, ServerTlsConfig};
use upcall_bench::child::{Outcome, Ready};
use upcall_bench::hosts::child::{ClientSide, Place, System, Ticket};

use crate::callers;
use crate::certificates::{self, Proof, SERVER};
use crate::grpc::service::calls_client::CallsClient;
use crate::grpc::service::calls_server::CallsServer;
use crate::grpc::{Data, Nothing, Served};

/// The system `grpc`.
pub struct Grpc;

impl System for Grpc {
    const NAME: &'static str = "grpc";
    type Client = Client;

    fn serve(place: &Place, ready: Ready) -> Outcome<()> {
        let (authority, Proof { certificate, key }) = certificates::make(place, Grpc::NAME)?;
        let tls = ServerTlsConfig::new()
            .identity(Identity::from_pem(certificate, key))
            .client_ca_root(Certificate::from_pem(authority));
        callers::runtime()?.block_on(async {
            // As `Server::serve` does, which does not say when it listens.
            let incoming = TcpIncoming::bind(place.server)?.with_nodelay(Some(true));
            ready.announce();
            let calls = CallsServer::new(Served).max_decoding_message_size(usize::MAX);
            let mut server = Server::builder().tls_config(tls)?;
            Ok(server.add_service(calls).serve_with_incoming(incoming).await?)
        })
    }

    fn connect(place: &Place) -> Outcome<Client> {
        let runtime = callers::runtime()?;
        let endpoint = endpoint(place)?;
        let calls = connect(&runtime, &endpoint)?;
        Ok(Client { runtime, calls: Some(calls), endpoint, place: place.clone() })
    }
}

/// How to connect to the server. It keeps the tickets of its connections.
fn endpoint(place: &Place) -> Outcome<Endpoint> {
    let [authority, certificate, key] = certificates::files(place, Grpc::NAME).map(fs::read);
    let tls = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(authority?))
        .identity(Identity::from_pem(certificate?, key?))
        .domain_name(SERVER);
    Ok(Endpoint::from_shared(format!("https://{}", place.server))?.tls_config(tls)?)
}

fn connect(runtime: &Runtime, endpoint: &Endpoint) -> Outcome<CallsClient<Channel>> {
    Ok(CallsClient::new(runtime.block_on(endpoint.connect())?))
}

/// The client.
pub struct Client {
    runtime: Runtime,
    /// `None` after a connection that failed.
    calls: Option<CallsClient<Channel>>,
    endpoint: Endpoint,
    place: Place,
}

impl Client {
    fn calls(&mut self) -> Outcome<CallsClient<Channel>> {
        Ok(self.calls.clone().ok_or("no connection")?)
    }
}

async fn pass(calls: &mut CallsClient<Channel>, data: Vec<u8>) -> Outcome<u64> {
    Ok(calls.bytes_in(Data::of(data)).await?.into_inner().value())
}

impl ClientSide for Client {
    fn null(&mut self) -> Outcome<()> {
        let calls = self.calls.as_mut().ok_or("no connection")?;
        self.runtime.block_on(calls.null(Nothing {}))?;
        Ok(())
    }

    fn bytes_in(&mut self, data: &[u8]) -> Outcome<u64> {
        let calls = self.calls.as_mut().ok_or("no connection")?;
        self.runtime.block_on(pass(calls, data.to_vec()))
    }

    fn beside(
        &mut self,
        data: &[u8],
        small: &mut dyn FnMut(&mut Self) -> Outcome<()>,
    ) -> Outcome<(u64, u64)> {
        let (mut calls, data) = (self.calls()?, data.to_vec());
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let load = self.runtime.spawn(async move {
            let mut count = 0;
            loop {
                let last = pass(&mut calls, data.clone()).await?;
                count += 1;
                if stopped.load(Relaxed) {
                    return Outcome::Ok((count, last));
                }
            }
        });
        let done = small(self);
        stop.store(true, Relaxed);
        let loaded = self.runtime.block_on(load)?;
        done.and(loaded)
    }

    fn reconnect(&mut self, ticket: Ticket) -> Outcome<Duration> {
        self.calls = None;
        if ticket == Ticket::None {
            self.endpoint = endpoint(&self.place)?;
        }
        let begun = Instant::now();
        self.calls = Some(connect(&self.runtime, &self.endpoint)?);
        self.null()?;
        Ok(begun.elapsed())
    }
}
