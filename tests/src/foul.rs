//! A network between hosts that treats packets badly.
//!
//! Each host is a network namespace with a device whose packets come to a thread of this process.
//! The thread delays them, so that they overtake each other, loses some, doubles some, cuts TCP
//! segments into pieces of any length, and resets connections, as devices in the middle do. It can
//! also lose all packets from one host to another. So the kernels' TCP has to mend what it can, and
//! Upcall the rest.
//!
//! A seed repeats the choices, but not the times at which packets arrive.

use crate::dice::Dice;
use crate::hosts::{Hosts, address};
use crate::packet::{Flow, Segment, destination};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::cmp::Reverse;
use std::collections::binary_heap::PeekMut;
use std::collections::{BinaryHeap, HashSet};
use std::io::{self, PipeReader, PipeWriter};
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use upcall_os::lock::KernelMutex;
use upcall_os::tun::{PACKET, Tun};

/// What happens to packets. Numbers are of 1000 packets.
#[derive(Clone, Copy, Debug, Default)]
pub struct PacketFaults {
    /// Longest delay of a packet.
    pub delay: Duration,
    /// Number that are lost.
    pub lost: u64,
    /// Number that arrive twice.
    pub doubled: u64,
    /// Number of TCP segments that are cut into two.
    pub divided: u64,
    /// Number of TCP segments with data after which their connection is reset.
    pub resets: u64,
}

/// What has happened to packets so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketCounts {
    /// Number of packets that hosts have sent.
    pub sent: u64,
    /// Number that were lost.
    pub lost: u64,
    /// Number that arrived twice.
    pub doubled: u64,
    /// Number that were overtaken by a later one between the same hosts.
    pub overtaken: u64,
    /// Number of TCP segments that were cut into two.
    pub divided: u64,
    /// Number of connections that were reset.
    pub resets: u64,
    /// Longest time for which packets had to wait because the network's thread did not run.
    pub stall: Duration,
}

impl PacketFaults {
    /// Delays and losses as on a bad wireless network.
    pub const FOUL: Self =
        Self { delay: Duration::from_millis(2), lost: 20, doubled: 20, divided: 100, resets: 0 };
}

/// The network, which exists until this is dropped.
#[derive(Debug)]
pub struct FoulNetwork {
    control: Arc<KernelMutex<Control>>,
    /// Dropped when the thread is to end.
    end: Option<PipeWriter>,
    carrier: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Control {
    orders: Orders,
    counts: PacketCounts,
}

/// What the thread is to do.
#[derive(Clone, Debug, Default)]
struct Orders {
    faults: PacketFaults,
    /// Pairs of hosts: what the first one sends to the second one is lost.
    blocked: HashSet<(usize, usize)>,
    /// Number of times that all connections were to be reset.
    storms: u64,
}

impl FoulNetwork {
    /// Makes hosts that are joined by a network, which harms no packet until [`FoulNetwork::set`].
    /// Returns `None`, and says so, if this machine forbids that.
    pub fn join(hosts: usize, dice: Dice) -> Option<(Hosts, Self)> {
        Hosts::joined_by(hosts, |namespaces| Self::start(namespaces, dice))
    }

    fn start(namespaces: &[String], dice: Dice) -> io::Result<Self> {
        let device = |name: &String| Tun::create(&Path::new("/run/netns").join(name), "eth0");
        let devices: Vec<Tun> = namespaces.iter().map(device).collect::<Result<_, _>>()?;
        let (hears, end) = io::pipe()?;
        let control = Arc::new(KernelMutex::new(Control::default()));
        let mut carrier = Carrier {
            latest: vec![Instant::now(); devices.len() * devices.len()],
            devices,
            dice,
            control: control.clone(),
            orders: Orders::default(),
            counts: PacketCounts::default(),
            under_way: BinaryHeap::new(),
            number: 0,
            open: HashSet::new(),
            doomed: HashSet::new(),
            reset: HashSet::new(),
        };
        let carrier = std::thread::spawn(move || carrier.run(&hears));
        Ok(Self { control, end: Some(end), carrier: Some(carrier) })
    }

