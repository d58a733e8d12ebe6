use super::mapped::{ArenaMemory, GRANULE, Kernel, MappedArena};
use super::tree::{LINE, SPAN, WHOLE};
use super::*;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

/// Numbers that look random, the same ones for each seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % end
    }
}

/// A kernel that only keeps account, and may refuse.
#[derive(Default)]
struct Account {
    /// What is mapped, by granule, and whether its pages are small.
    mapped: BTreeMap<u64, bool>,
    /// The ends of the blocks that are taken, by address.
    taken: BTreeMap<u64, u64>,
    /// Spans that a block has touched since they were mapped or emptied.
    touched: BTreeMap<u64, ()>,
    /// Granules that stayed mapped since it refused to unmap them.
    stayed: BTreeMap<u64, ()>,
    /// Granules with mappings of others.
    others: Vec<u64>,
    refuses_to_map: bool,
    refuses_to_unmap: bool,
}

#[derive(Clone, Default)]
struct Model(Rc<RefCell<Account>>);

fn pieces(range: &Range<u64>, size: u32) -> Range<u64> {
    assert!(range.start.is_multiple_of(1 << size) && range.end.is_multiple_of(1 << size));
    assert!(range.start < range.end);
    range.start >> size..range.end >> size
}

impl Account {
    /// Returns `true` if a block lies in the range, or in a part of it.
    fn is_taken(&self, range: &Range<u64>) -> bool {
        self.taken.range(..range.end).next_back().is_some_and(|(_, end)| *end > range.start)
    }
}

impl ArenaMemory for Model {
    fn map(&mut self, range: Range<u64>, small: bool) -> Result<(), Errno> {
        let mut account = self.0.borrow_mut();
        let granules = pieces(&range, GRANULE);
        if account.refuses_to_map {
            return Err(Errno::NOMEM);
        }
        if account.others.iter().any(|other| granules.contains(other)) {
            return Err(Errno::EXIST);
        }
        for granule in granules {
            assert_eq!(account.mapped.insert(granule, small), None, "mapped twice");
        }
        Ok(())
    }

    fn unmap(&mut self, range: Range<u64>) -> Result<(), Errno> {
        let mut account = self.0.borrow_mut();
        let granules = pieces(&range, GRANULE);
        assert!(!account.is_taken(&range), "unmapped a block");
        if account.refuses_to_unmap {
            granules.for_each(|granule| _ = account.stayed.insert(granule, ()));
            return Err(Errno::NOMEM);
        }
        for granule in granules {
            account.stayed.remove(&granule);
            assert!(account.mapped.remove(&granule).is_some(), "unmapped what is not mapped");
        }
        drop(account);
        self.empty(range);
        Ok(())
    }

    fn empty(&mut self, range: Range<u64>) {
        let mut account = self.0.borrow_mut();
        assert!(!account.is_taken(&range), "emptied a block");
        pieces(&range, SPAN).for_each(|span| _ = account.touched.remove(&span));
    }
}

/// An arena, and what it has to have done.
struct Checked {
    arena: MappedArena<Model>,
    model: Model,
    whole: Range<u64>,
}

impl Checked {
    fn new(number: u32) -> Self {
        let (model, start) = (Model::default(), ARENAS + u64::from(number) * ARENA);
        let arena = MappedArena::new(number, model.clone()).unwrap();
        Self { arena, model, whole: start..start + ARENA }
    }

    /// A block that is taken.
    fn any(&self, dice: &mut Dice) -> Option<u64> {
        let taken = &self.model.0.borrow().taken;
        taken.keys().nth(dice.below(taken.len().max(1) as u64) as usize).copied()
    }

    fn take(&mut self, size: u32) -> Option<u64> {
        let at = self.arena.take(size)?;
        self.taken(at, size);
        Some(at)
    }

    /// Takes this place if it is free, also if another one is lower.
    fn take_this(&mut self, at: u64, size: u32) -> Result<(), NotPlaced> {
        let range = at..at + (1 << size);
        let is_free = !self.model.0.borrow().is_taken(&range);
        let mapped = self.model.0.borrow().mapped.len();
        let result = self.arena.take_this(at, size);
        let refuses = self.model.0.borrow().refuses_to_map;
        match result {
            Ok(()) => {
                assert!(is_free);
                self.taken(at, size);
            }
            Err(NotPlaced::InUse) => assert!(!is_free),
            Err(NotPlaced::NoMemory) => assert!(is_free && refuses),
        }
        assert!(result.is_ok() || self.model.0.borrow().mapped.len() == mapped);
        result
    }

