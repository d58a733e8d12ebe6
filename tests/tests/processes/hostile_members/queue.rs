//! What a hostile member writes into the queue that it has brought.

use super::{
    Brought, DISPOSED, DIVERTED, HOME, LATE_MS, MESSAGE, NESTED, NUMBER, Opened, SEGMENT,
    SEGMENT_BYTES, SEGMENT_WORDS, STRIDE, Scene, TEXT, WORDS, WRAP, answer, answer_of, connect,
    header, pack,
};
use crate::in_company;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use upcall_os::doorbell::Doorbell;
use upcall_shm::direct::Outgoing;
use upcall_shm::mailbag::Mailbag;
use upcall_shm::region::RegionView;
use upcall_tests::dice::Dice;
use upcall_tests::place::AtLast;

type Fault = fn(&Brought);

/// The kind of the parts of collective operations, and a broadcast of `u64` from member 0.
const PART: u16 = u16::MAX;
const BROADCAST: u64 = 1 << 40;

/// Faults in the queue, and a part of what the receiver reports about each.
const FAULTS: [(&str, Fault, &str); 34] = [
    ("no header", |queue| queue.put(0, &[1]), "is-not-a-message-header"),
    ("all bits", |queue| queue.put(0, &[u64::MAX]), "is-not-a-message-header"),
    ("a wrap at the beginning", |queue| queue.put(0, &[WRAP]), "is-not-a-message-header"),
    ("a way home from home", |queue| queue.put(0, &[HOME]), "is-not-a-message-header"),
    ("the second segment first", |queue| queue.put(0, &[SEGMENT | 1]), "is-not-a-message-header"),
    (
        "a segment far away",
        |queue| queue.put(0, &[SEGMENT | (SEGMENT - 1)]),
        "is-not-a-message-header",
    ),
    (
        "a segment longer than any",
        |queue| queue.put(0, &[SEGMENT | 11 << 52]),
        "is-not-a-message-header",
    ),
    (
        "a segment of no length",
        |queue| queue.put(0, &[SEGMENT | 0xff << 52]),
        "is-not-a-message-header",
    ),
    (
        "a spare that there is not",
        |queue| queue.put(0, &[SEGMENT | 3 << 44]),
        "is-not-a-message-header",
    ),
    (
        "a long segment in a spare",
        |queue| queue.put(0, &[SEGMENT | 1 << 52 | 1 << 44]),
        "is-not-a-message-header",
    ),
    ("all ways at once", |queue| queue.put(0, &[SEGMENT | HOME | WRAP]), "is-not-a-message-header"),
    (
        "a message that wraps",
        |queue| queue.put(0, &[header(NUMBER, 16, 0) | WRAP]),
        "is-not-a-message-header",
    ),
    ("the longest length", |queue| queue.put(0, &[header(TEXT, u32::MAX, 0)]), "does-not-fit"),
    ("a word too long", |queue| queue.put(0, &[header(TEXT, 2048 * 8, 0)]), "does-not-fit"),
    ("the second message first", |queue| queue.put(0, &[header(NUMBER, 16, 1)]), "not-the-next"),
    (
        "the same one twice",
        |queue| queue.put(0, &[header(NUMBER, 16, 0), 0, 0, header(NUMBER, 16, 0)]),
        "not-the-next",
    ),
    ("a kind too many", |queue| queue.put(0, &[header(7, 0, 0)]), "kind-7"),
    ("the last kind", |queue| queue.put(0, &[header(PART - 1, 0, 0)]), "kind-65534"),
    ("a part without a head", |queue| queue.put(0, &[header(PART, 23, 0), 1]), "no-collective"),
    (
        "a part of an operation that does not exist",
        |queue| queue.put(0, &[header(PART, 24, 0), 1, 99 << 40, 0]),
        "no-collective",
    ),
    (
        "a part of an operation before the first one",
        |queue| queue.put(0, &[header(PART, 24, 0), 0, BROADCAST, 0]),
        "no-collective",
    ),
    (
        "a part with a root that does not exist",
        |queue| queue.put(0, &[header(PART, 24, 0), 1, BROADCAST | 0xffff, 0]),
        "no-collective",
    ),
    (
        "a part with more blocks than bytes",
        |queue| queue.put(0, &[header(PART, 40, 0), 1, BROADCAST, u64::MAX, 0, 0]),
        "more-blocks-than",
    ),
    (
        "a part with a block of any length",
        |queue| queue.put(0, &[header(PART, 40, 0), 2, BROADCAST, 1, 0, u64::MAX - 63]),
        "beyond-its-end",
    ),
    (
        "a second part of one operation",
        |queue| {
            queue.put(4, &[header(PART, 24, 1), 1, BROADCAST, 0, 0]);
            queue.put(0, &[header(PART, 24, 0), 1, BROADCAST, 0]);
        },
        "a-second-part",
    ),
    ("a number of one word", |queue| queue.put(0, &[header(NUMBER, 8, 0)]), "does-not-carry"),
    ("a number of three words", |queue| queue.put(0, &[header(NUMBER, 24, 0)]), "does-not-carry"),
    ("a number of 15 bytes", |queue| queue.put(0, &[header(NUMBER, 15, 0)]), "does-not-carry"),
    ("half a word", |queue| queue.put(0, &[header(WORDS, 12, 0)]), "does-not-carry"),
    ("text that is none", |queue| queue.put(0, &[header(TEXT, 8, 0), u64::MAX]), "does-not-carry"),
    (
        "a message over the end",
        |queue| {
            // Two messages of 2000 words, and one of 200 words where 96 are left.
            queue.put(4000, &[header(WORDS, 199 * 8, 2)]);
            queue.put(2000, &[header(WORDS, 1999 * 8, 1)]);
            queue.put(0, &[header(WORDS, 1999 * 8, 0)]);
        },
        "does-not-fit",
    ),
    (
        "a wrap to what was taken",
        |queue| {
            queue.put(3, &[WRAP]);
            queue.put(0, &[header(NUMBER, 16, 0), 0, 0]);
        },
        "not-the-next",
    ),
    (
        "a wrap in a segment",
        |queue| {
            queue.segment(0)[0].store(WRAP, Ordering::Release);
            queue.put(0, &[SEGMENT]);
        },
        "is-not-a-message-header",
    ),
    (
        "back from a segment to the word that led there",
        |queue| {
            queue.segment(0)[0].store(HOME, Ordering::Release);
            queue.put(0, &[SEGMENT]);
        },
        "is-not-a-message-header",
    ),
];

