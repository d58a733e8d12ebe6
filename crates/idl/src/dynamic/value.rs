//! A value of any WIT type, as `wasm-wave` writes it.

use super::{ProcedureOutcome, ValueError};
use std::borrow::Cow;
use wasm_wave::wasm::{WasmTypeKind, WasmValue};

/// A value of any WIT type. Names are those in the interface's source.
#[derive(Clone, Debug, PartialEq)]
pub enum WitValue<'m> {
    /// A `bool`.
    Bool(bool),
    /// A `u8`.
    U8(u8),
    /// A `u16`.
    U16(u16),
    /// A `u32`.
    U32(u32),
    /// A `u64`.
    U64(u64),
    /// An `s8`.
    S8(i8),
    /// An `s16`.
    S16(i16),
    /// An `s32`.
    S32(i32),
    /// An `s64`.
    S64(i64),
    /// An `f32`.
    F32(f32),
    /// An `f64`.
    F64(f64),
    /// A `char`.
    Char(char),
    /// A `string`.
    String(String),
    /// A `list<u8>`, which is common and long.
    Bytes(Vec<u8>),
    /// A list of anything else.
    List(Vec<WitValue<'m>>),
    /// The fields of a record, by name.
    Record(Vec<(&'m str, WitValue<'m>)>),
    /// A tuple.
    Tuple(Vec<WitValue<'m>>),
    /// The case of a variant: number, name, payload.
    Variant(usize, &'m str, Option<Box<WitValue<'m>>>),
    /// The case of an enum: number, name.
    Enum(usize, &'m str),
    /// An option.
    Option(Option<Box<WitValue<'m>>>),
    /// A result, with the payload of its case, if any.
    Result(Result<Option<Box<WitValue<'m>>>, Option<Box<WitValue<'m>>>>),
    /// Flags: the bits, and the names of those that are set.
    Flags(u64, Vec<&'m str>),
    /// A handle: the resource's name and the number.
    Handle(&'m str, u64),
}

impl WitValue<'_> {
    /// The value in WAVE.
    ///
    /// # Errors
    /// [`ValueError::TooMuch`]: the text has more than [`MAX_TEXT`](super::MAX_TEXT) bytes.
    pub fn wave(&self) -> Result<String, ValueError> {
        super::text(self, super::MAX_TEXT)
    }

    /// Returns whether the value is the error that a procedure declares.
    #[must_use]
    pub fn outcome(&self) -> ProcedureOutcome {
        match self {
            Self::Result(Err(_)) => ProcedureOutcome::Error,
            _ => ProcedureOutcome::Done,
        }
    }
}

/// Reads the payload of an enum variant. The trait's contract is that each method is called only
/// for the kind that `kind` returned.
macro_rules! unwrap {
    ($($name:ident $variant:ident $ty:ty;)*) => { $(
        fn $name(&self) -> $ty {
            match self {
                Self::$variant(value) => *value,
                other => unreachable!("{other:?} taken for {}", stringify!($variant)),
            }
        }
    )* };
}

type Values<'a, T> = Box<dyn Iterator<Item = T> + 'a>;

impl WasmValue for WitValue<'_> {
    // Writing a value needs no type; reading (`wave.rs`) uses the model.
    type Type = wasm_wave::value::Type;

    fn kind(&self) -> WasmTypeKind {
        match self {
            Self::Bool(_) => WasmTypeKind::Bool,
            Self::U8(_) => WasmTypeKind::U8,
            Self::U16(_) => WasmTypeKind::U16,
            Self::U32(_) => WasmTypeKind::U32,
            Self::U64(_) => WasmTypeKind::U64,
            Self::S8(_) => WasmTypeKind::S8,
            Self::S16(_) => WasmTypeKind::S16,
            Self::S32(_) => WasmTypeKind::S32,
            Self::S64(_) => WasmTypeKind::S64,
            Self::F32(_) => WasmTypeKind::F32,
            Self::F64(_) => WasmTypeKind::F64,
            Self::Char(_) => WasmTypeKind::Char,
            Self::String(_) => WasmTypeKind::String,
            Self::Bytes(_) | Self::List(_) => WasmTypeKind::List,
            Self::Record(_) => WasmTypeKind::Record,
            Self::Tuple(_) => WasmTypeKind::Tuple,
            Self::Variant(..) | Self::Handle(..) => WasmTypeKind::Variant,
            Self::Enum(..) => WasmTypeKind::Enum,
            Self::Option(_) => WasmTypeKind::Option,
            Self::Result(_) => WasmTypeKind::Result,
            Self::Flags(..) => WasmTypeKind::Flags,
        }
    }

    unwrap! {
        unwrap_bool Bool bool;
        unwrap_u8 U8 u8;
        unwrap_u16 U16 u16;
        unwrap_u32 U32 u32;
        unwrap_u64 U64 u64;
        unwrap_s8 S8 i8;
        unwrap_s16 S16 i16;
        unwrap_s32 S32 i32;
        unwrap_s64 S64 i64;
        unwrap_f32 F32 f32;
        unwrap_f64 F64 f64;
        unwrap_char Char char;
    }

    fn unwrap_string(&self) -> Cow<'_, str> {
        match self {
            Self::String(text) => Cow::Borrowed(text),
            other => unreachable!("{other:?} taken for a string"),
        }
    }

    fn unwrap_list(&self) -> Values<'_, Cow<'_, Self>> {
        match self {
            Self::Bytes(bytes) => Box::new(bytes.iter().map(|b| Cow::Owned(Self::U8(*b)))),
            Self::List(values) => Box::new(values.iter().map(Cow::Borrowed)),
            other => unreachable!("{other:?} taken for a list"),
        }
    }

    fn unwrap_record(&self) -> Values<'_, (Cow<'_, str>, Cow<'_, Self>)> {
        match self {
            Self::Record(fields) => {
                Box::new(fields.iter().map(|(n, v)| (Cow::Borrowed(*n), Cow::Borrowed(v))))
            }
            other => unreachable!("{other:?} taken for a record"),
        }
    }

    fn unwrap_tuple(&self) -> Values<'_, Cow<'_, Self>> {
        match self {
            Self::Tuple(values) => Box::new(values.iter().map(Cow::Borrowed)),
            other => unreachable!("{other:?} taken for a tuple"),
        }
    }

    fn unwrap_variant(&self) -> (Cow<'_, str>, Option<Cow<'_, Self>>) {
        match self {
            Self::Variant(_, name, value) => {
                (Cow::Borrowed(name), value.as_deref().map(Cow::Borrowed))
            }
            Self::Handle(name, number) => {
                (Cow::Borrowed(name), Some(Cow::Owned(Self::U64(*number))))
            }
            other => unreachable!("{other:?} taken for a variant"),
        }
    }

    fn unwrap_enum(&self) -> Cow<'_, str> {
        match self {
            Self::Enum(_, name) => Cow::Borrowed(name),
            other => unreachable!("{other:?} taken for an enum"),
        }
    }

    fn unwrap_option(&self) -> Option<Cow<'_, Self>> {
        match self {
            Self::Option(value) => value.as_deref().map(Cow::Borrowed),
            other => unreachable!("{other:?} taken for an option"),
        }
    }

    fn unwrap_result(&self) -> Result<Option<Cow<'_, Self>>, Option<Cow<'_, Self>>> {
        match self {
            Self::Result(Ok(value)) => Ok(value.as_deref().map(Cow::Borrowed)),
            Self::Result(Err(value)) => Err(value.as_deref().map(Cow::Borrowed)),
            other => unreachable!("{other:?} taken for a result"),
        }
    }

    fn unwrap_flags(&self) -> Values<'_, Cow<'_, str>> {
        match self {
            Self::Flags(_, names) => Box::new(names.iter().map(|n| Cow::Borrowed(*n))),
            other => unreachable!("{other:?} taken for flags"),
        }
    }
}
