//! Lowers WIT to the checked model. Only this folder uses `wit-parser`, whose interface changes
//! with every release.
//!
//! Everything that Upcall does not compile is refused here, with the place and with what to write
//! instead, so that no code behind this module has to handle it. Types are taken over only if an
//! interface of the compiled package uses them; a package in `deps` that is not used may contain
//! anything.

mod advice;
mod carried;
mod procedures;
mod types;
mod worlds;

use crate::error::{Error, Location};
use crate::limits::LimitsFile;
use crate::model::{InterfaceDefinition, Model, ProcedureDefinition, TypeId};
use std::borrow::Cow;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use wit_parser::{InterfaceId, PackageId, ParseError, Resolve, ResolveError, Span, WorldId};

/// Maximum nesting depth of types, including named types. All code behind this module recurses over
/// types.
pub const MAX_DEPTH: usize = 48;

/// Maximum number of parameters of a procedure, and of members of a tuple. The runtime implements
/// tuples up to this size.
pub const MAX_MEMBERS: usize = 16;

/// Maximum number of procedures of an interface. A binding can number no more.
pub const MAX_PROCEDURES: usize = 1000;

/// Maximum total length of a package's signatures, in bytes. A definition from another domain must
/// not be able to use up memory with types that are long when written out.
const MAX_SIGNATURES: usize = 64 << 20;

/// The source of the WIT text.
pub(crate) enum WitSource<'a> {
    /// A `.wit` file, or a folder of them with an optional `deps` folder.
    Path(&'a Path),
    /// The name for error messages, and the text.
    Text(&'a str, &'a str),
}

/// Reads, checks and lays out.
///
/// # Errors
/// The first error found.
pub(crate) fn parse(source: &WitSource<'_>, limits: &LimitsFile) -> Result<Model, Error> {
    parse_all(source, limits, 1).map_err(|mut errors| errors.swap_remove(0))
}

/// Reads, checks and lays out, and collects errors.
///
/// # Errors
/// At least one error, and at most `most`. Text that is not WIT ends the reading at once.
pub(crate) fn parse_all(
    source: &WitSource<'_>,
    limits: &LimitsFile,
    most: usize,
) -> Result<Model, Vec<Error>> {
    let (resolve, package, mut files) = read(source).map_err(|error| vec![error])?;
    files.sort();
    let name = &resolve.packages[package].name;
    let model = Model {
        package: format!("{}:{}", name.namespace, name.name),
        version: name.version.as_ref().map(ToString::to_string),
        interfaces: Vec::new(),
        types: Vec::new(),
        files,
        source: String::new(),
        limits: limits.text().to_owned(),
    };
    let mut lowering = Lowering {
        resolve: &resolve,
        source,
        limits,
        package,
        types: HashMap::new(),
        interfaces: HashMap::new(),
        worlds: HashMap::new(),
        depths: Vec::new(),
        errors: Vec::new(),
        most,
        signatures: 0,
        model,
    };
    lowering.package();
    let Lowering { mut errors, mut model, .. } = lowering;
    if let Err(error) = limits.check_names(&model) {
        // A limit of a procedure that was refused is not a second mistake.
        if errors.is_empty() {
            errors.push(error);
        }
    }
    if errors.is_empty() {
        model.source = text(source, &model).map_err(|error| vec![error])?;
        Ok(model)
    } else {
        Err(errors)
    }
}

/// The package as one text.
fn text(source: &WitSource<'_>, model: &Model) -> Result<String, Error> {
    match (source, model.files.as_slice()) {
        (WitSource::Text(_, text), _) => Ok((*text).to_owned()),
        (WitSource::Path(_), [file]) => std::fs::read_to_string(file)
            .map_err(|e| Error::file("read", file, &e, "run the build again")),
        (WitSource::Path(_), _) => Ok(crate::print::print(model)),
    }
}

