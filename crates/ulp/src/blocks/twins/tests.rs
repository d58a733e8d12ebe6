use super::*;
use crate::arena::ArenaNumber;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::collections::HashSet;
use std::ffi::c_void;
use std::thread;

const KIB: usize = 1 << 10;
/// Bytes of data in a block of 64 bytes.
const SMALL: usize = 48;

/// Address of an arena that no process of this test owns.
fn arena_at(number: u64) -> u64 {
    ARENAS + number * ARENA
}

fn name(address: u64, size: u32) -> BlockName {
    BlockName { address, size }
}

/// Number of mappings in an arena.
fn mappings(number: u64) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let starts =
        maps.lines().filter_map(|line| u64::from_str_radix(line.split_once('-')?.0, 16).ok());
    starts.filter(|start| (arena_at(number)..arena_at(number + 1)).contains(start)).count()
}

#[track_caller]
fn empty(name: BlockName, owner: u32) -> Block {
    match Block::adopt(name, owner) {
        Ok(Adopted::Empty(block)) => {
            assert_eq!((block.name(), block.holders()), (name, 1));
            assert!(!block.is_shared_afar());
            block
        }
        other => panic!("{other:?}"),
    }
}

/// As [`empty`], with all contents.
#[track_caller]
fn whole(name: BlockName, owner: u32) -> Block {
    let block = empty(name, owner);
    block.filled();
    block
}

#[track_caller]
fn here(name: BlockName, owner: u32) -> Block {
    match Block::adopt(name, owner) {
        Ok(Adopted::Here(block)) => {
            assert!(block.holders() > 1 && block.is_shared_afar());
            block
        }
        other => panic!("{other:?}"),
    }
}

/// Returns `true` if the next block of this thread, or one soon after it, is at this address.
fn is_used_again(name: BlockName) -> bool {
    let bytes = (1 << name.size) - super::super::HEAD;
    let next = (0..32).map(|_| Block::new(bytes).unwrap()).collect::<Vec<_>>();
    next.iter().any(|block| block.name() == name)
}

/// A block of this thread's own, which process 1 has too.
fn lent(bytes: usize, shared: bool) -> Block {
    let block = Block::new(bytes).unwrap();
    held_afar(block.name(), 1, shared).unwrap();
    assert_eq!(block.is_shared_afar(), shared);
    block
}

#[test]
fn an_address_is_used_again_after_all_processes_have_returned_it() {
    for bytes in [SMALL, 64 * KIB - 16, 2048 * KIB - 16] {
        let block = lent(bytes, true);
        let name = block.name();
        held_afar(name, 2, true).unwrap();
        held_afar(name, 2, true).unwrap();
        drop(block);
        assert!(!is_used_again(name));
        // A hollow block may get further copies, since they come from one of the others.
        held_afar(name, 3, true).unwrap();
        returned_from(name, 2);
        returned_from(name, 2);
        process_ended(3);
        returned_from(name, 4);
        assert!(!is_used_again(name));
        returned_from(name, 1);
        assert!(is_used_again(name));
        assert_eq!((KNOWN.get(), has_returned()), (0, false));
        assert_eq!(Block::adopt(name, 1).unwrap_err(), NotAdopted::NotLent);
    }
}

#[test]
fn the_end_of_a_process_returns_all_that_it_has() {
    let (held, shared) = (lent(SMALL, true), lent(SMALL, true));
    let names = [(); 2].map(|()| lent(SMALL, false).name());
    held_afar(names[0], 2, false).unwrap();
    held_afar(shared.name(), 2, true).unwrap();
    process_ended(1);
    assert!(!held.is_shared_afar() && shared.is_shared_afar());
    assert!(!is_used_again(names[0]) && is_used_again(names[1]));
    process_ended(2);
    assert!(!shared.is_shared_afar() && is_used_again(names[0]));
    assert_eq!(KNOWN.get(), 0);
}

