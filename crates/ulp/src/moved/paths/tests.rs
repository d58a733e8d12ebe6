use super::*;
use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::os::fd::FromRawFd;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::{Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// The descriptors of a program that has these open files, with its numbers from 3 on.
fn descriptors(all: &[BorrowedFd<'_>]) -> Vec<UlpDescriptor> {
    let one = |(number, file): (i32, &BorrowedFd<'_>)| UlpDescriptor {
        number,
        inherited: false,
        real: file.as_raw_fd(),
        file: None,
    };
    (3..).zip(all).map(one).collect()
}

fn names(all: &[BorrowedFd<'_>]) -> Result<(Vec<UlpDescriptor>, Vec<UlpFile>), FilePin> {
    let mut descriptors = descriptors(all);
    let files = name_all(&mut descriptors, WriteBack::Now)?;
    Ok((descriptors, files))
}

/// The reason why a file keeps its program on its host.
fn stays(file: impl AsFd) -> Option<FileStays> {
    let pin = names(&[file.as_fd()]).err()?;
    assert_eq!(pin.number, 3);
    Some(pin.why)
}

fn lack(file: &UlpFile) -> Option<FileLack> {
    match open(file, 1) {
        Ok(_) => None,
        Err(NotArrived::File { path, lack }) => {
            assert_eq!(path.as_os_str().as_bytes(), file.path);
            Some(lack)
        }
        Err(other) => panic!("{other}"),
    }
}

/// A file with ten bytes, and its path.
fn ten(folder: &TempDir) -> (File, PathBuf) {
    let path = folder.path().join("ten");
    fs::write(&path, "0123456789").unwrap();
    (File::options().read(true).write(true).open(&path).unwrap(), path)
}

fn one_name(file: &File) -> UlpFile {
    names(&[file.as_fd()]).unwrap().1.remove(0)
}

#[test]
fn files_are_opened_with_their_offsets_and_flags_and_share_them_as_before() {
    let folder = tempfile::tempdir().unwrap();
    let (mut file, path) = ten(&folder);
    let mut appends = File::options().append(true).open(&path).unwrap();
    let mut reads = File::open(&path).unwrap();
    file.seek(io::SeekFrom::Start(4)).unwrap();
    reads.seek(io::SeekFrom::Start(8)).unwrap();
    rustix::fs::fcntl_setfl(&reads, OFlags::NONBLOCK).unwrap();
    let twice = file.try_clone().unwrap();
    let all = [file.as_fd(), appends.as_fd(), twice.as_fd(), reads.as_fd()];
    let (descriptors, files) = names(&all).unwrap();
    let which = descriptors.iter().map(|one| one.file).collect::<Vec<_>>();
    assert_eq!(which, [Some(0), Some(1), Some(0), Some(2)]);
    let there = opened(&descriptors, &files).unwrap();
    let flags = |file: BorrowedFd<'_>| rustix::fs::fcntl_getfl(file).unwrap();
    for (old, new) in all.iter().zip(&there) {
        assert_eq!(flags(*old), flags(new.as_fd()));
        assert!(rustix::io::fcntl_getfd(new).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
        assert_eq!(are_one(old.as_raw_fd(), new.as_raw_fd()), Some(false));
    }
    let [mut new, mut end, mut again, mut rest] =
        <[OwnedFd; 4]>::try_from(there).unwrap().map(File::from);
    let mut text = [0; 2];
    new.read_exact(&mut text).unwrap();
    assert_eq!(&text, b"45");
    again.read_exact(&mut text).unwrap();
    assert_eq!(&text, b"67");
    rest.read_exact(&mut text).unwrap();
    assert_eq!(&text, b"89");
    end.write_all(b"x").unwrap();
    appends.write_all(b"y").unwrap();
    new.write_all(b"ab").unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "01234567abxy");
}

#[test]
fn what_cannot_move_to_another_host_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    assert_eq!(stays(&reader), Some(FileStays::Pipe));
    assert_eq!(stays(&writer), Some(FileStays::Pipe));
    let (socket, _) = std::os::unix::net::UnixStream::pair().unwrap();
    assert_eq!(stays(&socket), Some(FileStays::Socket));
    assert_eq!(stays(File::open("/dev/zero").unwrap()), Some(FileStays::Device));
    assert_eq!(stays(File::open(folder.path()).unwrap()), Some(FileStays::Folder));
    // SAFETY: makes a descriptor, and uses no memory.
    let event = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
    // SAFETY: the same.
    let set = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    for events in [event, set] {
        // SAFETY: the kernel has just made it.
        assert_eq!(stays(unsafe { OwnedFd::from_raw_fd(events) }), Some(FileStays::Events));
    }
    assert_eq!(stays(File::open("/proc/self/maps").unwrap()), Some(FileStays::Kernel));
    let (file, path) = ten(&folder);
    assert_eq!(stays(&file), None);
    let name = rustix::fs::open(&path, OFlags::PATH, Mode::empty()).unwrap();
    assert_eq!(stays(&name), Some(FileStays::Name));
    // A renamed file has its new path.
    let other = folder.path().join("other");
    fs::rename(&path, &other).unwrap();
    assert_eq!(stays(&file), None);
    let bytes = |path: &Path| path.as_os_str().as_bytes().to_vec();
    assert_eq!(one_name(&file).path, bytes(&other));
    fs::hard_link(&other, &path).unwrap();
    fs::remove_file(&other).unwrap();
    assert_eq!(stays(&file), Some(FileStays::Renamed));
    fs::remove_file(&path).unwrap();
    assert_eq!(stays(&file), Some(FileStays::Deleted));
    let memory = rustix::fs::memfd_create("a", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    assert_eq!(stays(&memory), Some(FileStays::Deleted));
}

#[test]
fn a_file_with_a_lock_stays_until_it_has_none() {
    let folder = tempfile::tempdir().unwrap();
    let (file, _) = ten(&folder);
    file.lock_shared().unwrap();
    assert_eq!(stays(&file), Some(FileStays::Locked));
    file.unlock().unwrap();
    assert_eq!(stays(&file), None);
    // As the archive makes locks of `fcntl`.
    // SAFETY: all zeros are valid.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    for (kind, why) in [(libc::F_WRLCK, Some(FileStays::Locked)), (libc::F_UNLCK, None)] {
        lock.l_type = kind as i16;
        // SAFETY: passes a valid lock.
        let done = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
        assert_eq!((done, stays(&file)), (0, why));
    }
}

#[test]
fn too_many_files_stay() {
    let folder = tempfile::tempdir().unwrap();
    let (file, path) = ten(&folder);
    let many = (0..=MOST_FILES).map(|_| File::open(&path).unwrap()).collect::<Vec<_>>();
    let all = many.iter().map(File::as_fd).collect::<Vec<_>>();
    assert_eq!(names(&all[..MOST_FILES]).unwrap().1.len(), MOST_FILES);
    let last = 3 + MOST_FILES as i32;
    assert_eq!(names(&all), Err(FilePin { number: last, why: FileStays::TooMany }));
    // As many descriptors as there may be, of one file, and one more.
    let all = vec![file.as_fd(); MOST_DESCRIPTORS + 1];
    assert_eq!(names(&all[1..]).unwrap().1.len(), 1);
    let last = 3 + MOST_DESCRIPTORS as i32;
    assert_eq!(names(&all), Err(FilePin { number: last, why: FileStays::TooMany }));
}

#[test]
fn a_file_that_is_not_the_same_is_not_taken() {
    let folder = tempfile::tempdir().unwrap();
    let (file, path) = ten(&folder);
    let named = one_name(&file);
    assert_eq!(lack(&named), None);
    // Longer, and as long as before, but written later.
    let was = file.metadata().unwrap().modified().unwrap();
    (&file).write_all(b"0123456789a").unwrap();
    assert_eq!(lack(&named), Some(FileLack::Length));
    file.set_len(10).unwrap();
    file.set_modified(was + Duration::from_nanos(1)).unwrap();
    assert_eq!(lack(&named), Some(FileLack::Time));
    file.set_modified(was).unwrap();
    assert_eq!(lack(&named), None);
    // The same file by way of a link.
    let other = folder.path().join("other");
    fs::rename(&path, &other).unwrap();
    symlink(&other, &path).unwrap();
    assert_eq!(lack(&named), Some(FileLack::Kind));
    fs::rename(&other, &path).unwrap();
    assert_eq!(lack(&named), None);
    // The same contents and times in another file.
    fs::copy(&path, &other).unwrap();
    File::options().append(true).open(&other).unwrap().set_modified(was).unwrap();
    fs::rename(&other, &path).unwrap();
    assert_eq!(lack(&named), Some(FileLack::OtherFile));
    fs::remove_file(&path).unwrap();
    assert_eq!(lack(&named), Some(FileLack::Missing));
    fs::create_dir(&path).unwrap();
    assert_eq!(lack(&named), Some(FileLack::Kind));
    fs::remove_dir(&path).unwrap();
    symlink("/dev/zero", &path).unwrap();
    assert_eq!(lack(&named), Some(FileLack::Kind));
}

/// To open a FIFO for writing would wait for a reader, or be seen by one.
#[test]
fn nothing_but_a_regular_file_is_opened() {
    let folder = tempfile::tempdir().unwrap();
    let (file, path) = ten(&folder);
    let named = one_name(&file);
    fs::remove_file(&path).unwrap();
    rustix::fs::mkfifoat(CWD, &path, Mode::from_raw_mode(0o600)).unwrap();
    let read = OFlags::RDONLY | OFlags::NONBLOCK;
    let reader = rustix::fs::open(&path, read, Mode::empty()).unwrap();
    assert_eq!(lack(&named), Some(FileLack::Kind));
    // There was no writer.
    let wanted = [(reader.as_raw_fd(), libc::POLLIN as u16)];
    assert_eq!(crate::descriptors::ready(&wanted, Some(Duration::ZERO)), [false]);
}

#[test]
fn a_file_that_may_not_be_opened_again_is_not_taken() {
    let folder = tempfile::tempdir().unwrap();
    let (file, path) = ten(&folder);
    let named = one_name(&file);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).unwrap();
    // root may.
    let may = File::open(&path).is_ok();
    assert_eq!(lack(&named), (!may).then_some(FileLack::Denied));
}

#[test]
fn files_of_other_kernels_are_the_same_where_hosts_share_them() {
    let folder = tempfile::tempdir().unwrap();
    let (file, _) = ten(&folder);
    let here = FileIdentity { system: SHARED[0], ..one_name(&file).identity };
    let there = FileIdentity { kernel: here.kernel ^ 1, device: [0, 99], ..here };
    for writes in [false, true] {
        assert_eq!(here.difference(&there, writes), None);
        let own = FileIdentity { device: [0, 99], ..here };
        assert_eq!(here.difference(&own, writes), None);
        for (found, why) in [
            (FileIdentity { inode: here.inode + 1, ..there }, FileLack::OtherFile),
            (FileIdentity { system: SHARED[1], ..there }, FileLack::OtherFile),
            (FileIdentity { length: 11, ..there }, FileLack::Length),
            (FileIdentity { seconds: here.seconds + 1, ..there }, FileLack::Time),
            (FileIdentity { nanoseconds: here.nanoseconds ^ 1, ..there }, FileLack::Time),
        ] {
            assert_eq!(here.difference(&found, writes), Some(why));
        }
    }
    // On a disk of its own, a host has at best a copy.
    const DISK: u64 = 0xEF53;
    let (disk, copy) =
        (FileIdentity { system: DISK, ..here }, FileIdentity { system: DISK, ..there });
    assert_eq!(disk.difference(&copy, false), None);
    assert_eq!(disk.difference(&copy, true), Some(FileLack::NotShared));
    // Kernels that do not say which they are count as different ones.
    let unknown = |kernel| FileIdentity { kernel, ..disk };
    assert_eq!(unknown(0).difference(&unknown(0), true), Some(FileLack::NotShared));
    // Within a kernel, one device is one file system.
    let other = FileIdentity { device: [0, 99], ..disk };
    assert_eq!(disk.difference(&other, false), Some(FileLack::OtherFile));
}

#[test]
fn names_that_are_bent_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (file, _) = ten(&folder);
    let twice = file.try_clone().unwrap();
    let (descriptors, files) = names(&[file.as_fd(), twice.as_fd()]).unwrap();
    type Bend = fn(&mut Vec<UlpDescriptor>, &mut Vec<UlpFile>);
    let bends: &[(&str, Bend)] = &[
        ("flags", |_, files| files[0].flags |= OFlags::CREATE.bits()),
        ("flags", |_, files| files[0].flags |= OFlags::TRUNC.bits()),
        ("flags", |_, files| files[0].flags |= OFlags::EXCL.bits()),
        ("flags", |_, files| files[0].flags |= OFlags::PATH.bits()),
        ("flags", |_, files| files[0].flags |= OFlags::ACCMODE.bits()),
        ("flags", |_, files| files[0].flags = u32::MAX),
        ("path", |_, files| files[0].path.clear()),
        ("path", |_, files| _ = files[0].path.remove(0)),
        ("path", |_, files| files[0].path.push(0)),
        ("path", |_, files| files[0].path.resize(MOST_PATH + 1, b'/')),
        ("offset", |_, files| files[0].offset = 1 << 63),
        ("number of files", |_, files| *files = vec![files[0].clone(); MOST_FILES + 1]),
        ("number of files", |all, _| all.clear()),
        ("number of descriptors", |all, _| all.resize(MOST_DESCRIPTORS + 1, all[0])),
        ("descriptor", |all, _| all[0].file = None),
        ("descriptor", |all, _| all[1].file = Some(1)),
        ("descriptor", |all, _| all[1].file = Some(u32::MAX)),
        ("descriptor", |all, _| all[1].number = all[0].number),
        ("descriptor", |all, _| all[0].number = -1),
        ("descriptor", |all, _| all[0].number = i32::MAX),
    ];
    for (at, (what, bend)) in bends.iter().enumerate() {
        let (mut descriptors, mut files) = (descriptors.clone(), files.clone());
        // There are enough descriptors for these files.
        if *what == "number of files" {
            let first = descriptors[0];
            let one = |number| UlpDescriptor { number, ..first };
            descriptors = (3..4 + MOST_FILES as i32).map(one).collect();
        }
        bend(&mut descriptors, &mut files);
        let said = opened(&descriptors, &files).expect_err(what).to_string();
        assert!(said.contains(&format!("its {what}")), "{at}: {said}");
    }
    assert_eq!(opened(&descriptors, &files).unwrap().len(), 2);
}

