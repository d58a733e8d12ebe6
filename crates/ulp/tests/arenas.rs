//! Blocks: their addresses, and their memory.

mod common;

use common::{apart, over};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::{fs, thread};
use upcall_ulp::arena::{self, ArenaNumber};
use upcall_ulp::twins::{self, Adopted, BlockName};
use upcall_ulp::{Block, Worker};

/// Address and size of the arenas, as in `layout.rs`.
const FIRST: u64 = if cfg!(upcall_asan) { 31 << 40 } else { 15 << 40 };
const ARENA: u64 = 16 << 30;
/// Bytes of a block before its data.
const HEAD: usize = 16;

fn arena_of(block: &Block) -> u64 {
    (block.address() - FIRST) / ARENA
}

fn filled(bytes: usize, with: u8) -> Block {
    let fill = |all: &mut [u8]| {
        all.fill(with);
        Some(())
    };
    Block::written(bytes, fill).unwrap()
}

/// A number of KiB in /proc/self/status.
fn kib(what: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(what)?.strip_prefix(':')).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn workers_of_one_process_have_blocks_apart_and_what_one_leaves_is_used_again() {
    let Some(folder) =
        apart("workers_of_one_process_have_blocks_apart_and_what_one_leaves_is_used_again")
    else {
        return;
    };
    let blocks = |with: u8| {
        let sizes = (0..300).map(|number| 1 << (number % 17));
        sizes.map(|bytes| filled(bytes, with)).collect::<Vec<_>>()
    };
    let check = |blocks: &[Block], with: u8| {
        for block in blocks {
            assert_eq!(arena_of(block), 0);
            let bytes = block.read(1).unwrap();
            assert_eq!(bytes, [with]);
        }
        let mut all = blocks.iter().map(Block::address).collect::<Vec<_>>();
        all.sort_unstable();
        all
    };
    let _worker = Worker::begin().unwrap();
    let own = blocks(1);
    let theirs = thread::spawn(move || {
        let _worker = Worker::begin().unwrap();
        let more = blocks(2);
        check(&more, 2)
    });
    let theirs = theirs.join().unwrap();
    let own = check(&own, 1);
    assert!(theirs.iter().all(|address| own.binary_search(address).is_err()));
    // The other thread's blocks went back when it ended.
    let again = check(&blocks(3), 3);
    assert!(again.iter().any(|address| theirs.binary_search(address).is_ok()));
    over(folder)
}

#[test]
fn addresses_that_are_taken_are_reported_with_the_way_out() {
    let Some(folder) = apart("addresses_that_are_taken_are_reported_with_the_way_out") else {
        return;
    };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: nothing is mapped there, or the kernel refuses.
    let at = unsafe { libc::mmap(FIRST as *mut _, 4096, libc::PROT_NONE, flags, -1, 0) };
    assert_eq!(at as u64, FIRST);
    let said = Worker::begin().unwrap_err().to_string();
    let place = format!("at {FIRST:#x} to {:#x}: ", FIRST + ARENA);
    let told = [&place, "exists", "`ulimit -s 8192`"];
    assert!(told.iter().all(|one| said.contains(one)), "{said}");
    assert!(Block::new(1).is_none());
    // SAFETY: the mapping is this test's.
    assert_eq!(unsafe { libc::munmap(at, 4096) }, 0);
    let _worker = Worker::begin().unwrap();
    assert_eq!(Block::new(1).map(|block| block.address()), Some(FIRST + HEAD as u64));
    over(folder)
}

