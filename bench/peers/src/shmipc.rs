//! shmipc, CloudWeGo's streams over shared memory, which wake each other over a Unix socket.

use std::os::unix::net::SocketAddr;

use ::shmipc::Listener;
use ::shmipc::config::Config;
use ::shmipc::session::{SessionManager, SessionManagerConfig};
use ::shmipc::stream::Stream;
use ::shmipc::transport::{DefaultUnixConnect, DefaultUnixListen};
use tokio::runtime::Runtime;
use upcall_bench::bytes::{self, Bytes, Exchange};
use upcall_bench::child::{Outcome, Place, Ready, System};

use crate::callers;

/// The system `shmipc`.
pub struct Shmipc;

impl System for Shmipc {
    const NAME: &'static str = "shmipc";
    type Client = Bytes<Calls>;

    fn serve(place: &Place, ready: Ready) -> Outcome<()> {
        callers::runtime()?.block_on(async {
            let listener = Listener::new(DefaultUnixListen, address(place)?, Config::default());
            let mut listener = listener.await?;
            ready.announce();
            loop {
                let mut stream = listener.accept().await?;
                tokio::spawn(async move {
                    let (mut request, mut reply) = (Vec::new(), Vec::new());
                    // Ends when the client has ended, which every error here means.
                    while receive(&mut stream, &mut request).await.is_ok() {
                        reply.clear();
                        if bytes::serve(&request, &mut reply).is_err()
                            || send(&mut stream, &reply, &[]).await.is_err()
                        {
                            break;
                        }
                    }
                });
            }
        })
    }

    fn connect(place: &Place) -> Outcome<Bytes<Calls>> {
        let runtime = callers::runtime()?;
        let config = SessionManagerConfig::new().with_config(Config::default()).with_session_num(1);
        let sessions = SessionManager::new(config, DefaultUnixConnect, address(place)?);
        let sessions = runtime.block_on(sessions)?;
        let stream = sessions.get_stream()?;
        Ok(Bytes::new(Calls { stream, _sessions: sessions, runtime }))
    }
}

fn address(place: &Place) -> Outcome<SocketAddr> {
    Ok(SocketAddr::from_pathname(place.dir.join("calls.sock"))?)
}

async fn send(stream: &mut Stream, head: &[u8], body: &[u8]) -> Outcome<()> {
    let length = (head.len() + body.len()) as u32;
    for part in [&length.to_le_bytes(), head, body] {
        stream.write_bytes(part)?;
    }
    Ok(stream.flush(false).await?)
}

async fn receive(stream: &mut Stream, message: &mut Vec<u8>) -> Outcome<()> {
    let length = <[u8; 4]>::try_from(&*stream.read_exact_bytes(4).await?)?;
    message.clear();
    let length = u32::from_le_bytes(length) as usize;
    message.extend_from_slice(&stream.read_exact_bytes(length).await?);
    stream.release_read_and_reuse();
    Ok(())
}

/// A client with one stream.
pub struct Calls {
    stream: Stream,
    _sessions: SessionManager<DefaultUnixConnect>,
    runtime: Runtime,
}

impl Exchange for Calls {
    fn exchange(&mut self, head: &[u8], body: &[u8], reply: &mut Vec<u8>) -> Outcome<()> {
        let Calls { stream, runtime, .. } = self;
        runtime.block_on(async {
            send(stream, head, body).await?;
            receive(stream, reply).await
        })
    }
}
