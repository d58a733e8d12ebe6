use super::socket::{not_listening, sweep_in};
use super::*;
use upcall_os::socket::{Listener, own_user};

fn place(what: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("upcall-names-{what}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&path);
    fs::create_dir(&path).unwrap();
    path
}

fn listening(folder: &Path, name: &str) -> (PathBuf, Listener) {
    listen_at(&folder.join(name), Access::default()).unwrap()
}

#[test]
fn a_sockets_name_tells_its_process_in_this_namespace() {
    let here = pid_namespace().unwrap();
    let of = |name: String| process_of(Path::new(&format!("/run/user/0/upcall/{name}")));
    assert_eq!(of(format!("domain.4711.{here:x}.9f3a")), Some(4711));
    assert_eq!(of(format!("domain.4711.{:x}.9f3a", here ^ 1)), None);
    for none in ["domain", "domain.1", "domain.x.1.1", "domain.0.1.1"] {
        assert_eq!(of(none.into()), None, "{none}");
    }
    assert!(is_member_of(&format!("member.7.{here:x}.1"), 7));
    assert!(
        !is_member_of(&format!("member.7.{here:x}.1"), 8)
            && !is_member_of(&format!("member.7.{here:x}.1"), 0)
    );
    // Numbers of other namespaces are not compared.
    assert!([0, 7, 8].iter().all(|pid| is_member_of(&format!("member.7.{:x}.1", here ^ 1), *pid)));
    for none in [
        "domain.7.1.1",
        "member.7",
        "member.x.1.1",
        "member.7.x.1",
        "member.0.1.1",
        "member.7.1.1/../x",
        "",
    ] {
        assert!(!is_member(none), "{none}");
    }
}

/// A number that the kernel gives to no process.
const NOBODY: u32 = (1 << 22) + 1;

#[test]
fn a_process_that_has_ended_is_known_by_the_number_in_its_sockets_name() {
    let here = pid_namespace().unwrap();
    let ended = |pid: u32, space: u32| {
        has_ended(Path::new(&format!("/run/upcall/domain.{pid}.{space:x}.9f3a")))
    };
    assert!(ended(NOBODY, here) && !ended(NOBODY, here ^ 1));
    assert!(!ended(std::process::id(), here) && !has_ended(Path::new("/run/upcall/domain")));
}

#[test]
fn a_group_that_a_user_may_not_give_is_named() {
    let text = |access, error: rustix::io::Errno| {
        not_listening(Path::new("/run/upcall"), access, error.into()).to_string()
    };
    // No group of this process, and none with a name.
    let other = Access { mode: None, group: Some(3_999_999_999) };
    let found = text(other, rustix::io::Errno::PERM);
    let user = upcall_os::user::name_of(own_user()).unwrap_or_else(|| own_user().to_string());
    let member = format!("user `{user}` is not a member of group `3999999999`");
    assert!(found.starts_with(&member), "{found}");
    // A file system that knows no owners gives the same error to a member.
    let own = Access { group: Some(rustix::process::getegid().as_raw()), ..other };
    let found = text(own, rustix::io::Errno::PERM);
    assert!(!found.contains("member"), "{found}");
    // A folder that this user may not write has nothing to do with the group.
    let folder = text(other, rustix::io::Errno::ACCESS);
    assert!(folder.contains("/run/upcall") && !folder.contains("group"), "{folder}");
}

#[test]
fn the_first_leads_and_others_follow() {
    let folder = place("leads");
    let (a, first) = listening(&folder, "member.1.0.a");
    let (b, _second) = listening(&folder, "member.1.0.b");
    assert_eq!(lead_or_follow("g", &a).unwrap(), Leader::Us);
    assert_eq!(lead_or_follow("g", &a).unwrap(), Leader::Us);
    assert_eq!(lead_or_follow("g", &b).unwrap(), Leader::At(a.clone()));
    // The leader ends without removing its entries.
    drop(first);
    assert_eq!(lead_or_follow("g", &b).unwrap(), Leader::Us);
    assert!(!a.exists());
    lead_no_more("g", &a);
    assert!(folder.join("group.g").is_dir());
    lead_no_more("g", &b);
    assert!(!folder.join("group.g").exists());
    assert!(matches!(lead_or_follow("a/b", &b), Err(NotEntered::BadName { .. })));
    fs::remove_dir_all(folder).unwrap();
}

/// A name that changes hands has one holder: exactly one taker succeeds.
#[test]
fn of_all_who_take_over_a_dead_name_one_succeeds() {
    let folder = place("race");
    for round in 0..40 {
        let (dead, listener) = listening(&folder, &format!("domain.1.0.{round:x}dead"));
        enter("files", &dead).unwrap();
        drop(listener);
        let all: Vec<_> = (0..4)
            .map(|taker| listening(&folder, &format!("domain.1.0.{round:x}a{taker}")))
            .collect();
        let (folder, start) = (&folder, &std::sync::Barrier::new(6));
        let won = std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(move || {
                    start.wait();
                    sweep_in(folder);
                });
            }
            let takers: Vec<_> = all
                .iter()
                .map(|(socket, _)| {
                    scope.spawn(move || {
                        start.wait();
                        entry::enter("files", socket)
                    })
                })
                .collect();
            let takers = takers.into_iter().map(|taker| taker.join().unwrap());
            takers
                .enumerate()
                .filter_map(|(taker, entered)| entered.ok().map(|()| taker))
                .collect::<Vec<_>>()
        });
        let [winner] = won[..] else { panic!("round {round}: {won:?}") };
        assert_eq!(entry::find(folder, "files").unwrap().as_ref(), Some(&all[winner].0));
        sweep_in(folder);
        assert_eq!(
            entry::find(folder, "files").unwrap().as_ref(),
            Some(&all[winner].0),
            "swept alive"
        );
        drop(all);
        sweep_in(folder);
        assert_eq!(fs::read_dir(folder).unwrap().count(), 0, "round {round}");
    }
    fs::remove_dir_all(folder).unwrap();
}

