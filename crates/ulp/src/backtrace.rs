//! Where a ULP crashed or was interrupted: the calls under way, by name.
//!
//! Frames are found by the call frame information (`.eh_frame`) of the image's file. Compilers emit
//! it for all code on x86-64, and libc has it for its own, so no frame pointers are needed. Nothing
//! is guessed: a backtrace ends where a caller is not known for certain. Names come from debug
//! information, with lines and inlined functions, or from the symbol table. A call may be in code
//! that all images [share](crate::SharedImage), whose file has the same information. Memory that
//! the ULP has written is read through the kernel (`/proc/self/mem`), since an address may be
//! unmapped.

use crate::image::Image;
use crate::layout::PAGE;
use crate::own::OwnFiles;
use crate::shared::SharedImage;
use addr2line::Context;
use addr2line::gimli::{Dwarf, EndianSlice, Error, LittleEndian, SectionId};
use object::read::elf::ElfFile64;
use object::{Object, ObjectSection, ObjectSymbol, SymbolKind};
use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use upcall_os::frames::{
    CallStack, Sections, UnwindRegisters, UnwindRow, UnwindRules, UnwindTable, unwind,
};

type DebugBytes<'a> = EndianSlice<'a, LittleEndian>;

/// Maximum number of frames in a backtrace. A deeper stack is a recursion that repeats itself.
const MOST: usize = 24;
/// Maximum number of frames searched for a function of the library.
pub(crate) const DEEPEST: usize = 256;
/// Maximum number of addresses of a file whose rules are kept, of about 200 bytes each.
const KNOWN: usize = 1024;
/// For each register in DWARF's order, its index in the kernel's.
const ORDER: [i32; 17] = [
    libc::REG_RAX,
    libc::REG_RDX,
    libc::REG_RCX,
    libc::REG_RBX,
    libc::REG_RSI,
    libc::REG_RDI,
    libc::REG_RBP,
    libc::REG_RSP,
    libc::REG_R8,
    libc::REG_R9,
    libc::REG_R10,
    libc::REG_R11,
    libc::REG_R12,
    libc::REG_R13,
    libc::REG_R14,
    libc::REG_R15,
    libc::REG_RIP,
];

/// Registers, in the kernel's order.
#[derive(Debug)]
pub(crate) struct KernelRegisters(pub(crate) [u64; ORDER.len()]);

/// A call that was under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UlpFrame {
    /// Address of the instruction under way, or return address of the call.
    pub address: u64,
    /// The function's name, as the linker knows it.
    pub function: Option<String>,
    /// Offset in the function; 0 in an inlined function.
    pub offset: u64,
    /// File and line, if there is debug information.
    pub line: Option<(String, u32)>,
}

impl fmt::Display for UlpFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, function, offset, line } = self;
        write!(f, "{address:#x}")?;
        match function {
            Some(function) if *offset > 0 => write!(f, " in {function}+{offset:#x}")?,
            Some(function) => write!(f, " in {function}")?,
            None => {}
        }
        line.as_ref().map_or(Ok(()), |(file, line)| write!(f, " at {file}:{line}"))
    }
}

/// The frames that start with `registers`, of a ULP with this image, base and memory.
pub(crate) fn of(
    registers: &KernelRegisters,
    image: &Image,
    base: u64,
    memory: Range<u64>,
) -> Vec<UlpFrame> {
    let mut bytes = Vec::new();
    if image.has_changed() || image.read_to(&mut bytes).is_err() {
        return Vec::new();
    }
    let shared = SharedImage::all();
    let tables = shared.iter().map(|one| Tables::of(one.file)).collect::<Vec<_>>();
    let mut code = vec![ImageCode::new(&image.tables, base, memory.clone())];
    code.extend(
        shared
            .iter()
            .zip(&tables)
            .map(|(one, tables)| ImageCode::new(tables, one.base, one.memory.clone())),
    );
    let files =
        [(&bytes[..], image.end)].into_iter().chain(shared.iter().map(|one| (one.file, u64::MAX)));
    let names = files.map(|(file, end)| FunctionNames::new(file, end)).collect::<Vec<_>>();
    let mut frames = Vec::new();
    for (address, returns) in calls(registers, &code, memory, MOST).at {
        // The address after a call may belong to the next line or function.
        let inside = address.wrapping_sub(u64::from(returns));
        match code.iter().zip(&names).find(|(code, _)| code.memory.contains(&inside)) {
            Some((code, Some(names))) => {
                frames.extend(names.frames(address, inside.wrapping_sub(code.base)))
            }
            _ => frames.push(UlpFrame { address, function: None, offset: 0, line: None }),
        }
        // The callers of `main` are libc's.
        if frames.last().is_some_and(|frame| frame.function.as_deref() == Some("main")) {
            break;
        }
    }
    frames
}

