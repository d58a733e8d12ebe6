//! Converts values to blocks and back, by the layout rules of [`layout`](crate::layout).
//!
//! Compiled stubs do the same in straight-line code. This implementation walks the model, and
//! serves as a second implementation to test the stubs against.

use super::value::WitValue;
use super::wave::flags;
use super::{MAX_VALUES, ValueError};
use crate::layout::{choice, discriminant_size, flags_size, round_up, sequence};
use crate::model::{Model, ProcedureLimits, Type, TypeBody};
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// A block under construction. The tail grows behind the fixed part, each piece rounded up to 8
/// bytes.
pub(super) struct BlockWriter<'m> {
    model: &'m Model,
    limits: ProcedureLimits,
    bytes: Vec<u8>,
    fixed: usize,
}

impl<'m> BlockWriter<'m> {
    pub(super) fn new(model: &'m Model, fixed: u64, limits: ProcedureLimits) -> Self {
        let fixed = fixed as usize;
        Self { model, limits, bytes: vec![0; fixed], fixed }
    }

    pub(super) fn finish(self) -> Vec<u8> {
        self.bytes
    }

    fn store(&mut self, at: u64, bytes: &[u8]) {
        self.bytes[at as usize..][..bytes.len()].copy_from_slice(bytes);
    }

    /// Writes a little-endian number of `size` bytes.
    fn number(&mut self, at: u64, value: u64, size: u64) {
        self.store(at, &value.to_le_bytes()[..size as usize]);
    }

    /// Adds a piece of the tail, writes its descriptor at `at`, and returns where the piece starts.
    fn piece(
        &mut self,
        at: u64,
        count: usize,
        each: u64,
        limit: u64,
        what: &str,
    ) -> Result<u64, String> {
        if count as u64 > limit {
            return Err(format!("it has {count} {what}, more than the limit of {limit}"));
        }
        if self.bytes.len() == self.fixed {
            self.bytes.resize(round_up(self.fixed as u64, 8) as usize, 0);
        }
        let start = self.bytes.len() as u64;
        let len = round_up(count as u64 * each, 8);
        self.bytes.resize((start + len) as usize, 0);
        self.number(at, start, 8);
        self.number(at + 8, count as u64, 8);
        Ok(start)
    }

    /// Writes a value of `ty` at `at`. The values come from `wave.rs`, so they fit the type.
    pub(super) fn put(&mut self, ty: &Type, value: &WitValue<'_>, at: u64) -> Result<(), String> {
        match (self.model.resolve(ty), value) {
            (_, WitValue::Bool(v)) => self.number(at, u64::from(*v), 1),
            (_, WitValue::U8(v)) => self.store(at, &v.to_le_bytes()),
            (_, WitValue::U16(v)) => self.store(at, &v.to_le_bytes()),
            (_, WitValue::U32(v)) => self.store(at, &v.to_le_bytes()),
            (_, WitValue::U64(v) | WitValue::Handle(_, v)) => self.store(at, &v.to_le_bytes()),
            (_, WitValue::S8(v)) => self.store(at, &v.to_le_bytes()),
            (_, WitValue::S16(v)) => self.store(at, &v.to_le_bytes()),
            (_, WitValue::S32(v)) => self.store(at, &v.to_le_bytes()),
            (_, WitValue::S64(v)) => self.store(at, &v.to_le_bytes()),
            (_, WitValue::F32(v)) => self.store(at, &v.to_le_bytes()),
            (_, WitValue::F64(v)) => self.store(at, &v.to_le_bytes()),
            (_, WitValue::Char(v)) => self.number(at, u64::from(u32::from(*v)), 4),
            (_, WitValue::String(text)) => {
                let start = self.piece(at, text.len(), 1, self.limits.string, "bytes")?;
                self.store(start, text.as_bytes());
            }
            (_, WitValue::Bytes(bytes)) => {
                let start = self.piece(at, bytes.len(), 1, self.limits.list, "elements")?;
                self.store(start, bytes);
            }
            (Type::List(t), WitValue::List(values)) => {
                let each = self.model.layout(t).size;
                let start = self.piece(at, values.len(), each, self.limits.list, "elements")?;
                self.run(t, values, start)?;
            }
            (Type::FixedList(t, _), WitValue::List(values)) => self.run(t, values, at)?,
            (Type::Tuple(types), WitValue::Tuple(values)) => {
                let (offsets, _) = sequence(types.iter().map(|t| self.model.layout(t)));
                for ((t, v), offset) in types.iter().zip(values).zip(offsets) {
                    self.put(t, v, at + offset)?;
                }
            }
            (Type::Option(t), WitValue::Option(value)) => {
                self.number(at, u64::from(value.is_some()), 1);
                if let Some(value) = value {
                    let (offset, _) = choice(2, [self.model.layout(t)]);
                    self.put(t, value, at + offset)?;
                }
            }
            (Type::Result(ok, err), WitValue::Result(value)) => {
                self.number(at, u64::from(value.is_err()), 1);
                let (offset, _) =
                    choice(2, [ok, err].into_iter().flatten().map(|t| self.model.layout(t)));
                let (ty, value) = match value {
                    Ok(value) => (ok, value),
                    Err(value) => (err, value),
                };
                if let (Some(ty), Some(value)) = (ty, value) {
                    self.put(ty, value, at + offset)?;
                }
            }
            (Type::Named(id), value) => self.shape(&self.model.def(*id).shape, value, at)?,
            (ty, value) => unreachable!("{value:?} was made for {}", self.model.wit(ty)),
        }
        Ok(())
    }

