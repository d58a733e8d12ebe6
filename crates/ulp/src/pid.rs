//! The number that a ULP has for its process: what `getpid` returns in its program.
//!
//! Programs name files and seed generators by that number. So each ULP has a number of its own,
//! which no process has and no other living ULP of this process.
//!
//! The kernel's numbers are below 2^22, the largest `kernel.pid_max` there is. The numbers from
//! there to 2^31 are divided into 65,408 ranges. A process takes the range of its own number,
//! modulo the count of ranges, and hands the range's numbers out in turn, so that the number of a
//! ULP that has ended is not used again soon. Two processes share a range only if their own numbers
//! differ by a multiple of 65,408.

use crate::slot::SLOTS;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The lowest number that the kernel never gives to a process.
const FIRST: u32 = 1 << 22;
/// Number of numbers in a range.
const RANGE: u32 = 1 << 15;
/// Number of ranges.
const RANGES: u32 = ((1 << 31) - FIRST) / RANGE;

// There is a free number for each ULP, and many others are used before one is used again.
const _: () = assert!(SLOTS * 2 < RANGE as usize);

/// A ULP's number. If it is of this process's range, it is taken until it is dropped. It is kept as
/// a whole, so that it does not depend on the process in which the ULP runs.
#[derive(Debug)]
pub(crate) struct Pid {
    number: u32,
    /// The place in the range; none if the ULP came with the number from another process, which
    /// keeps it taken.
    place: Option<u32>,
}

/// The lowest number of this process's range.
fn lowest() -> u32 {
    FIRST + std::process::id() % RANGES * RANGE
}

struct PidRange {
    next: u32,
    /// A bit for each number: taken or free.
    taken: [u64; RANGE as usize / 64],
}

static NUMBERS: Mutex<PidRange> = Mutex::new(PidRange { next: 0, taken: [0; RANGE as usize / 64] });

fn numbers() -> MutexGuard<'static, PidRange> {
    NUMBERS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PidRange {
    fn take(&mut self) -> u32 {
        loop {
            let number = self.next;
            self.next = (number + 1) % RANGE;
            let (word, bit) = (&mut self.taken[number as usize / 64], 1 << (number % 64));
            if *word & bit == 0 {
                *word |= bit;
                return number;
            }
        }
    }

    fn give(&mut self, number: u32) {
        self.taken[number as usize / 64] &= !(1 << (number % 64));
    }
}

impl Pid {
    /// The next number that is free. Each ULP takes one number and one slot, so a number is always
    /// free.
    pub(crate) fn take() -> Self {
        let place = numbers().take();
        Self { number: lowest() + place, place: Some(place) }
    }

    /// A number that a ULP has brought. Returns `None` if no ULP could have it.
    pub(crate) fn brought(number: u32) -> Option<Self> {
        (FIRST..1 << 31).contains(&number).then_some(Self { number, place: None })
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }
}

impl Drop for Pid {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            numbers().give(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_numbers_are_beyond_the_kernels_and_positive() {
        assert!(i32::try_from(u64::from(FIRST) + u64::from(RANGES) * u64::from(RANGE) - 1).is_ok());
        let most: u32 =
            std::fs::read_to_string("/proc/sys/kernel/pid_max").unwrap().trim().parse().unwrap();
        assert!(most <= FIRST, "the kernel gives numbers up to {most}");
    }

    #[test]
    fn a_number_that_came_with_a_ulp_is_not_given_back_here() {
        let is_taken = |pid: &Pid| {
            let place = pid.place.unwrap() as usize;
            numbers().taken[place / 64] >> (place % 64) & 1 == 1
        };
        let own = Pid::take();
        let came = Pid::brought(own.number()).unwrap();
        assert_eq!(came.number(), own.number());
        drop(came);
        assert!(is_taken(&own));
        assert!(
            [0, 1, FIRST - 1, 1 << 31, u32::MAX].into_iter().all(|one| Pid::brought(one).is_none())
        );
    }

    #[test]
    fn a_number_is_used_again_after_all_others_and_never_while_it_is_taken() {
        let mut range = PidRange { next: 0, taken: [0; RANGE as usize / 64] };
        let kept = range.take();
        for number in 1..RANGE {
            assert_eq!(range.take(), number);
            range.give(number);
        }
        assert_eq!((kept, range.take()), (0, 1));
        range.give(kept);
        (2..RANGE).for_each(|number| assert_eq!(range.take(), number));
        assert_eq!(range.take(), kept);
    }
}
