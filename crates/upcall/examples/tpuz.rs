//! The triangle puzzle, solved by all members of a group: how many ways are there to leave one peg?
//! (UDM, section 5.3: Tpuz.)
//!
//! ```text
//! tpuz [SIDE [TIMES [MEMBERS]]]        by itself: a board with SIDE holes a side (5),
//!                                      TIMES times (1), by MEMBERS threads (4)
//! upcall job run --group 4 -- tpuz 6   as a job: each process is a member
//! ```
//!
//! All holes of a triangle hold pegs, except the middle hole of the third row. A peg jumps over its
//! neighbour into the hole behind it, and the neighbour is removed. So each jump leaves one peg
//! less, and all positions with the same number of pegs are a *level*. The search goes from level
//! to level; mirror images are one position. Each position belongs to one member, which its bits
//! determine. The member that finds a position sends it to that member, with the number of ways
//! that lead there; there is no answer. A level is finished when as many messages were taken as
//! were sent. A reduction finds that out, and is also the barrier between levels.
//!
//! With 6 holes a side, four members send each other 506 429 messages; on the paper's four
//! processors it was 513.5 thousand.
#![forbid(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::error::Error;
use std::rc::Rc;
use std::time::{Duration, Instant};
use upcall::message::{Group, GroupBuilder, Handlers, JoinError, Kind, Rank};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// A bit for each hole with a peg in it.
type Position = u32;

/// Positions, and the number of ways to reach each.
type Level = HashMap<Position, u64>;

/// A triangle of holes, row by row. All but one have a peg at first.
pub struct Board {
    side: u32,
    start: Position,
    /// The two pegs that a jump takes, and the hole that it fills.
    jumps: Vec<(Position, Position)>,
}

impl Board {
    /// A board with `side` holes a side. The middle hole of the third row is empty.
    ///
    /// # Errors
    /// If `side` is less than 3, which is too few, or more than 6, which is too many for the memory
    /// of most machines.
    pub fn new(side: u32) -> Outcome<Self> {
        if !(3..=6).contains(&side) {
            return Err(format!("no board with {side} holes a side: 3 to 6").into());
        }
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
        let all = (1 << begin(side)) - 1;
        Ok(Self { side, start: all ^ 1 << (begin(2) + 1), jumps })
    }

    /// The positions that one jump can reach.
    fn after(&self, position: Position) -> impl Iterator<Item = Position> {
        let fits = move |(pegs, hole): &&(Position, Position)| position & (pegs | hole) == *pegs;
        self.jumps.iter().filter(fits).map(move |(pegs, hole)| self.named(position ^ (pegs | hole)))
    }

    /// The representative of a position and its mirror image. Equally many games lead to either,
    /// and on from it.
    fn named(&self, position: Position) -> Position {
        let row = |row: u32| {
            (position >> begin(row) & ((1 << (row + 1)) - 1)).reverse_bits() >> (31 - row)
                << begin(row)
        };
        position.min((0..self.side).map(row).sum())
    }
}

/// Number of holes above a row.
fn begin(row: u32) -> u32 {
    row * (row + 1) / 2
}

/// The result of a search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Number of positions of each level.
    pub positions: Vec<u64>,
    /// Number of ways to leave one peg.
    pub solutions: u64,
}

/// The result of a group, and its cost.
#[derive(Clone, Debug)]
pub struct Searched {
    /// The result, which is the same in all searches.
    pub found: Found,
    /// Number of messages of all members, in all searches.
    pub messages: u64,
    /// Number of these messages that went through a buffer.
    pub buffered: u64,
    /// Time from when all members were ready until all were done.
    pub time: Duration,
}

/// A member, and what others send to it.
struct Member {
    group: Group,
    reached: Kind<(Position, u64)>,
    /// The levels with an even and with an odd number of pegs: while one is searched, messages fill
    /// the next.
    levels: Rc<RefCell<[Level; 2]>>,
    taken: Rc<Cell<i64>>,
}

fn add(levels: &RefCell<[Level; 2]>, position: Position, ways: u64) {
    *levels.borrow_mut()[position.count_ones() as usize % 2].entry(position).or_default() += ways;
}

impl Member {
    fn join(joining: GroupBuilder) -> Outcome<Self> {
        let (levels, taken) = (Rc::<RefCell<[Level; 2]>>::default(), Rc::new(Cell::new(0)));
        let mut handlers = Handlers::new();
        let reached = handlers.kind("reached");
        handlers.on(reached, {
            let (levels, taken) = (levels.clone(), taken.clone());
            move |_, _, (position, ways)| {
                add(&levels, position, ways);
                taken.set(taken.get() + 1);
            }
        });
        Ok(Self { group: joining.join(handlers)?, reached, levels, taken })
    }