#[test]
fn a_process_has_the_arenas_that_it_was_given() {
    let Some(folder) = apart("a_process_has_the_arenas_that_it_was_given") else { return };
    let number = |number| ArenaNumber::take_this(number).unwrap();
    let worker = Worker::begin_in(number(7)).unwrap();
    assert!(ArenaNumber::take_this(7).is_none());
    assert_eq!(arena_of(&Block::new(100).unwrap()), 7);
    drop(worker);
    let said = Worker::begin_in(number(8)).unwrap_err().to_string();
    assert!(said.contains("arena 7 already"), "{said}");
    let _worker = Worker::begin().unwrap();
    // Only what is touched of these takes memory.
    let blocks = |count: usize, bytes: usize| {
        (0..count).map(|_| Block::new(bytes - HEAD).unwrap()).collect::<Vec<_>>()
    };
    let first = blocks(1, 4 << 30);
    assert!(!arena::wants_more());
    let second = blocks(2, 4 << 30);
    assert!(first.iter().chain(&second).all(|block| arena_of(block) == 7));
    assert_eq!([(); 2].map(|()| arena::wants_more()), [true, false]);
    assert!(Block::new((8 << 30) - HEAD).is_none());
    arena::add(number(9)).unwrap();
    assert!(!arena::wants_more());
    assert_eq!(arena_of(&blocks(1, 8 << 30)[0]), 9);
    assert!(Block::new((8 << 30) - HEAD + 1).is_none() && Block::new(usize::MAX).is_none());
    // The last one was given back at once, and its arena is as it was.
    let halves = blocks(2, 8 << 30);
    assert!(halves.iter().all(|block| arena_of(block) == 9) && arena::wants_more());
    over(folder)
}

#[test]
fn a_limit_of_addresses_refuses_a_block_and_harms_no_other() {
    let Some(folder) = apart("a_limit_of_addresses_refuses_a_block_and_harms_no_other") else {
        return;
    };
    let _worker = Worker::begin().unwrap();
    let small = filled(1000, 7);
    let most = kib("VmSize") * 1024 + (300 << 20);
    let limit = libc::rlimit { rlim_cur: most, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: sets a limit of this process.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) }, 0);
    for _ in 0..3 {
        assert!(Block::new(1 << 30).is_none() && Block::new((512 << 20) - HEAD).is_none());
        let large = filled((64 << 20) - HEAD, 9);
        // It is kept for reuse until other sizes need its memory.
        drop(large);
        assert_eq!(filled((256 << 20) - HEAD, 3).read(1), Some(vec![3]));
    }
    let many = (0..).map_while(|_| Block::new((1 << 20) - HEAD)).collect::<Vec<_>>();
    assert!((250..=310).contains(&many.len()), "{}", many.len());
    assert_eq!(small.read(1000), Some(vec![7; 1000]));
    drop(many);
    assert!(Block::new(128 << 20).is_some());
    over(folder)
}

#[test]
fn memory_of_blocks_that_nobody_holds_goes_back_to_the_kernel() {
    let Some(folder) = apart("memory_of_blocks_that_nobody_holds_goes_back_to_the_kernel") else {
        return;
    };
    let worker = Worker::begin().unwrap();
    let before = kib("RssAnon");
    let sizes = [24, 1000, 5000, 30_000, 100_000, 3 << 20];
    for bytes in sizes {
        let all = (0..(128 << 20) / bytes.max(256)).map(|_| filled(bytes, 1)).collect::<Vec<_>>();
        let (with, count) = (kib("RssAnon") - before, all.len());
        assert!(with as usize >= count * bytes / 1024, "{bytes}: {with} KiB");
        drop(all);
        // What is kept of all sizes has 64 MiB together. To keep account of it takes some more.
        let left = kib("RssAnon").saturating_sub(before);
        assert!(left < 88 << 10, "{bytes}: {left} KiB of {with} KiB are left");
    }
    drop(worker);
    thread::spawn(move || {
        let _worker = Worker::begin().unwrap();
        let all = (0..1000).map(|_| filled(60_000, 1)).collect::<Vec<_>>();
        assert!(kib("RssAnon") > before + 50_000);
        drop(all);
    })
    .join()
    .unwrap();
    let left = kib("RssAnon").saturating_sub(before);
    assert!(left < 88 << 10, "{left} KiB are left");
    over(folder)
}

/// The variable that makes this program the second process of a test.
const SECOND: &str = "ULP_SECOND";
/// Name of the test that has two processes.
const TWO: &str = "a_block_is_at_one_address_in_two_processes";

/// A process with arena 2, which executes commands.
struct Second {
    child: Child,
    said: BufReader<ChildStdout>,
}

impl Second {
    fn start() -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", TWO, "--nocapture", "--test-threads=1"])
            .env(SECOND, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        Self { child, said }
    }

    /// Sends a command about a block, and returns the answer.
    fn ask(&mut self, what: &str, name: BlockName) -> String {
        let BlockName { address, size } = name;
        writeln!(self.child.stdin.as_ref().unwrap(), "{what} {address} {size}").unwrap();
        // The test harness writes to standard output too.
        loop {
            let mut line = String::new();
            assert!(self.said.read_line(&mut line).unwrap() > 0, "the second process has ended");
            if let Some((_, answer)) = line.split_once("answer: ") {
                break answer.trim_end().to_owned();
            }
        }
    }
}

