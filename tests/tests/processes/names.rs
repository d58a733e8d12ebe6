//! The names directory: dead servers whose sockets live on, directories that other users made,
//! locked or share, and file systems that are full or read-only.

use crate::{in_company, place};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, geteuid, pidfd_getfd, pidfd_open};
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use upcall_tests::party::{Party, Said};
use upcall_tests::place::{Place, copy_program, eventually};
use upcall_tests::slow_files::SlowFiles;

/// Two user ids that no machine uses otherwise.
const ALICE: u32 = 61_001;
const BOB: u32 = 61_002;

/// Returns `true` if this test may act as other users; prints a line if not.
fn may_be_others(what: &str) -> bool {
    let root = geteuid().is_root();
    if !root {
        eprintln!("skipped: {what}: only root may act as two users");
    }
    root
}

/// Returns the targets of a process's open descriptors.
fn targets(party: &Party) -> Vec<String> {
    let open = fs::read_dir(format!("/proc/{}/fd", party.pid())).unwrap().flatten();
    open.filter_map(|fd| Some(fs::read_link(fd.path()).ok()?.to_string_lossy().into_owned()))
        .collect()
}

/// Returns duplicates of all sockets of a process, as a child that it forked would hold them.
fn sockets_of(party: &Party) -> Vec<OwnedFd> {
    let process =
        pidfd_open(Pid::from_raw(party.pid() as i32).unwrap(), PidfdFlags::empty()).unwrap();
    let open = fs::read_dir(format!("/proc/{}/fd", party.pid())).unwrap().flatten();
    let sockets = open.filter(|fd| {
        fs::read_link(fd.path()).is_ok_and(|target| target.to_string_lossy().starts_with("socket:"))
    });
    let numbers = sockets.map(|fd| fd.file_name().to_str().unwrap().parse().unwrap());
    numbers
        .map(|number| {
            pidfd_getfd(&process, number, PidfdGetfdFlags::empty()).expect("a descriptor")
        })
        .collect()
}

/// Kills a process that has a name. Returns its sockets, which this process now holds.
fn kill(mut named: Party) -> Vec<OwnedFd> {
    let held = sockets_of(&named);
    assert!(!held.is_empty());
    named.kill();
    named.ended();
    held
}

#[test]
fn a_dead_homes_name_is_free_while_others_hold_its_socket() {
    let _company = in_company();
    let place = place();
    let mut home = place.start("share object make");
    home.hear().expect_ok("making an object");
    let held = kill(home);
    place.start("share object find").hear().expect_error("Absent", &["it has ended"]);
    let mut home = place.start("share object make");
    home.hear().expect_ok("making it again");
    drop((home, held));
}

#[test]
fn a_dead_servers_name_is_free_while_others_hold_its_socket() {
    let _company = in_company();
    let place = place();
    // The first to notice is a client that binds.
    let mut client = place.client();
    let held = kill(place.serve("trial"));
    client.ask("bind trial").expect_error("ServerGone", &["start it again"]);
    place.expect_empty();
    drop(held);
    // Or a client that is bound.
    let server = place.serve("trial");
    client.ask("bind trial").expect_ok("binding");
    let held = kill(server);
    client.ask("null").expect_error("Failed.PeerEnded", &["bind again"]);
    place.expect_empty();
    drop(held);
    // Or a successor.
    let held = kill(place.serve("trial"));
    let _successor = place.serve("trial");
    client.ask("bind trial").expect_ok("binding to the successor");
    assert_eq!(client.ask("add 2 3").numbers("add"), [5]);
    drop(held);
}

