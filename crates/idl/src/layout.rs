//! The layout of values in a block: the rules called "upcall-1".
//!
//! A block is a run of bytes that starts at a multiple of 8: first the fixed part, then the tail.
//! Everything is little endian and naturally aligned.
//!
//! ```text
//! bool                1 byte, 0 or 1 and nothing else
//! u8..u64, s8..s64    their size
//! f32, f64            their size
//! char                4 bytes, a Unicode scalar value
//! string, list<T>     { offset: u64, count: u64 }: offset from the start of the block into the
//!                     tail, count of bytes or elements
//! list<T, N>          N times T, in place
//! record, tuple       in the order of declaration, as C does it
//! variant, option,    discriminant of 1 byte (2 above 256 cases, 4 above 65536), then the value
//!   result            at the greatest alignment among all cases; the size is rounded up to the
//!                     alignment of the whole
//! enum                the discriminant alone
//! flags               1, 2, 4 or 8 bytes for up to 8, 16, 32 or 64 flags
//! own, borrow         8 bytes: a number that the server gave out
//! ```
//!
//! Two differences from WIT's canonical ABI, both on purpose. Its pointers and counts are 32 bits
//! wide, because they address a WebAssembly memory; here one call may carry more than 4 GiB, and an
//! offset is relative to the block, so that it means the same in both domains and can be checked
//! against the block's length alone. Its flags are runs of 32-bit words; here they are one integer,
//! which costs the cases above 64 flags (refused). An offset is only ever used after it was
//! compared with the length of the block it came with.

use crate::error::{Error, Location};
use crate::model::{Case, Field, Label, Model, Type, TypeBody};

/// The size and alignment of a type, and whether it has a tail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TypeLayout {
    /// Bytes in the fixed part; a multiple of `align`.
    pub size: u64,
    /// 1, 2, 4 or 8.
    pub align: u64,
    /// `true` if there is no string or list inside, and so no tail.
    pub fixed: bool,
}

/// Maximum length of the fixed part of a block, in bytes. This is far more than a program should
/// pass by value, and small enough that no sum below overflows and that it fits the 32 bits of a
/// descriptor.
pub const MAX_FIXED: u64 = 1 << 28;

impl TypeLayout {
    /// The empty block, of a procedure without parameters or without a result.
    pub const EMPTY: Self = Self { size: 0, align: 1, fixed: true };

    const fn scalar(size: u64) -> Self {
        Self { size, align: size, fixed: true }
    }

    /// A string or list: offset and count.
    const SLICE: Self = Self { size: 16, align: 8, fixed: false };
}

/// Rounds `n` up to a multiple of `align`, a power of two.
pub(crate) const fn round_up(n: u64, align: u64) -> u64 {
    (n + align - 1) & !(align - 1)
}

/// The size in bytes of a discriminant for `cases` cases.
#[must_use]
pub const fn discriminant_size(cases: usize) -> u64 {
    match cases {
        0..=0x100 => 1,
        0x101..=0x1_0000 => 2,
        _ => 4,
    }
}

/// The size in bytes of `count` flags; `None` above 64.
#[must_use]
pub const fn flags_size(count: usize) -> Option<u64> {
    match count {
        0..=8 => Some(1),
        9..=16 => Some(2),
        17..=32 => Some(4),
        33..=64 => Some(8),
        _ => None,
    }
}

/// The offsets of the members in order, and the layout of the whole, as C lays out a struct.
#[must_use]
pub fn sequence(members: impl IntoIterator<Item = TypeLayout>) -> (Vec<u64>, TypeLayout) {
    let mut whole = TypeLayout::EMPTY;
    let mut offsets = Vec::new();
    for member in members {
        let at = round_up(whole.size, member.align);
        offsets.push(at);
        whole.size = at.saturating_add(member.size).min(MAX_FIXED * 2);
        whole.align = whole.align.max(member.align);
        whole.fixed &= member.fixed;
    }
    whole.size = round_up(whole.size, whole.align);
    (offsets, whole)
}

