//! Hostile peers, driven by a seed. This module has the client; [`server`] is the other side.
//!
//! The client speaks the protocol as it should up to some step, and then breaks each rule in turn,
//! at random: a walk that its seed repeats.
//!
//! A step is something that no honest client does. The client lives many lives, each on its own
//! connection, and leaves the last one by dying. While only the contents of its requests are wrong,
//! it holds the server to the protocol: each request has one reply, in time, of a kind that exists.

pub mod greedy;
mod holes;
mod lanes;
pub mod member;
mod requests;
pub mod server;
mod words;

use self::holes::{PAGE, punch, sealed};
use self::lanes::{Expected, LANE_BYTES, Lane, RINGS};
use self::requests::Memory;
use self::words::Goods;
use crate::dice::Dice;
use crate::interfaces::trial;
use crate::outcome::{Outcome, show};
use crate::speech::{Files, Hold, Request, Speaker, outcome};
use rustix::fs::OFlags;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use upcall_os::doorbell::Doorbell;
use upcall_os::socket::Received;
use upcall_shm::region::Region;

/// Takes `steps` steps against the domain with this socket. Reports the number of steps, of lives,
/// of replies, and of holes that the kernel made in shared memory.
///
/// # Errors
/// If the server broke the protocol.
pub fn walk(socket: &Path, seed: u64, steps: u64) -> Outcome {
    let mut dice = Dice::new(seed);
    let (goods, mut memory) = (Goods::new()?, Memory::default());
    let (mut done, mut lives, mut replies, mut holes) = (0, 0, 0, 0);
    while done < steps {
        lives += 1;
        if dice.below(8) == 0 {
            done += strange(socket, &goods, &mut dice);
            continue;
        }
        // A server with many clients may be full for a moment.
        let Ok(opened) = Hold::with_files(socket, "trial", &trial::INTERFACE) else {
            std::thread::sleep(std::time::Duration::from_millis(1));
            continue;
        };
        let length = (1 << dice.below(13)).min(steps - done);
        let mut life = Life::begin(opened, &mut memory, &goods, &mut dice)?;
        done += life.live(length)?;
        replies += life.replies;
        holes += life.holes;
        if done >= steps {
            // The client dies in the middle of everything: what is under way stays so when this
            // process is killed.
            std::mem::forget(life);
        }
    }
    show([done, lives, replies, holes])
}

/// Lives a life without a channel. Returns its number of steps.
fn strange(socket: &Path, goods: &Goods, dice: &mut Dice) -> u64 {
    let Ok(speaker) = Speaker::try_connect(socket) else { return 0 };
    let steps = dice.below(40);
    (0..steps).for_each(|_| words::say(&speaker, goods, dice.below(8) == 0, dice));
    steps
}

struct Life<'a> {
    hold: Hold,
    files: Files,
    lanes: Vec<Lane>,
    memory: &'a mut Memory,
    goods: &'a Goods,
    dice: &'a mut Dice,
    /// Whether it leaves answers unread.
    deaf: bool,
    closed: bool,
    replies: u64,
    /// Number of holes that the kernel made.
    holes: u64,
}

impl<'a> Life<'a> {
    /// Opens lanes of both kinds, and makes honest calls for a while.
    fn begin(
        (hold, files): (Hold, Files),
        memory: &'a mut Memory,
        goods: &'a Goods,
        dice: &'a mut Dice,
    ) -> Result<Self, String> {
        let mut lanes = vec![Lane::new(&hold, 0, None)?, Lane::new(&hold, 1, None)?];
        hold.speaker.tell(Request::OpenLane { number: 1, vp: None }, &[]);
        for (number, vp) in [(33, 3), (34, 62)] {
            let doorbell = Doorbell::new().map_err(|error| error.to_string())?;
            hold.speaker.tell(Request::OpenLane { number, vp: Some(vp) }, &[doorbell.as_fd()]);
            lanes.push(Lane::new(&hold, number, Some(doorbell))?);
        }
        let deaf = dice.below(10) == 0;
        let mut life = Self {
            hold,
            files,
            lanes,
            memory,
            goods,
            dice,
            deaf,
            closed: false,
            replies: 0,
            holes: 0,
        };
        for _ in 0..life.dice.below(20) {
            let lane = life.any_lane();
            life.request(lane, true);
            life.collect(lane)?;
        }
        Ok(life)
    }

    /// Takes `length` steps, or fewer if the server hangs up. Returns their number.
    fn live(&mut self, length: u64) -> Result<u64, String> {
        for step in 0..length {
            if step % 64 == 0 {
                self.hear();
            }
            if self.closed {
                return Ok(step);
            }
            self.step()?;
        }
        Ok(length)
    }

