//! What is mapped in a slot, as the kernel shows it (`/proc/self/maps`).
//!
//! A process with thousands of ULPs has tens of thousands of mappings. So the kernel is asked for
//! those of one slot (`PROCMAP_QUERY`, Linux 6.11). An older one is read from the first mapping on.

use super::state::{MOST_MAPPINGS, UlpMapping, UlpPin};
use crate::own::OwnFiles;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::ops::Range;
use std::os::fd::AsRawFd;

/// A mapping, with what decides whether it can move.
#[derive(Debug, PartialEq, Eq)]
struct FoundMapping {
    mapping: UlpMapping,
    file: BackingFile,
    is_private: bool,
}

/// A file, by its device (major and minor number) and its inode. All zeros: none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct BackingFile {
    device: [u32; 2],
    inode: u64,
}

/// The mappings within `slot`, or why one of them cannot move.
///
/// `program` is the address where the program begins. The file that is mapped there is its own.
pub(super) fn within(
    files: &OwnFiles,
    slot: Range<u64>,
    program: u64,
) -> io::Result<Result<Vec<UlpMapping>, UlpPin>> {
    let found = match query(&files.maps, &slot) {
        Ok(found) => found,
        Err(_) => read(&slot)?.into_iter().map(|(found, _)| found).collect(),
    };
    if found.len() > MOST_MAPPINGS {
        return Ok(Err(UlpPin::Mappings(found.len())));
    }
    let contains = |one: &&FoundMapping| (one.mapping.start..one.mapping.end).contains(&program);
    let own = found.iter().find(contains).map(|one| one.file);
    let mut all = Vec::new();
    for FoundMapping { mapping, file, is_private } in found {
        let inside = slot.start <= mapping.start && mapping.end <= slot.end;
        let known = mapping.offset.is_none() || own == Some(file);
        if !inside || !known || !is_private {
            let name = name_at(mapping.start)?;
            return Ok(Err(UlpPin::Maps { start: mapping.start, name }));
        }
        all.push(mapping);
    }
    Ok(Ok(all))
}

/// What is mapped at an address, as the kernel names it. To find a name takes the kernel longer
/// than all else about a mapping.
fn name_at(address: u64) -> io::Result<String> {
    let found = read(&(address..address + 1))?;
    let name = found.into_iter().next().map(|(_, name)| name);
    Ok(name.filter(|name| !name.is_empty()).unwrap_or_else(|| "shared memory".into()))
}

/// Reads the mappings that overlap a range, with their names.
fn read(slot: &Range<u64>) -> io::Result<Vec<(FoundMapping, String)>> {
    // A file has one place for all that read it.
    let maps = File::open("/proc/self/maps")?;
    let mut found = Vec::new();
    for line in BufReader::with_capacity(1 << 16, maps).lines() {
        let line = line?;
        let wrong = || io::Error::new(io::ErrorKind::InvalidData, line.clone());
        let one = Line::of(&line).ok_or_else(wrong)?;
        if one.mapping.start >= slot.end {
            break;
        }
        if one.mapping.end > slot.start {
            let Line { mapping, file, is_private, name } = one;
            found.push((FoundMapping { mapping, file, is_private }, name.to_owned()));
        }
    }
    Ok(found)
}

/// The argument of `PROCMAP_QUERY`, as the kernel has it.
#[repr(C)]
#[derive(Default)]
struct MapQuery {
    size: u64,
    flags: u64,
    address: u64,
    start: u64,
    end: u64,
    allowed: u64,
    page: u64,
    offset: u64,
    inode: u64,
    device: [u32; 2],
    name_size: u32,
    build_id_size: u32,
    name: u64,
    build_id: u64,
}

/// Asks for the mappings of a slot.
fn query(maps: &File, slot: &Range<u64>) -> io::Result<Vec<FoundMapping>> {
    const PROCMAP_QUERY: u64 = 0xC068_6611;
    const COVERING_OR_NEXT: u64 = 0x10;
    const SHARED: u64 = 8;
    let all = u64::from(UlpMapping::READ | UlpMapping::WRITE | UlpMapping::EXECUTE);
    let (mut found, mut at) = (Vec::new(), slot.start);
    while at < slot.end {
        let mut one = MapQuery {
            size: size_of::<MapQuery>() as u64,
            flags: COVERING_OR_NEXT,
            address: at,
            ..MapQuery::default()
        };
        // SAFETY: the kernel writes to `one`, which is a local variable, and is asked for no name.
        let done = unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY, &raw mut one) };
        if done < 0 {
            match io::Error::last_os_error() {
                // There is none from there on.
                error if error.raw_os_error() == Some(libc::ENOENT) => break,
                error => return Err(error),
            }
        }
        if one.start >= slot.end {
            break;
        }
        found.push(FoundMapping {
            mapping: UlpMapping {
                start: one.start,
                end: one.end,
                protection: (one.allowed & all) as u8,
                offset: (one.inode != 0).then_some(one.offset),
            },
            file: BackingFile { device: one.device, inode: one.inode },
            is_private: one.allowed & SHARED == 0,
        });
        at = one.end;
    }
    Ok(found)
}

