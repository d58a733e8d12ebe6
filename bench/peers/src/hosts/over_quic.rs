//! wRPC over QUIC (quinn), whose TLS 1.3 has certificates on both sides.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::rustls::crypto::{CryptoProvider, ring};
use quinn::rustls::pki_types::pem::PemObject;
use quinn::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use quinn::rustls::server::WebPkiClientVerifier;
use quinn::rustls::version::TLS13;
use quinn::rustls::{self, RootCertStore};
use quinn::{ClientConfig, Endpoint, ServerConfig, TransportConfig, VarInt};
use tokio::runtime::Runtime;
use upcall_bench::child::{Outcome, Ready};
use upcall_bench::hosts::child::{ClientSide, Place, System, Ticket};
use upcall_bench::payload::answer;
use wit_bindgen_wrpc::anyhow;
use wit_bindgen_wrpc::bytes::Bytes;
use wit_bindgen_wrpc::futures::stream::{StreamExt, select_all};

use self::client::upcall::bench::calls;
use crate::callers;
use crate::certificates::{self, Proof, SERVER};

/// The client's bindings.
#[allow(clippy::all, missing_docs, unused_qualifications)]
mod client {
    wit_bindgen_wrpc::generate!({ world: "client", path: "schema/calls.wit" });
}

/// The server's bindings.
#[allow(clippy::all, missing_docs, unused_qualifications)]
mod server {
    wit_bindgen_wrpc::generate!({ world: "server", path: "schema/calls.wit" });
}

/// The system `wrpc`.
pub struct Wrpc;

/// The server's implementation of the interface.
#[derive(Clone, Copy)]
struct Served;

impl<C: Send> server::exports::upcall::bench::calls::Handler<C> for Served {
    async fn null(&self, _: C) -> anyhow::Result<()> {
        Ok(())
    }

    async fn bytes_in(&self, _: C, data: Bytes) -> anyhow::Result<u64> {
        Ok(answer::bytes_in(&data))
    }
}

impl System for Wrpc {
    const NAME: &'static str = "wrpc";
    type Client = Client;

    fn serve(place: &Place, ready: Ready) -> Outcome<()> {
        let (authority, proof) = certificates::make(place, Wrpc::NAME)?;
        let config = server_config(&authority, &proof)?;
        callers::runtime()?.block_on(async {
            let calls = Arc::new(wrpc_transport_quic::Server::new());
            let streams = server::serve(calls.as_ref(), Served).await?;
            let mut invocations = select_all(streams.into_iter().map(|(_, _, stream)| stream));
            tokio::spawn(async move {
                while let Some(Ok(invocation)) = invocations.next().await {
                    // The client learns of an error by the end of its stream.
                    tokio::spawn(invocation);
                }
            });
            let endpoint = Endpoint::server(config, place.server)?;
            ready.announce();
            while let Some(incoming) = endpoint.accept().await {
                let calls = calls.clone();
                tokio::spawn(async move {
                    let connection = wrpc_transport_quic::Client::from(incoming.await?);
                    // An error is the end of the connection.
                    while calls.accept(&connection).await.is_ok() {}
                    Outcome::Ok(())
                });
            }
            Ok(())
        })
    }

    fn connect(place: &Place) -> Outcome<Client> {
        let runtime = callers::runtime()?;
        let mut endpoint = {
            let _inside = runtime.enter();
            let any: IpAddr = match place.server {
                SocketAddr::V4(_) => [0; 4].into(),
                SocketAddr::V6(_) => [0; 16].into(),
            };
            Endpoint::client((any, 0).into())?
        };
        endpoint.set_default_client_config(client_config(place)?);
        let connection = runtime.block_on(connect(&endpoint, place))?;
        Ok(Client { runtime, connection: Some(connection), endpoint, place: place.clone() })
    }
}

/// Trusts the authority only.
fn roots(authority: &[u8]) -> Outcome<RootCertStore> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority)?)?;
    Ok(roots)
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// No limit of idle time: a connection has no calls while others have their turns.
fn transport() -> Arc<TransportConfig> {
    let mut transport = TransportConfig::default();
    transport.max_idle_timeout(None);
    Arc::new(transport)
}

fn server_config(authority: &str, proof: &Proof) -> Outcome<ServerConfig> {
    let roots = Arc::new(roots(authority.as_bytes())?);
    let clients = WebPkiClientVerifier::builder_with_provider(roots, provider()).build()?;
    let tls = rustls::ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(clients)
        .with_single_cert(
            vec![CertificateDer::from_pem_slice(proof.certificate.as_bytes())?],
            PrivateKeyDer::from_pem_slice(proof.key.as_bytes())?,
        )?;
    let mut config = ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls)?));
    config.transport_config(transport());
    Ok(config)
}

/// How to connect to the server. The configuration keeps the tickets of its connections.
fn client_config(place: &Place) -> Outcome<ClientConfig> {
    let [authority, certificate, key] = certificates::files(place, Wrpc::NAME).map(fs::read);
    let tls = rustls::ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])?
        .with_root_certificates(roots(&authority?)?)
        .with_client_auth_cert(
            vec![CertificateDer::from_pem_slice(&certificate?)?],
            PrivateKeyDer::from_pem_slice(&key?)?,
        )?;
    let mut config = ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls)?));
    config.transport_config(transport());
    Ok(config)
}

async fn connect(endpoint: &Endpoint, place: &Place) -> Outcome<quinn::Connection> {
    Ok(endpoint.connect(place.server, SERVER)?.await?)
}

/// The client.
pub struct Client {
    runtime: Runtime,
    /// `None` after a connection that failed.
    connection: Option<quinn::Connection>,
    endpoint: Endpoint,
    place: Place,
}

impl Client {
    fn calls(&self) -> Outcome<wrpc_transport_quic::Client> {
        Ok(self.connection.clone().ok_or("no connection")?.into())
    }
}

async fn pass(calls: &wrpc_transport_quic::Client, data: &Bytes) -> Outcome<u64> {
    Ok(calls::bytes_in(calls, (), data).await?)
}

impl ClientSide for Client {
    fn null(&mut self) -> Outcome<()> {
        let calls = self.calls()?;
        Ok(self.runtime.block_on(calls::null(&calls, ()))?)
    }

    fn bytes_in(&mut self, data: &[u8]) -> Outcome<u64> {
        let calls = self.calls()?;
        self.runtime.block_on(pass(&calls, &Bytes::copy_from_slice(data)))
    }

    fn beside(
        &mut self,
        data: &[u8],
        small: &mut dyn FnMut(&mut Self) -> Outcome<()>,
    ) -> Outcome<(u64, u64)> {
        let (calls, data) = (self.calls()?, Bytes::copy_from_slice(data));
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let load = self.runtime.spawn(async move {
            let mut count = 0;
            loop {
                let last = pass(&calls, &data).await?;
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
        if let Some(earlier) = self.connection.take() {
            earlier.close(VarInt::from_u32(0), b"");
        }
        if ticket == Ticket::None {
            self.endpoint.set_default_client_config(client_config(&self.place)?);
        }
        let begun = Instant::now();
        self.connection = Some(self.runtime.block_on(connect(&self.endpoint, &self.place))?);
        self.null()?;
        Ok(begun.elapsed())
    }
}