/// The parser's tables, the package, and the files that were read.
fn read(source: &WitSource<'_>) -> Result<(Resolve, PackageId, Vec<PathBuf>), Error> {
    let mut resolve = Resolve { all_features: true, ..Resolve::default() };
    let pushed = match source {
        WitSource::Path(path) if path.is_dir() => resolve.push_dir(path).map(|(package, files)| {
            (package, files.paths().map(Path::to_owned).collect::<Vec<PathBuf>>())
        }),
        WitSource::Path(path) => {
            let text = std::fs::read_to_string(path).map_err(|e| {
                Error::file("read", path, &e, "name a .wit file, or a folder of them")
            })?;
            resolve.push_str(path, &text).map(|package| (package, vec![path.to_path_buf()]))
        }
        WitSource::Text(name, text) => {
            check_nesting(name, text)?;
            resolve.push_str(name, text).map(|package| (package, Vec::new()))
        }
    };
    match pushed {
        Ok((package, files)) => Ok((resolve, package, files)),
        Err(error) => {
            let parse = error.chain().find_map(|layer| layer.downcast_ref::<ParseError>());
            let resolved = error.chain().find_map(|layer| layer.downcast_ref::<ResolveError>());
            let span = parse.map(|e| e.kind().span()).or(resolved.map(|e| e.kind().span()));
            let at =
                span.map(|span| place(&resolve, span, source)).unwrap_or_else(|| whole(source));
            // The innermost error says what is wrong. The outer ones repeat the path, which `at`
            // already has.
            let message = match (parse, span) {
                (Some(error), _) => advised(&resolve, error, source),
                (None, Some(_)) => error.root_cause().to_string(),
                (None, None) => format!("{error:#}"),
            };
            Err(Error::Wit { at, message })
        }
    }
}

/// The parser's error, with advice if its text can still be read.
fn advised(resolve: &Resolve, error: &ParseError, source: &WitSource<'_>) -> String {
    let found = resolve.source_map.resolve_span(error.kind().span());
    let text = found.as_ref().and_then(|found| match source {
        WitSource::Text(_, text) => Some(Cow::Borrowed(*text)),
        WitSource::Path(_) => std::fs::read_to_string(found.path).ok().map(Cow::Owned),
    });
    match (found, text) {
        (Some(found), Some(text)) => advice::advise(error, &text, found.range.start),
        _ => error.to_string(),
    }
}

/// The parser and the checks recurse over nested types. A definition from another domain must not
/// be able to overrun the stack, so the depth of `<` is bounded before any other code reads the
/// text.
fn check_nesting(name: &str, text: &str) -> Result<(), Error> {
    let mut depth = 0_usize;
    let mut before = '\n';
    let mut comment = false;
    for (offset, c) in text.char_indices() {
        match c {
            '\n' => comment = false,
            '/' if before == '/' => comment = true,
            '<' if !comment => depth += 1,
            '>' if !comment && before != '-' => depth = depth.saturating_sub(1),
            _ => {}
        }
        before = c;
        if depth > MAX_DEPTH {
            let at = Location::of_offset(name, text, offset);
            return Err(too_deep(&at));
        }
    }
    Ok(())
}

fn too_deep(at: &Location) -> Error {
    Error::unsupported(
        at,
        format!("a type nested more than {MAX_DEPTH} deep"),
        "flatten it, or pass it as list<u8>",
    )
}

fn whole(source: &WitSource<'_>) -> Location {
    let file = match source {
        WitSource::Path(path) => path.display().to_string(),
        WitSource::Text(name, _) => (*name).to_owned(),
    };
    Location { file, line: 0, column: 0 }
}

/// Parses the parser's `file:line:column`. The numbers are taken from the end, since file names may
/// contain colons.
fn place(resolve: &Resolve, span: Span, source: &WitSource<'_>) -> Location {
    if !span.is_known() || resolve.source_map.resolve_span(span).is_none() {
        return whole(source);
    }
    let text = resolve.render_location(span);
    let mut parts = text.rsplitn(3, ':');
    let (column, line, file) = (parts.next(), parts.next(), parts.next());
    match (file, line.and_then(|l| l.parse().ok()), column.and_then(|c| c.parse().ok())) {
        (Some(file), Some(line), Some(column)) => Location { file: file.to_owned(), line, column },
        _ => whole(source),
    }
}

