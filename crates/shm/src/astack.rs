//! A-stacks: the memory in which a call's arguments and results travel.
//!
//! Source: LRPC, sections 3.1 and 5.2. A-stacks are allocated pairwise at bind, contiguous per
//! interface. Procedures whose blocks have a similar size (the same power of two) share a class of
//! A-stacks. The lowest free number of a class is handed out first, by one atomic operation on one
//! word; like the paper's LIFO, this keeps the same few lines warm. Both sides compute the same
//! [`AStackPlan`] from the procedure descriptor list that the server sends at bind, so a number
//! names an A-stack, and a range check validates it.

use upcall_os::atomic::{AtomicU64, Ordering};

/// Maximum number of A-stacks of one class: the bits of one word.
pub const MOST: u16 = 64;

/// Maximum number of classes of an interface: 64 bytes to 1 MiB in powers of two.
pub const CLASSES: usize = 15;

/// Size of the smallest A-stack, in bytes: a cache line.
const SMALLEST: u32 = 64;

/// Size of the largest A-stack, in bytes.
///
/// Longer values go through an out-of-band segment.
pub const LARGEST: u32 = 1 << 20;

/// A class of A-stacks of equal size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AStackClass {
    /// Bytes of each A-stack, a power of two.
    pub size: u32,
    /// Number of A-stacks.
    pub count: u16,
}

/// Where the A-stacks of an interface lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AStackPlan {
    classes: Vec<AStackClass>,
    /// Offset and size in bytes, by A-stack number.
    places: Vec<(u32, u32)>,
    bytes: usize,
}

impl AStackPlan {
    /// The plan for these classes, whose sizes are distinct powers of two.
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

    /// The plan for procedures given as (bytes of a block, simultaneous calls).
    ///
    /// A procedure that needs no A-stack has size 0. Procedures of one class share the largest
    /// number of calls that one of them asks for.
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

    /// The classes, in the order of their A-stacks' numbers.
    pub fn classes(&self) -> &[AStackClass] {
        &self.classes
    }

    /// The class for a block of `bytes`.
    ///
    /// `None` if the block needs none, or the plan has no such class.
    pub fn class_for(&self, bytes: u32) -> Option<usize> {
        let size = class_size(bytes)?;
        self.classes.iter().position(|class| class.size == size)
    }

    /// The number of the first A-stack of a class.
    pub fn first_of(&self, class: usize) -> u16 {
        self.classes[..class].iter().map(|class| class.count).sum()
    }

    /// Offset and size of an A-stack; `None` if there is no such number.
    ///
    /// This is the range check of LRPC's kernel.
    #[inline]
    pub fn place(&self, astack: u16) -> Option<(usize, usize)> {
        self.places.get(usize::from(astack)).map(|&(at, size)| (at as usize, size as usize))
    }

    /// Bytes of all A-stacks together.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

fn class_size(bytes: u32) -> Option<u32> {
    (bytes > 0).then(|| bytes.clamp(SMALLEST, LARGEST).next_power_of_two())
}

/// Numbers 0 to `count` − 1 to hand out and take back, lowest first.
///
/// There are at most [`MOST`]. No operation blocks.
#[derive(Debug)]
pub struct Numbers(AtomicU64);

impl Numbers {
    /// A set of `count` free numbers.
    ///
    /// # Panics
    /// `count` is more than [`MOST`].
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

    /// Number of free numbers at the moment.
    pub fn free(&self) -> usize {
        self.0.load(Ordering::Relaxed).count_ones() as usize
    }

    /// Gives a number back, or adds a new one.
    ///
    /// What was done with the number before happens before it is next taken.
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