    fn run(&mut self, ty: &Type, values: &[WitValue<'_>], start: u64) -> Result<(), String> {
        let each = self.model.layout(ty).size;
        for (index, value) in (0_u64..).zip(values) {
            self.put(ty, value, start + index * each)?;
        }
        Ok(())
    }

    fn shape(&mut self, shape: &TypeBody, value: &WitValue<'_>, at: u64) -> Result<(), String> {
        match (shape, value) {
            (TypeBody::Record(fields), WitValue::Record(values)) => {
                let (offsets, _) = self.model.record(fields);
                for ((field, (_, value)), offset) in fields.iter().zip(values).zip(offsets) {
                    self.put(&field.ty, value, at + offset)?;
                }
            }
            (TypeBody::Variant(cases), WitValue::Variant(number, _, value)) => {
                self.number(at, *number as u64, discriminant_size(cases.len()));
                if let (Some(ty), Some(value)) = (&cases[*number].ty, value) {
                    let (offset, _) = self.model.variant(cases);
                    self.put(ty, value, at + offset)?;
                }
            }
            (TypeBody::Enum(labels), WitValue::Enum(number, _)) => {
                self.number(at, *number as u64, discriminant_size(labels.len()));
            }
            (TypeBody::Flags(labels), WitValue::Flags(bits, _)) => {
                self.number(at, *bits, flags_size(labels.len()).unwrap_or(8));
            }
            (_, value) => unreachable!("{value:?} was made for another shape"),
        }
        Ok(())
    }
}

/// Reads a block that another domain made.
pub(super) struct BlockReader<'m, 'b> {
    model: &'m Model,
    limits: ProcedureLimits,
    bytes: &'b [u8],
    /// Number of bytes of the tail not yet given out. The pieces of a valid block do not overlap;
    /// without this count, a short block whose lists all point at each other would unfold without
    /// bound.
    budget: u64,
    /// Number of values that may still be read. Values of some types take no bytes in the block,
    /// and all take more memory here than there.
    values: usize,
    /// Results cached by the address of the type in the model: the element size of a list, or the
    /// offset of the value in an option or a result. Computing one may walk over as many members as
    /// fit in the source.
    known: HashMap<*const Type, u64>,
    /// Offset of the values of a variant's cases, by the address of the shape in the model.
    variants: HashMap<*const TypeBody, u64>,
}

fn malformed(at: u64, found: impl Into<String>) -> ValueError {
    ValueError::Malformed { at, found: found.into() }
}

impl<'m, 'b> BlockReader<'m, 'b> {
    pub(super) fn new(
        model: &'m Model,
        bytes: &'b [u8],
        fixed: u64,
        limits: ProcedureLimits,
    ) -> Result<Self, ValueError> {
        let len = bytes.len() as u64;
        let budget = len.checked_sub(fixed).ok_or_else(|| {
            malformed(len, format!("the block ends; its fixed part alone has {fixed} bytes"))
        })?;
        Ok(Self {
            model,
            limits,
            bytes,
            budget,
            values: MAX_VALUES,
            known: HashMap::new(),
            variants: HashMap::new(),
        })
    }

