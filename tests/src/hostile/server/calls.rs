//! The calls of one connection: some are answered correctly, and the others are wrong in every
//! possible way.

use super::super::requests::number;
use super::Tally;
use crate::dice::Dice;
use crate::speech::{FETCH, outcome};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use upcall_os::doorbell::Doorbell;
use upcall_os::futex::{self, FutexScope};
use upcall_os::lock::KernelMutex;
use upcall_shm::channel::{self, Channel, LaneControl};
use upcall_shm::region::{Region, RegionView};
use upcall_shm::ring::{RingReceiver, RingSender};
use upcall_shm::single::SingleServer;
use upcall_shm::slot::{Slot, SlotMessage, ValueLocation};
use upcall_shm::station::Station;

/// Serves one connection, on its own thread.
pub(super) struct Calls {
    given: Arc<KernelMutex<Given>>,
    channel: Channel,
}

#[derive(Default)]
struct Given {
    names: Vec<String>,
    /// All memory except the channel's, with segments by their numbers.
    memory: Vec<(u16, Arc<Region>)>,
    lanes: Vec<Arc<Lane>>,
}

struct Lane {
    queue: Queue,
    control: RegionView<LaneControl>,
    doorbell: Option<Doorbell>,
}

type Slots = RegionView<[Slot]>;

enum Queue {
    Single(SingleServer<RegionView<Slot>>),
    Rings(KernelMutex<(RingReceiver<Slots>, RingSender<Slots>)>),
}

impl Lane {
    fn take(&self) -> Option<SlotMessage> {
        match &self.queue {
            Queue::Single(slot) => {
                let mut image = SlotMessage::new(0, 0, 0);
                slot.take_alone(&mut image).then_some(image)
            }
            Queue::Rings(rings) => rings.lock().0.take(),
        }
    }

    fn reply(&self, image: &SlotMessage) {
        match &self.queue {
            Queue::Single(slot) => slot.reply(image),
            Queue::Rings(rings) => rings.lock().1.send(image),
        }
    }

    /// Wakes the caller, whether it sleeps or not.
    fn wake(&self) {
        self.control.sleeper.store(0, upcall_os::atomic::Ordering::SeqCst);
        futex::wake(&self.control.sleeper, 1, FutexScope::Shared);
        self.doorbell.iter().for_each(Doorbell::notify);
    }
}

impl Calls {
    /// Starts to serve, until `over` is set.
    pub(super) fn begin(
        (memory, station, tally, over): (Arc<Region>, Arc<Station>, Arc<Tally>, Arc<AtomicBool>),
        dice: Dice,
    ) -> Self {
        let given = Arc::new(KernelMutex::new(Given::default()));
        let channel = Channel::join(memory.clone())
            .unwrap_or_else(|error| panic!("the client's channel: {error}"));
        let mut serving = Serving { given: given.clone(), channel: memory, station, tally, dice };
        std::thread::spawn(move || serving.run(&over));
        Self { given, channel }
    }

    pub(super) fn bound(&self, names: Vec<String>) {
        self.given.lock().names = names;
    }

    /// Adds a segment with its number, or A-stacks with 0.
    pub(super) fn memory(&self, number: u16, memory: Arc<Region>) {
        self.given.lock().memory.push((number, memory));
    }

    pub(super) fn lane(&self, number: u16, vp: Option<u16>, doorbell: Option<&Doorbell>) {
        let Some(lane) = self.channel.lane(number) else { return };
        let queue = match vp {
            None => Queue::Single(SingleServer::new(lane.single)),
            Some(_) => Queue::Rings(KernelMutex::new((
                RingReceiver::new(lane.requests),
                RingSender::new(lane.replies),
            ))),
        };
        let doorbell = doorbell
            .and_then(|doorbell| Doorbell::adopt(doorbell.as_fd().try_clone_to_owned().ok()?).ok());
        self.given.lock().lanes.push(Arc::new(Lane { queue, control: lane.control, doorbell }));
    }
}

struct Serving {
    given: Arc<KernelMutex<Given>>,
    channel: Arc<Region>,
    station: Arc<Station>,
    tally: Arc<Tally>,
    dice: Dice,
}

impl Serving {
    fn run(&mut self, over: &AtomicBool) {
        let mut good = if self.dice.below(4) == 0 { u64::MAX } else { self.dice.below(60) };
        while !over.load(Ordering::Relaxed) {
            let lanes = self.given.lock().lanes.clone();
            let mut idle = true;
            for lane in &lanes {
                let Some(request) = lane.take() else { continue };
                idle = false;
                if good > 0 {
                    good -= 1;
                    self.tally.honest.fetch_add(1, Ordering::Relaxed);
                    lane.reply(&self.honest(&request));
                    lane.wake();
                } else {
                    self.break_something(lane, &request);
                }
            }
            if idle && good == 0 {
                self.break_silence();
            }
            if idle {
                std::thread::sleep(Duration::from_micros(20));
            }
        }
    }

