//! Lowers types: named types into the model's table, types in use into [`Type`].

use super::{Lowering, MAX_DEPTH, MAX_MEMBERS, too_deep};
use crate::error::{Error, Location};
use crate::layout::{check_size, flags_size};
use crate::model::{Case, Def, Field, Label, Type, TypeBody, TypeId};
use wit_parser::{Handle, TypeDefKind, TypeOwner};

impl Lowering<'_> {
    /// Lowers a named type with everything that it is made of. `depth` is the number of types
    /// through which it was reached.
    pub(super) fn named(&mut self, id: wit_parser::TypeId, depth: usize) -> Result<TypeId, Error> {
        if let Some(known) = self.types.get(&id) {
            return Ok(*known);
        }
        let def = &self.resolve.types[id];
        let at = self.at(def.span);
        if depth > MAX_DEPTH {
            return Err(too_deep(&at));
        }
        let (shape, inner) = self.shape(id, &at, depth)?;
        let interface = match def.owner {
            TypeOwner::Interface(owner) => self.interface(owner),
            TypeOwner::World(owner) => self.types_of_world(owner),
            TypeOwner::None => {
                let advice = "move it into a named interface";
                return Err(Error::unsupported(&at, "a type that belongs to no interface", advice));
            }
        };
        let layout = check_size(self.model.layout_of_shape(&shape), &at, "a type")?;
        let holds = self.model.holds_in(&shape);
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

    /// The definition of a named type, and its nesting depth.
    fn shape(
        &mut self,
        id: wit_parser::TypeId,
        at: &Location,
        depth: usize,
    ) -> Result<(TypeBody, usize), Error> {
        let def = &self.resolve.types[id];
        let mut inner = 0;
        let shape = match &def.kind {
            TypeDefKind::Record(record) => {
                let mut fields = Vec::new();
                for field in &record.fields {
                    let at = self.at(field.span);
                    let ty = self.ty(&field.ty, &at, depth + 1, &mut inner)?;
                    fields.push(Field {
                        name: field.name.clone(),
                        ty,
                        docs: field.docs.contents.clone(),
                    });
                }
                TypeBody::Record(fields)
            }
            TypeDefKind::Variant(variant) => {
                let mut cases = Vec::new();
                for case in &variant.cases {
                    let at = self.at(case.span);
                    let ty = match &case.ty {
                        Some(ty) => Some(self.ty(ty, &at, depth + 1, &mut inner)?),
                        None => None,
                    };
                    cases.push(Case {
                        name: case.name.clone(),
                        ty,
                        docs: case.docs.contents.clone(),
                    });
                }
                TypeBody::Variant(cases)
            }
            TypeDefKind::Enum(e) => TypeBody::Enum(
                e.cases
                    .iter()
                    .map(|c| Label { name: c.name.clone(), docs: c.docs.contents.clone() })
                    .collect(),
            ),
            TypeDefKind::Flags(flags) => {
                // The parser's limit is 32 today; the layout has room for 64.
                if flags_size(flags.flags.len()).is_none() {
                    let at = self.at(flags.flags[64].span);
                    let advice = "split them into two flags types, or use list<..> of an enum";
                    return Err(Error::unsupported(
                        &at,
                        "a flags type with more than 64 flags",
                        advice,
                    ));
                }
                TypeBody::Flags(
                    flags
                        .flags
                        .iter()
                        .map(|c| Label { name: c.name.clone(), docs: c.docs.contents.clone() })
                        .collect(),
                )
            }
            TypeDefKind::Resource => TypeBody::Resource,
            TypeDefKind::Type(wit_parser::Type::Id(target)) => {
                TypeBody::Alias(self.named_or_inline(*target, at, depth + 1, &mut inner)?)
            }
            TypeDefKind::Type(target) => {
                TypeBody::Alias(self.ty(target, at, depth + 1, &mut inner)?)
            }
            _ => TypeBody::Alias(self.inline(id, at, depth, &mut inner)?),
        };
        Ok((shape, inner))
    }

    /// Lowers a type in use. `at` is the nearest known place, for types that have none of their
    /// own.
    pub(super) fn ty(
        &mut self,
        ty: &wit_parser::Type,
        at: &Location,
        depth: usize,
        inner: &mut usize,
    ) -> Result<Type, Error> {
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

    fn named_or_inline(
        &mut self,
        id: wit_parser::TypeId,
        at: &Location,
        depth: usize,
        inner: &mut usize,
    ) -> Result<Type, Error> {
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

    /// Lowers a type without a name of its own: `list<..>`, `borrow<..>`, …
    fn inline(
        &mut self,
        id: wit_parser::TypeId,
        outer: &Location,
        depth: usize,
        inner: &mut usize,
    ) -> Result<Type, Error> {
        let def = &self.resolve.types[id];
        // The parser's table has one entry for equal inline types, with the place of the first.
        let at = if def.span.is_known() { self.at(def.span) } else { outer.clone() };
        if depth > MAX_DEPTH {
            return Err(too_deep(&at));
        }
        let refuse =
            |construct: &str, instead: &str| Err(Error::unsupported(&at, construct, instead));
        let mut below = 0;
        let next = depth + 1;
        let ty = match &def.kind {
            TypeDefKind::List(t) => Type::List(Box::new(self.ty(t, &at, next, &mut below)?)),
            TypeDefKind::FixedLengthList(_, 0) => {
                return refuse("a list of length 0", "leave it out: it carries nothing");
            }
            TypeDefKind::FixedLengthList(t, count) => {
                Type::FixedList(Box::new(self.ty(t, &at, next, &mut below)?), *count)
            }
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
                return refuse(
                    "`future`",
                    "return the value: a call blocks only the thread that makes it",
                );
            }
            TypeDefKind::Stream(_) => {
                return refuse(
                    "`stream`",
                    "return a resource with a method that gives the next piece as list<..>",
                );
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
    pub(super) fn resource(
        &mut self,
        id: wit_parser::TypeId,
        depth: usize,
    ) -> Result<TypeId, Error> {
        let named = Type::Named(self.named(id, depth + 1)?);
        match self.model.resolve(&named) {
            Type::Named(id) => Ok(*id),
            // The parser checks that handles are to resources.
            _ => Err(Error::unsupported(
                &self.at(self.resolve.types[id].span),
                "a handle to this",
                "name a resource",
            )),
        }
    }
}
