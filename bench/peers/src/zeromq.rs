//! ZeroMQ over ipc: REQ and REP. With several calls outstanding, a DEALER takes the place of REQ,
//! as ZeroMQ's guide recommends.

use std::time::{Duration, Instant};

use upcall_bench::bytes::{self, Bytes, Exchange};
use upcall_bench::case::BIG;
use upcall_bench::child::{ClientSide, Outcome, Place, Ready, System, Throughput};

/// The system `zeromq`.
pub struct ZeroMq;

impl System for ZeroMq {
    const NAME: &'static str = "zeromq";
    type Client = Client;

    fn serve(place: &Place, ready: Ready) -> Outcome<()> {
        let socket = zmq::Context::new().socket(zmq::REP)?;
        socket.bind(&endpoint(place))?;
        ready.announce();
        let (mut request, mut reply) = (zmq::Message::new(), Vec::new());
        loop {
            socket.recv(&mut request, 0)?;
            reply.clear();
            bytes::serve(&request, &mut reply)?;
            socket.send(&reply[..], 0)?;
        }
    }

    fn connect(place: &Place) -> Outcome<Client> {
        let context = zmq::Context::new();
        let socket = context.socket(zmq::REQ)?;
        socket.set_linger(0)?;
        socket.connect(&endpoint(place))?;
        let calls = Bytes::new(Socket { socket, reply: zmq::Message::new() });
        Ok(Client { calls, context, endpoint: endpoint(place) })
    }
}

fn endpoint(place: &Place) -> String {
    format!("ipc://{}", place.dir.join("calls.sock").display())
}

/// A REQ socket.
struct Socket {
    socket: zmq::Socket,
    reply: zmq::Message,
}

impl Exchange for Socket {
    fn exchange(&mut self, head: &[u8], body: &[u8], reply: &mut Vec<u8>) -> Outcome<()> {
        let mut request = zmq::Message::with_size(head.len() + body.len());
        let (first, rest) = request.split_at_mut(head.len());
        first.copy_from_slice(head);
        rest.copy_from_slice(body);
        self.socket.send(request, 0)?;
        self.socket.recv(&mut self.reply, 0)?;
        reply.extend_from_slice(&self.reply);
        Ok(())
    }
}

/// The client.
pub struct Client {
    calls: Bytes<Socket>,
    context: zmq::Context,
    endpoint: String,
}

impl Client {
    fn dealer(&self, callers: usize, time: Duration) -> Outcome<Throughput> {
        let socket = self.context.socket(zmq::DEALER)?;
        socket.set_linger(0)?;
        socket.connect(&self.endpoint)?;
        let null = bytes::null_request();
        let send = || socket.send_multipart([&[][..], &null[..]], 0);
        let begun = Instant::now();
        for _ in 0..callers {
            send()?;
        }
        let (mut outstanding, mut calls) = (callers, 0);
        let mut part = zmq::Message::new();
        while outstanding > 0 {
            socket.recv(&mut part, 0)?; // the empty part before a reply
            socket.recv(&mut part, 0)?;
            calls += 1;
            if begun.elapsed() < time {
                send()?;
            } else {
                outstanding -= 1;
            }
        }
        Ok(Throughput::new(calls, begun.elapsed()))
    }
}

impl ClientSide for Client {
    fn null(&mut self) -> Outcome<()> {
        self.calls.null()
    }
    fn add(&mut self, a: i32, b: i32) -> Outcome<i32> {
        self.calls.add(a, b)
    }
    fn big_in(&mut self, data: &[u8; BIG]) -> Outcome<u64> {
        self.calls.big_in(data)
    }
    fn big_in_out(&mut self, data: &[u8; BIG]) -> Outcome<[u8; BIG]> {
        self.calls.big_in_out(data)
    }
    fn bytes_in(&mut self, data: &[u8]) -> Outcome<u64> {
        self.calls.bytes_in(data)
    }

    fn throughput(&mut self, callers: usize, time: Duration) -> Option<Outcome<Throughput>> {
        Some(match callers {
            1 => Throughput::one_caller(self, time),
            _ => self.dealer(callers, time),
        })
    }
}