    /// Sets what happens to packets from now on.
    pub fn set(&self, faults: PacketFaults) {
        self.control.lock().orders.faults = faults;
    }

    /// Resets each connection that is open, when its next packet comes.
    pub fn reset_all(&self) {
        self.control.lock().orders.storms += 1;
    }

    /// Loses what one host sends to another, without a word.
    pub fn block(&self, from: usize, to: usize) {
        self.control.lock().orders.blocked.insert((from, to));
    }

    /// Lets packets pass again.
    pub fn unblock(&self, from: usize, to: usize) {
        self.control.lock().orders.blocked.remove(&(from, to));
    }

    /// What has happened so far.
    pub fn counts(&self) -> PacketCounts {
        self.control.lock().counts
    }
}

impl Drop for FoulNetwork {
    fn drop(&mut self) {
        drop(self.end.take());
        let ended = self.carrier.take().map(JoinHandle::join);
        if ended.is_some_and(|ended| ended.is_err()) && !std::thread::panicking() {
            panic!("the thread that carries packets has panicked");
        }
    }
}

/// A packet under way, in the order of arrival.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Departure {
    at: Instant,
    number: u64,
    from: usize,
    to: usize,
    packet: Vec<u8>,
}

/// The thread that carries packets.
struct Carrier {
    devices: Vec<Tun>,
    dice: Dice,
    control: Arc<KernelMutex<Control>>,
    orders: Orders,
    counts: PacketCounts,
    under_way: BinaryHeap<Reverse<Departure>>,
    /// Number of packets that were put under way.
    number: u64,
    /// By pairs of hosts: the latest arrival so far of a packet between them.
    latest: Vec<Instant>,
    /// Connections that both sides have.
    open: HashSet<Flow>,
    /// Those that are to be reset.
    doomed: HashSet<Flow>,
    /// Connections that were reset: each further packet of one is answered by a reset.
    reset: HashSet<Flow>,
}

/// Number of packets of one host that are read at once.
const BATCH: usize = 64;

/// Longest wait of the thread, by which it knows whether it was held up.
const BEAT: Duration = Duration::from_millis(100);

impl Carrier {
    fn run(&mut self, end: &PipeReader) {
        let mut packet = Box::new([0; PACKET]);
        let mut last = Instant::now();
        while let Some(readable) = self.wait(end) {
            let now = Instant::now();
            self.counts.stall = self.counts.stall.max((now - last).saturating_sub(BEAT));
            last = now;
            self.obey();
            for from in readable {
                for _ in 0..BATCH {
                    // A device that is down has nothing.
                    let Ok(len) = self.devices[from].read(&mut packet) else { break };
                    self.take(from, &packet[..len]);
                }
            }
            self.deliver();
            self.control.lock().counts = self.counts;
        }
    }

    /// Waits until a host has sent something, or a packet is due, but no longer than [`BEAT`].
    /// Returns the hosts that have sent something; `None` when the network ends.
    fn wait(&self, end: &PipeReader) -> Option<Vec<usize>> {
        let next = self.under_way.peek();
        let time = next.map(|Reverse(next)| next.at.saturating_duration_since(Instant::now()));
        let time = Timespec::try_from(time.unwrap_or(BEAT).min(BEAT)).expect("a short time");
        let devices = self.devices.iter().map(|device| PollFd::new(device, PollFlags::IN));
        let mut all: Vec<PollFd<'_>> = devices.collect();
        all.push(PollFd::new(end, PollFlags::IN));
        if poll(&mut all, Some(&time)).is_err() {
            return Some(Vec::new());
        }
        let end = all.pop().expect("the pipe");
        let is_ready = |fd: &PollFd<'_>| fd.revents().contains(PollFlags::IN);
        let ready = all.iter().enumerate().filter(|(_, fd)| is_ready(fd));
        end.revents().is_empty().then(|| ready.map(|(from, _)| from).collect())
    }

