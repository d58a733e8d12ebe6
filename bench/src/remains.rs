//! What a killed pair of processes leaves behind.
//!
//! Counted are files in the pair's own folders, which stand for its user's, files in `/dev/shm`,
//! and abstract sockets. Not counted are System V memory and semaphores, message queues, files that
//! a system puts elsewhere, and folders.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Path prefix of files in shared memory.
const SHARED: &str = "/dev/shm/";

/// The leftovers of a pair.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remains {
    /// Number of files and sockets in the pair's folders.
    pub files: usize,
    /// Number of files in `/dev/shm`, and their memory in KiB.
    pub shared: (usize, u64),
    /// Number of abstract sockets.
    pub sockets: usize,
}

impl fmt::Display for Remains {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (shared, kib) = self.shared;
        let counts = [
            (self.files, format!("{} in folders", self.files)),
            (shared, format!("{shared} in /dev/shm ({kib} KiB)")),
            (self.sockets, format!("{} abstract sockets", self.sockets)),
        ];
        let counts = counts.into_iter().filter(|(count, _)| *count > 0).map(|(_, text)| text);
        let text = counts.collect::<Vec<_>>().join(", ");
        f.pad(if text.is_empty() { "nothing" } else { &text })
    }
}

/// What a running pair holds and may leave behind.
pub struct Held {
    shared: BTreeSet<PathBuf>,
    sockets: BTreeSet<String>,
}

impl Held {
    /// Records what these processes hold. `prefix` begins the names of the pair's files in
    /// `/dev/shm`.
    pub fn by(processes: &[u32], prefix: &str) -> Held {
        let (mut shared, mut inodes) = (in_folder(Path::new(SHARED)), BTreeSet::new());
        shared.retain(|path| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix))
        });
        for process in processes {
            let maps = fs::read_to_string(format!("/proc/{process}/maps")).unwrap_or_default();
            let mapped = maps.lines().filter_map(|line| Some(&line[line.find(SHARED)?..]));
            shared.extend(mapped.map(PathBuf::from));
            for entry in entries(Path::new(&format!("/proc/{process}/fd"))) {
                let target = fs::read_link(entry).unwrap_or_default();
                let text = target.to_string_lossy();
                if let Some(inode) = text.strip_prefix("socket:[") {
                    inodes.insert(inode.trim_end_matches(']').to_owned());
                } else if text.starts_with(SHARED) {
                    shared.insert(target);
                }
            }
        }
        let named = |(inode, name)| inodes.contains(&inode).then_some(name);
        Held { shared, sockets: abstract_sockets().into_iter().filter_map(named).collect() }
    }

    /// Returns what is left of these holdings and in the pair's folder `dir`.
    pub fn left(&self, dir: &Path) -> Remains {
        let mut files = in_folder(dir);
        // The harness's own files.
        files.retain(|path| path.extension().is_none_or(|ending| ending != "stderr"));
        let elsewhere = self.shared.iter().filter(|path| !path.starts_with(dir));
        let shared = elsewhere.filter_map(|path| fs::metadata(path).ok());
        let blocks: Vec<u64> = shared.map(|data| data.blocks()).collect();
        let there: BTreeSet<String> =
            abstract_sockets().into_iter().map(|(_, name)| name).collect();
        Remains {
            files: files.len(),
            shared: (blocks.len(), blocks.iter().sum::<u64>() * 512 / 1024),
            sockets: self.sockets.intersection(&there).count(),
        }
    }
}

fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path())
}

/// Returns all files below a folder.
fn in_folder(folder: &Path) -> BTreeSet<PathBuf> {
    let (mut files, mut folders) = (BTreeSet::new(), vec![folder.to_owned()]);
    while let Some(folder) = folders.pop() {
        for path in entries(&folder) {
            let is_folder = fs::symlink_metadata(&path).is_ok_and(|data| data.is_dir());
            if is_folder { folders.push(path) } else { _ = files.insert(path) }
        }
    }
    files
}

/// Returns the abstract sockets of this machine by inode and name.
fn abstract_sockets() -> Vec<(String, String)> {
    let text = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let socket = |line: &str| {
        let mut words = line.split_whitespace().skip(6);
        let (inode, name) = (words.next()?, words.next()?);
        name.starts_with('@').then(|| (inode.to_owned(), name.to_owned()))
    };
    text.lines().filter_map(socket).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener};

    #[test]
    fn what_is_held_and_left_is_found() {
        let own = std::process::id();
        let dir = std::env::temp_dir().join(format!("upcall-remains-{own}"));
        fs::create_dir_all(dir.join("home/within")).unwrap();
        fs::write(dir.join("server.stderr"), "").unwrap();
        let nothing = Held::by(&[], "upcall-remains-").left(&dir);
        assert_eq!((nothing.to_string().as_str(), nothing), ("nothing", Remains::default()));

        let name = format!("upcall-remains-{own}");
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let listener = UnixListener::bind_addr(&address).unwrap();
        let _socket = UnixListener::bind(dir.join("home/within/socket")).unwrap();
        let shared = Path::new(SHARED).join(&name);
        fs::write(&shared, [1; 8192]).unwrap();
        let held = Held::by(&[own], &name);
        let left = held.left(&dir);
        assert_eq!(left, Remains { files: 1, shared: (1, 8), sockets: 1 });
        assert_eq!(left.to_string(), "1 in folders, 1 in /dev/shm (8 KiB), 1 abstract sockets");
        drop(listener);
        fs::remove_file(shared).unwrap();
        assert_eq!(held.left(&dir), Remains { files: 1, ..Remains::default() });
        fs::remove_dir_all(dir).unwrap();
    }
}
