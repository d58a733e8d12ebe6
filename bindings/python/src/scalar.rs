//! Numbers, truth values and characters, and the fast path of procedures that use nothing else.

use crate::plan::{ParamPlan, ResultPlan, TypePlan};
use pyo3::ffi;
use std::ffi::c_int;
use upcall_idl::model::Type as WitType;
use upcall_rpc::Malformed;
use upcall_rpc::untyped::InlineWords;

/// The type of a single number in a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scalar {
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
}

impl Scalar {
    pub fn of(ty: &WitType) -> Self {
        match ty {
            WitType::Bool => Self::Bool,
            WitType::U8 => Self::U8,
            WitType::U16 => Self::U16,
            WitType::U32 => Self::U32,
            WitType::U64 => Self::U64,
            WitType::S8 => Self::S8,
            WitType::S16 => Self::S16,
            WitType::S32 => Self::S32,
            WitType::S64 => Self::S64,
            WitType::F32 => Self::F32,
            WitType::F64 => Self::F64,
            WitType::Char => Self::Char,
            other => unreachable!("{other:?} is no number"),
        }
    }

    /// Returns the name in WIT.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bool => "bool",
            Self::U8 => "u8",
            Self::U16 => "u16",
            Self::U32 => "u32",
            Self::U64 => "u64",
            Self::S8 => "s8",
            Self::S16 => "s16",
            Self::S32 => "s32",
            Self::S64 => "s64",
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::Char => "char",
        }
    }

    #[inline]
    pub fn size(self) -> usize {
        match self {
            Self::Bool | Self::U8 | Self::S8 => 1,
            Self::U16 | Self::S16 => 2,
            Self::U32 | Self::S32 | Self::F32 | Self::Char => 4,
            Self::U64 | Self::S64 | Self::F64 => 8,
        }
    }

    /// Returns `true` if `format` is the code by which `struct` and buffers denote this type.
    pub fn is_format(self, format: u8) -> bool {
        match self {
            Self::Bool => format == b'?',
            Self::U8 => matches!(format, b'B' | b'c'),
            Self::U16 => format == b'H',
            Self::U32 => format == b'I' || (format == b'L' && size_of::<std::ffi::c_long>() == 4),
            Self::U64 => {
                matches!(format, b'Q' | b'N')
                    || (format == b'L' && size_of::<std::ffi::c_long>() == 8)
            }
            Self::S8 => format == b'b',
            Self::S16 => format == b'h',
            Self::S32 => format == b'i' || (format == b'l' && size_of::<std::ffi::c_long>() == 4),
            Self::S64 => {
                matches!(format, b'q' | b'n')
                    || (format == b'l' && size_of::<std::ffi::c_long>() == 8)
            }
            Self::F32 => format == b'f',
            Self::F64 => format == b'd',
            // Each number would have to be checked for being a character.
            Self::Char => false,
        }
    }

    /// Returns the bits of an object, or `None` if it is not of this type, possibly with Python's
    /// exception set.
    ///
    /// # Safety
    /// The thread has the interpreter's lock, and `object` is an object.
    #[inline]
    pub unsafe fn bits(self, object: *mut ffi::PyObject) -> Option<u64> {
        match self {
            Self::U8 | Self::U16 | Self::U32 | Self::S8 | Self::S16 | Self::S32 | Self::S64 => {
                // SAFETY: the caller's contract.
                let value = unsafe { whole(object) }?;
                let (least, most) = match self {
                    Self::U8 => (0, u8::MAX.into()),
                    Self::U16 => (0, u16::MAX.into()),
                    Self::U32 => (0, u32::MAX.into()),
                    Self::S8 => (i8::MIN.into(), i8::MAX.into()),
                    Self::S16 => (i16::MIN.into(), i16::MAX.into()),
                    Self::S32 => (i32::MIN.into(), i32::MAX.into()),
                    _ => (i64::MIN, i64::MAX),
                };
                (least..=most).contains(&value).then_some(value as u64)
            }
            Self::U64 => {
                // SAFETY: the caller's contract.
                let is_int = unsafe { ffi::PyLong_Check(object) } != 0;
                if !is_int {
                    // SAFETY: as above.
                    return u64::try_from(unsafe { whole(object) }?).ok();
                }
                // SAFETY: as above.
                let value = unsafe { ffi::PyLong_AsUnsignedLongLong(object) };
                // SAFETY: as above.
                if value == u64::MAX && !unsafe { ffi::PyErr_Occurred() }.is_null() {
                    return None;
                }
                Some(value)
            }
            Self::Bool => {
                // SAFETY: both objects live forever.
                let truth = unsafe { ffi::Py_True() };
                // SAFETY: as above.
                let falsehood = unsafe { ffi::Py_False() };
                if object == truth { Some(1) } else { (object == falsehood).then_some(0) }
            }
            Self::F32 | Self::F64 => {
                // SAFETY: the caller's contract.
                let value = unsafe { ffi::PyFloat_AsDouble(object) };
                // SAFETY: as above.
                if value == -1.0 && !unsafe { ffi::PyErr_Occurred() }.is_null() {
                    return None;
                }
                Some(if self == Self::F32 {
                    (value as f32).to_bits().into()
                } else {
                    value.to_bits()
                })
            }
            Self::Char => {
                // SAFETY: the caller's contract.
                if unsafe { ffi::PyUnicode_Check(object) } == 0 {
                    return None;
                }
                // SAFETY: it is a string.
                if unsafe { ffi::PyUnicode_GetLength(object) } != 1 {
                    return None;
                }
                // SAFETY: the string has one character.
                let number = unsafe { ffi::PyUnicode_ReadChar(object, 0) };
                char::from_u32(number).map(u64::from)
            }
        }
    }

    /// Returns the object with these bits, as a new reference, or null if Python has no memory.
    ///
    /// # Errors
    /// The bits represent no value of the type.
    ///
    /// # Safety
    /// The thread has the interpreter's lock.
    #[inline]
    pub unsafe fn object(self, bits: u64, at: usize) -> Result<*mut ffi::PyObject, Malformed> {
        Ok(match self {
            Self::U8 | Self::U16 | Self::U32 | Self::U64 => {
                // SAFETY: the caller's contract.
                unsafe { ffi::PyLong_FromUnsignedLongLong(bits) }
            }
            Self::S8 | Self::S16 | Self::S32 | Self::S64 => {
                let value = match self {
                    Self::S8 => i64::from(bits as i8),
                    Self::S16 => i64::from(bits as i16),
                    Self::S32 => i64::from(bits as i32),
                    _ => bits as i64,
                };
                // SAFETY: the caller's contract.
                unsafe { ffi::PyLong_FromLongLong(value) }
            }
            Self::F32 | Self::F64 => {
                let value = if self == Self::F32 {
                    f64::from(f32::from_bits(bits as u32))
                } else {
                    f64::from_bits(bits)
                };
                // SAFETY: the caller's contract.
                unsafe { ffi::PyFloat_FromDouble(value) }
            }
            Self::Bool => {
                if bits > 1 {
                    return Err(Malformed::discriminant(at, bits, 2));
                }
                // SAFETY: the caller's contract.
                unsafe { ffi::PyBool_FromLong(bits as std::ffi::c_long) }
            }
            Self::Char => {
                let Some(c) = char::from_u32(bits as u32) else {
                    return Err(Malformed::discriminant(at, bits, 0x11_0000));
                };
                let mut text = [0; 4];
                let text = c.encode_utf8(&mut text);
                // SAFETY: the caller's contract, and a text of this length.
                unsafe {
                    ffi::PyUnicode_FromStringAndSize(
                        text.as_ptr().cast(),
                        text.len() as ffi::Py_ssize_t,
                    )
                }
            }
        })
    }
}

