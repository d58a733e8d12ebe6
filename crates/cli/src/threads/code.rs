//! The code of a process: for an address, the way to unwind from there and the functions around it.
//! Each file is read when it is first needed.

use super::image::{Elf, MappedFile};
use super::symbols::Symbols;
use super::unwind::{self, UnwindRow, UnwindTable};
use std::cell::OnceCell;
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

/// One line of a backtrace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BacktraceLine {
    pub address: u64,
    pub function: Option<String>,
    pub file: Option<String>,
    pub line: Option<u32>,
}

/// The way to unwind from an instruction, or the reason why it is unknown.
type Unwindable = Result<Rc<UnwindRow<'static>>, Rc<str>>;
/// The functions around an instruction, the innermost inlined one first.
type Frames = Rc<[BacktraceLine]>;

/// The code of a process.
pub struct ProcessCode<'a> {
    images: Vec<MappedFile<'a>>,
    opened: Vec<OnceCell<Result<CodeFile, String>>>,
    /// By address. Many threads share few addresses.
    rows: RefCell<HashMap<u64, Unwindable>>,
    /// By address and whether the address is a return address.
    frames: RefCell<HashMap<(u64, bool), Frames>>,
}

/// A file of code.
struct CodeFile {
    bias: u64,
    elf: Elf<'static>,
    table: UnwindTable<'static>,
    symbols: OnceCell<Symbols>,
}

impl<'a> ProcessCode<'a> {
    pub fn new(images: Vec<MappedFile<'a>>) -> Self {
        let opened = images.iter().map(|_| OnceCell::new()).collect();
        Self { images, opened, rows: RefCell::default(), frames: RefCell::default() }
    }

    fn at(&self, address: u64) -> Result<&CodeFile, String> {
        let place = self.images.iter().position(|image| image.has_code_at(address));
        let place =
            place.ok_or_else(|| format!("0x{address:x} is in no code that a file holds"))?;
        let open = || {
            let image = &self.images[place];
            let elf = image
                .read()
                .map_err(|error| format!("{} cannot be read: {error}", image.path().display()))?;
            let bias = image
                .bias(&elf)
                .ok_or_else(|| format!("{} is not mapped as it says", image.path().display()))?;
            Ok(CodeFile { bias, table: unwind::table(&elf), elf, symbols: OnceCell::new() })
        };
        self.opened[place].get_or_init(open).as_ref().map_err(String::clone)
    }

    /// The way to unwind from the instruction at `address`.
    pub fn row(&self, address: u64) -> Unwindable {
        let find = || {
            let opened = self.at(address)?;
            let row = opened.table.row(address.wrapping_sub(opened.bias));
            Ok::<_, String>(Rc::new(
                row.map_err(|error| format!("no unwind information for 0x{address:x}: {error}"))?,
            ))
        };
        let mut rows = self.rows.borrow_mut();
        rows.entry(address).or_insert_with(|| find().map_err(Rc::from)).clone()
    }

    /// The functions around the instruction at `address`; of a `return_address`, those around the
    /// call before it.
    pub fn frames(&self, address: u64, return_address: bool) -> Frames {
        let find = || {
            let unknown =
                || vec![BacktraceLine { address, function: None, file: None, line: None }];
            let frames = self.at(address).map(|opened| {
                let symbols = opened.symbols.get_or_init(|| Symbols::new(&opened.elf));
                let inside =
                    address.wrapping_sub(opened.bias).wrapping_sub(u64::from(return_address));
                symbols.frames(inside, address)
            });
            frames.unwrap_or_else(|_| unknown()).into()
        };
        self.frames.borrow_mut().entry((address, return_address)).or_insert_with(find).clone()
    }
}