    /// Reads answers unless deaf, and checks whether the connection is still open.
    fn hear(&mut self) {
        for _ in 0..if self.deaf { 0 } else { 64 } {
            match self.hold.speaker.0.receive() {
                Ok(Received::Message(_)) => {}
                Ok(Received::Nothing) => return,
                Ok(Received::Closed) | Err(_) => return self.closed = true,
            }
        }
        // A client that does not read notices a closed connection when it writes.
        self.closed |=
            self.deaf && !self.hold.speaker.tell(Request::DropSegment { number: u16::MAX }, &[]);
    }

    fn any_lane(&mut self) -> usize {
        self.dice.below(self.lanes.len() as u64) as usize
    }

    fn step(&mut self) -> Result<(), String> {
        let lane = self.any_lane();
        self.collect(lane)?;
        match self.dice.below(128) {
            // There is no room for another request. Those under way are written over, and the
            // server may read them later.
            0..60 if self.lanes[lane].room() == 0 => {
                self.scribble_memory();
                std::thread::yield_now();
            }
            0..60 => self.request(lane, false),
            60..74 => self.scribble_memory(),
            74..76 => self.punch()?,
            76..84 => self.scribble_request(lane),
            84..92 => self.scribble_station(),
            92..100 => self.notify(),
            100..104 => self.tamper_with_bells(lane),
            104..110 => self.sleeper(lane),
            110..120 => words::say(&self.hold.speaker, self.goods, false, self.dice),
            120..122 => self.renew_segment(),
            122 => drop(self.hold.speaker.tell(Request::DropSegment { number: 1 }, &[])),
            _ if self.dice.below(16) != 0 => self.request(lane, true),
            // The steps below spoil a lane or the connection.
            123 => self.overflow(lane),
            124 => self.scribble_channel(),
            125 => self.punch_lanes(),
            _ => words::say(&self.hold.speaker, self.goods, true, self.dice),
        }
        Ok(())
    }

    fn collect(&mut self, lane: usize) -> Result<(), String> {
        while let Some((reply, expected)) = self.lanes[lane].take()? {
            self.replies += 1;
            if expected == Expected::Handle && reply.tag() == outcome::DONE {
                Memory::keep(&mut self.memory.handles, reply.values[0], self.dice);
            }
            if reply.tag() == outcome::HELD {
                Memory::keep(&mut self.memory.keys, reply.values[0], self.dice);
            }
        }
        Ok(())
    }

    /// Sends one request, or several at once, and mostly rings the doorbell.
    fn request(&mut self, lane: usize, honest: bool) {
        let most = if self.dice.below(8) == 0 { 64 } else { 1 };
        for _ in 0..self.lanes[lane].room().min(most) {
            let (mut image, expected) = if honest {
                requests::honest(&self.hold, self.dice)
            } else {
                requests::any(&self.hold, self.memory, self.dice)
            };
            self.lanes[lane].send(&mut image, expected, self.dice);
        }
        if self.dice.below(8) != 0 {
            self.wake();
        }
    }

    fn wake(&self) {
        // The server probes its lanes after it has published that it sleeps. So it sees the request
        // or this ring.
        fence(Ordering::SeqCst);
        self.hold.server_doorbell.notify();
    }

    /// Writes anything anywhere into values, including those of calls under way.
    fn scribble_memory(&mut self) {
        for region in [&self.hold.astacks, &self.hold.segment] {
            let words = region.len() as u64 / 8 - 8;
            // Half of the writes go where blocks begin, and with them the descriptors of lists.
            let at =
                if self.dice.below(2) == 0 { self.dice.below(words) } else { self.dice.below(16) }
                    as usize
                    * 8;
            for word in 0..self.dice.below(8) as usize {
                put(region, at + word * 8, requests::number(self.dice));
            }
        }
    }

    /// Punches a hole where only values are lost: in the A-stacks, or in the head of the channel,
    /// where control words show which threads sleep. Calls under way still have their replies.
    ///
    /// A quarter of the attempts are made on files that have a seal against holes.
    ///
    /// # Errors
    /// If the kernel made a hole in a sealed file.
    fn punch(&mut self) -> Result<(), String> {
        let made = match self.dice.below(8) {
            0..4 => punch(self.files.astacks.as_fd(), 0..self.hold.astacks.len(), self.dice),
            4 | 5 => punch(self.files.channel.as_fd(), 0..RINGS, self.dice),
            _ => {
                let (what, file) = sealed(&self.hold, &self.files)[self.dice.below(3) as usize];
                return if punch(file, 0..PAGE, self.dice) {
                    Err(format!("a hole in {what}"))
                } else {
                    Ok(())
                };
            }
        };
        self.holes += u64::from(made);
        Ok(())
    }