/// Returns the value of an `int`, or of an object with `__index__`.
///
/// # Safety
/// The thread has the interpreter's lock, and `object` is an object.
#[inline]
unsafe fn whole(object: *mut ffi::PyObject) -> Option<i64> {
    let mut overflow: c_int = 0;
    // SAFETY: the caller's contract. The function accepts any object with `__index__`, and rejects
    // fractions.
    let value = unsafe { ffi::PyLong_AsLongLongAndOverflow(object, &mut overflow) };
    // SAFETY: the caller's contract.
    if overflow != 0 || (value == -1 && !unsafe { ffi::PyErr_Occurred() }.is_null()) {
        return None;
    }
    Some(value)
}

/// A procedure whose arguments and results are only numbers, all within the message.
pub struct Fast {
    pub params: Vec<(Scalar, usize)>,
    pub result: Option<Scalar>,
    pub len: usize,
}

impl Fast {
    pub fn of(params: &[ParamPlan], result: Option<&ResultPlan>, len: usize) -> Option<Self> {
        let scalar =
            |ty: &TypePlan| if let TypePlan::Scalar(scalar) = ty { Some(*scalar) } else { None };
        let params = params
            .iter()
            .map(|param| Some((scalar(&param.client.ty)?, param.at)))
            .collect::<Option<Vec<_>>>()?;
        let result = match result {
            None => None,
            Some(results) => Some(scalar(&results.client.ty)?),
        };
        Some(Self { params, result, len })
    }
}

/// Puts the low `size` bytes of `bits` at a multiple of `size`.
#[inline]
pub fn store(words: &mut InlineWords, at: usize, bits: u64, size: usize) {
    let word = &mut words[at / 8];
    if size == 8 {
        *word = bits;
    } else {
        let (shift, mask) = (at % 8 * 8, (1 << (size * 8)) - 1);
        *word = *word & !(mask << shift) | (bits & mask) << shift;
    }
}
