//! Where a name that was not found may be instead: under a similar name, or in another folder.
//!
//! Only the error path looks for a hint. The search reads a bounded number of entries, and nothing
//! that could make the process wait. Another folder is named only if no other user can replace what
//! it holds: it and each folder above it belong to this user or to root, and where others can write
//! they can add files, and replace none. A hint is advice: a client that follows it checks the
//! server's user as always.

use crate::names::{NameHint, NotFound, OBJECT, Whose, check, find_in, has_ended, jobs, listening};
use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use upcall_os::socket::own_user;

/// Maximum number of entries that are read in the folder of names.
const MOST_ENTRIES: usize = 4096;
/// Maximum number of other folders that are looked at.
const MOST_FOLDERS: usize = 64;
/// Maximum length, in bytes, of what is read of one of the kernel's lists.
const MOST_BYTES: u64 = 1 << 20;

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameKind {
    /// An interface that a server exports.
    Export,
    /// An object that a home has made.
    Object,
    /// A job.
    Job,
}

impl NameKind {
    /// Prefix of the name's entry in the folder.
    const fn prefix(self) -> &'static str {
        match self {
            Self::Export => "",
            Self::Object => OBJECT,
            Self::Job => jobs::NAMED,
        }
    }

    /// The kind of the sockets to which such names lead.
    const fn whose(self) -> Whose {
        match self {
            Self::Export => Whose::Domain,
            Self::Object => Whose::Home,
            Self::Job => Whose::Job,
        }
    }
}

impl NotFound {
    /// Looks for where an unknown name may be instead, as [`hint`] does.
    #[must_use]
    pub fn with_hint(mut self, kind: NameKind) -> Self {
        if let Self::Unknown { name, folder, hint: found } = &mut self {
            *found = hint(kind, name, folder);
        }
        self
    }
}

/// Looks for where a name may be instead that is not in `folder`.
///
/// # Blocking
/// Reads files of the kernel and local folders, which takes about 0.1 ms. Folders on file systems
/// that another process or another machine serves are left out.
pub fn hint(kind: NameKind, name: &str, folder: &Path) -> NameHint {
    if let Some(other) = elsewhere(kind, name, folder) {
        return NameHint::Elsewhere(other);
    }
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return NameHint::NoFolder,
        Err(_) => return NameHint::None,
    };
    let names = entries.take(MOST_ENTRIES).flatten();
    let names = names.filter_map(|entry| entry.file_name().into_string().ok());
    let names: Vec<_> = names
        .filter_map(|entry| entry.strip_prefix(kind.prefix()).map(String::from))
        .filter(|name| check(name).is_ok())
        .collect();
    let similar = ranked(name, names.iter().map(String::as_str));
    let found = similar.into_iter().find(|name| is_entered(kind, name, folder));
    found.map_or(NameHint::None, |name| NameHint::Similar(name.into()))
}

/// The known name that is most like the typed one, if one is like it at all.
pub fn nearest<'a>(typed: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    ranked(typed, known).first().copied()
}

/// `. Did you mean "greeter"?`, or nothing.
pub fn did_you_mean<'a>(typed: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let similar = nearest(typed, known).map(|name| NameHint::Similar(name.into()));
    similar.map(|hint| hint.to_string()).unwrap_or_default()
}

/// The known names that are like the typed one, the most similar first.
fn ranked<'a>(typed: &str, known: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let typed = typed.to_lowercase();
    let most = (typed.chars().count() / 3).max(1);
    let distance = |name: &str| {
        let name = name.to_lowercase();
        // A beginning, such as `greet` of `greeter`, is like the whole.
        let begins = typed.len() > 2 && name.starts_with(&typed);
        if begins { 1 } else { strsim::damerau_levenshtein(&typed, &name) }
    };
    let known = known.into_iter().map(|name| (distance(name), name));
    let mut like: Vec<_> = known.filter(|(distance, _)| *distance <= most).collect();
    like.sort_unstable();
    like.into_iter().map(|(_, name)| name).collect()
}

/// Returns `true` if a folder has the name, of a process that is not known to have ended.
fn is_entered(kind: NameKind, name: &str, folder: &Path) -> bool {
    let socket = find_in(folder, &format!("{}{name}", kind.prefix()));
    socket.is_ok_and(|socket| socket.is_some_and(|socket| !has_ended(&socket)))
}