#[test]
fn a_binder_under_way_learns_of_the_end_while_others_hold_the_socket() {
    let _company = in_company();
    let place = place();
    let mut server = place.serve("trial");
    let mut client = place.client();
    server.stop();
    client.say("bind trial");
    // The client makes the channel after it has connected, and then waits for an answer.
    eventually("the client has asked", || {
        let open = targets(&client);
        if open.iter().any(|target| target.contains("upcall-channel")) {
            Ok(())
        } else {
            Err(format!("{open:?}"))
        }
    });
    let _held = sockets_of(&server);
    server.kill();
    server.ended();
    client.hear().expect_error("ServerGone", &["start it again"]);
}

#[test]
fn nobody_waits_for_a_lock_on_the_folder() {
    let _company = in_company();
    let place = place();
    let _first = place.serve("trial");
    let folder = fs::File::open(place.names()).unwrap();
    rustix::fs::flock(&folder, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let mut server = place.serve("other-trial");
    let mut client = place.client();
    client.ask("bind other-trial").expect_ok("binding");
    server.kill();
    server.ended();
    client.ask("bind other-trial").expect_error("", &["other-trial"]);
    let _server = place.serve("other-trial");
    client.ask("bind other-trial").expect_ok("binding to the successor");
}

#[test]
fn a_folder_is_given_by_an_absolute_path() {
    let _company = in_company();
    let place = place();
    for (given, part) in [
        ("", "UPCALL_DIR is empty"),
        ("names", "relative path names"),
        ("./x", "set it to an absolute path"),
    ] {
        place
            .start_with("serve trial", "UPCALL_DIR", given)
            .hear()
            .expect_error("Folder", &["UPCALL_DIR", part]);
        let mut client = place.start_with("client", "UPCALL_DIR", given);
        client.ask("bind trial").expect_error("Folder", &["UPCALL_DIR", part]);
    }
    // A symbolic link to a directory of the same user.
    fs::create_dir(place.path().join("real")).unwrap();
    symlink("real", place.path().join("link")).unwrap();
    let link = place.path().join("link").display().to_string();
    place
        .start_with("serve trial", "UPCALL_DIR", &link)
        .hear()
        .expect_error("Folder", &[&link, "is a symbolic link, which is refused"]);
}

/// As in two containers that mount one directory.
#[test]
fn the_folder_may_have_another_path_for_the_client() {
    let _company = in_company();
    let place = place();
    let _server = place.serve("trial");
    let other = tempfile::TempDir::new().unwrap();
    symlink(place.path(), other.path().join("mounted")).unwrap();
    let path = other.path().join("mounted/names").display().to_string();
    let mut client = place.start_with("client", "UPCALL_DIR", &path);
    client.ask("bind trial").expect_ok("binding by another path");
    assert_eq!(client.ask("add 2 3").numbers("add"), [5]);
}

/// Makes a place whose program other users may run.
fn open_place() -> Place {
    let place = place();
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).unwrap();
    copy_program(place.command("client").get_program().as_ref(), &place.path().join("party"));
    place
}

/// Starts a party of another user, with its own home directory, and with this names directory if
/// one is given.
fn start_as(place: &Place, user: u32, home: &Path, names: Option<&Path>, arguments: &str) -> Party {
    let mut command = Command::new(place.path().join("party"));
    command
        .args(arguments.split_whitespace())
        .uid(user)
        .gid(user)
        .env("HOME", home)
        .env("RUST_BACKTRACE", "0");
    command.env_remove("XDG_RUNTIME_DIR").env_remove("UPCALL_DIR");
    if let Some(names) = names {
        command.env("UPCALL_DIR", names);
    }
    Party::start(command, arguments)
}

/// Removes a directory when it is dropped.
struct Removed(std::path::PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
        let _ = fs::remove_file(&self.0);
    }
}

