//! Converts Rust types to WIT.

use super::module::{Declared, ModuleReader, camel_to_kebab};
use crate::print::name;
use quote::ToTokens;
use syn::spanned::Spanned;
use syn::{
    Error, Expr, GenericArgument, Lit, Path, PathArguments, Result, ReturnType, Type,
    TypeParamBound,
};

/// A type in use.
pub(super) struct Use {
    pub(super) wit: String,
    kind: ParameterKind,
    /// `true` if there are objects in it.
    objects: bool,
}

/// How a server receives a parameter of a type, as in the generator.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ParameterKind {
    /// Numbers, enums, flags: the value.
    Value,
    /// `&str`
    Text,
    /// `Bytes<'_>`
    Bytes,
    /// `&[T]`
    List,
    /// A reference.
    Compound,
    Object,
}

/// The position of a type.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum TypeContext {
    /// In a parameter or a result.
    Call,
    /// In a struct, an enum or an alias, which clients and servers share.
    Declaration,
}

fn refuse<T>(at: &impl ToTokens, says: impl std::fmt::Display) -> Result<T> {
    Err(Error::new_spanned(at, says))
}

impl Use {
    fn new(wit: impl Into<String>, kind: ParameterKind) -> Self {
        Self { wit: wit.into(), kind, objects: false }
    }

    pub(super) fn kind(&self) -> ParameterKind {
        self.kind
    }

    /// A type constructed from other types.
    fn around(wit: String, kind: ParameterKind, parts: &[&Self]) -> Self {
        Self { wit, kind, objects: parts.iter().any(|part| part.objects) }
    }
}

impl ModuleReader {
    /// A parameter's type in WIT, and whether the server takes it by value instead of by reference.
    pub(super) fn parameter(&self, ty: &Type) -> Result<(String, bool)> {
        if let Type::Path(path) = ty
            && last(&path.path)
                .is_some_and(|name| name == "Bytes" && !self.declared.contains_key("Bytes"))
        {
            return Ok(("list<u8>".into(), false));
        }
        let Type::Reference(reference) = ty else {
            if let Type::Path(path) = ty
                && last(&path.path).is_some_and(|name| name == "Lent")
            {
                return refuse(ty, "write `&dyn ..` for an object that is lent by itself");
            }
            let this = self.ty(ty, TypeContext::Call)?;
            let owned =
                !this.objects && !matches!(this.kind, ParameterKind::Value | ParameterKind::Object);
            return Ok((this.wit, owned));
        };
        if reference.mutability.is_some() {
            return refuse(
                ty,
                "an argument is a copy of the caller's: what the server changed in it would be \
                lost; take `&` and return the new value",
            );
        }
        if let Some(lifetime) = &reference.lifetime {
            return refuse(
                lifetime,
                "arguments live as long as the call, and no lifetime with a name says that: leave \
                it out",
            );
        }
        match &*reference.elem {
            Type::Path(path) if path.path.is_ident("str") => Ok(("string".into(), false)),
            Type::Slice(slice) => {
                let element = self.ty(&slice.elem, TypeContext::Call)?;
                if element.wit == "u8" {
                    return refuse(
                        ty,
                        "bytes stay in memory that the client may still write, which no `&[u8]` \
                        can show: take `upcall::Bytes<'_>`, a view of them, or `Vec<u8>`, a copy",
                    );
                }
                if element.objects {
                    return refuse(ty, "what holds objects is passed by value: write `Vec<..>`");
                }
                Ok((format!("list<{}>", element.wit), false))
            }
            Type::TraitObject(object) => {
                Ok((format!("borrow<{}>", self.object(&object.bounds)?), false))
            }
            inner => {
                let this = self.ty(inner, TypeContext::Call)?;
                let instead = match this.kind {
                    ParameterKind::Text => "`&str`",
                    ParameterKind::Bytes => {
                        "`upcall::Bytes<'_>`, a view of them, or the `Vec` itself, a copy"
                    }
                    ParameterKind::List => "`&[..]`",
                    ParameterKind::Value => "the value itself",
                    ParameterKind::Compound if this.objects => {
                        "the value itself, since it holds objects"
                    }
                    ParameterKind::Object => "`&dyn ..`",
                    ParameterKind::Compound => return Ok((this.wit, false)),
                };
                refuse(ty, format!("a server gets this in another form: write {instead}"))
            }
        }
    }

    /// A result's type; `None` if there is none.
    pub(super) fn result(&self, output: &ReturnType) -> Result<Option<String>> {
        match output {
            ReturnType::Default => Ok(None),
            ReturnType::Type(_, ty) if is_unit(ty) => Ok(None),
            ReturnType::Type(_, ty) => self.ty(ty, TypeContext::Call).map(|this| Some(this.wit)),
        }
    }