    /// The reply that an honest server could send, as far as it is known without doing the work.
    fn honest(&mut self, request: &SlotMessage) -> SlotMessage {
        let procedure = request.tag() & 0x3ff;
        let name = self.given.lock().names.get(usize::from(procedure)).cloned().unwrap_or_default();
        let mut reply = SlotMessage::new(request.call(), outcome::DONE, request.astack());
        match &*name {
            // The block of the text is also that of the result, and stays in place.
            "echo" => {
                reply.values = request.values;
                reply.place(
                    request.values_in().unwrap_or(ValueLocation::Inline),
                    request.segment(),
                    request.len() as u32,
                );
            }
            "null" | "nap" => {}
            "make" => {
                reply = SlotMessage::new(request.call(), outcome::HELD, request.astack());
                (reply.values[0], reply.values[1]) = (1, 16);
                reply.place(ValueLocation::Inline, 0, 16);
            }
            _ if procedure == FETCH => {
                // An empty list: its offset and its length.
                for at in [0, 8] {
                    self.put_in(request.segment(), at, 16 * u64::from(at == 0));
                }
                reply.values[0] = 16;
                reply.place(ValueLocation::Segment, 0, 8);
            }
            _ => {
                reply.values[0] = self.dice.any();
                reply.place(ValueLocation::Inline, 0, 8);
            }
        }
        reply
    }

    fn put_in(&self, number: u16, at: usize, word: u64) {
        let given = self.given.lock();
        let memory = given.memory.iter().rev().find(|(found, _)| *found == number);
        memory
            .and_then(|(_, region)| region.room(0, region.len())?.put_u64(at, word))
            .unwrap_or_default();
    }

    fn break_something(&mut self, lane: &Lane, request: &SlotMessage) {
        self.tally.step();
        match self.dice.below(24) {
            // No reply.
            0 => {}
            // A reply, but no wake.
            1 => lane.reply(&self.honest(request)),
            // Two replies, or a flood of them.
            2 => {
                let reply = self.honest(request);
                (0..[2, 3, 70][self.dice.below(3) as usize]).for_each(|_| lane.reply(&reply));
            }
            3 => {
                let reply = SlotMessage::new(self.dice.any() as u16, outcome::DONE, 0);
                lane.reply(&reply);
            }
            4 => (0..100).for_each(|_| lane.wake()),
            5 => self.scribble(&self.channel.clone(), channel::BYTES.min(8192 * 40)),
            6 | 7 => self.scribble_station(),
            _ => {
                self.scribble_memory();
                lane.reply(&self.lie(request));
            }
        }
        if self.dice.below(8) != 0 {
            lane.wake();
        }
    }

    /// Overwrites something while clients compute, send or wait.
    fn break_silence(&mut self) {
        self.tally.step();
        match self.dice.below(256) {
            0 => self.scribble(&self.channel.clone(), channel::BYTES.min(8192 * 40)),
            1..64 => self.scribble_station(),
            _ => self.scribble_memory(),
        }
    }

    fn lie(&mut self, request: &SlotMessage) -> SlotMessage {
        let dice = &mut self.dice;
        let outcome = if dice.below(2) == 0 { 0 } else { dice.below(10) as u16 };
        let mut reply = SlotMessage::new(request.call(), outcome, dice.any() as u16);
        let place = [ValueLocation::Inline, ValueLocation::AStack, ValueLocation::Segment]
            [dice.below(3) as usize];
        reply.place(place, number(dice) as u16, number(dice) as u32);
        reply.values = std::array::from_fn(|_| number(dice));
        // A result for which a call had no room is held for it, and the client fetches this many
        // bytes. The cap keeps that from harming the machine.
        if (1 << 24..1 << 48).contains(&reply.values[1]) {
            reply.values[1] = 1 << 20;
        }
        if dice.below(8) == 0 {
            reply.set_deadline(dice.any());
        }
        if dice.below(8) == 0 {
            reply.donate();
        }
        reply
    }

    fn scribble_memory(&mut self) {
        let memory = self.given.lock().memory.clone();
        for (_, region) in memory {
            self.scribble(&region, region.len());
        }
    }

    /// Writes some words anywhere in the first `within` bytes, half of them where blocks begin.
    fn scribble(&mut self, region: &Region, within: usize) {
        for _ in 0..self.dice.below(4) {
            let words = if self.dice.below(2) == 0 { within as u64 / 8 } else { 8 };
            let (at, word) = (self.dice.below(words) as usize * 8, number(&mut self.dice));
            let _ = region.room(0, region.len()).and_then(|room| room.put_u64(at, word));
        }
    }

    fn scribble_station(&mut self) {
        for vp in [0, self.dice.below(63) as usize] {
            let line = self.station.line(vp);
            line.asleep.store(self.dice.any() as u32 & 1, Ordering::SeqCst);
            line.sleeps.store(number(&mut self.dice), Ordering::SeqCst);
            line.tid.store(self.dice.below(1 << 16) as u32, Ordering::SeqCst);
            line.cpu.store(number(&mut self.dice) as u32 & 0xff, Ordering::SeqCst);
        }
    }
}
