//! Tests of the types.
//!
//! They are compared with those of the standard library, ended at each store, and overwritten with
//! random words.

use super::check::Pages;
use super::*;
use crate as upcall_home;
use crate::{Blob, List, Map, Plain, Queue, Text};
use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use upcall_macros::{Plain, Shared};

thread_local! {
    /// Number of stores after which this thread's operation ends.
    static LEFT: Cell<u64> = const { Cell::new(u64::MAX) };
}

/// Counts a store.
pub(super) fn count() {
    let left = LEFT.get();
    if left == 0 {
        resume_unwind(Box::new("killed"));
    }
    LEFT.set(left - 1);
}

/// Pseudo-random numbers that follow from a seed.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }

    fn text(&mut self) -> String {
        let length = [0, 1, 7, 8, 9, 30, 200][self.below(7) as usize];
        (0..length).map(|_| ['a', 'ä', '€', 'z'][self.below(4) as usize]).collect()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Plain)]
#[shared(crate = "upcall_home")]
enum Kind {
    None,
    Pair(u8, u64),
    Named { flag: bool, letter: char },
}

#[derive(Clone, Copy, Debug, PartialEq, Plain)]
#[shared(crate = "upcall_home")]
struct Point {
    x: f64,
    y: f32,
    kind: Kind,
    of: [u16; 3],
    maybe: Option<(u8, u32)>,
}

/// A struct with every kind of type.
#[derive(Shared)]
#[shared(crate = "upcall_home")]
struct Everything {
    flag: bool,
    number: u64,
    point: Point,
    text: Text,
    list: List<Text>,
    queue: Queue<Blob>,
    map: Map<Text, Text>,
    nested: Map<u32, List<u16>>,
}

/// The same in private memory.
#[derive(Clone, Debug, Default, PartialEq)]
struct Model {
    text: String,
    list: Vec<String>,
    queue: VecDeque<Vec<u8>>,
    map: BTreeMap<String, String>,
    nested: BTreeMap<u32, Vec<u16>>,
}

#[derive(Clone, Debug)]
enum Op {
    Set(String),
    PushBack(String),
    PushFront(String),
    PopFront,
    PopBack,
    Remove(usize),
    ToFront(usize),
    Put(Vec<u8>),
    Take,
    Insert(String, String),
    Delete(String),
    Add(u32, u16),
    Forget(u32),
}

impl Op {
    fn random(random: &mut Random, keys: u64) -> Self {
        let key = random.below(keys);
        match random.below(13) {
            0 => Self::Set(random.text()),
            1 => Self::PushBack(random.text()),
            2 => Self::PushFront(random.text()),
            3 => Self::PopFront,
            4 => Self::PopBack,
            5 => Self::Remove(random.below(8) as usize),
            6 => Self::ToFront(random.below(8) as usize),
            7 => Self::Put(random.text().into()),
            8 => Self::Take,
            9 => Self::Insert(format!("key {key}"), random.text()),
            10 => Self::Delete(format!("key {key}")),
            11 => Self::Add(key as u32, random.below(1 << 16) as u16),
            _ => Self::Forget(key as u32),
        }
    }

    fn on(&self, all: EverythingAt<'_>) -> Result<(), DataError> {
        let nth = |number: usize| {
            all.list().iter().nth(number).transpose().map(|found| found.map(|(link, _)| link))
        };
        match self {
            Self::Set(text) => all.text().set(text)?,
            Self::PushBack(text) => _ = all.list().push_back(text)?,
            Self::PushFront(text) => _ = all.list().push_front(text)?,
            Self::PopFront => _ = all.list().pop_front()?,
            Self::PopBack => _ = all.list().pop_back()?,
            Self::Remove(number) => nth(*number)?.map_or(Ok(()), |link| all.list().remove(link))?,
            Self::ToFront(number) => {
                nth(*number)?.map_or(Ok(()), |link| all.list().move_to_front(link))?
            }
            Self::Put(bytes) => all.queue().push(bytes)?,
            Self::Take => _ = all.queue().pop()?,
            Self::Insert(key, value) => _ = all.map().insert(key, value)?,
            Self::Delete(key) => _ = all.map().remove(key)?,
            Self::Add(key, value) => _ = all.nested().entry(key)?.push_back(*value)?,
            Self::Forget(key) => _ = all.nested().remove(key)?,
        }
        Ok(())
    }

