//! A client that takes all that a server of `hoard` lets it have, and keeps it until it ends.

use super::lanes::{Expected, Lane};
use crate::dice::Dice;
use crate::interfaces::hoard::hoard::{Hoard, INTERFACE, Thing};
use crate::outcome::{Outcome, say, show};
use crate::segments::{allocate, bring, file, in_segment, list};
use crate::speech::{Answer, Caller, Came, Hold, Request, Speaker, bind_all, outcome, plan, tag};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use std::error::Error;
use std::io::BufRead;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use upcall_os::doorbell::Doorbell;
use upcall_shm::channel::DEPTH;
use upcall_shm::slot::{NO_ASTACK, SlotMessage, ValueLocation};

const MIB: u64 = 1 << 20;
/// Lanes of virtual processors of one channel: half of its lanes.
const LANES: std::ops::Range<u16> = 32..64;
/// Number of this client's channels beside that of its library.
const CHANNELS: usize = 3;

/// The number of the first segment with a text.
const FIRST_TEXT: u16 = 3;

/// Takes what each line of standard input names, and reports how much of it the server let it have.
///
/// # Errors
/// If there is no such server.
pub fn run(socket: &Path, name: &str) -> Result<(), Box<dyn Error>> {
    let holds: Vec<Hold> =
        (0..CHANNELS).map(|_| Hold::of(socket, name, &INTERFACE)).collect::<Result<_, _>>()?;
    let mut lanes = Vec::new();
    for hold in &holds {
        for number in LANES {
            let doorbell = Doorbell::new()?;
            hold.speaker.tell(
                Request::OpenLane { number, vp: Some(number - LANES.start) },
                &[doorbell.as_fd()],
            );
            lanes.push(Lane::new(hold, number, Some(doorbell))?);
        }
    }
    let caller = holds[0].caller();
    let hoard = Hoard::bind(name)?;
    // This call opens the client's lane while there is room for it.
    hoard.inside()?;
    let (things, filled, speakers) = (Vec::new(), Vec::new(), Vec::new());
    let mut greedy =
        Greedy { socket, name, holds: &holds, caller, lanes, hoard, things, filled, speakers };
    say(show([]));
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        say(match line.as_str() {
            "results" => greedy.results(),
            "values" => greedy.values(),
            "stacks" => greedy.stacks(),
            "segments" => greedy.segments(),
            "objects" => greedy.objects(),
            "connections" => greedy.connections(),
            "calls" => greedy.calls(),
            other => Err(format!("unknown line {other:?}").into()),
        });
    }
    Ok(())
}

struct Greedy<'a> {
    socket: &'a Path,
    name: &'a str,
    holds: &'a [Hold],
    /// The calling end of a kernel thread's lane in the first channel.
    caller: Caller<'a>,
    lanes: Vec<Lane>,
    hoard: Hoard,
    things: Vec<Thing>,
    /// Channels in which the server has touched memory that had no pages.
    filled: Vec<Hold>,
    speakers: Vec<Speaker>,
}

/// The number of a procedure.
fn number(hold: &Hold, name: &str) -> u16 {
    let at = INTERFACE.procedures.iter().position(|procedure| procedure.name == name);
    hold.numbers[at.unwrap_or_else(|| panic!("no procedure {name}"))]
}

/// A request for `len` bytes, through an A-stack of a binding or without one.
fn give(hold: &Hold, len: u64, binding: u16, astack: u16) -> SlotMessage {
    let mut request = SlotMessage::new(0, tag(binding, number(hold, "give")), astack);
    request.values[0] = len;
    request.place(ValueLocation::Inline, 0, 8);
    request
}

/// Binds until the server takes no more A-stacks, and makes the server touch each. Returns their
/// size in bytes.
fn stacks_of(hold: &Hold, name: &str) -> Result<u64, Box<dyn Error>> {
    let (caller, mut taken) = (hold.caller(), 0);
    for id in 1..60 {
        let procedures = match hold.speaker.ask(bind_all(id, name, &INTERFACE), &[]) {
            Came::Answer(Answer::Bound { procedures }, _) => procedures,
            Came::Answer(Answer::Refused(_), _) => break,
            other => return Err(format!("binding {id}: {other:?}").into()),
        };
        let plan = plan(&procedures);
        let sparse =
            rustix::fs::memfd_create("greedy", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&sparse, plan.bytes() as u64)?;
        rustix::fs::fcntl_add_seals(
            &sparse,
            SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW,
        )?;
        match hold.speaker.ask(Request::Stacks { id }, &[sparse.as_fd()]) {
            Came::Answer(Answer::Mapped, _) => taken += plan.bytes() as u64,
            Came::Answer(Answer::Refused(_), _) => break,
            other => return Err(format!("A-stacks of binding {id}: {other:?}").into()),
        }
        let at = INTERFACE
            .procedures
            .iter()
            .position(|procedure| procedure.name == "give")
            .ok_or("no procedure")?;
        let class = plan.class_for(procedures[at].2).ok_or("no A-stacks")?;
        let (first, size) = (plan.first_of(class), plan.classes()[class].size);
        for astack in first..first + plan.classes()[class].count {
            let reply =
                caller.call(&give(hold, u64::from(size) - 64, id, astack)).ok_or("no answer")?;
            if reply.tag() != outcome::DONE {
                return Err(format!(
                    "{size} bytes in A-stack {astack} of binding {id}: {}",
                    reply.tag()
                )
                .into());
            }
        }
    }
    Ok(taken)
}