#[test]
fn a_hollow_block_has_no_contents_and_comes_back_to_its_address() {
    for bytes in [SMALL, 64 * KIB - 16, 3000 * KIB] {
        let block = Block::written(bytes, |all| {
            all.fill(7);
            Some(())
        });
        let block = block.unwrap();
        held_afar(block.name(), 1, false).unwrap();
        let other = block.clone();
        let name = block.name();
        drop(block);
        assert_eq!(other.read(bytes), Some(vec![7; bytes]));
        drop(other);
        let block = empty(name, 1);
        if bytes > 32 * KIB {
            assert_eq!(block.read(bytes), Some(vec![0; bytes]));
        }
        block.fill(bytes - 3, b"end").unwrap();
        block.filled();
        // Process 1 has a copy too, so this one may come again.
        assert_eq!(here(name, 9).read(bytes).unwrap().last_chunk(), Some(b"end"));
        assert_eq!(block.holders(), 1);
        drop(block);
        drop(empty(name, 1));
        returned_from(name, 1);
        assert!(is_used_again(name));
    }
}

#[test]
fn holders_may_write_again_when_the_last_other_process_has_returned_the_block() {
    let block = lent(SMALL, false);
    held_afar(block.name(), 2, true).unwrap();
    assert_eq!((block.is_shared_afar(), block.holders()), (true, 1));
    // What a ULP reads is one word.
    // SAFETY: the block begins with this word.
    assert_eq!(unsafe { *(block.name().address as *const u64) }, 1 << 32 | 1);
    returned_from(block.name(), 1);
    assert!(block.is_shared_afar());
    returned_from(block.name(), 2);
    assert!(!block.is_shared_afar() && KNOWN.get() == 0);
    let name = block.name();
    drop(block);
    assert!(is_used_again(name));
    // Another block at the address is not shared.
    let block = lent(SMALL, true);
    let name = block.name();
    drop(block);
    returned_from(name, 1);
    assert!(!Block::new(SMALL).unwrap().is_shared_afar());
}

#[test]
fn a_twin_is_reported_to_its_owner_when_it_has_no_holder_and_its_arena_ends_with_the_last_one() {
    let names = [name(arena_at(220), 6), name(arena_at(220) + (1 << 30), 21)];
    let [first, second] = names.map(|name| whole(name, 5));
    assert_eq!(mappings(220), 2);
    first.fill(0, b"one").unwrap();
    let again = here(names[0], 5);
    assert_eq!(first.read(3).as_deref(), Some(&b"one"[..]));
    assert_eq!(Block::adopt(names[0], 6).unwrap_err(), NotAdopted::Owner);
    drop(first);
    assert_eq!((has_returned(), again.holders()), (false, 1));
    // Copies of other processes are no reason to write here again.
    assert!(again.is_shared_afar());
    drop(again);
    assert!(has_returned() && mappings(220) == 1);
    drop(second);
    assert_eq!((mappings(220), KNOWN.get()), (0, 0));
    assert_eq!(take_returned(), [(5, names[0]), (5, names[1])]);
    assert!(!has_returned() && take_returned().is_empty());
    // None of them was kept for other blocks.
    assert!(names.into_iter().all(|name| !is_used_again(name)));
    // A fresh one has no rest of the old one.
    let block = empty(names[0], 5);
    assert_eq!((block.read(3), mappings(220)), (Some(vec![0; 3]), 1));
}

#[test]
fn an_arena_of_which_all_copies_have_gone_can_become_an_own_one() {
    let name = name(arena_at(229), 6);
    let number = || ArenaNumber::take_this(229).unwrap();
    let block = empty(name, 1);
    assert!(arena::add(number()).is_err());
    drop(block);
    assert_eq!((mappings(229), take_returned()), (0, vec![(1, name)]));
    arena::add(number()).unwrap();
    assert_eq!(Block::adopt(name, 1).unwrap_err(), NotAdopted::NotLent);
}

#[test]
fn a_twin_that_is_adopted_again_was_never_returned() {
    let name = name(arena_at(223) + 64, 6);
    drop(empty(name, 1));
    let block = empty(name, 1);
    assert!(!has_returned());
    drop(block);
    // Another owner's report is another one.
    drop(empty(name, 2));
    assert_eq!(take_returned(), [(1, name), (2, name)]);
}