    /// Checks a block that was taken just now.
    fn taken(&mut self, at: u64, size: u32) {
        let end = at + (1 << size);
        assert!(self.arena.has(at, size));
        assert!(at.is_multiple_of(1 << size), "{at:#x} is not aligned to 2^{size}");
        assert!(self.whole.contains(&at) && end <= self.whole.end);
        let mut account = self.model.0.borrow_mut();
        assert!(!account.is_taken(&(at..end)), "{at:#x} is in another block");
        account.taken.insert(at, end);
        for granule in at >> GRANULE..end.div_ceil(1 << GRANULE) {
            let small = account.mapped.get(&granule);
            let stayed = size >= GRANULE || account.stayed.contains_key(&granule);
            assert!(small.is_some_and(|small| *small || stayed), "2^{size} at {at:#x}");
        }
        // The block is written to at its beginning and at its end.
        account.touched.extend([at, end - 1].map(|at| (at >> SPAN, ())));
    }

    /// A place of this size: near a block, or anywhere.
    fn place(&self, dice: &mut Dice, size: u32) -> u64 {
        let anywhere = self.whole.start + dice.below(ARENA);
        let near = self.any(dice).filter(|_| dice.below(8) > 0);
        let at = near.map_or(anywhere, |near| near + (dice.below(3) << size)) >> size << size;
        at.min(self.whole.end - (1 << size))
    }

    /// Drops the contents of a block.
    fn empty(&mut self, at: u64) {
        let end = self.model.0.borrow_mut().taken.remove(&at).unwrap();
        self.arena.empty(at, (end - at).trailing_zeros());
        let mut account = self.model.0.borrow_mut();
        let has_spans = end - at >= 1 << SPAN;
        let is_left = account.touched.range(at >> SPAN..end >> SPAN).next().is_some();
        assert!(!(has_spans && is_left), "{at:#x} keeps its contents");
        account.touched.extend([at, end - 1].map(|at| (at >> SPAN, ())));
        account.taken.insert(at, end);
    }

    fn give(&mut self, at: u64) {
        let end = self.model.0.borrow_mut().taken.remove(&at).unwrap();
        assert!(self.arena.give(at, (end - at).trailing_zeros()));
        // No memory is left of spans without blocks.
        let account = self.model.0.borrow();
        for span in [at >> SPAN, (end - 1) >> SPAN] {
            let is_used = account.is_taken(&(span << SPAN..(span + 1) << SPAN));
            let is_touched = account.touched.contains_key(&span);
            assert!(is_used || !is_touched, "{:#x} is not given back", span << SPAN);
        }
    }

    /// Tries to give back what is not taken, or not in this size.
    fn give_wrongly(&mut self, dice: &mut Dice) {
        let size = LINE + dice.below(u64::from(WHOLE - LINE)) as u32;
        let anywhere = self.whole.start + (dice.below(ARENA >> LINE) << LINE);
        let at = self.any(dice).map_or(anywhere, |near| near + (dice.below(3) << LINE));
        let end = self.model.0.borrow().taken.get(&at).copied();
        assert_eq!(self.arena.has(at, size), end == Some(at + (1 << size)));
        if end != Some(at + (1 << size)) {
            assert!(!self.arena.give(at, size), "2^{size} at {at:#x} was not taken");
        }
    }
}

/// A size: most are small, some about that of a span or of a granule, and few are any.
fn size(dice: &mut Dice) -> u32 {
    match dice.below(64) {
        0 => LINE + dice.below(u64::from(MOST + 1 - LINE)) as u32,
        1..10 => SPAN - 2 + dice.below(5) as u32,
        10..20 => GRANULE - 2 + dice.below(5) as u32,
        _ => LINE + dice.below(8) as u32,
    }
}