/// The addresses of the calls under way, down to the first.
///
/// Returns `None` if they are not known for certain, or are more than `most`.
pub(crate) fn addresses(
    registers: &KernelRegisters,
    image: &Image,
    base: u64,
    memory: Range<u64>,
    most: usize,
) -> Option<Vec<u64>> {
    let code = [ImageCode::new(&image.tables, base, memory.clone())];
    let CallStack { at, cut } = calls(registers, &code, memory, most);
    cut.is_none().then(|| at.into_iter().map(|(address, _)| address).collect())
}

type NativeElf<'a> = ElfFile64<'a, object::NativeEndian>;

/// A section's address and contents.
fn section<'a>(elf: &NativeElf<'a>, name: &str) -> (u64, &'a [u8]) {
    let found = elf.section_by_name(name);
    found.map_or((0, &[]), |section| (section.address(), section.data().unwrap_or_default()))
}

/// The call frame information of a file, and the sorted index by which an address is looked up.
///
/// Each comes with its section's address; `text` is the address of the code.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    frames: (u64, Vec<u8>),
    sorted: (u64, Vec<u8>),
    text: u64,
    /// The rules for addresses in the file that were asked for before, at most [`KNOWN`].
    known: Mutex<HashMap<u64, Arc<UnwindRules>>>,
}

impl Tables {
    /// Reads the tables, which are empty if the file has none.
    pub(crate) fn of(file: &[u8]) -> Self {
        let Ok(elf) = NativeElf::parse(file) else { return Self::default() };
        let copied = |name| {
            let (at, bytes) = section(&elf, name);
            (at, bytes.to_vec())
        };
        Self {
            frames: copied(".eh_frame"),
            sorted: copied(".eh_frame_hdr"),
            text: section(&elf, ".text").0,
            known: Mutex::default(),
        }
    }
}

/// The code of a file, with its place in memory.
struct ImageCode<'a> {
    base: u64,
    memory: Range<u64>,
    table: UnwindTable<'a>,
    known: &'a Mutex<HashMap<u64, Arc<UnwindRules>>>,
}

impl<'a> ImageCode<'a> {
    fn new(tables: &'a Tables, base: u64, memory: Range<u64>) -> Self {
        let Tables { frames, sorted, text, known } = tables;
        let sections = Sections {
            text: *text,
            frames: (frames.0, &frames.1),
            sorted: Some((sorted.0, &sorted.1)),
        };
        Self { base, memory, table: UnwindTable::new(sections), known }
    }

    /// How to unwind from an address in the file. A task that moves often stops at the same places,
    /// so the rules are kept.
    fn row(&self, inside: u64) -> Option<UnwindRow<'a>> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(rules) = known.get(&inside) {
            return Some(self.table.known_row(rules.clone()));
        }
        let row = self.table.row(inside).ok()?;
        if known.len() >= KNOWN {
            known.clear();
        }
        known.insert(inside, row.rules());
        Some(row)
    }
}

/// Reads words of memory that may be unmapped. It asks the kernel for a whole page, which many of
/// the words are on.
struct PageReader<'a> {
    memory: &'a File,
    page: RefCell<(u64, [u8; PAGE as usize])>,
}

impl<'a> PageReader<'a> {
    fn new(memory: &'a File) -> Self {
        // There is no such page.
        Self { memory, page: RefCell::new((u64::MAX, [0; PAGE as usize])) }
    }

    /// The word at an address. `None`: it cannot be read.
    fn word(&self, at: u64) -> Option<u64> {
        let (page, offset) = (at / PAGE * PAGE, (at % PAGE) as usize);
        let mut bytes = [0; 8];
        if offset + bytes.len() > PAGE as usize {
            self.memory.read_exact_at(&mut bytes, at).ok()?;
            return Some(u64::from_ne_bytes(bytes));
        }
        let (known, contents) = &mut *self.page.borrow_mut();
        if *known != page {
            *known = u64::MAX;
            self.memory.read_exact_at(contents, page).ok()?;
            *known = page;
        }
        contents[offset..].first_chunk().map(|word| u64::from_ne_bytes(*word))
    }
}