/// Another folder that has the name.
fn elsewhere(kind: NameKind, name: &str, folder: &Path) -> Option<PathBuf> {
    let sockets = kernel_list("/proc/net/unix")?;
    let others: BTreeSet<PathBuf> =
        listening(&sockets, kind.whose()).filter(|other| other != folder).collect();
    if others.is_empty() {
        return None;
    }
    let mounts = kernel_list("/proc/self/mountinfo")?;
    let served = served_elsewhere(&String::from_utf8_lossy(&mounts));
    let others = others.into_iter().take(MOST_FOLDERS);
    others.filter(|other| is_trusted(other, &served)).find(|other| is_entered(kind, name, other))
}

/// One of the kernel's lists in `/proc`. `None` if it cannot be read, or is too long.
fn kernel_list(path: &str) -> Option<Vec<u8>> {
    let mut list = Vec::new();
    fs::File::open(path).ok()?.take(MOST_BYTES).read_to_end(&mut list).ok()?;
    ((list.len() as u64) < MOST_BYTES).then_some(list)
}

/// Returns `true` if no other user can replace what a folder holds, and nothing of it can make this
/// process wait: each folder on its path is no link, belongs to this user or to root, and is not on
/// a file system of `served`.
///
/// A folder is looked at only if all folders above it have passed.
fn is_trusted(folder: &Path, served: &BTreeSet<String>) -> bool {
    let is_plain = |part: Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
    let Some(text) = folder.to_str().filter(|text| !text.chars().any(char::is_control)) else {
        return false;
    };
    if !text.starts_with('/') || !folder.components().all(is_plain) {
        return false;
    }
    let own = own_user();
    let is_safe = |part: &&Path| {
        !served.contains(&escaped(part))
            && fs::symlink_metadata(part).is_ok_and(|found| {
                let mode = found.mode();
                found.is_dir()
                    && (found.uid() == 0 || found.uid() == own)
                    // Others may add files, and may replace none.
                    && (mode & 0o022 == 0 || mode & 0o1000 != 0)
            })
    };
    let path: Vec<&Path> = folder.ancestors().collect();
    path.iter().rev().all(is_safe)
}

/// A path as `/proc/self/mountinfo` shows it.
fn escaped(path: &Path) -> String {
    path.to_string_lossy().replace('\\', "\\134").replace(' ', "\\040")
}

