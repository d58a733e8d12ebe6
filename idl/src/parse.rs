//! WIT in, checked model out. The only module that touches `wit-parser`, whose interface changes with every release.
//!
//! Everything Upcall does not compile is refused here, with the place and with what to write instead, so that nothing
//! behind this module has to know it exists. Types are taken over only if an interface of the compiled package uses
//! them; a package that is merely lying in `deps` may contain anything.

use crate::error::{Error, Location};
use crate::layout::{self, Layout, check_size, flags_size};
use crate::limits::Limits;
use crate::model::{
    Case, Def, Field, Holds, Interface, Label, Model, Param, Procedure, ProcedureKind, ProcedureLimits, Shape, Type, TypeId,
};
use crate::signature;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use wit_parser::{
    FunctionKind, Handle, InterfaceId, PackageId, ParseError, Resolve, ResolveError, Span, TypeDefKind, TypeOwner, WorldItem,
};

/// Types may be nested this deep, named ones included. Everything behind this module recurses over types.
pub const MAX_DEPTH: usize = 48;

/// A procedure may have this many parameters, and a tuple this many members: as many as the runtime has tuples for.
pub const MAX_MEMBERS: usize = 16;

/// An interface may have this many procedures: as many as a binding numbers.
pub const MAX_PROCEDURES: usize = 1000;

/// Where the text comes from.
pub(crate) enum Source<'a> {
    /// A `.wit` file, or a folder of them with an optional `deps` folder.
    Path(&'a Path),
    /// Text, with the name to give it in messages.
    Text(&'a str, &'a str),
}

/// Reads, checks and lays out.
pub(crate) fn parse(source: &Source<'_>, limits: &Limits) -> Result<Model, Error> {
    let mut resolve = Resolve { all_features: true, ..Resolve::default() };
    let pushed = match source {
        Source::Path(path) if path.is_dir() => {
            resolve.push_dir(path).map(|(package, files)| (package, files.paths().map(Path::to_owned).collect::<Vec<PathBuf>>()))
        }
        Source::Path(path) => {
            let text = std::fs::read_to_string(path)
                .map_err(|e| Error::file("read", path, &e, "name a .wit file, or a folder of them"))?;
            resolve.push_str(path, &text).map(|package| (package, vec![path.to_path_buf()]))
        }
        Source::Text(name, text) => {
            check_nesting(name, text)?;
            resolve.push_str(name, text).map(|package| (package, Vec::new()))
        }
    };
    let (package, mut files) = match pushed {
        Ok(pushed) => pushed,
        Err(error) => {
            let span = error.chain().find_map(|layer| {
                layer
                    .downcast_ref::<ParseError>()
                    .map(|e| e.kind().span())
                    .or_else(|| layer.downcast_ref::<ResolveError>().map(|e| e.kind().span()))
            });
            let at = span.map(|span| place(&resolve, span, source)).unwrap_or_else(|| whole(source));
            // The innermost layer says what is wrong; the outer ones repeat the path, which `at` gives already.
            let message = match span {
                Some(_) => error.root_cause().to_string(),
                None => format!("{error:#}"),
            };
            return Err(Error::Wit { at, message });
        }
    };
    files.sort();
    let mut lowering = Lowering {
        resolve: &resolve,
        source,
        limits,
        package,
        types: HashMap::new(),
        interfaces: HashMap::new(),
        depths: Vec::new(),
        model: Model {
            package: format!("{}:{}", resolve.packages[package].name.namespace, resolve.packages[package].name.name),
            version: resolve.packages[package].name.version.as_ref().map(ToString::to_string),
            interfaces: Vec::new(),
            types: Vec::new(),
            files: files.clone(),
            source: String::new(),
            limits: limits.text().to_owned(),
        },
    };
    lowering.package()?;
    let mut model = lowering.model;
    limits.check_names(&model)?;
    model.source = match (source, files.as_slice()) {
        (Source::Text(_, text), _) => (*text).to_owned(),
        (Source::Path(_), [file]) => {
            std::fs::read_to_string(file).map_err(|e| Error::file("read", file, &e, "run the build again"))?
        }
        (Source::Path(_), _) => crate::print::print(&model),
    };
    Ok(model)
}

/// The parser and the checks recurse over nested types. A definition that comes from another domain must not be able
/// to overrun the stack, so the depth of `<` is bounded before anything else looks at the text.
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
    Error::unsupported(at, format!("a type nested more than {MAX_DEPTH} deep"), "flatten it, or pass it as list<u8>")
}

