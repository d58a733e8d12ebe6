//! Strangers that connect to a member's socket: what they ask for, what they bring, and how many
//! there are.

use super::{
    BYTES, Brought, MAGIC, Request, Scene, VERSION, answer, as_fds, connect, hello, kinds, pack,
    refused, with_few_descriptors, words,
};
use crate::in_company;
use rustix::process::geteuid;
use std::fs::{Permissions, set_permissions};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use upcall_os::doorbell::Doorbell;
use upcall_os::memory::MemoryFile;
use upcall_os::socket::{Connection, Received};
use upcall_shm::mailbag::Mailbag;
use upcall_tests::dice::Dice;
use upcall_tests::place::{AtLast, as_stranger, eventually};
use upcall_tests::usage::Usage;

#[test]
fn strangers_are_shown_the_door() {
    let _company = in_company();
    let mut scene = Scene::new(2, 3, "");
    scene.meanwhile("strangers", |scene| {
        let (door, own) = (scene.socket(0), 2);
        let say = |request: &Request, fds: &[BorrowedFd<'_>]| {
            let connection = connect(&door);
            connection.send(&pack(request), fds).unwrap();
            connection
        };
        let silent: Vec<_> = (0..20).map(|_| connect(&door)).collect();
        // A `Hello` after the group has formed: there is nothing left to join.
        assert!(answer(&say(&hello(5, None, "member.1.1"), &[])).is_none());
        let garbage = connect(&door);
        garbage.send(&[0xff; 100], &[]).unwrap();
        assert!(answer(&garbage).is_none());
        let group = scene.group;
        let mut unknown = group;
        unknown[3] ^= 1;
        let wrong = [
            (Request::Open { version: VERSION + 1, group, from: own, to: 0 }, "version 9"),
            (Request::Open { version: VERSION, group: unknown, from: own, to: 0 }, "another group"),
            (Request::Open { version: VERSION, group, from: own, to: 1 }, "for member 1"),
            (
                Request::Open { version: VERSION, group, from: own, to: u32::MAX },
                "for member 4294967295",
            ),
            (Request::Open { version: VERSION, group, from: 1, to: 0 }, "member 1 is process"),
            (Request::Open { version: VERSION, group, from: 0, to: 0 }, "member 0 is process"),
            (Request::Open { version: VERSION, group, from: 5, to: 0 }, "no member 5"),
            (Request::Open { version: VERSION, group, from: u32::MAX, to: 0 }, "no member"),
        ];
        let (bag, doorbell) = (Mailbag::create().unwrap(), Doorbell::new().unwrap());
        for (request, why) in wrong {
            let said = refused(&say(&request, &[bag.as_fd(), doorbell.as_fd()]));
            assert!(said.contains(why), "{said}, not {why}");
        }
        let taken = Brought::new(scene, own as usize, 0);
        let again = refused(&say(&scene.open(own as usize, 0), &[bag.as_fd(), doorbell.as_fd()]));
        assert!(again.contains("before"), "{again}");
        // A second queue on a connection that has brought one: the first queue goes with it.
        taken.connection.send(&pack(&scene.open(own as usize, 0)), &[]).unwrap();
        assert!(refused(&taken.connection).contains("before"));
        assert!(answer(&taken.connection).is_none());
        assert!(silent.iter().all(|silent| matches!(silent.receive(), Ok(Received::Nothing))));
    });
    assert_eq!(scene.refusals(0), 11, "what was no queue, and the garbage");
    assert_eq!(scene.noticed(0, 2, "ended", "a second queue")[2..], ["ended"]);
    assert_eq!(scene.honest[0].ask("about 3").expect_ok("a member that did nothing").len(), 2);
}

/// The members take this process for one of their own, so its user is the only reason to refuse it.
#[test]
fn another_user_at_the_door_is_turned_away() {
    let _company = in_company();
    if !geteuid().is_root() {
        return eprintln!(
            "skipped: another user at a member's door: only root may act as another user"
        );
    }
    let mut scene = Scene::new(2, 1, "");
    let (door, own) = (scene.socket(0), 2);
    scene.place.open_to_all();
    set_permissions(&door, Permissions::from_mode(0o666)).expect("a mode");
    scene.meanwhile("another user", |scene| {
        let (bag, doorbell) = (Mailbag::create().unwrap(), Doorbell::new().unwrap());
        let stranger = as_stranger(|| connect(&door));
        // The member may have refused the connection before this message.
        let _ = stranger.send(&pack(&scene.open(own, 0)), &[bag.as_fd(), doorbell.as_fd()]);
        match stranger.receive_within(Duration::ZERO, Duration::from_secs(60)) {
            Ok(Received::Closed) | Err(_) => {}
            other => panic!("another user is let in: {other:?}"),
        }
        // The same queue from the members' own user is accepted.
        drop(Brought::new(scene, own, 0));
    });
}