    /// Takes the newest orders.
    fn obey(&mut self) {
        let orders = self.control.lock().orders.clone();
        if orders.storms > self.orders.storms {
            self.doomed.extend(self.open.drain());
        }
        self.orders = orders;
    }

    /// Takes a packet from a host, and decides what happens to it.
    fn take(&mut self, from: usize, packet: &[u8]) {
        let Some(to) = self.host_at(packet).filter(|&to| to != from) else { return };
        let faults = self.orders.faults;
        let [lost, doubled, divided, resets] =
            [faults.lost, faults.doubled, faults.divided, faults.resets]
                .map(|of| self.dice.below(1000) < of);
        self.counts.sent += 1;
        if lost || self.orders.blocked.contains(&(from, to)) {
            self.counts.lost += 1;
            return;
        }
        let segment = Segment::of(packet);
        if let Some(segment) = &segment
            && self.is_reset(segment, resets)
        {
            for (host, packet) in [from, to].into_iter().zip(&segment.resets()) {
                // A reset that does not arrive is repeated for the next packet.
                let _ = self.devices[host].write(packet);
            }
            return;
        }
        let pieces = match segment.filter(|segment| divided && segment.len() > 1) {
            Some(segment) => {
                self.counts.divided += 1;
                let first = 1 + self.dice.below(segment.len() as u64 - 1);
                segment.divide(first as usize).to_vec()
            }
            None => vec![packet.to_vec()],
        };
        self.counts.doubled += u64::from(doubled);
        for packet in pieces {
            if doubled {
                self.send([from, to], packet.clone());
            }
            self.send([from, to], packet);
        }
    }

    /// Returns `true` if the connection of a segment was reset, or is now.
    fn is_reset(&mut self, segment: &Segment<'_>, resets: bool) -> bool {
        let flow = segment.flow();
        if segment.opens() {
            // The same ports are used again.
            self.doomed.remove(&flow);
            self.reset.remove(&flow);
        } else if segment.is_of_an_open_one() && !self.reset.contains(&flow) {
            if resets && !segment.is_empty() || self.doomed.contains(&flow) {
                self.counts.resets += 1;
                self.doomed.remove(&flow);
                self.open.remove(&flow);
                self.reset.insert(flow);
            } else {
                self.open.insert(flow);
            }
        }
        self.reset.contains(&flow)
    }

    /// The host to which a packet goes.
    fn host_at(&self, packet: &[u8]) -> Option<usize> {
        let to = Ipv4Addr::from(destination(packet)?).to_string();
        (0..self.devices.len()).find(|&host| address(host) == to)
    }

    /// Puts a packet under way from one host to another.
    fn send(&mut self, [from, to]: [usize; 2], packet: Vec<u8>) {
        let delay = self.dice.below(self.orders.faults.delay.as_nanos() as u64);
        let at = Instant::now() + Duration::from_nanos(delay);
        let latest = &mut self.latest[from * self.devices.len() + to];
        self.counts.overtaken += u64::from(at < *latest);
        *latest = at.max(*latest);
        self.number += 1;
        self.under_way.push(Reverse(Departure { at, number: self.number, from, to, packet }));
    }

    /// Delivers what is due, except on cables that are cut and in connections that were reset.
    fn deliver(&mut self) {
        let now = Instant::now();
        while let Some(next) = self.under_way.peek_mut().filter(|next| next.0.at <= now) {
            let Reverse(Departure { from, to, packet, .. }) = PeekMut::pop(next);
            let segment = Segment::of(&packet);
            let is_reset = segment.is_some_and(|segment| self.reset.contains(&segment.flow()));
            if !is_reset && !self.orders.blocked.contains(&(from, to)) {
                // The device of a host that is gone takes nothing.
                let _ = self.devices[to].write(&packet);
            }
        }
    }
}