    /// Subtracts `values` from the number of values that may still be read.
    fn count(&mut self, values: usize) -> Result<(), ValueError> {
        let left = self.values.checked_sub(values);
        self.values = left.ok_or(ValueError::TooMuch { what: "values", limit: MAX_VALUES })?;
        Ok(())
    }

    /// Returns the cached result of `work` for a type, which is computed at the first use. The same
    /// type is always passed with the same `work`.
    fn known(&mut self, ty: &'m Type, work: impl FnOnce(&Model) -> u64) -> u64 {
        match self.known.entry(ty) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(new) => *new.insert(work(self.model)),
        }
    }

    fn load<const N: usize>(&self, at: u64) -> Result<[u8; N], ValueError> {
        let start = usize::try_from(at).ok();
        let found = start.and_then(|start| self.bytes.get(start..)?.first_chunk::<N>());
        found.copied().ok_or_else(|| malformed(at, "the block ends"))
    }

    fn number(&self, at: u64, size: u64) -> Result<u64, ValueError> {
        Ok(match size {
            1 => u64::from(u8::from_le_bytes(self.load(at)?)),
            2 => u64::from(u16::from_le_bytes(self.load(at)?)),
            4 => u64::from(u32::from_le_bytes(self.load(at)?)),
            _ => u64::from_le_bytes(self.load(at)?),
        })
    }

    fn case(&self, at: u64, cases: usize) -> Result<usize, ValueError> {
        let found = self.number(at, discriminant_size(cases))?;
        let number = usize::try_from(found).ok().filter(|n| *n < cases);
        number.ok_or_else(|| malformed(at, format!("case {found} of {cases} cases")))
    }

    /// The piece of the tail that the descriptor at `at` refers to: its offset and its number of
    /// elements.
    fn piece(
        &mut self,
        at: u64,
        each: u64,
        limit: u64,
        what: &str,
    ) -> Result<(u64, u64), ValueError> {
        let (start, count) = (self.number(at, 8)?, self.number(at + 8, 8)?);
        if count > limit {
            return Err(malformed(at, format!("{count} {what}, more than the limit of {limit}")));
        }
        if count == 0 {
            return Ok((0, 0)); // the offset of nothing means nothing
        }
        let len = count.checked_mul(each);
        let end = len.and_then(|len| start.checked_add(len));
        match (len, end) {
            (Some(len), Some(end)) if end <= self.bytes.len() as u64 && len <= self.budget => {
                self.budget -= len;
                Ok((start, count))
            }
            _ => Err(malformed(
                at,
                format!("{count} {what} at {start}, more than the block has left"),
            )),
        }
    }

    fn copy(&self, start: u64, len: u64) -> Vec<u8> {
        self.bytes[start as usize..][..len as usize].to_vec()
    }