/// The walk over the parser's tables.
struct Lowering<'a> {
    resolve: &'a Resolve,
    source: &'a WitSource<'a>,
    limits: &'a LimitsFile,
    package: PackageId,
    types: HashMap<wit_parser::TypeId, TypeId>,
    interfaces: HashMap<InterfaceId, usize>,
    /// The interfaces made from the declarations of a world, by world and by whether they are
    /// imported.
    worlds: HashMap<(WorldId, bool), usize>,
    /// The nesting depth of each type of the model.
    depths: Vec<usize>,
    /// The errors found. The walk continues until there are `most`, so that one run can report them
    /// all. For a definition from another domain it ends at the first error: the work must be
    /// bounded by the definition's length.
    errors: Vec<Error>,
    most: usize,
    /// Total length of the signatures so far, in bytes.
    signatures: usize,
    model: Model,
}

impl Lowering<'_> {
    fn at(&self, span: Span) -> Location {
        place(self.resolve, span, self.source)
    }

    fn package(&mut self) {
        let resolve = self.resolve;
        let package = &resolve.packages[self.package];
        // The file system decides the order in which a folder is read; the order by place in the
        // text is stable.
        let mut own: Vec<_> = package.interfaces.values().copied().collect();
        own.sort_by_key(|id| self.at(resolve.interfaces[*id].span));
        for id in &own {
            self.interface(*id);
        }
        for id in own {
            self.whole(id);
        }
        let mut worlds: Vec<_> = package.worlds.values().copied().collect();
        worlds.sort_by_key(|id| self.at(resolve.worlds[*id].span));
        for id in worlds {
            self.world(id);
        }
        self.carry();
    }

    /// Takes over an interface with all of its procedures.
    fn whole(&mut self, id: InterfaceId) {
        let resolve = self.resolve;
        let index = self.interface(id);
        for ty in resolve.interfaces[id].types.values() {
            let done = self.named(*ty, 0);
            self.note(done);
            if self.full() {
                return;
            }
        }
        for function in resolve.interfaces[id].functions.values() {
            self.add(index, function);
            if self.full() {
                return;
            }
        }
    }

    /// Takes over a procedure.
    fn add(&mut self, interface: usize, function: &wit_parser::Function) {
        if self.model.interfaces[interface].procedures.len() == MAX_PROCEDURES {
            return self.too_many(interface);
        }
        let done = self.procedure(interface, function).and_then(|p| self.written(&p).map(|()| p));
        if let Some(procedure) = self.note(done) {
            self.model.interfaces[interface].procedures.push(procedure);
        }
    }

    fn too_many(&mut self, interface: usize) {
        let construct = format!("an interface with more than {MAX_PROCEDURES} procedures");
        let error = Error::unsupported(&self.model.interfaces[interface].at, construct, "split it");
        self.note::<()>(Err(error));
    }

    /// Adds a signature to the total length.
    fn written(&mut self, procedure: &ProcedureDefinition) -> Result<(), Error> {
        self.signatures += procedure.signature.len();
        if self.signatures <= MAX_SIGNATURES {
            return Ok(());
        }
        let construct = format!(
            "a package whose procedures take more than {MAX_SIGNATURES} bytes to write out"
        );
        Err(Error::unsupported(
            &procedure.at,
            construct,
            "split it, or pass large types as list<u8>",
        ))
    }

    fn full(&self) -> bool {
        self.errors.len() >= self.most
    }

    /// Keeps an error. Every use of a refused type fails with the same error, which is kept once.
    fn note<T>(&mut self, done: Result<T, Error>) -> Option<T> {
        match done {
            Ok(value) => Some(value),
            Err(error) => {
                if !self.full() && !self.errors.contains(&error) {
                    self.errors.push(error);
                }
                None
            }
        }
    }

    fn interface(&mut self, id: InterfaceId) -> usize {
        if let Some(index) = self.interfaces.get(&id) {
            return *index;
        }
        let interface = &self.resolve.interfaces[id];
        let name = interface.name.clone().unwrap_or_default();
        let foreign = interface
            .package
            .filter(|p| *p != self.package)
            .map(|p| self.resolve.packages[p].name.to_string());
        let index = self.model.interfaces.len();
        self.model.interfaces.push(InterfaceDefinition {
            id: self.resolve.id_of(id).unwrap_or_else(|| name.clone()),
            name,
            foreign,
            docs: interface.docs.contents.clone(),
            at: self.at(interface.span),
            types: Vec::new(),
            procedures: Vec::new(),
            parts: Vec::new(),
            carried: Vec::new(),
        });
        self.interfaces.insert(id, index);
        index
    }
}