/// The calls under way, at most `most`, as far as they are known for certain. `memory` is where the
/// stack may be.
fn calls(
    registers: &KernelRegisters,
    code: &[ImageCode<'_>],
    memory: Range<u64>,
    most: usize,
) -> CallStack {
    let files = OwnFiles::get();
    let reader = files.as_ref().ok().map(|files| PageReader::new(&files.memory));
    let word = |at: u64| {
        let inside = memory.contains(&at) && memory.contains(&at.checked_add(7)?);
        reader.as_ref().filter(|_| inside)?.word(at)
    };
    let find = |address: u64| code.iter().find(|code| code.memory.contains(&address));
    let rows = |address: u64| {
        let code = find(address).ok_or("it is in no code that is known")?;
        code.row(address.wrapping_sub(code.base)).ok_or("nothing is said of it")
    };
    let place = UnwindRegisters::stopped(ORDER.map(|at| Some(registers.0[at as usize])));
    let address = place.address().unwrap_or_default();
    if find(address).is_some() {
        return unwind(rows, place, most, &word);
    }
    // The ULP called a pointer that does not point to code.
    let mut calls = unwind(rows, place.returned(&word), most - 1, &word);
    calls.at.insert(0, (address, false));
    calls.cut.get_or_insert_with(|| "it was called by a pointer to no code".into());
    calls
}

/// The functions of an image's file.
struct FunctionNames<'a> {
    debug: Option<Context<DebugBytes<'a>>>,
    /// Address, size and name, sorted by address.
    symbols: Vec<(u64, u64, &'a str)>,
    /// The end of the image in memory.
    end: u64,
}

impl<'a> FunctionNames<'a> {
    fn new(file: &'a [u8], end: u64) -> Option<Self> {
        let elf = &NativeElf::parse(file).ok()?;
        let load = |id: SectionId| {
            Ok::<_, Error>(DebugBytes::new(section(elf, id.name()).1, LittleEndian))
        };
        let debug = Dwarf::load(load).and_then(Context::from_dwarf).ok();
        let functions = elf
            .symbols()
            .filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.is_definition());
        let functions = functions
            .filter_map(|symbol| Some((symbol.address(), symbol.size(), symbol.name().ok()?)));
        let mut symbols = functions.collect::<Vec<_>>();
        symbols.sort_unstable();
        Some(Self { debug, symbols, end })
    }

    /// The functions that contain an address, inlined ones first.
    ///
    /// `inside` is the address in the file, and `address` the one in memory.
    fn frames(&self, address: u64, inside: u64) -> Vec<UlpFrame> {
        let mut frames = self.debug_frames(address, inside).unwrap_or_default();
        if frames.is_empty() {
            frames.push(UlpFrame { address, function: None, offset: 0, line: None });
        }
        // The outermost function is not inlined, so it has a symbol.
        if let Some(last) = frames.last_mut()
            && let Some((start, name)) = self.symbol(inside)
        {
            last.function.get_or_insert_with(|| name.to_owned());
            last.offset = inside - start;
        }
        frames
    }

    fn debug_frames(&self, address: u64, inside: u64) -> Option<Vec<UlpFrame>> {
        let mut found = self.debug.as_ref()?.find_frames(inside).skip_all_loads().ok()?;
        let mut frames = Vec::new();
        while let Some(frame) = found.next().ok()? {
            let function = frame
                .function
                .as_ref()
                .and_then(|function| Some(function.raw_name().ok()?.into_owned()));
            let place = frame.location.and_then(|place| Some((place.file?, place.line?)));
            // As in gdb: the file's name without its folder.
            let line = place.map(|(file, line)| {
                let name = Path::new(file).file_name().unwrap_or_default();
                (name.to_string_lossy().into_owned(), line)
            });
            frames.push(UlpFrame { address, function, offset: 0, line });
        }
        Some(frames)
    }

    fn symbol(&self, inside: u64) -> Option<(u64, &'a str)> {
        let after = self.symbols.partition_point(|(start, ..)| *start <= inside);
        let &(start, size, name) = self.symbols.get(after.checked_sub(1)?)?;
        // Assembly often gives no size.
        (inside < self.end && (size == 0 || inside - start < size)).then_some((start, name))
    }
}