    /// Reads the value of `ty` at `at`.
    pub(super) fn get(&mut self, ty: &'m Type, at: u64) -> Result<WitValue<'m>, ValueError> {
        self.count(1)?;
        let ty = self.model.resolve(ty);
        Ok(match ty {
            Type::Bool => match self.number(at, 1)? {
                0 => WitValue::Bool(false),
                1 => WitValue::Bool(true),
                other => return Err(malformed(at, format!("{other} for a bool"))),
            },
            Type::U8 => WitValue::U8(u8::from_le_bytes(self.load(at)?)),
            Type::U16 => WitValue::U16(u16::from_le_bytes(self.load(at)?)),
            Type::U32 => WitValue::U32(u32::from_le_bytes(self.load(at)?)),
            Type::U64 => WitValue::U64(u64::from_le_bytes(self.load(at)?)),
            Type::S8 => WitValue::S8(i8::from_le_bytes(self.load(at)?)),
            Type::S16 => WitValue::S16(i16::from_le_bytes(self.load(at)?)),
            Type::S32 => WitValue::S32(i32::from_le_bytes(self.load(at)?)),
            Type::S64 => WitValue::S64(i64::from_le_bytes(self.load(at)?)),
            Type::F32 => WitValue::F32(f32::from_le_bytes(self.load(at)?)),
            Type::F64 => WitValue::F64(f64::from_le_bytes(self.load(at)?)),
            Type::Char => {
                let number = u32::from_le_bytes(self.load(at)?);
                let c = char::from_u32(number);
                WitValue::Char(
                    c.ok_or_else(|| malformed(at, format!("{number:#x} for a character")))?,
                )
            }
            Type::String => {
                let (start, count) = self.piece(at, 1, self.limits.string, "bytes")?;
                let text = String::from_utf8(self.copy(start, count));
                WitValue::String(text.map_err(|_| malformed(start, "a string that is not UTF-8"))?)
            }
            Type::List(t) if *self.model.resolve(t) == Type::U8 => {
                let (start, count) = self.piece(at, 1, self.limits.list, "elements")?;
                WitValue::Bytes(self.copy(start, count))
            }
            Type::List(t) => {
                let each = self.known(ty, |model| model.layout(t).size);
                let (start, count) = self.piece(at, each, self.limits.list, "elements")?;
                self.elements(t, each, start, count)?
            }
            Type::FixedList(t, count) => {
                let each = self.known(ty, |model| model.layout(t).size);
                self.elements(t, each, at, u64::from(*count))?
            }
            Type::Tuple(types) => {
                let (offsets, _) = sequence(types.iter().map(|t| self.model.layout(t)));
                let values = types.iter().zip(offsets).map(|(t, offset)| self.get(t, at + offset));
                WitValue::Tuple(values.collect::<Result<_, _>>()?)
            }
            Type::Option(t) => match self.case(at, 2)? {
                0 => WitValue::Option(None),
                _ => {
                    let offset = self.known(ty, |model| choice(2, [model.layout(t)]).0);
                    WitValue::Option(Some(Box::new(self.get(t, at + offset)?)))
                }
            },
            Type::Result(ok, err) => {
                let payloads = [ok, err].into_iter().flatten();
                let offset = self.known(ty, |model| choice(2, payloads.map(|t| model.layout(t))).0);
                match self.case(at, 2)? {
                    0 => WitValue::Result(Ok(self.maybe(ok.as_deref(), at + offset)?)),
                    _ => WitValue::Result(Err(self.maybe(err.as_deref(), at + offset)?)),
                }
            }
            Type::Own(id) | Type::Borrow(id) => {
                WitValue::Handle(&self.model.def(*id).name, self.number(at, 8)?)
            }
            Type::Named(id) => self.shape(&self.model.def(*id).shape, at)?,
        })
    }

    /// Reads a list of `count` elements of `each` bytes from `start` on.
    fn elements(
        &mut self,
        ty: &'m Type,
        each: u64,
        start: u64,
        count: u64,
    ) -> Result<WitValue<'m>, ValueError> {
        let ty = self.model.resolve(ty);
        let values = (0..count).map(|n| self.get(ty, start + n * each));
        Ok(WitValue::List(values.collect::<Result<_, _>>()?))
    }

    fn maybe(
        &mut self,
        ty: Option<&'m Type>,
        at: u64,
    ) -> Result<Option<Box<WitValue<'m>>>, ValueError> {
        ty.map(|ty| self.get(ty, at).map(Box::new)).transpose()
    }

    fn shape(&mut self, shape: &'m TypeBody, at: u64) -> Result<WitValue<'m>, ValueError> {
        Ok(match shape {
            TypeBody::Record(fields) => {
                let (offsets, _) = self.model.record(fields);
                let values = fields.iter().zip(offsets).map(|(field, offset)| {
                    self.get(&field.ty, at + offset).map(|value| (field.name.as_str(), value))
                });
                WitValue::Record(values.collect::<Result<_, _>>()?)
            }
            TypeBody::Variant(cases) => {
                let number = self.case(at, cases.len())?;
                let offset =
                    *self.variants.entry(shape).or_insert_with(|| self.model.variant(cases).0);
                let value = self.maybe(cases[number].ty.as_ref(), at + offset)?;
                WitValue::Variant(number, &cases[number].name, value)
            }
            TypeBody::Enum(labels) => {
                let number = self.case(at, labels.len())?;
                WitValue::Enum(number, &labels[number].name)
            }
            TypeBody::Flags(labels) => {
                let bits = self.number(at, flags_size(labels.len()).unwrap_or(8))?;
                if labels.len() < 64 && bits >> labels.len() != 0 {
                    return Err(malformed(at, format!("{bits:#x} for {} flags", labels.len())));
                }
                self.count(bits.count_ones() as usize)?;
                flags(labels, bits)
            }
            TypeBody::Alias(ty) => self.get(ty, at)?,
            TypeBody::Resource => WitValue::Handle("", self.number(at, 8)?),
        })
    }
}