fn takes_and_gives(seed: u64) {
    let (mut dice, mut checked) = (Dice(seed), Checked::new((seed % 256) as u32));
    for round in 0..2000 {
        // It fills at first, then empties, and so on.
        let fills = if round / 500 % 2 == 0 { 6 } else { 3 };
        {
            let mut account = checked.model.0.borrow_mut();
            account.refuses_to_map = dice.below(20) == 0;
            account.refuses_to_unmap = dice.below(20) == 0;
        }
        match dice.below(10) {
            one if one < fills && dice.below(3) == 0 => {
                let size = size(&mut dice);
                let _ = checked.take_this(checked.place(&mut dice, size), size);
            }
            one if one < fills => {
                let (size, room) = (size(&mut dice), checked.arena.has_half());
                let refuses = checked.model.0.borrow().refuses_to_map;
                let taken = checked.take(size);
                assert!(taken.is_some() || refuses || !room, "no room for 2^{size}");
            }
            9 => checked.give_wrongly(&mut dice),
            8 => checked.any(&mut dice).into_iter().for_each(|at| checked.empty(at)),
            _ => {
                let at = checked.any(&mut dice);
                at.into_iter().for_each(|at| checked.give(at));
            }
        }
    }
    let all = checked.model.0.borrow().taken.keys().copied().collect::<Vec<_>>();
    checked.model.0.borrow_mut().refuses_to_unmap = false;
    all.into_iter().for_each(|at| checked.give(at));
    assert!(checked.model.0.borrow().touched.is_empty());
    // The whole arena is one place again.
    checked.model.0.borrow_mut().refuses_to_map = false;
    let halves = [MOST; 2].map(|half| checked.take(half).unwrap());
    assert_eq!((halves[1] - halves[0], checked.take(LINE)), (1 << MOST, None));
    halves.into_iter().for_each(|half| checked.give(half));
    assert_eq!(checked.model.0.borrow().mapped.len(), 0);
}

#[test]
fn blocks_of_any_sizes_never_overlap_and_all_is_given_back() {
    for seed in 1..=20 {
        let done = std::panic::catch_unwind(|| takes_and_gives(seed));
        assert!(done.is_ok(), "with seed {seed}");
    }
}

#[test]
fn small_blocks_share_pages_and_what_is_low_is_used_first() {
    let mut checked = Checked::new(0);
    let all = (0..64).map(|_| checked.take(LINE).unwrap()).collect::<Vec<_>>();
    assert_eq!(all, (0..64).map(|line| ARENAS + line * 64).collect::<Vec<_>>());
    let page = checked.take(12).unwrap();
    assert_eq!(page, ARENAS + 4096);
    checked.give(all[7]);
    assert_eq!((checked.take(LINE), checked.take(LINE)), (Some(all[7]), Some(ARENAS + 8192)));
    // Long ones begin a granule, in which pages may be huge.
    assert_eq!(checked.take(GRANULE), Some(ARENAS + (1 << GRANULE)));
    let small = checked.model.0.borrow().mapped.values().copied().collect::<Vec<_>>();
    assert_eq!(small, [true, false]);
}

#[test]
fn addresses_where_another_mapping_is_are_left_out() {
    let mut checked = Checked::new(3);
    let first = checked.whole.start >> GRANULE;
    checked.model.0.borrow_mut().others = vec![first, first + 1, first + 6];
    assert_eq!(checked.take(LINE), Some((first + 2) << GRANULE));
    assert_eq!(checked.take(GRANULE + 2), Some((first + 8) << GRANULE));
    let at = checked.take(GRANULE).unwrap();
    assert_eq!(at, (first + 3) << GRANULE);
    checked.give(at);
    assert_eq!(checked.take(SPAN + 4), Some(((first + 2) << GRANULE) + (1 << (SPAN + 4))));
}

#[test]
fn a_certain_place_is_taken_once_and_only_if_all_of_it_is_free() {
    let mut checked = Checked::new(4);
    let start = checked.whole.start;
    let at = start + (1 << MOST) + (5 << SPAN);
    assert_eq!(checked.take_this(at, LINE), Ok(()));
    // The block itself, what it is in, and each place within another block.
    for size in LINE..=MOST {
        assert_eq!(checked.take_this(at >> size << size, size), Err(NotPlaced::InUse));
    }
    checked.give(at);
    assert_eq!(checked.take_this(start + (1 << MOST), MOST), Ok(()));
    for size in LINE..=MOST {
        assert_eq!(checked.take_this(at >> size << size, size), Err(NotPlaced::InUse));
    }
    // Where another mapping is, there is no block, although the place is taken.
    checked.model.0.borrow_mut().others = vec![start >> GRANULE, (start >> GRANULE) + 4];
    let beside = start + (4 << GRANULE);
    assert_eq!(checked.arena.take_this(beside, GRANULE), Err(NotPlaced::InUse));
    assert_eq!(checked.take(GRANULE), Some(start + (1 << GRANULE)));
    assert!(!checked.arena.has(start, GRANULE) && !checked.arena.has(beside, GRANULE));
    // An arena ends only without blocks, and without memory that the kernel keeps mapped.
    assert!(!checked.arena.end());
    checked.give(start + (1 << MOST));
    checked.model.0.borrow_mut().refuses_to_unmap = true;
    checked.give(start + (1 << GRANULE));
    assert!(!checked.arena.end());
}