/// Runs a test in a process of its own, with this standard input. Returns `true` in that process.
fn apart(test: &str, input: Stdio) -> bool {
    const NAME: &str = "UPCALL_TEST_APART";
    if std::env::var_os(NAME).is_some() {
        return true;
    }
    let test = format!("moved::paths::tests::{test}");
    let mut own = Command::new(std::env::current_exe().unwrap());
    own.args([&test, "--exact", "--nocapture"]).env(NAME, "1").stdin(input);
    let done = own.output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success() && said.contains("1 passed"), "{done:?}");
    false
}

#[test]
fn a_file_that_is_the_standard_input_too_stays() {
    let folder = tempfile::tempdir().unwrap();
    let (file, _) = ten(&folder);
    if apart("a_file_that_is_the_standard_input_too_stays", file.into()) {
        let twice = io::stdin().as_fd().try_clone_to_owned().unwrap();
        assert_eq!(stays(&twice), Some(FileStays::Standard));
        // The same file with an offset of its own.
        assert_eq!(stays(File::open(own_path(0)).unwrap()), None);
    }
}

#[test]
fn a_process_without_descriptors_opens_nothing_and_keeps_nothing() {
    // A limit is the process's.
    if !apart("a_process_without_descriptors_opens_nothing_and_keeps_nothing", Stdio::null()) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (file, path) = ten(&folder);
    let twice = file.try_clone().unwrap();
    let other = File::open(&path).unwrap();
    let all = [file.as_fd(), twice.as_fd(), other.as_fd()];
    let (descriptors, files) = names(&all).unwrap();
    let next = File::open(&path).unwrap().as_raw_fd() as u64;
    let most = |more| {
        let limit = libc::rlimit { rlim_cur: next + more, rlim_max: next + 100 };
        // SAFETY: passes a valid limit.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
    };
    for more in 0..4 {
        most(more);
        let found = opened(&descriptors, &files);
        assert!(matches!(found, Err(NotArrived::Descriptors(3))), "{more}: {found:?}");
        most(100);
        assert_eq!(File::open(&path).unwrap().as_raw_fd() as u64, next);
    }
    most(4);
    assert_eq!(opened(&descriptors, &files).unwrap().len(), 3);
}

#[test]
fn random_bytes_in_place_of_names_open_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let (file, _) = ten(&folder);
    let named = one_name(&file);
    let mut random = 7_u64;
    let mut next = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        random >> 33
    };
    for _ in 0..2000 {
        let mut bent = named.clone();
        match next() % 4 {
            0 => {
                let at = next() as usize % bent.path.len();
                bent.path[at] = next() as u8;
            }
            1 => bent.flags ^= 1 << (next() % 32),
            2 => bent.offset ^= 1 << (next() % 64),
            _ => bent.identity.inode ^= 1 << (next() % 64),
        }
        if let Ok(opened) = open(&bent, 1) {
            let found = about(opened.as_fd(), WriteBack::Now).unwrap();
            assert_eq!(found.stx_ino, named.identity.inode);
        }
    }
}