    /// Converts an owned type.
    pub(super) fn ty(&self, ty: &Type, place: TypeContext) -> Result<Use> {
        match ty {
            Type::Paren(inner) => self.ty(&inner.elem, place),
            Type::Group(inner) => self.ty(&inner.elem, place),
            Type::Path(path) if path.qself.is_none() => self.path(ty, &path.path, place),
            Type::Tuple(tuple) if tuple.elems.is_empty() => refuse(
                ty,
                "`()` stands for nothing, and WIT has that only as a side of a `Result`: leave it \
                out",
            ),
            Type::Tuple(tuple) => {
                let parts =
                    tuple.elems.iter().map(|t| self.ty(t, place)).collect::<Result<Vec<_>>>()?;
                let members: Vec<&str> = parts.iter().map(|part| part.wit.as_str()).collect();
                let wit = format!("tuple<{}>", members.join(", "));
                Ok(Use::around(wit, ParameterKind::Compound, &parts.iter().collect::<Vec<_>>()))
            }
            Type::Array(array) => {
                let element = self.ty(&array.elem, place)?;
                let Expr::Lit(syn::ExprLit { lit: Lit::Int(count), .. }) = &array.len else {
                    return refuse(
                        &array.len,
                        "the length must be a plain number: a macro does not know the values of \
                        constants",
                    );
                };
                Ok(Use::around(
                    format!("list<{}, {}>", element.wit, count.base10_digits()),
                    ParameterKind::Compound,
                    &[&element],
                ))
            }
            Type::Reference(reference) => match &*reference.elem {
                Type::Path(path) if path.path.is_ident("str") => {
                    refuse(ty, "a value cannot borrow from elsewhere here: write `String`")
                }
                Type::TraitObject(_) => refuse(
                    ty,
                    "write `upcall::Lent<dyn ..>` for an object that a client lends inside \
                    another value",
                ),
                _ => refuse(
                    ty,
                    "a value cannot borrow from elsewhere here: write the type without `&`",
                ),
            },
            Type::Slice(_) => refuse(ty, "write `Vec<..>`"),
            Type::TraitObject(_) => refuse(
                ty,
                "write `std::sync::Arc<dyn ..>` for an object that is given away, `&dyn ..` for a \
                parameter that is lent",
            ),
            Type::ImplTrait(_) => refuse(ty, "both sides must know the type: write its name"),
            _ => refuse(
                ty,
                "WIT has no such type: use numbers, bool, char, String, Vec, Option, Result, \
                tuples, arrays, and structs and enums of this module",
            ),
        }
    }

    fn path(&self, ty: &Type, path: &Path, place: TypeContext) -> Result<Use> {
        let Some(segment) = path.segments.last() else {
            return refuse(ty, "a type without a name");
        };
        let ident = segment.ident.to_string();
        let near = path.segments.len() == 1
            || path.segments.len() == 2 && path.segments[0].ident == "self";
        if near && let Some(declared) = self.declared.get(&ident) {
            if !segment.arguments.is_none() {
                return refuse(
                    &segment.arguments,
                    "WIT has no generic types: write one type for each use",
                );
            }
            return match declared {
                Declared::Object => refuse(
                    ty,
                    format!(
                        "`{ident}` is a trait: write `std::sync::Arc<dyn {ident}>` for an object \
                        that is given away, `&dyn {ident}` for one that is lent"
                    ),
                ),
                Declared::Type(kind) => Ok(Use::new(name(&camel_to_kebab(&segment.ident)?), *kind)),
            };
        }
        let arguments = arguments(&segment.arguments)?;
        let own = |wit: &str, kind| Ok(Use::new(wit, kind));
        match (ident.as_str(), arguments.as_slice()) {
            ("bool" | "u8" | "u16" | "u32" | "u64" | "f32" | "f64" | "char", []) => {
                own(&ident, ParameterKind::Value)
            }
            ("i8", []) => own("s8", ParameterKind::Value),
            ("i16", []) => own("s16", ParameterKind::Value),
            ("i32", []) => own("s32", ParameterKind::Value),
            ("i64", []) => own("s64", ParameterKind::Value),
            ("String", []) => own("string", ParameterKind::Text),
            ("Vec", [t]) => {
                let element = self.ty(t, place)?;
                let kind =
                    if element.wit == "u8" { ParameterKind::Bytes } else { ParameterKind::List };
                Ok(Use::around(format!("list<{}>", element.wit), kind, &[&element]))
            }
            ("Option", [t]) => {
                let some = self.ty(t, place)?;
                Ok(Use::around(format!("option<{}>", some.wit), ParameterKind::Compound, &[&some]))
            }
            ("Result", [ok, err]) => self.outcome(ok, err, place),
            ("Result", _) => refuse(
                ty,
                "a macro does not know what error an alias of `Result` has: write `Result<T, E>`",
            ),
            ("Arc" | "Lent", [Type::TraitObject(object)]) => {
                if place == TypeContext::Declaration {
                    return refuse(
                        ty,
                        "objects stand in no struct, enum or alias, which would be another type \
                        for clients: pass them by themselves, or in Vec, Option, Result and tuples",
                    );
                }
                let (open, resource) =
                    (if ident == "Arc" { "own" } else { "borrow" }, self.object(&object.bounds)?);
                Ok(Use {
                    wit: format!("{open}<{resource}>"),
                    kind: ParameterKind::Object,
                    objects: true,
                })
            }
            _ => refuse(ty, self.advice(&ident)),
        }
    }