#[test]
fn faults_in_the_queue_are_named() {
    let _company = in_company();
    let mut scene = Scene::new(2, FAULTS.len(), "");
    let first = scene.first_hostile();
    let mut queues = Vec::new();
    for (at, (what, fault, expected)) in FAULTS.iter().enumerate() {
        let queue = scene.meanwhile(what, |scene| {
            let queue = Brought::new(scene, first + at, 0);
            fault(&queue);
            queue
        });
        let words = scene.noticed(0, first + at, "violation", what);
        println!("    {what}: {}", words[2]);
        assert!(words.len() == 3 && words[2].contains(expected), "{what}: {words:?}");
        queues.push(queue);
    }
    assert_eq!(scene.refusals(0), FAULTS.len() as u64);
    // A member that has been forgotten costs nothing more.
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _at_last = AtLast(&over);
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                queues.iter().for_each(|queue| queue.doorbell.notify());
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let numbers = scene.honest[0].ask("endure 300").numbers("a quiet time");
        assert!(numbers[0] < 20, "woken {} times by a forgotten member", numbers[0]);
    });
    drop(queues);
    for at in 0..FAULTS.len() {
        let words = scene.honest[0].ask(&format!("about {}", first + at)).expect_ok("about it");
        assert!(
            words.iter().filter(|word| word.starts_with("violation")).count() <= 1,
            "{words:?}"
        );
    }
}

#[test]
fn what_a_handler_notices_is_told_once() {
    let _company = in_company();
    let mut scene = Scene::new(2, 2, "");
    let violating = Brought::new(&scene, 2, 0);
    let ending = Brought::new(&scene, 3, 0);
    for queue in [&violating, &ending] {
        queue.put(0, &[header(NESTED, 0, 0)]);
    }
    // The handlers poll later than this.
    scene.honest[0].say("endure 1000");
    std::thread::sleep(Duration::from_millis(100));
    violating.put(1, &[1]);
    drop(ending);
    scene.honest[0].hear().expect_ok("handlers that poll");
    let about = |scene: &mut Scene, rank| {
        scene.honest[0].ask(&format!("about {rank}")).expect_ok("about it")[2..].to_vec()
    };
    assert_eq!(about(&mut scene, 3), ["ended"]);
    let words = about(&mut scene, 2);
    assert!(words.len() == 1 && words[0].starts_with("violation"), "{words:?}");
    scene.meanwhile("afterwards", |_| ());
}

