//! What is mapped in a slot, as the kernel shows it (`/proc/self/maps`).

use super::{MOST_MAPPINGS, Pin, UlpMapping};
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::ops::Range;

/// The mappings within `slot`, or why one of them cannot move.
///
/// `program` is the address where the program begins. The file that is mapped there is its own.
pub(super) fn within(slot: Range<u64>, program: u64) -> io::Result<Result<Vec<UlpMapping>, Pin>> {
    let mut found = Vec::new();
    for line in BufReader::with_capacity(1 << 16, File::open("/proc/self/maps")?).lines() {
        let line = line?;
        let wrong = || io::Error::new(io::ErrorKind::InvalidData, line.clone());
        let one = Line::of(&line).ok_or_else(wrong)?;
        if one.mapping.start >= slot.end {
            break;
        }
        if one.mapping.end > slot.start {
            found.push((one.mapping, one.file.to_owned(), one.name.to_owned(), one.is_private));
        }
    }
    let contains = |one: &UlpMapping| (one.start..one.end).contains(&program);
    let own = found.iter().find(|(one, ..)| contains(one)).map(|(_, file, ..)| file.clone());
    if found.len() > MOST_MAPPINGS {
        return Ok(Err(Pin::Mappings(found.len())));
    }
    let mut all = Vec::new();
    for (mapping, file, name, is_private) in found {
        let inside = slot.start <= mapping.start && mapping.end <= slot.end;
        let known = mapping.offset.is_none() || own.as_ref() == Some(&file);
        if !inside || !known || !is_private {
            let name = if name.is_empty() { "shared memory".into() } else { name };
            return Ok(Err(Pin::Maps { start: mapping.start, name }));
        }
        all.push(mapping);
    }
    Ok(Ok(all))
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
    fn this_process_has_mappings_of_files_that_are_not_the_programs() {
        let whole = within(0..1 << 47, 0).unwrap();
        assert!(matches!(whole, Err(Pin::Maps { .. })), "{whole:?}");
        assert_eq!(within(0..4096, 0).unwrap(), Ok(Vec::new()));
    }
}
