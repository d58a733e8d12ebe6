//! The walk and the proof: by plain calls and by the socket, on trees that are hard to read.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;
use upcall_files::calls::Calls;
use upcall_files::direct::read_tree;
use upcall_files::files::{self, Entry, Error, Files, Kind, Status};
use upcall_files::proof::{Proof, prove};
use upcall_files::socket::{Socket, listen};
use upcall_files::tree::Tree;
use upcall_files::walk::{Problem, Transport, Walked, walk};

const CHUNK: u32 = 1000;

/// A tree with everything in it that is easy to get wrong.
fn tree() -> (TempDir, PathBuf) {
    let place = TempDir::new().unwrap();
    let root = place.path().join("root");
    fs::create_dir_all(root.join("a/b/c")).unwrap();
    fs::create_dir(root.join("empty directory")).unwrap();
    fs::write(root.join("empty"), "").unwrap();
    fs::write(root.join("one byte"), "1").unwrap();
    fs::write(root.join("a chunk"), [7; CHUNK as usize]).unwrap();
    fs::write(root.join("a chunk and one"), [8; CHUNK as usize + 1]).unwrap();
    let long: Vec<u8> = (0..123_456_u32).map(|n| ((n * 31) >> 3) as u8).collect();
    fs::write(root.join("a/b/c/long"), long).unwrap();
    fs::write(root.join("a.b"), "sorts before a/").unwrap();
    fs::write(root.join(OsStr::from_bytes(b"a/\xff\xfe not UTF-8\n")), "bytes").unwrap();
    symlink("empty", root.join("link")).unwrap();
    symlink("/etc", root.join("link out")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        root.join("pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .unwrap();
    for number in 0..300 {
        fs::write(root.join(format!("a/b/{number}")), number.to_string()).unwrap();
    }
    (place, root)
}

fn local(root: &Path) -> Calls {
    Calls::new(Files::local(Arc::new(Tree::open(root).unwrap())))
}

fn socket(place: &TempDir, root: &Path) -> (Socket, PathBuf) {
    let path = place.path().join("socket");
    let server = listen(&path, Arc::new(Tree::open(root).unwrap())).unwrap();
    std::thread::spawn(move || server.run());
    (Socket::connect(&path, CHUNK).unwrap(), path)
}

/// Through a channel, to a server in this process. Each test needs its own `name`.
fn bound(name: &str, root: &Path) -> (upcall::Running, Files) {
    let name = format!("files-test-{name}-{}", std::process::id());
    let tree = Arc::new(Tree::open(root).unwrap());
    let running = upcall::Server::new().export(&name, files::export(tree)).start().unwrap();
    let files = Files::bind(&name).unwrap();
    (running, files)
}

fn proved<T: Transport>(transport: &mut T, root: &Path) -> (Walked, Proof) {
    let mut directly = read_tree(root, &mut |_| {}).unwrap();
    let through = walk(transport, CHUNK, &mut |_| {}).unwrap();
    let proof = prove(transport, root, CHUNK, &mut directly, &through).unwrap();
    (through, proof)
}

#[test]
fn all_three_ways_bring_the_same() {
    let (place, root) = tree();
    let (by_calls, proof) = proved(&mut local(&root), &root);
    assert!(proof.holds(), "{proof:?}");
    assert_eq!((proof.same, proof.unreadable.len(), proof.changed.len()), (307, 0, 0));
    assert_eq!((by_calls.files.len(), by_calls.directories), (307, 5));
    assert_eq!((by_calls.links, by_calls.others, by_calls.foreign_names), (2, 1, 1));
    let (by_socket, proof) = proved(&mut socket(&place, &root).0, &root);
    assert!(proof.holds(), "{proof:?}");
    assert_eq!(by_socket, by_calls);
    let (running, files) = bound("same", &root);
    let (by_upcall, proof) = proved(&mut Calls::new(files), &root);
    assert!(proof.holds(), "{proof:?}");
    assert_eq!(by_upcall, by_calls);
    drop(running);
    assert_eq!(by_socket.sum(), read_tree(&root, &mut |_| {}).unwrap().sum());
}

/// A transport that changes the tree, or a reply, at the first read of a file.
struct Meddler<T, M> {
    inner: T,
    meddle: M,
    changed: RefCell<Vec<u8>>,
}

impl<T: Transport, M: FnMut(&[u8]) -> Option<Vec<u8>>> Transport for Meddler<T, M> {
    type File = (T::File, Vec<u8>);
    type Directory = T::Directory;

    fn open(&mut self, path: &[u8]) -> Result<Self::File, Problem> {
        Ok((self.inner.open(path)?, path.to_vec()))
    }

    fn stat(&mut self, file: &Self::File) -> Result<Status, Problem> {
        self.inner.stat(&file.0)
    }

    fn read(&mut self, file: &Self::File, offset: u64, most: u32) -> Result<&[u8], Problem> {
        if let Some(answer) = (self.meddle)(&file.1) {
            self.changed = RefCell::new(answer);
            return Ok(self.changed.get_mut());
        }
        self.inner.read(&file.0, offset, most)
    }

    fn close(&mut self, file: Self::File) -> Result<(), Problem> {
        self.inner.close(file.0)
    }

    fn open_directory(&mut self, path: &[u8]) -> Result<T::Directory, Problem> {
        self.inner.open_directory(path)
    }

    fn entries(
        &mut self,
        directory: &T::Directory,
        start: u64,
        most: u32,
    ) -> Result<Vec<Entry>, Problem> {
        self.inner.entries(directory, start, most)
    }

    fn close_directory(&mut self, directory: T::Directory) -> Result<(), Problem> {
        self.inner.close_directory(directory)
    }
}

fn meddled(root: &Path, meddle: impl FnMut(&[u8]) -> Option<Vec<u8>>) -> (Walked, Proof) {
    proved(&mut Meddler { inner: local(root), meddle, changed: RefCell::default() }, root)
}

#[test]
fn a_file_that_grows_while_it_is_read() {
    let (_place, root) = tree();
    let path = root.join("a/b/c/long");
    let (_, proof) = meddled(&root, |name| {
        if name == b"a/b/c/long" {
            fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"more").unwrap();
        }
        None
    });
    // The file was read to its size at opening, so nothing has changed for this reader.
    assert!(proof.holds() && proof.changed.is_empty(), "{proof:?}");
    assert!(fs::metadata(&path).unwrap().len() > 123_456);
}

#[test]
fn a_file_that_shrinks_while_it_is_read() {
    let (_place, root) = tree();
    let path = root.join("a/b/c/long");
    let (_, proof) = meddled(&root, |name| {
        if name == b"a/b/c/long" {
            fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(1500).unwrap();
        }
        None
    });
    assert!(proof.holds(), "{proof:?}");
    assert_eq!(proof.changed, [b"a/b/c/long".to_vec()]);
}

#[test]
fn a_file_that_vanishes_and_one_that_comes() {
    let (_place, root) = tree();
    let mut directly = read_tree(&root, &mut |_| {}).unwrap();
    fs::remove_file(root.join("one byte")).unwrap();
    fs::write(root.join("new"), "new").unwrap();
    let mut transport = local(&root);
    let through = walk(&mut transport, CHUNK, &mut |_| {}).unwrap();
    let proof = prove(&mut transport, &root, CHUNK, &mut directly, &through).unwrap();
    assert!(proof.holds(), "{proof:?}");
    assert_eq!(proof.changed, [b"new".to_vec(), b"one byte".to_vec()]);
}

#[test]
fn a_wrong_byte_is_found() {
    let (_place, root) = tree();
    let (_, proof) = meddled(&root, |name| (name == b"one byte").then(|| b"2".to_vec()));
    assert!(!proof.holds());
    assert_eq!(proof.wrong.len(), 1);
    assert!(
        proof.wrong[0].to_string().starts_with("one byte: directly: 1 bytes, SHA-256 "),
        "{}",
        proof.wrong[0]
    );
}

#[test]
fn a_file_that_is_kept_back_is_found() {
    let (_place, root) = tree();
    let mut directly = read_tree(&root, &mut |_| {}).unwrap();
    let hidden = root.parent().unwrap().join("other");
    fs::create_dir(&hidden).unwrap();
    let mut transport = local(&hidden);
    let through = walk(&mut transport, CHUNK, &mut |_| {}).unwrap();
    let proof = prove(&mut transport, &root, CHUNK, &mut directly, &through).unwrap();
    assert_eq!(proof.wrong.len(), 307);
    assert!(proof.wrong[0].how.ends_with("by calls: not met"), "{}", proof.wrong[0]);
}

#[test]
fn more_than_was_asked_for_is_refused() {
    let (_place, root) = tree();
    let mut lying = Meddler {
        inner: local(&root),
        meddle: |_: &[u8]| Some(vec![0; 5000]),
        changed: RefCell::default(),
    };
    let error = walk(&mut lying, CHUNK, &mut |_| {}).unwrap_err();
    assert!(matches!(&error, Problem::Broken(why) if why.contains("5000 bytes came")), "{error}");
}

#[test]
fn refusals_travel_through_the_socket() {
    let (place, root) = tree();
    let (mut socket, _) = socket(&place, &root);
    let refused = |error| Err(Problem::Refused(error));
    assert_eq!(socket.open(b"../x").map(|_| ()), refused(Error::Outside));
    assert_eq!(socket.open(b"missing").map(|_| ()), refused(Error::NotFound));
    assert_eq!(socket.open(b"a").map(|_| ()), refused(Error::WrongKind(Kind::Directory)));
    assert_eq!(
        socket.open_directory(b"empty").map(|_| ()),
        refused(Error::WrongKind(Kind::Regular))
    );
    let file = socket.open(b"one byte").unwrap();
    assert_eq!(socket.read(&file, 0, u32::MAX).map(|_| ()), refused(Error::TooMuch(4 << 20)));
    assert_eq!(socket.read(&file, 0, 10), Ok(b"1".as_slice()));
    assert_eq!(socket.root().unwrap(), root.canonicalize().unwrap().as_os_str().as_bytes());
}

#[test]
fn refusals_travel_through_upcall() {
    let (_place, root) = tree();
    let (running, files) = bound("refusals", &root);
    let mut calls = Calls::new(files.clone());
    let refused = |error| Err(Problem::Refused(error));
    assert_eq!(calls.open(b"../x").map(|_| ()), refused(Error::Outside));
    assert_eq!(calls.open(b"missing").map(|_| ()), refused(Error::NotFound));
    assert_eq!(calls.open(b"a").map(|_| ()), refused(Error::WrongKind(Kind::Directory)));
    assert_eq!(
        calls.open_directory(b"empty").map(|_| ()),
        refused(Error::WrongKind(Kind::Regular))
    );
    assert_eq!(calls.open(&[b'x'; 100_000]).map(|_| ()), refused(Error::BadPath));
    let file = calls.open(b"one byte").unwrap();
    assert_eq!(calls.read(&file, 0, u32::MAX).map(|_| ()), refused(Error::TooMuch(4 << 20)));
    assert_eq!(calls.read(&file, 0, 10), Ok(b"1".as_slice()));
    // The file stays open after its name is removed, and the server reports the root.
    fs::remove_file(root.join("one byte")).unwrap();
    assert_eq!(calls.read(&file, 0, 10), Ok(b"1".as_slice()));
    assert_eq!(files.root().unwrap(), root.canonicalize().unwrap().as_os_str().as_bytes());
    drop(running);
    let broken = calls.read(&file, 0, 10).map(<[u8]>::to_vec);
    assert!(matches!(broken, Err(Problem::Broken(_))), "{broken:?}");
}

/// There are far more files than a process may have open, one after the other, so each has to be
/// closed.
#[test]
fn dropped_handles_close_their_files() {
    let (_place, root) = tree();
    let (_running, files) = bound("handles", &root);
    let open_now = || {
        fs::read_dir("/proc/self/fd")
            .unwrap()
            .filter(|f| {
                let target = fs::read_link(f.as_ref().unwrap().path()).unwrap_or_default();
                target.ends_with("root/empty")
            })
            .count()
    };
    let kept = files.open(b"empty").unwrap();
    for _ in 0..5000 {
        drop(files.open(b"empty").unwrap());
    }
    // The client does not wait for a close, but closes are in order with calls, so this call comes
    // after it.
    kept.stat().unwrap();
    assert!(open_now() <= 2, "{} are still open", open_now());
    drop((kept, files));
}

#[test]
fn nonsense_on_the_socket_disturbs_nobody_else() {
    let (place, root) = tree();
    let (mut good, path) = socket(&place, &root);
    let file = good.open(b"one byte").unwrap();
    for nonsense in [
        &b"\xff\xff\xff\xff\x03"[..],  // a frame without an end
        b"\0\0\0\0",                   // a frame without an operation
        b"\x01\0\0\0\x63",             // no such operation
        b"\x05\0\0\0\x02\x09\0\0\0",   // no such handle
        b"\x02\0\0\0\x02\x09",         // too short
        b"\x40\0\0\0\x01half a frame", // and then gone
    ] {
        let mut bad = UnixStream::connect(&path).unwrap();
        bad.write_all(nonsense).unwrap();
        bad.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        bad.read_to_end(&mut answer).unwrap();
        assert_eq!(answer, b"", "{}", nonsense.escape_ascii());
    }
    assert_eq!(good.read(&file, 0, 10), Ok(b"1".as_slice()));
}
