//! Nothing outside of the served tree can be reached, and everything in it can.

use rustix::fs::{CWD, Mode, RenameFlags, renameat_with};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use upcall_files::files::{Error, Kind};
use upcall_files::tree::{MOST_BYTES, MOST_ENTRIES, Tree, TreeError};

/// `<place>/served` is served; `<place>/secret` must stay secret.
fn place() -> (TempDir, Tree) {
    let place = TempDir::new().unwrap();
    let served = place.path().join("served");
    fs::create_dir_all(served.join("below/deeper")).unwrap();
    fs::write(place.path().join("secret"), "secret").unwrap();
    fs::write(served.join("plain"), "plain contents").unwrap();
    fs::write(served.join("below/deeper/file"), "deep").unwrap();
    let tree = Tree::open(&served).unwrap();
    (place, tree)
}

fn contents(tree: &Tree, path: &[u8]) -> Result<Vec<u8>, Error> {
    tree.file(path)?.read(0, MOST_BYTES)
}

#[test]
fn files_are_read() {
    let (_place, tree) = place();
    assert_eq!(contents(&tree, b"plain").unwrap(), b"plain contents");
    assert_eq!(contents(&tree, b"below/deeper/file").unwrap(), b"deep");
    // A path that goes up and down again inside of the tree does not escape.
    assert_eq!(contents(&tree, b"below/../plain").unwrap(), b"plain contents");
    let file = tree.file(b"plain").unwrap();
    assert_eq!(file.read(6, 3).unwrap(), b"con");
    assert_eq!(file.read(14, 10).unwrap(), b"");
    assert_eq!(file.read(u64::MAX, 10).unwrap(), b"");
    assert_eq!(file.read(0, 0).unwrap(), b"");
    assert_eq!(file.read(0, MOST_BYTES + 1), Err(Error::TooMuch(MOST_BYTES)));
    let status = file.stat().unwrap();
    assert_eq!((status.kind, status.size), (Kind::Regular, 14));
}

#[test]
fn paths_cannot_leave_the_tree() {
    let (place, tree) = place();
    let absolute = place.path().join("served/plain");
    for path in [
        b"../secret".as_slice(),
        b"..",
        b"below/../../secret",
        b"below/deeper/../../../served/plain",
        b"/etc/passwd",
        b"/",
        absolute.as_os_str().as_bytes(),
    ] {
        assert_eq!(contents(&tree, path), Err(Error::Outside), "{}", path.escape_ascii());
        assert_eq!(
            tree.directory(path).map(|_| ()),
            Err(Error::Outside),
            "{}",
            path.escape_ascii()
        );
    }
}

#[test]
fn links_cannot_leave_the_tree() {
    let (place, tree) = place();
    let served = place.path().join("served");
    symlink("../secret", served.join("up")).unwrap();
    symlink(place.path().join("secret"), served.join("absolute")).unwrap();
    symlink("/proc/self/root/etc/passwd", served.join("magic")).unwrap();
    symlink("..", served.join("parent")).unwrap();
    symlink("below/deeper", served.join("inside")).unwrap();
    symlink("loop", served.join("loop")).unwrap();
    symlink("nowhere", served.join("dangling")).unwrap();
    for path in [
        b"up".as_slice(),
        b"absolute",
        b"magic",
        b"parent/secret",
        b"parent/served/plain",
        b"inside/../../../secret",
    ] {
        assert_eq!(contents(&tree, path), Err(Error::Outside), "{}", path.escape_ascii());
    }
    assert_eq!(tree.directory(b"parent").map(|_| ()), Err(Error::Outside));
    assert_eq!(contents(&tree, b"inside/file").unwrap(), b"deep");
    assert_eq!(contents(&tree, b"loop"), Err(Error::BadPath));
    assert_eq!(contents(&tree, b"dangling"), Err(Error::NotFound));
}

/// A thread exchanges a directory with a link to the outside, again and again, while files are
/// opened through it.
#[test]
fn a_race_does_not_help() {
    let (place, tree) = place();
    let served = place.path().join("served");
    fs::create_dir(place.path().join("outside")).unwrap();
    fs::write(place.path().join("outside/file"), "secret").unwrap();
    symlink("../outside", served.join("trap")).unwrap();
    let (real, trap) = (served.join("below/deeper"), served.join("trap"));
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                renameat_with(CWD, &real, CWD, &trap, RenameFlags::EXCHANGE).unwrap();
            }
        });
        let since = Instant::now();
        let (mut read, mut refused) = (0, 0);
        while since.elapsed() < Duration::from_millis(300) {
            match contents(&tree, b"below/deeper/file") {
                Ok(data) => {
                    assert_eq!(data, b"deep");
                    read += 1;
                }
                Err(_) => refused += 1,
            }
        }
        over.store(true, Ordering::Relaxed);
        assert!(read + refused > 0);
    });
}