#[test]
fn a_half_that_is_taken_is_reason_for_another_arena() {
    let mut checked = Checked::new(1);
    let one = checked.take(LINE).unwrap();
    assert!(checked.arena.has_half());
    let half = checked.take(MOST).unwrap();
    assert!(!checked.arena.has_half() && checked.take(MOST).is_none());
    checked.give(half);
    assert!(checked.arena.has_half());
    checked.give(one);
}

/// Resident bytes of this process in a range of addresses, and the number of mappings there.
fn resident(range: &Range<u64>) -> (u64, usize) {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let (mut bytes, mut mappings, mut is_here) = (0, 0, false);
    for line in smaps.lines() {
        let (first, rest) = line.split_once(' ').unwrap_or((line, ""));
        if let Some((start, _)) = first.split_once('-') {
            is_here = u64::from_str_radix(start, 16).is_ok_and(|start| range.contains(&start));
            mappings += usize::from(is_here);
        } else if is_here && first == "Rss:" {
            bytes += rest.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10;
        }
    }
    (bytes, mappings)
}

#[test]
fn the_kernel_gives_pages_as_they_are_touched_and_takes_them_back() {
    let mut arena = MappedArena::new(201, Kernel).unwrap();
    arena.begin().unwrap();
    let whole = ARENAS + 201 * ARENA..ARENAS + 202 * ARENA;
    let fill = |at: u64, bytes: u64| {
        for page in (at..at + bytes).step_by(4096) {
            // SAFETY: the block is this test's, and has that many bytes.
            unsafe { (page as *mut u64).write(1) };
        }
    };
    let small = (0..65).map(|_| arena.take(LINE).unwrap()).collect::<Vec<_>>();
    small.iter().for_each(|at| fill(*at, 64));
    assert_eq!(resident(&whole), (2 * 4096, 1));
    // To the kernel, neighbours are one mapping together.
    let large = (0..12).map(|_| arena.take(GRANULE - 1).unwrap()).collect::<Vec<_>>();
    large.iter().for_each(|at| fill(*at, 1 << (GRANULE - 1)));
    assert_eq!(resident(&whole), (2 * 4096 + (12 << (GRANULE - 1)), 1));
    // A half of the first granule is empty, with the small ones beside it; the others are gone.
    large.iter().for_each(|at| assert!(arena.give(*at, GRANULE - 1)));
    assert_eq!(resident(&whole), (2 * 4096, 1));
    small.iter().for_each(|at| assert!(arena.give(*at, LINE)));
    assert_eq!(resident(&whole), (0, 0));
    // Of a long one only what is touched takes memory.
    let half = arena.take(MOST).unwrap();
    fill(half + (1 << 32), 4096);
    assert_eq!(resident(&whole), (4096, 1));
    assert!(arena.give(half, MOST) && resident(&whole) == (0, 0));
}

#[test]
fn numbers_are_taken_once_and_the_first_is_for_who_was_given_none() {
    let all = std::iter::from_fn(ArenaNumber::take).collect::<Vec<_>>();
    assert!(all.iter().all(|one| one.number() != 0) && all.len() < ARENA_COUNT as usize);
    assert!(ArenaNumber::take_this(ARENA_COUNT as u32).is_none());
    let mut numbers = all.into_iter();
    let given = numbers.next().unwrap().number();
    assert_eq!(ArenaNumber::take_this(given).map(|one| one.number()), Some(given));
    assert!(numbers.next().is_some_and(|one| ArenaNumber::take_this(one.number()).is_none()));
}

#[test]
fn where_the_kernel_maps_among_slots_and_arenas_is_too_low() {
    // As if the first slot were at 1 TiB.
    let tib = |tib: u64| FIRST + ((tib - 1) << 40);
    assert!([tib(1), tib(5), tib(15), tib(19), tib(20) - 1].into_iter().all(is_low));
    // Below all of them, as with an unlimited stack, and as usual.
    assert!(![0xf7ff_f000, tib(20), tib(21), tib(42), tib(127)].into_iter().any(is_low));
    assert!(place_of_mappings().is_some());
    let told = NoArena::Low { address: 6 << 40 }.to_string();
    assert!(told.contains("0x60000000000") && told.contains("ulimit -s 8192"), "{told}");
}