#[test]
fn another_users_mkdir_blocks_nobody_with_a_home() {
    let _company = in_company();
    if !may_be_others("a folder that another user made first") {
        return;
    }
    let place = open_place();
    let squatted = Removed(format!("/tmp/upcall-{ALICE}").into());
    fs::create_dir(&squatted.0).unwrap();
    chown(&squatted.0, Some(BOB), Some(BOB)).unwrap();
    let home = place.path().join("alice");
    fs::create_dir(&home).unwrap();
    chown(&home, Some(ALICE), Some(ALICE)).unwrap();
    let mut server = start_as(&place, ALICE, &home, None, "serve trial");
    server.hear().expect_ok("a server with a home");
    start_as(&place, ALICE, &home, None, "client").ask("bind trial").expect_ok("its client");
    assert!(home.join(".upcall/trial").is_dir());
    // Without a home directory both errors say what to do. The home directory of another user
    // counts as none.
    let squatter = BOB.to_string();
    for home in [Path::new("/nonexistent"), Path::new("/")] {
        let error = ["of user 61002", &squatter, "start it as that user", "UPCALL_DIR"];
        start_as(&place, ALICE, home, None, "serve trial").hear().expect_error("Folder", &error);
        start_as(&place, ALICE, home, None, "client")
            .ask("bind trial")
            .expect_error("Folder", &error);
    }
    fs::remove_dir(&squatted.0).unwrap();
    symlink(&home, &squatted.0).unwrap();
    let nowhere = Path::new("/nonexistent");
    let file = place.path().join("file");
    fs::write(&file, "").unwrap();
    start_as(&place, ALICE, nowhere, Some(&file), "client")
        .ask("bind trial")
        .expect_error("Folder.NotAFolder", &["is not a folder"]);
    let mut refused = start_as(&place, ALICE, nowhere, None, "serve trial");
    refused.hear().expect_error("Folder", &["is a symbolic link, which is refused"]);
    fs::remove_file(&squatted.0).unwrap();
    start_as(&place, ALICE, nowhere, None, "serve trial")
        .hear()
        .expect_ok("a server without a home");
}

/// The directory is made as docs/reference/names.md says: `install -d -m 1777`.
#[test]
fn several_users_share_a_folder_and_each_has_its_own_names() {
    let _company = in_company();
    if !may_be_others("a folder of several users") {
        return;
    }
    let place = open_place();
    let shared = place.path().join("shared");
    fs::create_dir(&shared).unwrap();
    let as_user =
        |user, arguments: &str| start_as(&place, user, Path::new("/"), Some(&shared), arguments);
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o777)).unwrap();
    as_user(ALICE, "serve trial")
        .hear()
        .expect_error("Folder.Unprotected", &["mode 0777", "chmod +t"]);
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o1777)).unwrap();
    let mut alices = as_user(ALICE, "serve trial");
    alices.hear().expect_ok("the server of one user");
    let mut bobs = as_user(BOB, "serve other-trial");
    bobs.hear().expect_ok("the server of another one");
    as_user(ALICE, "client").ask("bind trial").expect_ok("binding");
    as_user(BOB, "client").ask("bind other-trial").expect_ok("binding");
    as_user(BOB, "serve trial")
        .hear()
        .expect_error("NameTaken", &["\"trial\"", "choose another name"]);
    alices.kill();
    alices.ended();
    let path = shared.join("trial").display().to_string();
    // The name of a dead server still belongs to its user: the sticky bit protects it.
    as_user(BOB, "serve trial").hear().expect_error("NameStale", &["user 61001", &path, "removed"]);
    as_user(BOB, "client").ask("bind trial").expect_error("", &["may not"]);
    let mut alices = as_user(ALICE, "serve trial");
    alices.hear().expect_ok("the successor");
    alices.kill();
    alices.ended();
    // The user has removed the socket, but not the name.
    fs::read_dir(&shared).unwrap().flatten().for_each(|entry| drop(fs::remove_file(entry.path())));
    as_user(BOB, "serve trial").hear().expect_error("NameStale", &["user 61001", &path, "removed"]);
    bobs.kill();
    bobs.ended();
    // Root may remove everything.
    let mut root = as_user(0, "client");
    root.ask("bind trial").expect_error("ServerGone", &["start it again"]);
    assert_eq!(fs::read_dir(&shared).unwrap().count(), 0);
}

