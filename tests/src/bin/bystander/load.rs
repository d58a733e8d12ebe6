//! The hostile clients. Each reports when its first request has been answered, and goes on until it
//! is killed.

use crate::serve::interface::load::{self, Load};
use rustix::fs::FallocateFlags;
use std::error::Error;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;
use upcall_shm::slot::{NO_ASTACK, SlotMessage, ValueLocation};
use upcall_tests::outcome::say;
use upcall_tests::segments::{allocate, bring, bytes_of_texts, file, in_segment, list, texts};
use upcall_tests::speech::{Hold, LOOKS, Request, outcome, tag};

const MIB: u64 = 1 << 20;

/// Maximum number of bytes of values in one call by default, which leaves room for the descriptor
/// of a list.
const VALUES: u64 = 16 * MIB;

/// Maximum number of texts in one call. Each takes 32 bytes for the allocator, 24 for the string
/// and 8 for the text.
const TEXTS: u64 = 250_000;

/// Size of a result, in bytes.
const RESULT: u64 = 64 * MIB;

/// Number of the segment that a client brings.
const NUMBER: u16 = 2;

/// Runs a client of this kind, with segments of `mib` MiB.
pub fn run(socket: &str, kind: &str, mib: u64) -> Result<(), Box<dyn Error>> {
    match kind {
        "lists" => again(socket, "count", VALUES, |fd| list(fd, VALUES, VALUES / 8 - 2)),
        "texts" => again(socket, "texts", bytes_of_texts(TEXTS), |fd| texts(fd, TEXTS)),
        "fold" => again(socket, "fold", mib * MIB, |fd| list(fd, mib * MIB, mib * MIB - 16)),
        "vector" => again(socket, "vector", RESULT, |fd| list(fd, RESULT, RESULT - 16)),
        "copied" => copied(),
        "blocks" => blocks(),
        "fetched" => fetched(),
        "result" => unfetched(socket),
        "drops" => drops(socket, mib * MIB),
        "holds" => holds(socket, mib * MIB),
        _ => Err(format!("{kind:?} is no kind of client").into()),
    }
}

/// The number of a procedure of the interface at the server.
fn number(hold: &Hold, name: &str) -> Result<u16, Box<dyn Error>> {
    let at = load::INTERFACE.procedures.iter().position(|procedure| procedure.name == name);
    Ok(hold.numbers[at.ok_or("no such procedure")?])
}

fn hold(socket: &str) -> Result<Hold, Box<dyn Error>> {
    Ok(Hold::of(Path::new(socket), "load", &load::INTERFACE)?)
}

/// Makes calls whose arguments lie in a segment that was filled once, so that they cost the client
/// nothing.
fn again(
    socket: &str,
    procedure: &str,
    len: u64,
    fill: impl FnOnce(&OwnedFd),
) -> Result<(), Box<dyn Error>> {
    let hold = hold(socket)?;
    bring(&hold, NUMBER, &file(len, fill), len).map_err(|refusal| format!("{refusal:?}"))?;
    let request = in_segment(number(&hold, procedure)?, NUMBER, len);
    let caller = hold.caller();
    for call in 0_u64.. {
        match caller.call(&request).map(|reply| reply.tag()) {
            Some(outcome::DONE) => {}
            other => return Err(format!("{procedure}: {other:?}").into()),
        }
        if call == 0 {
            say(Ok(Vec::new()));
        }
    }
    Ok(())
}

/// Polls like a client whose reply never arrives.
pub fn wait() -> ! {
    loop {
        std::thread::sleep(LOOKS);
    }
}

/// Makes calls through the library, which copies the list for each of them.
fn copied() -> Result<(), Box<dyn Error>> {
    let (load, numbers) = (Load::bind("load")?, vec![7_u64; VALUES as usize / 8 - 2]);
    for call in 0_u64.. {
        load.count(&numbers)?;
        if call == 0 {
            say(Ok(Vec::new()));
        }
    }
    Ok(())
}

/// Makes calls through the library whose handlers sleep for a second each.
fn blocks() -> Result<(), Box<dyn Error>> {
    let load = Load::bind("load")?;
    load.null()?;
    say(Ok(Vec::new()));
    loop {
        load.block(1000)?;
    }
}

/// Makes calls through the library, which fetches the result of each of them.
fn fetched() -> Result<(), Box<dyn Error>> {
    let load = Load::bind("load")?;
    for call in 0_u64.. {
        load.make(RESULT)?;
        if call == 0 {
            say(Ok(Vec::new()));
        }
    }
    Ok(())
}

/// Requests large results and fetches none. When the server keeps no more, starts another binding.
fn unfetched(socket: &str) -> Result<(), Box<dyn Error>> {
    let mut said = false;
    loop {
        let hold = hold(socket)?;
        let mut request = SlotMessage::new(0, tag(0, number(&hold, "make")?), NO_ASTACK);
        request.values[0] = RESULT;
        request.place(ValueLocation::Inline, 0, 8);
        let caller = hold.caller();
        while caller.call(&request).is_some_and(|reply| reply.tag() == outcome::HELD) {
            if !std::mem::replace(&mut said, true) {
                say(Ok(Vec::new()));
            }
        }
    }
}

fn filled(len: u64) -> OwnedFd {
    file(len, |fd| allocate(fd, FallocateFlags::empty(), 0, len))
}

/// Brings a segment and drops it, again and again. The server holds the last reference.
fn drops(socket: &str, len: u64) -> Result<(), Box<dyn Error>> {
    let hold = hold(socket)?;
    for turn in 0_u64.. {
        bring(&hold, NUMBER, &filled(len), len).map_err(|refusal| format!("{refusal:?}"))?;
        hold.speaker.tell(Request::DropSegment { number: NUMBER }, &[]);
        if turn == 0 {
            say(Ok(Vec::new()));
        }
    }
    Ok(())
}

/// Brings a segment and keeps it. The server alone has it once this client is killed.
fn holds(socket: &str, len: u64) -> Result<(), Box<dyn Error>> {
    let hold = hold(socket)?;
    bring(&hold, NUMBER, &filled(len), len).map_err(|refusal| format!("{refusal:?}"))?;
    say(Ok(Vec::new()));
    loop {
        std::thread::sleep(Duration::from_secs(1000));
    }
}
