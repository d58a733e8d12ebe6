//! Answers on the control connection: as they should be, and in every other way.

use super::Tally;
use crate::dice::Dice;
use crate::speech::{Answer, Refusal, ToClient};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use upcall_os::bell::Bell;
use upcall_os::socket::Connection;

fn packed(serial: u32, answer: Answer) -> Vec<u8> {
    postcard::to_stdvec(&ToClient { serial, answer }).unwrap_or_default()
}

/// The answer itself. Whether it went out.
pub(super) fn as_it_should(connection: &Connection, serial: u32, answer: Answer, out: &[BorrowedFd<'_>]) -> bool {
    connection.send(&packed(serial, answer), out).is_ok()
}

fn any_answer(dice: &mut Dice) -> Answer {
    match dice.below(6) {
        0 => Answer::Opened { home: dice.any() as u16 },
        1 => Answer::Bound { numbers: (0..dice.below(40)).map(|_| dice.any() as u16).collect() },
        2 => Answer::Mapped,
        3 => Answer::Exports,
        _ => Answer::Refused(any_refusal(dice)),
    }
}

fn any_refusal(dice: &mut Dice) -> Refusal {
    let len = [0, 10, 3000][dice.below(3) as usize];
    let text: String = (0..len).map(|_| char::from_u32(dice.below(0x300) as u32).unwrap_or('?')).collect();
    match dice.below(7) {
        0 => Refusal::Version(text),
        1 => Refusal::Denied(text),
        2 => Refusal::NoSuchName,
        3 => Refusal::WrongInterface { exported: text },
        4 => Refusal::Mismatch(vec![(text.clone(), text, None); dice.below(9) as usize]),
        5 => Refusal::Resource { what: text, code: dice.any() as i32 },
        _ => Refusal::Protocol(text),
    }
}

/// The right kind of answer, with numbers that are wrong.
fn bent(answer: Answer, dice: &mut Dice) -> Answer {
    match answer {
        Answer::Opened { .. } => Answer::Opened { home: dice.any() as u16 },
        Answer::Bound { mut numbers } => {
            match dice.below(4) {
                0 => numbers.truncate(dice.below(numbers.len() as u64) as usize),
                1 => numbers.extend(0..dice.below(2000) as u16),
                _ => numbers.iter_mut().for_each(|number| *number = dice.any() as u16),
            }
            Answer::Bound { numbers }
        }
        _ => any_answer(dice),
    }
}

/// Something else. Whether the connection still stands.
pub(super) fn otherwise(
    connection: &Connection,
    serial: u32,
    answer: Answer,
    out: &[BorrowedFd<'_>],
    tally: &Tally,
    dice: &mut Dice,
) -> bool {
    tally.step();
    let send = |bytes: &[u8], out: &[BorrowedFd<'_>]| connection.send(bytes, out).is_ok();
    match dice.below(12) {
        0 => true,
        1 => {
            let len = 1 + dice.below(300) as usize;
            send(&dice.bytes(len), out)
        }
        2 => send(&packed(serial.wrapping_add(dice.below(3) as u32), answer), out),
        3 => send(&packed(serial, any_answer(dice)), out),
        4 => send(&packed(0, any_answer(dice)), out),
        5 => send(&packed(serial, Answer::Refused(any_refusal(dice))), &[]),
        6 => send(&packed(serial, bent(answer, dice)), out),
        7 => {
            let odd: Vec<OwnedFd> = (0..dice.below(9)).filter_map(|_| odd_descriptor(dice)).collect();
            send(&packed(serial, answer), &odd.iter().map(AsFd::as_fd).collect::<Vec<_>>())
        }
        8 => {
            let bytes = packed(serial, answer);
            send(&bytes, out) && send(&bytes, out)
        }
        // Late answers to nothing, as many as the connection takes, and none that counts.
        9 => (0..dice.below(200)).all(|_| send(&packed(serial.wrapping_sub(1 + dice.below(9) as u32), any_answer(dice)), &[])),
        10 => {
            let mut bytes = packed(serial, answer);
            let at = dice.below(bytes.len() as u64) as usize;
            bytes[at] = dice.any() as u8;
            bytes.truncate(1 + dice.below(bytes.len() as u64 * 4) as usize);
            send(&bytes, out)
        }
        _ => false,
    }
}

fn odd_descriptor(dice: &mut Dice) -> Option<OwnedFd> {
    match dice.below(5) {
        0 => Bell::new().ok()?.as_fd().try_clone_to_owned().ok(),
        1 => std::fs::File::open("/dev/null").ok().map(OwnedFd::from),
        2 => std::io::pipe().ok().map(|(_, writer)| writer.into()),
        _ => {
            let fd = rustix::fs::memfd_create("hostile", rustix::fs::MemfdFlags::ALLOW_SEALING).ok()?;
            rustix::fs::ftruncate(&fd, [0, 4096, 8192, 1 << 20][dice.below(4) as usize]).ok()?;
            rustix::fs::fcntl_add_seals(&fd, rustix::fs::SealFlags::from_bits_retain(dice.below(32) as u32)).ok()?;
            Some(fd)
        }
    }
}