    fn on_model(&self, all: &mut Model) {
        match self.clone() {
            Self::Set(text) => all.text = text,
            Self::PushBack(text) => all.list.push(text),
            Self::PushFront(text) => all.list.insert(0, text),
            Self::PopFront if !all.list.is_empty() => _ = all.list.remove(0),
            Self::PopBack => _ = all.list.pop(),
            Self::Remove(number) if number < all.list.len() => _ = all.list.remove(number),
            Self::ToFront(number) if number < all.list.len() => all.list[..=number].rotate_right(1),
            Self::Put(bytes) => all.queue.push_back(bytes),
            Self::Take => _ = all.queue.pop_front(),
            Self::Insert(key, value) => _ = all.map.insert(key, value),
            Self::Delete(key) => _ = all.map.remove(&key),
            Self::Add(key, value) => all.nested.entry(key).or_default().push(value),
            Self::Forget(key) => _ = all.nested.remove(&key),
            Self::PopFront | Self::Remove(_) | Self::ToFront(_) => {}
        }
    }
}

fn root(room: WritableSpan<'_>) -> EverythingAt<'_> {
    Everything::at(Memory::of::<Everything>(room).spot(0))
}

/// Reads all of it.
fn read(all: EverythingAt<'_>) -> Result<Model, DataError> {
    let list = all.list().iter().map(|found| found?.1.get()).collect::<Result<Vec<_>, _>>()?;
    let nested = all.nested().iter().map(|found| {
        let (key, list) = found?;
        Ok((key, list.iter().map(|found| found?.1.get()).collect::<Result<Vec<_>, _>>()?))
    });
    let model = Model {
        text: all.text().get()?,
        queue: all.queue().iter().map(|found| found?.get()).collect::<Result<_, _>>()?,
        map: all
            .map()
            .iter()
            .map(|found| found.and_then(|(key, at)| Ok((key, at.get()?))))
            .collect::<Result<_, _>>()?,
        nested: nested.collect::<Result<_, _>>()?,
        list,
    };
    let counts = (all.list().len()?, all.queue().len()?, all.map().len()?, all.nested().len()?);
    let found = (
        model.list.len() as u64,
        model.queue.len() as u64,
        model.map.len() as u64,
        model.nested.len() as u64,
    );
    if counts == found { Ok(model) } else { Err(DataError::corrupt("counts", 0)) }
}

#[test]
fn they_are_as_those_of_the_standard_library() {
    for (seed, keys) in [(1, 10), (2, 100), (3, 3000), (4, 3000)] {
        let mut words = vec![0; 1 << 18];
        let room = WritableSpan::of_words(&mut words);
        let (all, mut model, mut random) = (root(room), Model::default(), Random(seed));
        for step in 0..if seed < 3 { 6_000 } else { 30_000 } {
            let op = Op::random(&mut random, keys);
            op.on(all).unwrap_or_else(|error| panic!("seed {seed}, step {step}, {op:?}: {error}"));
            op.on_model(&mut model);
            if step % 500 == 0 {
                assert_eq!(read(all).unwrap(), model, "seed {seed}, step {step}");
                check::check::<Everything>(Memory::of::<Everything>(room), Pages::All, false, None)
                    .unwrap();
            }
        }
        assert_eq!(read(all).unwrap(), model);
        for (key, value) in &model.map {
            assert_eq!(all.map().get(key).unwrap().unwrap().get().as_ref(), Ok(value));
        }
        assert!(!all.map().contains("nowhere").unwrap());
        // Repaired, it is unchanged; and cleared, all its room is free.
        let before = used(Memory::of::<Everything>(room)).unwrap();
        check::check::<Everything>(Memory::of::<Everything>(room), Pages::All, true, None).unwrap();
        assert!(
            read(all).unwrap() == model && used(Memory::of::<Everything>(room)).unwrap() <= before,
            "a table that was moving is gone"
        );
        Everything::clear(Memory::of::<Everything>(room).spot(0)).unwrap();
        assert_eq!(
            (read(all).unwrap(), used(Memory::of::<Everything>(room)).unwrap()),
            (Model::default(), 0)
        );
    }
}

#[test]
fn who_ends_at_any_store_leaves_it_as_it_was_or_as_it_was_to_be() {
    let (mut ends, mut random) = (0, Random(5));
    for turn in 0..60 {
        let mut words = vec![0; 1 << 13];
        let mut model = Model::default();
        for _ in 0..random.below(150) {
            let op = Op::random(&mut random, 12);
            op.on(root(WritableSpan::of_words(&mut words))).unwrap();
            op.on_model(&mut model);
        }
        for _ in 0..13 {
            let (op, mut after) = (Op::random(&mut random, 12), model.clone());
            op.on_model(&mut after);
            let before = words.clone();
            for stores in 0.. {
                words.clone_from(&before);
                let room = WritableSpan::of_words(&mut words);
                LEFT.set(stores);
                let ended = catch_unwind(AssertUnwindSafe(|| op.on(root(room)).unwrap())).is_err();
                LEFT.set(u64::MAX);
                if ended {
                    ends += 1;
                    let mended = check::check::<Everything>(
                        Memory::of::<Everything>(room),
                        Pages::All,
                        true,
                        None,
                    );
                    assert!(
                        mended.is_ok(),
                        "turn {turn}, {op:?} ended after {stores} stores: {mended:?}"
                    );
                }
                let found = read(root(room))
                    .unwrap_or_else(|error| panic!("turn {turn}, {op:?} after {stores}: {error}"));
                let without = |number| {
                    let mut without = model.clone();
                    without.list.remove(number);
                    without
                };
                // The list of a key that was not in the map before.
                let empty = |key| {
                    let mut with = model.clone();
                    with.nested.entry(key).or_default();
                    with
                };
                let other = match op {
                    // The element is on its way.
                    Op::ToFront(number) if number < model.list.len() => found == without(number),
                    // Two operations.
                    Op::Add(key, _) => found == empty(key),
                    _ => false,
                };
                assert!(
                    ended && (found == model || other) || found == after,
                    "turn {turn}, {op:?} after {stores} stores"
                );
                check::check::<Everything>(Memory::of::<Everything>(room), Pages::All, false, None)
                    .unwrap();
                if !ended {
                    break;
                }
                // The operation can be run again.
                op.on(root(room)).unwrap();
                check::check::<Everything>(Memory::of::<Everything>(room), Pages::All, false, None)
                    .unwrap();
            }
            model = after;
            // Continues with the state after the whole operation.
            words.clone_from(&before);
            op.on(root(WritableSpan::of_words(&mut words))).unwrap();
        }
    }
    println!("ended {ends} times");
    assert!(ends > 5000);
}

#[test]
fn whatever_is_written_there_by_others_is_an_error_at_most() {
    let (mut errors, mut steps) = (0, 0);
    for seed in 0..150 {
        let mut words = vec![0; 1 << 12];
        let room = WritableSpan::of_words(&mut words);
        let mut random = Random(seed);
        for step in 0..400 {
            if step > 100 {
                let at =
                    if random.below(3) == 0 { random.below(50) } else { random.below(1 << 12) };
                let word = match random.below(5) {
                    0 => 0,
                    1 => random.below(1 << 15) / 16 * 16,
                    2 => random.below(1 << 15) / 16 * 16 + 8,
                    3 => u64::MAX - random.below(20),
                    _ => room.u64(random.below(1 << 12) as usize * 8).unwrap(),
                };
                room.put_u64(at as usize * 8, word).unwrap();
            }
            let done = match random.below(20) {
                0 => read(root(room)).map(drop),
                1 => check::check::<Everything>(
                    Memory::of::<Everything>(room),
                    Pages::All,
                    random.below(2) == 0,
                    None,
                ),
                2 if random.below(8) == 0 => {
                    Everything::clear(Memory::of::<Everything>(room).spot(0))
                }
                _ => Op::random(&mut random, 20).on(root(room)),
            };
            steps += 1;
            errors += u32::from(done.is_err());
        }
    }
    println!("{errors} of {steps} operations were refused");
    assert!(errors > 1000);
}

#[test]
fn plain_values_are_what_they_were() {
    let mut words = vec![0; 100];
    let room = WritableSpan::of_words(&mut words);
    let all = root(room);
    assert_eq!(all.point().get().unwrap().kind, Kind::None);
    for kind in [Kind::Pair(200, u64::MAX), Kind::Named { flag: true, letter: '€' }, Kind::None] {
        let point = Point { x: -0.5, y: f32::MAX, kind, of: [1, 2, u16::MAX], maybe: Some((3, 4)) };
        all.point().set(point).unwrap();
        assert_eq!(all.point().get(), Ok(point));
    }
    assert_eq!(all.number().update(|number| number + 7), Ok(7));
    assert_eq!(all.flag().get(), Ok(false));
    room.put_u8(0, 2).unwrap();
    assert!(matches!(all.flag().get(), Err(DataError::Corrupt { at: 0, .. })));
    // Layouts are those of C, and different ones have different shapes.
    let sizes = [
        <(u8, u64) as Plain>::SIZE,
        <Option<u16> as Plain>::SIZE,
        <[(u16, u8); 3] as Plain>::SIZE,
        <Kind as Plain>::SIZE,
    ];
    assert_eq!(sizes, [16, 4, 12, 16]);
    let shapes = [
        <u64 as Plain>::SHAPE,
        <i64 as Plain>::SHAPE,
        <(u64,) as Plain>::SHAPE,
        <[u64; 1] as Plain>::SHAPE,
        <Kind as Plain>::SHAPE,
        <Option<u64> as Plain>::SHAPE,
    ];
    assert!((0..6).all(|at| !shapes[..at].contains(&shapes[at])));
}

#[test]
fn keys_are_plain_values_and_bytes_too() {
    let mut words = vec![0; 1 << 14];
    let room = WritableSpan::of_words(&mut words);
    type Maps = Map<(u8, u32), Map<Blob, [u8; 100]>>;
    let outer = <Maps as Shared>::at(Memory::of::<Maps>(room).spot(0));
    for number in 0..20_u8 {
        let inner = outer.entry(&(number % 4, 7)).unwrap();
        assert_eq!(inner.insert(&[number; 70], [number; 100]), Ok(false));
        assert_eq!(inner.insert(&[number; 70], [number + 1; 100]), Ok(true));
    }
    assert_eq!(outer.len(), Ok(4));
    let inner = outer.get(&(3, 7)).unwrap().unwrap();
    assert_eq!((inner.len(), inner.get(&[3; 70]).unwrap().unwrap().get()), (Ok(5), Ok([4; 100])));
    assert!(inner.get(&[3; 69]).unwrap().is_none() && outer.get(&(3, 8)).unwrap().is_none());
    let mut keys = outer.iter().map(|found| found.unwrap().0).collect::<Vec<_>>();
    keys.sort_unstable();
    assert_eq!(keys, [(0, 7), (1, 7), (2, 7), (3, 7)]);
    // At some point there is no more room, and then nothing has changed.
    let before = inner.len().unwrap();
    let full = (0..1000_u16)
        .find_map(|key| inner.insert(&key.to_le_bytes(), [0; 100]).err().map(|error| (key, error)));
    let (added, error) = full.unwrap();
    assert!(matches!(error, DataError::Full { .. }), "{error}");
    assert_eq!(inner.len(), Ok(before + u64::from(added)));
    check::check::<Maps>(Memory::of::<Maps>(room), Pages::All, false, None).unwrap();
}

#[test]
fn what_is_only_read_cannot_be_written() {
    let mut words = vec![0; 1 << 12];
    let room = WritableSpan::of_words(&mut words);
    let mut random = Random(3);
    let mut model = Model::default();
    for _ in 0..60 {
        let op = Op::random(&mut random, 8);
        op.on(root(room)).unwrap();
        op.on_model(&mut model);
    }
    let memory = Memory::to_read::<Everything>(*room);
    let all = Everything::at(memory.spot(0));
    assert_eq!(read(all).as_ref(), Ok(&model));
    check::check::<Everything>(memory, Pages::All, false, None).unwrap();
    let writes = [
        Op::Set("x".into()),
        Op::PushBack("x".into()),
        Op::PushFront(String::new()),
        Op::Put(vec![1]),
        Op::Insert("new".into(), "x".into()),
        Op::Add(77, 1),
    ];
    for op in writes {
        assert_eq!(op.on(all), Err(DataError::ReadOnly), "{op:?}");
    }
    assert_eq!(all.flag().set(true), Err(DataError::ReadOnly));
    assert_eq!(all.point().update(|point| point), Err(DataError::ReadOnly));
    assert_eq!(read(root(room)).unwrap(), model);
}
