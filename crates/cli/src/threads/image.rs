//! The program and the shared libraries of a process: their ELF files, and the load bias of each.

use super::memory;
use super::process::{MappedRange, TargetProcess};
use object::elf::{PF_X, PT_LOAD};
use object::read::elf::{ElfFile64, ProgramHeader};
use object::{LittleEndian, ReadCache, ReadRef};
use std::collections::HashMap;
use std::io;
use std::path::PathBuf;

const PAGE: u64 = 4096;
/// Maximum size of a vdso, in bytes.
const MOST_OF_VDSO: u64 = 1 << 20;

/// An ELF file of 64 bits, read from `R`.
pub type Elf<'data, R = &'data [u8]> = ElfFile64<'data, LittleEndian, R>;

/// The mapped parts of one file.
pub struct MappedFile<'a> {
    process: &'a TargetProcess,
    mappings: Vec<&'a MappedRange>,
}

impl<'a> MappedFile<'a> {
    /// All files that the process maps, in the order of addresses.
    pub fn all(process: &'a TargetProcess) -> Vec<Self> {
        let mut images: Vec<Self> = Vec::new();
        let mut known = HashMap::new();
        for mapping in &process.mappings {
            let place = *known.entry((mapping.inode, &mapping.path)).or_insert(images.len());
            match images.get_mut(place) {
                Some(image) => image.mappings.push(mapping),
                None => images.push(Self { process, mappings: vec![mapping] }),
            }
        }
        images
    }

    pub fn path(&self) -> &'a PathBuf {
        &self.mappings[0].path
    }

    /// Returns `true` if code of the file is at `address`.
    pub fn has_code_at(&self, address: u64) -> bool {
        self.mappings
            .iter()
            .any(|mapping| mapping.executable && (mapping.start..mapping.end).contains(&address))
    }

    /// Returns `true` for the kernel's code, which has no file.
    fn is_vdso(&self) -> bool {
        self.mappings[0].inode == 0
    }

    /// Runs `look` on the file, of which only the needed parts are read. Returns `None` if the file
    /// is not a program.
    pub fn peek<T>(
        &self,
        look: impl FnOnce(&Elf<'_, &ReadCache<std::fs::File>>) -> Option<T>,
    ) -> io::Result<Option<T>> {
        if self.is_vdso() || !self.mappings.iter().any(|mapping| mapping.executable) {
            return Ok(None);
        }
        let file = ReadCache::new(self.process.open(self.mappings[0])?);
        Ok(Elf::parse(&file).ok().and_then(|elf| look(&elf)))
    }

    /// The whole file. Each file is read once and kept until this command ends, which is soon.
    pub fn read(&self) -> io::Result<Elf<'static>> {
        let bytes = if self.is_vdso() {
            let MappedRange { start, end, .. } = self.mappings[0];
            let bytes =
                memory::read(self.process.pid, *start, (end - start).min(MOST_OF_VDSO) as usize)?;
            bytes
                .ok_or_else(|| io::Error::new(io::ErrorKind::UnexpectedEof, "it cannot be read"))?
        } else {
            let mut bytes = Vec::new();
            io::Read::read_to_end(&mut self.process.open(self.mappings[0])?, &mut bytes)?;
            bytes
        };
        Elf::parse(&*Vec::leak(bytes))
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }

    /// The difference between an address in memory and the one in the file. The difference may be
    /// negative, so additions wrap.
    pub fn bias<'data, R: ReadRef<'data>>(&self, elf: &Elf<'data, R>) -> Option<u64> {
        let page = |address: u64| address & !(PAGE - 1);
        let segments = elf
            .elf_program_headers()
            .iter()
            .filter(|header| header.p_type(LittleEndian) == PT_LOAD);
        // Only code counts: the kernel maps whole pages, and one page of the file may belong to two
        // segments.
        let code = segments.filter(|header| header.p_flags(LittleEndian) & PF_X == PF_X);
        code.into_iter().find_map(|header| {
            let (offset, length) = (header.p_offset(LittleEndian), header.p_filesz(LittleEndian));
            let range = page(offset)..offset.saturating_add(length);
            let mapping = self
                .mappings
                .iter()
                .find(|mapping| mapping.executable && range.contains(&mapping.offset))?;
            let start = mapping.start.wrapping_sub(mapping.offset - range.start);
            Some(start.wrapping_sub(page(header.p_vaddr(LittleEndian))))
        })
    }
}
