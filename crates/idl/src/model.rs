//! The checked model, on which the rest of this crate (layout, signatures, generators, the dynamic
//! caller) works.
//!
//! It holds only what Upcall compiles. All other WIT was refused on the way in (`parse/`), so no
//! code behind this module has a case for it. No type of the parser appears here.

use crate::error::Location;
use crate::layout::{TypeLayout, round_up};
use std::path::PathBuf;

/// A named type in [`Model::types`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TypeId(pub(crate) usize);

impl TypeId {
    /// The type's index in the table.
    #[must_use]
    pub fn index(self) -> usize {
        self.0
    }
}

/// One WIT package, with the parts of other packages that it uses.
#[derive(Clone, Debug)]
pub struct Model {
    /// `namespace:name`.
    pub package: String,
    /// The version behind the `@`.
    pub version: Option<String>,
    /// The interfaces of the package in the order of the files, followed by those of other
    /// packages. The latter contain only the types in use, unless an interface of the package
    /// carries them ([`InterfaceDefinition::parts`]).
    pub interfaces: Vec<InterfaceDefinition>,
    /// All named types, each after the types that it is made of.
    pub types: Vec<Def>,
    /// Every file that was read, for `rerun-if-changed`.
    pub files: Vec<PathBuf>,
    /// The WIT text of the package as one self-contained document.
    pub source: String,
    /// The TOML text of the limits; empty if there is none.
    pub limits: String,
}

impl Model {
    /// All named types.
    pub fn ids(&self) -> impl Iterator<Item = TypeId> + use<> {
        (0..self.types.len()).map(TypeId)
    }

    /// A named type.
    #[must_use]
    pub fn def(&self, id: TypeId) -> &Def {
        &self.types[id.0]
    }

    /// The type behind any number of aliases.
    #[must_use]
    pub fn resolve<'a>(&'a self, mut ty: &'a Type) -> &'a Type {
        while let Type::Named(id) = ty {
            match &self.def(*id).shape {
                TypeBody::Alias(target) => ty = target,
                _ => break,
            }
        }
        ty
    }

    /// Which kinds of handles occur in `ty`.
    #[must_use]
    pub fn holds(&self, ty: &Type) -> HeldHandles {
        match ty {
            Type::Own(_) => HeldHandles { owned: true, lent: false },
            Type::Borrow(_) => HeldHandles { owned: false, lent: true },
            // Looked up, not walked: a walk over types that each use the previous one twice is
            // exponential.
            Type::Named(id) => self.def(*id).holds,
            Type::List(t) | Type::FixedList(t, _) | Type::Option(t) => self.holds(t),
            Type::Result(ok, err) => self.holds_any([ok, err].into_iter().flatten().map(|t| &**t)),
            Type::Tuple(types) => self.holds_any(types.iter()),
            _ => HeldHandles::NOTHING,
        }
    }

    fn holds_any<'a>(&self, types: impl Iterator<Item = &'a Type>) -> HeldHandles {
        types.map(|t| self.holds(t)).fold(HeldHandles::NOTHING, |a, b| HeldHandles {
            owned: a.owned || b.owned,
            lent: a.lent || b.lent,
        })
    }

    /// Which kinds of handles occur in a type of this shape.
    pub(crate) fn holds_in(&self, shape: &TypeBody) -> HeldHandles {
        match shape {
            TypeBody::Record(fields) => self.holds_any(fields.iter().map(|f| &f.ty)),
            TypeBody::Variant(cases) => self.holds_any(cases.iter().filter_map(|c| c.ty.as_ref())),
            TypeBody::Alias(target) => self.holds(target),
            TypeBody::Enum(_) | TypeBody::Flags(_) | TypeBody::Resource => HeldHandles::NOTHING,
        }
    }
}

/// The kinds of handles that a type holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldHandles {
    /// Handles that are given away.
    pub owned: bool,
    /// Handles that are lent.
    pub lent: bool,
}

impl HeldHandles {
    /// No handles.
    pub const NOTHING: Self = Self { owned: false, lent: false };

    /// Returns `true` if the type holds any handle.
    #[must_use]
    pub fn any(self) -> bool {
        self.owned || self.lent
    }
}

/// One interface: the unit of binding.
#[derive(Clone, Debug)]
pub struct InterfaceDefinition {
    /// `namespace:package/name@version`, the name under which it is exported.
    pub id: String,
    /// The name in WIT.
    pub name: String,
    /// `namespace:package` and version of the package that the interface comes from, if that is not
    /// the package being compiled.
    pub foreign: Option<String>,
    /// The doc comment.
    pub docs: Option<String>,
    /// Its place in the source.
    pub at: Location,
    /// Its types in the order of the file, except that each type follows those that it is made of.
    pub types: Vec<TypeId>,
    /// Its procedures: free functions, constructors, methods and statics, in the order of the file.
    /// Generated code numbers procedures by this position; binding maps the numbers to the
    /// server's.
    pub procedures: Vec<ProcedureDefinition>,
    /// The interfaces that it carries, directly or through other carried interfaces: those whose
    /// objects procedures take or return.
    pub parts: Vec<CarriedInterface>,
    /// The procedures of the carried interfaces, numbered after its own. Their names and signatures
    /// are prefixed with the interface: `wasi:io/streams.input-stream.read`.
    pub carried: Vec<ProcedureDefinition>,
}

impl InterfaceDefinition {
    /// All procedures that a binding covers: the interface's own, and those that it carries.
    pub fn bound(&self) -> impl Iterator<Item = &ProcedureDefinition> {
        self.procedures.iter().chain(&self.carried)
    }
}

/// An interface that another interface carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CarriedInterface {
    /// Its index in [`Model::interfaces`].
    pub interface: usize,
    /// The number of its first procedure in the carrying interface.
    pub first: usize,
}

