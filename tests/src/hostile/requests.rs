//! Requests that no honest client makes: every field is a guess, mostly near a value that exists.

use super::lanes::Expected;
use crate::dice::Dice;
use crate::speech::{FETCH, Hold, RELEASE, tag};
use upcall_shm::slot::{NO_ASTACK, SlotMessage, ValueLocation};

/// Numbers from which bounds are made.
pub(super) fn number(dice: &mut Dice) -> u64 {
    match dice.below(8) {
        0 => 0,
        1 => dice.below(64),
        2 => 1 << dice.below(64),
        3 => u64::MAX - dice.below(64),
        4 => 1 << 20,
        5 => (1 << 20) - dice.below(64),
        6 => dice.below(1 << 12) * 8,
        _ => dice.any(),
    }
}

/// What a hostile client remembers, to use it again when it no longer owns it.
#[derive(Default)]
pub(super) struct Memory {
    /// Handles of this channel and of earlier ones.
    pub(super) handles: Vec<u64>,
    /// Keys of results that wait or waited to be fetched.
    pub(super) keys: Vec<u64>,
}

impl Memory {
    /// Remembers a number. The number that it replaces is chosen at random.
    pub(super) fn keep(list: &mut Vec<u64>, number: u64, dice: &mut Dice) {
        if list.len() < 64 {
            list.push(number);
        } else {
            list[dice.below(64) as usize] = number;
        }
    }

    /// A number that is or was valid, or is next to one, or is a guess.
    fn any_of(list: &[u64], dice: &mut Dice) -> u64 {
        let known = list.get(dice.below(list.len() as u64) as usize).copied().unwrap_or(0);
        match dice.below(6) {
            0 => known.wrapping_add(1),
            1 => known ^ 1 << dice.below(64),
            2 => number(dice),
            _ => known,
        }
    }
}

fn inline<const N: usize>(procedure: u16, values: [u64; N]) -> SlotMessage {
    let mut image = SlotMessage::new(0, tag(0, procedure), NO_ASTACK);
    image.values[..N].copy_from_slice(&values);
    image.place(ValueLocation::Inline, 0, 8 * N as u32);
    image
}

/// A valid call of `add`, and its sum.
pub(super) fn honest(it: &Hold, dice: &mut Dice) -> (SlotMessage, Expected) {
    let (a, b) = (dice.any() as u32, dice.any() as u32);
    (
        inline(it.number("add"), [u64::from(a) | u64::from(b) << 32]),
        Expected::Sum(a.wrapping_add(b).into()),
    )
}

/// A request, good or bad.
pub(super) fn any(it: &Hold, memory: &Memory, dice: &mut Dice) -> (SlotMessage, Expected) {
    match dice.below(12) {
        0 => honest(it, dice),
        1 => (inline(it.number("open"), [dice.any()]), Expected::Handle),
        2 => (
            inline(it.number(["open-brittle", "open-slow"][dice.below(2) as usize]), [dice.any()]),
            Expected::Handle,
        ),
        3 => (
            inline(it.number("thing.number"), [Memory::any_of(&memory.handles, dice)]),
            Expected::Something,
        ),
        4 => (inline(RELEASE, [Memory::any_of(&memory.handles, dice)]), Expected::Something),
        5 => {
            let mut image = inline(FETCH, [Memory::any_of(&memory.keys, dice)]);
            image.place(ValueLocation::Inline, [1, 1, 0, 2][dice.below(4) as usize], 8);
            (image, Expected::Something)
        }
        // A result for which there is no room.
        6 => (inline(it.number("make"), [dice.any(), dice.any()]), Expected::Something),
        _ => (guess(it, dice), Expected::Something),
    }
}

fn guess(it: &Hold, dice: &mut Dice) -> SlotMessage {
    let procedure = match dice.below(10) {
        0 => dice.any() as u16 & 0x3ff,
        1 => RELEASE,
        2 => FETCH,
        _ => it.numbers[dice.below(it.numbers.len() as u64) as usize],
    };
    let binding = if dice.below(10) == 0 { dice.below(64) as u16 } else { 0 };
    let astack =
        if dice.below(4) == 0 { dice.any() as u16 } else { dice.below(it.stacks as u64) as u16 };
    let place = [ValueLocation::Inline, ValueLocation::AStack, ValueLocation::Segment]
        [dice.below(3) as usize];
    let segment = if dice.below(4) == 0 {
        number(dice) as u16
    } else {
        u16::from(place == ValueLocation::Segment)
    };
    let mut image = SlotMessage::new(0, tag(binding, procedure), astack);
    image.place(place, segment, number(dice) as u32);
    image.values = std::array::from_fn(|_| number(dice));
    if dice.below(10) == 0 {
        image.donate();
    }
    if dice.below(10) == 0 {
        image.ask_to_stay();
    }
    if dice.below(5) == 0 {
        // Long ago, now, soon, never.
        let moment = [0, crate::now(), crate::now() + dice.below(2_000_000), u64::MAX]
            [dice.below(4) as usize];
        image.set_deadline(moment.wrapping_add(dice.below(3)));
    }
    image
}