impl Greedy<'_> {
    fn call(&self, request: &SlotMessage) -> Result<SlotMessage, Box<dyn Error>> {
        self.caller.call(request).ok_or_else(|| "no answer".into())
    }

    /// Takes results without fetching them, the largest first. Reports their size in bytes.
    fn results(&mut self) -> Outcome {
        let (mut len, mut taken) = (64 * MIB, 0);
        while len >= MIB / 16 {
            match self.call(&give(&self.holds[0], len, 0, NO_ASTACK))?.tag() {
                outcome::HELD => taken += len,
                outcome::RESULT_QUOTA => len /= 2,
                other => return Err(format!("a result of {len} bytes: {other}").into()),
            }
        }
        show([taken])
    }

    fn inside(&self) -> Result<u64, Box<dyn Error>> {
        let mut request = SlotMessage::new(0, tag(0, number(&self.holds[0], "inside")), NO_ASTACK);
        request.place(ValueLocation::Inline, 0, 0);
        Ok(self.call(&request)?.values[0])
    }

    /// Makes calls that stay, with texts, the largest first. Reports the size of the texts in
    /// bytes.
    fn values(&mut self) -> Outcome {
        let hold = &self.holds[0];
        let mut lane = self.lanes.remove(0);
        lane.spoiled = true;
        let (mut dice, mut len, mut taken, mut segment) = (Dice::new(1), 16 * MIB, 0, FIRST_TEXT);
        // The server seals what it has mapped, so each length has its own segment.
        let bring_text = |segment: u16, len: u64| {
            let text = file(len, |fd| list(fd, len, len - 16));
            bring(hold, segment, &text, len)
                .map_err(|refusal| format!("a text of {len} bytes: {refusal:?}"))
        };
        bring_text(segment, len)?;
        while len >= MIB / 16 {
            let before = self.inside()?;
            lane.send(
                &mut in_segment(number(hold, "keep"), segment, len),
                Expected::Something,
                &mut dice,
            );
            hold.server_doorbell.notify();
            loop {
                if let Some((reply, _)) = lane.take()? {
                    if reply.tag() != outcome::QUOTA {
                        return Err(format!("a text of {len} bytes: {}", reply.tag()).into());
                    }
                    (len, segment) = (len / 2, segment + 1);
                    bring_text(segment, len)?;
                    break;
                }
                // The server has read the text.
                if self.inside()? > before {
                    taken += len;
                    break;
                }
            }
        }
        show([taken])
    }

    /// Takes lanes and A-stacks without pages, in one channel after another. The server is the
    /// first to touch each of them, with results. Reports the size of the A-stacks in bytes.
    fn stacks(&mut self) -> Outcome {
        let mut taken = 0;
        loop {
            let Ok(hold) = Hold::of(self.socket, self.name, &INTERFACE) else { break };
            for number in 1..LANES.start {
                hold.speaker.tell(Request::OpenLane { number, vp: None }, &[]);
            }
            let more = stacks_of(&hold, self.name)?;
            taken += more;
            self.filled.push(hold);
            if more == 0 {
                break;
            }
        }
        show([taken])
    }

    /// Brings as many segments as the server maps. This process has one page of each. The server
    /// reads all of the last segment. Reports the number of segments.
    fn segments(&mut self) -> Outcome {
        let (page, large) =
            (|fd: &OwnedFd| allocate(fd, FallocateFlags::empty(), 0, 4096), 256 * MIB);
        let text = file(large, |fd| list(fd, large, large - 16));
        bring(&self.holds[0], FIRST_TEXT - 1, &text, large)
            .map_err(|refusal| format!("{refusal:?}"))?;
        let read = self.call(&in_segment(number(&self.holds[0], "keep"), FIRST_TEXT - 1, large))?;
        let mut count = 0;
        for number in FIRST_TEXT + 32..u16::MAX {
            match bring(&self.holds[0], number, &file(4096, page), 4096) {
                Ok(()) => count += 1,
                Err(_) => break,
            }
        }
        show([count, read.tag().into()])
    }

    /// Opens objects, many at a time. Reports their number.
    fn objects(&mut self) -> Outcome {
        let mut count = 4096;
        while count > 0 {
            match self.hoard.open(count) {
                Ok(things) => self.things.extend(things),
                Err(_) => count /= 2,
            }
        }
        show([self.things.len() as u64])
    }

    /// Opens connections that send nothing. Reports their number.
    fn connections(&mut self) -> Outcome {
        for _ in 0..64 {
            let speaker = Speaker::connect(self.socket)?;
            if matches!(speaker.ask(Request::List, &[]), Came::Answer(Answer::Exports, _)) {
                self.speakers.push(speaker);
            }
        }
        show([self.speakers.len() as u64])
    }

    /// Makes calls that stay, as many as the lanes hold. Reports their number.
    fn calls(&mut self) -> Outcome {
        let mut request = SlotMessage::new(0, tag(0, number(&self.holds[0], "stay")), NO_ASTACK);
        request.place(ValueLocation::Inline, 0, 0);
        for lane in &self.lanes {
            for call in 0..DEPTH as u16 {
                request.set_call(call);
                lane.send_unseen(&request);
            }
        }
        self.holds.iter().for_each(|hold| hold.server_doorbell.notify());
        show([(self.lanes.len() * DEPTH) as u64])
    }
}