impl InterfaceDefinition {
    /// Its name among other interfaces, prefixed with the package if that is another package.
    pub(crate) fn long_name(&self) -> String {
        match &self.foreign {
            None => self.name.clone(),
            Some(package) => {
                let package = package.split('@').next().unwrap_or_default().replace(':', "-");
                format!("{package}-{}", self.name)
            }
        }
    }
}

/// A named type.
#[derive(Clone, Debug)]
pub struct Def {
    /// The name in WIT.
    pub name: String,
    /// Index of its interface in [`Model::interfaces`].
    pub interface: usize,
    /// The doc comment.
    pub docs: Option<String>,
    /// Its place in the source.
    pub at: Location,
    /// Its definition.
    pub shape: TypeBody,
    /// Its layout in a block.
    pub layout: TypeLayout,
    /// The handles in it.
    pub holds: HeldHandles,
}

/// The definition of a named type.
#[derive(Clone, Debug)]
pub enum TypeBody {
    /// Named fields.
    Record(Vec<Field>),
    /// One of several cases, each with or without a value.
    Variant(Vec<Case>),
    /// One of several cases without values.
    Enum(Vec<Label>),
    /// Any subset of up to 64 names.
    Flags(Vec<Label>),
    /// An object that lives in the server.
    Resource,
    /// Another name for a type: `type a = b`, or `use other.{a}`.
    Alias(Type),
}

/// A field of a record.
#[derive(Clone, Debug)]
pub struct Field {
    /// The name in WIT.
    pub name: String,
    /// The type.
    pub ty: Type,
    /// The doc comment.
    pub docs: Option<String>,
}

/// A case of a variant.
#[derive(Clone, Debug)]
pub struct Case {
    /// The name in WIT.
    pub name: String,
    /// The value it carries.
    pub ty: Option<Type>,
    /// The doc comment.
    pub docs: Option<String>,
}

/// A case of an enum, or a flag.
#[derive(Clone, Debug)]
pub struct Label {
    /// The name in WIT.
    pub name: String,
    /// The doc comment.
    pub docs: Option<String>,
}

/// A use of a type.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // the names are WIT's
pub enum Type {
    Bool,
    U8,
    U16,
    U32,
    U64,
    S8,
    S16,
    S32,
    S64,
    F32,
    F64,
    Char,
    String,
    List(Box<Type>),
    FixedList(Box<Type>, u32),
    Option(Box<Type>),
    Result(Option<Box<Type>>, Option<Box<Type>>),
    Tuple(Vec<Type>),
    Named(TypeId),
    /// A handle that is given away. The id is that of the resource, never of an alias.
    Own(TypeId),
    /// A handle that is lent for one call. The id is that of the resource, never of an alias.
    Borrow(TypeId),
}

/// How a procedure relates to its interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcedureKind {
    /// A function of the interface.
    Free,
    /// A function of an object; its first parameter, `self`, is borrowed.
    Method(TypeId),
    /// A function in a resource's name space.
    Static(TypeId),
    /// A function that makes an object.
    Constructor(TypeId),
}

impl ProcedureDefinition {
    /// Sizes of the argument block and the result block in an A-stack, in bytes: the fixed part up
    /// to the start of the tail, and the room for the tail.
    #[must_use]
    pub fn blocks(&self) -> [(u64, u32); 2] {
        let limits = self.limits;
        [(self.args, limits.args_tail), (self.results, limits.results_tail)]
            .map(|(block, tail)| (round_up(block.size, 8), tail))
    }
}

impl ProcedureKind {
    /// The resource that the procedure is declared in.
    #[must_use]
    pub fn resource(self) -> Option<TypeId> {
        match self {
            Self::Free => None,
            Self::Method(id) | Self::Static(id) | Self::Constructor(id) => Some(id),
        }
    }
}

/// One procedure.
#[derive(Clone, Debug)]
pub struct ProcedureDefinition {
    /// `open`, `file.read`, `file.constructor`.
    pub name: String,
    /// The last part of the name in WIT.
    pub function: String,
    /// How it relates to its interface.
    pub kind: ProcedureKind,
    /// The parameters; a method's first one is `self`.
    pub params: Vec<Param>,
    /// The result.
    pub result: Option<Type>,
    /// The doc comment.
    pub docs: Option<String>,
    /// Its place in the source.
    pub at: Location,
    /// The argument block: the tuple of the parameters.
    pub args: TypeLayout,
    /// The result block.
    pub results: TypeLayout,
    /// The canonical signature (`signature.rs`).
    pub signature: String,
    /// The hash of the signature.
    pub hash: u64,
    /// The limits, from the TOML file or the defaults.
    pub limits: ProcedureLimits,
}

/// A parameter.
#[derive(Clone, Debug)]
pub struct Param {
    /// The name in WIT.
    pub name: String,
    /// The type.
    pub ty: Type,
    /// Its offset in the argument block, in bytes.
    pub offset: u64,
}

/// The limits of one procedure, with the defaults filled in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcedureLimits {
    /// Maximum length of a string, in bytes.
    pub string: u64,
    /// Maximum length of a list, in elements.
    pub list: u64,
    /// Maximum memory of a server for the arguments of one call as values of its own, in bytes.
    pub values: u64,
    /// Room for the tail of the arguments in an A-stack, in bytes, as the server decides. Longer
    /// tails are sent out of band.
    pub args_tail: u32,
    /// Room for the tail of the results in an A-stack, in bytes.
    pub results_tail: u32,
    /// Number of simultaneous calls that have A-stacks. The server's number counts; clients receive
    /// it when they bind, and ignore their own.
    pub calls: u16,
}
