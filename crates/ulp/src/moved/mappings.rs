//! What is mapped in a slot, as the kernel shows it (`/proc/self/maps`).
//!
//! A process with thousands of ULPs has tens of thousands of mappings. So the kernel is asked for
//! those of one slot (`PROCMAP_QUERY`, Linux 6.11). An older one is read from the first mapping on.

use super::state::{MOST_MAPPINGS, UlpMapping, UlpPin};
use std::ffi::CStr;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::ops::Range;
use std::os::fd::AsRawFd;

/// A mapping, with what decides whether it can move.
#[derive(Debug, PartialEq, Eq)]
struct FoundMapping {
    mapping: UlpMapping,
    /// Device and inode, as in `/proc/self/maps`.
    file: String,
    name: String,
    is_private: bool,
}

/// The mappings within `slot`, or why one of them cannot move.
///
/// `program` is the address where the program begins. The file that is mapped there is its own.
pub(super) fn within(
    slot: Range<u64>,
    program: u64,
) -> io::Result<Result<Vec<UlpMapping>, UlpPin>> {
    let maps = File::open("/proc/self/maps")?;
    let found = match query(&maps, &slot) {
        Ok(found) => found,
        Err(_) => read(maps, &slot)?,
    };
    if found.len() > MOST_MAPPINGS {
        return Ok(Err(UlpPin::Mappings(found.len())));
    }
    let contains = |one: &&FoundMapping| (one.mapping.start..one.mapping.end).contains(&program);
    let own = found.iter().find(contains).map(|one| one.file.clone());
    let mut all = Vec::new();
    for FoundMapping { mapping, file, name, is_private } in found {
        let inside = slot.start <= mapping.start && mapping.end <= slot.end;
        let known = mapping.offset.is_none() || own.as_ref() == Some(&file);
        if !inside || !known || !is_private {
            let name = if name.is_empty() { "shared memory".into() } else { name };
            return Ok(Err(UlpPin::Maps { start: mapping.start, name }));
        }
        all.push(mapping);
    }
    Ok(Ok(all))
}

/// Reads the mappings of a slot.
fn read(maps: File, slot: &Range<u64>) -> io::Result<Vec<FoundMapping>> {
    let mut found = Vec::new();
    for line in BufReader::with_capacity(1 << 16, maps).lines() {
        let line = line?;
        let wrong = || io::Error::new(io::ErrorKind::InvalidData, line.clone());
        let one = Line::of(&line).ok_or_else(wrong)?;
        if one.mapping.start >= slot.end {
            break;
        }
        if one.mapping.end > slot.start {
            let (file, name) = (one.file.to_owned(), one.name.to_owned());
            let Line { mapping, is_private, .. } = one;
            found.push(FoundMapping { mapping, file, name, is_private });
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
        let mut name = [0_u8; libc::PATH_MAX as usize];
        let mut one = MapQuery {
            size: size_of::<MapQuery>() as u64,
            flags: COVERING_OR_NEXT,
            address: at,
            name_size: name.len() as u32,
            name: name.as_mut_ptr().expose_provenance() as u64,
            ..MapQuery::default()
        };
        // SAFETY: the kernel writes to `one`, and at most `name_size` bytes to `name`, both of
        // which are local variables.
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
        let name = CStr::from_bytes_until_nul(&name).unwrap_or_default();
        found.push(FoundMapping {
            mapping: UlpMapping {
                start: one.start,
                end: one.end,
                protection: (one.allowed & all) as u8,
                offset: (one.inode != 0).then_some(one.offset),
            },
            file: format!("{:02x}:{:02x} {}", one.device[0], one.device[1], one.inode),
            name: name.to_string_lossy().into_owned(),
            is_private: one.allowed & SHARED == 0,
        });
        at = one.end;
    }
    Ok(found)
}

/// A line of the file.
struct Line<'a> {
    mapping: UlpMapping,
    /// Device and inode.
    file: &'a str,
    name: &'a str,
    is_private: bool,
}

impl<'a> Line<'a> {
    /// Parses `start-end rwxp offset device inode name`.
    fn of(line: &'a str) -> Option<Self> {
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let (allowed, rest) = rest.split_once(' ')?;
        let (offset, file_and_name) = rest.split_once(' ')?;
        let (device, rest) = file_and_name.split_once(' ')?;
        let (inode, name) = rest.split_once(' ').unwrap_or((rest, ""));
        let number = |text| u64::from_str_radix(text, 16).ok();
        let bits = [UlpMapping::READ, UlpMapping::WRITE, UlpMapping::EXECUTE];
        let allowed = allowed.as_bytes();
        let protection =
            allowed.iter().zip(bits).filter(|(one, _)| **one != b'-').map(|(_, bit)| bit).sum();
        let offset = if inode == "0" { None } else { Some(number(offset)?) };
        Some(Self {
            mapping: UlpMapping { start: number(start)?, end: number(end)?, protection, offset },
            file: &file_and_name[..device.len() + 1 + inode.len()],
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
        assert_eq!((one.mapping, one.file), (mapping, "08:01 1234"));
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
        let open = || File::open("/proc/self/maps").unwrap();
        let by_text = read(open(), &range).unwrap();
        assert_eq!(by_text.len(), maps.len());
        match query(&open(), &range) {
            Ok(asked) => assert_eq!(asked, by_text),
            Err(error) => eprintln!("skipped: {error}"),
        }
        assert!(query(&File::open("/dev/null").unwrap(), &range).is_err());
        std::mem::forget(slot);
    }

    #[test]
    fn this_process_has_mappings_of_files_that_are_not_the_programs() {
        let whole = within(0..1 << 47, 0).unwrap();
        assert!(matches!(whole, Err(UlpPin::Maps { .. })), "{whole:?}");
        assert_eq!(within(0..4096, 0).unwrap(), Ok(Vec::new()));
    }
}