fn whole(source: &Source<'_>) -> Location {
    let file = match source {
        Source::Path(path) => path.display().to_string(),
        Source::Text(name, _) => (*name).to_owned(),
    };
    Location { file, line: 0, column: 0 }
}

/// The parser renders a place as `file:line:column`; file names may hold colons, so the numbers are taken from behind.
fn place(resolve: &Resolve, span: Span, source: &Source<'_>) -> Location {
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
    source: &'a Source<'a>,
    limits: &'a Limits,
    package: PackageId,
    types: HashMap<wit_parser::TypeId, TypeId>,
    interfaces: HashMap<InterfaceId, usize>,
    /// How deep each type of the model is nested.
    depths: Vec<usize>,
    model: Model,
}

impl Lowering<'_> {
    fn at(&self, span: Span) -> Location {
        place(self.resolve, span, self.source)
    }

    fn package(&mut self) -> Result<(), Error> {
        let resolve = self.resolve;
        let package = &resolve.packages[self.package];
        for world in package.worlds.values() {
            self.world(&resolve.worlds[*world])?;
        }
        // A folder is read in whatever order the file system gives; the place in the text is an order that stays.
        let mut own: Vec<_> = package.interfaces.values().copied().collect();
        own.sort_by_key(|id| self.at(resolve.interfaces[*id].span));
        for id in &own {
            self.interface(*id);
        }
        for id in own {
            let index = self.interface(id);
            for ty in resolve.interfaces[id].types.values() {
                self.named(*ty, 0)?;
            }
            let functions = &resolve.interfaces[id].functions;
            if functions.len() > MAX_PROCEDURES {
                let construct = format!("an interface with more than {MAX_PROCEDURES} procedures");
                return Err(Error::unsupported(&self.at(resolve.interfaces[id].span), construct, "split it"));
            }
            for function in functions.values() {
                let procedure = self.procedure(index, function)?;
                self.model.interfaces[index].procedures.push(procedure);
            }
        }
        Ok(())
    }

    /// Worlds say what a WebAssembly component imports and exports. One that only names interfaces adds nothing and
    /// loses nothing; one that declares something of its own would be lost silently.
    fn world(&self, world: &wit_parser::World) -> Result<(), Error> {
        for item in world.imports.values().chain(world.exports.values()) {
            let inside = match item {
                WorldItem::Interface { id, .. } => {
                    self.resolve.interfaces[*id].name.is_none().then_some("an interface declared inside a world")
                }
                WorldItem::Function(_) => Some("a function declared inside a world"),
                WorldItem::Type { .. } => Some("a type declared inside a world"),
            };
            if let Some(construct) = inside {
                let span = match item {
                    WorldItem::Interface { id, span, .. } if !span.is_known() => self.resolve.interfaces[*id].span,
                    _ => item.span(),
                };
                let at = self.at(if span.is_known() { span } else { world.span });
                let advice = "move it into a named interface; domains bind to interfaces, not to worlds";
                return Err(Error::unsupported(&at, construct, advice));
            }
        }
        Ok(())
    }

    fn interface(&mut self, id: InterfaceId) -> usize {
        if let Some(index) = self.interfaces.get(&id) {
            return *index;
        }
        let interface = &self.resolve.interfaces[id];
        let name = interface.name.clone().unwrap_or_default();
        let foreign = interface.package.filter(|p| *p != self.package).map(|p| self.resolve.packages[p].name.to_string());
        let index = self.model.interfaces.len();
        self.model.interfaces.push(Interface {
            id: self.resolve.id_of(id).unwrap_or_else(|| name.clone()),
            name,
            foreign,
            docs: interface.docs.contents.clone(),
            at: self.at(interface.span),
            types: Vec::new(),
            procedures: Vec::new(),
        });
        self.interfaces.insert(id, index);
        index
    }

    /// Takes a named type over, with everything it is made of. `depth` counts the types it was reached through.
    fn named(&mut self, id: wit_parser::TypeId, depth: usize) -> Result<TypeId, Error> {
        if let Some(known) = self.types.get(&id) {
            return Ok(*known);
        }
        let def = &self.resolve.types[id];
        let at = self.at(def.span);
        if depth > MAX_DEPTH {
            return Err(too_deep(&at));
        }
        let TypeOwner::Interface(owner) = def.owner else {
            let advice = "move it into a named interface";
            return Err(Error::unsupported(&at, "a type that belongs to no interface", advice));
        };
        let (shape, inner) = self.shape(id, &at, depth)?;
        let interface = self.interface(owner);
        let layout = check_size(self.model.layout_of_shape(&shape), &at, "a type")?;
        let holds = match &shape {
            Shape::Alias(target) => self.model.holds(target),
            _ => Holds::Nothing,
        };
        let ty = TypeId(self.model.types.len());
        self.model.types.push(Def {
            name: def.name.clone().unwrap_or_default(),
            interface,
            docs: def.docs.contents.clone(),
            at,
            shape,
            layout,
            holds,
        });
        self.depths.push(inner + 1);
        self.model.interfaces[interface].types.push(ty);
        self.types.insert(id, ty);
        Ok(ty)
    }

    /// What a named type is, and how deep it goes.
    fn shape(&mut self, id: wit_parser::TypeId, at: &Location, depth: usize) -> Result<(Shape, usize), Error> {
        let def = &self.resolve.types[id];
        let mut inner = 0;
        let shape = match &def.kind {
            TypeDefKind::Record(record) => {
                let mut fields = Vec::new();
                for field in &record.fields {
                    let at = self.at(field.span);
                    let ty = self.plain(&field.ty, &at, "a record", depth, &mut inner)?;
                    fields.push(Field { name: field.name.clone(), ty, docs: field.docs.contents.clone() });
                }
                Shape::Record(fields)
            }
            TypeDefKind::Variant(variant) => {
                let mut cases = Vec::new();
                for case in &variant.cases {
                    let at = self.at(case.span);
                    let ty = match &case.ty {
                        Some(ty) => Some(self.plain(ty, &at, "a variant", depth, &mut inner)?),
                        None => None,
                    };
                    cases.push(Case { name: case.name.clone(), ty, docs: case.docs.contents.clone() });
                }
                Shape::Variant(cases)
            }
            TypeDefKind::Enum(e) => {
                Shape::Enum(e.cases.iter().map(|c| Label { name: c.name.clone(), docs: c.docs.contents.clone() }).collect())
            }
            TypeDefKind::Flags(flags) => {
                // The parser stops at 32 today; the layout has room for 64.
                if flags_size(flags.flags.len()).is_none() {
                    let at = self.at(flags.flags[64].span);
                    let advice = "split them into two flags types, or use list<..> of an enum";
                    return Err(Error::unsupported(&at, "a flags type with more than 64 flags", advice));
                }
                Shape::Flags(flags.flags.iter().map(|c| Label { name: c.name.clone(), docs: c.docs.contents.clone() }).collect())
            }
            TypeDefKind::Resource => Shape::Resource,
            TypeDefKind::Type(wit_parser::Type::Id(target)) => {
                let target = self.named_or_inline(*target, at, depth + 1, &mut inner)?;
                self.refuse_foreign_resource(&target, def, at)?;
                Shape::Alias(target)
            }
            TypeDefKind::Type(target) => Shape::Alias(self.ty(target, at, depth + 1, &mut inner)?),
            _ => Shape::Alias(self.inline(id, at, depth, &mut inner)?),
        };
        Ok((shape, inner))
    }

    /// A handle is a number in the table of one binding, and a binding is to one interface. So an object cannot cross
    /// from one interface to another.
    fn refuse_foreign_resource(&self, target: &Type, def: &wit_parser::TypeDef, at: &Location) -> Result<(), Error> {
        let Type::Named(id) = self.model.resolve(target) else { return Ok(()) };
        let resource = self.model.def(*id);
        let TypeOwner::Interface(owner) = def.owner else { return Ok(()) };
        if !matches!(resource.shape, Shape::Resource) || self.interfaces.get(&owner) == Some(&resource.interface) {
            return Ok(());
        }
        let home = &self.model.interfaces[resource.interface].name;
        Err(Error::unsupported(
            at,
            format!("use of resource `{}` of interface `{home}`", resource.name),
            format!("a handle is good for one binding only; move the functions that need it into `{home}`"),
        ))
    }

    /// A type in a place where no handle may stand.
    fn plain(
        &mut self,
        ty: &wit_parser::Type,
        at: &Location,
        place: &str,
        depth: usize,
        inner: &mut usize,
    ) -> Result<Type, Error> {
        let ty = self.ty(ty, at, depth + 1, inner)?;
        if self.model.holds(&ty) != Holds::Nothing {
            let advice = "pass the handle as a parameter of its own, or return it in an option, result, list or tuple";
            return Err(Error::unsupported(at, format!("a handle inside {place}"), advice));
        }
        Ok(ty)
    }

    /// A type in use. `at` is the nearest place known, for what carries none of its own.
    fn ty(&mut self, ty: &wit_parser::Type, at: &Location, depth: usize, inner: &mut usize) -> Result<Type, Error> {
        use wit_parser::Type as Wit;
        Ok(match ty {
            Wit::Bool => Type::Bool,
            Wit::U8 => Type::U8,
            Wit::U16 => Type::U16,
            Wit::U32 => Type::U32,
            Wit::U64 => Type::U64,
            Wit::S8 => Type::S8,
            Wit::S16 => Type::S16,
            Wit::S32 => Type::S32,
            Wit::S64 => Type::S64,
            Wit::F32 => Type::F32,
            Wit::F64 => Type::F64,
            Wit::Char => Type::Char,
            Wit::String => Type::String,
            Wit::ErrorContext => {
                let advice = "return a string, or an enum of the errors there are";
                return Err(Error::unsupported(at, "`error-context`", advice));
            }
            Wit::Id(id) => self.named_or_inline(*id, at, depth, inner)?,
        })
    }

    fn named_or_inline(&mut self, id: wit_parser::TypeId, at: &Location, depth: usize, inner: &mut usize) -> Result<Type, Error> {
        if self.resolve.types[id].name.is_none() {
            return self.inline(id, at, depth, inner);
        }
        let named = self.named(id, depth)?;
        *inner = (*inner).max(self.depths[named.0]);
        if *inner > MAX_DEPTH {
            return Err(too_deep(at));
        }
        Ok(Type::Named(named))
    }

    /// A type without a name of its own: `list<..>`, `borrow<..>`, …
    fn inline(&mut self, id: wit_parser::TypeId, outer: &Location, depth: usize, inner: &mut usize) -> Result<Type, Error> {
        let def = &self.resolve.types[id];
        // Equal inline types are one entry in the parser's table, with the place of the first.
        let at = if def.span.is_known() { self.at(def.span) } else { outer.clone() };
        if depth > MAX_DEPTH {
            return Err(too_deep(&at));
        }
        let refuse = |construct: &str, instead: &str| Err(Error::unsupported(&at, construct, instead));
        let mut below = 0;
        let next = depth + 1;
        let ty = match &def.kind {
            TypeDefKind::List(t) => Type::List(Box::new(self.ty(t, &at, next, &mut below)?)),
            TypeDefKind::FixedLengthList(_, 0) => {
                return refuse("a list of length 0", "leave it out: it carries nothing");
            }
            TypeDefKind::FixedLengthList(t, count) => Type::FixedList(Box::new(self.ty(t, &at, next, &mut below)?), *count),
            TypeDefKind::Option(t) => Type::Option(Box::new(self.ty(t, &at, next, &mut below)?)),
            TypeDefKind::Result(result) => {
                let mut side = |t: &Option<wit_parser::Type>| match t {
                    Some(t) => self.ty(t, &at, next, &mut below).map(|t| Some(Box::new(t))),
                    None => Ok(None),
                };
                Type::Result(side(&result.ok)?, side(&result.err)?)
            }
            TypeDefKind::Tuple(tuple) => {
                if tuple.types.len() > MAX_MEMBERS {
                    return refuse("a tuple of more than 16 members", "use a record");
                }
                let mut types = Vec::new();
                for t in &tuple.types {
                    types.push(self.ty(t, &at, next, &mut below)?);
                }
                Type::Tuple(types)
            }
            TypeDefKind::Handle(Handle::Own(id)) => Type::Own(self.resource(*id, depth)?),
            TypeDefKind::Handle(Handle::Borrow(id)) => Type::Borrow(self.resource(*id, depth)?),
            TypeDefKind::Future(_) => {
                return refuse("`future`", "return the value: a call blocks only the thread that makes it");
            }
            TypeDefKind::Stream(_) => {
                return refuse("`stream`", "return a resource with a method that gives the next piece as list<..>");
            }
            TypeDefKind::Map(..) => return refuse("`map`", "use list<tuple<key, value>>"),
            other => {
                return refuse(&format!("`{}`", other.as_str()), "use another type");
            }
        };
        *inner = (*inner).max(below + 1);
        check_size(self.model.layout(&ty), &at, "a type")?;
        Ok(ty)
    }

    /// The resource behind a handle, through aliases.
    fn resource(&mut self, id: wit_parser::TypeId, depth: usize) -> Result<TypeId, Error> {
        let named = Type::Named(self.named(id, depth + 1)?);
        match self.model.resolve(&named) {
            Type::Named(id) => Ok(*id),
            // The parser checks that handles are to resources.
            _ => Err(Error::unsupported(&self.at(self.resolve.types[id].span), "a handle to this", "name a resource")),
        }
    }

    fn procedure(&mut self, interface: usize, function: &wit_parser::Function) -> Result<Procedure, Error> {
        let at = self.at(function.span);
        if function.kind.is_async() {
            let advice = "leave `async` out: a call blocks only the thread that makes it";
            return Err(Error::unsupported(&at, "`async func`", advice));
        }
        if function.kind.accessor().is_some() {
            return Err(Error::unsupported(&at, "a getter or setter", "declare a func"));
        }
        if function.params.len() > MAX_MEMBERS {
            let advice = "put some of them into a record";
            let construct = format!("a procedure with more than {MAX_MEMBERS} parameters (`self` counts)");
            return Err(Error::unsupported(&at, construct, advice));
        }
        let short = function.name.rsplit('.').next().unwrap_or(&function.name).to_owned();
        let resource = match function.kind.resource() {
            Some(id) => Some(self.resource(id, 0)?),
            None => None,
        };
        let (kind, name, short) = match (&function.kind, resource) {
            (FunctionKind::Method(_), Some(r)) => {
                (ProcedureKind::Method(r), format!("{}.{short}", self.model.def(r).name), short)
            }
            (FunctionKind::Static(_), Some(r)) => {
                (ProcedureKind::Static(r), format!("{}.{short}", self.model.def(r).name), short)
            }
            (FunctionKind::Constructor(_), Some(r)) => {
                (ProcedureKind::Constructor(r), format!("{}.constructor", self.model.def(r).name), "constructor".to_owned())
            }
            _ => (ProcedureKind::Free, short.clone(), short),
        };
        let mut params = Vec::new();
        for param in &function.params {
            let place = if param.span.is_known() { self.at(param.span) } else { at.clone() };
            let ty = self.ty(&param.ty, &place, 0, &mut 0)?;
            let bare = matches!(self.model.resolve(&ty), Type::Own(_) | Type::Borrow(_));
            if !bare && self.model.holds(&ty) != Holds::Nothing {
                let advice = "make it a parameter of its own; several handles are several parameters";
                return Err(Error::unsupported(&place, "a handle inside the type of a parameter", advice));
            }
            params.push(Param { name: param.name.clone(), ty, offset: 0 });
        }
        let result = match &function.result {
            Some(ty) => Some(self.ty(ty, &at, 0, &mut 0)?),
            None => None,
        };
        if result.as_ref().is_some_and(|ty| self.model.holds(ty) == Holds::Borrowed) {
            let advice = "return own<..>: a borrowed handle ends with the call";
            return Err(Error::unsupported(&at, "`borrow` in a result", advice));
        }
        let (offsets, args) = layout::sequence(params.iter().map(|p| self.model.layout(&p.ty)));
        for (param, offset) in params.iter_mut().zip(offsets) {
            param.offset = offset;
        }
        let args = check_size(args, &at, "a list of parameters")?;
        let results = result.as_ref().map_or(Layout::EMPTY, |ty| self.model.layout(ty));
        let signature = signature::text(&self.model, &name, &params, result.as_ref(), &at)?;
        let limits = self.procedure_limits(interface, &name, &params, result.as_ref());
        Ok(Procedure {
            hash: signature::hash(&signature),
            function: short,
            docs: function.docs.contents.clone(),
            name,
            kind,
            params,
            result,
            at,
            args,
            results,
            signature,
            limits,
        })
    }

    fn procedure_limits(&self, interface: usize, name: &str, params: &[Param], result: Option<&Type>) -> ProcedureLimits {
        let chosen = self.limits.of(&self.model.interfaces[interface].name, name);
        let tail = |types: &mut dyn Iterator<Item = &Type>| {
            let most = types.fold(0_u64, |sum, ty| sum.saturating_add(self.model.longest_tail(ty, &chosen)));
            u32::try_from(most.min(u64::from(chosen.tail))).unwrap_or(chosen.tail)
        };
        ProcedureLimits {
            string: chosen.string,
            list: chosen.list,
            args_tail: tail(&mut params.iter().map(|p| &p.ty)),
            results_tail: tail(&mut result.into_iter()),
            calls: chosen.calls,
        }
    }
}