#[test]
fn words_change_while_they_are_read() {
    let _company = in_company();
    let mut scene = Scene::new(2, 6, "");
    let mut dice = Dice::thrown("words that change");
    for rank in 2..8 {
        scene.meanwhile("words that change", |scene| {
            let queue = Brought::new(scene, rank, 0);
            let good = header([TEXT, WORDS][rank % 2], 800, 0);
            let others = [
                header(TEXT, 16_000, 0),
                header(WORDS, 8, 0),
                header(NUMBER, 16, 0),
                0,
                WRAP,
                SEGMENT,
                header(TEXT, 801, 0),
            ];
            let end = Instant::now() + Duration::from_millis(60);
            let mut sent = 0;
            // The message changes until its header and words are those that the receiver is to
            // find.
            while Instant::now() < end && sent < 4000 / 101 {
                let at = sent * 101;
                let count = (sent as u64 & 0x3fff) << 48;
                for _ in 0..200 {
                    queue
                        .home(at + 1 + dice.below(100) as usize)
                        .store(dice.any() | 0x8080, Ordering::Relaxed);
                    queue.home(at).store(others[dice.below(7) as usize] | count, Ordering::Release);
                    queue
                        .home(at + 1 + dice.below(100) as usize)
                        .store(u64::from_le_bytes(*b"harmless"), Ordering::Relaxed);
                    queue.home(at).store(good | count, Ordering::Release);
                }
                queue.doorbell.notify();
                sent += 1;
            }
        });
    }
}

#[test]
fn segments_in_circles() {
    let _company = in_company();
    let mut scene = Scene::new(2, 2, "sleep");
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _at_last = AtLast(&over);
        let queue = Brought::new(&scene, 2, 0);
        let (over, back) = (&over, Brought::new(&scene, 3, 0));
        scope.spawn(move || {
            // Some segments are always linked ahead of the receiver.
            let mut next = 0;
            queue.segment(0)[0].store(SEGMENT | 1, Ordering::Release);
            queue.put(0, &[SEGMENT]);
            while !over.load(Ordering::Relaxed) {
                let there = queue.first[DIVERTED].load(Ordering::Acquire) / STRIDE;
                if next < there + 32 {
                    next += 1;
                    queue.segment(next as usize)[0].store(SEGMENT | (next + 1), Ordering::Release);
                } else {
                    std::thread::yield_now();
                }
                queue.doorbell.notify();
            }
        });
        scope.spawn(move || {
            // From home to a segment and back, over and over, and never a message.
            let mut number = 0;
            while !over.load(Ordering::Relaxed) {
                back.segment(number as usize)[0].store(HOME, Ordering::Release);
                back.home(0).store(SEGMENT | number, Ordering::Release);
                back.doorbell.notify();
                let left = (number + 1) * STRIDE;
                // The home word must lead to the next segment before the receiver reads it again;
                // otherwise it is a violation.
                while !over.load(Ordering::Relaxed)
                    && back.first[DIVERTED].load(Ordering::Acquire) < left
                {
                    back.home(0).store(SEGMENT | (number + 1), Ordering::Release);
                }
                number += 1;
            }
        });
        for _ in 0..3 {
            scene.meanwhile("circles", |_| ());
        }
        scene.honest[1].say("endure 300");
        let numbers = scene.honest[0].ask("endure 300").numbers("circles");
        assert!(numbers[1] < LATE_MS, "a wait of 300 ms took {} ms longer", numbers[1]);
        scene.honest[1].hear().expect_ok("nothing to do");
    });
    scene.meanwhile("circles", |_| ());
}