/// Returns the error of a server in a mount namespace of its own, in which `names` is a file system
/// of this kind.
fn serve_on(place: &Place, mount: &str, arguments: &str) -> Option<String> {
    let names = place.names();
    fs::create_dir_all(&names).unwrap();
    let script = format!(
        "mount -t tmpfs {mount} none {} && shift && exec \"$0\" {arguments}",
        names.display()
    );
    let mut command = Command::new("unshare");
    let party = place.command(arguments);
    command.args(["-m", "sh", "-c", &script]).arg(party.get_program()).arg("-");
    command.env("UPCALL_DIR", &names).stdin(Stdio::null()).stderr(Stdio::piped());
    let output = command.output().ok()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if said.is_empty() {
        eprintln!("skipped: {mount}: {}", String::from_utf8_lossy(&output.stderr));
        return None;
    }
    Some(said)
}

#[test]
fn full_and_read_only_file_systems_are_told() {
    let _company = in_company();
    if !may_be_others("file systems that are full or read-only") {
        return;
    }
    let place = place();
    for (mount, kind, part) in [
        ("-o ro", "error Folder", "read-only"),
        // The root directory takes one inode. In the first case none is left for the socket; in the
        // second, one for the socket and none for the name.
        ("-o nr_inodes=1", "error Folder", "full"),
        ("-o nr_inodes=2", "error Resource", "full"),
    ] {
        let Some(said) = serve_on(&place, mount, "serve trial") else { return };
        println!("{mount}: {}", said.trim());
        assert!(
            said.starts_with(kind)
                && said.contains(part)
                && said.contains(&*place.names().to_string_lossy()),
            "{said}"
        );
    }
}

/// A directory on a file system that has no sockets, as some network file systems have none.
#[test]
fn a_file_system_without_sockets_is_told() {
    let _company = in_company();
    let Some(files) = SlowFiles::mount(0) else { return };
    let place = place();
    let folder = files.folder().to_str().unwrap();
    let start = |arguments: &str| {
        let mut command = place.command(arguments);
        command.env("UPCALL_DIR", folder);
        Party::start(command, arguments)
    };
    let text = start("serve trial").hear().expect_error("Folder", &[folder]);
    println!("{text}");
    start("client").ask("bind trial").expect_error("NoSuchName", &[]);
}

/// The number in the socket's name belongs to another PID namespace, so it is not looked up in this
/// one.
#[test]
fn numbers_of_another_pid_namespace_mislead_nobody() {
    let _company = in_company();
    if !may_be_others("a PID namespace of its own") {
        return;
    }
    let place = place();
    let party = place.command("serve trial");
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--mount-proc", "--kill-child"]).arg(party.get_program());
    command.args(party.get_args()).env("UPCALL_DIR", place.names()).env("RUST_BACKTRACE", "0");
    let mut inside = Party::start(command, "a server in a PID namespace");
    match inside.try_hear() {
        Some(Said::Ok(_)) => {}
        found => return eprintln!("skipped: a PID namespace of its own: {found:?}"),
    }
    let socket = place.sockets().pop().expect("a socket");
    let name = socket.file_name().unwrap().to_str().unwrap().to_string();
    let own = upcall_os::process::pid_namespace().expect("/proc");
    assert!(name.starts_with("domain.1.") && !name.contains(&format!(".{own:x}.")), "{name}");
    let text =
        place.start("serve trial").hear().expect_error("NameTaken", &["choose another name"]);
    assert!(!text.contains("process 1 "), "{text}");
    inside.kill();
    inside.ended();
    // The server is killed with its namespace, a moment later.
    eventually("the name is free", || match place.start("serve trial").hear() {
        Said::Ok(_) => Ok(()),
        found => Err(format!("{found:?}")),
    });
}