#[test]
#[expect(clippy::too_many_lines, reason = "one entry for each wrong thing")]
fn descriptors_that_are_no_queue() {
    let _company = in_company();
    let bad: Vec<(&str, Vec<OwnedFd>)> = {
        let own =
            |fd: &dyn Fn() -> OwnedFd, count: usize| (0..count).map(|_| fd()).collect::<Vec<_>>();
        let bag = || Mailbag::create().unwrap().as_fd().try_clone_to_owned().unwrap();
        let doorbell = || Doorbell::new().unwrap().as_fd().try_clone_to_owned().unwrap();
        let memory =
            |len| MemoryFile::create("t", len).unwrap().as_fd().try_clone_to_owned().unwrap();
        let sealed =
            || MemoryFile::frozen("t", &[0; 64]).unwrap().as_fd().try_clone_to_owned().unwrap();
        let one_writes = || {
            MemoryFile::create_for_one_writer("t", 1 << 20)
                .unwrap()
                .0
                .as_fd()
                .try_clone_to_owned()
                .unwrap()
        };
        let unsealed = || {
            let flags = rustix::fs::MemfdFlags::ALLOW_SEALING;
            let fd = rustix::fs::memfd_create("t", flags).unwrap();
            rustix::fs::ftruncate(&fd, BYTES as u64).unwrap();
            fd
        };
        let other_home = || {
            let file = MemoryFile::create("t", BYTES).unwrap();
            let first = words(&file, 0, 2);
            first[0].store(MAGIC, Ordering::Relaxed);
            first[1].store(1 << 40, Ordering::Relaxed);
            file.as_fd().try_clone_to_owned().unwrap()
        };
        vec![
            ("none", vec![]),
            ("one", vec![bag()]),
            ("three", vec![bag(), doorbell(), doorbell()]),
            ("eight", own(&doorbell, 8)),
            ("eight queues", own(&bag, 8)),
            ("two doorbells", vec![doorbell(), doorbell()]),
            ("two queues", vec![bag(), bag()]),
            ("the other way round", vec![doorbell(), bag()]),
            ("short", vec![memory(1 << 20), doorbell()]),
            ("no header", vec![memory(BYTES), doorbell()]),
            ("another home", vec![other_home(), doorbell()]),
            ("frozen", vec![sealed(), doorbell()]),
            ("of one writer", vec![one_writes(), doorbell()]),
            ("without seals", vec![unsealed(), doorbell()]),
        ]
    };
    let strange: Vec<(&str, OwnedFd)> = vec![
        ("a file", std::fs::File::open("/proc/self/exe").unwrap().into()),
        ("a folder", std::fs::File::open("/").unwrap().into()),
        ("a device", std::fs::File::open("/dev/zero").unwrap().into()),
        ("a socket", std::os::unix::net::UnixStream::pair().unwrap().0.into()),
        ("a pipe", std::io::pipe().unwrap().0.into()),
    ];
    let mut scene = Scene::new(2, bad.len() + strange.len(), "");
    let first = scene.first_hostile();
    let before = Usage::of(scene.honest[0].pid());
    scene.meanwhile("wrong descriptors", |scene| {
        for (at, (what, fds)) in bad.iter().enumerate() {
            let connection = connect(&scene.socket(0));
            connection.send(&pack(&scene.open(first + at, 0)), &as_fds(fds)).unwrap();
            let why = refused(&connection);
            println!("    {what}: {why}");
        }
        let doorbell = Doorbell::new().unwrap();
        for (at, (what, fd)) in strange.iter().enumerate() {
            let connection = connect(&scene.socket(0));
            connection
                .send(
                    &pack(&scene.open(first + bad.len() + at, 0)),
                    &[fd.as_fd(), doorbell.as_fd()],
                )
                .unwrap();
            assert!(answer(&connection).is_none(), "{what}");
        }
    });
    let pid = scene.honest[0].pid();
    eventually("nothing of them stays", || {
        let now = Usage::of(pid);
        // The member's own two ends of the queues with the other honest member.
        if now.descriptors <= before.descriptors + 8 {
            Ok(())
        } else {
            Err(format!("{now:?}, before {before:?}"))
        }
    });
    for rank in first..first + bad.len() + strange.len() {
        let words = scene.honest[0].ask(&format!("about {rank}")).expect_ok("about it");
        assert_eq!(words, ["0", "0"], "member {rank}");
    }
}