#[test]
fn queues_walk() {
    let _company = in_company();
    const LIVES: usize = 40;
    let mut scene = Scene::new(2, LIVES, "");
    let mut dice = Dice::thrown("hostile queues");
    let mut seen = Vec::new();
    for life in 0..LIVES {
        let rank = 2 + life;
        let seed = dice.any();
        scene.meanwhile(&format!("life {life}, seed {seed}"), |scene| {
            walk(&Brought::new(scene, rank, 0), &mut Dice::new(seed))
        });
        let words = scene.honest[0].ask(&format!("about {rank}")).expect_ok("about it");
        let times = |event| words.iter().filter(|word| word.starts_with(event)).count();
        assert!(
            times("violation") <= 1 && times("ended") <= 1,
            "life {life}, seed {seed}: {words:?}"
        );
        seen.extend(words.into_iter().find(|word| word.starts_with("violation")));
    }
    seen.sort();
    seen.dedup();
    println!("    {} violations of {LIVES} lives, all different", seen.len());
    assert!(!seen.is_empty());
}

/// Writes words that could be a message or a link, mostly in the right place.
fn walk(queue: &Brought, dice: &mut Dice) {
    let (mut at, mut count, mut segment) = (0_usize, 0_u64, 0_u64);
    let mut away: Option<RegionView<[AtomicU64]>> = None;
    let word = |away: &Option<RegionView<[AtomicU64]>>, at: usize, word: u64| match away {
        Some(words) => words[at % SEGMENT_WORDS].store(word, Ordering::Release),
        None => queue.home(at).store(word, Ordering::Release),
    };
    let steps = 20 + dice.below(200);
    for _ in 0..steps {
        match dice.below(40) {
            // A valid message.
            0..28 => {
                let (kind, len) = match dice.below(3) {
                    0 => (NUMBER, 16),
                    1 => (TEXT, dice.below(300) as u32),
                    _ => (WORDS, 8 * dice.below(300) as u32),
                };
                let size = 1 + (len as usize).div_ceil(8);
                for offset in (1..size).rev() {
                    word(&away, at + offset, u64::from_le_bytes(*b"harmless"));
                }
                word(&away, at + size, 0);
                word(&away, at, header(kind, len, count));
                (at, count) = (at + size, count + 1);
            }
            28..31 => {
                // Every second segment is a spare.
                let spare = dice.below(4).saturating_sub(1);
                word(&away, at, SEGMENT | spare << 44 | segment);
                away = Some(if spare == 0 {
                    queue.segment(segment as usize)
                } else {
                    queue.spare(spare as usize)
                });
                (at, segment) = (0, segment + 1);
            }
            31..33 => word(&away, at + dice.below(100) as usize, dice.any()),
            33 => word(
                &away,
                at,
                [MESSAGE, WRAP, HOME, SEGMENT, 0][dice.below(5) as usize]
                    | dice.any() >> dice.below(64),
            ),
            34 => word(
                &away,
                at,
                header(dice.below(6) as u16, (dice.any() >> dice.below(64)) as u32, count),
            ),
            35 => queue.first[DISPOSED + dice.below(2) as usize]
                .store(dice.any() >> dice.below(64), Ordering::Release),
            36 => queue.first[dice.below(2) as usize].store(dice.any(), Ordering::Release),
            37 => {
                let _ = queue.file.give_back(0, SEGMENT_BYTES * 2);
            }
            38 => word(&away, at, 0),
            _ => std::thread::sleep(Duration::from_micros(dice.below(300))),
        }
        if dice.below(2) == 0 {
            queue.doorbell.notify();
        }
    }
    // Give the receiver time to read the words before the queue goes.
    std::thread::sleep(Duration::from_millis(2));
}

#[test]
fn an_honest_queue_by_hand_is_taken() {
    let _company = in_company();
    let mut scene = Scene::new(2, 1, "");
    let (bag, doorbell) = (Mailbag::create().unwrap(), Doorbell::new().unwrap());
    let connection = connect(&scene.socket(0));
    connection.send(&pack(&scene.open(2, 0)), &[bag.as_fd(), doorbell.as_fd()]).unwrap();
    assert!(matches!(answer_of(&answer(&connection).unwrap()), Opened::Yes { .. }));
    let mut outgoing = Outgoing::new(bag);
    for number in 0..1000 {
        outgoing.try_send(NUMBER, &[number, 2 * number]).unwrap();
    }
    doorbell.notify();
    drop(connection);
    // All messages that were sent before the end have arrived, and the end is reported once.
    assert_eq!(scene.noticed(0, 2, "ended", "its end"), ["1000", "0", "ended"]);
}
