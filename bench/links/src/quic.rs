//! Calls over QUIC: each call in a stream of its own, or all of them in one stream.

use crate::keys;
use crate::measure::{FEWER, Failure, LARGE, Outcome, REPLY, SMALL, Times, request};
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{ClientConfig, Connection, Endpoint, RecvStream, SendStream};
use quinn::{ServerConfig, TransportConfig};
use std::cell::Cell;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use tokio::runtime::{Builder, Runtime};

/// One thread, as for the other links.
pub fn runtime() -> std::io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

/// Answers the calls of a stream until the client finishes it.
async fn answer(mut replies: SendStream, mut requests: RecvStream) -> Outcome {
    let mut argument = vec![0; LARGE];
    loop {
        let mut len = [0; 4];
        requests.read_exact(&mut len).await?;
        requests.read_exact(&mut argument[..u32::from_le_bytes(len) as usize]).await?;
        replies.write_all(&[1; REPLY]).await?;
    }
}

pub async fn serve(address: SocketAddr, folder: &Path) -> Outcome {
    let crypto = QuicServerConfig::try_from(keys::of_server(folder)?)?;
    let mut transport = TransportConfig::default();
    transport.max_concurrent_bidi_streams(10_000u32.into());
    transport.stream_receive_window((8u32 << 20).into()).receive_window((32u32 << 20).into());
    let mut config = ServerConfig::with_crypto(Arc::new(crypto));
    config.transport_config(Arc::new(transport));
    let endpoint = Endpoint::server(config, address)?;
    while let Some(client) = endpoint.accept().await {
        let Ok(connection) = client.await else { continue };
        tokio::spawn(async move {
            while let Ok((replies, requests)) = connection.accept_bi().await {
                tokio::spawn(async move {
                    // The end of a stream is not an error.
                    let _ = answer(replies, requests).await;
                });
            }
        });
    }
    Ok(())
}

async fn connect(address: SocketAddr, folder: &Path) -> Result<Connection, Failure> {
    let crypto = QuicClientConfig::try_from(keys::of_client(folder)?)?;
    let mut transport = TransportConfig::default();
    transport.send_window(32 << 20);
    let mut config = ClientConfig::new(Arc::new(crypto));
    config.transport_config(Arc::new(transport));
    let mut endpoint = Endpoint::client(SocketAddr::from(([0, 0, 0, 0], 0)))?;
    endpoint.set_default_client_config(config);
    Ok(endpoint.connect(address, keys::NAME)?.await?)
}

pub async fn call(address: SocketAddr, folder: &Path, calls: usize) -> Outcome {
    let began = Instant::now();
    let connection = connect(address, folder).await?;
    println!("quic connect: {} us", began.elapsed().as_micros());
    in_streams("quic null, a stream for each call", &connection, calls).await?;
    in_one_stream("quic null, one stream", &connection, SMALL, calls).await?;
    in_one_stream("quic 1 MiB, one stream", &connection, LARGE, calls / FEWER).await?;
    beside_large(&connection, calls).await
}

async fn in_one_stream(what: &str, connection: &Connection, len: usize, calls: usize) -> Outcome {
    let (mut requests, mut replies) = connection.open_bi().await?;
    let (request, mut times) = (request(len), Times::of(calls));
    for _ in 0..times.calls() {
        let began = Instant::now();
        requests.write_all(&request).await?;
        replies.read_exact(&mut [0; REPLY]).await?;
        times.note(began);
    }
    times.print(what);
    Ok(())
}

async fn in_streams(what: &str, connection: &Connection, calls: usize) -> Outcome {
    let (request, mut times) = (request(SMALL), Times::of(calls));
    for _ in 0..times.calls() {
        let began = Instant::now();
        let (mut requests, mut replies) = connection.open_bi().await?;
        requests.write_all(&request).await?;
        requests.finish()?;
        replies.read_exact(&mut [0; REPLY]).await?;
        times.note(began);
    }
    times.print(what);
    Ok(())
}

/// Null calls while another stream of lower priority sends large arguments.
async fn beside_large(connection: &Connection, calls: usize) -> Outcome {
    let (mut requests, _replies) = connection.open_bi().await?;
    requests.set_priority(-1)?;
    let (sent, large, began) = (Cell::new(0), request(LARGE), Instant::now());
    let send = async {
        while requests.write_all(&large).await.is_ok() {
            sent.set(sent.get() + LARGE);
        }
    };
    tokio::select! {
        () = send => return Err("the large arguments were not taken".into()),
        called = in_streams("quic null, beside large arguments", connection, calls) => called?,
    }
    let rate = sent.get() as f64 / 1e9 / began.elapsed().as_secs_f64();
    println!("  the large arguments: {rate:.2} GB/s");
    Ok(())
}