    /// Brings a segment, and half the time punches holes into it while the server maps it. Either
    /// the server has sealed the file by then, or it finds the hole and refuses the segment.
    fn renew_segment(&mut self) {
        let file = words::renew_segment(&self.hold);
        let tries = if self.dice.below(2) == 0 { 1 + self.dice.below(8) } else { 0 };
        for _ in 0..tries {
            let made =
                file.as_ref().is_some_and(|file| punch(file.as_fd(), 0..words::SEGMENT, self.dice));
            self.holes += u64::from(made);
        }
    }

    /// Overwrites a request under way, except its control word, so that it stays a request.
    fn scribble_request(&mut self, lane: usize) {
        let slot = RINGS
            + usize::from(self.lanes[lane].number) * LANE_BYTES
            + self.dice.below(64) as usize * 64;
        for _ in 0..1 + self.dice.below(4) {
            put(
                &self.hold.channel,
                slot + 8 + self.dice.below(7) as usize * 8,
                requests::number(self.dice),
            );
        }
        self.lanes[lane].expect_anything();
    }

    fn scribble_station(&mut self) {
        for vp in [0, 3, 62, self.dice.below(63)] {
            let line = self.hold.station.line(vp as usize);
            line.asleep.store(self.dice.any() as u32 & 1, Ordering::SeqCst);
            line.sleeps.store(requests::number(self.dice), Ordering::SeqCst);
            line.tid.store(requests::number(self.dice) as u32, Ordering::SeqCst);
            line.cpu.store(requests::number(self.dice) as u32 & 0xff, Ordering::SeqCst);
        }
    }

    /// Rings the doorbell for nothing, at times in a flood.
    fn notify(&mut self) {
        let times = if self.dice.below(16) == 0 { 200 } else { 1 };
        (0..times).for_each(|_| self.hold.server_doorbell.notify());
    }

    /// Makes its own doorbell, or the server's, full and blocking, or silent, or what it was.
    fn tamper_with_bells(&mut self, lane: usize) {
        let doorbell = self.lanes[lane].doorbell.as_ref().unwrap_or(&self.hold.server_doorbell);
        let Ok(flags) = rustix::fs::fcntl_getfl(doorbell) else { return };
        let _ = rustix::fs::fcntl_setfl(doorbell, flags | OFlags::NONBLOCK);
        match self.dice.below(4) {
            0 => drop(doorbell.silence()),
            // The server's doorbell is left out, since a ring of it would block this process.
            1 if self.lanes[lane].doorbell.is_some() => {
                let _ = rustix::io::write(doorbell, &(u64::MAX - 1).to_ne_bytes());
                let _ = rustix::fs::fcntl_setfl(doorbell, flags - OFlags::NONBLOCK);
            }
            2 => drop(rustix::io::write(doorbell, &(u64::MAX - 1).to_ne_bytes())),
            _ => {
                // Silent, and full after two writes, so that any ring by the server is lost.
                doorbell.silence();
                doorbell.notify();
            }
        }
    }

    /// Claims in a lane that a kernel thread sleeps where none does.
    fn sleeper(&mut self, lane: usize) {
        let at = 4096 + usize::from(self.lanes[lane].number) * 64;
        put(&self.hold.channel, at, requests::number(self.dice));
    }

    /// Sends more requests than a lane has slots.
    fn overflow(&mut self, lane: usize) {
        self.lanes[lane].spoiled = true;
        for _ in 0..self.dice.below(200) {
            let (image, _) = requests::any(&self.hold, self.memory, self.dice);
            self.lanes[lane].send_unseen(&image);
        }
        self.wake();
    }

    /// Writes anything anywhere into the channel: laps, call numbers, replies, and its header.
    fn scribble_channel(&mut self) {
        self.lanes.iter_mut().for_each(|lane| lane.spoiled = true);
        let lanes = [0, 1, 2, 33, 34];
        for _ in 0..self.dice.below(64) {
            let lane = lanes[self.dice.below(5) as usize] * LANE_BYTES;
            let at = if self.dice.below(8) == 0 {
                self.dice.below(RINGS as u64) as usize
            } else {
                RINGS + lane + self.dice.below(LANE_BYTES as u64) as usize
            };
            let bytes = self.dice.any().to_ne_bytes();
            let _ = self.hold.channel.room(at, 8).and_then(|room| room.copy_in(0, &bytes));
        }
    }

    /// Punches holes into the rings of the lanes. Requests and replies under way are lost.
    fn punch_lanes(&mut self) {
        self.lanes.iter_mut().for_each(|lane| lane.spoiled = true);
        for _ in 0..1 + self.dice.below(8) {
            let lane = RINGS + [0, 1, 2, 33, 34][self.dice.below(5) as usize] * LANE_BYTES;
            let made = punch(self.files.channel.as_fd(), lane..lane + LANE_BYTES, self.dice);
            self.holes += u64::from(made);
        }
    }
}

fn put(region: &Arc<Region>, at: usize, word: u64) {
    let _ = region.room(0, region.len()).and_then(|room| room.put_u64(at, word));
}