#[test]
fn only_a_block_with_one_holder_is_filled_and_only_within_its_bounds() {
    let block = empty(name(arena_at(226), 7), 1);
    block.fill(0, &[1; 112]).unwrap();
    block.fill(110, &[2; 2]).unwrap();
    block.fill(112, &[]).unwrap();
    for (offset, bytes) in [(0, 113), (111, 2), (113, 0), (usize::MAX, 1), (usize::MAX - 1, 2)] {
        assert_eq!(block.fill(offset, &vec![3; bytes]), Err(NotFilled::Bounds));
    }
    assert_eq!(block.lent(4, |_| block.fill(0, &[4])), Some(Err(NotFilled::Held)));
    block.share_afar();
    block.fill(0, &[5]).unwrap();
    let [mut all, end] = [vec![1; 110], vec![2; 2]];
    all[0] = 5;
    assert_eq!(block.read(112), Some([all, end].concat()));
    // Other blocks than twins.
    let own = Block::of(&[1; SMALL]).unwrap();
    own.fill(1, &[2]).unwrap();
    let other = own.clone();
    assert_eq!(own.fill(2, &[3]), Err(NotFilled::Held));
    assert_eq!(other.read(3), Some(vec![1, 2, 1]));
}

#[test]
fn who_adopts_a_block_while_it_is_filled_fills_it_too() {
    let own = lent(SMALL, false).name();
    for name in [name(arena_at(227), 6), own] {
        let first = empty(name, 1);
        first.fill(0, b"con").unwrap();
        let Ok(Adopted::Empty(second)) = Block::adopt(name, 1) else { panic!("filled") };
        assert_eq!((second.holders(), second.is_shared_afar()), (2, true));
        second.fill(0, b"cont").unwrap();
        // The first one is never completed.
        drop(first);
        let Ok(Adopted::Empty(third)) = Block::adopt(name, 1) else { panic!("filled") };
        second.fill(4, b"ents").unwrap();
        second.filled();
        let fourth = here(name, 1);
        // What comes late is the same.
        third.fill(0, b"****").unwrap();
        assert_eq!(third.fill(SMALL, b"*"), Err(NotFilled::Bounds));
        third.filled();
        assert_eq!(fourth.read(8).as_deref(), Some(&b"contents"[..]));
    }
    returned_from(own, 1);
    assert_eq!(KNOWN.get(), 0);
}

/// Names that no block can have.
fn no_names() -> Vec<BlockName> {
    let (first, end) = (arena_at(0), arena_at(ARENA_COUNT));
    let sizes = [0, 5, 34, 35, 63, 64, u32::MAX].map(|size| name(arena_at(230), size));
    let addresses = [0, 64, first - 64, end, end + ARENA, 1 << 63, u64::MAX - 63];
    let off = [(1, 6), (32, 6), (64, 7), (4096, 16), (1 << 32, 33)];
    let off = off.map(|(off, size)| name(arena_at(230) + off, size));
    [&sizes[..], &addresses.map(|address| name(address, 6)), &off].concat()
}

