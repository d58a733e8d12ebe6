//! What two domains must agree on to make a call: one line of text per procedure, and a hash of it.
//!
//! The text is WIT with every named type written out, so that it needs no context. It keeps the
//! names of parameters, fields and cases: swapping two fields of one type changes the meaning of
//! the bytes, and only the names show it. It omits the names of types, which may change freely:
//!
//! ```text
//! open: func(path: string) -> result<own<file>, enum{not-found, denied}>
//! ```
//!
//! The hash is 64-bit FNV-1a (Fowler, Noll, Vo). It is a quick filter, compared first; equal hashes
//! are followed by a comparison of the texts, so a collision, accidental or deliberate, gains
//! nothing. That is why a hash without cryptographic strength is enough.

use crate::error::{Error, Location};
use crate::model::{Model, Param, Type, TypeBody};
use std::fmt::Write;

/// Maximum length of a signature, in bytes. Types that each use the previous one twice grow without
/// bound when written out, and a definition from another domain must not be able to use up memory
/// that way.
pub const MAX_SIGNATURE: usize = 64 * 1024;

/// 64-bit FNV-1a.
#[must_use]
pub const fn hash(text: &str) -> u64 {
    let bytes = text.as_bytes();
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut at = 0;
    while at < bytes.len() {
        hash = (hash ^ bytes[at] as u64).wrapping_mul(0x0100_0000_01b3);
        at += 1;
    }
    hash
}

/// The canonical text of a procedure.
pub(crate) fn text(
    model: &Model,
    name: &str,
    params: &[Param],
    result: Option<&Type>,
    at: &Location,
) -> Result<String, Error> {
    let mut out = SignatureText { model, text: format!("{name}: func(") };
    let done = (|| {
        for (index, param) in params.iter().enumerate() {
            if index > 0 {
                out.push(", ")?;
            }
            out.push(&param.name)?;
            out.push(": ")?;
            out.ty(&param.ty)?;
        }
        out.push(")")?;
        if let Some(ty) = result {
            out.push(" -> ")?;
            out.ty(ty)?;
        }
        Some(())
    })();
    match done {
        Some(()) => Ok(out.text),
        None => Err(Error::unsupported(
            at,
            format!("a procedure whose types take more than {MAX_SIGNATURE} bytes to write out"),
            "split the type, or pass it as list<u8>",
        )),
    }
}

/// Text under construction; every step is `None` once it is too long.
struct SignatureText<'a> {
    model: &'a Model,
    text: String,
}

impl SignatureText<'_> {
    fn push(&mut self, part: &str) -> Option<()> {
        self.text.push_str(part);
        (self.text.len() <= MAX_SIGNATURE).then_some(())
    }

    fn ty(&mut self, ty: &Type) -> Option<()> {
        match ty {
            Type::Bool => self.push("bool"),
            Type::U8 => self.push("u8"),
            Type::U16 => self.push("u16"),
            Type::U32 => self.push("u32"),
            Type::U64 => self.push("u64"),
            Type::S8 => self.push("s8"),
            Type::S16 => self.push("s16"),
            Type::S32 => self.push("s32"),
            Type::S64 => self.push("s64"),
            Type::F32 => self.push("f32"),
            Type::F64 => self.push("f64"),
            Type::Char => self.push("char"),
            Type::String => self.push("string"),
            Type::List(t) => self.around("list<", t, ">"),
            Type::FixedList(t, n) => {
                self.around("list<", t, ", ")?;
                write!(self.text, "{n}").ok()?;
                self.push(">")
            }
            Type::Option(t) => self.around("option<", t, ">"),
            Type::Result(ok, err) => {
                self.push("result<")?;
                self.maybe(ok.as_deref())?;
                self.push(", ")?;
                self.maybe(err.as_deref())?;
                self.push(">")
            }
            Type::Tuple(types) => self.listed("tuple<", types.iter(), ">", Self::ty),
            Type::Own(id) => self.handle("own<", *id),
            Type::Borrow(id) => self.handle("borrow<", *id),
            Type::Named(id) => self.shape(&self.model.def(*id).shape),
        }
    }

    fn shape(&mut self, shape: &TypeBody) -> Option<()> {
        match shape {
            TypeBody::Record(fields) => self.listed("record{", fields.iter(), "}", |out, field| {
                out.push(&field.name)?;
                out.push(": ")?;
                out.ty(&field.ty)
            }),
            TypeBody::Variant(cases) => self.listed("variant{", cases.iter(), "}", |out, case| {
                out.push(&case.name)?;
                match &case.ty {
                    Some(ty) => out.around("(", ty, ")"),
                    None => Some(()),
                }
            }),
            TypeBody::Enum(labels) => {
                self.listed("enum{", labels.iter(), "}", |out, label| out.push(&label.name))
            }
            TypeBody::Flags(labels) => {
                self.listed("flags{", labels.iter(), "}", |out, label| out.push(&label.name))
            }
            TypeBody::Alias(ty) => self.ty(ty),
            TypeBody::Resource => self.push("resource"),
        }
    }

    fn handle(&mut self, open: &str, id: crate::model::TypeId) -> Option<()> {
        self.push(open)?;
        self.push(&self.model.def(id).name)?;
        self.push(">")
    }

    fn around(&mut self, open: &str, ty: &Type, close: &str) -> Option<()> {
        self.push(open)?;
        self.ty(ty)?;
        self.push(close)
    }

    fn maybe(&mut self, ty: Option<&Type>) -> Option<()> {
        match ty {
            Some(ty) => self.ty(ty),
            None => self.push("_"),
        }
    }

    fn listed<T>(
        &mut self,
        open: &str,
        items: impl Iterator<Item = T>,
        close: &str,
        mut each: impl FnMut(&mut Self, T) -> Option<()>,
    ) -> Option<()> {
        self.push(open)?;
        for (index, item) in items.enumerate() {
            if index > 0 {
                self.push(", ")?;
            }
            each(self, item)?;
        }
        self.push(close)
    }
}