/// The mount points, apart from `/`, of file systems whose files another process or another machine
/// serves: reading them may take for ever. `mounts` is the text of `/proc/self/mountinfo`.
fn served_elsewhere(mounts: &str) -> BTreeSet<String> {
    const SERVED: [&str; 12] = [
        "afs", "autofs", "ceph", "cifs", "coda", "fuse", "gfs2", "lustre", "nfs", "ocfs2", "smb",
        "9p",
    ];
    let mount_point = |line: &str| {
        let (mount, source) = line.split_once(" - ")?;
        let is_served = SERVED.iter().any(|kind| source.starts_with(kind));
        mount.split(' ').nth(4).filter(|point| is_served && *point != "/").map(String::from)
    };
    mounts.lines().filter_map(mount_point).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::{Access, enter_in, listen_at};
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn place(what: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("upcall-hint-{what}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        path
    }

    #[test]
    fn a_typo_finds_the_name() {
        let known = ["files", "greeter", "math", "a"];
        let found = |typed| nearest(typed, known);
        for (typed, name) in
            [("greter", "greeter"), ("greet", "greeter"), ("maht", "math"), ("Files", "files")]
        {
            assert_eq!(found(typed), Some(name), "{typed}");
        }
        for typed in ["", "calendar", "xyz"] {
            assert!(found(typed).is_none_or(|name| name == "a"), "{typed}");
        }
        assert_eq!(did_you_mean("maht", known), ". Did you mean \"math\"?");
        assert_eq!(did_you_mean("calendar", known), "");
    }

    /// Only names of the kind that was looked for, that lead to a socket, and that a program may
    /// have, are proposed.
    #[test]
    fn a_similar_name_of_the_same_kind_is_proposed() {
        let folder = place("similar");
        let (socket, _listener) =
            listen_at(&folder.join("domain.1.0.a"), Access::default()).unwrap();
        enter_in("greeter", &socket).unwrap();
        enter_in("object.counter", &socket).unwrap();
        enter_in("jobs.night", &socket).unwrap();
        fs::create_dir(folder.join("greeting")).unwrap();
        fs::create_dir(folder.join("greet\u{1b}[2J")).unwrap();
        fs::write(folder.join("gree"), "").unwrap();
        let found = |kind, name| hint(kind, name, &folder);
        let similar = |name: &str| NameHint::Similar(name.into());
        assert_eq!(found(NameKind::Export, "greet"), similar("greeter"));
        assert_eq!(found(NameKind::Object, "countr"), similar("counter"));
        assert_eq!(found(NameKind::Job, "nigth"), similar("night"));
        for (kind, name) in [
            (NameKind::Export, "countr"),
            (NameKind::Object, "greet"),
            (NameKind::Job, "counter"),
            (NameKind::Export, "calendar"),
        ] {
            assert_eq!(found(kind, name), NameHint::None, "{name}");
        }
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(found(NameKind::Export, "greet"), NameHint::NoFolder);
    }

    #[test]
    fn a_name_in_another_folder_of_this_user_is_found() {
        let (folder, other) = (place("here"), place("else where"));
        let (socket, _listener) =
            listen_at(&other.join("domain.1.0.a"), Access::default()).unwrap();
        let name = format!("elsewhere-{}", std::process::id());
        enter_in(&name, &socket).unwrap();
        let found = || hint(NameKind::Export, &name, &folder);
        assert_eq!(found(), NameHint::Elsewhere(other.clone()));
        let text = found().to_string();
        assert!(text.ends_with(&format!("set UPCALL_DIR='{}'", other.display())), "{text}");
        // A group, or everybody, may replace what the folder holds, so it stands for nothing.
        for mode in [0o775, 0o777] {
            fs::set_permissions(&other, Permissions::from_mode(mode)).unwrap();
            assert_eq!(found(), NameHint::None, "{mode:o}");
        }
        fs::set_permissions(&other, Permissions::from_mode(0o1777)).unwrap();
        assert_eq!(found(), NameHint::Elsewhere(other.clone()));
        [folder, other].into_iter().for_each(|made| fs::remove_dir_all(made).unwrap());
    }

    #[test]
    fn a_folder_that_another_user_can_change_is_not_trusted() {
        let folder = place("trust");
        let below = folder.join("below");
        fs::create_dir(&below).unwrap();
        symlink(&below, folder.join("link")).unwrap();
        let none = BTreeSet::new();
        assert!(is_trusted(&below, &none));
        let link = folder.join("link");
        let up = folder.join("below/../below");
        let control = folder.join("a\u{1b}b");
        fs::create_dir(&control).unwrap();
        for not in [&link, &up, &control, Path::new("below"), &folder.join("missing")] {
            assert!(!is_trusted(not, &none), "{}", not.display());
        }
        // The folder above decides too.
        fs::set_permissions(&folder, Permissions::from_mode(0o777)).unwrap();
        assert!(!is_trusted(&below, &none));
        fs::set_permissions(&folder, Permissions::from_mode(0o755)).unwrap();
        assert!(is_trusted(&below, &none));
        if own_user() == 0 {
            std::os::unix::fs::chown(&folder, Some(4_000_071), None).unwrap();
            assert!(!is_trusted(&below, &none));
        }
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn file_systems_that_others_serve_are_left_out() {
        let mounts = "\
            22 1 0:20 / / rw - fuse.overlay overlay rw\n\
            23 22 0:21 / /tmp rw shared:1 - tmpfs tmpfs rw\n\
            24 23 0:22 / /tmp/a\\040b rw,nosuid shared:2 - fuse.sshfs host: rw,user_id=1\n\
            25 23 0:23 / /home rw - nfs4 host:/home rw\n";
        let served = served_elsewhere(mounts);
        assert_eq!(served.iter().collect::<Vec<_>>(), ["/home", "/tmp/a\\040b"]);
        assert!(!is_trusted(Path::new("/tmp"), &["/tmp".to_string()].into()));
        assert!(served.contains(&escaped(Path::new("/tmp/a b"))));
    }
}