    /// The member that owns a position.
    fn home(&self, position: Position) -> Rank {
        (u64::from(position).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % self.group.size()
    }

    /// Searches with all other members. Returns the result, and the number of messages that this
    /// member has sent for it.
    fn search(&self, board: &Board) -> Outcome<(Found, u64)> {
        let Self { group, levels, .. } = self;
        let sum = |number: u64| group.reduce(number, |a, b| a + b);
        let (mut found, mut sent) = (Found { positions: Vec::new(), solutions: 0 }, 0);
        self.taken.set(0);
        if self.home(board.start) == group.rank() {
            add(levels, board.start, 1);
        }
        for pegs in (1..=board.start.count_ones()).rev() {
            let level = std::mem::take(&mut levels.borrow_mut()[pegs as usize % 2]);
            found.positions.push(sum(level.len() as u64)?);
            if pegs == 1 {
                found.solutions = sum(level.values().sum())?;
            }
            for (&position, &ways) in &level {
                for next in board.after(position) {
                    let home = self.home(next);
                    if home == group.rank() {
                        add(levels, next, ways);
                    } else {
                        group.send(home, self.reached, &(next, ways))?;
                        sent += 1;
                    }
                }
                group.poll();
            }
            // Messages of this level may still be under way. No member sends more of them, so the
            // difference only falls.
            while group.reduce(sent - self.taken.get(), |a, b| a + b)? != 0 {
                group.poll();
            }
        }
        Ok((found, sent as u64))
    }
}

/// Takes part as a member, in `times` searches.
pub fn search(joining: GroupBuilder, board: &Board, times: usize) -> Outcome<Searched> {
    let member = Member::join(joining)?;
    member.group.barrier()?;
    let begun = Instant::now();
    let (mut first, mut messages) = (None, 0);
    for _ in 0..times {
        let (found, sent) = member.search(board)?;
        messages += sent;
        let first = first.get_or_insert_with(|| found.clone());
        if *first != found {
            return Err(format!("a search has found {found:?}, and the first one {first:?}").into());
        }
    }
    let time = begun.elapsed();
    let sum = |number| member.group.reduce(number, |a: u64, b| a + b);
    let (messages, buffered) = (sum(messages)?, sum(member.group.diverted())?);
    Ok(Searched { found: first.ok_or("no search")?, messages, buffered, time })
}

/// Searches with one thread, without messages.
pub fn search_alone(board: &Board) -> Found {
    let (mut level, mut found) =
        (Level::from([(board.start, 1)]), Found { positions: Vec::new(), solutions: 0 });
    for pegs in (1..=board.start.count_ones()).rev() {
        found.positions.push(level.len() as u64);
        if pegs == 1 {
            found.solutions = level.values().sum();
        }
        let mut next = Level::new();
        for (&position, ways) in &level {
            for after in board.after(position) {
                *next.entry(after).or_default() += ways;
            }
        }
        level = next;
    }
    found
}

/// Searches; the first member prints the result.
fn member(joining: GroupBuilder, is_first: bool, side: u32, times: usize) -> Outcome<()> {
    let board = Board::new(side)?;
    let Searched { found, messages, buffered, time } = search(joining, &board, times)?;
    if !is_first {
        return Ok(());
    }
    let begun = Instant::now();
    if search_alone(&board) != found {
        return Err(format!("a search by one alone finds something else than {found:?}").into());
    }
    let alone = begun.elapsed();
    println!("pegs  positions");
    for (pegs, positions) in (1..=found.positions.len()).rev().zip(&found.positions) {
        println!("{pegs:4}  {positions:9}");
    }
    println!("{} positions, {} solutions", found.positions.iter().sum::<u64>(), found.solutions);
    println!(
        "{times} times in {time:.3?} with {messages} messages, {buffered} of them buffered; one \
        alone finds the same in {alone:.3?}"
    );
    Ok(())
}

fn main() -> Outcome<()> {
    let words: Vec<usize> =
        std::env::args().skip(1).map(|word| word.parse()).collect::<Result<_, _>>()?;
    let number = |at: usize, usual| words.get(at).copied().unwrap_or(usual);
    let (side, times, members) = (number(0, 5) as u32, number(1, 1), number(2, 4));
    match GroupBuilder::from_environment() {
        Ok(joining) => {
            member(joining, std::env::var("UPCALL_RANK").is_ok_and(|rank| rank == "0"), side, times)
        }
        Err(JoinError::NoJob { found: None, .. }) => {
            let name = format!("tpuz-{}", std::process::id());
            let joining = |rank| GroupBuilder::new(&name, members).rank(rank);
            std::thread::scope(|scope| {
                let start =
                    |rank| scope.spawn(move || member(joining(rank), rank == 0, side, times));
                let all: Vec<_> = (0..members).map(start).collect();
                all.into_iter().try_for_each(|one| {
                    one.join().unwrap_or_else(|_| Err("a member panicked".into()))
                })
            })
        }
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plays all games one by one, without mirroring. Returns the number of games that end with one
    /// peg.
    fn play(board: &Board, position: Position) -> u64 {
        let fits = |(pegs, hole): &&(Position, Position)| position & (pegs | hole) == *pegs;
        let further = board
            .jumps
            .iter()
            .filter(fits)
            .map(|(pegs, hole)| play(board, position ^ (pegs | hole)));
        u64::from(position.count_ones() == 1) + further.sum::<u64>()
    }

    #[test]
    fn levels_hold_what_games_do() {
        for side in 3..=5 {
            let board = Board::new(side).unwrap();
            assert_eq!(
                search_alone(&board).solutions,
                play(&board, board.start),
                "{side} holes a side"
            );
        }
        assert!(search_alone(&Board::new(5).unwrap()).solutions > 0 && Board::new(7).is_err());
    }

    #[test]
    fn all_members_find_what_one_alone_does() {
        let alone = search_alone(&Board::new(5).unwrap());
        for members in [1, 2, 3] {
            let name = format!("tpuz-test-{}-{members}", std::process::id());
            let one = |rank: usize| {
                search(GroupBuilder::new(&name, members).rank(rank), &Board::new(5).unwrap(), 2)
                    .unwrap()
            };
            let all: Vec<Searched> = std::thread::scope(|scope| {
                let start = |rank| {
                    let one = &one;
                    scope.spawn(move || one(rank))
                };
                let started: Vec<_> = (0..members).map(start).collect();
                started.into_iter().map(|member| member.join().unwrap()).collect()
            });
            assert!(all.iter().all(
                |searched| searched.found == alone && (searched.messages > 0) == (members > 1)
            ));
        }
    }
}
