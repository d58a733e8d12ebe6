//! Hosts that exchange messages over links while connections are cut, on a virtual clock.
//!
//! Both sides of each link are the shipped [`HostLink`]. Between them are pipes with a delay, which
//! carry pieces of any length. A cut loses what is under way in both pipes, and after a while the
//! client connects again. Each side expects the messages of the other in order, each once, with the
//! contents that they were sent with.
//!
//! One heap holds everything that will happen, ordered by time. So a run costs memory for what is
//! under way, and for two state machines a link.
//!
//! Not covered: TLS, sockets and their buffers (`upcall-tests`), and servers that forget sessions.

use crate::dice::{Dice, mixed};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};
use upcall_net::incoming::LinkEvent;
use upcall_net::link::HostLink;
use upcall_net::outgoing::OutMessage;
use upcall_net::record::{HELLO, Hello};
use upcall_net::{FrameBody, FrameHeader, FrameKind, LinkTerms, Wanted};

const TERMS: LinkTerms = LinkTerms { window: 256, patience: Duration::from_secs(60) };

/// What a run does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinksPlan {
    /// Number of hosts.
    pub hosts: u32,
    /// Number of links that each host opens to others.
    pub links: u32,
    /// Number of messages on each link, in each direction.
    pub messages: u32,
    /// Number of times that each link is cut.
    pub cuts: u32,
}

/// What has happened in a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinksSummary {
    /// Number of messages that have arrived.
    pub messages: u64,
    /// Number of cuts.
    pub cuts: u64,
    /// Number of bytes that have arrived, and that were lost in cuts.
    pub bytes: u64,
    /// Number of those that were lost.
    pub lost: u64,
    /// The time that has passed on the virtual clock, in nanoseconds.
    pub took: u64,
}

/// One side of a link.
struct LinkEnd {
    link: HostLink,
    /// Number of the link, on which the contents of its messages depend.
    number: u32,
    /// Numbers of the next message to send, and to expect.
    sends: u32,
    expects: u32,
    /// When the last bytes that were sent will arrive: pipes keep their order.
    arrives: u64,
}

/// Two sides. There is no server before the first hello has arrived.
struct Joint {
    client: LinkEnd,
    server: Option<LinkEnd>,
    /// The client's hello on this connection, as far as it has arrived; `None` once it has.
    hello: Option<Vec<u8>>,
    /// Number of the connection, and whether there is one.
    connection: u32,
    is_connected: bool,
    cuts: u32,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum NetEvent {
    Connect,
    Send,
    Cut,
    ToServer(u32, Vec<u8>),
    ToClient(u32, Vec<u8>),
}

struct LinksRun {
    plan: LinksPlan,
    dice: Dice,
    joints: Vec<Joint>,
    heap: BinaryHeap<Reverse<(u64, u64, u32, NetEvent)>>,
    began: Instant,
    now: u64,
    events: u64,
    summary: LinksSummary,
}

/// Runs until nothing more happens.
///
/// # Errors
/// What went wrong, with the seed.
pub fn run(seed: u64, plan: LinksPlan) -> Result<LinksSummary, String> {
    let mut run = LinksRun {
        plan,
        dice: Dice::new(seed),
        joints: Vec::new(),
        heap: BinaryHeap::new(),
        began: Instant::now(),
        now: 0,
        events: 0,
        summary: LinksSummary::default(),
    };
    let wrong = |why: String| format!("seed {seed}, {plan:?}: {why}");
    for number in 0..plan.hosts * plan.links {
        let session = u128::from(mixed(u64::from(number))).to_le_bytes();
        let client = LinkEnd::new(HostLink::client(session, TERMS), number);
        let (connection, is_connected) = (0, false);
        let joint = Joint { client, server: None, hello: None, connection, is_connected, cuts: 0 };
        run.joints.push(joint);
        run.after(1_000_000, number, NetEvent::Connect);
        run.after(1_000_000, number, NetEvent::Send);
        run.after(10_000_000, number, NetEvent::Cut);
    }
    while let Some(Reverse((at, _, number, event))) = run.heap.pop() {
        run.now = at;
        run.step(number, event).map_err(wrong)?;
    }
    run.summary.took = run.now;
    for (number, joint) in run.joints.iter().enumerate() {
        let server = joint.server.as_ref().map_or(0, |server| server.expects);
        if server != plan.messages || joint.client.expects != plan.messages {
            let found = format!("link {number}: {server} up, {} down", joint.client.expects);
            return Err(wrong(found));
        }
    }
    Ok(run.summary)
}

impl LinkEnd {
    fn new(link: HostLink, number: u32) -> Self {
        Self { link, number, sends: 0, expects: 0, arrives: 0 }
    }

    /// Takes bytes, and checks the messages that are complete. Returns their number.
    fn take(&mut self, bytes: &[u8], now: Instant) -> Result<u64, String> {
        let mut events = Vec::new();
        let mut wants = |_: &FrameHeader| Ok(Wanted::Yes(None));
        let taken = self.link.take(bytes, now, &mut wants, &mut events);
        taken.map_err(|error| error.to_string())?;
        let mut count = 0;
        for event in events {
            let LinkEvent::Came(frame, _) = event else { return Err("given up".into()) };
            if frame.head.call != self.expects || frame.body != body(self.number, frame.head.call) {
                return Err(format!("message {} in place of {}", frame.head.call, self.expects));
            }
            self.expects += 1;
            count += 1;
        }
        Ok(count)
    }

