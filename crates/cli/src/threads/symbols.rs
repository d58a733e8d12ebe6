//! Names of functions: from the debug information, with inlined functions and lines, or else from
//! the symbol table.
//!
//! Debug information with lines only (`debug = "line-tables-only"`, as in many release builds) has
//! functions without crate and module. The symbol of a function that was not inlined has both. For
//! inlined functions of the standard library and of `upcall-thread` the source file gives the
//! module.

use super::code::BacktraceLine;
use super::image::Elf;
use crate::output::line;
use addr2line::Context;
use addr2line::gimli::{Dwarf, EndianSlice, LittleEndian};
use object::{Object, ObjectSection, ObjectSymbol, SymbolKind};

type SymbolBytes = EndianSlice<'static, LittleEndian>;

/// The functions of a file, by their addresses in the file.
pub struct Symbols {
    context: Option<Context<SymbolBytes>>,
    /// Address, size and name, by address.
    table: Vec<(u64, u64, &'static str)>,
    /// The folder of the sources of `upcall-thread` when the program was built.
    sources: Option<String>,
}

/// Names of a function of `upcall-thread` that is never inlined, and its files, in this and earlier
/// versions.
const KNOWN: [&str; 3] = [
    "upcall_thread::dispatch::<impl upcall_thread::vp::Vp>::find",
    "upcall_thread::vp::Vp::find",
    "<upcall_thread::vp::Vp>::find",
];
const KNOWN_FILES: [&str; 2] = ["dispatch.rs", "vp.rs"];

impl Symbols {
    pub fn new(elf: &Elf<'static>) -> Self {
        let section = |name: &str| {
            elf.section_by_name(name).and_then(|section| section.data().ok()).unwrap_or_default()
        };
        let load = |id: addr2line::gimli::SectionId| {
            Ok::<_, addr2line::gimli::Error>(SymbolBytes::new(section(id.name()), LittleEndian))
        };
        let context = Dwarf::load(load).and_then(Context::from_dwarf).ok();
        let functions = elf
            .symbols()
            .chain(elf.dynamic_symbols())
            .filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.is_definition());
        let mut table: Vec<_> = functions
            .filter_map(|symbol| Some((symbol.address(), symbol.size(), symbol.name().ok()?)))
            .collect();
        table.sort_unstable();
        let mut symbols = Self { context, table, sources: None };
        symbols.sources = symbols.find_sources();
        symbols
    }

    fn find_sources(&self) -> Option<String> {
        let candidates = self
            .table
            .iter()
            .filter(|(.., name)| name.contains("upcall_thread") && name.contains("find"));
        let (address, ..) =
            candidates.clone().find(|(.., name)| KNOWN.contains(&demangled(name).as_str()))?;
        let frames = self.debug_information(*address, *address).ok()?;
        let frames_file = frames.last()?.file.as_ref()?;
        KNOWN_FILES.iter().find_map(|known| frames_file.strip_suffix(known)).map(String::from)
    }

    /// The functions around `inside`, an address in the file. `address` is that place in memory.
    pub fn frames(&self, inside: u64, address: u64) -> Vec<BacktraceLine> {
        let mut frames = self.debug_information(inside, address).unwrap_or_default();
        if frames.is_empty() {
            frames.push(BacktraceLine { address, function: None, file: None, line: None });
        }
        // The outermost function was not inlined, so it has a symbol.
        if let Some(last) = frames.last_mut()
            && !last.function.as_deref().is_some_and(is_qualified)
            && let Some(symbol) = self.symbol(inside)
        {
            last.function = Some(demangled(symbol));
        }
        for frame in &mut frames {
            if let Some(function) = frame.function.take() {
                let known = is_qualified(&function);
                frame.function = Some(if known {
                    function
                } else {
                    self.qualified(&function, frame.file.as_deref())
                });
            }
        }
        frames
    }

    /// Completes the name of a function with the module that its file gives. Type parameters are
    /// left out, because their names are long and say little.
    fn qualified(&self, function: &str, file: Option<&str>) -> String {
        let name = function.split('<').next().unwrap_or(function);
        let module = file.and_then(|file| {
            let ours =
                self.sources.as_ref().and_then(|sources| file.strip_prefix(sources.as_str()));
            let ours = ours.map(|rest| ("upcall_thread", rest));
            let (of, rest) =
                ours.or_else(|| file.split_once("/library/")?.1.split_once("/src/"))?;
            let rest = rest.strip_suffix(".rs")?;
            let inside = rest.strip_suffix("/mod").unwrap_or(rest).replace('/', "::");
            Some(if rest == "lib" { of.to_string() } else { format!("{of}::{inside}") })
        });
        module.map_or_else(|| name.to_string(), |module| format!("{module}::{name}"))
    }

    fn debug_information(
        &self,
        inside: u64,
        address: u64,
    ) -> Result<Vec<BacktraceLine>, addr2line::gimli::Error> {
        let Some(context) = &self.context else { return Ok(Vec::new()) };
        let mut found = context.find_frames(inside).skip_all_loads()?;
        let mut frames = Vec::new();
        while let Some(frame) = found.next()? {
            let name = frame.function.as_ref().and_then(|function| function.raw_name().ok());
            let location = frame.location.as_ref();
            frames.push(BacktraceLine {
                address,
                function: name.map(|name| demangled(&name)),
                file: location.and_then(|location| location.file).map(line),
                line: location.and_then(|location| location.line),
            });
        }
        Ok(frames)
    }

    fn symbol(&self, inside: u64) -> Option<&'static str> {
        let after = self.table.partition_point(|(start, ..)| *start <= inside);
        // Functions in assembly often have no size.
        let (start, size, name) = self.table.get(after.checked_sub(1)?)?;
        (*size == 0 || inside - start < *size).then_some(name)
    }
}

/// Returns `true` if the name has a crate and a module, or is of a method of a trait.
fn is_qualified(function: &str) -> bool {
    function.starts_with('<') || function.split('<').next().is_some_and(|path| path.contains("::"))
}

/// The name as people write it, without the compiler's hash.
fn demangled(name: &str) -> String {
    let name = rustc_demangle::try_demangle(name)
        .map_or_else(|_| name.to_string(), |name| format!("{name:#}"));
    line(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_without_a_module_get_one() {
        let symbols = Symbols {
            context: None,
            table: Vec::new(),
            sources: Some("/home/x/thread/src/".into()),
        };
        for (name, file, expected) in [
            ("lock<usize>", "/home/x/thread/src/mutex.rs", "upcall_thread::mutex::lock"),
            ("switch", "/home/x/thread/src/arch/x86_64.rs", "upcall_thread::arch::x86_64::switch"),
            (
                "do_call<a::B, ()>",
                "/rustc/59807616/library/std/src/panicking.rs",
                "std::panicking::do_call",
            ),
            ("f<u8>", "/rustc/59807616/library/core/src/ops/mod.rs", "core::ops::f"),
            ("own<u8>", "/home/x/src/main.rs", "own"),
        ] {
            assert_eq!(symbols.qualified(name, Some(file)), expected);
        }
        assert!(
            !is_qualified("lock<std::Thing>")
                && is_qualified("<a::B as C>::f")
                && is_qualified("a::f<u8>")
        );
    }
}
