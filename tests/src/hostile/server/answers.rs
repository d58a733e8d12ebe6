//! Answers on the control connection: correct, or wrong in every possible way.

use super::Tally;
use crate::dice::Dice;
use crate::speech::{Answer, Refusal, ToClient};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use upcall_os::doorbell::Doorbell;
use upcall_os::socket::Connection;

fn packed(serial: u32, answer: Answer) -> Vec<u8> {
    postcard::to_stdvec(&ToClient { serial, answer }).unwrap_or_default()
}

/// Sends the answer itself. Returns `true` if it was sent.
pub(super) fn as_it_should(
    connection: &Connection,
    serial: u32,
    answer: Answer,
    out: &[BorrowedFd<'_>],
) -> bool {
    connection.send(&packed(serial, answer), out).is_ok()
}

fn any_answer(dice: &mut Dice) -> Answer {
    match dice.below(6) {
        0 => Answer::Opened { home: dice.any() as u16 },
        1 => Answer::Bound {
            procedures: (0..dice.below(40)).map(|_| any_descriptor(dice)).collect(),
        },
        2 => Answer::Mapped,
        3 => Answer::Exports,
        _ => Answer::Refused(any_refusal(dice)),
    }
}

fn any_descriptor(dice: &mut Dice) -> (u16, u16, u32) {
    let calls = [0, 1, 64, 65, u16::MAX][dice.below(5) as usize];
    let bytes = [0, 1, 1024, 1 << 20, (1 << 20) + 1, u32::MAX][dice.below(6) as usize];
    (if dice.below(2) == 0 { dice.below(1001) as u16 } else { dice.any() as u16 }, calls, bytes)
}

fn any_refusal(dice: &mut Dice) -> Refusal {
    let len = [0, 10, 3000][dice.below(3) as usize];
    let text: String =
        (0..len).map(|_| char::from_u32(dice.below(0x300) as u32).unwrap_or('?')).collect();
    match dice.below(7) {
        0 => Refusal::Version(text),
        1 => Refusal::Denied(text),
        2 => Refusal::NoSuchName,
        3 => Refusal::WrongInterface { exported: text },
        4 => Refusal::Mismatch(
            vec![(text.clone(), text, None); dice.below(9) as usize],
            dice.any() as u32,
        ),
        5 => Refusal::Resource { what: text, code: dice.any() as i32 },
        _ => Refusal::Protocol(text),
    }
}

/// An answer of the right kind, with wrong numbers.
fn bent(answer: Answer, dice: &mut Dice) -> Answer {
    match answer {
        Answer::Opened { .. } => Answer::Opened { home: dice.any() as u16 },
        Answer::Bound { mut procedures } => {
            let count = procedures.len();
            match dice.below(8) {
                0 => procedures.truncate(dice.below(count as u64) as usize),
                1 => procedures.extend((0..dice.below(2000)).map(|number| (number as u16, 5, 64))),
                2 => procedures.iter_mut().for_each(|procedure| procedure.0 = dice.any() as u16),
                // Changes one of many.
                3 => procedures[dice.below(count as u64) as usize] = any_descriptor(dice),
                // An honest server could send this, with other sizes and counts than the calls
                // have. The client makes A-stacks as the answer requires.
                4 => procedures.iter_mut().for_each(|procedure| procedure.2 = 1 << dice.below(21)),
                5 => procedures.iter_mut().for_each(|procedure| procedure.2 = 0),
                6 => procedures
                    .iter_mut()
                    .for_each(|procedure| procedure.1 = 1 + dice.below(64) as u16),
                _ => procedures.iter_mut().for_each(|procedure| *procedure = any_descriptor(dice)),
            }
            Answer::Bound { procedures }
        }
        _ => any_answer(dice),
    }
}

/// Sends something else. Returns `true` if the connection is still open.
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
            let odd: Vec<OwnedFd> =
                (0..dice.below(9)).filter_map(|_| odd_descriptor(dice)).collect();
            send(&packed(serial, answer), &odd.iter().map(AsFd::as_fd).collect::<Vec<_>>())
        }
        8 => {
            let bytes = packed(serial, answer);
            send(&bytes, out) && send(&bytes, out)
        }
        // Late answers that match no request, as many as the connection takes.
        9 => (0..dice.below(200)).all(|_| {
            send(&packed(serial.wrapping_sub(1 + dice.below(9) as u32), any_answer(dice)), &[])
        }),
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
        0 => Doorbell::new().ok()?.as_fd().try_clone_to_owned().ok(),
        1 => std::fs::File::open("/dev/null").ok().map(OwnedFd::from),
        2 => std::io::pipe().ok().map(|(_, writer)| writer.into()),
        _ => {
            let fd =
                rustix::fs::memfd_create("hostile", rustix::fs::MemfdFlags::ALLOW_SEALING).ok()?;
            rustix::fs::ftruncate(&fd, [0, 4096, 8192, 1 << 20][dice.below(4) as usize]).ok()?;
            rustix::fs::fcntl_add_seals(
                &fd,
                rustix::fs::SealFlags::from_bits_retain(dice.below(32) as u32),
            )
            .ok()?;
            Some(fd)
        }
    }
}
