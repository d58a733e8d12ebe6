//! The triangle puzzle, as in `crates/upcall/examples/tpuz.rs`, which is above this crate. Here the
//! levels are ordered, so that a seed reproduces a run.

use crate::Rank;
use std::collections::BTreeMap;

/// A bit for each hole with a peg in it.
pub type Position = u32;

/// Positions, with the number of ways in which each is reached.
pub type Level = BTreeMap<Position, u64>;

/// A triangle of holes, row by row. All except the middle hole of the third row have a peg at
/// first.
#[derive(Clone, Debug)]
pub struct Board {
    side: u32,
    start: Position,
    /// The two pegs that a jump takes, and the hole that it fills.
    jumps: Vec<(Position, Position)>,
}

/// The result of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Number of jumps tried. Each leads to a position of the next level, and a message to that
    /// position's owner.
    pub jumps: u64,
    /// Number of ways in which one peg is left.
    pub solutions: u64,
}

impl Board {
    /// Creates a board with `side` holes a side, 3 to 6.
    pub fn new(side: u32) -> Self {
        let bit = |row: i32, column: i32| {
            (row < side as i32 && (0..=row).contains(&column))
                .then(|| 1 << (begin(row as u32) + column as u32))
        };
        let mut jumps = Vec::new();
        for (row, column) in
            (0..side as i32).flat_map(|row| (0..=row).map(move |column| (row, column)))
        {
            for (down, right) in [(0, 1), (0, -1), (1, 0), (-1, 0), (1, 1), (-1, -1)] {
                let at = |steps| bit(row + steps * down, column + steps * right);
                if let (Some(from), Some(over), Some(to)) = (at(0), at(1), at(2)) {
                    jumps.push((from | over, to));
                }
            }
        }
        Self { side, start: ((1 << begin(side)) - 1) ^ 1 << (begin(2) + 1), jumps }
    }

    /// The position at the start of the game.
    pub fn start(&self) -> Position {
        self.start
    }

    /// The positions that one jump makes of a position.
    pub fn after(&self, position: Position) -> impl Iterator<Item = Position> {
        let fits = move |(pegs, hole): &&(Position, Position)| position & (pegs | hole) == *pegs;
        self.jumps.iter().filter(fits).map(move |(pegs, hole)| self.named(position ^ (pegs | hole)))
    }

    /// The representative of a position and its mirror image.
    fn named(&self, position: Position) -> Position {
        let row = |row: u32| {
            (position >> begin(row) & ((1 << (row + 1)) - 1)).reverse_bits() >> (31 - row)
                << begin(row)
        };
        position.min((0..self.side).map(row).sum())
    }

    /// Searches with a single member.
    pub fn search(&self) -> Found {
        let (mut level, mut found) =
            (Level::from([(self.start, 1)]), Found { jumps: 0, solutions: 0 });
        for _ in 1..self.start.count_ones() {
            let mut next = Level::new();
            for (&position, ways) in &level {
                for after in self.after(position) {
                    found.jumps += 1;
                    *next.entry(after).or_default() += ways;
                }
            }
            level = next;
        }
        found.solutions = level.values().sum();
        // Positions with one peg have no jumps, so the search is complete.
        found
    }
}

/// The owner of a position among `members` members.
pub fn home(position: Position, members: usize) -> Rank {
    (u64::from(position).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % members
}

/// Number of holes above a row.
fn begin(row: u32) -> u32 {
    row * (row + 1) / 2
}
