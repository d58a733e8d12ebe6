//! A collective operation, as its messages describe it.

use crate::{Number, Rank};
use std::fmt;

/// A collective operation on vectors. The numbers go into messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Collective {
    Broadcast = 1,
    Gather = 2,
    Reduce = 3,
    AllGather = 4,
    AllReduce = 5,
    AllToAll = 6,
}

const ALL: [Collective; 6] = [
    Collective::Broadcast,
    Collective::Gather,
    Collective::Reduce,
    Collective::AllGather,
    Collective::AllReduce,
    Collective::AllToAll,
];

/// The types of items. Their indices go into messages.
const ITEMS: [Number; 9] = [
    Number::U64,
    Number::I64,
    Number::U32,
    Number::I32,
    Number::U16,
    Number::U8,
    Number::Bool,
    Number::F64,
    Number::F32,
];

/// What all members have to call alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CollectiveCall {
    pub(crate) collective: Collective,
    pub(crate) item: Number,
    /// 0 for an operation without a root.
    pub(crate) root: Rank,
}

impl CollectiveCall {
    /// The call in one word.
    pub(crate) fn word(self) -> u64 {
        let item = ITEMS.iter().position(|item| *item == self.item).unwrap_or(ITEMS.len());
        (self.collective as u64) << 40 | (item as u64) << 32 | self.root as u64
    }

    /// Returns the call of a word; `None` if there is no such operation, type, or member.
    pub(crate) fn from_word(word: u64, size: usize) -> Option<Self> {
        let collective = ALL.into_iter().find(|known| *known as u64 == word >> 40)?;
        let item = *ITEMS.get((word >> 32 & 0xff) as usize)?;
        let root = (word & 0xffff_ffff) as usize;
        (root < size).then_some(Self { collective, item, root })
    }

    /// Bytes of one item.
    pub(crate) fn width(self) -> usize {
        match self.item {
            Number::U64 | Number::I64 | Number::F64 => 8,
            Number::U32 | Number::I32 | Number::F32 => 4,
            Number::U16 => 2,
            Number::U8 | Number::Bool => 1,
        }
    }
}

impl fmt::Display for CollectiveCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (item, root) = (self.item.name(), self.root);
        match self.collective {
            Collective::Broadcast => write!(f, "broadcast of {item} from member {root}"),
            Collective::Gather => write!(f, "gather of {item} at member {root}"),
            Collective::Reduce => write!(f, "reduce_to of {item} at member {root}"),
            Collective::AllGather => write!(f, "all_gather of {item}"),
            Collective::AllReduce => write!(f, "all_reduce of {item}"),
            Collective::AllToAll => write!(f, "all_to_all of {item}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_read_as_it_was_written() {
        for collective in ALL {
            for item in ITEMS {
                let call = CollectiveCall { collective, item, root: 8 };
                assert_eq!(CollectiveCall::from_word(call.word(), 9), Some(call));
                assert_eq!(CollectiveCall::from_word(call.word(), 8), None);
            }
        }
        for word in [0, u64::MAX, 7 << 40, 1 << 40 | 9 << 32, 1 << 48 | 1 << 40] {
            assert_eq!(CollectiveCall::from_word(word, 9), None);
        }
    }
}
