//! The slabs of stacks that a program lists, checked, and in the order of addresses.
//!
//! ```text
//! base + i × slot: ┌───────┬────────────────────────┬────────┬────────┐
//!                  │ guard │ stack                  │ record │ colour │
//!                  └───────┴────────────────────────┴────────┴────────┘
//! ```

use super::beacon::RecordOffsets;
use super::memory::u64_at;

/// Maximum number of stacks that are read.
const MOST_SLOTS: u64 = 1 << 22;
/// End of the address space of a process on x86-64.
const MOST_ADDRESS: u64 = 1 << 47;

struct SlabReading {
    base: u64,
    slot: u64,
    usable: u64,
    count: u64,
}

/// The slabs of a program.
pub struct Slabs {
    slabs: Vec<SlabReading>,
    layout: RecordOffsets,
}

impl Slabs {
    /// Makes the slabs of the nodes of the chain. Also returns the number of impossible nodes,
    /// which are left out.
    pub fn new(nodes: &[Vec<u8>], layout: RecordOffsets) -> (Self, usize) {
        let mut left = MOST_SLOTS;
        let slab = |node: &Vec<u8>| {
            let slab = SlabReading {
                base: u64_at(node, 8),
                slot: u64_at(node, 16),
                usable: u64_at(node, 24),
                count: u64_at(node, 32),
            };
            let end =
                slab.slot.checked_mul(slab.count).and_then(|bytes| bytes.checked_add(slab.base));
            let fits =
                slab.usable.checked_add(layout.guard).is_some_and(|bytes| bytes <= slab.slot);
            let room = layout.record as u64 + layout.colours * layout.colour_step;
            let sane = end.is_some_and(|end| end <= MOST_ADDRESS)
                && fits
                && room <= slab.usable
                && slab.slot > 0;
            (sane && slab.count <= left).then(|| {
                left -= slab.count;
                slab
            })
        };
        let mut slabs: Vec<_> = nodes.iter().filter_map(slab).collect();
        slabs.sort_by_key(|slab| slab.base);
        let left_out = nodes.len() - slabs.len();
        (Self { slabs, layout }, left_out)
    }

    fn record(&self, slab: &SlabReading, index: u64) -> u64 {
        let RecordOffsets { guard, record, colours, colour_step, .. } = self.layout;
        slab.base + index * slab.slot + guard + slab.usable
            - record as u64
            - index % colours * colour_step
    }

    /// The addresses of the records, of stacks in use and of free ones.
    pub fn records(&self) -> impl Iterator<Item = u64> {
        self.slabs.iter().flat_map(|slab| (0..slab.count).map(|index| self.record(slab, index)))
    }

    fn find(&self, address: u64) -> Option<(&SlabReading, u64)> {
        let after = self.slabs.partition_point(|slab| slab.base <= address);
        let slab = self.slabs.get(after.checked_sub(1)?)?;
        let index = (address - slab.base) / slab.slot;
        (index < slab.count).then_some((slab, index))
    }

    /// The stack with the record at `record`: its lowest usable address, and the record's.
    pub fn slot_of(&self, record: u64) -> Option<(u64, u64)> {
        let (slab, index) = self.find(record)?;
        Some((slab.base + index * slab.slot + self.layout.guard, record))
    }

    /// The record of the stack that contains `address`.
    pub fn record_of_stack(&self, address: u64) -> Option<u64> {
        let (slab, index) = self.find(address)?;
        Some(self.record(slab, index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout() -> RecordOffsets {
        let words = [0; 7];
        let [stack_pointer, home, blocking, cause, object, number, extra] = words;
        RecordOffsets {
            guard: 4096,
            record: 128,
            colours: 16,
            colour_step: 64,
            stack_pointer,
            home,
            blocking,
            cause,
            object,
            number,
            extra,
            bottom: 0,
            name: 0,
            index: 0,
        }
    }

    fn node(words: [u64; 4]) -> Vec<u8> {
        [&[0; 8], words.map(u64::to_le_bytes).as_flattened()].concat()
    }

    #[test]
    fn records_and_stacks_find_each_other() {
        let slot = 4096 + 65536;
        let (slabs, left_out) = Slabs::new(
            &[node([0x10_0000_0000, slot, 65536, 240]), node([0x1000_0000, slot, 65536, 3])],
            layout(),
        );
        assert_eq!((left_out, slabs.records().count()), (0, 243));
        for record in slabs.records() {
            let (bottom, top) = slabs.slot_of(record).expect("a slot");
            assert!(top == record && top - bottom > 60_000 && (top - bottom).is_multiple_of(64));
            assert!(
                [bottom, top - 8, record]
                    .iter()
                    .all(|&at| slabs.record_of_stack(at) == Some(record))
            );
        }
        assert_eq!(slabs.record_of_stack(0x1000_0000 + 3 * slot), None);
        assert_eq!(slabs.record_of_stack(8), None);
    }

    #[test]
    fn slabs_that_cannot_be_are_left_out() {
        let bad = [
            [0, u64::MAX, 65536, 240],
            [0, 0, 0, 1],
            [0, 4096, 4096, 1],
            [u64::MAX, 1 << 17, 65536, 1],
            [0, 1 << 17, 65536, 1 << 40],
        ];
        let nodes = bad.map(node);
        let (slabs, left_out) = Slabs::new(&nodes, layout());
        assert_eq!((slabs.records().count(), left_out), (0, 5));
    }
}