/// A process may be killed after any step of listening and entering: others clean up.
#[test]
fn each_step_may_be_the_last() {
    let folder = place("steps");
    let (socket, listener) = listening(&folder, "domain.1.0.dead");
    let made = folder.join(format!("{}domain.1.0.dead.files", entry::ENTERING));
    fs::create_dir(&made).unwrap();
    sweep_in(&folder);
    assert!(!made.exists() && socket.exists(), "a folder without a link");
    fs::create_dir(&made).unwrap();
    std::os::unix::fs::symlink("../domain.1.0.dead", made.join("domain.1.0.dead")).unwrap();
    sweep_in(&folder);
    assert!(made.exists(), "of a process that lives");
    enter("files", &socket).unwrap();
    assert!(!made.exists() && entry::find(&folder, "files").unwrap().is_some());
    // A name that was emptied, by its holder or by a sweep, and not removed.
    fs::remove_file(folder.join("files/domain.1.0.dead")).unwrap();
    enter("files", &socket).unwrap();
    fs::remove_file(folder.join("files/domain.1.0.dead")).unwrap();
    drop(listener);
    // A socket that never listened, and entries that are not Upcall's.
    drop(Listener::bind(&folder.join(".domain.1.0.dead")).unwrap());
    fs::create_dir(folder.join("empty")).unwrap();
    fs::write(folder.join("file"), "").unwrap();
    sweep_in(&folder);
    let mut left: Vec<_> =
        fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["empty", "file"]);
    let found = listening(&folder, "domain.1.0.b");
    assert!(matches!(enter("file", &found.0), Err(NotEntered::InTheWay { .. })));
    fs::remove_dir_all(folder).unwrap();
}

/// A link leads to a folder of another user: nothing in that folder is read or removed.
#[test]
fn symbolic_links_are_not_followed() {
    let (folder, other) = (place("links"), place("linked"));
    fs::write(other.join("domain.1.0.x"), "").unwrap();
    std::os::unix::fs::symlink(&other, folder.join("files")).unwrap();
    let (socket, _listener) = listening(&folder, "domain.1.0.a");
    assert!(matches!(enter("files", &socket), Err(NotEntered::InTheWay { .. })));
    assert_eq!(entry::find(&folder, "files").unwrap(), None);
    sweep_in(&folder);
    leave("files", &other.join("domain.1.0.x"));
    assert!(other.join("domain.1.0.x").exists());
    fs::remove_dir_all(folder).unwrap();
    fs::remove_dir_all(other).unwrap();
}

#[test]
fn names() {
    for good in ["files", "a", "my-service.v2", "X_1"] {
        assert_eq!(check(good), Ok(()), "{good}");
    }
    for bad in [
        "",
        ".hidden",
        "-x",
        "a/b",
        "a b",
        "ü",
        "domain.1.2",
        "member.1.2",
        "group.x",
        "job.1",
        "jobs.x",
        "turns.x",
        "home.1",
        "machine.1",
        "object.x",
        &"x".repeat(65),
    ] {
        assert!(check(bad).is_err(), "{bad}");
    }
}
