//! Folders of names that this user can see, in addition to the folder of this process.

use super::{Whose, check, entry, folder, is_socket};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// The column of `/proc/net/unix` that holds the flags of a socket, and the flag of a listener.
const FLAGS: usize = 3;
const LISTENS: u32 = 0x10000;

/// The folders of names in which a server listens and that this user may list.
///
/// The kernel's list of sockets gives the folders, so those of other users and those that
/// `UPCALL_DIR` chose for other programs are among them. Folders of another network namespace are
/// not. The folder of this process comes first, if there is a usable one.
pub fn folders() -> Vec<PathBuf> {
    let sockets = fs::read("/proc/net/unix").unwrap_or_default();
    let own = folder().ok();
    let others: BTreeSet<PathBuf> = listening(&sockets, Whose::Domain).collect();
    let others = others.into_iter().filter(|found| Some(found) != own.as_ref());
    let listed = others.filter(|found| fs::read_dir(found).is_ok());
    own.clone().into_iter().chain(listed).collect()
}

/// The lines that are text. Any user can put other bytes into a line, which then is no server's.
fn lines(list: &[u8]) -> impl Iterator<Item = &str> {
    list.split(|byte| *byte == b'\n').filter_map(|line| str::from_utf8(line).ok())
}

/// The folders of the sockets of one kind that listen, in the text of `/proc/net/unix`.
pub(crate) fn listening(list: &[u8], whose: Whose) -> impl Iterator<Item = PathBuf> {
    lines(list).filter_map(move |line| folder_in(line, whose))
}

/// The folder of the socket in one line of `/proc/net/unix`, if it listens and is of this kind.
fn folder_in(line: &str, whose: Whose) -> Option<PathBuf> {
    let flags = u32::from_str_radix(line.split_whitespace().nth(FLAGS)?, 16).ok()?;
    // The path is the last column, and may contain spaces.
    let path = line.find(" /").map(|at| Path::new(&line[at + 1..]))?;
    // A socket gets its path before it listens, when its name begins with a dot.
    let name = path.file_name()?.to_str()?.trim_start_matches('.');
    let serves = flags & LISTENS != 0 && name.starts_with(whose.prefix());
    serves.then(|| path.parent().map(Path::to_path_buf)).flatten()
}

/// The sockets of servers in a folder of names. Links to sockets do not count: one socket would
/// stand for many servers.
pub fn domains_in(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let entries = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_socket()));
    let is_domain = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with(Whose::Domain.prefix()))
    };
    let mut paths: Vec<_> = entries.map(|entry| entry.path()).filter(is_domain).collect();
    paths.sort();
    paths
}

/// The names that servers have entered in a folder. Asks no server.
pub fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let named = entries.filter_map(|found| found.file_name().into_string().ok());
    let is_entered = |name: &String| {
        !is_socket(name)
            && check(name).is_ok()
            && entry::find(folder, name).is_ok_and(|socket| socket.is_some())
    };
    let mut names: Vec<_> = named.filter(is_entered).collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernels_list() {
        let line = |flags: &str, path: &str| {
            format!("000000002be22e45: 00000002 00000000 {flags} 0005 01  1205 {path}")
        };
        let found = |flags, path| folder_in(&line(flags, path), Whose::Domain);
        let domain = "/run/user/0/up call/.domain.1.0.a";
        assert_eq!(found("00010000", domain), Some("/run/user/0/up call".into()));
        assert_eq!(found("00000000", domain), None);
        assert_eq!(found("00010000", "/run/member.1.0.a"), None);
        assert_eq!(found("00010000", "@/domain.1.0.a"), None);
        let home = "/run/home.1.0.a";
        assert_eq!(folder_in(&line("00010000", home), Whose::Home), Some("/run".into()));
        assert_eq!(found("00010000", home), None);
        let head = "Num RefCount Protocol Flags Type St Inode Path";
        assert_eq!(folder_in(head, Whose::Domain), None);
        assert_eq!(folder_in("", Whose::Domain), None);
    }

    #[test]
    fn a_line_that_is_no_text_hides_no_other() {
        assert_eq!(lines(b"one\n@\xff\ntwo").collect::<Vec<_>>(), ["one", "two"]);
    }

    #[test]
    fn a_link_to_a_socket_is_no_server() {
        let folder =
            std::env::temp_dir().join(format!("upcall-names-links-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let socket = folder.join("domain.1.0.a");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        std::os::unix::fs::symlink(&socket, folder.join("domain.2.0.b")).unwrap();
        fs::write(folder.join("domain.3.0.c"), "").unwrap();
        let found = domains_in(&folder);
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(found, [socket]);
    }
}