    fn outcome(&self, ok: &Type, err: &Type, place: TypeContext) -> Result<Use> {
        let side = |t: &Type| if is_unit(t) { Ok(None) } else { self.ty(t, place).map(Some) };
        let (ok, err) = (side(ok)?, side(err)?);
        let wit = match (&ok, &err) {
            (None, None) => "result".into(),
            (Some(ok), None) => format!("result<{}>", ok.wit),
            (ok, Some(err)) => {
                format!("result<{}, {}>", ok.as_ref().map_or("_", |ok| &ok.wit), err.wit)
            }
        };
        let both = [ok.as_ref(), err.as_ref()].into_iter().flatten().collect::<Vec<_>>();
        Ok(Use::around(wit, ParameterKind::Compound, &both))
    }

    /// Suggests what to write instead of a type that WIT lacks.
    fn advice(&self, ident: &str) -> String {
        let advice = match ident {
            "Box" | "Rc" | "Arc" | "Cow" | "Cell" | "RefCell" | "Mutex" => {
                return format!(
                    "values are copied between domains, and a `{ident}` is none: write the type \
                    in it"
                );
            }
            "usize" | "isize" => "its size is a matter of the machine: write `u64` or `i64`",
            "u128" | "i128" => "WIT has numbers of up to 64 bits: write two of them, or `[u8; 16]`",
            "str" => "write `String`",
            "Bytes" => "a view of bytes is a parameter by itself: write `Vec<u8>` here",
            "HashMap" | "BTreeMap" => "WIT has no maps: write `Vec<(K, V)>`",
            "HashSet" | "BTreeSet" | "VecDeque" => "write `Vec<T>`",
            "Duration" | "Instant" | "SystemTime" => {
                "write a number, and say its unit: nanoseconds in `u64` last for 584 years"
            }
            "PathBuf" | "Path" | "OsString" | "OsStr" => {
                "write `Vec<u8>`, or `String` if the names are UTF-8"
            }
            "Self" => "write the name of the type",
            _ if self.alone => {
                return format!(
                    "`{ident}` cannot be seen from here: put it and the trait into a module, and \
                    the attribute on that"
                );
            }
            _ => {
                return format!(
                    "`{ident}` is not declared in this module: all that an interface is made of \
                    stands in its module; move it there"
                );
            }
        };
        advice.to_owned()
    }

    /// The resource of `dyn File`.
    fn object(
        &self,
        bounds: &syn::punctuated::Punctuated<TypeParamBound, syn::Token![+]>,
    ) -> Result<String> {
        if let [TypeParamBound::Trait(bound)] = bounds.iter().collect::<Vec<_>>().as_slice()
            && let Some(ident) = bound.path.get_ident()
            && let Some(Declared::Object) = self.declared.get(&ident.to_string())
        {
            return Ok(name(&camel_to_kebab(ident)?));
        }
        refuse(
            bounds,
            "an object's type is `dyn` and one trait of this module that is marked #[resource]",
        )
    }
}

fn is_unit(ty: &Type) -> bool {
    matches!(ty, Type::Tuple(tuple) if tuple.elems.is_empty())
}

fn last(path: &Path) -> Option<String> {
    path.segments.last().map(|segment| segment.ident.to_string())
}

/// The types between `<` and `>`.
fn arguments(arguments: &PathArguments) -> Result<Vec<&Type>> {
    match arguments {
        PathArguments::None => Ok(Vec::new()),
        PathArguments::AngleBracketed(list) => {
            let types = list.args.iter().filter(|a| !matches!(a, GenericArgument::Lifetime(_)));
            types
                .map(|argument| match argument {
                    GenericArgument::Type(ty) => Ok(ty),
                    other => refuse(other, "only types can stand here"),
                })
                .collect()
        }
        PathArguments::Parenthesized(list) => Err(Error::new(
            list.span(),
            "functions cannot be passed: give the client an interface of its own that the server \
            calls",
        )),
    }
}