    fn send(&mut self) {
        let call = self.sends;
        let head = FrameHeader { call, ..FrameHeader::of(FrameKind::Call) };
        self.link.send(0, OutMessage { head, body: body(self.number, call), owner: None });
        self.sends += 1;
    }
}

/// The contents of a message of a link: mostly short, now and then of several records.
fn body(number: u32, call: u32) -> FrameBody {
    let look = mixed(u64::from(number) << 32 | u64::from(call));
    let len = if look.is_multiple_of(50) { 40_000 } else { look % 200 };
    FrameBody::from(&*vec![look as u8; len as usize])
}

impl LinksRun {
    /// Lets something happen within `most` nanoseconds.
    fn after(&mut self, most: u64, number: u32, event: NetEvent) {
        let at = self.now + 1 + self.dice.below(most);
        self.at(at, number, event);
    }

    fn at(&mut self, at: u64, number: u32, event: NetEvent) {
        self.events += 1;
        self.heap.push(Reverse((at, self.events, number, event)));
    }

    fn joint(&mut self, number: u32) -> &mut Joint {
        &mut self.joints[number as usize]
    }

    fn step(&mut self, number: u32, event: NetEvent) -> Result<(), String> {
        let now = self.began + Duration::from_nanos(self.now);
        match event {
            NetEvent::Connect => {
                let joint = self.joint(number);
                joint.client.link.connect();
                (joint.hello, joint.is_connected) = (Some(Vec::new()), true);
            }
            NetEvent::Send => {
                let most = self.plan.messages;
                let joint = self.joint(number);
                let all = [Some(&mut joint.client), joint.server.as_mut()];
                all.into_iter().flatten().filter(|end| end.sends < most).for_each(LinkEnd::send);
                let done = joint.client.sends == most
                    && joint.server.as_ref().is_some_and(|server| server.sends == most);
                if !done {
                    self.after(20_000_000, number, NetEvent::Send);
                }
            }
            NetEvent::Cut => self.cut(number),
            NetEvent::ToServer(connection, bytes)
                if connection == self.joint(number).connection =>
            {
                self.summary.bytes += bytes.len() as u64;
                self.summary.messages += self.joint(number).reach_server(&bytes, now)?;
            }
            NetEvent::ToClient(connection, bytes)
                if connection == self.joint(number).connection =>
            {
                self.summary.bytes += bytes.len() as u64;
                self.summary.messages += self.joint(number).client.take(&bytes, now)?;
            }
            NetEvent::ToServer(_, bytes) | NetEvent::ToClient(_, bytes) => {
                self.summary.lost += bytes.len() as u64;
            }
        }
        self.pump(number)
    }

    /// Cuts a connection, unless the client does not know yet that the session has begun.
    fn cut(&mut self, number: u32) {
        let most = self.plan.cuts;
        let joint = self.joint(number);
        if joint.cuts == most {
            return;
        }
        let has_begun = joint.client.link.peer_window().is_some();
        if has_begun && joint.is_connected {
            joint.is_connected = false;
            joint.cuts += 1;
            joint.connection += 1;
            joint.client.link.cut();
            joint.server.iter_mut().for_each(|server| server.link.cut());
            self.summary.cuts += 1;
            self.after(50_000_000, number, NetEvent::Connect);
        }
        self.after(200_000_000, number, NetEvent::Cut);
    }

    /// Puts what both sides have to say into the pipes, in pieces.
    fn pump(&mut self, number: u32) -> Result<(), String> {
        let (now, dice) = (self.now, self.dice.clone());
        let joint = self.joint(number);
        let connection = joint.connection;
        let mut pieces = Vec::new();
        for (is_client, end) in [(true, Some(&mut joint.client)), (false, joint.server.as_mut())] {
            let Some(end) = end else { continue };
            loop {
                let output = end.link.output().map_err(|error| error.to_string())?;
                if output.is_empty() {
                    break;
                }
                let count = 1 + dice.magnitude(output.len() as u64) as usize;
                let piece = output[..count.min(output.len())].to_vec();
                end.link.sent(piece.len());
                end.arrives = end.arrives.max(now + 1_000_000 + dice.below(20_000_000)) + 1;
                let event = match is_client {
                    true => NetEvent::ToServer(connection, piece),
                    false => NetEvent::ToClient(connection, piece),
                };
                pieces.push((end.arrives, event));
            }
        }
        self.dice = dice;
        pieces.into_iter().for_each(|(at, event)| self.at(at, number, event));
        Ok(())
    }
}

impl Joint {
    /// Bytes reach the server.
    fn reach_server(&mut self, mut bytes: &[u8], now: Instant) -> Result<u64, String> {
        if let Some(hello) = &mut self.hello {
            let (first, rest) = bytes.split_at(bytes.len().min(HELLO - hello.len()));
            hello.extend_from_slice(first);
            bytes = rest;
            let Some(all) = hello.first_chunk::<HELLO>() else { return Ok(0) };
            let hello = Hello::read(all).map_err(|error| error.to_string())?;
            if self.server.is_none() {
                let link = HostLink::server(&hello, TERMS).map_err(|error| error.to_string())?;
                self.server = Some(LinkEnd::new(link, self.client.number));
            }
            let accepted = self.server.as_mut().map(|server| server.link.accept(&hello));
            accepted.transpose().map_err(|error| error.to_string())?;
            self.hello = None;
        }
        self.server.as_mut().map_or(Ok(0), |server| server.take(bytes, now))
    }
}