/// Runs the second process until standard input ends.
fn be_second() -> ! {
    let _worker = Worker::begin_in(ArenaNumber::take_this(2).unwrap()).unwrap();
    let mut blocks = Vec::new();
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let words = line.split(' ').collect::<Vec<_>>();
        let number = |at: usize| words[at].parse::<u64>().unwrap();
        let name = BlockName { address: number(1), size: number(2) as u32 };
        let at = blocks.iter().position(|block: &Block| block.name() == name);
        let answer = match words[0] {
            "adopt" => match Block::adopt(name, 1) {
                Ok(Adopted::Empty(block)) => {
                    block.fill(0, &block.address().to_le_bytes()).unwrap();
                    block.filled();
                    blocks.push(block);
                    "empty".to_owned()
                }
                Ok(Adopted::Here(block)) => {
                    blocks.push(block);
                    "here".to_owned()
                }
                Err(error) => error.to_string(),
            },
            "read" => {
                let bytes = blocks[at.unwrap()].read(8).unwrap();
                u64::from_le_bytes(bytes.try_into().unwrap()).to_string()
            }
            "drop" => {
                drop(blocks.swap_remove(at.unwrap()));
                format!("{:?}", twins::take_returned())
            }
            "new" => {
                let block = Block::new(100_000).unwrap();
                twins::held_afar(block.name(), 1, true).unwrap();
                let address = block.name().address;
                blocks.push(block);
                address.to_string()
            }
            "returned" => {
                twins::returned_from(name, 1);
                blocks[at.unwrap()].is_shared_afar().to_string()
            }
            other => panic!("{other}"),
        };
        println!("answer: {answer}");
    }
    std::process::exit(0)
}

#[test]
fn a_block_is_at_one_address_in_two_processes() {
    let Some(folder) = apart(TWO) else { return };
    if std::env::var_os(SECOND).is_some() {
        drop(folder);
        be_second();
    }
    let _worker = Worker::begin_in(ArenaNumber::take_this(1).unwrap()).unwrap();
    let mut second = Second::start();
    // A block goes there and comes back.
    let block = Block::new(100).unwrap();
    let (name, address) = (block.name(), block.address());
    twins::held_afar(name, 2, false).unwrap();
    assert_eq!(second.ask("adopt", name), "empty");
    drop(block);
    assert_eq!(second.ask("read", name), address.to_string());
    assert_ne!(Block::new(100).unwrap().name(), name);
    let Ok(Adopted::Empty(block)) = Block::adopt(name, 2) else { panic!("not hollow") };
    assert_eq!((block.address(), block.holders()), (address, 1));
    // While both have it, the contents are not sent again.
    block.share_afar();
    assert_eq!(second.ask("adopt", name), "here");
    assert_eq!(second.ask("drop", name), "[]");
    assert_eq!(second.ask("drop", name), format!("{:?}", [(1, name)]));
    twins::returned_from(name, 2);
    assert!(!block.is_shared_afar());
    // A block of the second process comes here, and goes.
    let address = second.ask("new", name).parse().unwrap();
    let theirs = BlockName { address, size: 17 };
    assert_eq!((address - FIRST) / ARENA, 2);
    let Ok(Adopted::Empty(twin)) = Block::adopt(theirs, 2) else { panic!("no twin") };
    let error = arena::add(ArenaNumber::take_this(2).unwrap()).unwrap_err().to_string();
    let place = format!("{:#x}", FIRST + 2 * ARENA);
    assert!(error.contains(&place) && error.contains("exists"), "{error}");
    assert!(!twins::has_returned());
    drop(twin);
    assert_eq!(twins::take_returned(), [(2, theirs)]);
    assert_eq!(second.ask("returned", theirs), "false");
    // What a process has when it is killed is free then.
    twins::held_afar(name, 2, true).unwrap();
    assert_eq!(second.ask("adopt", name), "empty");
    drop(block);
    second.child.kill().unwrap();
    second.child.wait().unwrap();
    assert_ne!(Block::new(100).unwrap().name(), name);
    twins::process_ended(2);
    assert_eq!(Block::new(100).unwrap().name(), name);
    over(folder)
}