/// A line of the file.
struct Line<'a> {
    mapping: UlpMapping,
    file: BackingFile,
    name: &'a str,
    is_private: bool,
}

impl<'a> Line<'a> {
    /// Parses `start-end rwxp offset device inode name`.
    fn of(line: &'a str) -> Option<Self> {
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let (allowed, rest) = rest.split_once(' ')?;
        let (offset, rest) = rest.split_once(' ')?;
        let (device, rest) = rest.split_once(' ')?;
        let (inode, name) = rest.split_once(' ').unwrap_or((rest, ""));
        let (major, minor) = device.split_once(':')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        let part = |text| u32::from_str_radix(text, 16).ok();
        let inode = inode.parse::<u64>().ok()?;
        let bits = [UlpMapping::READ, UlpMapping::WRITE, UlpMapping::EXECUTE];
        let allowed = allowed.as_bytes();
        let protection =
            allowed.iter().zip(bits).filter(|(one, _)| **one != b'-').map(|(_, bit)| bit).sum();
        let offset = if inode == 0 { None } else { Some(number(offset)?) };
        Some(Self {
            mapping: UlpMapping { start: number(start)?, end: number(end)?, protection, offset },
            file: BackingFile { device: [part(major)?, part(minor)?], inode },
            name: name.trim_start(),
            is_private: allowed.get(3) == Some(&b'p'),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernel_are_understood() {
        let line = "10000c00000-10000c02000 r-xp 00001000 08:01 1234    /a program (deleted)";
        let one = Line::of(line).unwrap();
        let mapping = UlpMapping {
            start: 0x100_00c0_0000,
            end: 0x100_00c0_2000,
            protection: UlpMapping::READ | UlpMapping::EXECUTE,
            offset: Some(0x1000),
        };
        assert_eq!((one.mapping, one.file.device, one.file.inode), (mapping, [8, 1], 1234));
        assert_eq!((one.name, one.is_private), ("/a program (deleted)", true));
        let one = Line::of("1000-2000 -w-s 00000000 00:01 0 ").unwrap();
        assert_eq!((one.mapping.offset, one.mapping.protection), (None, UlpMapping::WRITE));
        assert_eq!((one.name, one.is_private), ("", false));
        assert!(Line::of("").is_none() && Line::of("1000 rw-p 0 0:0 0").is_none());
    }

    #[test]
    fn what_is_asked_for_is_what_is_read() {
        let slot = crate::slot::UlpSlot::take_this(7000).unwrap();
        let own = File::open("/proc/self/exe").unwrap();
        let (private, shared) = (libc::MAP_PRIVATE, libc::MAP_SHARED);
        let (read_write, none) = (libc::PROT_READ | libc::PROT_WRITE, libc::PROT_NONE);
        let maps = [
            (0, read_write, private | libc::MAP_ANONYMOUS, -1),
            (1, libc::PROT_READ | libc::PROT_EXEC, private, own.as_raw_fd()),
            (3, libc::PROT_READ, shared, own.as_raw_fd()),
            (7, none, private | libc::MAP_ANONYMOUS, -1),
            (9, read_write, shared | libc::MAP_ANONYMOUS, -1),
        ];
        for (page, allowed, flags, file) in maps {
            let flags = flags | libc::MAP_FIXED_NOREPLACE;
            let at = (slot.start() + page * 4096) as *mut libc::c_void;
            // SAFETY: nothing is mapped there, or the kernel refuses; it stays mapped.
            let done = unsafe { libc::mmap(at, 4096, allowed, flags, file, 0) };
            assert_eq!(done, at, "{page}");
        }
        let range = slot.start()..slot.start() + (1 << 30);
        let files = OwnFiles::get().unwrap();
        let by_text = read(&range).unwrap();
        let (by_text, names): (Vec<_>, Vec<_>) = by_text.into_iter().unzip();
        assert_eq!(by_text.len(), maps.len());
        assert_eq!(name_at(slot.start() + 4096 + 8).unwrap(), names[1]);
        assert_eq!(name_at(slot.start()).unwrap(), "shared memory");
        match query(&files.maps, &range) {
            Ok(asked) => assert_eq!(asked, by_text),
            Err(error) => eprintln!("skipped: {error}"),
        }
        assert!(query(&File::open("/dev/null").unwrap(), &range).is_err());
        std::mem::forget(slot);
    }

    #[test]
    fn this_process_has_mappings_of_files_that_are_not_the_programs() {
        let files = OwnFiles::get().unwrap();
        let whole = within(&files, 0..1 << 47, 0).unwrap();
        assert!(matches!(whole, Err(UlpPin::Maps { .. })), "{whole:?}");
        assert_eq!(within(&files, 0..4096, 0).unwrap(), Ok(Vec::new()));
    }
}