#[test]
fn thousands_of_connections() {
    let _company = in_company();
    let mut scene = Scene::new(2, 1, "");
    with_few_descriptors(&scene.honest[0]);
    let door = scene.socket(0);
    let mut held: Vec<Connection> = Vec::new();
    let start = Instant::now();
    while held.len() < 4000 && start.elapsed() < Duration::from_secs(2) {
        match Connection::connect(&door) {
            Ok(connection) => held.push(connection),
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    println!("    {} connections held", held.len());
    // The two members have no queue with each other yet.
    scene.meanwhile("thousands of connections", |_| ());
    drop(held);
    // A flood that does not end: the next connection follows as soon as one has been accepted.
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _at_last = AtLast(&over);
        for _ in 0..2 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    drop(Connection::connect(&door));
                }
            });
        }
        scene.meanwhile("a flood of connections", |_| {
            std::thread::sleep(Duration::from_millis(300))
        });
        let mut late = Scene::new(2, 1, "");
        late.meanwhile("another group", |_| ());
        // The end of a member is noticed all the same.
        drop(scene.honest.pop());
        scene.noticed(0, 1, "ended", "a flood of connections");
    });
}

#[test]
#[expect(clippy::too_many_lines, reason = "one arm for each step of a walk")]
fn strangers_walk() {
    let _company = in_company();
    let mut scene = Scene::new(2, 4, "");
    let mut dice = Dice::thrown("strangers");
    let before = {
        scene.meanwhile("no stranger", |_| ());
        Usage::of(scene.honest[0].pid())
    };
    for _ in 0..3 {
        scene.meanwhile("strangers", |scene| {
            let mut open: Vec<Connection> = Vec::new();
            for _ in 0..400 {
                let connection = if open.is_empty() || dice.below(3) == 0 {
                    connect(&scene.socket(dice.below(2) as usize))
                } else {
                    open.swap_remove(dice.below(open.len() as u64) as usize)
                };
                let some = |dice: &mut Dice, most: u64| {
                    [dice.below(most + 2), dice.any()][(dice.below(8) == 0) as usize] as u32
                };
                let mut group = scene.group;
                if dice.below(4) == 0 {
                    group[dice.below(16) as usize] ^= dice.any() as u8;
                }
                let mut bytes = match dice.below(4) {
                    0 => pack(&Request::Hello {
                        version: VERSION,
                        size: some(&mut dice, 5),
                        rank: (dice.below(2) == 0).then(|| some(&mut dice, 5)),
                        socket: ["member.1.2", "../x", "", "member./etc"][dice.below(4) as usize]
                            .into(),
                        kinds: kinds(),
                    }),
                    1 => {
                        let len = dice.below(2000) as usize;
                        dice.bytes(len)
                    }
                    _ => pack(&Request::Open {
                        version: [VERSION, some(&mut dice, 2)][(dice.below(6) == 0) as usize],
                        group,
                        // This test uses up the hostile process's own ranks; no other test does.
                        from: some(&mut dice, 5),
                        to: some(&mut dice, 1),
                    }),
                };
                if dice.below(6) == 0 && !bytes.is_empty() {
                    let at = dice.below(bytes.len() as u64) as usize;
                    bytes[at] = dice.any() as u8;
                }
                if dice.below(10) == 0 {
                    bytes.truncate(dice.below(bytes.len() as u64 + 1) as usize);
                }
                let fds: Vec<OwnedFd> = (0..[2, 2, dice.below(9)][dice.below(3) as usize])
                    .map(|at| match (at + dice.below(6) / 5) % 2 {
                        0 => MemoryFile::create("t", 1 << dice.below(41))
                            .unwrap()
                            .as_fd()
                            .try_clone_to_owned()
                            .unwrap(),
                        _ => Doorbell::new().unwrap().as_fd().try_clone_to_owned().unwrap(),
                    })
                    .collect();
                let _ = connection.send(&bytes, &as_fds(&fds));
                if dice.below(2) == 0 {
                    open.push(connection);
                }
            }
        });
    }
    let pid = scene.honest[0].pid();
    eventually("nothing of them stays", || {
        let now = Usage::of(pid);
        if now.descriptors <= before.descriptors {
            Ok(())
        } else {
            Err(format!("{now:?}, before {before:?}"))
        }
    });
}