#[test]
fn bad_paths_are_refused() {
    let (_place, tree) = place();
    assert_eq!(contents(&tree, b"missing"), Err(Error::NotFound));
    assert_eq!(contents(&tree, b"plain/below"), Err(Error::NotFound));
    assert_eq!(contents(&tree, b"pl\0ain"), Err(Error::BadPath));
    assert_eq!(contents(&tree, &[b'x'; 300]), Err(Error::BadPath));
    assert_eq!(contents(&tree, &b"x/".repeat(5000)), Err(Error::BadPath));
}

#[test]
fn kinds_are_told() {
    let (place, tree) = place();
    let served = place.path().join("served");
    let _listener = UnixListener::bind(served.join("socket")).unwrap();
    rustix::fs::mknodat(CWD, served.join("pipe"), rustix::fs::FileType::Fifo, Mode::RUSR, 0)
        .unwrap();
    assert_eq!(contents(&tree, b"below"), Err(Error::WrongKind(Kind::Directory)));
    assert_eq!(contents(&tree, b""), Err(Error::WrongKind(Kind::Directory)));
    assert_eq!(contents(&tree, b"socket"), Err(Error::WrongKind(Kind::Other)));
    // A pipe without a writer must not block the server.
    assert_eq!(contents(&tree, b"pipe"), Err(Error::WrongKind(Kind::Other)));
    assert_eq!(tree.directory(b"plain").map(|_| ()), Err(Error::WrongKind(Kind::Regular)));
    assert_eq!(tree.directory(b"missing").map(|_| ()), Err(Error::NotFound));
}

#[test]
fn directories_are_listed_in_pages() {
    let (place, tree) = place();
    let many = place.path().join("served/many");
    fs::create_dir(&many).unwrap();
    for number in 0..100 {
        fs::write(many.join(format!("{number:03}")), "").unwrap();
    }
    fs::write(many.join(OsStr::from_bytes(b"\xff\xfe")), "").unwrap();
    let listing = tree.directory(b"many").unwrap();
    fs::write(many.join("later"), "").unwrap();
    let mut names = Vec::new();
    loop {
        let page = listing.entries(names.len() as u64, 7).unwrap();
        assert!(page.len() <= 7);
        if page.is_empty() {
            break;
        }
        names.extend(page.iter().map(|e| e.name.clone()));
    }
    assert_eq!(names.len(), 101);
    assert!(names.is_sorted());
    assert_eq!(names.last().unwrap(), b"\xff\xfe");
    assert_eq!(listing.entries(u64::MAX, 7).unwrap(), []);
    assert_eq!(listing.entries(0, MOST_ENTRIES + 1), Err(Error::TooMuch(MOST_ENTRIES)));
    let root = tree.directory(b"").unwrap();
    let kinds: Vec<_> =
        root.entries(0, 10).unwrap().iter().map(|e| (e.name.as_slice(), e.kind)).collect();
    assert_eq!(
        kinds,
        [
            (b"below".as_slice(), Kind::Directory),
            (b"many", Kind::Directory),
            (b"plain", Kind::Regular)
        ]
    );
}

#[test]
fn the_root_stays_when_it_is_renamed() {
    let (place, tree) = place();
    fs::rename(place.path().join("served"), place.path().join("moved")).unwrap();
    assert_eq!(contents(&tree, b"plain").unwrap(), b"plain contents");
    assert_eq!(contents(&tree, b"../secret"), Err(Error::Outside));
}

#[test]
fn unreadable_files_are_refused() {
    let (place, tree) = place();
    let served = place.path().join("served");
    fs::set_permissions(served.join("plain"), fs::Permissions::from_mode(0o000)).unwrap();
    fs::set_permissions(served.join("below"), fs::Permissions::from_mode(0o000)).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            if rustix::process::geteuid().is_root() {
                // Root may read everything. The user is a property of a thread, and this one ends
                // with the test.
                let nobody = rustix::process::Uid::from_raw(65534);
                rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
            }
            assert_eq!(contents(&tree, b"plain"), Err(Error::Denied));
            assert_eq!(contents(&tree, b"below/deeper/file"), Err(Error::Denied));
            assert_eq!(tree.directory(b"below").map(|_| ()), Err(Error::Denied));
        });
    });
    fs::set_permissions(served.join("below"), fs::Permissions::from_mode(0o700)).unwrap();
}

#[test]
fn roots_that_are_none() {
    let (place, _tree) = place();
    let missing = Tree::open(&place.path().join("missing")).unwrap_err();
    assert!(matches!(missing, TreeError::Root { .. }), "{missing}");
    let file = Tree::open(&place.path().join("secret")).unwrap_err();
    assert!(file.to_string().contains("is not a directory"), "{file}");
    assert!(Tree::open(Path::new("")).is_err());
}
