//! Where a ULP was when it crashed, or was interrupted: the calls under way, by name.
//!
//! Frames are found by the call frame information (`.eh_frame`) of the image's file, which
//! compilers write for all code on x86-64, and libc has for its own; so no frame pointers are
//! needed, and nothing is guessed: a backtrace ends where a caller is not known for certain. Names
//! come from debug information, with lines and what was inlined, or from the symbol table.
//! A call may have been under way in what all images [share](crate::SharedImage); its file has the
//! same. What the ULP has written is read as the kernel reads it (`/proc/self/mem`), for there may
//! be nothing at an address.

use crate::image::Image;
use crate::shared::SharedImage;
use addr2line::Context;
use addr2line::gimli::{Dwarf, EndianSlice, Error, LittleEndian, SectionId};
use object::read::elf::ElfFile64;
use object::{Object, ObjectSection, ObjectSymbol, SymbolKind};
use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use upcall_os::frames::{CallStack, Sections, UnwindRegisters, UnwindTable, unwind};

type DebugBytes<'a> = EndianSlice<'a, LittleEndian>;

/// Deeper is a recursion that repeats itself.
const MOST: usize = 24;
/// So deep it is looked whether a function of the library's is under way.
const DEEPEST: usize = 256;
/// For each register in DWARF's order, where it is in the kernel's.
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

/// As the kernel has them.
#[derive(Debug)]
pub(crate) struct KernelRegisters(pub(crate) [u64; ORDER.len()]);

/// A call that was under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UlpFrame {
    /// The instruction, or the one that the call returns to.
    pub address: u64,
    /// The function, as the linker knows it.
    pub function: Option<String>,
    /// How far into it; 0 for one that was inlined.
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

/// From these registers on, of an image at this base, whose ULP has this memory.
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
        // What is behind a call may be of the next line, or function.
        let inside = address.wrapping_sub(u64::from(returns));
        match code.iter().zip(&names).find(|(code, _)| code.memory.contains(&inside)) {
            Some((code, Some(names))) => {
                frames.extend(names.frames(address, inside.wrapping_sub(code.base)))
            }
            _ => frames.push(UlpFrame { address, function: None, offset: 0, line: None }),
        }
        // Its callers are libc's.
        if frames.last().is_some_and(|frame| frame.function.as_deref() == Some("main")) {
            break;
        }
    }
    frames
}

/// Where the calls under way are, of such an image, down to the first one. `None`: that cannot be
/// told for certain, or there are too many.
pub(crate) fn addresses(
    registers: &KernelRegisters,
    image: &Image,
    base: u64,
    memory: Range<u64>,
) -> Option<Vec<u64>> {
    let code = [ImageCode::new(&image.tables, base, memory.clone())];
    let CallStack { at, cut } = calls(registers, &code, memory, DEEPEST);
    cut.is_none().then(|| at.into_iter().map(|(address, _)| address).collect())
}

type NativeElf<'a> = ElfFile64<'a, object::NativeEndian>;

/// The section's address, and what is in it.
fn section<'a>(elf: &NativeElf<'a>, name: &str) -> (u64, &'a [u8]) {
    let found = elf.section_by_name(name);
    found.map_or((0, &[]), |section| (section.address(), section.data().unwrap_or_default()))
}

/// A file's call frame information, and that by which an address is found there at once; with their
/// addresses, and the code's.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tables {
    frames: (u64, Vec<u8>),
    sorted: (u64, Vec<u8>),
    text: u64,
}

impl Tables {
    /// Empty if there is none.
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
        }
    }
}

/// A file's code, and where it lies.
struct ImageCode<'a> {
    base: u64,
    memory: Range<u64>,
    table: UnwindTable<'a>,
}

impl<'a> ImageCode<'a> {
    fn new(Tables { frames, sorted, text }: &'a Tables, base: u64, memory: Range<u64>) -> Self {
        let sections = Sections {
            text: *text,
            frames: (frames.0, &frames.1),
            sorted: Some((sorted.0, &sorted.1)),
        };
        Self { base, memory, table: UnwindTable::new(sections) }
    }
}

/// So many at most; as far as they are known for certain, but for who called what is no code.
fn calls(
    registers: &KernelRegisters,
    code: &[ImageCode<'_>],
    memory: Range<u64>,
    most: usize,
) -> CallStack {
    let own = File::open("/proc/self/mem");
    let word = |at: u64| {
        let mut word = [0; 8];
        let inside = memory.contains(&at) && memory.contains(&at.checked_add(7)?);
        own.as_ref().ok().filter(|_| inside)?.read_exact_at(&mut word, at).ok()?;
        Some(u64::from_ne_bytes(word))
    };
    let find = |address: u64| code.iter().find(|code| code.memory.contains(&address));
    let rows = |address: u64| {
        let code = find(address).ok_or("it is in no code that is known")?;
        code.table.row(address.wrapping_sub(code.base)).map_err(|_| "nothing is said of it")
    };
    let place = UnwindRegisters::stopped(ORDER.map(|at| Some(registers.0[at as usize])));
    let address = place.address().unwrap_or_default();
    if find(address).is_some() {
        return unwind(rows, place, most, &word);
    }
    // It was called by a pointer to what is no code.
    let mut calls = unwind(rows, place.returned(&word), most - 1, &word);
    calls.at.insert(0, (address, false));
    calls.cut.get_or_insert_with(|| "it was called by a pointer to no code".into());
    calls
}

/// What an image's file says of its functions.
struct FunctionNames<'a> {
    debug: Option<Context<DebugBytes<'a>>>,
    /// Address, size and name, by address.
    symbols: Vec<(u64, u64, &'a str)>,
    /// Nothing of the image lies behind this.
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

    /// The functions that an address in the file is in, those that were inlined first; `address` is
    /// what it is in memory.
    fn frames(&self, address: u64, inside: u64) -> Vec<UlpFrame> {
        let mut frames = self.debug_frames(address, inside).unwrap_or_default();
        if frames.is_empty() {
            frames.push(UlpFrame { address, function: None, offset: 0, line: None });
        }
        // The outermost is no inlined one, so it has a symbol.
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
            // As gdb: the file's name without its folder.
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