#[test]
fn a_wrong_name_changes_nothing() {
    let twin = empty(name(arena_at(230) + (1 << 21), 20), 1);
    let own = Block::of(b"own").unwrap();
    let lent = lent(100 * KIB, true);
    let kept = Block::new(SMALL).unwrap().name();
    let afar = thread::spawn(|| {
        // Stays taken, since the thread ends before the block is returned.
        let hollow = self::lent(SMALL, false).name();
        let block = Block::new(SMALL).unwrap();
        let name = block.name();
        mem::forget(block);
        [hollow, name]
    });
    let of_thread = afar.join().unwrap();
    let known = KNOWN.get();
    let wrong = no_names();
    for name in &wrong {
        assert_eq!(Block::adopt(*name, 1).unwrap_err(), NotAdopted::Name, "{name:x?}");
    }
    // In, around and beside the twin; and own blocks as twins.
    let at = twin.name().address;
    let over = [(at, 6), (at, 16), (at, 19), (at + (1 << 19), 19), (at, 21), (arena_at(230), 22)];
    let over = over.map(|(at, size)| name(at, size));
    for name in over {
        assert_eq!(Block::adopt(name, 1).unwrap_err(), NotAdopted::InUse, "{name:x?}");
    }
    let BlockName { address, size } = lent.name();
    let parts = [(address, 6), (address, size - 1), (address + (1 << (size - 1)), size - 1)];
    let parts = parts.map(|(address, size)| name(address, size));
    let mine = [own.name(), kept, of_thread[0], of_thread[1], name(arena_at(1) - (1 << 20), 20)];
    for name in parts.iter().chain(&mine) {
        assert_eq!(Block::adopt(*name, 1).unwrap_err(), NotAdopted::NotLent, "{name:x?}");
    }
    for name in wrong.iter().chain(&over).chain(&parts).chain(&mine[1..]).chain([&twin.name()]) {
        assert_eq!(held_afar(*name, 1, true), Err(NotLent::UnknownBlock), "{name:x?}");
    }
    wrong.iter().chain(&over).chain(&parts).chain(&mine).for_each(|name| returned_from(*name, 1));
    returned_from(twin.name(), 1);
    assert_eq!((KNOWN.get(), known, has_returned()), (2, 2, false));
    assert_eq!((own.holders(), own.is_shared_afar(), own.read(3)), (1, false, Some(b"own".into())));
    assert_eq!((twin.holders(), twin.is_shared_afar(), mappings(230)), (1, false, 1));
    assert_eq!((lent.holders(), lent.is_shared_afar()), (1, true));
    assert!(!is_used_again(of_thread[0]) && is_used_again(kept));
}

#[test]
fn another_mapping_at_an_address_stays_and_no_arena_is_begun() {
    let at = arena_at(233) + (6 << 21);
    let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
    // SAFETY: nothing is mapped there, or the kernel refuses.
    let other = unsafe { mmap_anonymous(at as *mut c_void, 4096, ProtFlags::READ, flags) };
    let other = other.unwrap();
    for (address, size) in [(at, 6), (at + (1 << 20), 20), (at, 21), (arena_at(233), 33)] {
        assert_eq!(Block::adopt(name(address, size), 1).unwrap_err(), NotAdopted::InUse);
    }
    assert_eq!((mappings(233), KNOWN.get(), has_returned()), (1, 0, false));
    drop(empty(name(at + (1 << 21), 21), 1));
    assert_eq!(mappings(233), 1);
    // SAFETY: the mapping is this test's.
    unsafe { munmap(other, 4096) }.unwrap();
    drop(empty(name(at, 21), 1));
    assert_eq!(mappings(233), 0);
}

#[test]
fn threads_of_a_process_do_not_have_twins_of_each_other() {
    let name = name(arena_at(236), 12);
    let twin = empty(name, 1);
    let adopted = thread::spawn(move || Block::adopt(name, 1).unwrap_err()).join().unwrap();
    assert_eq!(adopted, NotAdopted::InUse);
    drop(twin);
    let adopted = thread::spawn(move || {
        drop(empty(name, 2));
        take_returned()
    });
    assert_eq!((adopted.join().unwrap(), take_returned()), (vec![(2, name)], vec![(1, name)]));
}

#[test]
fn ten_thousand_twins_come_and_go() {
    let size = |number: u64| 6 + (number % 7) as u32;
    let names = (0..10_000).map(|number| name(arena_at(239) + (number << 12), size(number)));
    let names = names.collect::<Vec<_>>();
    for _ in 0..2 {
        let twins = names.iter().map(|name| empty(*name, 1)).collect::<Vec<_>>();
        assert_eq!(KNOWN.get(), names.len());
        drop(twins);
    }
    assert_eq!((mappings(239), KNOWN.get()), (0, 0));
    let returned = take_returned();
    assert!(returned.iter().map(|(_, name)| name).eq(&names));
    let lent = names.iter().map(|_| self::lent(SMALL, true)).collect::<Vec<_>>();
    let lent = lent.into_iter().map(|block| block.name()).collect::<Vec<_>>();
    let taken = (0..names.len()).map(|_| Block::new(SMALL).unwrap()).collect::<Vec<_>>();
    let names = lent.iter().collect::<HashSet<_>>();
    assert!(taken.iter().all(|block| !names.contains(&block.name())));
    process_ended(1);
    assert_eq!(KNOWN.get(), 0);
}
