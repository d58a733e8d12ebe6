//! A-stacks: the memory that a call's arguments and results travel in, allocated pairwise at bind,
//! contiguous per interface.
//!
//! Source: LRPC, sections 3.1 and 5.2. Procedures whose blocks have a similar size (the same power
//! of two) share a class of A-stacks. A class is handed out lowest number first, which keeps the
//! same few lines warm, like the paper's LIFO, by one atomic operation on one word. From the
//! procedure descriptor list that the server tells a binder both sides compute the same
//! [`AStackPlan`], so an A-stack is named by a number, and a range check validates it.

use upcall_os::atomic::{AtomicU64, Ordering};

/// The most A-stacks of one class: one word of bits.
pub const MOST: u16 = 64;

/// The most classes of an interface: 64 bytes to 1 MiB in powers of two.
pub const CLASSES: usize = 15;

/// The smallest A-stack: a cache line.
const SMALLEST: u32 = 64;

/// The largest A-stack. What is longer goes by an out-of-band segment.
pub const LARGEST: u32 = 1 << 20;

/// A class of equal A-stacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AStackClass {
    /// Bytes of each, a power of two.
    pub size: u32,
    /// How many.
    pub count: u16,
}

/// Where the A-stacks of an interface lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AStackPlan {
    classes: Vec<AStackClass>,
    /// By A-stack number: offset and size in bytes.
    places: Vec<(u32, u32)>,
    bytes: usize,
}

impl AStackPlan {
    /// The plan for these classes, whose sizes are powers of two, none twice.
    fn new(classes: Vec<AStackClass>) -> Self {
        let mut places = Vec::new();
        let mut at = 0u32;
        for &AStackClass { size, count } in &classes {
            for _ in 0..count {
                places.push((at, size));
                // At most 64 times the sum of all powers up to 1 MiB: below 128 MiB.
                at += size;
            }
        }
        Self { classes, places, bytes: at as usize }
    }

    /// The plan for procedures that need blocks of these sizes, each for so many simultaneous
    /// calls. A procedure that needs no A-stack has size 0. Procedures of one class share the
    /// largest number asked for.
    pub fn for_procedures(needs: impl IntoIterator<Item = (u32, u16)>) -> Self {
        let mut classes: Vec<AStackClass> = Vec::new();
        for (bytes, calls) in needs {
            let Some(size) = class_size(bytes) else { continue };
            let count = calls.clamp(1, MOST);
            match classes.iter_mut().find(|class| class.size == size) {
                Some(class) => class.count = class.count.max(count),
                None => classes.push(AStackClass { size, count }),
            }
        }
        classes.sort_by_key(|class| class.size);
        Self::new(classes)
    }

    /// Its classes, in the order of their A-stacks' numbers.
    pub fn classes(&self) -> &[AStackClass] {
        &self.classes
    }

    /// The class that a block of `bytes` goes to; `None` if it needs none, or is too long for any.
    pub fn class_for(&self, bytes: u32) -> Option<usize> {
        let size = class_size(bytes)?;
        self.classes.iter().position(|class| class.size == size)
    }

    /// The number of the first A-stack of a class.
    pub fn first_of(&self, class: usize) -> u16 {
        self.classes[..class].iter().map(|class| class.count).sum()
    }

    /// Offset and size of an A-stack; `None` for a number that does not exist: the range check of
    /// LRPC's kernel.
    #[inline]
    pub fn place(&self, astack: u16) -> Option<(usize, usize)> {
        self.places.get(usize::from(astack)).map(|&(at, size)| (at as usize, size as usize))
    }

    /// How many bytes they take together.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

fn class_size(bytes: u32) -> Option<u32> {
    (bytes > 0).then(|| bytes.clamp(SMALLEST, LARGEST).next_power_of_two())
}

/// Numbers 0 to `count` − 1 to be handed out and given back, lowest first; at most [`MOST`]. Never
/// blocks.
#[derive(Debug)]
pub struct Numbers(AtomicU64);

impl Numbers {
    /// All of them free.
    ///
    /// # Panics
    /// More than [`MOST`].
    pub fn new(count: u16) -> Self {
        assert!(count <= MOST, "{count} numbers, more than {MOST}");
        Self(AtomicU64::new(if count == MOST { u64::MAX } else { (1 << count) - 1 }))
    }

    /// Takes the lowest free number.
    #[inline]
    pub fn take(&self) -> Option<u16> {
        let mut free = self.0.load(Ordering::Relaxed);
        while free != 0 {
            let number = free.trailing_zeros();
            match self.0.compare_exchange_weak(
                free,
                free & (free - 1),
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Some(number as u16),
                Err(now) => free = now,
            }
        }
        None
    }

    /// How many are free at the moment.
    pub fn free(&self) -> usize {
        self.0.load(Ordering::Relaxed).count_ones() as usize
    }

    /// Gives a number back, or adds a new one. What was done with the number before happens before
    /// its next taking.
    #[inline]
    pub fn give(&self, number: u16) {
        self.0.fetch_or(1 << number, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn similar_sizes_share() {
        let plan = AStackPlan::for_procedures([(0, 5), (200, 5), (256, 7), (100, 3), (1, 2)]);
        assert_eq!(
            plan.classes(),
            [
                AStackClass { size: 64, count: 2 },
                AStackClass { size: 128, count: 3 },
                AStackClass { size: 256, count: 7 }
            ]
        );
        assert_eq!(plan.class_for(200), Some(2));
        assert_eq!(plan.class_for(0), None);
        assert_eq!(plan.class_for(3000), None);
        assert_eq!(plan.first_of(2), 5);
        assert_eq!(plan.place(5), Some((2 * 64 + 3 * 128, 256)));
        assert_eq!(plan.place(11), Some((2 * 64 + 3 * 128 + 6 * 256, 256)));
        assert_eq!(plan.place(12), None);
        assert_eq!(plan.bytes(), 2 * 64 + 3 * 128 + 7 * 256);
    }

    #[test]
    fn whatever_is_needed_there_is_a_plan_with_bounds() {
        let plan =
            AStackPlan::for_procedures([(1, 0), (63, 1000), (LARGEST + 1, 3), (u32::MAX, 64)]);
        assert_eq!(
            plan.classes(),
            [AStackClass { size: 64, count: MOST }, AStackClass { size: LARGEST, count: MOST }]
        );
        let all = AStackPlan::for_procedures((0..=20).map(|power| (1 << power, u16::MAX)));
        assert!(all.classes().len() == CLASSES && all.bytes() < 128 << 20);
    }

    #[test]
    fn numbers_are_given_lowest_first() {
        let numbers = Numbers::new(2);
        assert_eq!((numbers.take(), numbers.take(), numbers.take()), (Some(0), Some(1), None));
        numbers.give(0);
        assert_eq!(numbers.take(), Some(0));
        assert_eq!(Numbers::new(64).take(), Some(0));
    }
}
