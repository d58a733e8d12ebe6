//! Links in a process that is refused memory: their sessions go on, and no message is lost.

use std::time::{Duration, Instant};
use upcall_net::incoming::LinkEvent;
use upcall_net::link::LinkError;
use upcall_net::record::{HELLO, Hello};
use upcall_net::{
    Frame, FrameBody, FrameHeader, FrameKind, HostLink, LinkTerms, OutMessage, Wanted, bodies,
};
use upcall_os::ration::{self, Rationed};

#[global_allocator]
static ALLOCATOR: Rationed = Rationed;

const TERMS: LinkTerms = LinkTerms { window: 9, patience: Duration::from_secs(9) };

/// Minimum size of an allocation that may be refused, in bytes: what records and bodies need, and
/// nothing else does.
const LEAST: usize = 40 << 10;

/// A body that only this message has.
fn body(call: u32, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at as u32).wrapping_mul(call + 3) as u8).collect()
}

/// Takes all output of a link.
fn output(link: &mut HostLink) -> Result<Vec<u8>, LinkError> {
    let mut all = Vec::with_capacity(LEAST / 2);
    while let count @ 1.. = link.output()?.len() {
        let count = count.min(LEAST / 2 - all.len());
        all.extend_from_slice(&link.output()?[..count]);
        link.sent(count);
        if all.len() == LEAST / 2 {
            break;
        }
    }
    Ok(all)
}

/// Two ends of a session, and what has arrived at the server.
struct Ends {
    client: HostLink,
    server: Option<HostLink>,
    came: Vec<Frame>,
}

impl Ends {
    /// Connects, and moves bytes until all `expected` messages have arrived.
    fn connected(&mut self, expected: usize) -> Result<(), LinkError> {
        self.client.connect();
        let hello = output(&mut self.client)?;
        let (hello, mut rest) = hello.split_at(HELLO);
        let hello = Hello::read(hello.first_chunk().unwrap()).unwrap();
        let server = match &mut self.server {
            Some(server) => server,
            none => none.insert(HostLink::server(&hello, TERMS)?),
        };
        server.accept(&hello)?;
        let mut up;
        let mut idle = 0;
        while self.came.len() < expected {
            let mut events = Vec::new();
            let mut all = |_: &_| Ok(Wanted::Yes(None));
            let taken = server.take(rest, Instant::now(), &mut all, &mut events);
            for event in events {
                let LinkEvent::Came(frame, _) = event else { panic!("{event:?}") };
                self.came.push(frame);
            }
            taken?;
            let down = output(server)?;
            self.client.take(&down, Instant::now(), &mut all, &mut Vec::new())?;
            up = output(&mut self.client)?;
            rest = &up;
            // An end that has nothing to send waits for the other one.
            idle = if down.is_empty() && up.is_empty() { idle + 1 } else { 0 };
            assert!(idle < 3, "both ends wait for each other");
        }
        Ok(())
    }
}

#[test]
fn each_message_arrives_once_whatever_memory_is_refused() {
    // Long messages on several lanes, whose bodies take memory where they arrive, and short ones,
    // which take memory where they are sent.
    let long = [(0, 90), (1, 1 << 20), (2, 9), (1, 700_001), (0, 300_003), (2, 120_000)];
    let short = (0..200).map(|number| (3 + number % 2, 1500 + number as usize));
    let bodies: Vec<(u64, usize)> = long.into_iter().chain(short).collect();
    let mut refusals = [0; 2];
    for nth in 1.. {
        let link = HostLink::client([7; 16], TERMS);
        let mut ends = Ends { client: link, server: None, came: Vec::with_capacity(bodies.len()) };
        for (call, &(lane, len)) in bodies.iter().enumerate() {
            let head = FrameHeader { call: call as u32, ..FrameHeader::of(FrameKind::Call) };
            let body = FrameBody::from(&*body(call as u32, len));
            ends.client.send(lane, OutMessage { head, body, owner: None });
        }
        // What the last round has left would be used first.
        (0..2).for_each(|_| bodies::age());
        ration::refuse(nth, LEAST);
        let mut cuts = 0;
        while let Err(error) = ends.connected(bodies.len()) {
            assert_eq!(error, LinkError::NoMemory, "the {nth}th allocation");
            ends.client.cut();
            ends.server.iter_mut().for_each(HostLink::cut);
            cuts += 1;
        }
        let outcome = ration::lift();
        ends.came.sort_by_key(|frame| frame.head.call);
        assert_eq!(ends.came.len(), bodies.len());
        for (call, Frame { head, body: came }) in ends.came.iter().enumerate() {
            assert_eq!(head.call, call as u32);
            assert!(
                came.to_vec() == body(head.call, bodies[call].1),
                "message {call}, refusal {nth}"
            );
        }
        refusals[cuts.min(1)] += 1;
        if !outcome.refused {
            break;
        }
    }
    // Both records and bodies were refused memory.
    assert!(refusals[1] > 10, "{refusals:?}");
}