/// The offset of a case's value, and the layout of the whole. `cases` is the number of cases;
/// `payloads` are the layouts of the values that cases carry.
#[must_use]
pub fn choice(cases: usize, payloads: impl IntoIterator<Item = TypeLayout>) -> (u64, TypeLayout) {
    let tag = discriminant_size(cases);
    let mut value = TypeLayout::EMPTY;
    for payload in payloads {
        value.size = value.size.max(payload.size);
        value.align = value.align.max(payload.align);
        value.fixed &= payload.fixed;
    }
    let at = round_up(tag, value.align);
    let align = value.align.max(tag);
    (at, TypeLayout { size: round_up(at + value.size, align), align, fixed: value.fixed })
}

impl Model {
    /// The layout of a type in use. The table has the layouts of named types, so this never
    /// recurses deeper than one declaration.
    #[must_use]
    pub fn layout(&self, ty: &Type) -> TypeLayout {
        match ty {
            Type::Bool | Type::U8 | Type::S8 => TypeLayout::scalar(1),
            Type::U16 | Type::S16 => TypeLayout::scalar(2),
            Type::U32 | Type::S32 | Type::F32 | Type::Char => TypeLayout::scalar(4),
            Type::U64 | Type::S64 | Type::F64 | Type::Own(_) | Type::Borrow(_) => {
                TypeLayout::scalar(8)
            }
            Type::String | Type::List(_) => TypeLayout::SLICE,
            Type::FixedList(element, count) => {
                let one = self.layout(element);
                TypeLayout {
                    size: one.size.saturating_mul(u64::from(*count)).min(MAX_FIXED * 2),
                    ..one
                }
            }
            Type::Option(some) => choice(2, [self.layout(some)]).1,
            Type::Result(ok, err) => {
                choice(2, [ok, err].into_iter().flatten().map(|t| self.layout(t))).1
            }
            Type::Tuple(types) => sequence(types.iter().map(|t| self.layout(t))).1,
            Type::Named(id) => self.def(*id).layout,
        }
    }

    /// The layout of a shape whose parts are already in the table.
    pub(crate) fn layout_of_shape(&self, shape: &TypeBody) -> TypeLayout {
        match shape {
            TypeBody::Record(fields) => self.record(fields).1,
            TypeBody::Variant(cases) => self.variant(cases).1,
            TypeBody::Enum(labels) => enumeration(labels),
            TypeBody::Flags(labels) => TypeLayout::scalar(flags_size(labels.len()).unwrap_or(8)),
            TypeBody::Resource => TypeLayout::scalar(8),
            TypeBody::Alias(ty) => self.layout(ty),
        }
    }

    /// The offsets of a record's fields, and the layout of the whole.
    #[must_use]
    pub fn record(&self, fields: &[Field]) -> (Vec<u64>, TypeLayout) {
        sequence(fields.iter().map(|f| self.layout(&f.ty)))
    }

    /// The offset of the value of a variant's case, and the layout of the whole.
    #[must_use]
    pub fn variant(&self, cases: &[Case]) -> (u64, TypeLayout) {
        choice(cases.len(), cases.iter().filter_map(|c| c.ty.as_ref()).map(|t| self.layout(t)))
    }
}

fn enumeration(labels: &[Label]) -> TypeLayout {
    TypeLayout::scalar(discriminant_size(labels.len()))
}

/// Refuses a type that is too large to pass by value.
pub(crate) fn check_size(
    layout: TypeLayout,
    at: &Location,
    what: &str,
) -> Result<TypeLayout, Error> {
    if layout.size <= MAX_FIXED {
        return Ok(layout);
    }
    Err(Error::unsupported(
        at,
        format!("{what} of more than {MAX_FIXED} bytes in place"),
        "use list<..> without a length, whose elements travel in the tail",
    ))
}
