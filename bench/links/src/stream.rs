//! Calls over a stream, one at a time: bare TCP, and TLS over TCP.

use crate::keys;
use crate::measure::{FEWER, LARGE, Outcome, REPLY, SMALL, measure, request};
use rustls::{ClientConnection, ServerConnection, StreamOwned};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// Answers calls until the client hangs up.
fn answer(mut stream: impl Read + Write) -> std::io::Result<()> {
    let mut argument = vec![0; LARGE];
    loop {
        let mut len = [0; 4];
        stream.read_exact(&mut len)?;
        stream.read_exact(&mut argument[..u32::from_le_bytes(len) as usize])?;
        stream.write_all(&[1; REPLY])?;
        stream.flush()?;
    }
}

fn call(stream: &mut (impl Read + Write), request: &[u8]) -> std::io::Result<()> {
    stream.write_all(request)?;
    stream.flush()?;
    stream.read_exact(&mut [0; REPLY])
}

fn measure_both(link: &str, stream: &mut (impl Read + Write), calls: usize) {
    for (what, len, calls) in [("null", SMALL, calls), ("1 MiB", LARGE, calls / FEWER)] {
        let request = request(len);
        measure(&format!("{link} {what}"), calls, || call(stream, &request).expect("a reply"));
    }
}

pub fn serve_bare(address: SocketAddr) -> Outcome {
    for stream in TcpListener::bind(address)?.incoming() {
        let stream = stream?;
        stream.set_nodelay(true)?;
        // The end of a client is not an error.
        let _ = answer(stream);
    }
    Ok(())
}

pub fn serve_tls(address: SocketAddr, folder: &Path) -> Outcome {
    let config = Arc::new(keys::of_server(folder)?);
    for stream in TcpListener::bind(address)?.incoming() {
        let stream = stream?;
        stream.set_nodelay(true)?;
        let _ = answer(StreamOwned::new(ServerConnection::new(config.clone())?, stream));
    }
    Ok(())
}

pub fn call_bare(address: SocketAddr, calls: usize) -> Outcome {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    measure_both("tcp", &mut stream, calls);
    Ok(())
}

pub fn call_tls(address: SocketAddr, folder: &Path, calls: usize) -> Outcome {
    let config = Arc::new(keys::of_client(folder)?);
    let began = Instant::now();
    let stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    let connection = ClientConnection::new(config, keys::NAME.try_into()?)?;
    let mut stream = StreamOwned::new(connection, stream);
    call(&mut stream, &request(SMALL))?;
    println!("tls connect and first call: {} us", began.elapsed().as_micros());
    measure_both("tls", &mut stream, calls);
    Ok(())
}
