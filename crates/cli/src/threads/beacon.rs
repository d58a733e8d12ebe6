//! The beacon of a program, which leads to its threads and describes their records. The program's
//! side is `crates/thread/src/beacon.rs`.

use super::error::InspectError;
use super::image::MappedFile;
use super::memory::{self, u32_at, u64_at};
use super::process::TargetProcess;
use object::{Object, ObjectSection};
use std::path::{Path, PathBuf};

const SECTION: &str = ".upcall.threads";
const MAGIC: &[u8; 16] = b"upcall threads\0\0";
/// The version of the beacon that this command reads.
const VERSION: u32 = 1;
const SIZE: usize = 104;
/// Bytes of magic, version and size, which are the same in every version.
const HEAD: usize = 24;
/// Offset of the layout in the beacon, in bytes.
const LAYOUT: usize = 48;

/// The place of a beacon.
pub struct BeaconAddress<'a> {
    pub file: &'a Path,
    pub at: u64,
}

/// The contents of a beacon.
pub struct BeaconReading {
    pub slabs: u64,
    pub kernel: u64,
    pub processors: u64,
    pub layout: RecordOffsets,
}

/// Sizes, and offsets in a record and in its extra part, in bytes, as in
/// `crates/thread/src/beacon.rs`.
#[derive(Clone, Copy)]
pub struct RecordOffsets {
    pub guard: u64,
    pub record: usize,
    pub colours: u64,
    pub colour_step: u64,
    pub stack_pointer: usize,
    pub home: usize,
    pub blocking: usize,
    pub cause: usize,
    pub object: usize,
    pub number: usize,
    pub extra: usize,
    pub bottom: usize,
    pub name: u64,
    pub index: u64,
}

/// Maximum size of a record, in bytes.
const MOST_OF_RECORD: usize = 4096;
/// Maximum value of the other sizes and offsets.
const MOST_OFFSET: u64 = 1 << 20;

/// The beacons in the files that the process maps: that of the program, and those of shared
/// libraries with threads of their own.
pub fn find<'a>(
    process: &TargetProcess,
    images: &[MappedFile<'a>],
) -> Result<Vec<BeaconAddress<'a>>, InspectError> {
    let mut beacons = Vec::new();
    let mut unreadable: Vec<(PathBuf, _)> = Vec::new();
    for image in images {
        let found = image.peek(|elf| {
            let address = elf.section_by_name(SECTION)?.address();
            Some(address.wrapping_add(image.bias(elf)?))
        });
        match found {
            Ok(Some(at)) => beacons.push(BeaconAddress { file: image.path(), at }),
            Ok(None) => {}
            Err(error) => unreadable.push((image.path().clone(), error)),
        }
    }
    if beacons.is_empty() {
        return Err(InspectError::NoBeacon {
            pid: process.pid,
            looked_at: images.len(),
            unreadable,
        });
    }
    Ok(beacons)
}

impl BeaconAddress<'_> {
    fn damaged(&self, what: impl Into<String>) -> InspectError {
        InspectError::Damaged { file: self.file.into(), what: what.into() }
    }

    /// Reads and checks the beacon.
    pub fn read(&self, pid: u32) -> Result<BeaconReading, InspectError> {
        let read = |len| {
            memory::read(pid, self.at, len)
                .map_err(|error| InspectError::kernel(pid, "read the memory", error))
        };
        let head = read(HEAD)?.ok_or_else(|| self.damaged("it cannot be read"))?;
        if head[..16] != *MAGIC {
            return Err(self.damaged("its first bytes are wrong"));
        }
        let (version, size) = (u32_at(&head, 16), u32_at(&head, 20) as usize);
        if version != VERSION {
            return Err(InspectError::Version {
                file: self.file.into(),
                found: version,
                known: VERSION,
            });
        }
        if size != SIZE {
            return Err(self.damaged(format!(
                "its size is given as {size} bytes, and version {VERSION} has {SIZE}"
            )));
        }
        let bytes = read(SIZE)?.ok_or_else(|| self.damaged("it cannot be read"))?;
        let number = |index: usize| u32_at(&bytes, LAYOUT + 4 * index);
        let layout = RecordOffsets {
            guard: number(0).into(),
            record: number(1) as usize,
            colours: number(2).into(),
            colour_step: number(3).into(),
            stack_pointer: number(4) as usize,
            home: number(5) as usize,
            blocking: number(6) as usize,
            cause: number(7) as usize,
            object: number(8) as usize,
            number: number(9) as usize,
            extra: number(10) as usize,
            bottom: number(11) as usize,
            name: number(12).into(),
            index: number(13).into(),
        };
        if !layout.is_sane() {
            return Err(self.damaged("its layout is impossible"));
        }
        Ok(BeaconReading {
            slabs: u64_at(&bytes, 24),
            kernel: u64_at(&bytes, 32),
            processors: u64_at(&bytes, 40),
            layout,
        })
    }
}

impl RecordOffsets {
    fn is_sane(&self) -> bool {
        let Self {
            record,
            stack_pointer,
            home,
            blocking,
            cause,
            object,
            number,
            extra,
            bottom,
            ..
        } = *self;
        let words = [stack_pointer, home, object, number, extra, bottom];
        let inside = words.iter().all(|at| at + 8 <= record) && blocking < record && cause < record;
        let small = [self.guard, self.colours, self.colour_step, self.name, self.index]
            .iter()
            .all(|&value| value <= MOST_OFFSET);
        inside && small && record <= MOST_OF_RECORD && self.colours > 0
    }
}
